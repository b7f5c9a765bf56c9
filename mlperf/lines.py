"""Reads `:::MLLOG` lines: any prefix, any encoding, megabytes of other lines in between.

Source of the format: MLCommons logging, `compliance_checker/mlp_parser`.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from errors import UserError

TOKEN = ":::MLLOG"
AFTER_TOKEN = re.compile(rf"{TOKEN}\s*")
# Keys that open a run: after an evaluation or a run_stop they belong to the next run in the file.
OPENING = ("cache_clear", "init_start", "run_start")


@dataclass(frozen=True)
class Line:
    """One log line; time_ms is None where it is missing or not a number."""

    key: str
    value: Any
    metadata: dict[str, Any]
    time_ms: float | None


@dataclass
class Log:
    """The lines of one run and the number of `:::MLLOG` lines that could not be read."""

    lines: list[Line] = field(default_factory=list)
    n_broken: int = 0

    def values(self, key: str) -> list[Any]:
        return [line.value for line in self.lines if line.key == key]

    def first(self, key: str) -> Line | None:
        return next((line for line in self.lines if line.key == key), None)


def read(path: Path) -> list[Log]:
    """Returns one Log per run; a file may contain several runs.

    Raises:
      UserError: there is no readable `:::MLLOG` line.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        logs = split(parse(file))
    if not any(log.lines for log in logs):
        raise UserError(f"{path.name}: no readable {TOKEN} line: empty, or not an MLPerf log")
    return logs


def parse(lines: Iterable[str]) -> Iterator[Line | None]:
    """Yields each `:::MLLOG` record, or None if it cannot be read. Skips other text.

    Workers that write to one file may leave two records in a line, or a torn one before another.
    """
    for text in lines:
        start = text.find(TOKEN)
        while start >= 0:
            start = AFTER_TOKEN.match(text, start).end()  # type: ignore[union-attr]
            if text.startswith(TOKEN, start):  # named twice
                continue
            line, end = _line(text, start)
            yield line
            start = text.find(TOKEN, end)


def _line(text: str, start: int) -> tuple[Line | None, int]:
    """Returns (record or None, position after it)."""
    try:
        record, start = json.JSONDecoder().raw_decode(text, start)
        key, metadata = record["key"], record.get("metadata") or {}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None, start
    if not isinstance(key, str) or not isinstance(metadata, dict):
        return None, start
    return Line(key.strip(), record.get("value"), metadata, _time_ms(record)), start


def _time_ms(record: dict[str, Any]) -> float | None:
    """Returns milliseconds; some submitters of v0.7 wrote time_s."""
    seconds = as_number(record.get("time_s"))
    return as_number(record.get("time_ms")) if seconds is None else 1000 * seconds


def as_number(value: Any) -> float | None:
    """Returns a finite float for a number or a text that is one, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def split(lines: Iterable[Line | None]) -> list[Log]:
    """Splits a file into runs. A run_start after results starts a new one.

    What comes after the results of a run waits: it is the head of the next run if a run_start
    follows, else the tail of this one (some submitters print their details last).
    """
    logs, waiting = [Log()], Log()
    has_results = False
    for line in lines:
        if has_results and (waiting.lines or (line is not None and line.key in OPENING)):
            if line is not None and line.key == "run_start":
                logs.append(waiting)
                waiting, has_results = Log(), False
            else:
                _add(waiting, line)
                continue
        _add(logs[-1], line)
        if line is not None and line.key in ("eval_accuracy", "run_stop"):
            has_results = True
    logs[-1].lines += waiting.lines
    logs[-1].n_broken += waiting.n_broken
    return logs


def _add(log: Log, line: Line | None) -> None:
    if line is None:
        log.n_broken += 1
    else:
        log.lines.append(line)
