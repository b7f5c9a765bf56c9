"""Finds runs and logs below folders; sets aside what cannot be read, with the reason."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from errors import UserError
from mlperf import log as mlperf_log
from reporting import archive
from reporting.run_folder import read_run
from reporting.runs import Run
from run import files
from sweeps import manifest

CHECKPOINTS = "checkpoints"  # of a run: hundreds of folders, and nothing to report
ANOTHER = "ANOTHER result (of other code, devices or, on a CPU, another number of cores?)"
RUN_FILES = ("run.json", "config.json", "curve.csv")  # any of them makes a folder that of a run


@dataclass(frozen=True)
class Problem:
    """A file, folder or run that is counted nowhere, and why; `recipe` if it is known."""

    path: str
    message: str
    recipe: str | None = None


def collect(roots: Iterable[Path]) -> tuple[list[Run], list[Problem]]:
    """Returns (runs, problems) below `roots` (folders at any depth, or single log files).

    A folder with run.json is a run of ours and its result.txt is not read again; elsewhere
    result*.txt are MLPerf logs and runs.json is an archive of runs. What a sweep's manifest names
    and is not there is a problem too.
    A root that does not exist is a UserError.
    """
    runs: list[Run] = []
    problems: list[Problem] = []
    # Each place once, under the name that was given: a report must not tell of this machine.
    for path in sorted({place.resolve(): place for place in _places(roots)}.values()):
        try:
            if path.name == manifest.NAME:
                problems += _lost(path)
            elif path.name == archive.NAME:
                for found in archive.read(path):
                    if isinstance(found, Run):
                        runs.append(found)
                    else:
                        problems.append(Problem(*found))
            elif path.is_dir():
                runs.append(read_run(path))
            else:
                runs += mlperf_log.read_log(path)
        except UserError as error:
            problems.append(Problem(str(path), str(error), _recipe(path)))
        except FileNotFoundError:
            problems.append(Problem(str(path), "no run.json: not finished", _recipe(path)))
        except OSError as error:
            problems.append(Problem(str(path), f"{error.strerror or error}"))
    runs, repeated = _each_once(runs)
    return runs, problems + repeated


def _places(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        if root.is_file():
            yield root
        elif not root.is_dir():
            raise UserError(f"DIR={root}: there is no such folder; give folders of runs or logs")
        for folder, folders, names in os.walk(root, followlinks=False):
            folders[:] = [name for name in folders if name[0] != "." and name != CHECKPOINTS]
            here = Path(folder)
            if set(RUN_FILES) & set(names):
                yield here
            else:
                yield from (here / name for name in names if _is_of_several(name))


def _is_of_several(name: str) -> bool:
    """Whether a file tells of runs: an MLPerf log, an archive, a sweep's manifest."""
    is_log = name.startswith("result") and name.endswith(".txt")
    return is_log or name in (archive.NAME, manifest.NAME)


def _lost(path: Path) -> list[Problem]:
    """Returns the runs that a sweep planned, began or gave up and that left nothing to read."""
    lost = []
    for name, entry in manifest.read(path).items():
        folder = path.parent / name
        if not any((folder / file).exists() for file in RUN_FILES):
            message = f"the sweep's manifest says {entry.status}"
            lost.append(Problem(str(folder), message, entry.recipe))
    return lost


def _recipe(path: Path) -> str | None:
    """Returns the recipe of a folder that has no readable run.json, if its config tells."""
    try:
        return str(files.read_json(path / "config.json").get("recipe") or "") or None
    except (OSError, UserError):
        return None


def _each_once(runs: list[Run]) -> tuple[list[Run], list[Problem]]:
    """Keeps one run per seed and per log text: a copy would make n look larger than it is."""
    kept: dict[object, Run] = {}
    repeated = []
    for run in runs:
        key = run.identity()
        if key in kept:
            first = kept[key]
            same = "the same result" if first.curve == run.curve else ANOTHER
            repeated.append(
                Problem(run.path, f"{run.label()} is already counted from {first.path}: {same}")
            )
        else:
            kept[key] = run
    return list(kept.values()), repeated
