"""Which leaves are weights; and norms at the ends of float32, also split over devices."""

import re
from typing import Any, NamedTuple

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from optim import lars, masks, norms
from optim.norms import norm


def test_names_of_biases_and_scales_decide():
    params = {
        "scale_of_bias": {"kernel": 0, "bias": 0},
        "bn": {"scale": 0, "bias": 0},
        "embedding": 0,
        "value": {"value": np.ones((2, 2))},
    }
    assert masks.decay_mask(params) == {
        "scale_of_bias": {"kernel": True, "bias": False},
        "bn": {"scale": False, "bias": False},
        "embedding": True,
        "value": {"value": True},
    }


class Block(nnx.Module):
    """Stacked layers: their biases and scales have rank two, which would be that of a weight."""

    def __init__(self):
        rngs = nnx.Rngs(0).fork(split=3)
        self.embed = nnx.Embed(4, 3, rngs=nnx.Rngs(0))
        self.layers = nnx.vmap(lambda rngs: nnx.Linear(3, 3, rngs=rngs))(rngs)
        self.norms = nnx.List(
            [nnx.BatchNorm(3, rngs=nnx.Rngs(0)), nnx.LayerNorm(3, rngs=nnx.Rngs(0))]
        )


class Scanned(nn.Module):
    """As above, in linen, with every parameter in a box."""

    @nn.compact
    def __call__(self, x):
        def boxed(init, *axes):
            return nn.with_partitioning(init, axes)

        ones = nn.initializers.ones_init()
        dense = nn.vmap(
            nn.Dense,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,
            axis_size=3,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        x = dense(2, kernel_init=boxed(ones, None, "m"), bias_init=boxed(ones, "m"))(x)
        return nn.LayerNorm(scale_init=boxed(ones, "m"))(x)


def by_path(mask):
    """{the path without boxes: whether it is a weight}."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value"): bool(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(mask)
    }


FLAX_NAMES = {"bias": False, "scale": False, "kernel": True, "embedding": True}


@pytest.mark.parametrize(
    ("params", "n"),
    [
        (nnx.state(Block(), nnx.Param), 7),
        (nnx.to_pure_dict(nnx.state(Block(), nnx.Param)), 7),
        (Scanned().init(jax.random.key(0), jnp.ones((2, 3)))["params"], 4),
        (flax.core.freeze(nn.unbox(Scanned().init(jax.random.key(0), jnp.ones((2, 3))))), 4),
    ],
    ids=["nnx", "pure", "partitioned", "frozen"],
)
def test_weights_of_flax_modules(params, n):
    mask = masks.decay_mask(params)
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    found = by_path(mask)
    assert len(found) == n
    assert found == {path: FLAX_NAMES[path.split("/")[-1]] for path in found}


class Positional(NamedTuple):
    weight: Any
    bias: Any


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"net/~/batchnorm": {"scale": (3, 4), "offset": (3, 4)}}, [False, False]),  # stacked
        ({"net/~/linear": {"b": (3, 4), "w": (3,)}}, [False, True]),
        ([[(3, 4), (4,)], (), ((2, 3, 4),)], [True, False, False, True]),
        ({"scale_net": [(3, 4), (4,)]}, [True, False]),
        ({1: (3, 4), 2: (4,)}, [True, False]),
        (Positional((3, 4), (3, 4)), [True, False]),
        ({"layer_norm": Positional((4,), (4,))}, [False, False]),  # equinox: its scale is `weight`
        ((3, 4), [True]),
    ],
)
def test_weights_of_other_trees(params, expected):
    def is_shape(x):
        return isinstance(x, tuple) and all(isinstance(d, int) for d in x)

    params = jax.tree.map(lambda shape: jnp.ones(shape), params, is_leaf=is_shape)
    assert jax.tree.leaves(masks.decay_mask(params)) == expected


def test_lars_leaves_nnx_scales_alone():
    params = nnx.state(nnx.BatchNorm(3, rngs=nnx.Rngs(0)), nnx.Param)
    tx = lars(learning_rate=1.0, momentum=0.9, weight_decay=1e-4)
    updates, _ = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)
    for update in jax.tree.leaves(updates):
        np.testing.assert_array_equal(update, -1.0)


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [
        (None, (True, True, True)),
        (False, (False, False, False)),
        ({"bn": False, "head": True}, (False, False, True)),
        ({"bn": {"bias": True, "scale": False}, "head": {"kernel": True}}, (True, False, True)),
        (masks.decay_mask, (False, False, True)),
    ],
)
def test_a_mask_may_be_a_prefix(mask, wanted):
    params = {"bn": {"bias": 0, "scale": 0}, "head": {"kernel": 0}, "frozen": None}
    if isinstance(mask, dict):
        mask = mask | {"frozen": True}
    assert tuple(jax.tree.leaves(masks.resolve(mask, params))) == wanted


@pytest.mark.parametrize("mask", [{"a": True}, {"a": True, "c": False}, {"a": {"x": True}, "b": 1}])
def test_a_mask_of_another_tree_is_refused_not_shifted(mask):
    with pytest.raises(ValueError, match="tree structure"):
        masks.resolve(mask, {"a": 0, "b": 0})


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_a_norm_is_exact_where_its_squares_are_not_representable(scale):
    x = np.float32(np.array([[3.0, 0.0], [4.0, 0.0]]) * scale)
    assert norm(x) == pytest.approx(5 * scale, rel=1e-6)
    np.testing.assert_allclose(norm(x, axis=(0,)), [5 * scale, 0], rtol=1e-6)


def test_the_norm_of_nothing_is_zero_and_of_a_nan_is_one():
    assert norm(np.zeros((0, 3), np.float32)) == 0
    assert np.isnan(norm(np.float32([1, np.nan])))
    assert not np.isfinite(norm(np.float32([1, np.inf])))


SHAPES = [(), (0, 3), (1, 4), (2, 9), (100,), (3, 3, 8, 5), (1, 1, 17, 3), (24, 2), (7, 8, 9)]
EXPONENTS = [0, 0, -25, 20, -3, -19, 18, 0, 37]


def over_pmap(tensors):
    return jax.pmap(lambda _: norms.norms(tensors, "batch"), axis_name="batch")(np.zeros(8))


def over_shard_map(tensors):
    mesh = jax.make_mesh((8,), ("batch",))
    run = jax.shard_map(
        lambda x: norms.norms(x, "batch"), mesh=mesh, in_specs=P(), out_specs=P()
    )  # fmt: skip
    return jax.jit(run)(tensors)[None]


def over_nothing(tensors):
    return jax.jit(lambda x: norms.norms(x, "batch"))(tensors)[None]


@pytest.mark.parametrize("over", [over_pmap, over_shard_map, over_nothing])
def test_norms_split_over_devices_are_those_of_whole_tensors(over):
    r = np.random.default_rng(0)
    tensors = [
        np.float32(r.normal(size=s) * 10.0**e) for s, e in zip(SHAPES, EXPONENTS, strict=True)
    ]
    expected = [np.linalg.norm(np.float64(x).ravel()) for x in tensors]
    bad = [np.ones((9, 2), np.float32) for _ in range(2)]
    bad[0][8, 0], bad[1][0, 0] = np.nan, np.inf
    for result in over([*tensors, *bad]):
        np.testing.assert_allclose(result[:-2], expected, rtol=1e-6)
        assert not np.any(np.isfinite(result[-2:]))


@pytest.mark.parametrize("over", [over_pmap, over_shard_map])
def test_each_device_reads_a_slice(over):
    """No reduction of the program has an operand as large as the tensor."""
    x = jnp.ones((64, 6))
    text = str(jax.make_jaxpr(over)([x]))
    assert "reduce_sum" in text
    assert re.search(r":f32\[8,6\]\S* = dynamic_slice", text)
    assert not [line for line in text.splitlines() if "reduce_" in line and "f32[64" in line]


def test_no_tensors_have_no_norms():
    assert over_pmap([]).shape == (8, 0)
    params = {"bias": jnp.ones(2)}
    tx = lars(1.0, momentum=0.9)
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_array_equal(optax.apply_updates(params, updates)["bias"], 0.0)
