"""SM3-II, Anil et al. 2019 (arXiv:1901.11150), as in google-research `sm3/sm3.py`."""

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from . import arguments, masks, schedules

EPSILON = 1e-30  # the published constant: 0 * rsqrt(EPSILON) is a zero update


class ScaleBySM3State(NamedTuple):
    accumulators: Any  # of each parameter, in the order of the leaves, as in `init_accumulators`


def init_accumulators(w: Array) -> tuple[Array, ...]:
    """Zeros: one vector per dimension, O(sum of dims) memory; the full shape for rank 0 and 1."""
    if w.ndim <= 1:
        return (jnp.zeros_like(w, jnp.float32),)
    # Maxima of w itself have the shapes and the shardings; only zeros remain in the program.
    maxima = [jnp.max(w, axis=axes, initial=0.0) for axes in _others(w.ndim)]
    return tuple(jnp.zeros_like(x, jnp.float32) for x in maxima)


def _others(rank: int) -> list[tuple[int, ...]]:
    return [tuple(j for j in range(rank) if j != i) for i in range(rank)]


def _dense(accumulators: tuple[Array, ...], g: Array) -> tuple[Array, tuple[Array, ...]]:
    """Returns the preconditioned gradient and the new accumulators."""
    if g.ndim <= 1:
        total = accumulators[0] + g * g
        return g * lax.rsqrt(total + EPSILON), (total,)
    others = _others(g.ndim)
    spread = [jnp.expand_dims(a, axes) for a, axes in zip(accumulators, others, strict=True)]
    total = reduce(jnp.minimum, spread) + g * g
    new = tuple(jnp.max(total, axis=axes, initial=0.0) for axes in others)
    return g * lax.rsqrt(total + EPSILON), new


def sm3(
    learning_rate: float | schedules.Schedule, *, momentum: float = 0.9, weight_decay: float = 0.0
) -> optax.GradientTransformationExtraArgs:
    """A = min_i A_i + g^2; m = momentum m + (1 - momentum) g / sqrt(A); w -= lr m.

    There is a momentum buffer only where momentum > 0. `weight_decay` is ours (the published
    code has none): L2, g + weight_decay w, on weights (`masks.decay_mask`) only, before the
    accumulators.

    Raises:
      ValueError: a hyperparameter is out of its range.
    """
    arguments.check("in [0, 1)", momentum=momentum)
    arguments.check("finite and at least 0", weight_decay=weight_decay)
    if arguments.equals(momentum, 0):
        average = optax.identity()
    else:
        average = optax.ema(momentum, debias=False, accumulator_dtype=jnp.float32)
    return arguments.in_float32(
        optax.chain(
            optax.add_decayed_weights(weight_decay, masks.decay_mask),
            scale_by_sm3(),
            average,
            schedules.scale(learning_rate),
        )
    )


def scale_by_sm3() -> optax.GradientTransformation:
    """g / sqrt(min_i A_i + g^2), and the A_i that cover these sums."""

    def init(params: Any) -> ScaleBySM3State:
        leaves = jax.tree.leaves(params)
        # `optax.tree_map_params` passes a tree without leaves and looks for it in the state.
        return ScaleBySM3State(tuple(map(init_accumulators, leaves)) if leaves else params)

    def update(grads: Any, state: ScaleBySM3State, params: Any = None) -> Any:
        del params
        leaves, treedef = jax.tree.flatten(grads)
        if not leaves:
            return grads, state
        scaled = [
            _dense(accumulators, g.astype(jnp.float32))
            for accumulators, g in zip(state.accumulators, leaves, strict=True)
        ]
        updates, accumulators = zip(*scaled, strict=True)
        return jax.tree.unflatten(treedef, updates), ScaleBySM3State(accumulators)

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
