"""The registry: names, fields, and hyperparameters injected into one compiled step."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optim
from configs import optimizers
from errors import UserError

SCHEDULE = {"peak_learning_rate": 0.3, "warmup_steps": 2.0}
VALUES = {  # two settings per optimizer that differ in all injected hyperparameters
    "lars": [
        {"momentum": 0.9, "weight_decay": 1e-2, "trust_coefficient": 0.1},
        {"momentum": 0.5, "weight_decay": 1e-3, "trust_coefficient": 0.02},
    ],
    "nesterov": [
        {"momentum": 0.9, "weight_decay": 1e-2},
        {"momentum": 0.5, "weight_decay": 1e-3},
    ],
    "shampoo": [
        {"beta1": 0.9, "beta2": 0.8, "weight_decay": 1e-2, "matrix_epsilon": 1e-4},
        {"beta1": 0.5, "beta2": 0.95, "weight_decay": 1e-3, "matrix_epsilon": 1e-4},
    ],
    "sm3": [
        {"momentum": 0.9, "weight_decay": 1e-2},
        {"momentum": 0.5, "weight_decay": 1e-3},
    ],
}
PARAMS = {"a": {"kernel": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}}


def compiled(tx):
    """Returns the jitted update, and a list that gains an entry each time it is traced."""
    traces = []

    def update(*arguments):
        traces.append(1)
        return tx.update(*arguments)

    return jax.jit(update), traces


def after_three_steps(update, tx):
    params, state = PARAMS, tx.init(PARAMS)
    for i in range(3):
        grads = jax.tree.map(lambda w, i=i: np.cos(3 * w + i).astype(np.float32), PARAMS)
        updates, state = update(grads, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params["a"]["kernel"]


@pytest.mark.parametrize("name", VALUES)
def test_one_program_gives_the_results_of_constants_for_all_values(name):
    first, second = (optimizers.make_optimizer(name, v, SCHEDULE, 10)[0] for v in VALUES[name])
    shared, traces = compiled(first)
    after_three_steps(shared, first)
    got = after_three_steps(shared, second)
    assert len(traces) == 1
    rate = optim.schedules.polynomial(total_steps=10, **SCHEDULE)
    constant = optimizers.BUILDERS[name](learning_rate=rate, **VALUES[name][1])
    expected = after_three_steps(jax.jit(constant.update), constant)
    tolerance = 1e-5 if name == "shampoo" else 1e-6  # 1 - beta2 is rounded differently
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    assert np.abs(got - after_three_steps(shared, first)).max() > 1e-3


@pytest.mark.parametrize("name", VALUES)
def test_cache_key_omits_the_injected_values_and_nothing_else(name):
    def key(values, schedule):
        return optimizers.cache_key({"optimizer": {"name": name, **values}, "schedule": schedule})

    first, second = VALUES[name]
    assert key(first, SCHEDULE) == key(second, {**SCHEDULE, "peak_learning_rate": 0.7})
    assert key({**first, "weight_decay": 0.0}, SCHEDULE) != key(first, SCHEDULE)
    assert key(first, {**SCHEDULE, "warmup_steps": 1.0}) != key(first, SCHEDULE)
    tx, _ = optimizers.from_recipe(key(first, SCHEDULE) | {"total_steps": 10})
    injected = {"peak_learning_rate", *first} - {"matrix_epsilon"}
    assert set(tx.init(PARAMS).hyperparams) == injected


@pytest.mark.parametrize("name", VALUES)
def test_hyperparameters_are_float32_beside_bfloat16_parameters(name):
    tx, _ = optimizers.make_optimizer(name, VALUES[name][0], SCHEDULE, 10)
    params = jax.tree.map(lambda w: jnp.asarray(w, jnp.bfloat16), PARAMS)
    state = tx.init(params)
    updates, after = jax.jit(tx.update)(params, state, params)
    for values in (state.hyperparams, after.hyperparams):
        assert {x.dtype for x in values.values()} == {np.dtype("float32")}
    assert after.hyperparams["weight_decay"] == np.float32(VALUES[name][0]["weight_decay"])
    assert {x.dtype for x in jax.tree.leaves(updates)} == {np.dtype("bfloat16")}


def test_every_injected_field_is_an_argument_of_its_builder():
    for name, fields in optimizers.INJECTED.items():
        assert set(fields) <= set(inspect.signature(optimizers.BUILDERS[name]).parameters)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("lars", {"weight_decay": float("nan")}),
        ("sm3", {"momentum": 1.5}),
        ("shampoo", {"beta1": -0.5}),
        ("shampoo", {"beta2": 1.5}),
    ],
)
def test_values_out_of_range_are_refused(name, wrong):
    with pytest.raises(ValueError, match=rf"optimizer\.{next(iter(wrong))}="):
        optimizers.make_optimizer(name, VALUES[name][0] | wrong, SCHEDULE, 10)


@pytest.mark.parametrize(
    ("name", "schedule", "words"),
    [
        ("./mine:f", SCHEDULE, "optimizer.name=./mine:f: cannot be imported"),
        (":f", SCHEDULE, "optimizer.name=:f: cannot be imported"),
        ("optax:nothing", SCHEDULE, "optimizer.name=optax:nothing: cannot be imported"),
        ("optax:sgd", SCHEDULE | {"cycles": 2.0}, "schedule: does not take these fields: .*cycles"),
        ("optax:sgd", {"warmup_steps": 2.0}, "schedule: .*peak_learning_rate"),
    ],
)
def test_unknown_names_and_fields_raise_one_line_errors(name, schedule, words):
    with pytest.raises(ValueError, match=words) as error:
        optimizers.make_optimizer(name, {}, schedule, 10)
    assert "\n" not in str(error.value)


def test_the_peak_of_another_factory_is_injected():
    first, second = (
        optimizers.make_optimizer("optax:sgd", {}, {**SCHEDULE, "peak_learning_rate": p}, 10)[0]
        for p in (0.3, 0.6)
    )
    update, traces = compiled(first)
    moved = [after_three_steps(update, tx) - PARAMS["a"]["kernel"] for tx in (first, second)]
    assert len(traces) == 1
    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-4, atol=1e-6)


def test_an_optimizer_that_needs_the_loss_is_refused_in_a_sentence():
    with pytest.raises(UserError, match=r"sophia.*need the loss or other arguments"):
        optimizers.make_optimizer("optax.contrib:sophia", {}, SCHEDULE, 10)
