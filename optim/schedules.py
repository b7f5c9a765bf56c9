"""Learning rate as a function of the number of completed updates (the first update has step 0)."""

from collections.abc import Callable

import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from . import arguments

Schedule = Callable[[ArrayLike], Array]


def polynomial(
    *,
    peak_learning_rate: float,
    warmup_steps: float,
    total_steps: float,
    end_learning_rate: float = 0.0,
    decay_power: float = 2.0,
    warmup_power: float = 1.0,
    decay_end_step: float = 0.0,
) -> Schedule:
    """Polynomial warm-up to the peak, then polynomial decay; `step <= warmup_steps` warms up.

    With D = total_steps - warmup_steps + 1 the decay is
    `end + (peak - end) * (1 - min(step - warmup, D) / D) ** decay_power`: the `+ 1` is the
    published code's, so `end` is reached one step after `total_steps`. Step counts may be
    fractional (706.5). `decay_end_step` only holds the rate from that step on and does not
    change D (0: no hold). `decay_power=0` keeps the peak.

    Sources: MLPerf v0.7 and v1.0 JAX `train.py` (LARS: linear, power 2, end 1e-4), the Shampoo
    README (end 0), init2winit `schedules.py: mlperf_polynomial` (warm-up power, clip).
    """
    if not 0 <= warmup_steps <= total_steps:
        raise ValueError(
            f"schedule.warmup_steps={warmup_steps}: must be in [0, total_steps={total_steps}]; "
            "shorten the warm-up or lengthen the run"
        )
    decay_steps = total_steps - warmup_steps + 1

    def learning_rate(step: ArrayLike) -> Array:
        t = jnp.asarray(step, jnp.float32)
        if decay_end_step > 0:
            t = jnp.minimum(t, decay_end_step)
        # Subtract before dividing: near the end 1 - x / D would lose four digits in float32.
        left = decay_steps - jnp.minimum(t - warmup_steps, decay_steps)
        factor = (left / decay_steps) ** decay_power
        decayed = end_learning_rate + (peak_learning_rate - end_learning_rate) * factor
        if warmup_steps == 0:
            return decayed
        warming = peak_learning_rate * (t / warmup_steps) ** warmup_power
        return jnp.where(t <= warmup_steps, warming, decayed)

    return learning_rate


def value(learning_rate: float | Schedule, step: ArrayLike) -> Array:
    """Returns the rate of `step`, for a constant or a schedule, as a float32 scalar."""
    rate = jnp.asarray(learning_rate(step) if callable(learning_rate) else learning_rate)
    if rate.ndim:  # it would change the shape of the parameters that are scalars
        raise ValueError(f"learning_rate: has shape {rate.shape}; return a scalar")
    return rate.astype(jnp.float32)


def scale(learning_rate: float | Schedule) -> optax.GradientTransformation:
    """`optax.scale_by_learning_rate` for a scalar rate, in float32 also under x64."""
    if callable(learning_rate):
        return optax.scale_by_learning_rate(lambda step: value(learning_rate, step))
    arguments.check("finite", learning_rate=learning_rate)
    static = arguments.is_static(learning_rate)
    return optax.scale_by_learning_rate(float(learning_rate) if static else value(learning_rate, 0))
