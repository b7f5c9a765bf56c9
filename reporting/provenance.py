"""Provenance of rows: settings that differ, code, versions, devices, cost."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reporting.rows import Row
from run.record import flatten


def config_differences(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Returns (field, its value in each row) for every field with different values."""
    configs = [flatten(row.first.config) for row in rows]
    fields = sorted({field for config in configs for field in config} - {"recipe"})
    table = [(field, [_text(config.get(field)) for config in configs]) for field in fields]
    return [(field, values) for field, values in table if len(set(values)) > 1]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def origins(row: Row) -> dict[str, str]:
    """Returns code, versions, devices, and doubtful fields of a row, joined if they differ."""
    found: dict[str, list[str]] = {"commit": [], "device": [], "versions": [], "fields": []}
    for run in row.runs:
        device, versions = run.record.get("device"), run.record.get("versions")
        texts = {
            "commit": _commit(str(run.record.get("git") or "not recorded")),
            "fields": "; ".join(f for f in run.flags if f.startswith(("unverified", "assumed"))),
            "device": _device(device) if isinstance(device, Mapping) else "not recorded",
            "versions": ", ".join(f"{k} {v}" for k, v in sorted(versions.items()))
            if isinstance(versions, Mapping)
            else "not recorded",
        }
        for key, text in texts.items():
            if text not in found[key]:
                found[key].append(text)
    return {key: " | ".join(texts) for key, texts in found.items()}


def _commit(text: str) -> str:
    """Shortens a hash of 40 digits to 12; a suffix such as "-dirty" is kept."""
    head, dash, rest = text.partition("-")
    return (head[:12] if len(head) == 40 else head) + dash + rest


def _device(device: Mapping[str, Any]) -> str:
    hosts, cores = device.get("hosts", "?"), device.get("cores")
    text = f"{device.get('count', '?')} x {device.get('kind', '?')} on {hosts} host(s)"
    # On a CPU the number of cores changes rounding, because XLA splits sums by core.
    return f"{text} of {cores} core(s)" if cores and device.get("kind") == "cpu" else text


def cost(row: Row) -> dict[str, float | None]:
    """Returns medians over runs: seconds, images/s in training, CPU-seconds where recorded."""
    init, train, evaluation, cpu = (
        [s for run in row.runs if (s := _seconds(run.record, key)) is not None]
        for key in ("init", "train", "eval", "cpu")
    )
    rates = []
    for run in row.runs:
        seconds, batch = _seconds(run.record, "train"), run.global_batch_size
        if seconds and batch and run.total_steps and run.status == "done" and run.curve:
            rates.append(run.curve[-1].step * batch / seconds)
    return {
        "init": _median(init),
        "train": _median(train),
        "eval": _median(evaluation),
        "cpu": _median(cpu),
        "images_per_second": _median(rates),
    }


def cpu_hours(rows: Sequence[Row]) -> tuple[int, float]:
    """Returns (number of runs that recorded their CPU-seconds, total hours)."""
    seconds = [_seconds(run.record, "cpu") for row in rows for run in row.runs]
    known = [s for s in seconds if s is not None]
    return len(known), sum(known) / 3600


def _seconds(record: Mapping[str, Any], key: str) -> float | None:
    seconds = record.get("seconds")
    value = seconds.get(key) if isinstance(seconds, Mapping) else None
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if known and value is not None else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None
