"""Statistics, their roots, and what they do to a gradient; on the rows of one device."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array, lax

from optim import traced
from optim.inverse_root import inverse_pth_root

HIGHEST = lax.Precision.HIGHEST
LARGEST_TRACE = 1e38
PADDING, SMALL = 0.06, 160**3  # of the work on roots; n d^3 that is not worth a compilation
PerAxis = dict[str, Array]  # "0": [k, d_0, d_0], "1": [k, d_1, d_1], ...


def statistics(g: Array, usable: Array, old: PerAxis, beta2: float) -> tuple[PerAxis, Array]:
    """Returns beta2 S + (1 - beta2) G_i G_i^T per axis i (beta2 = 1: the sum), and what was kept.

    Rows that are not `usable`, and sums that would overflow, keep their statistics; `kept` `[k]`
    counts them, float32.

    Args:
      g: `[k, d_0, ..., d_r]`, float32; G_i is its unfolding along axis i of the block.
      usable: bool `[k]`: the squares of g can be summed in float32.
    """
    sums = traced.equals(beta2, 1)
    weight = 1.0 if sums else 1 - beta2
    new, kept = {}, jnp.zeros(g.shape[0])
    for axis in range(1, g.ndim):
        others = [j for j in range(1, g.ndim) if j != axis]
        square = lax.dot_general(g, g, ((others, others), ((0,), (0,))), precision=HIGHEST)
        before = old[str(axis - 1)]
        grows = usable
        if sums:  # the sum of finite squares may still overflow; no entry exceeds the trace
            grows &= jnp.trace(before, axis1=1, axis2=2) < LARGEST_TRACE
        new[str(axis - 1)] = jnp.where(
            grows[:, None, None], beta2 * before + weight * square, before
        )
        kept += ~grows
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
    """Roots of all buckets, in few batches; where a root fails the old one stays.

    Returns (roots, failed, raised), the last two `[k]` per bucket, float32: how many of a row's
    roots failed, or had their ridge raised.
    """
    members: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for name, per_axis in stats.items():
        for axis, s in per_axis.items():
            members.setdefault((exponents[name], s.shape[-1]), []).append((name, axis))
    new: dict[str, PerAxis] = {name: {} for name in stats}
    failed = {name: jnp.zeros(len(per_axis["0"])) for name, per_axis in stats.items()}
    raised = dict(failed)
    counts = {k: sum(len(stats[name][axis]) for name, axis in m) for k, m in members.items()}
    for (p, size), sizes in join_sizes(counts).items():
        batch = [member for d in sizes for member in members[p, d]]
        stacked = jnp.concatenate([_grow(stats[name][axis], size) for name, axis in batch])
        root, ok, up = inverse_pth_root(stacked, p, ridge, relative)
        start = 0
        for name, axis in batch:
            k, d, _ = stats[name][axis].shape
            rows = slice(start, start + k)
            good = ok[rows, None, None]
            new[name][axis] = jnp.where(good, root[rows, :d, :d], old[name][axis])
            failed[name] += ~ok[rows]
            raised[name] += up[rows]
            start += k
    return new, failed, raised


def _grow(s: Array, size: int) -> Array:
    """Appends rows and columns of zeros; the root of the rest does not change."""
    more = size - s.shape[-1]
    return s if more == 0 else jnp.pad(s, ((0, 0), (0, more), (0, more)))


def join_sizes(counts: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], list[int]]:
    """Lets small matrices join the batch of the next size where that is nearly free.

    Every batch costs seconds of compilation. From small to large, a size joins the next one of
    the same exponent while the padding adds at most PADDING of the whole work, or SMALL.

    Args:
      counts: {(exponent, size): number of matrices}.

    Returns:
      {(exponent, size of the batch): sizes in it}.
    """
    allowed = max(SMALL, PADDING * sum(n * d**3 for (_, d), n in counts.items()))
    batches: dict[tuple[int, int], list[int]] = {}
    for p in sorted({p for p, _ in counts}):
        sizes = sorted(d for q, d in counts if q == p)
        waiting: list[int] = []
        for d, larger in zip(sizes, [*sizes[1:], None], strict=True):
            waiting.append(d)
            here = sum(counts[p, w] for w in waiting)
            extra = float("inf") if larger is None else here * (larger**3 - d**3)
            if extra <= allowed:
                allowed -= extra
            else:
                batches[p, d], waiting = waiting, []
    return batches
