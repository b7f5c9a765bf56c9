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
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Shape = tuple[int, ...]


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

    def rows_of(self, g: int, p: int) -> int:
        """Rows that piece `p` of group `g` has in its bucket."""
        return len(self.groups[g].tensors) * math.prod(self.groups[g].pieces[p].counts)

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
    """The inverse of `_cut`: `[t * blocks, *block]` -> the box `[t, ...]`."""
    rank = len(piece.block)
    x = rows.reshape(-1, *piece.counts, *piece.block)
    order = [0, *itertools.chain(*((1 + i, 1 + rank + i) for i in range(rank)))]
    lengths = [c * b for c, b in zip(piece.counts, piece.block, strict=True)]
    return x.transpose(order).reshape(-1, *lengths)


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


def from_rows(layout: Layout, rows: dict[Shape, Array]) -> list[Array]:
    """The inverse of `to_rows`."""
    parts: dict[tuple[int, int], Array] = {}
    for block, keys in layout.buckets.items():
        start = 0
        for g, p in keys:
            stop = start + layout.rows_of(g, p)
            parts[g, p] = _uncut(rows[block][start:stop], layout.groups[g].pieces[p])
            start = stop
    tensors: dict[int, Array] = {}
    for g, group in enumerate(layout.groups):
        boxes = {piece.start: parts[g, p] for p, piece in enumerate(group.pieces)}
        stacked = _join(boxes)
        for t, i in enumerate(group.tensors):
            tensors[i] = stacked[t].reshape(layout.shapes[i])
    return [tensors[i] for i in range(len(layout.shapes))]


def _join(boxes: dict[Shape, Array]) -> Array:
    """Concatenates boxes, keyed by their start, along every axis."""
    rank = len(next(iter(boxes)))
    for axis in reversed(range(rank)):
        rests = sorted({start[:axis] for start in boxes})
        boxes = {
            rest: jnp.concatenate(
                [boxes[s] for s in sorted(boxes) if s[:axis] == rest], axis=axis + 1
            )
            for rest in rests
        }
    return boxes[()]
