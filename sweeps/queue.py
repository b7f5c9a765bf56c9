"""The runs that are still to be done: what is taken, tried again, given up, and said about it."""

import datetime
import sys
import time
from collections import deque
from collections.abc import Sequence

from sweeps import abandoned
from sweeps.manifest import Manifest
from sweeps.runs import STOPPED_EARLY, Run

STOPPED = ("preempted", "aborted")  # statuses of a run that is to be continued
GIVEN_UP = ("crashed", "failed")  # beginnings of what a run that was given up ended with
NOT_FINISHED = (*GIVEN_UP, STOPPED_EARLY)


class Queue:
    """All runs that are not complete; none is ever dropped.

    Attributes:
      waiting: runs to take, in order.
      complete: runs that were so before.
      stopped: whether a run diverged whose config ends the sweep then.
      ended: how each run ended that needs nothing more: done, diverged, "crashed: ..." or
        "failed: ..." (a user error, which would be the same on a second attempt).
    """

    def __init__(self, runs: Sequence[Run], manifest: Manifest, attempts: int):
        self.waiting = deque(run for run in runs if not run.is_complete())
        self.under_way: set[Run] = set()
        to_do = set(self.waiting)
        self.complete = [run for run in runs if run not in to_do]
        self.manifest, self.attempts = manifest, attempts
        self.total = len(self.waiting)
        self.tries = dict.fromkeys(self.waiting, 0)
        self.ended: dict[Run, str] = {}
        self.stopped = False
        self.began = time.monotonic()
        self.manifest.note_waiting(self.waiting)
        if self.complete:
            print(f"{len(self.complete)} of {len(runs)} runs are complete already", flush=True)

    @property
    def is_over(self) -> bool:
        return not self.waiting and not self.under_way

    @property
    def finished(self) -> list[Run]:
        """Those that ran their whole budget, in this call or before."""
        before = [run for run in self.complete if run.status() == "done"]
        return before + [run for run, status in self.ended.items() if status == "done"]

    @property
    def has_failures(self) -> bool:
        return any(status.startswith(GIVEN_UP) for status in self.ended.values())

    def take(self, run: Run, status: str = "started") -> None:
        self.waiting.remove(run)
        self.under_way.add(run)
        self.tries[run] += 1
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        self.manifest.write(run, status, self.tries[run])

    def end(self, run: Run, status: str) -> None:
        """Takes down how an attempt ended; the run waits again if it may be tried again."""
        self.manifest.write(run, status, self.tries[run])
        self.under_way.remove(run)
        if self.stopped and (status in STOPPED or status.startswith("crashed")):
            return  # a later call takes it up
        if status in STOPPED:
            self.tries[run] -= 1  # nobody's fault
            self.waiting.appendleft(run)
        elif status.startswith("crashed") and self.tries[run] < self.attempts:
            print(f"\n{run.name}: {status}; trying again", flush=True)
            self.waiting.append(run)
        else:
            self.ended[run] = status
            if status.startswith(NOT_FINISHED):
                abandoned.write(run, status)
            if status != "done":
                print(f"\n{run.name}: {status}; see {run.folder}.log", flush=True)
            if status == "diverged" and run.config().on_divergence == "stop_sweep":
                self.stop(run)
            self.show_progress(run)

    def stop(self, diverged: Run) -> None:
        """Lets what is under way end, and begins nothing more in this call."""
        print(
            f"\n{diverged.name} diverged, and on_divergence=stop_sweep: {len(self.waiting)} runs "
            "are not begun; the same command goes on with them",
            flush=True,
        )
        self.stopped = True
        self.waiting.clear()

    def show_progress(self, last: Run) -> None:
        """One line, rewritten on a terminal, with the time that the rest will take so."""
        n, seconds = len(self.ended), time.monotonic() - self.began
        eta = datetime.timedelta(seconds=round(seconds / n * (self.total - n)))
        line = f"{n:>3} of {self.total} runs, ETA {eta}, last: {last.name}"
        tty = sys.stdout.isatty()
        print(f"\r{line:<72}" if tty else line, end="" if tty else "\n", flush=True)
