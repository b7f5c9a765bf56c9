"""A run's folder: who may use it, and writing its files so that none is ever half-written."""

import csv
import functools
import importlib.metadata
import io
import json
import pathlib
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "tensorflow-cpu",
    "tensorflow-datasets",
    "numpy",
)
MAY_MOVE = ("data_dir",)  # the data may lie elsewhere when a run is taken up again


def write_text(path: epath.Path, text: str) -> None:
    """Writes beside the file, then renames: a reader sees the old text or the new one."""
    beside = path.parent / f".{path.name}.tmp"
    beside.write_text(text)
    beside.replace(path)


def write_json(path: epath.Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_csv(path: epath.Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def config_as_json(config: ConfigDict) -> dict[str, Any]:
    """The config as JSON has it (tuples are lists)."""
    return json.loads(config.to_json())


def read_json(path: epath.Path) -> Any:
    """Reads one of a run's files.

    Raises:
      ValueError: it is damaged; the message names it.
    """
    try:
        return json.loads(path.read_text())
    except ValueError as e:
        raise ValueError(f"{path}: is damaged ({e}); remove it, or the whole folder") from e


def claim(workdir: epath.Path, config: ConfigDict) -> Mapping[str, Any] | None:
    """Makes the folder this run's; returns the run.json of a run that is already complete.

    Raises:
      ValueError: the folder cannot be written, holds the run of another config, or a damaged one.
    """
    wanted = config_as_json(config)
    config_file, run_file = workdir / "config.json", workdir / "run.json"
    try:
        if config_file.exists():
            different = _first_difference(read_json(config_file), wanted)
            if different:
                raise ValueError(
                    f"workdir={workdir}: holds the run of another config ({different}); "
                    "give another workdir, or remove this one"
                )
            if run_file.exists():
                run = read_json(run_file)
                if not isinstance(run, dict) or "status" not in run:
                    raise ValueError(f"{run_file}: says no status; remove it, or the whole folder")
                return None if run["status"] == "aborted" else run
        else:
            workdir.mkdir(parents=True, exist_ok=True)
            write_json(config_file, wanted)
    except OSError as e:
        raise ValueError(
            f"workdir={workdir}: cannot be written ({e.strerror or e}); give another workdir"
        ) from e
    return None


def other_config(workdir: epath.Path, config: ConfigDict) -> str | None:
    """The first field in which the run that the folder holds differs; None without such a run."""
    file = workdir / "config.json"
    return _first_difference(read_json(file), config_as_json(config)) if file.exists() else None


def _first_difference(there: Any, wanted: Any, field: str = "") -> str | None:
    if isinstance(there, dict) and isinstance(wanted, dict):
        for key in sorted({*there, *wanted}):
            if key in MAY_MOVE:
                continue
            found = _first_difference(there.get(key), wanted.get(key), f"{field}.{key}".strip("."))
            if found:
                return found
        return None
    if not field and there != wanted:
        return "its config.json is none of ours"
    return None if there == wanted else f"{field}={there} there, {wanted} now"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result can depend on."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in PACKAGES
    }


@functools.cache
def git_commit() -> str:
    """The commit of this code, with -dirty where files differ from it; 'unknown' without git."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        folder = pathlib.Path(__file__).parent
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
