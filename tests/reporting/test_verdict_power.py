"""The verdict on simulated runs with a known difference; benchmarks/verdict.py has the table."""

import numpy as np
import pytest

from benchmarks import verdict


@pytest.mark.parametrize("cadence", [verdict.FINE, verdict.MLPERF])
@pytest.mark.parametrize("censored", verdict.CENSORED)
def test_as_many_runs_are_censored_as_the_table_says(censored, cadence):
    rng = np.random.default_rng(0)
    _, hi = verdict.waiting(rng, 4000, 0.0, censored, cadence, rho=0.0)
    assert np.isinf(hi[4000:]).mean() == pytest.approx(censored, abs=0.03)  # four standard errors


@pytest.mark.parametrize("censored", [0.0, 0.6])
@pytest.mark.parametrize("n", [5, 10])
def test_no_difference_is_rarely_called_one(n, censored):
    wrong = sum(verdict.share_shown(500, n, 0.0, censored))
    assert wrong <= verdict.limit(500)


@pytest.mark.parametrize("n", [5, 10])
def test_a_difference_of_12_percent_is_seen(n):
    fewer, more = verdict.share_shown(200, n, 0.12, 0.2)
    assert fewer >= 0.95
    assert more == 0


def test_ladders_keep_their_level_and_see_12_percent():
    assert sum(verdict.ladder_share_shown(500, 5, 0.0)) <= verdict.limit(500)
    assert verdict.ladder_share_shown(200, 5, 0.12)[0] >= 0.95
