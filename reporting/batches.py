"""Tests over several batch sizes whether Shampoo's advantage grows with the batch.

The recipes were run at each batch size for the same numbers of epochs. The advantage over another
optimizer is the difference of the two final accuracies, seed by seed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reporting import inference
from reporting.rows import Row
from reporting.verdict import p_value

SUBJECT = "shampoo"


def compare(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns, for every other optimizer and every common number of examples, the advantages.

    `advantages`: per batch size the median over seeds in accuracy (a fraction) and its bootstrap
    interval. `growth`: the same of the advantage at the largest batch minus that at the smallest,
    seed by seed; `p_adjusted` is of its sign-flip test, Holm's over all that is returned. A batch
    size at which a recipe has other settings, or runs that did not end, is left out: `left_out`
    says why.
    """
    cells: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in rows:
        if row.first.kind == "run" and row.first.total_steps and row.first.global_batch_size:
            n_examples = row.first.total_steps * row.first.global_batch_size
            key = (row.first.dataset, n_examples, row.first.global_batch_size)
            cells.setdefault(key, {}).setdefault(row.first.recipe, []).append(row)
    found = []
    for dataset, n_examples in sorted({key[:2] for key in cells}):
        at = {batch: c for (*where, batch), c in cells.items() if where == [dataset, n_examples]}
        names = sorted({name for recipes in at.values() for name in recipes})
        for subject in (name for name in names if name.partition(":")[0] == SUBJECT):
            for other in (name for name in names if name.partition(":")[0] != SUBJECT):
                found += _over_batches(at, subject, other, dataset, n_examples)
    for test, p in zip(found, inference.holm([t["p_value"] for t in found]), strict=True):
        test |= {"p_adjusted": p, "n_tests": len(found)}
        test["verdict"] = verdict(test)
        test["sentence"] = sentence(test)
    return found


def _over_batches(
    at: Mapping[int, Mapping[str, Sequence[Row]]],
    subject: str,
    other: str,
    dataset: str,
    n_examples: int,
) -> list[dict[str, Any]]:
    """Returns one entry, or none if fewer than two batch sizes have both recipes exactly once."""
    by_seed: dict[int, dict[int, float]] = {}
    left_out: dict[int, str] = {}
    for batch, recipes in sorted(at.items()):
        a, b = recipes.get(subject, []), recipes.get(other, [])
        if not a or not b:
            continue
        if len(a) + len(b) > 2:
            left_out[batch] = "runs of several settings"
        elif any(len(row.finals()) < row.n for row in (*a, *b)):
            left_out[batch] = "not every run ended its budget"
        else:
            mine, theirs = (row.finals_by_seed(diverged=0.0) for row in (a[0], b[0]))
            by_seed[batch] = {s: mine[s] - theirs[s] for s in sorted(set(mine) & set(theirs))}
    batches = [batch for batch, values in by_seed.items() if len(values) >= 3]
    if len(batches) < 2:
        return []
    first, last = by_seed[batches[0]], by_seed[batches[-1]]
    growth = np.array([last[s] - first[s] for s in sorted(set(first) & set(last))])
    if len(growth) < 3:
        return []
    return [
        {
            "dataset": dataset,
            "n_examples": n_examples,
            "subject": subject,
            "other": other,
            "batches": batches,
            "left_out": left_out,
            "n": [len(by_seed[batch]) for batch in batches],
            "advantages": [_median(list(by_seed[batch].values())) for batch in batches],
            "growth": _median(growth) | {"mean": float(growth.mean()), "n": len(growth)},
            "p_value": inference.sign_flip_p(growth),
        }
    ]


def _median(values: Sequence[float] | np.ndarray) -> dict[str, Any]:
    return {
        "median": float(np.median(values)),
        "ci95": list(inference.median_interval(list(values)) or (None, None)),
    }


def verdict(test: Mapping[str, Any]) -> str:
    """Returns "grows", "shrinks", "no change shown", or "too few seeds to show any change"."""
    growth = test["growth"]
    if test["n_tests"] * 2 / 2 ** growth["n"] > inference.ALPHA:
        return "too few seeds to show any change"
    # The test is on the mean. If the median has the other sign, neither answer is given.
    if test["p_adjusted"] <= inference.ALPHA and growth["median"] * growth["mean"] > 0:
        return "grows" if growth["median"] > 0 else "shrinks"
    return "no change shown"


def sentence(test: Mapping[str, Any]) -> str:
    """Returns a sentence with the answer for one other optimizer and one number of examples."""
    growth, batches = test["growth"], test["batches"]
    lo, hi = (100 * end for end in growth["ci95"])
    p = p_value(test["p_adjusted"], test["p_value"], 2 / 2 ** growth["n"])
    without = "".join(f"; without batch {b:,}: {why}" for b, why in test["left_out"].items())
    return (
        f"{test['subject']} over {test['other']}, {test['n_examples']:,} examples, from batch "
        f"{batches[0]:,} to {batches[-1]:,}: {test['verdict']} "
        f"({100 * growth['median']:+z.2f} points, 95 % interval {lo:+z.2f} to {hi:+z.2f}; "
        f"n = {growth['n']}, p = {p}{without})"
    )
