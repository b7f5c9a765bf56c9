"""Statistics against scipy, closed forms and published examples."""

import math

import numpy as np
import pytest
from scipy import stats

from mlperf import rules
from reporting import inference


@pytest.mark.parametrize("seed", range(20))
def test_the_kaplan_meier_median_agrees_with_scipy(seed):
    rng = np.random.default_rng(seed)
    times = rng.integers(1, 12, size=rng.integers(2, 15)).astype(float)
    reached = rng.random(len(times)) < 0.6
    if not reached.any():
        reached[0] = True
    data = stats.CensoredData(uncensored=times[reached], right=times[~reached])
    curve = stats.ecdf(data).sf
    at_half = curve.quantiles[curve.probabilities <= 0.5 + 1e-12]
    expected = at_half[0] if len(at_half) else math.inf
    assert inference.km_median(times, reached) == expected


def test_the_kaplan_meier_median_of_freireichs_patients():
    """6-mercaptopurine against placebo: medians 23 and 8 weeks (Freireich 1963, in textbooks)."""
    weeks = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    reached = np.arange(21) < 9
    assert inference.km_median(np.array(weeks, float), reached) == 23
    placebo = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
    assert inference.km_median(np.array(placebo, float), np.ones(21, bool)) == 8


def test_half_of_the_runs_are_a_median_and_less_than_half_are_none():
    times = np.array([10.0, 20, 30, 40])
    assert inference.km_median(times, np.array([True, True, False, False])) == 20
    assert inference.km_median(times, np.array([True, False, False, False])) == math.inf


@pytest.mark.parametrize("seed", range(5))
def test_scores_on_one_grid_are_mann_and_whitneys(seed):
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, 8, size=12).astype(float)
    steps[rng.random(12) < 0.3] = np.inf
    lo = np.where(np.isinf(steps), 8, steps - 1)
    scores = inference.waiting_scores(lo, steps)
    ranks = stats.rankdata(np.minimum(steps, 99))
    np.testing.assert_allclose(scores, 2 * (ranks - ranks.mean()), atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_exact_p_agrees_with_scipys_permutation_test(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, size=5), rng.integers(1, 8, size=6)
    ranks = stats.rankdata(np.concatenate([x, y]))
    expected = stats.permutation_test(
        (ranks[:5], ranks[5:]), lambda a, b: abs(a.mean() - b.mean()), alternative="greater",
        n_resamples=np.inf,
    ).pvalue  # fmt: skip
    assert inference.permutation_p(ranks, 5) == pytest.approx(expected, abs=1e-12)


def test_the_drawn_p_is_near_the_rank_tests_with_many_runs():
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 1, 40), rng.normal(0.5, 1, 40)
    expected = stats.mannwhitneyu(x, y).pvalue
    ranks = stats.rankdata(np.concatenate([x, y]))
    assert inference.permutation_p(ranks, 40) == pytest.approx(expected, abs=0.01)


def test_scores_see_what_a_log_rank_test_sees():
    """Both must find, or not find, a difference in censored data: p on the same side of 5 %."""
    rng = np.random.default_rng(3)
    for factor, found in ((1.0, False), (0.35, True)):
        x, y = rng.exponential(factor, 40), rng.exponential(1.0, 40)
        reached = np.concatenate([x, y]) < 1.2
        times = np.minimum(np.concatenate([x, y]), 1.2)
        hi = np.where(reached, times, np.inf)
        p = inference.permutation_p(inference.waiting_scores(times, hi), 40)
        groups = [
            stats.CensoredData(uncensored=times[s][reached[s]], right=times[s][~reached[s]])
            for s in (slice(40), slice(40, None))
        ]
        assert (p < 0.05) == (stats.logrank(*groups).pvalue < 0.05) == found


def test_sign_flips_agree_with_scipys_paired_permutation_test():
    differences = np.array([3.0, -1, 2, 4, 5, -2, 6, 1, 2, 3])
    expected = stats.permutation_test(
        (differences, np.zeros(10)), lambda a, b: abs((a - b).sum()),
        permutation_type="samples", alternative="greater", n_resamples=np.inf,
    ).pvalue  # fmt: skip
    assert inference.sign_flip_p(differences) == pytest.approx(expected, abs=1e-12)


def test_nothing_after_the_horizon_is_looked_at():
    lo, hi = np.array([10.0, 30, 50]), np.array([20.0, 40, np.inf])
    late = inference.waiting_scores(lo, hi, horizon=25)
    np.testing.assert_array_equal(late, [-2, 1, 1])


def test_holm_matches_the_worked_example():
    """p = .01 .04 .03 .005: adjusted .03 .06 .06 .02 (Holm's step-down by hand)."""
    adjusted = inference.holm([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjusted, [0.03, 0.06, 0.06, 0.02])


def test_the_median_interval_covers_its_median_often_enough():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        interval = inference.median_interval(list(rng.normal(size=15)))
        assert interval is not None
        hits += interval[0] <= 0 <= interval[1]
    assert 0.90 <= hits / 200 <= 1.0


def test_olympic_mean_drops_one_at_each_end():
    assert rules.olympic_mean([209.315, 198.246, 199.836, 196.340, 199.201]) == pytest.approx(
        (198.246 + 199.836 + 199.201) / 3
    )
    assert rules.olympic_mean([1.0, 2.0, 3.0, np.inf]) == 2.5
    assert rules.olympic_mean([1.0, np.inf, 3.0, np.inf]) == np.inf


def test_seeds_needed_gives_the_power_it_promises():
    log_sd, reduction = 0.06, 0.05
    n = inference.seeds_needed(log_sd, reduction)
    rng = np.random.default_rng(0)
    shown = 0
    for _ in range(400):
        x = np.log1p(-reduction) + log_sd * rng.standard_normal(n)
        shown += stats.mannwhitneyu(x, log_sd * rng.standard_normal(n)).pvalue <= 0.05
    assert 0.72 <= shown / 400 <= 0.88


def test_more_spread_and_smaller_differences_need_more_seeds():
    assert inference.seeds_needed(0.1, 0.05) > inference.seeds_needed(0.05, 0.05)
    assert inference.seeds_needed(0.05, 0.05) > inference.seeds_needed(0.05, 0.12)
    assert inference.seeds_needed(0.0, 0.05) == 4
