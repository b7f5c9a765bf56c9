"""Rows that each device keeps for itself: the marker, and its two layouts.

Outside the training step a row-stacked state is canonical: `[n, ...]`, whatever the number of
devices; that is what `tx.init` returns and what a checkpoint holds. Inside the step every device
holds only its own rows, `[k, ...]` with k = ceil(n / n_devices), device i those from i k on.

    outside:  without, owned = split(tx.init(params), n_devices)   # owned: [n_devices, k, ...]
    in pmap:  state = attach(without, owned)                       # owned: [k, ...]
              updates, state = tx.update(grads, state, params)
              without, owned = detach(state)
    outside:  opt_state = merge(without, owned)                    # canonical again
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

PyTree = Any
MOST_PARTS = 4  # of a row that is dealt out before it is gathered


@struct.dataclass
class Owned:
    """A tree of arrays stacked on axis 0, of which each device may hold only some rows.

    `n` is the number of rows in all, static; rows beyond it are padding: what is computed of them
    is dropped.
    """

    rows: PyTree
    n: int = struct.field(pytree_node=False)


def _is_owned(x: Any) -> bool:
    return isinstance(x, Owned)


def rows_per_device(n: int, n_devices: int) -> int:
    """Returns ceil(n / n_devices)."""
    return -(-n // n_devices)


def pad_rows(x: Array, n_rows: int) -> Array:
    """Appends identity rows (ones where the last two indices agree) up to `n_rows` rows."""
    missing = n_rows - x.shape[0]
    if missing == 0:
        return x
    block = (
        jnp.eye(x.shape[-2], x.shape[-1], dtype=x.dtype) if x.ndim > 2 else jnp.ones((), x.dtype)
    )
    return jnp.concatenate([x, jnp.broadcast_to(block, (missing, *x.shape[1:]))])


def detach(opt_state: PyTree) -> tuple[PyTree, dict[str, PyTree]]:
    """Takes the rows out of every `Owned`: (state without them, {"0": rows, "1": rows, ...})."""
    leaves, treedef = jax.tree.flatten(opt_state, is_leaf=_is_owned)
    owned = [leaf for leaf in leaves if _is_owned(leaf)]
    without = [Owned(None, leaf.n) if _is_owned(leaf) else leaf for leaf in leaves]
    rows = {str(i): leaf.rows for i, leaf in enumerate(owned)}
    return jax.tree.unflatten(treedef, without), rows


def attach(without: PyTree, owned: dict[str, PyTree]) -> PyTree:
    """Puts the rows back; the inverse of `detach`, in either layout of the rows."""
    leaves, treedef = jax.tree.flatten(without, is_leaf=_is_owned)
    rows = iter(owned[str(i)] for i in range(len(owned)))
    filled = [Owned(next(rows), leaf.n) if _is_owned(leaf) else leaf for leaf in leaves]
    return jax.tree.unflatten(treedef, filled)


def split(opt_state: PyTree, n_devices: int) -> tuple[PyTree, dict[str, PyTree]]:
    """Canonical state -> (state without the owned rows, rows as `[n_devices, k, ...]`).

    Works on numpy and jax arrays and under jit. Optimizers without owned rows give `{}`.
    """
    without, owned = detach(opt_state)

    def to_devices(x: Array) -> Array:
        k = rows_per_device(x.shape[0], n_devices)
        return pad_rows(jnp.asarray(x), k * n_devices).reshape(n_devices, k, *x.shape[1:])

    return without, jax.tree.map(to_devices, owned)


def merge(without: PyTree, owned: dict[str, PyTree]) -> PyTree:
    """The inverse of `split`, for any number of devices: canonical `[n, ...]` rows."""

    def to_canonical(leaf: Any) -> Any:
        if not _is_owned(leaf):
            return leaf
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[: leaf.n], leaf.rows)
        return Owned(rows, leaf.n)

    return jax.tree.map(to_canonical, attach(without, owned), is_leaf=_is_owned)


def axis_size(axis_name: str | None) -> int:
    """Returns the number of devices of the named axis; 1 outside of any such axis."""
    if axis_name is None:
        return 1
    try:
        return lax.axis_size(axis_name)
    except NameError:
        return 1


def own_rows(n: int, n_devices: int, axis_name: str | None) -> Array:
    """Numbers `[k]` of this device's rows; those from n on are padding.

    A single row is everybody's, so that its replicated and its owned layout are one.
    """
    if n_devices == 1 or n == 1:
        return jnp.arange(n)
    k = rows_per_device(n, n_devices)
    return lax.axis_index(axis_name) * k + jnp.arange(k)


def take_own(x: Array, n_devices: int, axis_name: str | None) -> Array:
    """Canonical `[n, ...]`, equal on all devices -> this device's `[k, ...]`, padded with zeros."""
    n = x.shape[0]
    if n_devices == 1 or n == 1:
        return x
    k = rows_per_device(n, n_devices)
    x = jnp.pad(x, [(0, k * n_devices - n)] + [(0, 0)] * (x.ndim - 1))
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axis_name) * k, k)


def gather(x: Array, n: int, n_devices: int, axis_name: str | None) -> Array:
    """This device's `[k, ...]` -> `[n, ...]` on all devices; the inverse of `take_own`.

    In the way that moves the fewest bytes: padding travels too, so that a few large rows on many
    devices go faster as a sum, or are first dealt out in parts.
    """
    if n_devices == 1:
        return x
    parts = _parts(x, n, n_devices)
    moved_whole = len(x) * n_devices / parts
    if x.shape[0] == 1 and 2 * n < moved_whole:
        return _sum_of_zeros(x, n, axis_name)
    if parts > 1:
        return _gather_parts(x, n, parts, axis_name)
    return lax.all_gather(x, axis_name, tiled=True)[:n]


def _parts(x: Array, n: int, n_devices: int) -> int:
    """Into how many parts of dimension 1 a device's only row can be dealt out, one message each."""
    if x.shape[0] > 1 or x.ndim < 2:
        return 1
    most = max(1, min(n_devices // n, MOST_PARTS))
    return max(c for c in range(1, most + 1) if x.shape[1] % c == 0)


def _sum_of_zeros(x: Array, n: int, axis_name: str | None) -> Array:
    """Every device adds its row to zeros: an all-reduce of n rows, twice their bytes."""
    i = lax.axis_index(axis_name)
    mine = jnp.where(i < n, x, 0)
    zeros = jnp.zeros((n, *x.shape[1:]), x.dtype)
    return lax.psum(
        lax.dynamic_update_slice_in_dim(zeros, mine, jnp.minimum(i, n - 1), 0), axis_name
    )


def _gather_parts(x: Array, n: int, parts: int, axis_name: str | None) -> Array:
    """Part j of row i goes to device parts * i + j, and all of them to all."""
    split = x.reshape(parts, x.shape[1] // parts, *x.shape[2:])
    dealt = [
        lax.ppermute(split[j], axis_name, [(i, parts * i + j) for i in range(n)])
        for j in range(parts)
    ]
    mine = sum(dealt[1:], dealt[0])  # zeros, except for the part that came here
    return lax.all_gather(mine, axis_name)[: n * parts].reshape(n, *x.shape[1:])
