"""Published results as data (results/published/), set beside ours and never merged with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reporting.runs import read_json

FOLDER = Path(__file__).resolve().parent.parent / "results" / "published"
IMAGENET = "imagenet2012"


def load() -> list[dict[str, Any]]:
    """Returns the published entries, each with its source and protocol."""
    entries = []
    for path in sorted(FOLDER.glob("*.json")):
        table = read_json(path)
        shared = {key: table.get(key) for key in ("source", "protocol", "hardware")}
        entries += [shared | row for row in table["rows"]]
    return entries


def beside(row: dict[str, Any], entries: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the published entry of exactly this recipe or system, or None.

    A proxy has none: a published ImageNet number is no reference for another data set.
    """
    return next(
        (
            entry
            for entry in entries
            if entry.get("recipe") == row["recipe"]
            and entry["dataset"] == row["dataset"]
            and entry.get("global_batch_size") == row["global_batch_size"]
        ),
        None,
    )


def proxy_note(rows: Sequence[dict[str, Any]]) -> str | None:
    """Returns what the results on other data sets than ImageNet do and do not show."""
    proxies = sorted({row["dataset"] for row in rows} - {IMAGENET})
    if not proxies:
        return None
    return (
        f"Proxy data: {', '.join(proxies)}. Shown here: that the whole machinery works, and how "
        "the recipes compare on this data set, this small model and these budgets. Not shown: "
        "anything about ImageNet. The published ranking (LARS = Nesterov, Shampoo 31 % fewer "
        "steps) is neither confirmed nor refuted by a proxy, and no proxy is expected to repeat it."
    )


def table(
    entries: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns every published entry with a label, its words and ours ("not run" if it was not)."""
    found = []
    for entry in entries:
        ours = [row for row in rows if beside(row, [entry]) is not None]
        words = "; ".join(_ours(row) for row in ours) or "not run"
        label = entry.get("recipe") or entry.get("label") or f"{entry['optimizer']} (no recipe)"
        found.append(entry | {"label": label, "published": _words(entry), "ours": words})
    return found


def _words(entry: dict[str, Any]) -> str:
    parts = []
    if entry.get("steps"):
        parts.append(f"{entry['target_accuracy']:.1%} at {entry['steps']} steps")
    if entry.get("final_accuracy"):
        parts.append(f"{entry['final_accuracy']:.1%} at {entry['epochs']} epochs")
    if entry.get("seconds"):
        parts.append(f"{entry['seconds'][0]}-{entry['seconds'][1]} s on {entry['hardware']}")
    return ", ".join(parts + entry.get("flags", []))


def _ours(row: dict[str, Any]) -> str:
    median, budget = row["final_accuracy"]["median"], row["total_steps"]
    steps = row["steps_to_target"]["median"]
    a = "not reached by half" if steps is None else f"{steps:.0f} steps"
    b = "not measured" if median is None else f"{median:.2%} at {budget} steps"
    return f"n = {row['n']}, A {a}, B {b}"
