"""One run folder as a `Run`; `run.schema` reads and checks its files."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from errors import UserError
from reporting.runs import Point, Run
from run import schema


def read_run(folder: Path) -> Run:
    """Reads run.json, curve.csv and config.json of one run.

    Raises:
      UserError: one line that says what is wrong; such a run is shown and counted nowhere.
      FileNotFoundError: there is no run.json.
    """
    return from_stored(str(folder), schema.read_run(epath.Path(folder)))


def check_run(
    path: str, record: Mapping[str, Any], config: Mapping[str, Any], curve_text: str | None
) -> Run:
    """Returns the run with these contents of its files; UserError as `read_run`."""
    return from_stored(path, schema.check_run(record, config, curve_text))


def from_stored(path: str, stored: schema.StoredRun) -> Run:
    """Returns a stored run as a `Run`."""
    record = stored.record
    curve = tuple(
        Point(e.step, e.accuracy, e.loss if math.isfinite(e.loss) else None)
        for e in stored.curve or ()
    )
    return Run(
        path=path,
        kind="run",
        recipe=record["recipe"],
        optimizer=record["optimizer"],
        dataset=record["dataset"],
        seed=schema.whole_number(record, "seed", 0),
        status=record["status"],
        target_accuracy=float(record["target_accuracy"]),
        global_batch_size=schema.whole_number(record, "global_batch_size", 1),
        total_steps=schema.whole_number(record, "total_steps", 1),
        steps_to_target=stored.steps_to_target,
        reached=stored.steps_to_target is not None,
        final_accuracy=stored.final_accuracy,
        last_accuracy=stored.last_accuracy,
        seconds_to_target=stored.seconds_to_target,
        curve=curve,
        flags=(*_field_flags(record, stored.config), *stored.notes),
        config=stored.config,
        record=record,
    )


def _field_flags(record: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("unverified", "assumed"):
        names = record.get(kind, config.get(kind)) or []
        if not isinstance(names, list | tuple):
            raise UserError(f"run.json: {kind}={names!r}: must be a list of field names")
        if names:
            yield f"{kind}: {', '.join(map(str, names))}"
