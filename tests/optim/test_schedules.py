import jax
import numpy as np
import pytest

from optim import schedules


def published(step, base, warmup, total, end, power=2):
    """MLPerf JAX train.py, in float64."""
    if step <= warmup:
        return base * step / warmup
    decay_steps = total - warmup + 1
    return end + (base - end) * (1 - min(step - warmup, decay_steps) / decay_steps) ** power


@pytest.mark.parametrize(
    ("peak", "warmup", "total", "end"),
    [
        pytest.param(29.0, 706.5, 2512, 1e-4, id="lars"),
        pytest.param(13.0, 196.0, 1729, 0.0, id="shampoo readme"),
        pytest.param(16.22, 196.25, 1727, 0.0, id="shampoo v1.0"),
    ],
)
def test_equals_the_published_formula_at_every_step(peak, warmup, total, end):
    rate = jax.jit(
        jax.vmap(
            schedules.polynomial(
                peak_learning_rate=peak,
                warmup_steps=warmup,
                total_steps=total,
                end_learning_rate=end,
            )
        )
    )
    steps = np.arange(total + 10)
    wanted = [published(s, peak, warmup, total, end) for s in steps]
    np.testing.assert_allclose(rate(steps), wanted, rtol=2e-6, atol=1e-12)


def test_lars_has_the_rates_of_the_submission():
    rate = schedules.polynomial(
        peak_learning_rate=29.0, warmup_steps=706.5, total_steps=2512, end_learning_rate=1e-4
    )
    figures = {0: 0.0, 1: 0.041047, 706: 28.97948, 707: 28.98395, 2511: 1.36e-4, 2513: 1e-4}
    for step, wanted in figures.items():
        assert float(rate(step)) == pytest.approx(wanted, rel=4e-3 if step == 2511 else 2e-5)


def test_shampoo_peaks_exactly_and_ends_at_zero():
    rate = schedules.polynomial(peak_learning_rate=13.0, warmup_steps=196, total_steps=1729)
    assert float(rate(196)) == 13.0
    assert float(rate(1728)) == pytest.approx(2.21e-5, rel=2e-3)
    assert float(rate(1730)) == 0.0


def test_nado_warms_up_quadratically_and_holds_from_the_end_step():
    rate = schedules.polynomial(
        peak_learning_rate=7.05,
        warmup_steps=638,
        total_steps=2512,
        end_learning_rate=6e-6,
        warmup_power=2,
        decay_end_step=2497,
    )
    assert float(rate(319)) == pytest.approx(7.05 / 4, rel=1e-6)
    held = 6e-6 + (7.05 - 6e-6) * (1 - (2497 - 638) / (2512 - 638 + 1)) ** 2
    for step in (2497, 2500, 2512):  # the decay's length is still total_steps'
        assert float(rate(step)) == pytest.approx(held, rel=1e-5)


def test_no_warm_up_starts_at_the_peak_and_power_zero_keeps_it():
    rate = schedules.polynomial(
        peak_learning_rate=0.5, warmup_steps=0, total_steps=10, decay_power=0
    )
    assert [float(rate(s)) for s in (0, 5, 10)] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("rate", [np.array([0.1]), lambda _: np.array([0.1, 0.2])])
def test_a_rate_that_is_no_scalar_is_refused(rate):
    with pytest.raises(ValueError, match="learning_rate: has shape"):
        schedules.value(rate, 0)


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ValueError, match="warmup_steps=11"):
        schedules.polynomial(peak_learning_rate=1.0, warmup_steps=11, total_steps=10)
