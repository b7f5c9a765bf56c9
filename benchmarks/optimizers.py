"""What an update costs: `python -m benchmarks.optimizers [--rounds=7] [--full]`.

CPU-seconds per update (all threads), medians of interleaved rounds on one machine, so compare the
ratios. The yardstick is a fixed amount of work in the same run: the statistics and preconditioning
matrix products plus 30 batched products over all root blocks. `--full` adds the whole ResNet-50 on
one device, with the time to trace and to compile it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("NPROC", "16")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import optim
from benchmarks import shapes
from optim import blocks, distribute, inverse_root, preconditioner

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


def eight_devices(tx: optax.GradientTransformation) -> Callable[..., Any]:
    def step(state, owned, params, grads, _):
        updates, state = tx.update(grads, distribute.attach(state, owned), params)
        state, owned = distribute.detach(state)
        return state, owned, optax.apply_updates(params, updates)

    pmapped = jax.pmap(
        step,
        axis_name="batch",
        in_axes=(None, 0, None, None, 0),
        out_axes=(None, 0, None),
        donate_argnums=(0, 1, 2),
    )
    return lambda *carried: pmapped(*carried, np.zeros(8))  # the axis, where nothing is owned


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
        self.grads = random_tree(tree, 2)
        if n_devices == 1:
            self.step, self.carried = one_device(self.tx), (self.tx.init(params), params)
        else:
            state, owned = distribute.split(self.tx.init(params), n_devices)
            self.step, self.carried = eight_devices(self.tx), (state, owned, params)

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


def root_errors() -> dict[str, float]:
    """Worst eigen-direction of p = 4 against float64, on the spectra of the design study."""
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(128, 128)))[0]
    cases = {
        "1.5e-5, 1 to 1e-6": (1.5e-5, np.logspace(0, -6, 128)),
        "1e-6, rank 10": (1e-6, np.r_[np.linspace(1, 0.1, 10), np.zeros(118)]),
    }
    errors = {}
    for label, (ridge, spectrum) in cases.items():
        a = np.float32((q * spectrum) @ q.T)
        values, v = np.linalg.eigh(np.float64(a))
        root = inverse_root.inverse_pth_root(jnp.asarray(a)[None], 4, ridge, True)[0][0]
        found = np.einsum("ji,jk,ki->i", v, np.float64(root), v)
        errors[label] = np.max(np.abs(found * (values + ridge * values[-1]) ** 0.25 - 1))
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--full", action="store_true", help="the whole ResNet-50 on one device too")
    flags = parser.parse_args()
    print("an eighth of ResNet-50 (bottleneck blocks 8 to 10), CPU-seconds per update")
    found = compare(shapes.bottlenecks(range(8, 11)), flags.rounds)
    unit = found["yardstick", 1]
    print(f"{'':14}{'1 device':>10}{'8 devices':>11}{'8 / 1':>8}{'1 / yardstick':>15}")
    print(f"{'yardstick':14}{unit:10.3f}")
    for name in HYPERPARAMETERS:
        one, eight = found[name, 1], found[name, 8]
        print(f"{name:14}{one:10.3f}{eight:11.3f}{eight / one:8.2f}{one / unit:15.2f}")
    for label, error in root_errors().items():
        print(f"root error, p = 4, ridge {label}: {error:.1e}")
    print("ResNet-50, one device: StableHLO lines, CPU-seconds to trace and compile, temporaries")
    for name in HYPERPARAMETERS:
        c = compiled(shapes.resnet50(), name)
        print(
            f"{name:14}{c['lines']:7.0f} lines{c['trace_seconds']:7.1f} s"
            f"{c['compile_seconds']:7.1f} s{c['temporary_gb']:7.2f} GB"
        )
    if flags.full:
        for name in HYPERPARAMETERS:
            run = Run(shapes.resnet50(), name, 1)
            costs = [cpu_seconds(run)[0] for _ in range(2 + flags.rounds)][2:]
            print(f"{name:14}{statistics.median(costs):8.3f} CPU-s per update")


if __name__ == "__main__":
    main()
