"""Budget ladders: the same recipe at several budgets, its schedule stretched to each.

The smallest budget whose median final accuracy reaches the target is the fairest "steps to
target": no run is judged in the middle of its schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from reporting import inference
from reporting.rows import Row, finite
from reporting.runs import TIE_TOLERANCE


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


def _accuracies(rows: Sequence[Row]) -> tuple[list[int | None], np.ndarray]:
    """Returns (seeds, [n, k] final accuracies) of the seeds that ended every budget."""
    tables = []
    for row in rows:
        finals = {
            run.seed: -np.inf if run.status == "diverged" else run.final_accuracy
            for run in row.runs
            if run.seed is not None
        }
        tables.append({seed: value for seed, value in finals.items() if value is not None})
    seeds = sorted(set.intersection(*map(set, tables)))
    shape = (len(seeds), len(tables))
    return list(seeds), np.array([[t[s] for t in tables] for s in seeds], dtype=float).reshape(
        shape
    )


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the ladder of one recipe: budgets, medians, smallest and interpolated budget."""
    rows = sorted(rows, key=lambda row: row.first.total_steps or 0)
    budgets = np.array([row.first.total_steps for row in rows], dtype=float)
    target = rows[0].first.target_accuracy
    medians = np.array([np.median(f) if len(f := row.finals()) else -np.inf for row in rows])
    smallest = [b for b, m in zip(budgets, medians, strict=True) if m >= target - TIE_TOLERANCE]
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
        "at_the_smallest": bool(smallest) and smallest[0] == budgets[0],
    }


def compare(a: Sequence[Row], b: Sequence[Row]) -> dict[str, Any]:
    """Returns ratio, interval and exact p for two ladders over the same budgets.

    Whole seeds (all their budgets) are exchanged between the recipes, paired where shared.
    """
    a, b = ([*sorted(rows, key=lambda row: row.first.total_steps or 0)] for rows in (a, b))
    budgets = np.array([row.first.total_steps for row in a], dtype=float)
    target = a[0].first.target_accuracy
    (seeds_a, x), (seeds_b, y) = _accuracies(a), _accuracies(b)
    n = [len(x), len(y)]
    if min(n) < 2:
        return {"n": n, "verdict": f"not tested: n = {min(n)} seeds ran every budget"}

    def log_steps(accuracies: np.ndarray) -> np.ndarray:
        steps = steps_needed(budgets, np.median(accuracies, axis=-2), target)
        return np.log(np.minimum(steps, 2 * budgets[-1]))  # unreached: beyond the ladder, finite

    paired = seeds_a == seeds_b and len(seeds_a) >= 10
    observed = float(log_steps(x) - log_steps(y))
    p = _p(x, y, log_steps, abs(observed) - 1e-9, paired)
    steps = [float(steps_needed(budgets, np.median(v, axis=0), target)) for v in (x, y)]
    draws = [inference.resamples(n[0])] * 2
    if not paired:
        draws[1] = np.random.default_rng(n).integers(0, n[1], size=(len(draws[0]), n[1]))
    ratios = np.exp(log_steps(x[draws[0]]) - log_steps(y[draws[1]]))
    known = all(map(math.isfinite, steps))
    return {
        "n": n,
        "total_steps": [int(s) for s in budgets],
        "ratio": steps[0] / steps[1] if known else None,
        "ci95": list(inference.percentile_interval(ratios)) if known and min(n) >= 3 else None,
        "p_value": p,
        "lower": observed < 0,
        "test": "interpolated budgets, " + ("paired by seed" if paired else "permutation"),
    }


def _p(x: np.ndarray, y: np.ndarray, log_steps: Any, observed: float, paired: bool) -> float:
    """Returns the share of 2,000 random exchanges at least as far apart (the observed counts)."""
    rng = np.random.default_rng([len(x), len(y)])
    if paired:
        swap = rng.random((2_000, len(x), 1)) < 0.5
        left, right = np.where(swap, y, x), np.where(swap, x, y)
    else:
        pool = np.concatenate([x, y])
        order = rng.permuted(np.tile(np.arange(len(pool)), (2_000, 1)), axis=1)
        left, right = pool[order[:, : len(x)]], pool[order[:, len(x) :]]
    apart = abs(log_steps(left) - log_steps(right))
    return float((1 + np.sum(apart >= observed)) / 2_001)
