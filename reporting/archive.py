"""Writes the runs of a study as tables to commit: python -m reporting.archive OUT RESULTS

    runs.csv      a line per run: its path below OUT, the scalars of run.json, a key of configs.json
    curves.csv    a line per evaluation: the run's path, then the columns of its curve.csv
    configs.json  {key: {"config": config.json without the seed, "record": the rest of run.json}}

These contain everything that a report reads from run folders, except metrics.csv. An empty cell
means null. The runs below a folder with a trials.json are trials: of these, only trials.json is
copied, as RESULTS/trials.json or, from OUT/NAME/tuning, as RESULTS/trials_NAME.json. Figures and
trials of an earlier archive are deleted. `python report.py RESULTS` then writes the page.
"""

import copy
import csv
import functools
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from errors import DONE, USER_ERROR, OneLineParser, UserError
from reporting import output
from run import files, schema

RUN_FILES = ("run.json", "config.json", "curve.csv")  # a folder with any of them is a run folder
NAME, CURVES, CONFIGS = "runs.csv", "curves.csv", "configs.json"
TEXT_FIELDS = ("recipe", "optimizer", "dataset", "status", "reason", "git", "device.kind")
FIELDS = TEXT_FIELDS + (
    "seed", "target_accuracy", "total_steps", "global_batch_size", "steps_to_target",
    "seconds_to_target", "final_accuracy", "best_accuracy", "seconds.init", "seconds.train",
    "seconds.eval", "seconds.cpu", "device.count", "device.hosts", "device.cores",
)  # fmt: skip


