"""Published results (results/published/), shown beside ours and never merged with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from run import files

FOLDER = Path(__file__).resolve().parent.parent / "results" / "published"
IMAGENET = "imagenet2012"


def load() -> list[dict[str, Any]]:
    """Returns the published entries, each with its source and protocol."""
    entries = []
    for name in ("seed_table.json", "mlperf_results.json"):
        table = files.read_json(FOLDER / name)
        shared = {key: table.get(key) for key in ("source", "protocol", "hardware")}
        entries += [shared | row for row in table["rows"]]
    return entries


def beside(row: dict[str, Any], entries: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the published entry of exactly this recipe or submission, or None.

    A proxy has none: a published ImageNet number is no reference for another data set.
    """
    return next((entry for entry in entries if _same(row, entry)), None)


def _same(row: dict[str, Any], entry: dict[str, Any]) -> bool:
    task = ("dataset", "global_batch_size", "optimizer")
    if any(row[key] != entry.get(key) for key in task):
        return False
    if row["kind"] == "log":
        platform = entry.get("platform")
        return platform is not None and platform == row["platform"]
    return entry.get("recipe") == row["recipe"]


def proxy_note(rows: Sequence[dict[str, Any]]) -> str | None:
    """Returns a note on what results on other data sets than ImageNet show."""
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
    """Returns every published entry with a label, its text and our result, or "not run"."""
    found = []
    for entry in entries:
        here = "; ".join(_here(row) for row in rows if _same(row, entry)) or "not run"
        label = entry.get("label") or entry.get("recipe") or f"{entry['optimizer']}, 90 epochs"
        found.append(entry | {"label": label, "published": _words(entry), "here": here})
    return found


def _words(entry: dict[str, Any]) -> str:
    """Returns the published numbers of one entry as text."""
    parts = []
    steps = entry.get("steps")
    if isinstance(steps, int):
        parts.append(f"{entry['target_accuracy']:.1%} at {steps} steps")
    elif steps:
        parts.append("steps " + "/".join(str(s) for s in sorted(set(steps))))
    elif isinstance(entry.get("epochs"), list):
        parts.append("epochs " + "/".join(str(e) for e in sorted(set(entry["epochs"]))))
    if entry.get("final_accuracy"):
        parts.append(f"{entry['final_accuracy']:.1%} at {entry['epochs']} epochs")
    if entry.get("olympic_mean_seconds"):
        parts.append(f"olympic mean {entry['olympic_mean_seconds']:.3f} s")
    elif entry.get("seconds"):
        parts.append(f"{entry['seconds'][0]}-{entry['seconds'][1]} s on {entry['hardware']}")
    return ", ".join(parts + entry.get("flags", []))


def _here(row: dict[str, Any]) -> str:
    median, budget = row["final_accuracy"]["median"], row["total_steps"]
    steps, mean = row["steps_to_target"]["median"], row["seconds_to_target"]["olympic_mean"]
    parts = [
        f"{row['n_reached']} of {row['n']} reached",
        "A: no median" if steps is None else f"A: {steps:.0f} steps",
        "B: not measured" if median is None else f"B: {median:.2%} at {budget} steps",
    ]
    return ", ".join(parts + ([] if mean is None else [f"olympic mean {mean:.3f} s"]))
