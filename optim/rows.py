"""Which rows there are, and moving them between devices: what is known without the arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from optim import blocks, distribute
from optim.norms import norm


@dataclass(frozen=True)
class Bucket:
    """The rows of one block shape."""

    block: tuple[int, ...]
    tensor: np.ndarray  # int32 [n], position among the preconditioned tensors
    decays: np.ndarray  # float32 [n], 1 where the tensor has weight decay

    @property
    def n(self) -> int:
        return len(self.tensor)

    def spread(self, x: Array | np.ndarray) -> Array:
        """`[k]` -> `[k, 1, ..., 1]`, to multiply rows with."""
        return jnp.reshape(x, (-1, *[1] * len(self.block)))

    def norms(self, rows: Array) -> Array:
        """Norm of every row: `[k, *block]` -> `[k]`."""
        return norm(rows, axis=tuple(range(1, rows.ndim)))


@dataclass(frozen=True)
class Plan:
    """Leaves with and without preconditioner, and the buckets of the former by name."""

    preconditioned: tuple[int, ...]  # positions among the leaves
    plain: tuple[int, ...]
    layout: blocks.Layout
    buckets: dict[str, Bucket]
    decays: tuple[bool, ...]  # per leaf

    def to_rows(self, leaves: Sequence[Array]) -> dict[str, Array]:
        """All leaves -> canonical rows of the preconditioned ones, per bucket."""
        rows = blocks.to_rows(self.layout, [leaves[i] for i in self.preconditioned])
        return {name: rows[b.block] for name, b in self.buckets.items()}

    def from_rows(self, rows: dict[str, Array]) -> dict[int, Array]:
        """Canonical rows -> {position: leaf}."""
        by_block = {b.block: rows[name] for name, b in self.buckets.items()}
        leaves = blocks.from_rows(self.layout, by_block)
        return dict(zip(self.preconditioned, leaves, strict=True))

    def split(self, per_row: Array) -> dict[str, Array]:
        """`[n_1 + n_2 + ...]` -> `[n]` per bucket."""
        cuts = np.cumsum([b.n for b in self.buckets.values()])[:-1]
        return dict(zip(self.buckets, jnp.split(per_row, cuts), strict=True))

    def tensor_norms(self, row_norms: Array) -> Array:
        """Norm of every row's whole tensor: `[n_1 + n_2 + ...]` -> the same shape."""
        tensor = np.concatenate([b.tensor for b in self.buckets.values()])
        count = len(self.preconditioned)
        largest = jax.ops.segment_max(row_norms, tensor, count)
        scaled = row_norms / jnp.where(largest > 0, largest, 1.0)[tensor]
        sums = jax.ops.segment_sum(scaled * scaled, tensor, count)
        return (largest * jnp.sqrt(sums))[tensor]


def make_plan(
    shapes: Sequence[tuple[int, ...]],
    decays: Sequence[bool],
    largest_dim: int,
    block_size: int,
    merge: bool,
) -> Plan:
    """Leaves of rank 0, without elements or with a dimension above `largest_dim` stay plain."""

    def takes_part(shape: tuple[int, ...]) -> bool:
        return len(shape) >= 1 and min(shape) > 0 and max(shape) <= largest_dim

    chosen = tuple(i for i, shape in enumerate(shapes) if takes_part(shape))
    layout = blocks.make_layout([shapes[i] for i in chosen], block_size, merge)
    buckets = {}
    for block in layout.buckets:
        tensor = layout.tensor_of_row(block)
        decaying = np.array([decays[chosen[t]] for t in tensor], np.float32)
        buckets["x".join(map(str, block))] = Bucket(block, tensor, decaying)
    plain = tuple(i for i in range(len(shapes)) if i not in set(chosen))
    return Plan(chosen, plain, layout, buckets, tuple(bool(d) for d in decays))


@dataclass(frozen=True)
class Devices:
    """The devices of an axis; one device outside of it."""

    n: int
    axis_name: str | None

    def own(self, x: Array) -> Array:
        return distribute.take_own(x, self.n, self.axis_name)

    def own_rows(self, plan: Plan, *trees: Sequence[Array]) -> list[dict[str, Array]]:
        """Every list of leaves -> this device's rows of it, `[k, *block]` per bucket."""
        if self.n == 1:
            return [plan.to_rows(leaves) for leaves in trees]
        chosen = [[leaves[i] for i in plan.preconditioned] for leaves in trees]
        rows: list[dict[str, Array]] = [{} for _ in trees]
        for name, b in plan.buckets.items():
            wanted = distribute.own_rows(b.n, self.n, self.axis_name)
            found = blocks.some_rows(plan.layout, b.block, chosen, wanted)
            for one, x in zip(rows, found, strict=True):
                one[name] = x
        return rows

    def gather(self, x: Array, n: int) -> Array:
        return distribute.gather(x, n, self.n, self.axis_name)

    def gather_columns(self, plan: Plan, columns: dict[str, dict[str, Array]]) -> dict[str, Array]:
        """{column: `[k]` per bucket} -> {column: `[n_1 + n_2 + ...]`} everywhere, in one gather."""
        names = list(plan.buckets)
        if not names:
            return {column: jnp.zeros(0) for column in columns}
        joined = [jnp.concatenate([rows[name] for name in names]) for rows in columns.values()]
        together = jnp.stack(joined)
        together = lax.all_gather(together, self.axis_name) if self.n > 1 else together[None]
        lengths = [len(next(iter(columns.values()))[name]) for name in names]
        parts = jnp.split(together, np.cumsum(lengths)[:-1], axis=2)
        rows = [
            part.transpose(1, 0, 2).reshape(len(columns), -1)[:, : plan.buckets[name].n]
            for part, name in zip(parts, names, strict=True)
        ]
        return dict(zip(columns, jnp.concatenate(rows, axis=1), strict=True))