def walk(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Yields (folder, its files) for `root` and below, except hidden folders and checkpoints."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name[0] != "." and name != "checkpoints"]
        yield Path(folder), set(names)


def write(out: Path, results: Path) -> None:
    """Writes the archive of all runs and trials below `out`; all of its files or none.

    Raises UserError if there is no run, or if a run is unfinished or damaged.
    """
    folders = dict(sorted(walk(out)))
    tuning = [folder for folder, names in folders.items() if "trials.json" in names]
    rows: list[Sequence[Any]] = [["path", *FIELDS, "config"]]
    points: list[Sequence[Any]] = [["path", *schema.CURVE_COLUMNS]]
    entries: dict[str, Mapping[str, Any]] = {}
    for folder, names in folders.items():
        if names.isdisjoint(RUN_FILES) or any(folder.is_relative_to(other) for other in tuning):
            continue
        path = folder.relative_to(out)
        try:
            run = schema.read_run(folder)
        except FileNotFoundError as error:
            raise UserError(f"{folder}: has no run.json; finish this run first") from error
        except UserError as error:
            raise UserError(f"{folder}: {error}") from error
        cells, entry = _pack(run)
        key = next((key for key, other in entries.items() if other == entry), None)
        key = key or str(path if str(path.parent) in entries else path.parent)
        entries[key] = entry
        rows.append([path, *cells, key])
        for e in run.curve or ():
            accuracy, loss = f"{e.accuracy:.6f}", f"{e.loss:.9g}"
            points.append([path, e.step, e.n_correct, e.n_seen, accuracy, loss])
    if not entries:
        raise UserError(f"OUT={out}: contains no runs; give the folder of a study")
    texts = {NAME: _csv(rows), CURVES: _csv(points), CONFIGS: _json(entries) + "\n"}
    for folder in tuning:
        name = "_".join(["trials", *folder.relative_to(out).parts[:-1]])
        files.read_json(folder / "trials.json")  # refuses a damaged file
        texts[f"{name}.json"] = (folder / "trials.json").read_text("utf-8")
    results.mkdir(parents=True, exist_ok=True)
    output.write({results / name: text for name, text in texts.items()})
    for file in [*results.glob("trials*.json"), *results.glob("*.svg")]:
        if file.name not in texts:
            file.unlink()


def _pack(run: schema.StoredRun) -> tuple[list[Any], dict[str, Any]]:
    """Returns (the cells of FIELDS, the run's entry in configs.json)."""
    record = copy.deepcopy(dict(run.record))
    cells = []
    for field in FIELDS:
        section, _, key = field.rpartition(".")
        values = record.get(section) if section else record
        cells.append(values.pop(key, None) if isinstance(values, dict) else None)
    for segment in record.get("segments") or ():
        # Both follow from the config and would give each run an entry of its own.
        del segment["seed"], segment["config_hash"]
    config = {key: value for key, value in run.config.items() if key != "seed"}
    return cells, {"config": config, "record": record}


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _json(value: Any, level: int = 0) -> str:
    """Returns JSON with one line for each item of the objects on the outer three levels."""
    if level == 3 or not isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    end = "\n" + " " * level
    items = [f"{end} {json.dumps(key)}: {_json(value[key], level + 1)}" for key in sorted(value)]
    return "{" + ",".join(items) + end + "}"


def is_study(folder: Path) -> bool:
    """Returns whether a folder contains the archive of a study."""
    return (folder / NAME).is_file() and (folder / CONFIGS).is_file()


def read(path: Path) -> Iterator[tuple[str, str | None, Callable[[], schema.StoredRun]]]:
    """Yields (path, recipe, function) of each run in an archive, given its runs.csv.

    The function returns the run's content; it raises UserError if the run is damaged. `read` raises
    UserError if one of the three files is not part of an archive.
    """
    rows = _rows(path, ("path", *FIELDS, "config"))
    entries = files.read_json(path.with_name(CONFIGS))
    curves: dict[str, list[str]] = {}
    for point in _rows(path.with_name(CURVES), ("path", *schema.CURVE_COLUMNS)):
        lines = curves.setdefault(point["path"], [",".join(schema.CURVE_COLUMNS)])
        lines.append(",".join(point[column] for column in schema.CURVE_COLUMNS))
    if unknown := curves.keys() - {row["path"] for row in rows}:
        raise UserError(f"{path}: lacks {min(unknown)}, which has a curve in {CURVES}")
    for row in rows:
        content = functools.partial(_unpack, row, entries, curves.get(row["path"]))
        yield str(path.parent / row["path"]), row["recipe"] or None, content


def _unpack(
    row: Mapping[str, str], entries: Mapping[str, Any], curve: Sequence[str] | None
) -> schema.StoredRun:
    """Returns the run of a line of runs.csv, checked like a run folder."""
    try:
        entry = copy.deepcopy(entries[row["config"]])
        record, config = {**entry["record"]}, {**entry["config"]}
        for field in FIELDS:
            section, _, key = field.rpartition(".")
            value = row[field] or None if field in TEXT_FIELDS else _number(field, row[field])
            if not section:
                record[key] = value
            elif value is not None:
                record.setdefault(section, {})[key] = value
    except (KeyError, TypeError) as error:
        raise UserError(f"{CONFIGS}: config={row['config']}: is no entry ({error!r})") from error
    config = {**config, "seed": record["seed"]} if config else {}
    return schema.check_run(record, config, "\n".join(curve) if curve else None)


def _number(field: str, cell: str) -> int | float | None:
    try:
        return None if not cell else int(cell) if cell.isdecimal() else float(cell)
    except ValueError as error:
        raise UserError(f"{NAME}: {field}={cell!r}: must be a number") from error


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Returns the lines of a CSV file that has these columns; UserError for any other file."""
    try:
        header, *lines = csv.reader(io.StringIO(path.read_text("utf-8"), newline=""))
        rows = [dict(zip(header, line, strict=True)) for line in lines]
    except (csv.Error, ValueError) as error:
        raise UserError(f"{path}: is not a CSV table ({error})") from error
    if missing := set(columns) - set(header):
        raise UserError(f"{path}: is not part of an archive of runs; it lacks {min(missing)}")
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 2 user error."""
    parser = OneLineParser(prog="python -m reporting.archive", description=__doc__.split("\n")[0])
    parser.add_argument("out", metavar="OUT", type=Path, help="folder of the study's runs")
    parser.add_argument("results", metavar="RESULTS", type=Path, help="folder to commit")
    options = parser.parse_args(argv)
    try:
        write(options.out, options.results)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    return DONE


if __name__ == "__main__":
    sys.exit(main())
