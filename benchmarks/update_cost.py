"""CPU-seconds of an optimizer's update on some tree, beside a fixed yardstick in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import optim
from optim import blocks, distribute, preconditioner

HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.9},
    "lars": {"momentum": 0.929, "weight_decay": 1e-4},
    "sm3": {"momentum": 0.9},
    "shampoo": {  # the README's 1729 steps
        "beta1": 0.95,
        "beta2": 0.85,
        "matrix_epsilon": 1.5e-5,
        "exponent_override": 4,
        "weight_decay": 1e-4,
        "start_preconditioning_step": 25,
    },
}
SCHEDULE = {"peak_learning_rate": 0.1, "warmup_steps": 5.0}


def is_shape(x: Any) -> bool:
    return isinstance(x, tuple)


def random_tree(tree: Any, seed: int) -> Any:
    """Normal numbers: the statistics stand far above the initial epsilon after one step."""
    r = np.random.default_rng(seed)
    return jax.tree.map(lambda s: np.asarray(r.normal(size=s), np.float32), tree, is_leaf=is_shape)


def one_device(tx: optax.GradientTransformation) -> Any:
    def step(state, params, grads):
        updates, state = tx.update(grads, state, params)
        return state, optax.apply_updates(params, updates)

    return jax.jit(step, donate_argnums=(0, 1))


def over_devices(tx: optax.GradientTransformation, devices: Sequence[Any]) -> Any:
    """(state, owned, params, grads, one number per device) -> (state, owned, params), by pmap.

    The numbers bring the axis along where nothing is owned.
    """

    def step(state, owned, params, grads, _):
        updates, state = tx.update(grads, distribute.attach(state, owned), params)
        state, owned = distribute.detach(state)
        return state, owned, optax.apply_updates(params, updates)

    return jax.pmap(
        step,
        axis_name="batch",
        in_axes=(None, 0, None, None, 0),
        out_axes=(None, 0, None),
        donate_argnums=(0, 1, 2),
        devices=devices,
    )


def yardstick(tree: Any) -> Callable[[], Any]:
    """Statistics and preconditioning, and 30 batched products over all root blocks."""
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(random_tree(tree, 0))]
    layout = blocks.make_layout([x.shape for x in leaves], 128, True)
    rows = blocks.to_rows(layout, leaves)
    eyes = {
        block: {str(i): jnp.tile(jnp.eye(d), (len(g), 1, 1)) for i, d in enumerate(block)}
        for block, g in rows.items()
    }
    sizes: dict[int, int] = {}
    for block, g in rows.items():
        for d in block:
            sizes[d] = sizes.get(d, 0) + len(g)
    roots = {d: jnp.tile(jnp.eye(d), (n, 1, 1)) for d, n in sizes.items()}

    @jax.jit
    def work(rows, eyes, roots):
        out = []
        for block, g in rows.items():
            usable = jnp.ones(len(g), bool)
            stats, _ = preconditioner.statistics(g, usable, eyes[block], 0.85)
            out.append((stats, preconditioner.precondition(g, eyes[block])))
        for _ in range(30):
            roots = {d: jnp.matmul(x, x, precision=lax.Precision.HIGHEST) for d, x in roots.items()}
        return out, roots

    return lambda: work(rows, eyes, roots)


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    before = time.process_time()
    result = jax.block_until_ready(work())
    return time.process_time() - before, result


class Run:
    """One optimizer on one tree and number of devices, its state carried along."""

    def __init__(self, tree: Any, name: str, n_devices: int):
        self.tx, _ = optim.make_optimizer(name, HYPERPARAMETERS[name], SCHEDULE, 100)
        params = random_tree(tree, 1)
        self.carried: tuple[Any, ...]
        self.step: Callable[..., Any]
        self.grads = random_tree(tree, 2)
        if n_devices == 1:
            self.step, self.carried = one_device(self.tx), (self.tx.init(params), params)
        else:
            state, owned = distribute.split(self.tx.init(params), n_devices)
            pmapped = over_devices(self.tx, jax.devices()[:n_devices])
            axis = np.zeros(n_devices, np.float32)
            self.step = lambda *arguments: pmapped(*arguments, axis)
            self.carried = state, owned, params

    def __call__(self) -> None:
        self.carried = jax.block_until_ready(self.step(*self.carried, self.grads))


def compare(tree: Any, rounds: int) -> dict[tuple[str, int], float]:
    """Median CPU-seconds per update of every optimizer on 1 and 8 devices, and of the yardstick."""
    work: dict[tuple[str, int], Callable[[], Any]] = {("yardstick", 1): yardstick(tree)}
    for name in HYPERPARAMETERS:
        for n_devices in (1, 8):
            work[name, n_devices] = Run(tree, name, n_devices)
    for _ in range(3):  # compile; the second placement of donated state compiles once more
        for one in work.values():
            jax.block_until_ready(one())
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in work}
    for _ in range(rounds):
        for key, one in work.items():
            seconds[key].append(cpu_seconds(one)[0])
    return {key: statistics.median(x) for key, x in seconds.items()}


def compiled(tree: Any, name: str) -> dict[str, float]:
    """Lines of StableHLO, CPU-seconds to trace and to compile, and temporaries, on one device."""
    tx, _ = optim.make_optimizer(name, HYPERPARAMETERS[name], SCHEDULE, 100)
    params = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), tree, is_leaf=is_shape)
    state = jax.eval_shape(tx.init, params)
    trace_seconds, lowered = cpu_seconds(lambda: one_device(tx).lower(state, params, params))
    compile_seconds, program = cpu_seconds(lowered.compile)
    return {
        "lines": lowered.as_text().count("\n"),
        "trace_seconds": trace_seconds,
        "compile_seconds": compile_seconds,
        "temporary_gb": program.memory_analysis().temp_size_in_bytes / 1e9,
    }
