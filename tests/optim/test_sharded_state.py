"""One, two and eight devices; canonical, sharded and replicated states: the same update."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import checkpoint
import optim
from optim import sharding
from optim.shampoo import ScaleByShampooState
from step import TrainState

SHAPES = {"kernel": (40, 24), "bias": (24,), "scale": ()}  # 15, 3 and 0 rows of block size 8
TX = optim.distributed_shampoo(
    lambda step: 0.1 / (1 + step),
    beta2=0.85,
    matrix_epsilon=1.5e-5,
    exponent_override=4,
    weight_decay=1e-3,
    block_size=8,
    batch_axis_name="batch",
)


def tree(seed):
    r = np.random.default_rng(seed)
    return {k: np.float32(r.normal(size=s)) for k, s in SHAPES.items()}


GRADS = [tree(i) for i in range(1, 5)]


@functools.cache
def sharded_step(n_devices):
    def step(without, sharded, params, g):
        state = sharding.attach(without, sharded)
        updates, state = TX.update(g, state, params)
        without, sharded = sharding.detach(state)
        return without, sharded, optax.apply_updates(params, updates)

    return jax.pmap(
        step,
        axis_name="batch",
        in_axes=(None, 0, None, None),
        out_axes=(None, 0, None),
        devices=jax.devices()[:n_devices],
    )


def run_sharded(n_devices, params, state, grads):
    without, sharded = sharding.split(state, n_devices)
    for g in grads:
        without, sharded, params = sharded_step(n_devices)(without, sharded, params, g)
    return params, sharding.merge(without, sharded)


@functools.cache
def alone():
    params, state = tree(0), TX.init(tree(0))
    update = jax.jit(TX.update)
    for g in GRADS:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def statistics(state):
    is_shampoo = lambda x: isinstance(x, ScaleByShampooState)  # noqa: E731
    found = jax.tree.leaves(state, is_leaf=is_shampoo)
    return sharding.unwrap(next(x for x in found if is_shampoo(x)).statistics)


def assert_close(a, b, tolerance=2e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance, rtol=1e-5), a, b)


@pytest.mark.parametrize("n_devices", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_sharded_rows_give_the_update_of_one_device(n_devices):
    params, state = run_sharded(n_devices, tree(0), TX.init(tree(0)), GRADS)
    assert_close(params, alone()[0])
    assert jax.tree.structure(state) == jax.tree.structure(alone()[1])
    assert_close(statistics(state), statistics(alone()[1]))


def test_a_replicated_canonical_state_gives_the_update_of_one_device():
    def step(state, params, g, _):
        updates, state = TX.update(g, state, params)
        return state, optax.apply_updates(params, updates)

    pmapped = jax.pmap(step, axis_name="batch", in_axes=(None, None, None, 0), out_axes=0)
    params, state = tree(0), TX.init(tree(0))
    for g in GRADS:
        states, every = pmapped(state, params, g, np.zeros(8))
        params, state = jax.tree.map(lambda x: x[0], (every, states))
        jax.tree.map(lambda x: np.testing.assert_array_equal(x[1:], x[:-1]), (every, states))
    assert_close(params, alone()[0])
    assert_close(sharding.unwrap(state), sharding.unwrap(alone()[1]), 2e-4)


def test_a_run_moves_by_checkpoint_from_eight_devices_to_one_to_four(tmp_path):
    def through_a_checkpoint(step, params, state):
        checkpoints = checkpoint.Checkpoints(tmp_path / str(step), keep=1)
        placed = TrainState(jnp.int32(step), params, {}, *sharding.split(state, 8))
        checkpoints.save(step, placed, {})
        checkpoints.close()
        template = TrainState(jnp.int32(0), tree(0), {}, TX.init(tree(0)), {})
        restored, _ = checkpoint.Checkpoints(tmp_path / str(step), 1).restore_latest(template)
        jax.tree.map(np.testing.assert_array_equal, restored.opt_state, state)
        return restored.params, restored.opt_state

    at_two = through_a_checkpoint(2, *run_sharded(8, tree(0), TX.init(tree(0)), GRADS[:2]))
    straight, _ = run_sharded(8, *at_two, GRADS[2:3])
    on_four, _ = run_sharded(4, *at_two, GRADS[2:3])
    updates, state = jax.jit(TX.update)(GRADS[2], at_two[1], at_two[0])
    on_one = optax.apply_updates(at_two[0], updates)
    assert_close(on_one, straight)
    assert_close(on_four, straight)
    params, _ = run_sharded(4, *through_a_checkpoint(3, on_one, state), GRADS[3:])
    assert_close(params, alone()[0])


@pytest.mark.parametrize("n_devices", [1, 2, 4, 8, 16])
def test_merging_undoes_splitting_bit_by_bit(n_devices):
    state = alone()[1]
    without, sharded = sharding.split(state, n_devices)
    assert all(x.shape[0] == n_devices for x in jax.tree.leaves(sharded))
    again = sharding.merge(without, sharded)
    jax.tree.map(np.testing.assert_array_equal, again, state)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (8, 1), (9, 2), (16, 2), (1385, 174)])
def test_devices_own_no_more_rows_than_needed(n, k):
    assert sharding.rows_per_device(n, 8) == k


def test_padding_rows_are_identity():
    state = sharding.Sharded(jnp.full((3, 2, 2), 5.0), 3), sharding.Sharded(jnp.full(3, 5.0), 3)
    _, rows = sharding.split(state, 2)
    np.testing.assert_array_equal(rows["0"][1], [np.full((2, 2), 5.0), np.eye(2)])
    np.testing.assert_array_equal(rows["1"], [[5.0, 5.0], [5.0, 1.0]])


def test_other_optimizers_own_nothing():
    state = optax.adam(0.1).init(tree(0))
    without, sharded = sharding.split(state, 8)
    assert sharded == {}
    jax.tree.map(np.testing.assert_array_equal, sharding.merge(without, sharded), state)


def test_rows_of_another_number_of_devices_are_refused():
    without, sharded = sharding.split(TX.init(tree(0)), 2)
    state = sharding.attach(without, jax.tree.map(lambda x: x[0], sharded))
    with pytest.raises(ValueError, match="share of one of 1 devices"):
        TX.update(GRADS[0], state, tree(0))


def test_a_missing_axis_is_no_error_for_a_whole_state():
    params = {"w": jnp.ones(3)}
    updates = jax.eval_shape(TX.update, params, TX.init(params), params)[0]
    assert updates["w"].shape == (3,)


@pytest.mark.parametrize(
    ("n", "block"),
    [
        pytest.param(17, (4, 3), id="all rows"),
        pytest.param(8, (3, 3), id="one row each"),
        pytest.param(3, (6, 2), id="in parts"),
        pytest.param(4, (5, 2), id="a first dimension without parts"),
        pytest.param(2, (5, 2), id="as a sum"),
        pytest.param(1, (5,), id="one row"),
    ],
)
def test_what_each_device_owns_is_gathered_in_order(n, block):
    rows = np.float32(np.random.default_rng(n).normal(size=(n, *block)))
    k = sharding.rows_per_device(n, 8)
    padding = np.full((8 * k - n, *block), np.nan, np.float32)
    sharded = np.concatenate([rows, padding]).reshape(8, k, *block)
    devices = sharding.Devices(8, "batch")
    for transform in (jax.pmap, jax.vmap):
        gather = transform(lambda x: devices.gather_canonical(x, n), axis_name="batch")
        for got in np.asarray(gather(sharded)):
            np.testing.assert_array_equal(got, rows)


def test_few_large_rows_on_many_devices_are_not_gathered_with_their_padding():
    """79 rows on 256 devices would move 256, were they not dealt out in three parts each."""

    def moved(n, block, n_devices):
        mesh = jax.sharding.AbstractMesh((n_devices,), ("batch",))
        one = jax.shard_map(
            lambda x: sharding.Devices(n_devices, "batch").gather(x, n),
            mesh=mesh,
            in_specs=jax.P("batch"),
            out_specs=jax.P(),
            check_vma=False,
        )
        rows = jax.ShapeDtypeStruct((n_devices, *block), jnp.float32)
        return str(jax.make_jaxpr(one)(rows))

    parts = moved(79, (9, 128, 128), 256)
    assert parts.count("ppermute[") == 3
    assert "f32[256,3,128,128] = all_gather" in parts
    few = moved(3, (9, 64, 64), 256)
    assert "all_gather" not in few
    assert "f32[3,9,64,64] = psum" in few
