"""A sweep on a SLURM cluster through submitit: one array, a task takes one run.

A task that is preempted or runs out of time lets its run save and is queued again. The sweep's own
process waits for the jobs and keeps the manifest; if it is stopped, they go on, and the same
command waits for them again. OUT must be on a file system that the nodes share, as must this code.
"""

import argparse
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

import workdir as files
from errors import UserError
from sweeps.attempt import ROOT, Attempt, command
from sweeps.queue import Queue
from sweeps.runs import Run

POLL_SECONDS = 10.0
MOST_REQUEUES = 1000


class Task:
    """What runs on a node; submitit pickles it and calls `checkpoint` when it must go."""

    def __init__(self, run: Run, command: Sequence[str]):
        self.run, self.command = run, command
        self.attempt: Attempt | None = None

    def __call__(self) -> str:
        self.attempt = Attempt(self.run, self.command)
        return self.attempt.status()

    def checkpoint(self) -> Any:
        """Called by submitit's signal handler: saves, and says what is to be queued again."""
        import submitit

        if self.attempt:
            self.attempt.stop()
        return submitit.helpers.DelayedSubmission(Task(self.run, self.command))


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a SLURM cluster (needs make setup EXTRA=slurm)")
    group.add_argument("--slurm", action="store_true", help="one array, a task takes one run")
    group.add_argument("--slurm_partition", help="the cluster's default if not given")
    group.add_argument("--slurm_minutes", type=int, default=60, help="of a task; then it continues")
    group.add_argument("--slurm_cpus", type=int, default=2, help="of a task")
    group.add_argument("--slurm_gpus", type=int, default=0, help="of a task")
    group.add_argument("--slurm_parallel", type=int, default=256, help="most tasks at a time")


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    """What submitit's executor is told about a task; {} without --slurm.

    Raises:
      UserError: a number below its least.
    """
    if not options.slurm:
        return {}
    for field, least in (("minutes", 1), ("cpus", 1), ("gpus", 0), ("parallel", 1)):
        if (value := getattr(options, f"slurm_{field}")) < least:
            raise UserError(f"slurm_{field}={value}: needs at least {least}")
    found = {
        "name": "sweep",
        "timeout_min": options.slurm_minutes,
        "cpus_per_task": options.slurm_cpus,
        "gpus_per_node": options.slurm_gpus,
        "slurm_array_parallelism": options.slurm_parallel,
    }
    return found | ({"slurm_partition": options.slurm_partition} if options.slurm_partition else {})


def executor(out: pathlib.Path, settings: Mapping[str, Any], cluster: str = "slurm") -> Any:
    """submitit's executor, which keeps its files in OUT/.slurm.

    Raises:
      UserError: submitit is not installed, or there is no SLURM here.
    """
    try:
        import submitit

        made = submitit.AutoExecutor(
            out.absolute() / ".slurm", cluster=cluster, slurm_max_num_timeout=MOST_REQUEUES
        )
    except ImportError as e:
        raise UserError("slurm: needs submitit; make setup EXTRA=slurm installs it") from e
    except RuntimeError as e:
        raise UserError(f"slurm: is not to be had here ({e}); run it where sbatch is") from e
    made.update_parameters(**settings)
    path = os.environ.get("PYTHONPATH")  # the nodes import `Task` from here
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), path]))
    return made


def run_all(queue: Queue, executor: Any, poll_seconds: float = POLL_SECONDS) -> None:
    """Submits all that waits and waits for it; what is to be tried again is submitted again."""
    jobs = attached(queue, executor.folder)
    while not queue.is_over:
        if queue.waiting:
            jobs |= submit(queue, executor)
        for run in [run for run, job in jobs.items() if job.done()]:
            queue.end(run, status(run, jobs.pop(run)))
        if jobs:
            time.sleep(poll_seconds)


def submit(queue: Queue, executor: Any) -> dict[Run, Any]:
    """One array of all that waits; notes the jobs' ids for a later call."""
    asked = list(queue.waiting)
    with executor.batch():
        jobs = [executor.submit(Task(run, command(run))) for run in asked]
    for run in asked:
        queue.take(run, "submitted")
    file = epath.Path(executor.folder) / "jobs.json"
    known = files.read_json(file) if file.exists() else {}
    ids = {str(run.folder): job.job_id for run, job in zip(asked, jobs, strict=True)}
    files.write_json(file, known | ids)
    return dict(zip(asked, jobs, strict=True))


def attached(queue: Queue, folder: pathlib.Path) -> dict[Run, Any]:
    """The jobs of an earlier call that are still on the cluster."""
    import submitit

    try:
        known = json.loads((folder / "jobs.json").read_text())
    except FileNotFoundError:
        return {}
    jobs = {}
    for run in list(queue.waiting):
        if job_id := known.get(str(run.folder)):
            job: Any = submitit.SlurmJob(folder, job_id)
            if not job.done():
                queue.take(run, "submitted")
                jobs[run] = job
    return jobs


def status(run: Run, job: Any) -> str:
    """How a finished job's run ended."""
    try:
        return job.result()
    except Exception as e:  # whatever a task raised, and all that SLURM does to one
        if run.is_complete():
            return str(run.status())
        last = str(e).strip().splitlines() or [type(e).__name__]
        return f"crashed: job {job.job_id}: {last[-1]}"
