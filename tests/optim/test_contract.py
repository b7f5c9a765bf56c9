"""What the training loop asks of an optimizer. Try it on yours:

    pytest tests/optim/test_contract.py --optimizer=package.module:factory

The factory is called with `learning_rate` alone; everything else must have a default.
"""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import step
from configs import optimizers
from optim import sharding

HYPERPARAMETERS = {
    "lars": {"momentum": 0.9, "trust_coefficient": 0.05},
    "nesterov": {"momentum": 0.9},
    "shampoo": {"exponent_override": 4, "matrix_epsilon": 1e-5, "start_preconditioning_step": 2},
    "sm3": {"momentum": 0.9},
}
RETURNS_PARAMETERS = "averaging:averaged_sgd"
EXAMPLES = [
    "optax:adamw",
    "optax:lamb",
    "optax.contrib:muon",
    "optax.contrib:schedule_free_sgd",
]
SCHEDULE = {"peak_learning_rate": 0.02, "warmup_steps": 2.0, "decay_power": 0.0}


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--optimizer")
        for name in chosen:
            try:
                optimizers.make_optimizer(name, HYPERPARAMETERS.get(name, {}), SCHEDULE, 200)
            except ValueError as error:
                raise pytest.UsageError(str(error)) from error
        names = chosen or [
            *optimizers.BUILDERS,
            RETURNS_PARAMETERS,
            *(pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES),
        ]
        metafunc.parametrize("name", names)


def problem():
    """A linear layer that must learn a known one: kernel [6, 4], scale [4], bias [4]."""
    r = np.random.default_rng(0)
    x, kernel = r.normal(size=(64, 6)), r.normal(size=(6, 4))
    return np.float32(x), np.float32(x @ kernel + 0.5)


def init_params():
    r = np.random.default_rng(1)
    kernel = np.float32(0.3 * r.normal(size=(6, 4)))
    return {"dense": {"kernel": kernel, "scale": np.ones(4, np.float32), "bias": np.zeros(4, "f4")}}


def loss(params, x, y):
    layer = params["dense"]
    return jnp.mean((x @ layer["kernel"] * layer["scale"] + layer["bias"] - y) ** 2)


gradient = jax.jit(jax.grad(loss))


@functools.cache
def built(name):
    tx, _ = optimizers.make_optimizer(name, HYPERPARAMETERS.get(name, {}), SCHEDULE, 200)
    return tx, jax.jit(tx.update)


def steps(update, params, state, n):
    for _ in range(n):
        updates, state = update(gradient(params, *problem()), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def assert_close(a, b, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=atol), a, b)


def test_it_descends(name):
    tx, update = built(name)
    params, _ = steps(update, init_params(), tx.init(init_params()), 60)
    assert loss(params, *problem()) < 0.8 * loss(init_params(), *problem())


def test_types_and_shapes_are_stable(name):
    tx, update = built(name)
    params, state = init_params(), tx.init(init_params())
    updates, after = update(gradient(params, *problem()), state, params)

    def kind(tree):
        return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree)

    assert kind(updates) == kind(params)
    assert kind(after) == kind(state)


def test_zero_gradients_leave_finite_parameters(name):
    tx, update = built(name)
    params, state = init_params(), tx.init(init_params())
    zeros = jax.tree.map(jnp.zeros_like, params)
    for _ in range(5):
        updates, state = update(zeros, state, params)
        params = optax.apply_updates(params, updates)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((params, state)))
    after, _ = steps(update, params, state, 3)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(after))


def test_a_gradient_that_is_not_finite_is_survived_as_the_loop_does_it(name):
    """The loop keeps every float of parameters and state; integers (counts) advance."""
    tx, update = built(name)
    params, state = steps(update, init_params(), tx.init(init_params()), 3)
    bad = jax.tree.map(lambda w: jnp.full_like(w, jnp.nan), params)
    _, poisoned = update(bad, state, params)

    def keep(new, old):
        return old if jnp.issubdtype(jnp.result_type(old), jnp.inexact) else new

    after, _ = steps(update, params, jax.tree.map(keep, poisoned, state), 10)
    assert loss(after, *problem()) < loss(params, *problem())


