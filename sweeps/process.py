"""One run as a separate process: main.py, its log, and the meaning of its exit status."""

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence

from configs import command_line
from errors import DIVERGED, DONE, INTERRUPTED, PREEMPTED, USER_ERROR
from sweeps.runs import Run
from sweeps.worker import PR_SET_PDEATHSIG

ROOT = pathlib.Path(__file__).parents[1]
STATUSES = {DONE: "done", DIVERGED: "diverged", PREEMPTED: "preempted", INTERRUPTED: "aborted"}
STATUSES[-signal.SIGTERM] = "preempted"  # before it could install a handler
TERMINATED_WITH_PARENT = (
    "import ctypes, os, signal, sys; "
    f"ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGTERM); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def command(run: Run) -> list[str]:
    """Returns the command line that trains a run."""
    folder = os.fspath(run.folder)
    workdir = folder if "://" in folder else os.path.abspath(folder)
    config = f"--config={command_line.recipe_path(run.recipe)}"
    return [sys.executable, str(ROOT / "main.py"), config, *run.overrides, f"--workdir={workdir}"]


def terminated_with_parent(command: Sequence[str]) -> list[str]:
    """Returns a command that receives SIGTERM when its parent process dies (Linux)."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-c", TERMINATED_WITH_PARENT, *command]


def call(command: Sequence[str], cwd: pathlib.Path | None = None) -> int:
    """Runs one of our programs and returns its exit status.

    On KeyboardInterrupt, lets the program save before the exception is raised again.
    """
    process = subprocess.Popen(
        terminated_with_parent([sys.executable, *command]),
        cwd=cwd,
        start_new_session=True,  # otherwise Ctrl-C would signal it twice
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


class RunProcess:
    """A process of main.py, in its own session so that Ctrl-C does not signal it twice."""

    def __init__(self, run: Run, command: Sequence[str]):
        self.run = run
        self.log = pathlib.Path(f"{run.folder}.log")
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                terminated_with_parent(command),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Lets main.py save and waits for it; may be called from a signal handler."""
        self.process.terminate()
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def status(self) -> str:
        """Waits; returns done, diverged, preempted, "failed: ..." or "crashed: ..."."""
        exit_status = self.process.wait()
        if exit_status in STATUSES:
            return STATUSES[exit_status]
        last = (self.log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        if exit_status == USER_ERROR:
            return f"failed: {last.removeprefix('error: ')}"
        return f"crashed: main.py ended with {exit_status}: {last}"
