"""One run as a process of its own: main.py, its log, and what its exit status says."""

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
MAIN = ROOT / "main.py"
ENDS = {DONE: "done", DIVERGED: "diverged", PREEMPTED: "preempted", INTERRUPTED: "aborted"}
ENDS[-signal.SIGTERM] = "preempted"  # before it could listen
LEASH = (
    "import ctypes, os, signal, sys; "
    f"ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGTERM); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def command(run: Run, flags: Sequence[str] = ()) -> list[str]:
    """The command line of a run; `flags` are those by which main.py joins other hosts."""
    folder = os.fspath(run.folder)
    workdir = folder if "://" in folder else os.path.abspath(folder)
    start = [sys.executable, str(MAIN), f"--config={command_line.recipe_path(run.recipe)}"]
    return [*start, *run.overrides, f"--workdir={workdir}", *flags]


def on_a_leash(command: Sequence[str]) -> list[str]:
    """The command that gets a SIGTERM when the process that starts it is killed (Linux)."""
    return [sys.executable, "-c", LEASH, *command] if sys.platform == "linux" else list(command)


def call(command: Sequence[str], cwd: pathlib.Path | None = None) -> int:
    """Runs one of our programs in a process of its own; returns its exit status.

    A KeyboardInterrupt lets it save before it is passed on.
    """
    process = subprocess.Popen(
        on_a_leash([sys.executable, *command]),
        cwd=cwd,
        start_new_session=True,  # else Ctrl-C would signal it twice
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


class Attempt:
    """Starts main.py at once; out of the terminal's reach, so that Ctrl-C does not signal twice."""

    def __init__(self, run: Run, command: Sequence[str], process_id: int = 0):
        self.run = run
        suffix = f".host_{process_id:03d}.log" if process_id else ".log"
        self.log = run.folder.parent / f"{run.folder.name}{suffix}"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                on_a_leash(command),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Lets main.py save, and waits for it; also from within a signal handler."""
        self.process.terminate()
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def status(self) -> str:
        """Waits for the end; returns done, diverged, preempted, "failed: ..." or "crashed: ..."."""
        returncode = self.process.wait()
        if returncode in ENDS:
            return ENDS[returncode]
        if self.run.is_complete():  # as when another host was lost after the last step
            return str(self.run.status())
        last = (self.log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        if returncode == USER_ERROR:
            return f"failed: {last.removeprefix('error: ')}"
        return f"crashed: main.py ended with {returncode}: {last}"
