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


def test_resnet50_has_the_published_blocks_and_statistics():
    leaves = [s for part in shapes.resnet50().values() for w in part.values() for s in w.values()]
    assert len(leaves) == 161
    assert sum(int(np.prod(s)) for s in leaves) == 25_557_032
    layout = blocks.make_layout(leaves, 128, True)
    rows = {block: len(layout.tensor_of_row(block)) for block in layout.buckets}
    sizes = collections.Counter()
    for block, n in rows.items():
        for d in block:
            sizes[d] += n
    assert sum(rows.values()) == 1385
    assert sizes == {128: 2287, 104: 17, 64: 35, 49: 1, 9: 79, 3: 1}
    assert sum(n for block, n in rows.items() if len(block) == 1) == 430


some_shapes = st.lists(
    st.lists(st.sampled_from((1, 3, 8, 9)), min_size=1, max_size=4).map(tuple),
    min_size=1,
    max_size=4,
)


@settings(max_examples=6, deadline=None)
@given(some_shapes, st.sampled_from((1, 4, 8)), st.booleans())
def test_joining_undoes_cutting(tensor_shapes, block_size, merge):
    layout = blocks.make_layout(tensor_shapes, block_size, merge)
    tensors = [jnp.arange(np.prod(s)).reshape(s) + 1e4 * i for i, s in enumerate(tensor_shapes)]
    rows = blocks.to_rows(layout, tensors)
    for block, x in rows.items():
        assert max(block) <= block_size
        owners = layout.tensor_of_row(block)
        assert x.shape == (len(owners), *block)
        assert np.array_equal(np.asarray(x).reshape(len(owners), -1)[:, 0] // 1e4, owners)
    for x, y in zip(tensors, blocks.from_rows(layout, rows), strict=True):
        np.testing.assert_array_equal(x, y)


def test_blocks_are_contiguous_boxes_of_the_merged_tensor():
    layout = blocks.make_layout([(5, 7)], 3, False)
    x = np.arange(35.0).reshape(5, 7)
    rows = blocks.to_rows(layout, [jnp.asarray(x)])
    np.testing.assert_array_equal(rows[3, 3], [x[:3, :3], x[:3, 3:6]])
    np.testing.assert_array_equal(rows[2, 1], [x[3:, 6:]])


@pytest.mark.parametrize("block", [(8, 8), (8, 3), (4, 8), (8,), (1,)])
def test_some_rows_are_those_rows_and_zeros_beyond_the_last(block):
    layout = blocks.make_layout([(20, 35), (17,), (8, 16), (20, 35), (33,)], 8, False)
    r = np.random.default_rng(0)
    trees = [[jnp.asarray(np.float32(r.normal(size=s))) for s in layout.shapes] for _ in range(2)]
    every = [np.asarray(blocks.to_rows(layout, tree)[block]) for tree in trees]
    n = len(every[0])
    wanted = np.array([n - 1, 0, n // 2, n, n + 5])
    found = blocks.some_rows(layout, block, trees, jnp.asarray(wanted))
    for rows, got in zip(every, found, strict=True):
        np.testing.assert_array_equal(got[:3], rows[wanted[:3]])
        np.testing.assert_array_equal(got[3:], np.zeros((2, *block)))
