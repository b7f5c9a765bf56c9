"""Budget ladders: the same recipe at several budgets, with its schedule scaled to each.

The smallest budget whose median final accuracy reaches the target is the fairest "steps to
target": no run is judged in the middle of its schedule.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from reporting import inference
from reporting.rows import Row, finite, flatten
from run.schema import TIE_TOLERANCE, reaches

STRETCHED = {"total_steps", "schedule.warmup_steps", "schedule.decay_end_step"}


def steps_needed(budgets: np.ndarray, medians: np.ndarray, target: float) -> np.ndarray:
    """Returns the interpolated budget at which the median reaches the target.

    Args:
      budgets: [k] rising steps.
      medians: [..., k] median final accuracies.
      target: a fraction.

    Returns:
      [...] steps, linear between the last budget below the target and the first at or above it;
      budgets[0] if already the smallest reaches it, inf if none does.
    """
    reaches = medians >= target - TIE_TOLERANCE
    first = reaches.argmax(-1)
    before = np.maximum(first - 1, 0)
    high = np.take_along_axis(medians, first[..., None], -1)[..., 0]
    low = np.take_along_axis(medians, before[..., None], -1)[..., 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.clip(np.where(np.isfinite(low), (target - low) / (high - low), 1.0), 0, 1)
    steps = budgets[before] + share * (budgets[first] - budgets[before])
    steps = np.where(first == 0, budgets[0], steps)
    return np.where(reaches.any(-1), steps, np.inf)


def mixed(rows: Sequence[Row]) -> str | None:
    """Returns the first field that differs other than by scaling the budget, or None."""
    configs = [config for row in rows if (config := flatten(row.first.config))]
    fields = sorted({field for config in configs for field in config} - STRETCHED)
    return next((f for f in fields if any(c.get(f) != configs[0].get(f) for c in configs)), None)


def _accuracies(rows: Sequence[Row]) -> tuple[list[int], np.ndarray]:
    """Returns (seeds, final accuracies [n, k]), NaN if a seed was not run at a budget."""
    tables = [row.finals_by_seed(diverged=-np.inf) for row in rows]
    seeds = sorted(set[int]().union(*tables))
    accuracies = np.array([[t.get(s, np.nan) for t in tables] for s in seeds], dtype=float)
    return seeds, accuracies.reshape(len(seeds), len(tables))


def _ran_all(accuracies: np.ndarray) -> np.ndarray:
    """Returns [n] bool: the seeds that were run at every budget."""
    return ~np.isnan(accuracies).any(axis=-1)


def _medians(accuracies: np.ndarray) -> np.ndarray:
    """Returns [..., k] medians over the seeds of [..., n, k] that were run at each budget."""
    median = np.nanmedian if np.isnan(accuracies).any() else np.median
    return np.asarray(median(accuracies, axis=-2))


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the ladder of one recipe: budgets, medians, smallest and interpolated budget.

    A run without measure B counts as worse than all others. `ci95` is the bootstrap interval of the
    interpolated budget, an open end None; it is None with fewer than 3 seeds at every budget.
    """
    rows = sorted(rows, key=lambda row: row.first.total_steps or 0)
    budgets = np.array([row.first.total_steps for row in rows], dtype=float)
    target = rows[0].first.target_accuracy
    medians = np.array([row.median_bounds()[0] for row in rows])
    smallest = [b for b, m in zip(budgets, medians, strict=True) if reaches(m, target)]
    _, accuracies = _accuracies(rows)
    interval = None
    if _ran_all(accuracies).sum() >= 3:
        draws = accuracies[_draws(accuracies, len(accuracies))]
        steps = steps_needed(budgets, _medians(draws), target)
        interval = [finite(end) for end in inference.percentile_interval(steps)]
    return {
        "recipe": rows[0].name,
        "dataset": rows[0].first.dataset,
        "global_batch_size": rows[0].first.global_batch_size,
        "target_accuracy": target,
        "budgets": [int(b) for b in budgets],
        "n": [row.n for row in rows],
        "medians": [finite(float(m)) for m in medians],
        "smallest_budget": int(smallest[0]) if smallest else None,
        "interpolated": finite(float(steps_needed(budgets, medians, target))),
        "ci95": interval,
        "at_the_smallest": bool(smallest and smallest[0] == budgets[0]),
    }


