"""Nesterov momentum as in init2winit, the code base of Nado et al. 2021."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from optim import schedules


class NesterovState(NamedTuple):
    step: Array
    momentum: Any


def nesterov(
    learning_rate: float | schedules.Schedule, *, momentum: float, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """m = momentum m + g; w -= lr (g + momentum m): the learning rate is outside the buffer.

    `weight_decay` is an L2 term, g + weight_decay w, on parameters of rank two and above only
    (init2winit's `l2_decay_factor` with its default `l2_decay_rank_threshold` of 2).
    """

    def init(params: Any) -> NesterovState:
        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), params)
        return NesterovState(jnp.zeros((), jnp.int32), zeros)

    def update(grads: Any, state: NesterovState, params: Any) -> tuple[Any, NesterovState]:
        rate = schedules.value(learning_rate, state.step)

        def decayed(g: Array, w: Array) -> Array:
            g = g.astype(jnp.float32)
            return g + weight_decay * w.astype(jnp.float32) if w.ndim >= 2 else g

        grads = jax.tree.map(decayed, grads, params)
        buffer = jax.tree.map(lambda g, m: momentum * m + g, grads, state.momentum)
        updates = jax.tree.map(
            lambda g, m, w: (-rate * (g + momentum * m)).astype(w.dtype), grads, buffer, params
        )
        return updates, NesterovState(state.step + 1, buffer)

    return optax.GradientTransformation(init, update)
