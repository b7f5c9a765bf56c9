"""The status of a sweep, read from its files: works while it runs and afterwards, without JAX.

python sweep.py --status=runs/first
"""

import csv
import dataclasses
import datetime
import math
import pathlib
import re
import statistics
from collections.abc import Iterator

from etils import epath

from errors import UserError
from run import files
from sweeps import manifest
from sweeps.queue import FAILED

ENDED = ("done", "diverged")
STATUSES = (*ENDED, "failed", "aborted", "running", "stopped", "waiting")


@dataclasses.dataclass(frozen=True)
class Progress:
    """The status of a run, one of STATUSES, and the last step in its files."""

    status: str
    step: int = 0
    total_steps: int = 0
    seconds: float = 0.0  # spent so far

    @property
    def seconds_left(self) -> float:
        return self.seconds * (self.total_steps - self.step) / self.step if self.step else 0.0


def progress(folder: epath.Path, last: str, is_active: bool) -> Progress:
    """Returns the progress of a run.

    Args:
      last: the status in the manifest's last line.
      is_active: whether the sweep is running.
    """
    try:
        record = files.read_json(folder / "run.json")
        seconds = record.get("seconds") or {}
        has_failed = record["status"] == "aborted" and last.startswith(FAILED)
        status = "failed" if has_failed else str(record["status"])
        if status != "aborted" or last not in ("started", "submitted"):  # else it is tried again
            return Progress(status, seconds=sum(seconds.get(k, 0.0) for k in ("train", "eval")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    if last.startswith(FAILED):
        return Progress("failed")
    is_started = last == "started" or (last == "submitted" and (folder / "config.json").exists())
    if last in ("waiting", "submitted") and not is_started:
        return Progress("waiting")
    return Progress("running" if is_active and is_started else "stopped", *_step(folder))


def _step(folder: epath.Path) -> tuple[int, int, float]:
    """Returns (last step in the files, total steps, seconds so far)."""
    try:
        total = int(files.read_json(folder / "config.json")["total_steps"])
        with (folder / "timing.csv").open() as f:
            row = list(csv.DictReader(f))[-1]
        seconds = float(row["train_seconds"]) + float(row["eval_seconds"])
        return int(row["step"]), total, seconds
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return 0, 0, 0.0


def lines(out: epath.Path) -> Iterator[str]:
    """Yields a line per recipe and budget, and one per running run.

    Raises:
      UserError: the folder contains no sweep.
    """
    entries = manifest.read(out / manifest.NAME)
    if not entries:
        raise UserError(f"status={out}: contains no manifest.jsonl; give the --out of a sweep")
    is_active = files.is_locked(out / files.LOCK)
    groups: dict[str, dict[str, Progress]] = {}
    for folder, entry in sorted(entries.items()):
        group = re.sub(r"trial_\d+", "trials", str(pathlib.PurePath(folder).parent))
        groups.setdefault(group, {})[folder] = progress(out / folder, entry.status, is_active)
    n_running = sum(p.status == "running" for runs in groups.values() for p in runs.values())
    for group, runs in groups.items():
        yield f"{group:<32} {_counts(list(runs.values()))}"
        for folder, run in runs.items():
            if run.status == "running":
                yield f"  {folder}: {_where(run)}"
    all_runs = [run for runs in groups.values() for run in runs.values()]
    left = sum(seconds_left(list(runs.values()), all_runs) for runs in groups.values())
    is_complete = all(p.status in ENDED for runs in groups.values() for p in runs.values())
    then = "all runs have ended" if is_complete else "the same command continues"
    state = "is running" if is_active else f"is not running; {then}"
    rest = (
        f", about {_time(left / max(n_running, 1))} left"
        if is_active and 0 < left < math.inf
        else ""
    )
    yield f"sweep {state}{rest}"


def _counts(runs: list[Progress]) -> str:
    found = [(sum(run.status == word for run in runs), word) for word in STATUSES]
    return f"{len(runs):>3} runs: " + ", ".join(f"{n} {word}" for n, word in found if n)


def _where(run: Progress) -> str:
    if not run.step:
        return "starting"
    return f"step {run.step} of {run.total_steps}, about {_time(run.seconds_left)} left"


def _time(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=round(seconds))


def seconds_left(runs: list[Progress], all_runs: list[Progress]) -> float:
    """Estimates the seconds left for one worker: the rest of running runs, and all waiting ones.

    A waiting run takes the median of the finished runs of its recipe and budget, or else of all
    runs; infinite if none is finished.
    """
    finished = [run.seconds for run in runs if run.status in ENDED]
    finished = finished or [run.seconds for run in all_runs if run.status in ENDED]
    each = statistics.median(finished) if finished else math.inf
    waiting = sum(run.status in ("waiting", "stopped") for run in runs)
    running = sum(run.seconds_left for run in runs if run.status == "running")
    return running + (waiting * each if waiting else 0.0)