def compare(a: Sequence[Row], b: Sequence[Row]) -> dict[str, Any]:
    """Returns ratio, interval and p for two ladders over the same budgets.

    The sizes are those of the medians over all runs; the test takes the seeds that were run at
    every budget, whole seeds being exchanged between the recipes, paired where shared.
    """
    for rows in (a, b):
        if field := mixed(rows):
            return {"verdict": f"not comparable: {rows[0].name} had other {field} at other budgets"}
    a, b = ([*sorted(rows, key=lambda row: row.first.total_steps or 0)] for rows in (a, b))
    budgets = np.array([row.first.total_steps for row in a], dtype=float)
    target = a[0].first.target_accuracy
    (seeds_a, x), (seeds_b, y) = _accuracies(a), _accuracies(b)
    n = [int(_ran_all(x).sum()), int(_ran_all(y).sum())]
    if any(len(row.finals()) < row.n for row in (*a, *b)):
        return {"n": n, "verdict": "not comparable: not every run ended its budget"}
    if min(n) < 2:
        return {"n": n, "verdict": f"not tested: n = {min(n)} seeds that ran every budget"}
    tested = [np.array(s)[_ran_all(v)].tolist() for s, v in ((seeds_a, x), (seeds_b, y))]
    paired = tested[0] == tested[1] and n[0] >= inference.MIN_PAIRS
    found: dict[str, Any] = {"n": n, "total_steps": [int(s) for s in budgets]}
    found |= test_tables(budgets, target, x, y, paired)
    if found["ratio"] is not None and min(n) >= 3:
        found["ci95"] = _interval(budgets, target, x, y, seeds_a == seeds_b)
    return found


def test_tables(
    budgets: np.ndarray, target: float, x: np.ndarray, y: np.ndarray, paired: bool
) -> dict[str, Any]:
    """Returns ratio of interpolated budgets, p, direction for accuracies x [n, k] and y [m, k].

    The ratio is that of the medians; the test ranks the seeds by the budget that each needs on
    its own ladder, so a whole seed is what is exchanged between the recipes. A seed with a NaN was
    not run at that budget: it is in the medians, not in the test.
    """
    whole = [v[_ran_all(v)] for v in (x, y)]
    needed = steps_needed(budgets, np.concatenate(whole), target)
    lo = np.minimum(needed, budgets[-1])
    found = inference.test_scores(inference.waiting_scores(lo, needed), len(whole[0]), paired)
    steps = [float(steps_needed(budgets, _medians(v), target)) for v in (x, y)]
    known = all(map(math.isfinite, steps))
    return found | {"ratio": steps[0] / steps[1] if known else None} | _bound(budgets, *steps)


def _bound(budgets: np.ndarray, a: float, b: float) -> dict[str, float]:
    """Returns a bound of the ratio if only one median is beyond an end of the ladder."""
    smallest, largest = float(budgets[0]), float(budgets[-1])
    if a < b and (a == smallest or math.isinf(b)):
        return {"ratio_below": a / min(b, largest)}
    if b < a and (b == smallest or math.isinf(a)):
        return {"ratio_above": min(a, largest) / b}
    return {}


def _log_steps(budgets: np.ndarray, target: float, accuracies: np.ndarray) -> np.ndarray:
    """Returns log steps needed for accuracies [..., n, k]; twice the last budget if beyond it."""
    steps = steps_needed(budgets, _medians(accuracies), target)
    return np.log(np.minimum(steps, 2 * budgets[-1]))


def _draws(accuracies: np.ndarray, seed: int | list[int]) -> np.ndarray:
    """Returns bootstrap indices. Seeds that ran at every budget are drawn apart from the others."""
    rng, ran_all = np.random.default_rng(seed), _ran_all(accuracies)
    parts = [np.flatnonzero(of) for of in (ran_all, ~ran_all) if of.any()]
    size = inference.N_RESAMPLES
    return np.concatenate([p[rng.integers(0, len(p), (size, len(p)))] for p in parts], axis=1)


def _interval(
    budgets: np.ndarray, target: float, x: np.ndarray, y: np.ndarray, paired: bool
) -> list[float]:
    draws = [_draws(x, len(x)), _draws(y, len(y) if paired else [len(x), len(y)])]
    logs = [_log_steps(budgets, target, v[i]) for v, i in zip((x, y), draws, strict=True)]
    return list(inference.percentile_interval(np.exp(logs[0] - logs[1])))
