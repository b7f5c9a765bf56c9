"""manifest.jsonl of a sweep: how the runs ended that left no run.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """The last line of a run: how it ended, or that it started, when, and in which attempt."""

    recipe: str
    status: str
    time: str  # ISO 8601, UTC
    attempt: int


def read(path: Path) -> dict[str, Entry]:
    """Returns {folder of the run below path's: last line}; what cannot be read is left out."""
    ended: dict[str, Entry] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            entry = json.loads(line)
            recipe = str(entry["recipe"])
            folder = str(entry.get("folder") or f"{recipe}/seed_{int(entry['seed']):04d}")
            attempt = int(entry.get("attempt", 1))
            ended[folder] = Entry(recipe, str(entry["status"]), str(entry.get("time")), attempt)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return ended
