"""LARS as in the MLPerf submissions: the JAX form and, by name, the TensorFlow form."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from optim import masks, schedules
from optim.norms import norm

FORMS = ("jax", "tf")


class LarsState(NamedTuple):
    step: Array
    momentum: Any


def trust_ratio_of_norms(
    w_norm: Array, g_norm: Array, weight_decay: float, coefficient: float, epsilon: float = 0.0
) -> Array:
    """Returns coefficient |w| / (|g| + weight_decay |w| + epsilon), 1 where |w| or |g| is 0."""
    moving = (w_norm > 0) & (g_norm > 0)
    below = g_norm + weight_decay * w_norm + epsilon
    return jnp.where(moving, coefficient * w_norm / jnp.where(moving, below, 1.0), 1.0)


def lars(
    learning_rate: float | schedules.Schedule,
    *,
    momentum: float,
    weight_decay: float = 0.0,
    trust_coefficient: float = 0.001,
    epsilon: float = 0.0,
    form: str = "jax",
    weight_mask: Any = masks.decay_mask,
) -> optax.GradientTransformation:
    """Weights: m = momentum m + lr trust (g + weight_decay w); w -= m.

    Learning rate and trust ratio are inside the buffer of the weights. Biases and BatchNorm
    (False in `weight_mask`) have neither ratio nor decay, and there the two forms differ as soon
    as the rate changes: `jax` has it outside the buffer (m = momentum m + g; w -= lr m, flax's
    Momentum beside flax's LARS), `tf` inside (m = momentum m + lr g; w -= m).

    Sources: flax v0.3.3 `optim/lars.py`, `optim/momentum.py` as split by MLPerf v0.7/v1.0
    `train.py`; TensorFlow 1 contrib `lars_optimizer.py`.
    """
    if form not in FORMS:
        raise ValueError(f"optimizer.form={form!r}: unknown form of LARS; use one of {FORMS}")

    def init(params: Any) -> LarsState:
        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), params)
        return LarsState(jnp.zeros((), jnp.int32), zeros)

    def update(grads: Any, state: LarsState, params: Any) -> tuple[Any, LarsState]:
        rate = schedules.value(learning_rate, state.step)
        weights = masks.resolve(weight_mask, params)

        def into_buffer(is_weight: bool, g: Array, m: Array, w: Array) -> Array:
            g, w = g.astype(jnp.float32), w.astype(jnp.float32)
            if is_weight:
                norms = norm(w), norm(g)
                trust = trust_ratio_of_norms(*norms, weight_decay, trust_coefficient, epsilon)
                return momentum * m + rate * trust * (g + weight_decay * w)
            return momentum * m + (g if form == "jax" else rate * g)

        def step(is_weight: bool, m: Array, w: Array) -> Array:
            inside = is_weight or form == "tf"
            return (-m if inside else -rate * m).astype(w.dtype)

        buffer = jax.tree.map(into_buffer, weights, grads, state.momentum, params)
        updates = jax.tree.map(step, weights, buffer, params)
        return updates, LarsState(state.step + 1, buffer)

    return optax.GradientTransformation(init, update)
