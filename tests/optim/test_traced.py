"""Hyperparameters that a step reads from its state: the same updates, one compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optim
from optim import traced

SCHEDULE = {"peak_learning_rate": 0.3, "warmup_steps": 2.0}
VALUES = {  # two points per optimizer, all of its traced numbers different
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
    """The jitted update, and a list with an entry for each time that it was traced."""
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
def test_one_program_serves_all_values_as_constants_would(name):
    first, second = (optim.make_optimizer(name, v, SCHEDULE, 10)[0] for v in VALUES[name])
    shared, traces = compiled(first)
    after_three_steps(shared, first)
    got = after_three_steps(shared, second)
    assert len(traces) == 1
    rate = optim.schedules.polynomial(total_steps=10, **SCHEDULE)
    constant = optim.BUILDERS[name](learning_rate=rate, **VALUES[name][1])
    expected = after_three_steps(jax.jit(constant.update), constant)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert np.abs(got - after_three_steps(shared, first)).max() > 1e-3


@pytest.mark.parametrize("name", VALUES)
def test_structure_forgets_the_values_and_nothing_else(name):
    a, b = (optim.structure({"name": name, **v}, SCHEDULE) for v in VALUES[name])
    assert a == b
    assert optim.structure({"name": name, **VALUES[name][0], "weight_decay": 0.0}, SCHEDULE) != a
    assert (
        optim.structure({"name": name, **VALUES[name][0]}, {**SCHEDULE, "warmup_steps": 1.0}) != a
    )
    tx, _ = optim.from_recipe(*a, total_steps=10)  # it can be built
    assert set(tx.init(PARAMS).numbers) >= {"peak_learning_rate", "weight_decay"}


def test_every_named_number_is_one_that_its_builder_takes():
    import inspect

    for name, fields in traced.NUMBERS.items():
        assert set(fields) <= set(inspect.signature(optim.BUILDERS[name]).parameters)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("sm3", {"momentum": 1.5}), ("shampoo", {"beta1": -0.5}), ("shampoo", {"beta2": 1.5})],
)
def test_values_out_of_range_are_still_refused(name, wrong):
    with pytest.raises(ValueError, match=rf"optimizer\.{next(iter(wrong))}="):
        optim.make_optimizer(name, VALUES[name][0] | wrong, SCHEDULE, 10)


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
def test_names_and_fields_that_do_not_exist_get_one_line(name, schedule, words):
    with pytest.raises(ValueError, match=words) as error:
        optim.make_optimizer(name, {}, schedule, 10)
    assert "\n" not in str(error.value)


def test_a_factory_of_ones_own_has_its_rate_traced():
    first, second = (
        optim.make_optimizer("optax:sgd", {}, {**SCHEDULE, "peak_learning_rate": p}, 10)[0]
        for p in (0.3, 0.6)
    )
    update, traces = compiled(first)
    moved = [after_three_steps(update, tx) - PARAMS["a"]["kernel"] for tx in (first, second)]
    assert len(traces) == 1
    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-4, atol=1e-6)
