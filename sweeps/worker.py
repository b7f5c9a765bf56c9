"""A worker: a process on its own cores that trains one run after the other."""

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
# A CPU step allocates its 100 MB of temporaries anew. By default glibc returns them to the kernel
# each time, and a digits step then takes 190 ms instead of 118 (interleaved, on one core).
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}


@dataclasses.dataclass
class Worker:
    """A worker's process, the pipe to it, and its current run."""

    process: multiprocessing.process.BaseProcess
    connection: multiprocessing.connection.Connection
    run: Run | None = None
    last_recipe: str = ""


def start(cores: Sequence[int]) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, cores), daemon=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # inherited, see `leave_terminal`
    process.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    theirs.close()
    return Worker(process, ours)


def stop_all() -> None:
    """Lets every worker save and exit; a KeyboardInterrupt meanwhile kills them."""
    workers = multiprocessing.active_children()
    for process in workers:
        process.terminate()
    try:
        for process in workers:
            process.join()
    except KeyboardInterrupt:
        for process in workers:
            process.kill()


# The functions below run in the process of the worker.


def leave_terminal() -> None:
    """Leaves Ctrl-C to the sweep, which ends its workers with SIGTERM.

    The terminal signals every process of its group. A worker would receive two signals, and the
    second one ends a process while it saves. SIGINT was blocked before this process started.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def end_with_the_sweep() -> None:
    """Requests SIGTERM when the sweep is killed, so that the run is saved and can be resumed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def work(connection, cores: Sequence[int]) -> None:
    """Trains the runs from the connection, up to None, and sends back the status of each."""
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
    """Trains, appending output to FOLDER.log, and returns the status."""
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(f"{run.folder}.log", "a"))
        stack.enter_context(contextlib.redirect_stdout(log))
        stack.enter_context(contextlib.redirect_stderr(log))
        try:
            return train(run)
        except Exception as e:
            traceback.print_exc()
            return f"crashed: {type(e).__name__}: {e}"


def train(run: Run) -> str:
    """Trains in this process and returns the status; crashes are raised."""
    from train import train_and_evaluate

    try:
        return train_and_evaluate(run.config(), str(run.folder)).status
    except Preempted:
        return "preempted"
    except UserError as e:  # a second attempt would repeat it
        traceback.print_exc()
        return f"failed: {e}"
