"""Statistics, their roots, and what they do to a gradient; on the rows of one device."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array, lax

from optim.inverse_root import inverse_pth_root

HIGHEST = lax.Precision.HIGHEST
PerAxis = dict[str, Array]  # "0": [k, d_0, d_0], "1": [k, d_1, d_1], ...


def statistics(g: Array, old: PerAxis, beta2: float) -> tuple[PerAxis, Array]:
    """Returns beta2 S + (1 - beta2) G_i G_i^T per axis i (beta2 = 1: the sum), and what was kept.

    A statistic that would not be finite is kept as it was; `kept` `[k]` counts them, float32.

    Args:
      g: `[k, d_0, ..., d_r]`, float32; G_i is its unfolding along axis i of the block.
    """
    weight = 1.0 if beta2 == 1 else 1 - beta2
    new, kept = {}, jnp.zeros(g.shape[0])
    for axis in range(1, g.ndim):
        others = [j for j in range(1, g.ndim) if j != axis]
        square = lax.dot_general(g, g, ((others, others), ((0,), (0,))), precision=HIGHEST)
        name = str(axis - 1)
        s = beta2 * old[name] + weight * square
        finite = jnp.isfinite(jnp.sum(s, axis=(1, 2)))
        new[name] = jnp.where(finite[:, None, None], s, old[name])
        kept += ~finite
    return new, kept


def precondition(g: Array, roots: PerAxis) -> Array:
    """Multiplies every axis of the blocks with its root: `[k, *block]` -> `[k, *block]`."""
    for axis in range(1, g.ndim):
        # The contracted axis goes first, the new one comes last: after a full turn all is in place.
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
    """Roots of all buckets: one batch per matrix size and exponent.

    Where a root fails the old one stays. Returns (roots, failed, raised), the last two `[k]` per
    bucket, float32: how many of a row's roots failed, or had their ridge raised.
    """
    batches: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for name, per_axis in stats.items():
        for axis, s in per_axis.items():
            batches.setdefault((s.shape[-1], exponents[name]), []).append((name, axis))
    new: dict[str, PerAxis] = {name: {} for name in stats}
    failed = {name: jnp.zeros(len(per_axis["0"])) for name, per_axis in stats.items()}
    raised = dict(failed)
    for (_, p), members in batches.items():
        stacked = jnp.concatenate([stats[name][axis] for name, axis in members])
        root, ok, up = inverse_pth_root(stacked, p, ridge, relative)
        start = 0
        for name, axis in members:
            stop = start + stats[name][axis].shape[0]
            good = ok[start:stop]
            new[name][axis] = jnp.where(good[:, None, None], root[start:stop], old[name][axis])
            failed[name] += ~good
            raised[name] += up[start:stop]
            start = stop
    return new, failed, raised
