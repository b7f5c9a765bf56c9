"""CPU-seconds per update of an optimizer on a tree, beside a fixed yardstick in the same run."""

import collections
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from benchmarks import reference
from configs import optimizers
from optim import sharding

SHAMPOO: dict[str, Any] = {  # shampoo:readme
    "beta1": 0.95,
    "beta2": 0.85,
    "matrix_epsilon": 1.5e-5,
    "exponent_override": 4,
    "weight_decay": 1e-4,
    "start_preconditioning_step": 25,
}
MLPERF_V1: dict[str, Any] = {  # shampoo:mlperf_v1
    "beta1": 0.96,
    "beta2": 0.75,
    "matrix_epsilon": 1e-8,
    "relative_matrix_epsilon": False,
    "exponent_override": 4,
    "weight_decay": 6.248644874764753e-05,
    "start_preconditioning_step": 5,
}
# {label: (name in `optimizers.BUILDERS`, hyperparameters)}
HYPERPARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "nesterov": ("nesterov", {"momentum": 0.9}),
    "lars": ("lars", {"momentum": 0.929, "weight_decay": 1e-4}),
    "sm3": ("sm3", {"momentum": 0.9}),
    "shampoo": ("shampoo", SHAMPOO),
    "shampoo_mlperf_v1": ("shampoo", MLPERF_V1),
}
SCHEDULE = {"peak_learning_rate": 0.1, "warmup_steps": 5.0}
Work = Callable[[], Any]
Key = TypeVar("Key", bound=Hashable)


def optimizer(label: str, total_steps: int = 100) -> optax.GradientTransformation:
    """Returns the optimizer of a label of `HYPERPARAMETERS`."""
    return optimizers.make_optimizer(*HYPERPARAMETERS[label], SCHEDULE, total_steps)[0]


def is_shape(x: Any) -> bool:
    return isinstance(x, tuple)


def random_tree(tree: Any, seed: int) -> Any:
    """Returns normal numbers: one step lifts the statistics far above the initial epsilon."""
    r = np.random.default_rng(seed)
    return jax.tree.map(lambda s: np.asarray(r.normal(size=s), np.float32), tree, is_leaf=is_shape)


def one_device(tx: optax.GradientTransformation) -> Any:
    def step(state, params, grads):
        updates, state = tx.update(grads, state, params)
        return state, optax.apply_updates(params, updates)

    return jax.jit(step, donate_argnums=(0, 1))


def over_devices(tx: optax.GradientTransformation, devices: Sequence[Any]) -> Any:
    """Returns a pmap: (state, sharded, params, grads, axis) -> (state, sharded, params).

    `axis` holds one number per device. It gives pmap an axis where `sharded` is empty.
    """

    def step(state, sharded, params, grads, _):
        updates, state = tx.update(grads, sharding.attach(state, sharded), params)
        state, sharded = sharding.detach(state)
        return state, sharded, optax.apply_updates(params, updates)

    return jax.pmap(
        step,
        axis_name="batch",
        in_axes=(None, 0, None, None, 0),
        out_axes=(None, 0, None),
        donate_argnums=(0, 1, 2),
        devices=devices,
    )


def yardstick(tree: Any) -> Work:
    """Returns a fixed amount of work, which does not depend on how `optim` lays out its blocks.

    It is one update's statistics and preconditioning products for blocks of up to 128, and 30
    products of all their roots.
    """
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    for shape in jax.tree.leaves(tree, is_leaf=is_shape):
        for box in reference.block_slices(reference.merged(shape, 128), 128):
            counts[tuple(s.stop - s.start for s in box)] += 1
    r = np.random.default_rng(0)
    gradients = [jnp.asarray(r.normal(size=(n, *b)), jnp.float32) for b, n in counts.items()]
    sizes: collections.Counter[int] = collections.Counter()
    for block, n in counts.items():
        for d in block:
            sizes[d] += n
    roots = {d: jnp.tile(jnp.eye(d), (n, 1, 1)) for d, n in sizes.items()}
    dot = partial(lax.dot_general, precision=lax.Precision.HIGHEST)

    @jax.jit
    def work(gradients, roots):
        out = []
        for g in gradients:
            axes = range(1, g.ndim)
            others = [[j for j in axes if j != i] for i in axes]
            statistics = [dot(g, g, ((o, o), ((0,), (0,)))) for o in others]
            for i in axes:  # the contracted axis goes first, the new one comes last
                g = dot(g, statistics[i - 1], (((1,), (1,)), ((0,), (0,))))
            out.append((statistics, g))
        for _ in range(30):
            roots = {d: jnp.matmul(x, x, precision=lax.Precision.HIGHEST) for d, x in roots.items()}
        return out, roots

    return lambda: work(gradients, roots)


def cpu_seconds(work: Work) -> tuple[float, Any]:
    before = time.process_time()
    result = jax.block_until_ready(work())
    return time.process_time() - before, result


class Run:
    """One optimizer on one tree and number of devices; each call is one update of its state."""

    def __init__(self, tx: optax.GradientTransformation, tree: Any, n_devices: int):
        params = random_tree(tree, 1)
        self.carried: tuple[Any, ...]
        self.step: Callable[..., Any]
        self.grads = random_tree(tree, 2)
        if n_devices == 1:
            self.step, self.carried = one_device(tx), (tx.init(params), params)
        else:
            state, sharded = sharding.split(tx.init(params), n_devices)
            pmapped = over_devices(tx, jax.devices()[:n_devices])
            axis = np.zeros(n_devices, np.float32)
            self.step = lambda *arguments: pmapped(*arguments, axis)
            self.carried = state, sharded, params

    def __call__(self) -> None:
        self.carried = jax.block_until_ready(self.step(*self.carried, self.grads))


def interleaved(work: Mapping[Key, Work], rounds: int) -> dict[Key, float]:
    """Returns the median CPU-seconds of each piece of work, measured in turns."""
    for _ in range(3):  # compile; the second placement of donated state compiles once more
        for one in work.values():
            jax.block_until_ready(one())
    seconds: dict[Key, list[float]] = {key: [] for key in work}
    for _ in range(rounds):
        for key, one in work.items():
            seconds[key].append(cpu_seconds(one)[0])
    return {key: statistics.median(x) for key, x in seconds.items()}


def compare(tree: Any, rounds: int) -> dict[tuple[str, int], float]:
    """Median CPU-seconds per update of every optimizer on 1 and 8 devices, and of the yardstick."""
    work: dict[tuple[str, int], Work] = {("yardstick", 1): yardstick(tree)}
    for label in HYPERPARAMETERS:
        for n_devices in (1, 8):
            work[label, n_devices] = Run(optimizer(label), tree, n_devices)
    return interleaved(work, rounds)


def compiled(tx: optax.GradientTransformation, tree: Any) -> dict[str, float]:
    """Lines of StableHLO, CPU-seconds to trace and to compile, and temporaries, on one device."""
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
