"""A thousand steps of a residual network on digits, six hundred of them on hostile gradients."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import optimizers
from models.resnet import ResNet
from step import all_finite, cross_entropy, keep_unless

README = {"beta2": 0.85, "matrix_epsilon": 1.5e-5}
MLPERF_V1 = {"beta2": 0.75, "matrix_epsilon": 1e-8, "relative_matrix_epsilon": False}
SHAMPOO = {"exponent_override": 4, "weight_decay": 1e-4, "start_preconditioning_step": 25}
# Optimizer, hyperparameters, learning rate, and the accuracy to reach in the last 300 steps:
# measured 0.99, 0.97, 0.82, 0.96 and 0.72. LARS at this rate stands at 0.25 when the hostility
# begins; the sums of SM3 remember the largest gradients for ever.
CASES = {
    "readme": ("shampoo", README | SHAMPOO, 0.2, 0.95),
    "mlperf_v1": ("shampoo", MLPERF_V1 | SHAMPOO, 0.2, 0.95),
    "lars": ("lars", {"momentum": 0.9, "weight_decay": 1e-4}, 5.0, 0.7),
    "nesterov": ("nesterov", {"momentum": 0.9, "weight_decay": 1e-4}, 0.1, 0.9),
    "sm3": ("sm3", {"momentum": 0.9}, 0.05, 0.65),
}
TOTAL, HOSTILE, NOT_A_NUMBER, BATCH = 1000, range(100, 700), 500, 64
DEAD = "stage1_block1"


def digits():
    file = pathlib.Path(__file__).parents[2] / "input_pipeline" / "digits" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return table[:, :64].reshape(-1, 8, 8, 1) / 8 - 1, table[:, 64].astype(np.int32)


def rate(peak):
    """Small while gradients are up to 1e3 times too long, then up again: no optimizer that keeps
    the gradient's length could stay near its weights, and none is asked to."""
    steps, levels = jnp.array([0, 50, 99, 100, 700, 800]), jnp.array([0, 1, 1, 1e-5, 1e-5, 1])
    return lambda step: peak * jnp.interp(step, steps, levels)


def factors(params, step, r):
    """Per tensor what its gradient is multiplied with: 1e-20 to 1e3, 0 for a block, NaN for one."""
    if step not in HOSTILE:
        return jax.tree.map(lambda _: np.float32(1), params)
    scales = jax.tree.map(lambda _: np.float32(10.0 ** r.uniform(-20, 3)), params)
    scales[DEAD] = jax.tree.map(lambda _: np.float32(0), params[DEAD])
    if step == NOT_A_NUMBER:
        scales["head"]["kernel"] = np.float32(np.nan)
    return scales


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_network_recovers_from_hundreds_of_hostile_gradients(case):
    name, hyperparameters, peak, wanted = CASES[case]
    tx = optimizers.BUILDERS[name](learning_rate=rate(peak), **hyperparameters)
    images, labels = digits()
    model = ResNet((1,), 8, 10, 3, 1, stem_pool=False, bn_span=BATCH)
    variables = jax.jit(lambda key: model.init(key, images[:BATCH], train=True))(jax.random.key(0))
    carried = variables["params"], variables["batch_stats"], tx.init(variables["params"])

    @jax.jit
    def train(carried, image, label, factors):
        """As the training step does it; and whether all that it returns is finite."""
        params, batch_stats, state = carried

        def loss(params):
            both = {"params": params, "batch_stats": batch_stats}
            logits, new = model.apply(both, image, train=True, mutable=True)
            return cross_entropy(logits, label, 0.1).mean(), new["batch_stats"]

        grads, batch_stats = jax.grad(loss, has_aux=True)(params)
        grads = jax.tree.map(jnp.multiply, grads, factors)
        ok = all_finite(grads)
        updates, new = tx.update(grads, state, params)
        params = keep_unless(ok, optax.apply_updates(params, updates), params)
        state = keep_unless(ok, new, state)
        return (params, batch_stats, state), all_finite((params, state))

    @jax.jit
    def accuracy(carried):
        both = {"params": carried[0], "batch_stats": carried[1]}
        return jnp.mean(model.apply(both, images, train=False).argmax(-1) == labels)

    r = np.random.default_rng(0)
    for step in range(TOTAL):
        chosen = r.choice(len(images), BATCH)
        scales = factors(carried[0], step, r)
        carried, finite = train(carried, images[chosen], labels[chosen], scales)
        assert finite, step
    assert accuracy(carried) > wanted
