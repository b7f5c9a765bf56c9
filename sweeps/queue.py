"""The runs that are not complete: which is next, which is tried again, which has failed."""

import datetime
import sys
import time
from collections import deque
from collections.abc import Sequence

from etils import epath

from errors import UserError
from run import files, identity, schema
from sweeps.manifest import Manifest
from sweeps.runs import Run

STOPPED = ("preempted", "aborted")  # statuses of a run that continues later
FAILED = ("crashed", "failed")  # prefixes of the statuses of a run that the sweep gave up


class Queue:
    """All runs that are not complete; none is ever dropped.

    Attributes:
      waiting: runs to start, in order.
      running: runs that were started and have not ended.
      complete: runs that were complete before.
      ended: final status of each run: done, diverged, "crashed: ..." after the last attempt, or
        "failed: ..." for a user error, which a second attempt would repeat.
      is_stopped: whether a run diverged whose config then ends the sweep.
    """

    def __init__(self, runs: Sequence[Run], manifest: Manifest, attempts: int):
        self.waiting = deque(run for run in runs if not run.is_complete())
        self.running: set[Run] = set()
        to_do = set(self.waiting)
        self.complete = [run for run in runs if run not in to_do]
        self.manifest, self.attempts = manifest, attempts
        self.total = len(self.waiting)
        self.tries = dict.fromkeys(self.waiting, 0)
        self.ended: dict[Run, str] = {}
        self.is_stopped = False
        self.start_time = time.monotonic()
        self.manifest.note_waiting(self.waiting)
        if self.complete:
            print(f"{len(self.complete)} of {len(runs)} runs are already complete", flush=True)

    @property
    def is_over(self) -> bool:
        return not self.waiting and not self.running

    @property
    def has_failures(self) -> bool:
        return any(status.startswith(FAILED) for status in self.ended.values())

    def take(self, run: Run, status: str = "started") -> None:
        """Marks a waiting run as started."""
        self.waiting.remove(run)
        self.running.add(run)
        self.tries[run] += 1
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        self.manifest.write(run, status, self.tries[run])

    def end(self, run: Run, status: str) -> None:
        """Records how an attempt ended, and queues the run again if it may be tried again."""
        self.manifest.write(run, status, self.tries[run])
        self.running.remove(run)
        if self.is_stopped and (status in STOPPED or status.startswith("crashed")):
            return  # a later call continues it
        if status in STOPPED:
            self.tries[run] -= 1  # not the fault of the run
            self.waiting.appendleft(run)
        elif status.startswith("crashed") and self.tries[run] < self.attempts:
            print(f"\n{run.name}: {status}; trying again", flush=True)
            self.waiting.append(run)
        else:
            self.ended[run] = status
            if status.startswith(FAILED):
                write_failed(run, status)
            if status != "done":
                log = epath.Path(f"{run.folder}.log")
                where = f"; see {log}" if log.exists() else ""
                print(f"\n{run.name}: {status}{where}", flush=True)
            if status == "diverged" and run.config().on_divergence == "stop_sweep":
                self.stop(run)
            self.show_progress(run)

    def stop(self, diverged: Run) -> None:
        """Starts no more runs in this call."""
        print(
            f"\n{diverged.name} diverged, and on_divergence=stop_sweep: {len(self.waiting)} runs "
            "were not started; the same command continues with them",
            flush=True,
        )
        self.is_stopped = True
        self.waiting.clear()

    def show_progress(self, last: Run) -> None:
        """Prints one line with an ETA, which is rewritten on a terminal."""
        n, seconds = len(self.ended), time.monotonic() - self.start_time
        eta = datetime.timedelta(seconds=round(seconds / n * (self.total - n)))
        line = f"{n:>3} of {self.total} runs, ETA {eta}, last: {last.name}"
        tty = sys.stdout.isatty()
        print(f"\r{line:<72}" if tty else line, end="" if tty else "\n", flush=True)


def write_failed(run: Run, reason: str) -> None:
    """Writes the run.json of a failed run, status `aborted`, so that the report counts it.

    A later sweep tries the run again. A folder that contains another run or foreign files is left
    alone; if the folder cannot be written, the manifest alone reports the run.
    """
    config = run.config()
    try:
        if files.other_config(run.folder, config) or files.foreign(run.folder):
            return
        run.folder.mkdir(parents=True, exist_ok=True)
        files.write_json(run.folder / "config.json", files.config_as_json(config))
        text = schema.read_curve_text(run.folder / "curve.csv")
        curve, _ = schema.parse_curve(text, may_be_cut=True)
        accuracies = [evaluation.accuracy for evaluation in curve]
        result = schema.RunResult(
            recipe=config.recipe,
            optimizer=config.recipe.partition(":")[0],
            dataset=config.dataset.name,
            seed=config.seed,
            status="aborted",
            reason=reason,
            target_accuracy=config.target_accuracy,
            steps_to_target=schema.steps_to_target(curve, config.target_accuracy),
            seconds_to_target=None,
            final_accuracy=accuracies[-1] if accuracies else None,
            best_accuracy=max(accuracies, default=None),
            total_steps=config.total_steps,
            global_batch_size=config.global_batch_size,
            n_eval_examples=None,
            plan={},
            seconds={},
            versions=identity.versions(),
            git=identity.git_commit(),
            device={},
            unverified=tuple(config.unverified),
            assumed=tuple(config.assumed),
        )
        schema.write_result(run.folder, result)
    except (OSError, UserError) as e:
        print(f"{run.name}: cannot be marked as aborted ({e})", flush=True)
