"""SM3-II, Anil et al. 2019 (arXiv:1901.11150), as in google-research `sm3/sm3.py`."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from optim import masks, schedules, traced

EPSILON = 1e-30  # the published constant: 0 * rsqrt(EPSILON) is a zero update


class SM3State(NamedTuple):
    step: Array
    accumulators: Any  # tuple of [d_i] vectors per parameter; ([...],) of full shape if rank <= 1
    momentum: Any  # () without momentum


class _Scaled(NamedTuple):
    direction: Array
    accumulators: tuple[Array, ...]


def init_accumulators(w: Array) -> tuple[Array, ...]:
    """Zeros: one vector per dimension, O(sum of dims) memory; the full shape for rank 0 and 1."""
    if w.ndim <= 1:
        return (jnp.zeros(w.shape, jnp.float32),)
    return tuple(jnp.zeros(d, jnp.float32) for d in w.shape)


def _dense(accumulators: tuple[Array, ...], g: Array) -> tuple[Array, tuple[Array, ...]]:
    """Returns the preconditioned gradient and the new accumulators."""
    if g.ndim <= 1:
        total = accumulators[0] + g * g
        return g * lax.rsqrt(total + EPSILON), (total,)
    others = [tuple(j for j in range(g.ndim) if j != i) for i in range(g.ndim)]
    spread = [jnp.expand_dims(a, axes) for a, axes in zip(accumulators, others, strict=True)]
    total = reduce(jnp.minimum, spread) + g * g
    new = tuple(jnp.max(total, axis=axes, initial=0.0) for axes in others)
    return g * lax.rsqrt(total + EPSILON), new


def sm3(
    learning_rate: float | schedules.Schedule, *, momentum: float = 0.9, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """A = min_i A_i + g^2; m = momentum m + (1 - momentum) g / sqrt(A); w -= lr m.

    There is a momentum buffer only where momentum > 0. `weight_decay` is ours (the published
    code has none): L2, g + weight_decay w, on weights only, before the accumulators.
    """
    if traced.is_known(momentum) and not 0 <= momentum < 1:
        raise ValueError(f"optimizer.momentum={momentum}: must be in [0, 1)")

    def init(params: Any) -> SM3State:
        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), params)
        accumulators = jax.tree.map(init_accumulators, params)
        return SM3State(
            jnp.zeros((), jnp.int32), accumulators, () if traced.equals(momentum, 0) else zeros
        )

    def update(grads: Any, state: SM3State, params: Any) -> tuple[Any, SM3State]:
        rate = schedules.value(learning_rate, state.step)

        def scaled(w: Array, g: Array, decays: bool, accumulators: tuple[Array, ...]) -> _Scaled:
            g = g.astype(jnp.float32)
            if decays and not traced.equals(weight_decay, 0):
                g = g + weight_decay * w.astype(jnp.float32)
            direction, new = _dense(accumulators, g)
            return _Scaled((1 - momentum) * direction, new)

        both = jax.tree.map(scaled, params, grads, masks.decay_mask(params), state.accumulators)
        step = jax.tree.map(lambda x: x.direction, both, is_leaf=lambda x: isinstance(x, _Scaled))
        new = jax.tree.map(lambda x: x.accumulators, both, is_leaf=lambda x: isinstance(x, _Scaled))
        buffer = state.momentum
        if not traced.equals(momentum, 0):
            step = buffer = jax.tree.map(lambda m, d: momentum * m + d, buffer, step)
        updates = jax.tree.map(lambda m, w: (-rate * m).astype(w.dtype), step, params)
        return updates, SM3State(state.step + 1, new, buffer)

    return optax.GradientTransformation(init, update)


def sparse_update(
    accumulators: tuple[Array, ...],
    params: Array,
    indices: Array,
    rows: Array,
    learning_rate: float | Array,
) -> tuple[tuple[Array, ...], Array]:
    """One SM3 step on some rows of an embedding-like parameter: (accumulators, params), new.

    Only the accumulator of dimension 0 is used and changed for rank two and above (the full one
    for rank 1). No momentum and no (1 - momentum) factor. Gradients of equal indices are summed
    before they are squared, as TensorFlow's Optimizer does before the published code runs.

    Args:
      accumulators: as from `init_accumulators(params)`.
      params: `[vocabulary, ...]`.
      indices: int `[n]`, in any order, duplicates allowed. Negative ones count from the end;
        others outside of the vocabulary change nothing.
      rows: `[n, ...]`, the gradient of `params[indices]`.
      learning_rate: a number (evaluate a schedule first).
    """
    n_rows = jnp.int32(params.shape[0])
    inside = (-n_rows <= indices) & (indices < n_rows)
    indices = jnp.where(inside, indices % n_rows, n_rows)
    unique, slot = jnp.unique(
        indices, size=indices.shape[0], fill_value=params.shape[0], return_inverse=True
    )
    rows = jax.ops.segment_sum(rows.astype(jnp.float32), slot, num_segments=indices.shape[0])
    past = accumulators[0].at[unique].get(mode="fill", fill_value=0.0)  # padding: out of range
    total = past.reshape(-1, *[1] * (params.ndim - 1)) + rows * rows
    step = -learning_rate * rows * lax.rsqrt(total + EPSILON)
    new = jnp.max(total, axis=tuple(range(1, params.ndim)), initial=0.0)
    first = accumulators[0].at[unique].set(new, mode="drop")
    params = params.at[unique].add(step.astype(params.dtype), mode="drop")
    return (first, *accumulators[1:]), params
