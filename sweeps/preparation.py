"""What is checked and made before the first run starts, so that no worker meets it."""

import subprocess
import sys

from ml_collections import ConfigDict

import input_pipeline
from errors import UserError
from input_pipeline import spec


def check_parts(config: ConfigDict) -> None:
    """Raises UserError for a data set or an optimizer that cannot be built."""
    import jax  # late: --help need not start it

    from configs import optimizers

    jax.config.update("jax_platforms", "cpu")  # accelerators are for the processes that train
    input_pipeline.describe(**config.dataset.to_dict())
    optimizers.from_recipe(
        config.optimizer.to_dict(), config.schedule.to_dict(), config.total_steps
    )


def require_data(name: str, data_dir: str) -> None:
    """Raises UserError unless the data set is there: hosts must not prepare it all at once."""
    if spec.locate(name, data_dir) is None:
        raise UserError(
            f"dataset.data_dir={data_dir}: {name} is not prepared there; before a sweep on several "
            f"hosts run python -m input_pipeline --name={name} --data_dir={data_dir}"
        )


def prepare_data(name: str, data_dir: str) -> None:
    """Prepares a data set that is not there yet, in a process of its own.

    Raises:
      UserError: it cannot be made or fetched; the message says what to do.
    """
    if spec.locate(name, data_dir) is None:
        command = [sys.executable, "-m", "input_pipeline", f"--name={name}"]
        done = subprocess.run(
            [*command, f"--data_dir={data_dir}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(last.removeprefix("error: "))
