"""LARS, Nesterov and SM3 against float64 transcriptions of the published formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import reference
from optim import lars, nesterov, sm3
from optim.lars import FORMS
from optim.sm3 import init_accumulators, sparse_update

RATES = (1.0, 1.0, 0.1, 0.5)


def schedule(step):
    return jnp.asarray(RATES)[step]


def trajectory(tx, w, grads):
    params, state = jax.tree.map(jnp.asarray, w), tx.init(w)
    for g in grads:
        updates, state = jax.jit(tx.update)(g, state, params)
        params = optax.apply_updates(params, updates)
    return params


def layer(seed=0, shape=(5, 4)):
    r = np.random.default_rng(seed)
    w = {"kernel": r.normal(size=shape), "bias": r.normal(size=shape[-1:])}
    grads = [{k: r.normal(size=x.shape) * 0.1 for k, x in w.items()} for _ in RATES]
    return jax.tree.map(np.float32, w), jax.tree.map(np.float32, grads)


@pytest.mark.parametrize("form", FORMS)
def test_lars_equals_its_transcription_in_both_forms(form):
    w, grads = layer()
    tx = lars(schedule, momentum=0.9, weight_decay=0.05, trust_coefficient=0.1, form=form)
    kernel, m = np.float64(w["kernel"]), 0.0
    bias, m_bias = np.float64(w["bias"]), 0.0
    for rate, g in zip(RATES, grads, strict=True):
        kernel, m = reference.lars_weight(kernel, m, g["kernel"], rate, 0.9, 0.05, 0.1)
        m_bias = 0.9 * m_bias + g["bias"] * (rate if form == "tf" else 1.0)
        bias = bias - m_bias * (1.0 if form == "tf" else rate)
    got = trajectory(tx, w, grads)
    np.testing.assert_allclose(got["kernel"], kernel, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got["bias"], bias, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_lars_divides_by_the_sum_of_norms(epsilon):
    w = {"kernel": np.float32([[3.0, 4.0]])}
    g = {"kernel": np.float32([[-0.3, 0.4]])}
    tx = lars(1.0, momentum=0.0, weight_decay=0.1, trust_coefficient=0.001, epsilon=epsilon)
    update, _ = tx.update(g, tx.init(w), w)
    trust = 0.001 * 5 / (0.5 + 0.1 * 5 + epsilon)  # optax.lars would have 0.001 * 5 / |g + 0.1 w|
    np.testing.assert_allclose(update["kernel"], [[-trust * 0.0, -trust * 0.8]], atol=1e-9)


@pytest.mark.parametrize(("w", "g"), [(0.0, 2.0), (3.0, 0.0)])
def test_lars_takes_ratio_one_where_a_norm_is_zero(w, g):
    w, g = {"kernel": jnp.full((2, 2), w)}, {"kernel": jnp.full((2, 2), g)}
    tx = lars(0.5, momentum=0.9, weight_decay=0.01)
    update, _ = tx.update(g, tx.init(w), w)
    np.testing.assert_allclose(update["kernel"], -0.5 * (g["kernel"] + 0.01 * w["kernel"]))


def test_lars_ratio_survives_gradients_whose_squares_underflow():
    w, g = {"kernel": jnp.ones((2, 2))}, {"kernel": jnp.full((2, 2), 1e-25)}
    update, _ = (tx := lars(1.0, momentum=0.0)).update(g, tx.init(w), w)
    np.testing.assert_allclose(update["kernel"], -0.001 * np.ones((2, 2)), rtol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 1e-3, 0.9])
def test_lars_under_inject_hyperparams_is_the_same(momentum):
    """The default of every argument must be one that it does not take for a schedule."""
    w = {"w": jnp.ones((2, 2)), "bias": jnp.full(2, 0.1)}
    hyperparameters = {"learning_rate": 1.0, "momentum": momentum, "weight_decay": 1e-4}
    tx = optax.inject_hyperparams(lars)(**hyperparameters)
    update, _ = tx.update(jax.tree.map(jnp.ones_like, w), tx.init(w), w)
    np.testing.assert_allclose(update["bias"], -1.0)
    np.testing.assert_allclose(update["w"], -1e-3 * 2 * 1.0001 / (2 + 1e-4 * 2), rtol=1e-5)


def test_lars_takes_a_mask_of_ones_own():
    w = {"a": jnp.ones((2, 2)), "b": {"c": jnp.ones((2, 2))}}
    for mask in ({"a": False, "b": True}, lambda params: {"a": False, "b": True}):
        tx = lars(1.0, momentum=0.0, weight_mask=mask)
        update, _ = tx.update(w, tx.init(w), w)
        np.testing.assert_allclose(update["a"], -1.0)
        np.testing.assert_allclose(update["b"]["c"], -1e-3)


def former_nesterov(rate, momentum, weight_decay, grads, buffer, params):
    """The update as it was written before it was a composition of optax's."""

    def decayed(g, w):
        return g + weight_decay * w if w.ndim >= 2 else g

    grads = jax.tree.map(decayed, grads, params)
    buffer = jax.tree.map(lambda g, m: momentum * m + g, grads, buffer)
    return jax.tree.map(lambda g, m: -rate * (g + momentum * m), grads, buffer), buffer


def test_nesterov_has_the_bits_of_its_former_implementation():
    w, _ = layer()
    tx = nesterov(schedule, momentum=0.9, weight_decay=0.01)
    params, state, buffer = w, tx.init(w), jax.tree.map(jnp.zeros_like, w)
    for i in range(40):
        g = layer(seed=i)[0]
        updates, state = tx.update(g, state, params)
        wanted, buffer = former_nesterov(schedule(i), 0.9, 0.01, g, buffer, params)
        jax.tree.map(np.testing.assert_array_equal, updates, wanted)
        params = optax.apply_updates(params, updates)


