"""Accuracy over learning rates of Shampoo with each graft, beside SGD and Adam, on digits.

    python -m benchmarks.graft_rates

A network of two hidden layers of 128 units, 200 updates of batch 256 at a constant rate, one seed,
360 test images. It shows how rates carry over between optimizers, not which optimizer is better.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optim
from input_pipeline import digits

RATES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
WIDTHS = (64, 128, 128, 10)
N_STEPS, BATCH, N_TEST = 200, 256, 360
SHAMPOO: dict[str, Any] = {"beta1": 0.9, "beta2": 0.99, "matrix_epsilon": 1e-5}
SHAMPOO |= {"diagonal_epsilon": 1e-10, "start_preconditioning_step": 5}
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "optax.sgd": functools.partial(optax.sgd, momentum=0.9, nesterov=True),
    "optax.adam": optax.adam,
}
for graft in ("SGD", "RMSPROP", "ADAGRAD"):
    factory = functools.partial(optim.distributed_shampoo, **SHAMPOO, graft_type=graft)
    OPTIMIZERS[f"Shampoo, graft {graft}"] = factory


def logits(params: list[Any], x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    return x @ params[-1]["kernel"] + params[-1]["bias"]


def accuracy(make: Callable[..., optax.GradientTransformation], rate: jax.Array) -> jax.Array:
    images, labels = digits.read_csv()
    x = jnp.asarray(images.reshape(len(images), -1) / 255 - 0.5, jnp.float32)
    y = jnp.asarray(labels, jnp.int32)
    r = np.random.default_rng(0)
    params = [
        {
            "kernel": jnp.asarray(r.normal(size=(n, m)) * (2 / n) ** 0.5, jnp.float32),
            "bias": jnp.zeros(m),
        }
        for n, m in itertools.pairwise(WIDTHS)
    ]
    batches = jnp.asarray(r.integers(N_TEST, len(x), size=(N_STEPS, BATCH)))
    tx = make(learning_rate=rate)

    def loss(params: Any, batch: jax.Array) -> jax.Array:
        found = logits(params, x[batch])
        return optax.softmax_cross_entropy_with_integer_labels(found, y[batch]).mean()

    def step(carry: Any, batch: jax.Array) -> tuple[Any, None]:
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params, batch), state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), batches)
    return jnp.mean(logits(params, x[:N_TEST]).argmax(1) == y[:N_TEST])


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    print("| learning rate | " + " | ".join(f"{rate:g}" for rate in RATES) + " |")
    print("|---" * (len(RATES) + 1) + "|")
    for name, make in OPTIMIZERS.items():
        run = jax.jit(functools.partial(accuracy, make))
        row = [f"{float(run(jnp.float32(rate))):.2f}" for rate in RATES]
        print(f"| {name} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
