"""Checks of hyperparameters, gradients and parameters; float32 inside of any optimizer."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from optim import arguments

NAN = float("nan")
RULES = [  # rule, valid values, invalid ones
    ("in [0, 1)", [0, 0.5, np.float32(0.9)], [1, -0.1, NAN, "0.5", None]),
    ("in [0, 1]", [0, 1], [1.1, NAN]),
    ("finite", [-1, 0.0], [NAN, np.inf, None]),
    ("finite and at least 0", [0, 3.0], [-1e-9, np.inf, NAN]),
    ("finite and above 0", [1e-30], [0, np.inf, NAN]),
    ("a whole number, at least 0", [0, 2.0, 7], [-3, 2.5, np.inf, NAN, "3"]),
    ("a whole number, at least 1", [1], [0, NAN]),
]


@pytest.mark.parametrize(("rule", "valid", "invalid"), RULES)
def test_a_number_is_checked_wherever_it_can_be_read(rule, valid, invalid):
    for value in valid:
        arguments.check(rule, momentum=value)
        arguments.check(rule, momentum=jnp.asarray(value))
    for value in invalid:
        with pytest.raises(ValueError, match=r"^optimizer\.momentum=.*: must be "):
            arguments.check(rule, momentum=value)
        jax.jit(lambda x: arguments.check(rule, momentum=x))(NAN)  # a tracer
        if isinstance(value, int | float):
            with pytest.raises(ValueError, match="momentum"):
                arguments.check(rule, momentum=jnp.asarray([value], jnp.float32))


def test_only_python_values_are_static():
    arguments.check_static(block_size=128)
    assert arguments.equals(1, 1.0)
    assert not arguments.equals(0.5, 1.0)
    assert not arguments.equals(jnp.float32(1.0), 1.0)
    with pytest.raises(ValueError, match=r"optimizer.block_size: .*static_args=\('block_size',\)"):
        arguments.check_static(block_size=jnp.int32(128))
    factory = optax.inject_hyperparams(lambda block_size: arguments.check_static(x=block_size))
    with pytest.raises(ValueError, match=r"optimizer.x: .*static_args"):
        factory(block_size=128).init({})


PARAMS = {"a": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}


def changed(**leaves: Any) -> Any:
    return {"a": PARAMS["a"] | leaves}


NO_GRADIENT = np.zeros((3, 2), jax.dtypes.float0)
WRONG = [
    (PARAMS, None, r"params=None: .*tx.update\(grads, state, params\)"),
    ({"a": {"kernel": 1.0}}, PARAMS, r"tree structure .*params\['a'\]\['bias'\] .* in grads"),
    (changed(extra=1.0), PARAMS, r"tree structure .*grads\['a'\]\['extra'\] .* in params"),
    (list(PARAMS["a"].values()), PARAMS["a"], "tree structure"),
    ((1.0, 2.0), [1.0, 2.0], "tree structure .* types tuple and list"),
    (changed(kernel=jnp.ones((2, 3))), PARAMS, r"\['kernel'\]: has shape \(2, 3\).* \(3, 2\)"),
    (changed(kernel=jnp.ones((3, 2), complex)), PARAMS, r"grads.*\['kernel'\]: .*complex64"),
    (
        PARAMS,
        changed(kernel=jnp.ones((3, 2), complex)),
        r"params.*\['kernel'\]: .*complex64, and complex",
    ),
    (PARAMS, changed(kernel=jnp.ones((3, 2), int)), r"params.*\['kernel'\]: .*int32.*optax.masked"),
    (PARAMS, changed(kernel=jnp.ones((3, 2), bool)), r"\['kernel'\]: .*bool.*optax.partition"),
    (changed(kernel=NO_GRADIENT), PARAMS, r"grads.*\['kernel'\]: .*float0.*optax.masked"),
    (changed(kernel=jnp.ones((3, 2), int)), PARAMS, r"grads.*\['kernel'\]: has dtype int32"),
]


@pytest.mark.parametrize(("grads", "params", "words"), WRONG)
def test_wrong_gradients_are_refused_in_one_sentence(grads, params, words):
    with pytest.raises(ValueError, match=words) as error:
        arguments.check_gradients(grads, params)
    assert "\n" not in str(error.value)


def test_init_refuses_parameters_that_cannot_be_trained():
    with pytest.raises(ValueError, match=r"params\['step'\]: has dtype int32"):
        arguments.in_float32(optax.sgd(0.1)).init({"step": jnp.zeros((), int)})


class Layer(NamedTuple):
    kernel: Any
    bias: Any


TREES = {
    "array": jnp.ones(3),
    "list": [jnp.ones(3), None, 2.0],
    "NamedTuple": Layer(jnp.ones((2, 2), jnp.bfloat16), jnp.ones(2, jnp.float16)),
    "nnx": nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param),
    "partitioned": {"kernel": nn.Partitioned(jnp.ones((2, 3)), (None, "m"))},
    "empty": {},
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, jax.eval_shape], ids=["eager", "jit", "eval_shape"]
)
def test_gradients_like_their_parameters_are_accepted(tree, transform):
    def run(tree):
        arguments.check_gradients(tree, tree)
        return tree

    jax.eval_shape(run, tree) if transform is jax.eval_shape else transform(run)(tree)


def test_integers_may_be_left_out_by_optax():
    params = {"w": jnp.ones(2), "n": jnp.zeros((), int)}
    tx = optax.masked(arguments.in_float32(optax.sgd(0.1)), {"w": True, "n": False})
    grads = {"w": jnp.ones(2), "n": np.zeros((), jax.dtypes.float0)}
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_allclose(updates["w"], -0.1)


def test_any_transformation_runs_in_float32():
    r = np.random.default_rng(0)
    params = {"w": jnp.asarray(r.normal(size=(4, 3)), jnp.bfloat16), "b": jnp.ones(3)}
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    tx, theirs = arguments.in_float32(optax.adamw(0.1)), optax.adamw(0.1)
    state, wide_state = tx.init(params), theirs.init(wide)
    for _ in range(3):
        updates, state = tx.update(params, state, params)
        wide_updates, wide_state = theirs.update(wide, wide_state, wide)
        jax.tree.map(np.testing.assert_array_equal, state, wide_state)
        assert updates["w"].dtype == jnp.bfloat16
        np.testing.assert_array_equal(updates["w"], wide_updates["w"].astype(jnp.bfloat16))
        np.testing.assert_array_equal(updates["b"], wide_updates["b"])


def test_extra_arguments_reach_the_inner_transformation():
    def update(updates, state, params=None, *, factor, **_):
        return jax.tree.map(lambda g: factor * g, updates), state

    inner = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    tx, w = arguments.in_float32(inner), {"w": jnp.ones(2)}
    updates, _ = tx.update(w, tx.init(w), w, factor=3.0)
    np.testing.assert_array_equal(updates["w"], 3.0)
