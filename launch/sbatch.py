"""SLURM: one task a host; jax.distributed finds the others by itself."""

import shlex
from collections.abc import Sequence

from errors import UserError

SECONDS_TO_SAVE = 120  # between SIGTERM and the end of the job's time


def script(hosts: int, devices_per_host: int, hours: int, command: Sequence[str]) -> str:
    """A batch file; a job that is preempted or out of time is queued again and continues.

    It is submitted from the root of this tree, on a file system that all hosts share, after
    `make setup` there.

    Raises:
      UserError: a count below 1.
    """
    for field, value in (
        ("hosts", hosts),
        ("devices_per_host", devices_per_host),
        ("hours", hours),
    ):
        if value < 1:
            raise UserError(f"{field}={value}: needs at least 1")
    return f"""\
#!/bin/bash
#SBATCH --job-name=reproduce
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={devices_per_host}
#SBATCH --exclusive
#SBATCH --time={hours}:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@{SECONDS_TO_SAVE}
#SBATCH --open-mode=append
set -uo pipefail
srun --kill-on-bad-exit=1 {shlex.join(command)}
status=$?
if [ $status -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $status
"""
