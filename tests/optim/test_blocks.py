import collections

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import shapes
from optim import blocks


@pytest.mark.parametrize(
    ("shape", "merged"),
    [
        ((3, 3, 128, 128), (9, 128, 128)),
        ((7, 7, 3, 64), (49, 3, 64)),
        ((1, 1, 64, 256), (64, 256)),
        ((2, 64, 3), (128, 3)),
        ((1024, 1024, 3, 3), (1024, 1024, 9)),
        ((2048, 1000), (2048, 1000)),
        ((1, 1), (1,)),
        ((1,), (1,)),
        ((5,), (5,)),
    ],
)
def test_small_neighbours_merge_left_to_right(shape, merged):
    assert blocks.merge_small_dims(shape, 128) == merged


def blocks_by_shape(layout):
    """{shape of a piece's blocks: their number}; the pieces before their buckets were joined."""
    counts = collections.Counter()
    for bucket in layout.buckets.values():
        for piece in bucket.pieces:
            counts[piece.block[1:]] += len(piece.leaves) * piece.blocks_per_leaf
    return counts


def test_resnet50_has_the_published_blocks_and_statistics():
    leaves = [s for part in shapes.resnet50().values() for w in part.values() for s in w.values()]
    assert len(leaves) == 161
    assert sum(int(np.prod(s)) for s in leaves) == 25_557_032
    layout = blocks.make_layout(leaves, block_size=128, merge=True)
    counts = blocks_by_shape(layout)
    sizes = collections.Counter()
    for block, n in counts.items():
        for d in block:
            sizes[d] += n
    assert sum(counts.values()) == sum(b.n for b in layout.buckets.values()) == 1385
    assert sizes == {128: 2287, 104: 17, 64: 35, 49: 1, 9: 79, 3: 1}
    assert sum(n for block, n in counts.items() if len(block) == 1) == 430
    assert len(layout.buckets) <= 5  # of eleven block shapes


some_leaves = st.lists(
    st.tuples(st.lists(st.sampled_from((0, 1, 3, 8, 9)), max_size=4).map(tuple), st.booleans()),
    min_size=1,
    max_size=4,
)


