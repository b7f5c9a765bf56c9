"""Shape arithmetic of blocks: which part of which parameter is which block.

A parameter is reshaped (small neighbouring dimensions are merged) and every dimension above the
block size is cut. Blocks of one shape, from all parameters, are stacked in one bucket:

    [3, 3, 128, 128] -> [9, 128, 128]  -> 1 block of (9, 128, 128)
    [2048, 1000]     -> 112 blocks of (128, 128), 16 blocks of (128, 104)
    [300]            -> 2 blocks of (128,), 1 block of (44,)

Buckets with little work are joined: their blocks are padded with zeros to a common shape.
Everything here is static; it is computed while the program is traced.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Shape = tuple[int, ...]
TILE_ROWS = 8  # of float32, in the second to last dimension, on a TPU
# Buckets of tensors without preconditioner: their names begin so, their blocks are that long.
ELEMENTWISE, ELEMENTWISE_SIZE = "elementwise_", 16_384
ROOT_PRODUCTS = 24  # matrix products of one root, about
# Work that joining may add: a share of all, or flops that cost less than another compilation.
JOINED_SHARE, JOINED_FLOPS = 0.06, 1e9


def is_preconditioned(bucket: str) -> bool:
    """Whether the blocks of the bucket of that name have a preconditioner."""
    return not bucket.startswith(ELEMENTWISE)


def merge_small_dims(shape: Sequence[int], limit: int) -> Shape:
    """Multiplies neighbouring dimensions, left to right, while the product is at most `limit`.

    (3, 3, 128, 128) with limit 128 -> (9, 128, 128). Ones vanish; all ones give (1,).
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
    """Cuts a dimension into (start, number of blocks, block length): the full blocks, the tail."""
    full, tail = divmod(d, block_size)
    cuts = [(0, full, block_size)] if full else []
    return cuts + ([(full * block_size, 1, tail)] if tail else [])


@dataclass(frozen=True)
class Piece:
    """A box of each of some parameters of one reshaped shape, cut into equal blocks.

    The first dimension of `shape`, `start`, `counts` and `block` counts the layers of a stack of
    layers; it is 1 for ordinary parameters.
    """

    leaves: tuple[int, ...]  # positions among the leaves
    shape: Shape
    start: Shape
    counts: Shape
    block: Shape

    @property
    def blocks_per_leaf(self) -> int:
        return math.prod(self.counts)

    @property
    def box(self) -> Shape:
        return tuple(c * b for c, b in zip(self.counts, self.block, strict=True))


@dataclass(frozen=True)
class Bucket:
    """Blocks of one shape, stacked in the order of `pieces`, their leaves and their positions.

    Attributes:
      shape: of a block; blocks of smaller pieces are padded with zeros.
      tensor: int32 `[n]`, a number for the tensor (a layer of a leaf) that each block belongs to.
      decays: float32 `[n]`, 1 where the tensor has weight decay.
    """

    shape: Shape
    pieces: tuple[Piece, ...]
    tensor: np.ndarray
    decays: np.ndarray

    @property
    def n(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True)
class Layout:
    """The buckets by name, and the shapes of the leaves that they are cut from."""

    shapes: tuple[Shape, ...]
    buckets: dict[str, Bucket]
    n_tensors: int


