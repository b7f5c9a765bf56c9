"""A sweep on a SLURM cluster through submitit: one array with one task per run.

A task that is preempted or out of time saves its run and is queued again. The process of the sweep
waits for the jobs and writes the manifest. If it is stopped, the jobs continue, and the same
command waits for them again. OUT and this code must be on a file system that the nodes share.
"""

import argparse
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from errors import UserError
from run import files
from sweeps.process import ROOT, RunProcess, command
from sweeps.queue import Queue
from sweeps.runs import Run

POLL_SECONDS = 10.0
MOST_REQUEUES = 1000


class Task:
    """The function that runs on a node. submitit pickles it, and calls `checkpoint` to stop it."""

    def __init__(self, run: Run, command: Sequence[str]):
        self.run, self.command = run, command
        self.process: RunProcess | None = None

    def __call__(self) -> str:
        self.process = RunProcess(self.run, self.command)
        return self.process.status()

    def checkpoint(self) -> Any:
        """Saves and returns the task to queue again; called by submitit's signal handler."""
        import submitit

        if self.process:
            self.process.stop()
        return submitit.helpers.DelayedSubmission(Task(self.run, self.command))


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a SLURM cluster (needs make setup EXTRA=slurm)")
    group.add_argument("--slurm", action="store_true", help="one array, with one task per run")
    group.add_argument("--slurm_partition", help="default: that of the cluster")
    group.add_argument("--slurm_minutes", type=int, default=60, help="time limit per task")
    group.add_argument("--slurm_cpus", type=int, default=2, help="CPUs per task")
    group.add_argument("--slurm_gpus", type=int, default=0, help="GPUs per task")
    group.add_argument("--slurm_parallel", type=int, default=256, help="number of tasks at a time")


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the parameters of submitit's executor; {} without --slurm.

    Raises:
      UserError: a number is too small.
    """
    if not options.slurm:
        return {}
    for field, least in (("minutes", 1), ("cpus", 1), ("gpus", 0), ("parallel", 1)):
        if (value := getattr(options, f"slurm_{field}")) < least:
            raise UserError(f"slurm_{field}={value}: must be at least {least}")
    settings = {
        "name": "sweep",
        "timeout_min": options.slurm_minutes,
        "cpus_per_task": options.slurm_cpus,
        "gpus_per_node": options.slurm_gpus,
        "slurm_array_parallelism": options.slurm_parallel,
    }
    if options.slurm_partition:
        settings["slurm_partition"] = options.slurm_partition
    return settings


def executor(out: pathlib.Path, settings: Mapping[str, Any], cluster: str = "slurm") -> Any:
    """Returns submitit's executor, which keeps its files in OUT/.slurm.

    Raises:
      UserError: submitit is not installed, or this is not a SLURM cluster.
    """
    try:
        import submitit

        executor = submitit.AutoExecutor(
            out.absolute() / ".slurm", cluster=cluster, slurm_max_num_timeout=MOST_REQUEUES
        )
    except ImportError as e:
        raise UserError("slurm: needs submitit; make setup EXTRA=slurm installs it") from e
    except RuntimeError as e:
        raise UserError(f"slurm: not available here ({e}); run it where sbatch is") from e
    executor.update_parameters(**settings)
    path = os.environ.get("PYTHONPATH")  # the nodes import `Task` from here
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), path]))
    return executor


def run_all(queue: Queue, executor: Any, poll_seconds: float = POLL_SECONDS) -> None:
    """Submits all waiting runs and waits for them; runs to try again are submitted again."""
    jobs = attached(queue, executor.folder)
    while not queue.is_over:
        if queue.waiting:
            jobs |= submit(queue, executor)
        for run in [run for run, job in jobs.items() if job.done()]:
            queue.end(run, status(run, jobs.pop(run)))
        if jobs:
            time.sleep(poll_seconds)


def submit(queue: Queue, executor: Any) -> dict[Run, Any]:
    """Submits one array of all waiting runs, and stores the job ids for a later call."""
    runs = list(queue.waiting)
    with executor.batch():
        jobs = [executor.submit(Task(run, command(run))) for run in runs]
    for run in runs:
        queue.take(run, "submitted")
    file = epath.Path(executor.folder) / "jobs.json"
    stored = files.read_json(file) if file.exists() else {}
    ids = {str(run.folder): job.job_id for run, job in zip(runs, jobs, strict=True)}
    files.write_json(file, stored | ids)
    return dict(zip(runs, jobs, strict=True))


def attached(queue: Queue, folder: pathlib.Path) -> dict[Run, Any]:
    """Returns the jobs of an earlier call that are still on the cluster."""
    import submitit

    try:
        ids = json.loads((folder / "jobs.json").read_text())
    except FileNotFoundError:
        return {}
    jobs = {}
    for run in list(queue.waiting):
        if job_id := ids.get(str(run.folder)):
            job: Any = submitit.SlurmJob(folder, job_id)
            if not job.done():
                queue.take(run, "submitted")
                jobs[run] = job
    return jobs


def status(run: Run, job: Any) -> str:
    """Returns how the run of a finished job ended."""
    try:
        return job.result()
    except Exception as e:  # anything that a task raised or that SLURM did to it
        if run.is_complete():
            return str(run.status())
        last = str(e).strip().splitlines() or [type(e).__name__]
        return f"crashed: job {job.job_id}: {last[-1]}"