@settings(max_examples=12, deadline=None)
@given(some_leaves, st.sampled_from((1, 4, 8)), st.booleans(), st.sampled_from((8, 9)))
def test_joining_undoes_cutting(leaves, block_size, merge, largest_dim):
    """Of any leaves: scalars, stacks of layers, without elements, without preconditioner."""
    leaf_shapes, stacked = zip(*leaves, strict=True)
    layout = blocks.make_layout(
        leaf_shapes, block_size=block_size, merge=merge, largest_dim=largest_dim, stacked=stacked
    )
    values = [jnp.arange(1.0, np.prod(s) + 1).reshape(s) for s in leaf_shapes]
    values = [x + 1e4 * i for i, x in enumerate(values)]
    cut = blocks.to_blocks(layout, values)
    seen = []
    for name, x in cut.items():
        bucket = layout.buckets[name]
        assert x.shape == (bucket.n, *bucket.shape)
        assert not blocks.is_preconditioned(name) or max(bucket.shape) <= block_size
        own = [np.unique(block[block > 0] // 1e4) for block in np.asarray(x)]
        assert all(len(leaf) == 1 for leaf in own)  # a block is cut from one leaf
        seen += [(int(leaf[0]), int(t)) for leaf, t in zip(own, bucket.tensor, strict=True)]
    layers = collections.Counter(leaf for leaf, _ in set(seen))
    for i, (shape, is_stack) in enumerate(leaves):
        expected = 0 if 0 in shape else shape[0] if is_stack and shape else 1
        assert layers[i] == expected
    for x, y in zip(values, blocks.from_blocks(layout, cut), strict=True):
        np.testing.assert_array_equal(x, y)


def test_blocks_are_contiguous_boxes_of_the_merged_tensor(monkeypatch):
    monkeypatch.setattr(blocks, "JOINED_FLOPS", 0.0)
    monkeypatch.setattr(blocks, "JOINED_SHARE", 0.0)
    layout = blocks.make_layout([(5, 7)], block_size=3, merge=False)
    x = np.arange(35.0).reshape(5, 7)
    cut = blocks.to_blocks(layout, [jnp.asarray(x)])
    np.testing.assert_array_equal(cut["3x3"], [x[:3, :3], x[:3, 3:6]])
    np.testing.assert_array_equal(cut["2x1"], [x[3:, 6:]])


def test_joined_blocks_are_padded_with_zeros():
    layout = blocks.make_layout([(5, 7)], block_size=3, merge=False)
    assert list(layout.buckets) == ["3x3"]
    x = np.arange(1.0, 36).reshape(5, 7)
    cut = blocks.to_blocks(layout, [jnp.asarray(x)])["3x3"]
    wanted = np.zeros((3, 3))
    wanted[:2, :1] = x[3:, 6:]
    assert any(np.array_equal(block, wanted) for block in cut)


def test_a_layer_of_a_stack_has_the_blocks_that_it_has_alone():
    r = np.random.default_rng(0)
    x = jnp.asarray(r.normal(size=(4, 5, 7)), jnp.float32)
    whole = blocks.make_layout([x.shape], block_size=4, merge=True, stacked=[True])
    alone = blocks.make_layout([x.shape[1:]], block_size=4, merge=True)
    together = blocks.to_blocks(whole, [x])
    for layer in range(4):
        for name, cut in blocks.to_blocks(alone, [x[layer]]).items():
            own = whole.buckets[name].tensor == layer
            np.testing.assert_array_equal(together[name][own], cut)


@pytest.mark.parametrize("block", [(8, 8), (8, 3), (4, 8), (8,), (1,)])
def test_some_blocks_are_those_blocks_and_zeros_beyond_the_last(block, monkeypatch):
    monkeypatch.setattr(blocks, "JOINED_FLOPS", 0.0)
    monkeypatch.setattr(blocks, "JOINED_SHARE", 0.0)
    leaf_shapes = [(20, 35), (17,), (8, 16), (20, 35), (33,), (3, 8, 8)]
    layout = blocks.make_layout(
        leaf_shapes, block_size=8, merge=False, stacked=[False] * 5 + [True]
    )
    r = np.random.default_rng(0)
    trees = [[jnp.asarray(np.float32(r.normal(size=s))) for s in leaf_shapes] for _ in range(2)]
    name = "x".join(map(str, block))
    every = [np.asarray(blocks.to_blocks(layout, tree)[name]) for tree in trees]
    n = len(every[0])
    wanted = np.array([n - 1, 0, n // 2, n, n + 5])
    zeros = jnp.zeros(block)
    found = blocks.some_blocks(layout.buckets[name], trees, jnp.asarray(wanted), zeros)
    for rows, got in zip(every, found, strict=True):
        np.testing.assert_array_equal(got[:3], rows[wanted[:3]])
        np.testing.assert_array_equal(got[3:], np.zeros((2, *block)))


@pytest.mark.parametrize(
    ("counts", "joined"),
    [
        pytest.param(  # ResNet-50
            {(True, (128, 128)): 846, (True, (128, 104)): 16, (True, (64, 64)): 1},
            {(True, (128, 128)): [(64, 64), (128, 104), (128, 128)]},
            id="few beside many",
        ),
        pytest.param(
            {(True, (32, 8)): 3, (True, (8, 32)): 2, (True, (5,)): 1},
            {(True, (5,)): [(5,)], (True, (32, 32)): [(8, 32), (32, 8)]},
            id="a common shape that none has, and equal ranks only",
        ),
        pytest.param(
            {(True, (16,)): 3, (False, (16,)): 2},
            {(True, (16,)): [(16,)], (False, (16,)): [(16,)]},
            id="not across preconditioning",
        ),
        pytest.param(
            {(True, (128, 64)): 400, (True, (128, 128)): 400},
            {(True, (128, 64)): [(128, 64)], (True, (128, 128)): [(128, 128)]},
            id="too much padding",
        ),
    ],
)
def test_block_shapes_are_joined_where_padding_is_cheap(counts, joined):
    assert blocks.join(counts, blocks.flops) == joined
