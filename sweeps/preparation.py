"""Checks and data preparation before the first run starts."""

import subprocess
import sys
from collections.abc import Iterable

import input_pipeline
from errors import UserError
from input_pipeline import dataset
from sweeps.runs import Run


def check_parts(runs: Iterable[Run], *, on_cpu: bool) -> None:
    """Raises UserError if the data set or the optimizer of a run cannot be built.

    Args:
      on_cpu: whether this process leaves the accelerators to its workers.
    """
    import jax  # imported late, so that --help is fast

    from configs import optimizers

    if on_cpu:
        jax.config.update("jax_platforms", "cpu")
    for run in {(run.recipe, run.group): run for run in runs}.values():  # seeds do not matter
        config = run.config()
        input_pipeline.describe(**config.dataset.to_dict())
        optimizers.from_recipe(config)


def require_data(name: str, data_dir: str) -> None:
    """Raises UserError unless the data set is prepared: hosts must not do so at once."""
    if dataset.locate(name, data_dir) is None:
        raise UserError(
            f"dataset.data_dir={data_dir}: {name} is not prepared there; before a sweep on several "
            f"hosts run python -m input_pipeline --name={name} --data_dir={data_dir}"
        )


def prepare_data(name: str, data_dir: str) -> None:
    """Prepares a missing data set, in a separate process.

    Raises:
      UserError: it cannot be prepared; the message says what to do.
    """
    if dataset.locate(name, data_dir) is None:
        command = [sys.executable, "-m", "input_pipeline", f"--name={name}"]
        done = subprocess.run(
            [*command, f"--data_dir={data_dir}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(last.removeprefix("error: "))
