"""A worker: a process on cores of its own that takes run after run."""

import contextlib
import ctypes
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from errors import PREEMPTED, Preempted, UserError
from sweeps.queue import STOPPED
from sweeps.runs import Run

PR_SET_PDEATHSIG = 1  # of prctl(2)
# A CPU step frees and allocates its 100 MB of temporaries anew; by default glibc gives them back to
# the kernel each time, and a digits step then takes 190 ms instead of 118 (interleaved, one core).
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}


@dataclasses.dataclass
class Worker:
    """A worker's process, the pipe to it, the run it is on, and why that is told to stop."""

    process: multiprocessing.process.BaseProcess
    connection: multiprocessing.connection.Connection
    run: Run | None = None
    last_recipe: str = ""
    stopped_because: str | None = None


def start(cores: Sequence[int]) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, cores), daemon=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # inherited: see `leave_terminal`
    process.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    theirs.close()
    return Worker(process, ours)


def stop_all() -> None:
    """Lets every worker save its run and end; a KeyboardInterrupt meanwhile ends them at once."""
    workers = multiprocessing.active_children()
    for process in workers:
        process.terminate()
    try:
        for process in workers:
            process.join()
    except KeyboardInterrupt:
        for process in workers:
            process.kill()


# In the worker's process.


def leave_terminal() -> None:
    """Ctrl-C is then the sweep's alone, which ends the workers by SIGTERM.

    It would reach every process of the terminal's group: a worker would get two signals, and the
    second one by design cuts the saving short. Blocked until here since before the process was.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def end_with_the_sweep() -> None:
    """SIGTERM when the sweep is killed: saves the run, which the next sweep takes up at once."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def work(connection, cores: Sequence[int]) -> None:
    """Takes runs from the connection until None comes; answers each with its status."""
    leave_terminal()
    end_with_the_sweep()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    while (run := connection.recv()) is not None:
        status = train_logged(run)
        connection.send(status)
        if status in STOPPED:
            sys.exit(PREEMPTED)


def train_logged(run: Run) -> str:
    """Trains, says so in FOLDER.log, and returns the status."""
    import train

    log = (run.folder.parent / f"{run.folder.name}.log").open("a")
    with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            return train.train_and_evaluate(run.config(), str(run.folder)).status
        except Preempted:
            return "preempted"
        except UserError as e:  # the same again on a second attempt
            traceback.print_exc()
            return f"failed: {e}"
        except Exception as e:
            traceback.print_exc()
            return f"crashed: {type(e).__name__}: {e}"
