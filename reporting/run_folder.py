"""Reads and checks the folder of one run: run.json, curve.csv and config.json must agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from errors import UserError
from reporting import curves
from reporting.curves import Point
from reporting.runs import TIE_TOLERANCE, Run, read_json

STATUSES = ("done", "diverged", "aborted")
REQUIRED = ("recipe", "optimizer", "dataset", "seed", "status", "target_accuracy", "total_steps")
# Half of one example in 50,000 is 1e-5: a difference above this is a contradiction, not rounding.
ACCURACY_TOLERANCE = 1e-6


def number(record: Mapping[str, Any], key: str, lo: float, hi: float) -> float | None:
    """Returns record[key] as a float in [lo, hi], None if absent or null, else UserError."""
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not lo <= value <= hi:
        raise UserError(f"run.json: {key}={value!r} is not a number in [{lo:g}, {hi:g}]")
    return float(value)


def whole(record: Mapping[str, Any], key: str, lo: int) -> int | None:
    """Returns record[key] as an int >= lo, None if absent or null, else UserError."""
    value = number(record, key, lo, 2**53)
    if value is not None and value != int(value):
        raise UserError(f"run.json: {key}={value!r} is not a whole number")
    return None if value is None else int(value)


def read_run(folder: Path) -> Run:
    """Reads run.json, curve.csv and config.json of one run.

    Raises:
      UserError: one line that says what is wrong; such a run is shown and counted nowhere.
    """
    record = read_json(folder / "run.json")
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    return check_run(str(folder), record, config, curves.text(folder / "curve.csv"))


def check_run(
    path: str, record: dict[str, Any], config: dict[str, Any], curve_text: str | None
) -> Run:
    """Returns the run that these contents of its files tell; UserError as `read_run`."""
    missing = [key for key in REQUIRED if record.get(key) is None]
    if missing:
        raise UserError(f"run.json: without {', '.join(missing)}")
    if record["status"] not in STATUSES:
        raise UserError(f"run.json: status={record['status']!r}, known: {', '.join(STATUSES)}")
    _agree(record, config)
    flags = list(_flags_of(record, config))
    curve, notes = curves.parse(curve_text, may_be_cut=record["status"] != "done")
    flags += notes
    target = number(record, "target_accuracy", 0, 1)
    total_steps = whole(record, "total_steps", 1)
    seed = whole(record, "seed", 0)
    assert target is not None
    assert total_steps is not None
    steps_to_target = _steps_to_target(record, curve, target, total_steps)
    final, last = _final_accuracy(record, curve, total_steps, steps_to_target, config)
    try:
        seconds = number(record, "seconds_to_target", 0, 1e9)
    except UserError as error:
        seconds, flags = None, [*flags, f"time left out ({error})"]
    return Run(
        path=path,
        kind="run",
        recipe=_word(record, "recipe"),
        optimizer=_word(record, "optimizer"),
        dataset=_word(record, "dataset"),
        seed=seed,
        status=record["status"],
        target_accuracy=target,
        global_batch_size=whole(record, "global_batch_size", 1),
        total_steps=total_steps,
        steps_to_target=steps_to_target,
        reached=steps_to_target is not None,
        final_accuracy=final,
        last_accuracy=last,
        seconds_to_target=None if steps_to_target is None else seconds,
        curve=curve,
        flags=tuple(flags),
        config=config,
        record=record,
    )


def _agree(record: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raises UserError if the two files of a run tell of different runs."""
    for key in ("recipe", "seed", "global_batch_size", "target_accuracy", "total_steps"):
        if key in config and key in record and config[key] != record[key]:
            raise UserError(
                f"run.json says {key}={record[key]!r}, config.json says {config[key]!r}: "
                "files of two runs?"
            )


def _word(record: Mapping[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise UserError(f"run.json: {key}={value!r} is not a name")
    return value


def _flags_of(record: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    flags = []
    for kind in ("unverified", "assumed"):
        names = record.get(kind, config.get(kind)) or []
        if not isinstance(names, list | tuple):
            raise UserError(f"run.json: {kind}={names!r} is not a list of field names")
        if names:
            flags.append(f"{kind}: {', '.join(map(str, names))}")
    if not config:
        flags.append("no config.json")
    return flags


def _steps_to_target(
    record: Mapping[str, Any], curve: tuple[Point, ...], target: float, total_steps: int
) -> int | None:
    claimed = whole(record, "steps_to_target", 1)
    if claimed is not None and claimed > total_steps:
        raise UserError(f"run.json: steps_to_target={claimed} lies after the {total_steps} steps")
    if not curve:
        return claimed
    found = next((p.step for p in curve if p.accuracy >= target - TIE_TOLERANCE), None)
    if claimed != found:
        raise UserError(
            f"run.json says steps_to_target={claimed}, curve.csv says {found}: contradictory"
        )
    return found


def _final_accuracy(
    record: Mapping[str, Any],
    curve: tuple[Point, ...],
    total_steps: int,
    steps_to_target: int | None,
    config: Mapping[str, Any],
) -> tuple[float | None, float | None]:
    """Returns (accuracy at the end of the budget or None, accuracy of the last evaluation)."""
    claimed = number(record, "final_accuracy", 0, 1)
    last = curve[-1].accuracy if curve else claimed
    if record["status"] != "done":
        return None, last
    stopped = bool(config.get("stop_at_target")) and steps_to_target is not None
    if not curve:
        if claimed is None:
            raise UserError("run.json: status=done without final_accuracy, and no curve.csv")
        return (None if stopped and steps_to_target != total_steps else claimed), last
    if curve[-1].step > total_steps:
        raise UserError(f"curve.csv: step {curve[-1].step} lies after the {total_steps} steps")
    if claimed is not None and abs(claimed - curve[-1].accuracy) > ACCURACY_TOLERANCE:
        raise UserError(
            f"run.json says final_accuracy={claimed:g}, curve.csv says {curve[-1].accuracy:g}"
        )
    if curve[-1].step < total_steps and not stopped:
        raise UserError(
            f"run.json says done, but curve.csv ends at step {curve[-1].step} of {total_steps}"
        )
    return (curve[-1].accuracy if curve[-1].step == total_steps else None), last
