"""What checkpoints cost: `python -m benchmarks.checkpoints [--minutes=5]`.

First the same run with and without a checkpoint every 30 s, in CPU-seconds of all threads. Then one
save and one restore of ResNet-50's state with Shampoo, in seconds of the clock: measure on a quiet
machine. Each figure stands beside its limit.
"""

import argparse
import math
import pathlib
import tempfile
import time
from typing import Any

import jax
import numpy as np
from etils import epath

import checkpoint
import input_pipeline
import step as steps
import train
from configs import command_line, optimizers

LIMIT_SHARE = 0.03
LIMIT_BLOCKING_SECONDS, LIMIT_RESTORE_SECONDS = 1.0, 10.0
EVERY_MINUTES = 0.5


def run(folder: pathlib.Path, n_steps: int, every_minutes: float) -> dict[str, float]:
    """Trains nesterov:digits for so many steps; returns run.json's seconds."""
    overrides = [
        f"--config.total_steps={n_steps}",
        f"--config.eval_every_steps={n_steps}",
        f"--config.checkpoint_every_minutes={every_minutes}",
        f"--config.dataset.data_dir={folder / 'data'}",
    ]
    config = command_line.load("nesterov:digits", overrides)
    workdir = folder / f"{n_steps}_{every_minutes}"
    return dict(train.train_and_evaluate(config, str(workdir)).seconds)


def show(what: str, value: float, unit: str, limit: float) -> None:
    verdict = "" if value <= limit else "  MISSED"
    print(f"{what:<52} {value:>7.2f} {unit:<3} limit {limit:g} {unit}{verdict}", flush=True)


def measure_share(folder: pathlib.Path, minutes: float) -> None:
    """Prints by how much checkpoints raise the CPU-seconds of a run of so many minutes."""
    n_trial = 40
    seconds = run(folder, n_trial, 0.0)["train"]
    n_steps = math.ceil(60 * minutes * n_trial / seconds / 10) * 10
    without = run(folder, n_steps, 0.0)
    with_checkpoints = run(folder, n_steps, EVERY_MINUTES)
    extra = with_checkpoints["cpu"] / without["cpu"] - 1
    length = f"{with_checkpoints['train'] / 60:.1f} min"
    show(f"CPU of a checkpoint every 30 s, over {length}", 100 * extra, "%", 100 * LIMIT_SHARE)


def resnet50_with_shampoo() -> steps.TrainState:
    """A canonical state full of noise, as after many steps.

    Initial statistics are multiples of the identity, which compress to nothing.
    """
    config = command_line.load("shampoo:readme")
    spec = input_pipeline.describe("imagenet2012", None)
    program = train.build(config, spec, optimizers.from_recipe(config))
    shapes = steps.state_shapes(program.model, program.tx, spec.image_shape)
    rng = np.random.default_rng(0)

    def noise(x: jax.ShapeDtypeStruct) -> Any:
        floats = np.issubdtype(x.dtype, np.floating)
        return rng.standard_normal(x.shape, np.float32) if floats else np.zeros(x.shape, x.dtype)

    return jax.tree.map(noise, shapes)


def measure_resnet50(folder: pathlib.Path) -> None:
    """Prints the seconds of a save and of a restore."""
    canonical = resnet50_with_shampoo()
    state = steps.place(canonical)
    n_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    checkpoints = checkpoint.Checkpoints(epath.Path(folder), keep=2)
    checkpoints.save(0, state, {})  # compiles what gathers the rows
    assert checkpoints.manager is not None
    checkpoints.manager.wait_until_finished()
    began = time.monotonic()
    checkpoints.save(1, state, {})
    blocking = time.monotonic() - began
    checkpoints.close()
    total = time.monotonic() - began
    checkpoints = checkpoint.Checkpoints(epath.Path(folder), keep=2)
    began = time.monotonic()
    checkpoints.restore_latest(canonical)
    seconds = time.monotonic() - began
    checkpoints.close()
    print(f"ResNet-50 with Shampoo: {n_bytes / 1e6:,.0f} MB, saved in {total:.1f} s in all")
    show("blocking part of a save", blocking, "s", LIMIT_BLOCKING_SECONDS)
    show("restore", seconds, "s", LIMIT_RESTORE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description="What checkpoints cost.")
    parser.add_argument("--minutes", type=float, default=5.0, help="of training, twice")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure_resnet50(pathlib.Path(folder) / "resnet50")
        measure_share(pathlib.Path(folder), options.minutes)


if __name__ == "__main__":
    main()
