"""Shape arithmetic of blocked preconditioning: which block of which tensor is which row.

Every tensor is reshaped (neighbouring small dimensions merged), and every dimension above the
block size is cut. Blocks of equal shape, of whatever tensors, are the rows of one bucket:

    [3, 3, 128, 128] -> [9, 128, 128]  -> 1 row of bucket (9, 128, 128)
    [2048, 1000]     -> 112 rows of (128, 128), 16 rows of (128, 104)
    [300]            -> 2 rows of (128,), 1 row of (44,)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Shape = tuple[int, ...]
TILE_ROWS = 8  # of float32, the second to last dimension


def merge_small_dims(shape: Sequence[int], limit: int) -> Shape:
    """Multiplies neighbouring dimensions, left to right, while the product stays <= `limit`.

    (3, 3, 128, 128) with limit 128 -> (9, 128, 128); ones vanish; all ones -> (1,).
    Source: seed README, "How?"; arXiv:2002.09018.
    """
    merged, product = [], 1
    for d in shape:
        if product * d <= limit:
            product *= d
            continue
        if product > 1:
            merged.append(product)
        product = d
    if product > 1 or not merged:
        merged.append(product)
    return tuple(merged)


def segments(d: int, block_size: int) -> list[tuple[int, int, int]]:
    """Cuts a dimension: (start, number of blocks, block length) of the full blocks and the tail."""
    full, tail = divmod(d, block_size)
    cuts = [(0, full, block_size)] if full else []
    return cuts + ([(full * block_size, 1, tail)] if tail else [])


@dataclass(frozen=True)
class Piece:
    """A box of every tensor of a group, cut into equal blocks."""

    start: Shape
    counts: Shape
    block: Shape


@dataclass(frozen=True)
class Group:
    """Tensors of one merged shape; `tensors` are positions in the list given to `make_layout`."""

    merged: Shape
    tensors: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Layout:
    """`buckets[block shape]` lists the (group, piece) whose blocks are its rows, in order."""

    shapes: tuple[Shape, ...]
    groups: tuple[Group, ...]
    buckets: dict[Shape, tuple[tuple[int, int], ...]]

    def tensor_of_row(self, block: Shape) -> np.ndarray:
        """int32 `[n]`: the tensor that each row of a bucket belongs to."""
        parts = []
        for g, p in self.buckets[block]:
            group = self.groups[g]
            parts.append(np.repeat(group.tensors, math.prod(group.pieces[p].counts)))
        return np.concatenate(parts).astype(np.int32)


def make_layout(shapes: Sequence[Shape], block_size: int, merge: bool) -> Layout:
    """Plans the buckets of tensors of rank >= 1 without empty dimensions."""
    by_merged: dict[Shape, list[int]] = {}
    for i, shape in enumerate(shapes):
        merged = merge_small_dims(shape, block_size) if merge else tuple(shape)
        by_merged.setdefault(merged, []).append(i)
    groups: list[Group] = []
    buckets: dict[Shape, list[tuple[int, int]]] = {}
    for merged, tensors in by_merged.items():
        cuts = itertools.product(*(segments(d, block_size) for d in merged))
        pieces = tuple(Piece(*zip(*cut, strict=True)) for cut in cuts)
        for p, piece in enumerate(pieces):
            buckets.setdefault(piece.block, []).append((len(groups), p))
        groups.append(Group(merged, tuple(tensors), pieces))
    ordered = {block: tuple(buckets[block]) for block in sorted(buckets)}
    return Layout(tuple(map(tuple, shapes)), tuple(groups), ordered)


def _cut(x: Array, piece: Piece) -> Array:
    """`[t, *merged]` -> `[t * blocks, *block]`."""
    t, rank = x.shape[0], len(piece.block)
    stop = [s + c * b for s, c, b in zip(piece.start, piece.counts, piece.block, strict=True)]
    x = lax.slice(x, (0, *piece.start), (t, *stop))
    pairs = itertools.chain(*zip(piece.counts, piece.block, strict=True))
    x = x.reshape(t, *pairs)
    order = [0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2)]
    return x.transpose(order).reshape(-1, *piece.block)


def _uncut(rows: Array, piece: Piece) -> Array:
    """`[blocks, *block]` of one tensor -> its box."""
    sizes = [_tiles(b) if i + 2 == len(piece.block) else (b,) for i, b in enumerate(piece.block)]
    x = rows.reshape(*piece.counts, *itertools.chain(*sizes))
    order, at = [], len(piece.counts)
    for i, size in enumerate(sizes):
        order += [i, *range(at, at + len(size))]
        at += len(size)
    lengths = [c * b for c, b in zip(piece.counts, piece.block, strict=True)]
    return x.transpose(order).reshape(lengths)


def _tiles(d: int) -> tuple[int, ...]:
    """A TPU moves whole tiles of 8 rows if the shapes show them, else it copies row by row."""
    return (d // TILE_ROWS, TILE_ROWS) if d % TILE_ROWS == 0 else (d,)


def to_rows(layout: Layout, tensors: Sequence[Array]) -> dict[Shape, Array]:
    """Tensors -> `{block shape: [n, *block]}`, float32."""
    parts: dict[tuple[int, int], Array] = {}
    for g, group in enumerate(layout.groups):
        members = [tensors[i].astype(jnp.float32).reshape(group.merged) for i in group.tensors]
        stacked = jnp.stack(members)
        for p, piece in enumerate(group.pieces):
            parts[g, p] = _cut(stacked, piece)
    return {
        block: jnp.concatenate([parts[key] for key in keys])
        for block, keys in layout.buckets.items()
    }


def some_rows(
    layout: Layout, block: Shape, trees: Sequence[Sequence[Array]], wanted: Array
) -> tuple[Array, ...]:
    """Rows `wanted` `[k]` of a bucket, of every list of tensors: `[k, *block]`, float32.

    The same as `to_rows(...)[block][wanted]`, but nothing else is read. Rows beyond the last are
    zeros.
    """
    readers: list[Callable[[Array], tuple[Array, ...]]] = []
    reader: list[int] = []  # per row
    place: list[int] = []
    for g, p in layout.buckets[block]:
        group, piece = layout.groups[g], layout.groups[g].pieces[p]
        here = math.prod(piece.counts)
        for i in group.tensors:
            reader += [len(readers)] * here
            place += range(here)
            readers.append(partial(_read, [tree[i] for tree in trees], group.merged, piece))
    reader.append(len(readers))
    place.append(0)
    readers.append(lambda _: tuple(jnp.zeros(block, jnp.float32) for _ in trees))
    known = jnp.minimum(wanted, len(reader) - 1)
    which, where = jnp.asarray(reader)[known], jnp.asarray(place)[known]
    return lax.map(lambda at: lax.switch(at[0], readers, at[1]), (which, where))


def _read(tensors: Sequence[Array], merged: Shape, piece: Piece, number: Array):
    """Block `number` of a piece of every tensor."""
    start: list[Array] = []
    left = number
    for s, c, b in reversed(list(zip(piece.start, piece.counts, piece.block, strict=True))):
        start.insert(0, s + left % c * b)
        left = left // c
    return tuple(
        lax.dynamic_slice(x.reshape(merged), start, piece.block).astype(jnp.float32)
        for x in tensors
    )


def from_rows(layout: Layout, rows: dict[Shape, Array]) -> list[Array]:
    """The inverse of `to_rows`; tensor by tensor, which spares a TPU a copy of each group."""
    boxes: dict[int, dict[Shape, Array]] = {}
    for block, keys in layout.buckets.items():
        start = 0
        for g, p in keys:
            piece = layout.groups[g].pieces[p]
            here = math.prod(piece.counts)
            for i in layout.groups[g].tensors:
                part = lax.slice_in_dim(rows[block], start, start + here)
                boxes.setdefault(i, {})[piece.start] = _uncut(part, piece)
                start += here
    return [_join(boxes[i]).reshape(shape) for i, shape in enumerate(layout.shapes)]


def _join(boxes: dict[Shape, Array]) -> Array:
    """Concatenates boxes, keyed by their start, along every axis."""
    rank = len(next(iter(boxes)))
    for axis in reversed(range(rank)):
        rests = sorted({start[:axis] for start in boxes})
        boxes = {
            rest: jnp.concatenate([boxes[s] for s in sorted(boxes) if s[:axis] == rest], axis=axis)
            for rest in rests
        }
    return boxes[()]
