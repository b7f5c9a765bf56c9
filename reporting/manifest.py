"""manifest.jsonl of a sweep: how the runs ended that left no run.json."""

from __future__ import annotations

import json
from pathlib import Path


def read(path: Path) -> dict[tuple[str, int], str]:
    """Returns {(recipe, seed): last status}; lines that cannot be read are left out."""
    ended: dict[tuple[str, int], str] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            entry = json.loads(line)
            ended[str(entry["recipe"]), int(entry["seed"])] = str(entry["status"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return ended