def test_nesterov_equals_optax_and_decays_matrices_only():
    w, grads = layer()
    got = trajectory(nesterov(schedule, momentum=0.9, weight_decay=0.01), w, grads)
    matrices = {"kernel": True, "bias": False}
    theirs = optax.chain(
        optax.add_decayed_weights(0.01, matrices), optax.sgd(schedule, 0.9, nesterov=True)
    )
    wanted = trajectory(theirs, w, grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), got, wanted)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (4, 3), (2, 3, 4), (2, 1, 3, 2)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sm3_equals_its_transcription_at_every_rank(shape, momentum):
    r = np.random.default_rng(1)
    w = {"w": r.normal(size=shape).astype(np.float32)}
    grads = [{"w": np.float32(r.normal(size=shape))} for _ in range(4)]
    theirs = reference.SM3(w["w"], 0.1, momentum)
    for g in grads:
        theirs.update(g["w"])
    got = trajectory(sm3(lambda _: 0.1, momentum=momentum), w, grads)
    np.testing.assert_allclose(got["w"], theirs.w, rtol=1e-6, atol=1e-6)


def test_sm3_scale_constant_is_the_published_one():
    g = {"w": jnp.float32([0.0, 1e-12])}
    update, _ = (tx := sm3(1.0, momentum=0.0)).update(g, tx.init(g), g)
    np.testing.assert_allclose(update["w"], [0.0, -1.0], rtol=1e-5)  # 1e-8 would give -1e-4


def test_sm3_keeps_one_vector_per_dimension_and_momentum_only_if_used():
    w = {"w": jnp.zeros((30, 20, 10))}
    assert sum(x.size for x in jax.tree.leaves(sm3(0.1, momentum=0.0).init(w))) == 60
    assert sum(x.size for x in jax.tree.leaves(sm3(0.1, momentum=0.5).init(w))) == 6061


@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 3)])
def test_sparse_sm3_sums_duplicates_and_touches_only_their_rows(shape):
    r = np.random.default_rng(2)
    w = jnp.asarray(r.normal(size=shape), jnp.float32)
    indices, rows = np.array([4, 1, 4, 6]), np.float32(r.normal(size=(4, *shape[1:])))
    accumulators, total = init_accumulators(w), np.zeros(shape[0] if len(shape) > 1 else shape)
    wanted = np.float64(w)
    update = jax.jit(sparse_update)
    for _ in range(2):
        for i in (1, 4, 6):
            g = rows[indices == i].sum(0, dtype=np.float64)
            past = total[i] + g**2
            wanted[i] -= 0.1 * g / np.sqrt(past + 1e-30)
            total[i] = np.max(past)
        accumulators, w = update(accumulators, w, indices, rows, 0.1)
    np.testing.assert_allclose(w, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(accumulators[0], total, rtol=1e-6)
    assert all(not np.any(a) for a in accumulators[1:])


def test_sparse_sm3_counts_negative_indices_from_the_end_and_ignores_those_outside():
    w, rows = jnp.ones((5, 2)), np.ones((5, 2), np.float32)
    first, second = init_accumulators(w)
    indices = np.array([-1, 4, 5, 99, -6])  # the last row twice, so its gradient is 2
    (first, second), got = sparse_update((first, second), w, indices, rows, 0.1)
    np.testing.assert_allclose(got, np.r_[np.ones((4, 2)), [[0.9, 0.9]]], rtol=1e-6)
    np.testing.assert_allclose(first, [0, 0, 0, 0, 4])


@pytest.mark.parametrize(("n", "width"), [(0, 2), (3, 0)])
def test_sparse_sm3_of_nothing_changes_nothing(n, width):
    w = jnp.ones((5, width))
    rows, accumulators = np.ones((n, width), np.float32), init_accumulators(w)
    after, got = sparse_update(accumulators, w, np.zeros(n, int), rows, 0.1)
    jax.tree.map(np.testing.assert_array_equal, (after, got), (accumulators, w))


INVALID = [
    (lars, "momentum", [-0.1, 1.0, 1.5, np.nan, jnp.float32(2.0)]),
    (lars, "weight_decay", [-1.0, np.nan, np.inf]),
    (lars, "trust_coefficient", [-1.0, 0.0, np.nan, np.inf]),
    (lars, "epsilon", [-1.0, np.nan]),
    (lars, "learning_rate", [np.nan, np.inf]),
    (nesterov, "momentum", [1.0, np.nan]),
    (nesterov, "weight_decay", [-1.0, np.nan]),
    (sm3, "momentum", [1.0, np.nan]),
    (sm3, "weight_decay", [-1.0, np.nan]),
]


@pytest.mark.parametrize(
    ("factory", "field", "value"), [(f, field, x) for f, field, values in INVALID for x in values]
)
def test_values_out_of_range_are_refused(factory, field, value):
    valid = {"learning_rate": 0.1, "momentum": 0.9}
    factory(**valid)
    with pytest.raises(ValueError, match=rf"^optimizer\.{field}=\S+: must be "):
        factory(**(valid | {field: value}))


@pytest.mark.parametrize("factory", [lars, nesterov, sm3])
def test_gradients_are_checked(factory):
    w = {"kernel": jnp.ones((3, 2))}
    tx = factory(0.1, momentum=0.9)
    with pytest.raises(ValueError, match="params=None"):
        tx.update(w, tx.init(w))
