"""How a sweep stands, from its files alone: alive or dead, from any process, without JAX.

python sweep.py --status=runs/first
"""

import csv
import dataclasses
import datetime
import fcntl
import math
import pathlib
import re
import statistics
from collections.abc import Iterator

from errors import UserError
from reporting import manifest
from reporting.runs import read_json
from sweeps.queue import GIVEN_UP
from sweeps.runs import STOPPED_EARLY

ENDED = ("done", "diverged", STOPPED_EARLY)
STATUSES = (*ENDED, "failed", "aborted", "running", "stopped", "waiting")


@dataclasses.dataclass(frozen=True)
class Progress:
    """One run: one of STATUSES, and for a running one the step that its files tell of."""

    status: str
    step: int = 0
    total_steps: int = 0
    seconds: float = 0.0  # spent so far, or in all

    @property
    def seconds_left(self) -> float:
        return self.seconds * (self.total_steps - self.step) / self.step if self.step else 0.0


def is_alive(out: pathlib.Path) -> bool:
    """Whether a sweep holds the folder's lock; a dead one's is gone with it."""
    try:
        with (out / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def progress(folder: pathlib.Path, last: str, alive: bool) -> Progress:
    """Args: `last` is the status of the manifest's last line."""
    try:
        record = read_json(folder / "run.json")
        seconds = record.get("seconds") or {}
        given_up = record["status"] == "aborted" and last.startswith(GIVEN_UP)
        early = str(record.get("reason")).startswith(STOPPED_EARLY)
        status = "failed" if given_up else STOPPED_EARLY if early else str(record["status"])
        if status != "aborted" or last not in ("started", "submitted"):  # else it is tried again
            return Progress(status, seconds=sum(seconds.get(k, 0.0) for k in ("train", "eval")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    if last.startswith(GIVEN_UP):
        return Progress("failed")
    begun = last == "started" or (last == "submitted" and (folder / "config.json").exists())
    if last in ("waiting", "submitted") and not begun:
        return Progress("waiting")
    return Progress("running" if alive and begun else "stopped", *_step(folder))


def _step(folder: pathlib.Path) -> tuple[int, int, float]:
    """(last step that was written down, of how many, seconds so far)."""
    try:
        total = int(read_json(folder / "config.json")["total_steps"])
        with (folder / "timing.csv").open() as f:
            row = list(csv.DictReader(f))[-1]
        seconds = float(row["train_seconds"]) + float(row["eval_seconds"])
        return int(row["step"]), total, seconds
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return 0, 0, 0.0


def lines(out: pathlib.Path) -> Iterator[str]:
    """A line per recipe and budget, and one for every run that is under way.

    Raises:
      UserError: no sweep was ever at work there.
    """
    entries = manifest.read(out / "manifest.jsonl")
    if not entries:
        raise UserError(f"status={out}: holds no manifest.jsonl; give the --out of a sweep")
    alive = is_alive(out)
    groups: dict[str, dict[str, Progress]] = {}
    for folder, entry in sorted(entries.items()):
        group = re.sub(r"trial_\d+", "trials", str(pathlib.PurePath(folder).parent))
        groups.setdefault(group, {})[folder] = progress(out / folder, entry.status, alive)
    n_running = sum(p.status == "running" for runs in groups.values() for p in runs.values())
    for group, runs in groups.items():
        yield f"{group:<32} {_counts(list(runs.values()))}"
        for folder, run in runs.items():
            if run.status == "running":
                yield f"  {folder}: {_where(run)}"
    every = [run for runs in groups.values() for run in runs.values()]
    left = sum(seconds_left(list(runs.values()), every) for runs in groups.values())
    is_complete = all(p.status in ENDED for runs in groups.values() for p in runs.values())
    then = "all runs have ended" if is_complete else "the same command continues"
    state = "at work" if alive else f"not at work; {then}"
    rest = (
        f", about {_time(left / max(n_running, 1))} left" if alive and 0 < left < math.inf else ""
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


def seconds_left(runs: list[Progress], every: list[Progress]) -> float:
    """Of one worker: what is under way, and the median of the finished for each that waits.

    Where none of a recipe and budget is finished, those of all of them serve; infinite without any.
    """
    finished = [run.seconds for run in runs if run.status in ENDED]
    finished = finished or [run.seconds for run in every if run.status in ENDED]
    each = statistics.median(finished) if finished else math.inf
    waiting = sum(run.status in ("waiting", "stopped") for run in runs)
    under_way = sum(run.seconds_left for run in runs if run.status == "running")
    return under_way + (waiting * each if waiting else 0.0)
