"""Statistics of runs: censored steps to target, medians, exact tests, corrections, power.

Everything is deterministic: resampling draws from a generator with a fixed seed.
"""

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

N_RESAMPLES = 9_999
# C(16, 8) = 12,870: two groups of eight are still enumerated.
MAX_ENUMERATED = 20_000
ALPHA = 0.05
# Few shared seeds have too few sign patterns: with five, p is at least 2 / 2^5 = 6 %.
MIN_PAIRS = 10


def km_median(times: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """Returns the Kaplan-Meier median along the last axis; inf if it is not reached.

    Args:
      times: [..., n] steps, of the hit where reached, else of the last look.
      reached: [..., n] bool.

    The median is the first time at which at most half are still waiting. Events come before
    censorings at equal times, so the product over single runs equals the product over times.
    Source: Kaplan and Meier 1958.
    """
    order = np.lexsort((~reached, times), axis=-1)
    times = np.take_along_axis(times, order, -1)
    reached = np.take_along_axis(reached, order, -1)
    at_risk = times.shape[-1] - np.arange(times.shape[-1])
    waiting = np.cumprod(1 - reached / at_risk, axis=-1)
    half = waiting <= 0.5 + 1e-12
    first = np.take_along_axis(times, half.argmax(-1)[..., None], -1)[..., 0]
    return np.where(half.any(-1), first, np.inf)


def resamples(n: int, n_resamples: int = N_RESAMPLES) -> np.ndarray:
    """Returns [n_resamples, n] indices drawn with replacement, the same at every call."""
    return np.random.default_rng(n).integers(0, n, size=(n_resamples, n))


def percentile_interval(values: np.ndarray) -> tuple[float, float]:
    """Returns the 2.5 and 97.5 % points. Each is one of the values, so infinities are kept."""
    lo, hi = np.quantile(values, [0.025, 0.975], method="inverted_cdf")
    return float(lo), float(hi)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Returns the bootstrap 95 % interval of the median; None with fewer than 3 values."""
    if len(values) < 3:
        return None
    return percentile_interval(np.median(np.asarray(values)[resamples(len(values))], axis=-1))


def km_interval(times: np.ndarray, reached: np.ndarray) -> tuple[float, float] | None:
    """Returns the bootstrap 95 % interval of the Kaplan-Meier median; None with n < 3."""
    if len(times) < 3:
        return None
    index = resamples(len(times))
    return percentile_interval(km_median(times[index], reached[index]))


def waiting_scores(lo: np.ndarray, hi: np.ndarray, horizon: float = np.inf) -> np.ndarray:
    """Returns [n] Gehan scores: number of runs certainly before minus certainly after each run.

    Run i waits until a step in (lo_i, hi_i]; i is surely before j if hi_i <= lo_j. Nothing after
    `horizon` is looked at, so recipes with different budgets are censored alike. With one
    evaluation grid these are the centred ranks of Mann and Whitney, censored runs tied for last.
    Source: Gehan 1965, A generalized Wilcoxon test; intervals: Mantel 1967.
    """
    before = hi[:, None] <= np.minimum(lo, horizon)[None, :]
    return before.sum(0) - before.sum(1).astype(float)


@cache
def _splits(n: int, n_a: int) -> np.ndarray | None:
    """Returns [n_splits, n_a] indices of group a: all splits, or None if there are too many."""
    if math.comb(n, n_a) > MAX_ENUMERATED:
        return None
    return np.array(list(itertools.combinations(range(n), n_a)))


def permutation_p(scores: np.ndarray, n_a: int) -> float:
    """Returns the two-sided p-value of the sum of the first n_a scores, if all are exchangeable.

    Enumerated where there are at most 20,000 splits, else 9,999 random ones (the observed split
    counts as one of them, so the test keeps its level).
    """
    scores = scores - scores.mean()
    observed = abs(scores[:n_a].sum()) - 1e-9
    splits = _splits(len(scores), n_a)
    if splits is not None:
        return float(np.mean(abs(scores[splits].sum(-1)) >= observed))
    rng = np.random.default_rng(len(scores))
    drawn = rng.permuted(np.tile(scores, (N_RESAMPLES, 1)), axis=1)[:, :n_a].sum(-1)
    return float((1 + np.sum(abs(drawn) >= observed)) / (1 + N_RESAMPLES))


@cache
def _signs(n: int) -> np.ndarray:
    """Returns [n_patterns, n] signs: all patterns for up to 14 pairs, else 9,999 random ones."""
    if 2**n <= MAX_ENUMERATED:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    return np.random.default_rng(n).choice((1.0, -1.0), size=(N_RESAMPLES, n))


def sign_flip_p(differences: np.ndarray) -> float:
    """Returns the two-sided p-value of paired differences that are symmetric about zero."""
    n = len(differences)
    extreme = abs(_signs(n) @ differences) >= abs(differences.sum()) - 1e-9
    if 2**n <= MAX_ENUMERATED:
        return float(np.mean(extreme))
    return float((1 + np.sum(extreme)) / (1 + N_RESAMPLES))


def test_scores(scores: np.ndarray, n_a: int, paired: bool) -> dict[str, Any]:
    """Returns (p, smallest possible p, name of the test, whether a's scores are lower).

    Args:
      scores: [n_a + n_b] ranks in the pooled sample, the first n_a of recipe a.
      paired: whether the i-th of a and the i-th of b share a seed.
    """
    n_b = len(scores) - n_a
    if min(n_a, n_b) < 2:
        return {"verdict": f"not tested: n = {min(n_a, n_b)}"}
    found = {"lower": bool(scores[:n_a].mean() < scores[n_a:].mean())}
    if paired:
        p, least = sign_flip_p(scores[:n_a] - scores[n_a:]), 2 / 2**n_a
        return found | {"p_value": p, "smallest_p": least, "test": "ranks, paired, sign flips"}
    p, least = permutation_p(scores, n_a), smallest_p(n_a, n_b)
    return found | {"p_value": p, "smallest_p": least, "test": "ranks, permutation (Gehan)"}


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for multiple tests. Source: Holm 1979."""
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def smallest_p(n_a: int, n_b: int) -> float:
    """Returns the smallest two-sided p that an exact rank test of n_a against n_b can give."""
    return min(1.0, 2 / math.comb(n_a + n_b, n_a))


def seeds_needed(log_sd: float, reduction: float, power: float = 0.8) -> int:
    """Returns the seeds per recipe that show `reduction` (a fraction) fewer steps.

    Two-sided rank test at 5 %, log steps taken as normal with standard deviation `log_sd` in both
    recipes. Never below 4, the least with which the exact test can reach 5 %.
    Source: Noether 1987, n = (z_a + z_b)^2 / (6 (P(X < Y) - 1/2)^2) in each group.
    """
    if log_sd <= 0:
        return 4
    superiority = stats.norm.cdf(-math.log1p(-reduction) / (math.sqrt(2) * log_sd))
    z = stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(power)
    return max(4, math.ceil(z**2 / (6 * (superiority - 0.5) ** 2)))
