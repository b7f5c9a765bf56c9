"""Each optimizer on other devices, in other trees and inside wrappers: the parameters of plain jit.

The reference is always a Python loop over a jitted step on a dict. To cover another registered
optimizer, add its hyperparameters to `HYPERPARAMETERS`.
"""

import functools
from typing import Any, NamedTuple

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import optim
from configs import optimizers

HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "lars": {"momentum": 0.9, "weight_decay": 0.1, "trust_coefficient": 0.3},
    "nesterov": {"momentum": 0.9, "weight_decay": 0.1},
    "sm3": {"momentum": 0.9, "weight_decay": 0.1},
    "shampoo": {  # a large ridge: rounding then hardly depends on how roots are batched
        "matrix_epsilon": 1e-2,
        "block_size": 4,
        "weight_decay": 0.1,
        "no_preconditioning_for_layers_with_dim_gt": 15,  # of the dense kernel [16, 5]
    },
}
STATIC = {"shampoo": optim.shampoo.STATIC_ARGS}  # static_args for optax.inject_hyperparams
TOLERANCE = {"shampoo": 2e-5}
N_STEPS = 3
SHARDED = {"bn": {"bias": P(), "scale": P()}, "conv": {"kernel": P()}}
SHARDED["dense"] = {"bias": P(), "kernel": P("batch", None)}


@pytest.fixture(
    params=[
        pytest.param(n, marks=pytest.mark.slow if n == "shampoo" else ()) for n in HYPERPARAMETERS
    ]
)
def name(request):
    return request.param


def schedule(step):
    return 0.3 / (1.0 + step)


@functools.cache
def optimizer(name):
    return optimizers.BUILDERS[name](learning_rate=schedule, **HYPERPARAMETERS[name])


def plain_params():
    r = np.random.default_rng(0)
    shapes = {"bn": {"bias": (5,), "scale": (5,)}, "conv": {"kernel": (3, 3, 2, 4)}}
    shapes["dense"] = {"bias": (5,), "kernel": (16, 5)}

    def is_shape(x):
        return isinstance(x, tuple)

    return jax.tree.map(lambda s: jnp.float32(r.normal(size=s)), shapes, is_leaf=is_shape)


def gradients(params, i):
    return jax.tree.map(lambda w: jnp.cos(3 * w + i).astype(w.dtype), params)


def step(tx, carry, i):
    params, state = carry
    updates, state = tx.update(gradients(params, i), state, params)
    return (optax.apply_updates(params, updates), state), None


def loop(tx, params, jitted_step):
    carry = params, tx.init(params)
    for i in range(N_STEPS):
        carry, _ = jitted_step(carry, jnp.float32(i))
    return carry[0]


def scan(tx, params):
    carry = params, tx.init(params)
    return lax.scan(functools.partial(step, tx), carry, jnp.arange(N_STEPS, dtype=jnp.float32))[0][
        0
    ]


@functools.cache
def expected(name):
    """The leaves of the parameters after `N_STEPS` steps."""
    tx = optimizer(name)
    return jax.tree.leaves(loop(tx, plain_params(), jax.jit(functools.partial(step, tx))))


def assert_expected(name, params):
    rtol = TOLERANCE.get(name, 2e-6)
    for got, right in zip(jax.tree.leaves(params), expected(name), strict=True):
        np.testing.assert_allclose(got, right, rtol=rtol, atol=rtol)


def mesh(axis_type=AxisType.Auto):
    return jax.make_mesh((8,), ("batch",), (axis_type,))


def place(params, mesh):
    return jax.tree.map(lambda w, s: jax.device_put(w, NamedSharding(mesh, s)), params, SHARDED)


# Devices and transformations of jax


def pmap(tx, params):
    run = jax.pmap(lambda w, _: scan(tx, w), axis_name="batch", in_axes=(None, 0))
    return replicas(run(params, np.zeros(8)))


def replicas(stacked):
    """The first of 8 equal results."""
    jax.tree.map(
        lambda x: np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape)), stacked
    )
    return jax.tree.map(lambda x: x[7], stacked)


def shard_map(tx, params):
    run = jax.shard_map(lambda w: scan(tx, w), mesh=mesh(), in_specs=P(), out_specs=P())
    return jax.jit(run)(params)


