"""Cost and accuracy of the optimizers, each figure beside its limit.

    python -m benchmarks.optimizers [--rounds=7] [--full] [--peer=PATH]

CPU-seconds count all threads and are medians of interleaved rounds on one machine, so compare the
ratios, and run it on an idle one. The yardstick is a fixed amount of work in the same run: the
statistics and preconditioning matrix products plus 30 batched products over all root blocks.
Estimated cycles are the TPU compiler's, for the optimizer alone on 256 TPU v3 cores. They leave out
the time on the links, printed beside them (at half of the published bandwidth, an assumption).
`--full` adds an update of the whole ResNet-50 on one device. `--peer` compares Shampoo with the
implementation in a checkout of github.com/google-research/precondition, and runs nothing else.
"""

import argparse
import os
import statistics
import sys
import types
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("NPROC", "16")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import step
from benchmarks import parity, precondition_peer, shapes, tpu_cycles
from benchmarks.parity import report
from benchmarks.update_cost import HYPERPARAMETERS, Run, compare, compiled, cpu_seconds, optimizer
from configs import command_line, optimizers
from models.resnet import ResNet
from optim import inverse_root

SPECTRA = {
    1.5e-5: ("1 to 1e-6", np.logspace(0, -6, 128)),
    1e-6: ("rank 10", np.r_[np.linspace(1, 0.1, 10), np.zeros(118)]),
}
ROOT_LIMITS = {  # worst eigen-direction, by ridge and p; p = 1 is a direct solve
    1.5e-5: {1: 2e-3, 2: 2e-3, 3: 2e-3, 4: 1.5e-3, 6: 1.5e-3},
    1e-6: {1: 5e-2, 2: 5e-2, 3: 5e-2, 4: 1.5e-2, 6: 1.5e-2},
}


POD_LIMITS = {"shampoo": 3.0, "lars": 1.6, "nesterov": 1.4}  # ms of cycles
PEER_LIMIT = 0.155  # CPU-seconds of ours over theirs


def root_error(ridge: float, p: int) -> float:
    """Worst eigen-direction of the root of a 128 x 128 matrix, against float64."""
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(128, 128)))[0]
    a = np.float32((q * SPECTRA[ridge][1]) @ q.T)
    values, v = np.linalg.eigh(np.float64(a))
    root = inverse_root.inverse_pth_root(jnp.asarray(a)[None], p, ridge, True)[0][0]
    found = np.einsum("ji,jk,ki->i", v, np.float64(root), v)
    return np.max(np.abs(found * (values + ridge * values[-1]) ** (1 / p) - 1))


def exactness() -> None:
    print("roots, error of the worst eigen-direction")
    for ridge, limits in ROOT_LIMITS.items():
        for p, limit in limits.items():
            report(f"p = {p}, ridge {ridge}, {SPECTRA[ridge][0]}", root_error(ridge, p), limit)
    print("fifty updates against float64 transcriptions")
    for check in parity.checks():
        report(*check)


def digits() -> tuple[optax.GradientTransformation, Any]:
    """Returns the optimizer of `shampoo:digits` and the shapes of its parameters."""
    config = command_line.load("shampoo:digits").to_dict()
    tx, _ = optimizers.from_recipe(config)
    model = ResNet(**{**config["model"], "n_classes": 10})
    params = step.state_shapes(model, tx, (8, 8, 1)).params
    return tx, jax.tree.map(lambda x: x.shape, params)


def programs() -> None:
    print("ResNet-50, one device: StableHLO, CPU-seconds to trace and compile, temporaries")
    costs = {}
    for name in HYPERPARAMETERS:
        c = costs[name] = compiled(optimizer(name), shapes.resnet50())
        print(
            f"  {name:18}{c['lines']:7.0f} lines{c['trace_seconds']:7.1f} s"
            f"{c['compile_seconds']:7.1f} s{c['temporary_gb']:7.2f} GB",
            flush=True,
        )
    report("shampoo, lines", costs["shampoo"]["lines"], 10_000)
    report("shampoo, compile", costs["shampoo"]["compile_seconds"], 12, "s")
    report("shampoo, temporaries", costs["shampoo"]["temporary_gb"], 1.1, "GB")
    report("shampoo:digits, compile", compiled(*digits())["compile_seconds"], 6, "s")


def on_a_pod() -> None:
    print("ResNet-50, optimizer alone, compiled for 256 TPU v3 cores")
    if not tpu_cycles.available():
        print("  not run: needs make setup EXTRA=tpu")
        return
    milliseconds = {}
    for name in HYPERPARAMETERS:
        e = tpu_cycles.run(name)
        milliseconds[name] = e["compute_seconds"] * 1e3
        moved = sum(m["bytes"] for m in e["collectives"].values()) / 1e6
        print(
            f"  {name:18}{milliseconds[name]:6.2f} ms of cycles, {moved:4.0f} MB moved, "
            f"{e['link_seconds'] * 1e3:.2f} ms on the links",
            flush=True,
        )
    for name, limit in POD_LIMITS.items():
        report(f"{name}, cycles", milliseconds[name], limit, "ms")


def updates(rounds: int) -> None:
    print("an eighth of ResNet-50 (bottleneck blocks 8 to 10), CPU-seconds per update")
    found = compare(shapes.bottlenecks(range(8, 11)), rounds)
    unit = found["yardstick", 1]
    print(f"  {'':18}{'1 device':>10}{'8 devices':>11}{'8 / 1':>8}{'1 / yardstick':>15}")
    print(f"  {'yardstick':18}{unit:10.3f}")
    for name in HYPERPARAMETERS:
        one, eight = found[name, 1], found[name, 8]
        print(f"  {name:18}{one:10.3f}{eight:11.3f}{eight / one:8.2f}{one / unit:15.2f}")
    report("shampoo, 1 device over the yardstick", found["shampoo", 1] / unit, 1.4)
    report("shampoo, 8 devices over 1", found["shampoo", 8] / found["shampoo", 1], 1.35)


def beside_the_peer(peer: types.ModuleType, rounds: int) -> None:
    print("Shampoo beside google-research/precondition, at the hyperparameters of shampoo:readme")
    report("distance after ten updates of a small tree", precondition_peer.distance(peer), 1e-4)
    print("an eighth of ResNet-50 (bottleneck blocks 8 to 10), CPU-seconds per update")
    seconds = precondition_peer.compare(peer, shapes.bottlenecks(range(8, 11)), rounds)
    for n, devices in ((1, "1 device"), (8, "8 devices")):
        one, other = seconds["ours", n], seconds["theirs", n]
        print(f"  {devices}: ours {one:.3f}, theirs {other:.3f}")
        report(f"ours over theirs, {devices}", one / other, PEER_LIMIT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--full", action="store_true", help="add the whole ResNet-50, one device")
    parser.add_argument("--peer", metavar="PATH", help="a checkout of google-research/precondition")
    flags = parser.parse_args()
    if flags.peer is not None:
        try:
            peer = precondition_peer.load(flags.peer)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        beside_the_peer(peer, flags.rounds)
        return 0
    exactness()
    updates(flags.rounds)
    programs()
    on_a_pod()
    if flags.full:
        for name in HYPERPARAMETERS:
            run = Run(optimizer(name), shapes.resnet50(), 1)
            costs = [cpu_seconds(run)[0] for _ in range(2 + flags.rounds)][2:]
            print(f"{name:18}{statistics.median(costs):8.3f} CPU-s per update")
    return 0


if __name__ == "__main__":
    sys.exit(main())
