"""Runs without their folders: every run's record, config and curve in one file, for committing.

    {"format": 1, "groups": [{"config": {...}, "record": {...},
                              "runs": {"ladder/lars:digits/steps_000048/seed_0000":
                                       {"config": {"seed": 0}, "record": {...}, "curve": [...]}}}]}

A group is the runs of one folder; what all of them have in common stands once. The file holds
everything that a report reads of a run folder, except metrics.csv.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from errors import UserError
from reporting import run_folder
from reporting.runs import Run
from run import files, schema

NAME, FORMAT = "runs.json", 1


def text(root: Path, folders: Iterable[Path]) -> str:
    """Returns the archive of these run folders below `root`.

    Raises:
      UserError, OSError: a file that is missing or cannot be read.
    """
    groups: dict[Path, list[Path]] = {}
    for folder in sorted(folders):
        groups.setdefault(folder.parent, []).append(folder)
    content = {"format": FORMAT, "groups": [_group(root, found) for found in groups.values()]}
    return json.dumps(content, indent=1) + "\n"


def is_study(folder: Path) -> bool:
    """Whether a folder holds an archive, and so a page that is written from it."""
    try:
        return {"format", "groups"} <= set(files.read_json(folder / NAME))
    except (OSError, UserError):
        return False


def _group(root: Path, folders: Sequence[Path]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {str(f.relative_to(root)): {} for f in folders}
    for key in ("config", "record"):
        name = "run.json" if key == "record" else "config.json"
        paths = [folder / name for folder in folders]
        found = [files.read_json(p) if p.exists() or key == "record" else {} for p in paths]
        told[key] = {
            k: v for k, v in found[0].items() if all(k in one and one[k] == v for one in found)
        }
        for run, one in zip(own.values(), found, strict=True):
            run[key] = {k: v for k, v in one.items() if k not in told[key]}
    for run, folder in zip(own.values(), folders, strict=True):
        text = schema.read_curve_text(folder / "curve.csv")
        run["curve"] = None if text is None else text.splitlines()
    return told | {"runs": own}


def read(path: Path) -> list[Run | tuple[str, str, str | None]]:
    """Returns the runs of an archive, checked as run folders are.

    A run that is wrong is (its path, what is wrong, its recipe) in its place.

    Raises:
      UserError: the file is no such archive.
    """
    content = files.read_json(path)
    if content.get("format") != FORMAT:
        raise UserError(f"{path.name}: format={content.get('format')!r}, {FORMAT} is known")
    found: list[Run | tuple[str, str, str | None]] = []
    try:
        for group in content["groups"]:
            for name, own in group["runs"].items():
                found.append(_read(str(path.parent / name), group, own))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path.name}: not an archive of runs ({error!r})") from error
    return found


def _read(
    name: str, group: Mapping[str, Any], own: Mapping[str, Any]
) -> Run | tuple[str, str, str | None]:
    record, config = group["record"] | own["record"], group["config"] | own["config"]
    curve = None if own["curve"] is None else "\n".join(own["curve"])
    try:
        return run_folder.check_run(name, record, config, curve)
    except UserError as error:
        return name, str(error), str(record.get("recipe") or "") or None