def make_layout(
    shapes: Sequence[Shape],
    *,
    block_size: int,
    merge: bool,
    largest_dim: float = math.inf,
    decays: Sequence[bool] | None = None,
    stacked: Sequence[bool] | None = None,
) -> Layout:
    """Plans the buckets of a list of leaves.

    Leaves of rank 0, or with a dimension above `largest_dim`, have no preconditioner: they are
    flattened and cut into long blocks. Leaves without elements have no blocks.

    Args:
      decays: whether each leaf has weight decay; default all.
      stacked: whether the first dimension of each leaf counts layers, each a tensor of its own;
        default none.
    """
    decays = [True] * len(shapes) if decays is None else decays
    stacked = [False] * len(shapes) if stacked is None else stacked
    groups: dict[tuple[bool, Shape], list[int]] = {}
    first_tensor, n_tensors = [], 0
    for i, (shape, is_stack) in enumerate(zip(shapes, stacked, strict=True)):
        layers, rest = (shape[0], tuple(shape[1:])) if is_stack and shape else (1, tuple(shape))
        first_tensor.append(n_tensors)
        n_tensors += layers
        if 0 in shape:
            continue
        preconditioned = len(rest) > 0 and max(rest) <= largest_dim
        if preconditioned:
            reshaped = merge_small_dims(rest, block_size) if merge else rest
        else:
            reshaped = (math.prod(rest),)
        groups.setdefault((preconditioned, (layers, *reshaped)), []).append(i)

    pieces: dict[tuple[bool, Shape], list[Piece]] = {}
    for (preconditioned, shape), leaves in groups.items():
        size = block_size if preconditioned else ELEMENTWISE_SIZE
        for cut in itertools.product([(0, shape[0], 1)], *(segments(d, size) for d in shape[1:])):
            piece = Piece(tuple(leaves), shape, *zip(*cut, strict=True))
            pieces.setdefault((preconditioned, piece.block[1:]), []).append(piece)

    counts = {
        key: sum(len(p.leaves) * p.blocks_per_leaf for p in found) for key, found in pieces.items()
    }
    buckets = {}
    for (preconditioned, shape), members in join(counts, flops).items():
        found = [piece for member in members for piece in pieces[preconditioned, member]]
        tensor, decaying = [], []
        for piece in found:
            per_layer = piece.blocks_per_leaf // piece.counts[0]
            for i in piece.leaves:
                own = first_tensor[i] + np.arange(piece.counts[0])
                tensor.append(np.repeat(own, per_layer))
                decaying.append(np.full(piece.blocks_per_leaf, decays[i]))
        name = "x".join(map(str, shape)) if preconditioned else f"{ELEMENTWISE}{shape[0]}"
        buckets[name] = Bucket(
            shape,
            tuple(found),
            np.concatenate(tensor).astype(np.int32),
            np.concatenate(decaying).astype(np.float32),
        )
    return Layout(tuple(map(tuple, shapes)), buckets, n_tensors)


def flops(preconditioned: bool, shape: Shape) -> float:
    """Work of one block in an update, about; an elementwise operation counts as many flops."""
    size = math.prod(shape)
    matrices = sum(4 * size * d + 2 * ROOT_PRODUCTS * d**3 for d in shape)
    return 100 * size + (matrices if preconditioned else 0)


def join(
    counts: Mapping[tuple[Any, Shape], int], flops: Callable[[Any, Shape], float]
) -> dict[tuple[Any, Shape], list[Shape]]:
    """Joins shapes of equal rank and kind while padding them to a common shape is nearly free.

    Each batch costs a fraction of a second of compilation, and is rounded up to the number of
    devices. Pairs of which one has the common shape are joined first, then the cheapest.

    Args:
      counts: {(kind, shape): number of arrays}.
      flops: work of one array of that kind and shape.

    Returns:
      {(kind, common shape): shapes in it}, sorted.
    """
    allowed = max(JOINED_FLOPS, JOINED_SHARE * sum(n * flops(*key) for key, n in counts.items()))
    numbers, members = dict(counts), {key: [key[1]] for key in counts}
    while True:
        pairs = []
        for a, b in itertools.combinations(sorted(numbers), 2):
            if a[0] == b[0] and len(a[1]) == len(b[1]):
                common = (a[0], tuple(map(max, a[1], b[1])))
                extra = sum(numbers[x] * (flops(*common) - flops(*x)) for x in (a, b))
                if extra <= allowed:
                    pairs.append((common not in (a, b), extra, common, a, b))
        if not pairs:
            return {key: sorted(members[key]) for key in sorted(members)}
        _, extra, common, *both = min(pairs)
        allowed -= extra
        n, shapes = sum(map(numbers.pop, both)), [x for key in both for x in members.pop(key)]
        numbers[common] = n + numbers.get(common, 0)
        members[common] = shapes + members.get(common, [])


def _pad(blocks: Array, shape: Shape) -> Array:
    """`[k, *smaller]` -> `[k, *shape]`, with zeros."""
    missing = [(0, d - s) for d, s in zip(shape, blocks.shape[1:], strict=True)]
    return jnp.pad(blocks, [(0, 0), *missing]) if any(m for _, m in missing) else blocks


def to_blocks(layout: Layout, leaves: Sequence[Array]) -> dict[str, Array]:
    """Cuts leaves into `{bucket: [n, *block]}`, float32."""
    return {
        name: jnp.concatenate([_pad(_cut(leaves, piece), b.shape) for piece in b.pieces])
        for name, b in layout.buckets.items()
    }