def auto_mesh(tx, params):
    with jax.set_mesh(mesh()):
        return jax.jit(lambda w: scan(tx, w))(place(params, mesh()))


def explicit_mesh(tx, params):
    with jax.set_mesh(mesh(AxisType.Explicit)):
        after = jax.jit(lambda w: scan(tx, w))(place(params, jax.sharding.get_mesh()))
        assert jax.typeof(after["dense"]["kernel"]).sharding.spec == P("batch", None)
        return after


def explicit_mesh_step_by_step(tx, params):
    with jax.set_mesh(mesh(AxisType.Explicit)):
        placed = place(params, jax.sharding.get_mesh())
        return loop(tx, placed, jax.jit(functools.partial(step, tx)))


def vmap_with_axis_name(tx, params):
    run = jax.vmap(lambda _: scan(tx, params), axis_name="batch")
    return replicas(jax.jit(run)(jnp.zeros(8)))


def vmap_of_members(tx, params):
    members = jax.tree.map(lambda w: jnp.stack([w, 2 * w]), params)
    return jax.tree.map(lambda x: x[0], jax.jit(jax.vmap(lambda w: scan(tx, w)))(members))


def donation(tx, params):
    jitted_step = jax.jit(functools.partial(step, tx), donate_argnums=0)
    params = jax.tree.map(jnp.copy, params)
    after = loop(tx, params, jitted_step)
    assert jax.tree.leaves(params)[0].is_deleted()
    return after


def x64(tx, params):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda w: jnp.asarray(w, jnp.float64), params)
        state = tx.init(wide)
        updates, after = jax.jit(tx.update)(wide, state, wide)
        assert {x.dtype for x in jax.tree.leaves(updates)} == {np.dtype("float64")}
        for tree in (state, after):
            assert {str(x.dtype) for x in jax.tree.leaves(tree)} <= {"float32", "int32"}
        return jax.jit(lambda w: scan(tx, w))(params)


def some_slow(*functions, slow):
    """Parameters, of which the last are run by `make test-slow` only."""
    return [*functions, *(pytest.param(f, marks=pytest.mark.slow) for f in slow)]


PLACEMENTS = some_slow(
    pmap,
    shard_map,
    auto_mesh,
    explicit_mesh,
    x64,
    slow=[explicit_mesh_step_by_step, vmap_with_axis_name, vmap_of_members, donation],
)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda f: f.__name__)
def test_placement_does_not_change_the_parameters(name, placement):
    assert_expected(name, placement(optimizer(name), plain_params()))


# Trees. The leaves of all of them are in the same order.


class Net(NamedTuple):
    bn_bias: Any
    bn_scale: Any
    conv_kernel: Any
    dense_bias: Any
    dense_kernel: Any


