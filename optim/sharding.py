"""State that is sharded over devices (ZeRO), and the devices that share an update.

`Sharded` marks an array with one row for each block. With N devices, device i keeps rows i k to
(i + 1) k, where k = ceil(n / N); rows from n on are padding. The state has three layouts:

  canonical `[n, ...]`: on one device, or replicated. It does not depend on N; store this one.
  padded `[N k, ...]`: a global array, sharded over all axes of a mesh (`pad`, `canonical`).
  split `[N, k, ...]`: for `jax.pmap` with `in_axes=0` (`split`, `merge`), `[k, ...]` inside.

`over_blocks` accepts each of them and returns the layout that it is given.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

PyTree = Any
MOST_PARTS = 4  # into which a row is divided before it is gathered


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rows"], meta_fields=["n"])
@dataclass(frozen=True)
class Sharded:
    """An array in one of the three layouts, and its number of rows without padding (static)."""

    rows: Any
    n: int


def _is_sharded(x: Any) -> bool:
    return isinstance(x, Sharded)


def map_sharded(f: Callable[[Array, int], Any], state: PyTree) -> PyTree:
    """Applies f(rows, n) to the rows of every `Sharded`; other leaves stay as they are."""

    def one(x: Any) -> Any:
        return dataclasses.replace(x, rows=f(x.rows, x.n)) if _is_sharded(x) else x

    return jax.tree.map(one, state, is_leaf=_is_sharded)


def unwrap(state: PyTree) -> PyTree:
    """Replaces every `Sharded` by its rows."""
    return jax.tree.map(lambda x: x.rows if _is_sharded(x) else x, state, is_leaf=_is_sharded)


def rows_per_device(n: int, n_devices: int) -> int:
    """Returns ceil(n / n_devices)."""
    return -(-n // n_devices)


def _pad_rows(x: Array, n: int, n_devices: int) -> Array:
    """Appends identity rows (ones where the last two indices agree) up to equal shares."""
    missing = rows_per_device(n, n_devices) * n_devices - n
    row = jnp.eye(x.shape[-2], x.shape[-1], dtype=x.dtype) if x.ndim > 2 else jnp.ones((), x.dtype)
    padding = jnp.broadcast_to(row, (missing, *x.shape[1:]))
    return jnp.concatenate([x, padding]) if missing else jnp.asarray(x)


def detach(opt_state: PyTree) -> tuple[PyTree, dict[str, PyTree]]:
    """Returns the state without the rows, and the rows {"0": ..., "1": ...} in its order."""
    leaves, treedef = jax.tree.flatten(opt_state, is_leaf=_is_sharded)
    rows = [leaf.rows for leaf in leaves if _is_sharded(leaf)]
    without = [Sharded(None, leaf.n) if _is_sharded(leaf) else leaf for leaf in leaves]
    return jax.tree.unflatten(treedef, without), {str(i): x for i, x in enumerate(rows)}


def attach(without: PyTree, sharded: dict[str, PyTree]) -> PyTree:
    """Puts the rows back; the inverse of `detach`."""
    rows = (sharded[str(i)] for i in range(len(sharded)))
    return jax.tree.map(
        lambda x: Sharded(next(rows), x.n) if _is_sharded(x) else x, without, is_leaf=_is_sharded
    )


def split(opt_state: PyTree, n_devices: int) -> tuple[PyTree, dict[str, PyTree]]:
    """Canonical state -> (state without rows, rows `[n_devices, k, ...]`); {} without `Sharded`."""

    def to_devices(x: Array, n: int) -> Array:
        return _pad_rows(x, n, n_devices).reshape(n_devices, -1, *x.shape[1:])

    return detach(map_sharded(to_devices, opt_state))


def merge(without: PyTree, sharded: dict[str, PyTree]) -> PyTree:
    """The inverse of `split`, for any number of devices: the canonical state."""
    return map_sharded(lambda x, n: x.reshape(-1, *x.shape[2:])[:n], attach(without, sharded))


def pad(opt_state: PyTree, mesh: Mesh) -> PyTree:
    """Canonical state -> padded, placed on all devices of a mesh; other leaves are replicated."""
    padded = map_sharded(lambda x, n: _pad_rows(x, n, mesh.size), opt_state)
    specs = partition_specs(padded, mesh.axis_names)
    return jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), padded, specs)


def canonical(opt_state: PyTree) -> PyTree:
    """Padded state -> canonical, replicated; the inverse of `pad`, for any mesh."""

    def one(x: Array, n: int) -> Array:
        mesh = mesh_of(x)
        return (x if mesh is None else jax.device_put(x, NamedSharding(mesh, P())))[:n]

    return map_sharded(one, opt_state)


def partition_specs(opt_state: PyTree, axis_names: Any) -> PyTree:
    """Returns a PartitionSpec for each leaf: over `axis_names` if `Sharded`, else replicated."""
    return map_sharded(lambda *_: P(axis_names), jax.tree.map(lambda _: P(), opt_state))


@dataclass(frozen=True)
class Devices:
    """The devices of a named axis (or of several axes together); one device outside of any.

    `checks_varying` says whether the axis distinguishes values that vary over devices from those
    that do not, as `jax.shard_map` does by default.
    """

    n: int = 1
    axis_name: Any = None
    checks_varying: bool = False

    def vary(self, x: Array) -> Array:
        """Marks a value as one that may differ between devices, where that is distinguished."""
        if not self.checks_varying or self.axis_name in _varying_axes(x):
            return x
        return lax.pcast(x, self.axis_name, to="varying")

    def indices(self, n: int) -> Array:
        """Indices `[k]` of this device's rows; those from n on are padding.

        A single row is every device's, as its canonical layout cannot be told from a share.
        """
        positions = self._positions(n)
        return jnp.zeros_like(positions) if n == 1 else positions

    def counts(self, n: int) -> Array:
        """Whether each row `[k]` is no padding; a single row counts on the first device only."""
        return self._positions(n) < n

    def _positions(self, n: int) -> Array:
        k = rows_per_device(n, self.n)
        start = lax.axis_index(self.axis_name) * k if self.n > 1 else 0
        return start + jnp.arange(k, dtype=jnp.int32)

    def own(self, x: Array) -> Array:
        """Canonical `[n, ...]`, equal on all devices -> this device's `[k, ...]`."""
        return self.vary(x[jnp.minimum(self.indices(len(x)), len(x) - 1)] if self.n > 1 else x)

    def sum(self, x: Array) -> Array:
        """Sum over the devices."""
        return lax.psum(x, self.axis_name) if self.n > 1 else x

    def max(self, x: Array) -> Array:
        """Maximum over the devices."""
        return lax.pmax(x, self.axis_name) if self.n > 1 else x

    def gather_canonical(self, x: Array, n: int) -> Array:
        """This device's `[k, ...]` -> canonical `[n, ...]` on all; the inverse of `own`."""
        rows = self.gather(x, n)
        parts = x[0].size // max(1, rows[0].size)
        return rows[: n * parts].reshape(n, *x.shape[1:])

    def gather(self, x: Array, n: int) -> Array:
        """This device's `[k, d, ...]` -> the rows of all, each in `parts`: `[m, d / parts, ...]`.

        There may be padding, m >= n * parts. Since it is moved, too, a few large rows on many
        devices are summed into zeros instead, or divided into parts, if that moves fewer bytes.
        """
        parts = 1
        if self.n > 1 and len(x) == 1 and x.ndim > 1:
            most = max(1, min(self.n // n, MOST_PARTS))
            parts = max(c for c in range(1, most + 1) if x.shape[1] % c == 0)
        if self.n == 1:
            return x
        if len(x) == 1 and 2 * n < self.n / parts:
            i = lax.axis_index(self.axis_name)
            row = jnp.where(i == jnp.arange(n), 1, 0).reshape(n, *[1] * (x.ndim - 1))
            return lax.psum(jnp.where(row > 0, x, 0), self.axis_name)
        if parts > 1:
            x = self._divide(x, n, parts)
        to = "invarying" if self.checks_varying else "varying"
        return lax.all_gather(x, self.axis_name, tiled=True, to=to)

    def _divide(self, x: Array, n: int, parts: int) -> Array:
        """Sends part j of row i to device parts * i + j."""
        divided = x.reshape(parts, 1, x.shape[1] // parts, *x.shape[2:])
        own = jnp.zeros_like(divided[0])
        for j in range(parts):
            targets = [parts * i + j for i in range(n)]
            targets += sorted(set(range(self.n)) - set(targets))  # vmap needs a full permutation
            received = lax.ppermute(divided[j], self.axis_name, list(enumerate(targets)))
            own = jnp.where(lax.axis_index(self.axis_name) % parts == j, received, own)
        return own


def _varying_axes(x: Array) -> frozenset[str]:
    """Axes over which shard_map's type of x varies; none where it does not check that."""
    kind = jax.typeof(x)
    return kind.mat.varying if hasattr(kind, "mat") else kind.vma  # JAX 0.10.2 renamed it


def axis_devices(axis_name: Any) -> Devices:
    """Returns the devices of a named axis; one device, without a name, outside of that axis."""
    try:
        n = lax.axis_size(axis_name) if axis_name is not None else 1
    except NameError:  # not bound here
        return Devices()
    if axis_name is None:
        return Devices()
    return Devices(n, axis_name, axis_name in _varying_axes(lax.axis_index(axis_name)))


def mesh_of(tree: PyTree) -> Mesh | AbstractMesh | None:
    """The mesh of several devices that some leaf is placed on, unless an axis of it is manual."""
    for x in jax.tree.leaves(tree):
        is_concrete = isinstance(x, Array) and not isinstance(x, jax.core.Tracer)
        mesh = getattr(x.sharding if is_concrete else jax.typeof(x).sharding, "mesh", None)
        if mesh is not None and mesh.size > 1 and AxisType.Manual not in mesh.axis_types:
            return mesh
    return None


def over_devices(
    update: Callable[[Devices, PyTree, PyTree], tuple[Any, Any]],
    axis_name: Any,
    arrays: PyTree,
    state: PyTree,
) -> tuple[Any, Any]:
    """Calls update(devices, arrays, state) with the devices that share the work.

    These are the devices of `axis_name` where that axis is bound. Otherwise they are those of the
    mesh that the arguments are placed on, if any: the work then runs in a `jax.shard_map` over all
    axes of the mesh. Otherwise it is one device.

    Args:
      update: returns (result, new state). The result must be the same on all devices.
      axis_name: a named axis, or None.
      arrays: what all devices read.
      state: with `Sharded` rows in any layout; None to make a new state, which is padded on a mesh.
    """
    devices = axis_devices(axis_name)
    mesh = None if devices.axis_name is not None else mesh_of((arrays, state))
    if mesh is None:
        return update(devices, arrays, state)
    devices = Devices(mesh.size, tuple(mesh.axis_names))
    whole, share = P(), P(devices.axis_name)
    explicit = AxisType.Explicit in mesh.axis_types

    def place(x: Any, spec: P) -> Any:
        """Where the type of an array holds its sharding, shard_map does not change it."""
        return jax.sharding.reshard(x, NamedSharding(mesh, spec)) if explicit else x

    def spec_of(x: Any, n: int) -> P:
        """Rows without padding stay replicated, unless their number needs none."""
        needs_none = x.shape[0] == rows_per_device(n, mesh.size) * mesh.size
        is_replicated = explicit and jax.typeof(x).sharding.spec[0] is None
        return share if needs_none and not is_replicated else whole

    arrays = jax.tree.map(lambda x: place(x, whole), arrays)
    if state is None:
        new = jax.eval_shape(lambda x: update(Devices(), x, None)[1], arrays)
        specs = partition_specs(new, devices.axis_name)
    else:
        specs = jax.tree.map(
            lambda x: x if isinstance(x, P) else whole, map_sharded(spec_of, state)
        )
        state = jax.tree.map(place, state, specs)
    return jax.shard_map(
        functools.partial(update, devices),
        mesh=mesh,
        in_specs=(whole, whole if state is None else specs),
        out_specs=(whole, specs),
        check_vma=False,
    )(arrays, state)
