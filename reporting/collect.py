"""Reads all runs and logs below folders, and lists what cannot be read with the reason."""

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from errors import UserError
from mlperf import log as mlperf_log
from reporting import archive
from run import files, schema
from run.record import Point, Run
from sweeps import manifest

OTHER_RESULT = "ANOTHER result (of other code, devices or, on a CPU, another number of cores?)"


@dataclass(frozen=True)
class Problem:
    """A file, folder or run that is not counted, and why; `recipe` is None if unknown."""

    path: str
    message: str
    recipe: str | None = None


def collect(roots: Iterable[Path]) -> tuple[list[Run], list[Problem]]:
    """Returns (runs, problems) below `roots`: folders, searched at any depth, or single files.

    A folder with run.json is one of our runs, and its result.txt is not read as well. Elsewhere,
    result*.txt are MLPerf logs and runs.csv belongs to an archive. A run that a sweep's manifest
    lists without any file in its folder is a problem too. Raises UserError for a missing root.
    """
    runs: list[Run] = []
    problems: list[Problem] = []
    # Each place once, by the name that was given: a report must not reveal absolute paths.
    for path in sorted({path.resolve(): path for path in _places(roots)}.values()):
        try:
            if path.name == manifest.NAME:
                problems += _lost(path)
            elif path.name == archive.NAME:
                for name, recipe, content in archive.read(path):
                    try:
                        runs.append(_run(name, content()))
                    except UserError as error:
                        problems.append(Problem(name, str(error), recipe))
            elif path.is_dir():
                runs.append(_run(str(path), schema.read_run(path)))
            else:
                runs += mlperf_log.read_log(path)
        except UserError as error:
            problems.append(Problem(str(path), str(error), _recipe(path)))
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            problems.append(Problem(str(path), f"no {missing}: not finished", _recipe(path)))
        except OSError as error:
            problems.append(Problem(str(path), f"{error.strerror or error}"))
    kept: dict[object, Run] = {}
    for run in runs:  # one per seed and setting, one per log text: copies would inflate n
        first = kept.setdefault(run.identity(), run)
        if first is not run:
            result = "the same result" if first.curve == run.curve else OTHER_RESULT
            message = f"{run.label()} is already counted from {first.path}: {result}"
            problems.append(Problem(run.path, message))
    return list(kept.values()), problems


def _places(roots: Iterable[Path]) -> Iterator[Path]:
    """Yields the run folders, MLPerf logs, archives and manifests of sweeps below `roots`."""
    for root in roots:
        if root.is_file():
            yield root
        elif not root.is_dir():
            raise UserError(f"DIR={root}: there is no such folder; give folders of runs or logs")
        for folder, names in archive.walk(root):
            if not names.isdisjoint(archive.RUN_FILES):
                yield folder
                continue
            logs = fnmatch.filter(names, "result*.txt")
            yield from (folder / name for name in {*logs, archive.NAME, manifest.NAME} & names)


def _lost(path: Path) -> Iterator[Problem]:
    """Yields the runs in the manifest that have no output files."""
    for name, entry in manifest.read(path).items():
        folder = path.parent / name
        if not any((folder / file).exists() for file in archive.RUN_FILES):
            yield Problem(str(folder), f"the sweep's manifest says {entry.status}", entry.recipe)


def _recipe(path: Path) -> str | None:
    """Returns the recipe in a folder's config.json, None if it cannot be read."""
    try:
        return str(files.read_json(path / "config.json").get("recipe") or "") or None
    except (OSError, UserError):
        return None


def _run(path: str, stored: schema.StoredRun) -> Run:
    record = stored.record
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
        curve=tuple(
            Point(e.step, e.accuracy, e.loss if math.isfinite(e.loss) else None)
            for e in stored.curve or ()
        ),
        flags=(*_field_flags(record, stored.config), *stored.notes),
        config=stored.config,
        record=record,
    )


def _field_flags(record: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Yields "unverified: FIELDS" and "assumed: FIELDS" of a run that has such fields."""
    for kind in ("unverified", "assumed"):
        names = record.get(kind, config.get(kind)) or []
        if not isinstance(names, list | tuple):
            raise UserError(f"run.json: {kind}={names!r}: must be a list of field names")
        if names:
            yield f"{kind}: {', '.join(map(str, names))}"
