"""Compares recipes: comparability, effect size, significance."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from reporting import inference, ladder, verdict
from reporting.rows import Row, finite


def compare_all(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the comparisons of report.json: each pair of recipes on the same task.

    `ratio` is a's steps over b's (measure A and ladders), `difference` a's accuracy minus b's
    (measure B), `ci95` the interval of whichever of them is there; `p_adjusted` is Holm's over all
    tests of that measure on that task.
    """
    found: list[dict[str, Any]] = []
    for family in _by(rows, lambda row: (row.first.dataset, row.first.target_accuracy)):
        recipes = _by(family, lambda row: (row.first.kind, row.name, row.first.global_batch_size))
        tests = [
            test for a, b in itertools.combinations(recipes, 2) for test in _compare_recipes(a, b)
        ]
        for same_task in _by(tests, lambda test: (test["measure"], test["global_batch_size"])):
            _adjust(same_task)
        found += tests
    for test in found:
        test["verdict"] = test["verdict"] or verdict.verdict(test)
        test["sentence"] = verdict.sentence(test)
    return found


def _by(items: Sequence[Any], key: Any) -> list[list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _compare_recipes(a: list[Row], b: list[Row]) -> list[dict[str, Any]]:
    """Returns one ladder comparison, or measures A and B at each common budget."""
    if reason := _not_comparable(a[0], b[0]):
        return [_refusal(a[0], b[0], measure, reason) for measure in "AB"]
    steps = {row.first.total_steps for row in a} & {row.first.total_steps for row in b} - {None}
    if len(steps) >= 2:
        pick = [[row for row in rows if row.first.total_steps in steps] for rows in (a, b)]
        return [_frame(pick[0][0], pick[1][0], "ladder") | ladder.compare(*pick)]
    pairs = [(x, y) for x in a for y in b if x.first.total_steps == y.first.total_steps]
    if len(a) == len(b) == 1:
        pairs = [(a[0], b[0])]
    if not pairs:
        reason = "no budget in common"
        return [_refusal(a[0], b[0], measure, reason) for measure in "AB"]
    return [test for x, y in pairs for test in (compare_steps(x, y), compare_accuracy(x, y))]


def _not_comparable(a: Row, b: Row) -> str | None:
    batches = [row.first.global_batch_size for row in (a, b)]
    if None in batches:
        return "batch size not known"
    if batches[0] != batches[1]:
        return f"other batch size ({batches[0]} and {batches[1]})"
    return None


def _frame(a: Row, b: Row, measure: str) -> dict[str, Any]:
    return {
        "a": a.name,
        "b": b.name,
        "dataset": a.first.dataset,
        "global_batch_size": a.first.global_batch_size,
        "total_steps": [a.first.total_steps, b.first.total_steps],
        "measure": measure,
        "n": [a.n, b.n],
        "ratio": None,
        "difference": None,
        "ci95": None,
        "p_value": None,
        "p_adjusted": None,
        "test": None,
        "lower": None,
        "verdict": None,
    }


def _refusal(a: Row, b: Row, measure: str, reason: str) -> dict[str, Any]:
    return _frame(a, b, measure) | {"verdict": f"not comparable: {reason}"}


def _adjust(tests: list[dict[str, Any]]) -> None:
    tested = [test for test in tests if test["p_value"] is not None]
    for test, p in zip(tested, inference.holm([t["p_value"] for t in tested]), strict=True):
        test |= {"p_adjusted": p, "n_tests": len(tested)}


def shares_seeds(a: Row, b: Row) -> bool:
    """Returns whether both rows have the same seeds, each once."""
    seeds = [[run.seed for run in row.runs] for row in (a, b)]
    return None not in seeds[0] and seeds[0] == seeds[1] and len(set(seeds[0])) == a.n


def is_paired(a: Row, b: Row) -> bool:
    """Returns whether the test may pair by seed: shared seeds, and enough for sign flips."""
    return shares_seeds(a, b) and a.n >= inference.MIN_PAIRS


def compare_steps(a: Row, b: Row) -> dict[str, Any]:
    """Returns the comparison by measure A; both rows are cut at the shorter budget.

    Different budgets are allowed here: "which reaches the target earlier at its own schedule".
    """
    frame = _frame(a, b, "A")
    if any(run.reached and run.steps_to_target is None for run in a.runs + b.runs):
        return frame | {"verdict": "not comparable: the log does not tell steps"}
    intervals = np.array([run.reach_interval() for run in a.runs + b.runs])
    budgets = [row.first.total_steps for row in (a, b) if row.first.total_steps is not None]
    horizon = min(budgets, default=np.inf)
    scores = inference.waiting_scores(intervals[:, 0], intervals[:, 1], horizon)
    medians, interval = _ratio_interval(a, b)
    ratio = medians[0] / medians[1] if np.isfinite(medians).all() else None
    last = [float(row.waiting()[0].max()) for row in (a, b)]
    sizes = {"ratio": ratio, "ci95": interval} | bound(medians, last)
    return frame | inference.test_scores(scores, a.n, is_paired(a, b)) | sizes


def bound(medians: Sequence[float], last: Sequence[float]) -> dict[str, float]:
    """Returns a bound of the ratio if only one median is beyond the last common step."""
    if min(last) <= 0:  # never evaluated
        return {}
    if np.isfinite(medians[0]) and not np.isfinite(medians[1]):
        return {"ratio_below": medians[0] / last[1]}
    if np.isfinite(medians[1]) and not np.isfinite(medians[0]):
        return {"ratio_above": last[0] / medians[1]}
    return {}


def compare_accuracy(a: Row, b: Row) -> dict[str, Any]:
    """Returns the comparison by measure B: the same budget, diverged runs last."""
    frame = _frame(a, b, "B")
    budgets = [row.first.total_steps for row in (a, b)]
    if None in budgets:
        return frame | {"verdict": "not comparable: budget not known"}
    if budgets[0] != budgets[1]:
        return frame | {"verdict": f"not comparable: other budget ({budgets[0]}, {budgets[1]})"}
    finals = [row.finals() for row in (a, b)]
    if any(len(f) < row.n for f, row in zip(finals, (a, b), strict=True)):
        return frame | {"verdict": "not comparable: not every run ended its budget"}
    merged = np.concatenate(finals)
    better = merged[:, None] > merged[None, :]
    scores = better.sum(0) - better.sum(1).astype(float)
    difference = float(np.median(finals[0]) - np.median(finals[1]))
    draws = _draws(a, b)
    with np.errstate(invalid="ignore"):
        spread = [np.median(f[i], axis=-1) for f, i in zip(finals, draws, strict=True)]
        values = spread[0] - spread[1]
    interval = None
    if min(a.n, b.n) >= 3 and not np.isnan(values).any():
        interval = [finite(x) for x in inference.percentile_interval(values)]
    return (
        frame
        | inference.test_scores(scores, a.n, is_paired(a, b))
        | {"difference": finite(difference), "ci95": interval}
        | {"median_diverged": [bool(np.isneginf(np.median(f))) for f in finals]}
    )


def _draws(a: Row, b: Row) -> list[np.ndarray]:
    """Returns bootstrap indices for both rows, which are the same if the seeds are shared."""
    if shares_seeds(a, b):
        return [inference.resamples(a.n)] * 2
    first = inference.resamples(a.n)
    rng = np.random.default_rng([a.n, b.n])
    return [first, rng.integers(0, b.n, size=(len(first), b.n))]


def _ratio_interval(a: Row, b: Row) -> tuple[list[float], list[float | None] | None]:
    """Returns the two medians and the bootstrap interval of their ratio; an open end is None."""
    waiting = [row.waiting() for row in (a, b)]
    medians = [float(inference.km_median(*w)) for w in waiting]
    if min(a.n, b.n) < 3 or not np.isfinite(medians).any():
        return medians, None
    drawn = [
        inference.km_median(times[i], reached[i])
        for (times, reached), i in zip(waiting, _draws(a, b), strict=True)
    ]
    with np.errstate(invalid="ignore"):
        ratios = drawn[0] / drawn[1]
    # inf / inf has no order: it counts at both ends, which widens the interval.
    lo = np.where(np.isnan(ratios), 0.0, ratios)
    hi = np.where(np.isnan(ratios), np.inf, ratios)
    ends = inference.percentile_interval(lo)[0], inference.percentile_interval(hi)[1]
    return medians, [finite(end) or None for end in ends]
