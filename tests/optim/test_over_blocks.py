"""Any transformation on blocks: the updates of plain optax, on one device and on many."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import optim
from optim import over_blocks, sharding
from optim.over_blocks import Layout

SHAPES = {"w": (20, 29), "b": (13,), "s": (), "wide": (3, 41), "empty": (0, 4), "one": (1,)}


def tree(seed, shapes=None, scale=1.0):
    r = np.random.default_rng(seed)
    return {k: np.float32(scale * r.normal(size=s)) for k, s in (shapes or SHAPES).items()}


def adam_on_blocks(axis_name=None):
    inner = optax.adam(0.1)
    return over_blocks(inner, block_size=8, largest_dim=40, axis_name=axis_name)


def run(update, params, state, n=3):
    for i in range(n):
        updates, state = update(tree(i + 1), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@functools.cache
def plain_adam():
    tx = optax.adam(0.1)
    return run(jax.jit(tx.update), tree(0), tx.init(tree(0)))[0]


def assert_close(got, wanted, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=atol), got, wanted)


def test_an_elementwise_transformation_on_blocks_is_the_plain_one():
    tx = adam_on_blocks()
    assert_close(run(jax.jit(tx.update), tree(0), tx.init(tree(0)))[0], plain_adam())


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (AxisType.Auto, P("x")),
        (AxisType.Explicit, P("x")),
        pytest.param(AxisType.Auto, P(), marks=pytest.mark.slow),
        pytest.param(AxisType.Explicit, P(), marks=pytest.mark.slow),
    ],
)
def test_on_a_mesh_each_device_keeps_its_share_and_the_updates_are_the_plain_ones(kind, spec):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind, kind))

    def place(values):
        def one(x):
            divides = x.ndim and x.shape[0] and x.shape[0] % 4 == 0
            return jax.device_put(x, NamedSharding(mesh, spec if divides else P()))

        return jax.tree.map(one, values)

    tx = adam_on_blocks()
    update = jax.jit(lambda g, state, w: tx.update(place(g), state, w))
    params, state = run(update, place(tree(0)), tx.init(place(tree(0))))
    assert_close(params, plain_adam())
    rows = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, sharding.Sharded))
    rows = [x for x in rows if isinstance(x, sharding.Sharded)]
    assert any(x.n > 8 for x in rows)
    for x in rows:
        share = x.rows.addressable_shards[0].data
        assert len(share) == sharding.rows_per_device(x.n, 8)
    alone = tx.init(tree(0))
    assert jax.tree.structure(sharding.canonical(state)) == jax.tree.structure(alone)
    shapes = jax.tree.map(jnp.shape, (sharding.canonical(state), alone))
    assert shapes[0] == shapes[1]


def test_a_run_moves_between_meshes_by_its_canonical_state():
    tx = adam_on_blocks()
    params, state = tree(0), tx.init(tree(0))
    for i, n in enumerate((8, 2, 4)):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:n]), ("x",))
        padded = sharding.pad(state, mesh)
        jax.tree.map(np.testing.assert_array_equal, sharding.canonical(padded), state)
        on_mesh = jax.device_put(params, NamedSharding(mesh, P()))
        updates, padded = jax.jit(tx.update)(tree(i + 1), padded, on_mesh)
        state = jax.tree.map(np.asarray, sharding.canonical(padded))
        params = jax.tree.map(np.asarray, optax.apply_updates(on_mesh, updates))
    assert_close(params, plain_adam())


@pytest.mark.parametrize("keeps_whole_state", [True, False])
def test_shard_map_with_its_defaults_gives_the_plain_updates(keeps_whole_state):
    tx, mesh = adam_on_blocks("x"), jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    state = tx.init(tree(0)) if keeps_whole_state else sharding.pad(tx.init(tree(0)), mesh)
    specs = P() if keeps_whole_state else sharding.partition_specs(state, "x")
    update = jax.shard_map(tx.update, mesh=mesh, in_specs=(P(), specs, P()), out_specs=(P(), specs))
    assert_close(run(jax.jit(update), tree(0), state)[0], plain_adam())


@pytest.mark.parametrize("n_devices", [1, 8])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_moves_counts_only(n_devices, bad):
    tx = adam_on_blocks()
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:n_devices]), ("x",))
    params, state = run(jax.jit(tx.update), tree(0), sharding.pad(tx.init(tree(0)), mesh), 1)
    broken = tree(2)
    broken["wide"][2, 40] = bad
    updates, after = jax.jit(tx.update)(broken, state, params)
    assert not any(np.any(u) for u in jax.tree.leaves(updates))
    assert int(after.skipped_updates) == 1 + int(state.skipped_updates) == 1
    for x, y in zip(jax.tree.leaves(state.inner), jax.tree.leaves(after.inner), strict=True):
        counts = jnp.issubdtype(x.dtype, jnp.integer)
        np.testing.assert_array_equal(y, x + 1 if counts else x)


@pytest.mark.parametrize("n_devices", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_layers_of_a_stack_are_updated_as_separate_leaves(n_devices):
    r = np.random.default_rng(0)
    stack = np.float32(r.normal(size=(3, 6, 5)))
    grads = np.float32(r.normal(size=(3, 6, 5)) * [[[1]], [[10]], [[100]]])
    options = {"matrix_epsilon": 1e-2, "block_size": 4, "start_preconditioning_step": 0}
    together = optim.distributed_shampoo(0.1, stacked_mask=True, **options)
    apart = optim.distributed_shampoo(0.1, **options)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:n_devices]), ("x",))
    params = jax.device_put({"w": stack}, NamedSharding(mesh, P()))
    state = together.init(params)
    updates, _ = jax.jit(together.update)({"w": grads}, state, params)
    layers, layer_grads = list(stack), list(grads)
    expected, _ = jax.jit(apart.update)(layer_grads, apart.init(layers), layers)
    scale = np.abs(grads).max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(updates["w"] / scale, np.stack(expected) / scale, atol=2e-5)
    whole, _ = jax.jit(apart.update)({"w": grads}, apart.init({"w": stack}), {"w": stack})
    assert np.abs(whole["w"] / scale - np.stack(expected) / scale).max() > 1e-3  # other blocks


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e20])
@pytest.mark.parametrize("n_devices", [1, 8])
def test_tensor_norms_are_those_of_whole_tensors(scale, n_devices):
    shapes = {k: s for k, s in SHAPES.items() if k != "empty"}
    found = {}

    def update(grads, state, params=None, *, layout: Layout, **_):
        norms, twice = layout.tensor_norms(grads, jax.tree.map(lambda x: 2 * x, grads))
        ratio = {k: layout.broadcast(k, twice[k] / norms[k]) for k in grads}
        found["ratio"] = ratio
        return {
            k: jnp.ones_like(x) * layout.broadcast(k, norms[k]) * ratio[k] for k, x in grads.items()
        }, state

    inner = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    tx = over_blocks(inner, block_size=8, largest_dim=40, reads_params=False)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:n_devices]), ("x",))
    grads = jax.device_put(tree(0, shapes, scale), NamedSharding(mesh, P()))
    updates, _ = jax.jit(tx.update)(grads, tx.init(grads), grads)
    for k, g in tree(0, shapes, scale).items():
        wanted = 2 * np.linalg.norm(np.float64(g))
        np.testing.assert_allclose(updates[k], np.full(g.shape, wanted), rtol=1e-5)


def test_switch_at_uses_one_update_and_then_the_other():
    tx = optim.switch_at(2, optax.sgd(1.0), optax.trace(0.5))
    state, g = tx.init({"x": jnp.zeros(1)}), {"x": jnp.ones(1)}
    seen = []
    for _ in range(4):
        updates, state = tx.update(g, state)
        seen.append(float(updates["x"][0]))
    assert seen == [-1.0, -1.0, 1.75, 1.875]  # the trace runs from the first update on


def test_inject_hyperparams_without_static_args_says_what_is_missing():
    tx = optax.inject_hyperparams(optim.distributed_shampoo)(learning_rate=0.1)
    with pytest.raises(ValueError, match=r"static_args"):
        tx.init(tree(0))


def test_no_rematerialization_is_reported_on_a_mesh(capfd):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    params = jax.device_put({"w": np.ones((16, 24), np.float32)}, NamedSharding(mesh, P("x")))
    tx = optim.distributed_shampoo(0.1, block_size=4, matrix_epsilon=1e-2)
    jax.jit(tx.update).lower(params, tx.init(params), params).compile()
    assert "remateriali" not in capfd.readouterr().err