def _cut(leaves: Sequence[Array], piece: Piece) -> Array:
    """Returns the blocks of all leaves of a piece, `[n, *block]`."""
    x = jnp.stack([leaves[i].astype(jnp.float32).reshape(piece.shape) for i in piece.leaves])
    rank = len(piece.block)
    stop = [s + d for s, d in zip(piece.start, piece.box, strict=True)]
    x = lax.slice(x, (0, *piece.start), (len(x), *stop))
    x = x.reshape(len(x), *itertools.chain(*zip(piece.counts, piece.block, strict=True)))
    order = [0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2)]
    return x.transpose(order).reshape(-1, *piece.block[1:])


def some_blocks(
    bucket: Bucket, trees: Sequence[Sequence[Array]], wanted: Array, zeros: Array
) -> tuple[Array, ...]:
    """Reads blocks `wanted` `[k]` of a bucket, from each list of leaves: `[k, *block]`, float32.

    The result equals `to_blocks(...)[bucket][wanted]`, but nothing else is read. Blocks beyond the
    last one are `zeros`, which has the shape of a block.
    """
    readers: list[Callable[[Array], tuple[Array, ...]]] = []
    reader: list[int] = []  # of each block
    position: list[int] = []
    for piece in bucket.pieces:
        for i in piece.leaves:
            reader += [len(readers)] * piece.blocks_per_leaf
            position += range(piece.blocks_per_leaf)
            readers.append(partial(_read, [leaves[i] for leaves in trees], piece, bucket.shape))
    reader.append(len(readers))
    position.append(0)
    readers.append(lambda _: tuple(zeros for _ in trees))
    index = jnp.minimum(wanted, bucket.n)
    which, where = jnp.asarray(reader, jnp.int32)[index], jnp.asarray(position, jnp.int32)[index]
    return lax.map(lambda at: lax.switch(at[0], readers, at[1]), (which, where))


def _read(leaves: Sequence[Array], piece: Piece, shape: Shape, number: Array) -> tuple[Array, ...]:
    """Returns block `number` of a piece, from each of some leaves."""
    start: list[Array] = []
    rest = number
    for s, c, b in reversed(list(zip(piece.start, piece.counts, piece.block, strict=True))):
        start.insert(0, s + rest % c * b)
        rest = rest // c
    return tuple(
        _pad(
            lax.dynamic_slice(x.reshape(piece.shape), start, piece.block).astype(jnp.float32), shape
        )[0]
        for x in leaves
    )


def from_blocks(layout: Layout, blocks: Mapping[str, Array]) -> list[Array]:
    """The inverse of `to_blocks`, leaf by leaf, which spares a TPU a copy of each group of leaves.

    The blocks of a bucket may be followed by padding, and each may be split along its first
    dimension into several rows: `[m, d_0 / parts, ...]` with m >= n * parts.
    """
    boxes: list[dict[Shape, Array]] = [{} for _ in layout.shapes]
    for name, bucket in layout.buckets.items():
        x, start = blocks[name], 0
        parts = bucket.shape[0] // x.shape[1]
        for piece in bucket.pieces:
            for i in piece.leaves:
                stop = start + piece.blocks_per_leaf
                own = lax.slice_in_dim(x, start * parts, stop * parts)
                own = own.reshape(-1, *bucket.shape)
                boxes[i][piece.start] = _uncut(own, piece)
                start = stop
    leaves = []
    for shape, boxes_of_leaf in zip(layout.shapes, boxes, strict=True):
        leaf = _join(boxes_of_leaf) if boxes_of_leaf else jnp.zeros(shape, jnp.float32)
        leaves.append(leaf.reshape(shape))
    return leaves


def _uncut(blocks: Array, piece: Piece) -> Array:
    """`[blocks of one leaf, *padded block]` -> its box."""
    block = piece.block[1:]
    if blocks.shape[1:] != block:
        blocks = lax.slice(blocks, [0] * blocks.ndim, (len(blocks), *block))
    # A TPU moves whole tiles of 8 rows if the shapes show them. Otherwise it copies row by row.
    sizes: list[Shape] = [(b,) for b in piece.block]
    if len(block) > 1 and block[-2] % TILE_ROWS == 0:
        sizes[-2] = (block[-2] // TILE_ROWS, TILE_ROWS)
    x = blocks.reshape(*piece.counts, *itertools.chain(*sizes))
    order, at = [], len(piece.counts)
    for i, size in enumerate(sizes):
        order += [i, *range(at, at + len(size))]
        at += len(size)
    return x.transpose(order).reshape(piece.box)


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