class NnxNet(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(2, 4, (3, 3), use_bias=False, rngs=rngs)
        self.dense = nnx.Linear(16, 5, rngs=rngs)
        self.bn = nnx.BatchNorm(5, rngs=rngs)

    def __call__(self, x):
        return self.bn(self.dense(self.conv(x).reshape(len(x), 16)))


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        def boxed(init, *axes):
            return nn.with_partitioning(init, axes)

        ones = nn.initializers.ones_init()
        kernel = boxed(ones, None, None, None, "m")
        x = nn.Conv(4, (3, 3), use_bias=False, kernel_init=kernel, name="conv")(x)
        kernel, bias = boxed(ones, None, "m"), boxed(ones, "m")
        x = nn.Dense(5, kernel_init=kernel, bias_init=bias, name="dense")(x.reshape(len(x), 16))
        norm = functools.partial(nn.BatchNorm, scale_init=bias, bias_init=bias)
        return norm(use_running_average=False, name="bn")(x)


IMAGES = jnp.ones((2, 2, 2, 2))
TREES = {
    "list": lambda: [0.0] * 5,
    "tuple": lambda: ((0.0, 0.0), (0.0, [0.0, 0.0])),
    "NamedTuple": lambda: Net(*[0.0] * 5),
    "FrozenDict": lambda: flax.core.freeze(plain_params()),
    "nnx": lambda: nnx.state(NnxNet(), nnx.Param),
    "partitioned": lambda: LinenNet().init(jax.random.key(0), IMAGES)["params"],
    "haiku": lambda: {
        "net/~/bn": {"offset": 0.0, "scale": 0.0},
        "net/~/conv": {"w": 0.0},
        "net/~/dense": {"b": 0.0, "w": 0.0},
    },
}


def program(tx, structure):
    """Initialization and an update as text: leaves of gradients and parameters to leaves."""

    def run(grads, params):
        params = jax.tree.unflatten(structure, params)
        updates, state = tx.update(jax.tree.unflatten(structure, grads), tx.init(params), params)
        assert jax.tree.structure(updates) == structure
        return jax.tree.leaves((updates, state))

    return str(jax.make_jaxpr(run)(*2 * [jax.tree.leaves(plain_params())]))


@pytest.mark.parametrize("tree", TREES)
def test_tree_does_not_change_the_program(name, tree):
    tx = optimizer(name)
    plain = program(tx, jax.tree.structure(plain_params()))
    assert program(tx, jax.tree.structure(TREES[tree]())) == plain


@pytest.mark.parametrize("name", optimizers.BUILDERS)
def test_nnx_optimizer_trains(name):
    tx = optimizers.BUILDERS[name](learning_rate=0.05, **HYPERPARAMETERS.get(name, {}))
    model, x = NnxNet(), jax.random.normal(jax.random.key(1), (8, 2, 2, 2))
    target, trainer = x.reshape(8, 8)[:, :5], nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def train(model, trainer):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - target) ** 2))(model)
        trainer.update(model, grads)
        return loss

    losses = [float(train(model, trainer)) for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]


# Wrappers of optax


def injected(name, tx):
    factory = optax.inject_hyperparams(optimizers.BUILDERS[name], static_args=STATIC.get(name, ()))
    return factory(learning_rate=schedule, **HYPERPARAMETERS[name])


def finite(name, tx):
    return optax.apply_if_finite(tx, 5)


def multi_transform(name, tx):
    labels = {"bn": "own", "conv": "own", "dense": "copy"}
    return optax.multi_transform({"own": tx, "copy": optimizer(name)}, labels)


def masked(name, tx):
    halves = [{"bn": first, "conv": first, "dense": not first} for first in (True, False)]
    return optax.chain(*(optax.masked(tx, half) for half in halves))


WRAPPERS = some_slow(injected, multi_transform, slow=[finite, masked])


@pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda f: f.__name__)
def test_wrapper_does_not_change_the_parameters(name, wrap):
    tx = wrap(name, optimizer(name))
    assert_expected(name, loop(tx, plain_params(), jax.jit(functools.partial(step, tx))))


def test_multi_steps_averages_gradients(name):
    tx = optax.MultiSteps(optimizer(name), 2)
    jitted_step = jax.jit(functools.partial(step, tx))
    carry = plain_params(), tx.init(plain_params())
    for i in range(2 * N_STEPS):
        carry, _ = jitted_step(carry, jnp.float32(i // 2))
    assert_expected(name, carry[0])


def test_tree_map_params_finds_the_arrays(name):
    state = optimizer(name).init(plain_params())
    marks = optax.tree_utils.tree_map_params(
        optimizer(name), lambda _: True, state, transform_non_params=lambda _: False
    )
    assert marks == jax.tree.map(lambda x: x.ndim > 0, state)


def test_bfloat16_parameters_have_the_updates_of_float32_rounded(name):
    tx = optimizer(name)
    narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), plain_params())
    wide = jax.tree.map(lambda w: w.astype(jnp.float32), narrow)
    state = wide_state = tx.init(narrow)
    for _ in range(N_STEPS):
        updates, state = jax.jit(tx.update)(narrow, state, narrow)
        wide_updates, wide_state = jax.jit(tx.update)(wide, wide_state, wide)
        for u, v in zip(jax.tree.leaves(updates), jax.tree.leaves(wide_updates), strict=True):
            assert u.dtype == jnp.bfloat16
            np.testing.assert_array_equal(u, v.astype(jnp.bfloat16))
    assert {str(x.dtype) for x in jax.tree.leaves(state)} <= {"float32", "int32"}