@pytest.mark.slow
def test_jit_changes_nothing(name):
    tx, update = built(name)
    params, state = init_params(), tx.init(init_params())
    g = gradient(params, *problem())
    eager = tx.update(g, state, params)
    assert_close(eager, update(g, state, params), 1e-4)


def test_a_restored_state_goes_on_as_before(name, tmp_path):
    tx, update = built(name)
    params, state = steps(update, init_params(), tx.init(init_params()), 3)
    leaves, structure = jax.tree.flatten((params, state))
    np.savez(tmp_path / "state.npz", **{str(i): x for i, x in enumerate(leaves)})
    with np.load(tmp_path / "state.npz") as stored:
        restored = jax.tree.unflatten(structure, [stored[str(i)] for i in range(len(leaves))])
    straight, _ = steps(update, params, state, 3)
    resumed, _ = steps(update, *restored, 3)
    jax.tree.map(np.testing.assert_array_equal, resumed, straight)


def test_eight_devices_equal_one_and_may_take_their_state_back(name):
    """Placed and donated as the loop does it, even if init returned the parameters themselves."""
    tx, update = built(name)
    x, y = (a.reshape(8, 8, -1) for a in problem())

    def one_step(state, batch):
        g = jax.lax.pmean(jax.grad(loss)(state.params, *batch), step.AXIS)
        old = sharding.attach(state.opt_state, state.sharded)
        updates, new = tx.update(g, old, state.params)
        opt_state, sharded = sharding.detach(new)
        params = optax.apply_updates(state.params, updates)
        return step.TrainState(state.step + 1, params, {}, opt_state, sharded), loss(params, *batch)

    params = jax.tree.map(jnp.asarray, init_params())
    state = step.place(step.TrainState(jnp.int32(0), params, {}, tx.init(params), {}))
    over_devices = step.over_devices(one_step)
    for _ in range(4):
        state, _ = over_devices(state, (x, y))
    alone, _ = steps(update, init_params(), tx.init(init_params()), 4)
    assert_close(state.params, alone)


def test_the_example_returns_the_parameters_themselves():
    params = jax.tree.map(jnp.asarray, init_params())
    state = built(RETURNS_PARAMETERS)[0].init(params)
    assert state.inner_state.average["dense"]["kernel"] is params["dense"]["kernel"]


def test_unknown_names_and_fields_are_explained(monkeypatch):
    known = ", ".join(sorted(optimizers.BUILDERS))
    with pytest.raises(ValueError, match=f"optimizer.name=adan: unknown; use one of {known} or "):
        optimizers.make_optimizer("adan", {}, SCHEDULE, 10)
    with pytest.raises(ValueError, match=r"optimizer.name=no.such:thing: cannot be imported"):
        optimizers.make_optimizer("no.such:thing", {}, SCHEDULE, 10)
    with pytest.raises(ValueError, match=r"lars does not take these fields.*'beta'"):
        optimizers.make_optimizer("lars", {"momentum": 0.9, "beta": 0.9}, SCHEDULE, 10)
    with pytest.raises(
        ValueError, match=r"optax:identity does not take .* must take learning_rate"
    ):
        optimizers.make_optimizer("optax:identity", {}, SCHEDULE, 10)
    mine = types.ModuleType("mine")
    mine.words = lambda learning_rate: "SGD"
    monkeypatch.setitem(sys.modules, "mine", mine)
    with pytest.raises(ValueError, match=r"mine:words returned str, not an optax transformation"):
        optimizers.make_optimizer("mine:words", {}, SCHEDULE, 10)
    mine.half = lambda learning_rate: types.SimpleNamespace(init=print)
    with pytest.raises(ValueError, match=r"mine:half returned SimpleNamespace, not an optax"):
        optimizers.make_optimizer("mine:half", {}, SCHEDULE, 10)
