"""Statistics, their roots, and the preconditioned gradient, on the blocks of one device."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from . import arguments
from .blocks import ROOT_PRODUCTS, join
from .inverse_root import inverse_pth_root

HIGHEST = lax.Precision.HIGHEST
LARGEST_TRACE, ROOT_FLOPS = 1e38, 2 * ROOT_PRODUCTS
PerAxis = dict[str, Array]  # "0": [k, d_0, d_0], "1": [k, d_1, d_1], ...


def statistics(g: Array, usable: Array, old: PerAxis, beta2: float) -> tuple[PerAxis, Array]:
    """Returns beta2 S + (1 - beta2) G_i G_i^T for each axis i (with beta2 = 1 the sum).

    Args:
      g: `[k, d_0, ..., d_r]`, float32; G_i is its unfolding along axis i of the block.
      usable: bool `[k]`, whether the squares of g are representable in float32.
      old: S for each axis.

    Returns:
      The new statistics, and int32 `[k]`: how many of each block's stayed as they were, because
      the block is not usable or the sum would overflow.
    """
    sums = arguments.equals(beta2, 1)
    new, kept = {}, jnp.zeros_like(usable, jnp.int32)
    for axis in range(1, g.ndim):
        others = [j for j in range(1, g.ndim) if j != axis]
        square = lax.dot_general(g, g, ((others, others), ((0,), (0,))), precision=HIGHEST)
        before = old[str(axis - 1)]
        grows = usable
        if sums:  # the sum of finite squares may still overflow; no entry exceeds the trace
            grows &= jnp.trace(before, axis1=1, axis2=2) < LARGEST_TRACE
        # One rounding a step: the two of beta2 S + (1 - beta2) G G^T drift where gradients repeat.
        moved = before + (square if sums else (1 - beta2) * (square - before))
        new[str(axis - 1)] = jnp.where(grows[:, None, None], moved, before)
        kept += (~grows).astype(jnp.int32)
    return new, kept


def precondition(g: Array, roots: PerAxis) -> Array:
    """Multiplies every axis of the blocks with its root: `[k, *block]` -> `[k, *block]`."""
    for axis in range(1, g.ndim):
        # The contracted axis is first and the new one last, so a full turn restores the order.
        g = lax.dot_general(
            g, roots[str(axis - 1)], (((1,), (1,)), ((0,), (0,))), precision=HIGHEST
        )
    return g


def roots(
    stats: Mapping[str, PerAxis],
    old: Mapping[str, PerAxis],
    exponents: Mapping[str, int],
    ridge: float,
    relative: bool,
) -> tuple[dict[str, PerAxis], dict[str, Array], dict[str, Array]]:
    """Computes the roots of all buckets in few batches; a root that fails stays the old one.

    Returns:
      The roots, and two counts, int32 `[k]` for each bucket: how many of a block's roots failed,
      and how many needed a larger ridge.
    """
    members: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for name, per_axis in stats.items():
        for axis, s in per_axis.items():
            members.setdefault((exponents[name], s.shape[-1]), []).append((name, axis))
    counts: dict[tuple[Any, tuple[int, ...]], int] = {
        (p, (d,)): sum(len(stats[name][axis]) for name, axis in m) for (p, d), m in members.items()
    }
    new: dict[str, PerAxis] = {name: {} for name in stats}
    failed: dict[str, Array] = {}
    escalated: dict[str, Array] = {}
    batches = join(counts, lambda _, shape: ROOT_FLOPS * shape[0] ** 3)
    for (p, (size,)), sizes in batches.items():
        batch = [member for (d,) in sizes for member in members[p, d]]
        stacked = jnp.concatenate([_grow(stats[name][axis], size) for name, axis in batch])
        root, ok, larger = inverse_pth_root(stacked, p, ridge, relative)
        start = 0
        for name, axis in batch:
            k, d, _ = stats[name][axis].shape
            own = slice(start, start + k)
            new[name][axis] = jnp.where(ok[own, None, None], root[own, :d, :d], old[name][axis])
            failed[name] = failed.get(name, 0) + (~ok[own]).astype(jnp.int32)
            escalated[name] = escalated.get(name, 0) + larger[own].astype(jnp.int32)
            start += k
    return new, failed, escalated


def _grow(s: Array, size: int) -> Array:
    """Appends rows and columns of zeros; the root of the rest does not change."""
    more = size - s.shape[-1]
    return s if more == 0 else jnp.pad(s, ((0, 0), (0, more), (0, more)))
