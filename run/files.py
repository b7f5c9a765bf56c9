"""A run's folder: who may use it, and writing its files so that none is ever half-written."""

import contextlib
import csv
import fcntl
import io
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from configs.fields import MAY_CHANGE_ON_RESUME
from errors import UserError

LOCK = ".lock"
LOCK_SECONDS = 30.0  # to wait for a process that is saving before it ends


def write_text(path: epath.Path, text: str) -> None:
    """Writes another file, then renames it: readers see the old text or the new one."""
    partial = _partial(path)
    partial.write_text(text)
    partial.replace(path)


def _partial(path: epath.Path) -> epath.Path:
    return path.parent / f".{path.name}.tmp"


def write_json(path: epath.Path, value: Any) -> None:
    """Writes JSON with sorted keys, atomically; NaN and infinities raise ValueError."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_csv(path: epath.Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_json(path: epath.Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      UserError: the file is damaged or holds no object; the message names it.
      OSError: it cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as e:
        raise UserError(f"{path}: is not UTF-8 text; remove it, or the whole folder") from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"{path}: is not JSON ({e}); remove it, or the whole folder") from e
    if not isinstance(value, dict):
        raise UserError(
            f"{path}: must hold a JSON object, not {type(value).__name__}; remove it, or the "
            "whole folder"
        )
    return value


@contextlib.contextmanager
def locked(file: epath.Path, message: str, patience_seconds: float = 0.0) -> Iterator[None]:
    """Holds an exclusive lock on a file, which ends with the process. Buckets have no locks.

    Raises:
      UserError: `message`, if another process holds the lock for longer than `patience_seconds`.
      OSError: the file cannot be written.
    """
    if "://" in str(file):
        yield
        return
    deadline = time.monotonic() + patience_seconds
    with open(file, "a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UserError(message) from None
                time.sleep(0.1)
        yield


def is_locked(file: epath.Path) -> bool:
    """Returns whether a process holds the lock."""
    try:
        with open(file) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def config_as_json(config: ConfigDict) -> dict[str, Any]:
    """Returns the config as JSON values (tuples are lists)."""
    return json.loads(config.to_json())


@contextlib.contextmanager
def claimed(workdir: epath.Path, config: ConfigDict) -> Iterator[Mapping[str, Any] | None]:
    """Makes the folder this run's, and locks it for the length of the block.

    Yields:
      run.json if the run is already complete, else None.

    Raises:
      UserError: the folder cannot be written, holds another run or foreign files, or is in use.
    """
    in_use = f"workdir={workdir}: is used by another process; wait for it, or end it"
    with contextlib.ExitStack() as stack:
        try:
            _refuse_foreign(workdir)  # before the lock leaves a file there
            workdir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(workdir / LOCK, in_use, LOCK_SECONDS))
            complete = _claim(workdir, config)
        except OSError as e:
            raise UserError(
                f"workdir={workdir}: cannot be written ({e.strerror or e}); use another workdir"
            ) from e
        yield complete


def foreign(workdir: epath.Path) -> str | None:
    """Returns the name of a file that is not part of a run, or None."""
    config_file = workdir / "config.json"
    if not workdir.exists() or config_file.exists():
        return None
    ours = (LOCK, _partial(config_file).name)
    return min((p.name for p in workdir.iterdir() if p.name not in ours), default=None)


def _refuse_foreign(workdir: epath.Path) -> None:
    if name := foreign(workdir):
        raise UserError(
            f"workdir={workdir}: contains {name}, but no run of this program; use a new folder"
        )


def _claim(workdir: epath.Path, config: ConfigDict) -> Mapping[str, Any] | None:
    config_file, run_file = workdir / "config.json", workdir / "run.json"
    if not config_file.exists():
        _refuse_foreign(workdir)
        write_json(config_file, config_as_json(config))
        return None
    difference = other_config(workdir, config)
    if difference:
        raise UserError(
            f"workdir={workdir}: contains the run of another config ({difference}); use another "
            "workdir, or remove this one"
        )
    if not run_file.exists():
        return None
    run = read_json(run_file)
    if "status" not in run:
        raise UserError(f"{run_file}: has no status; remove it, or the whole folder")
    return None if run["status"] == "aborted" else run


def other_config(workdir: epath.Path, config: ConfigDict) -> str | None:
    """Returns the first field in which the run in the folder differs; None without such a run."""
    file = workdir / "config.json"
    if not file.exists():
        return None
    stored, given = fixed_fields(read_json(file)), fixed_fields(config_as_json(config))
    return first_difference(stored, given, ("there", "given"))


def fixed_fields(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a config without the fields that may change on resume."""
    return {
        key: fixed_fields(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in config.items()
        if f"{prefix}{key}" not in MAY_CHANGE_ON_RESUME
    }


def first_difference(a: Any, b: Any, places: tuple[str, str], field: str = "") -> str | None:
    """Returns the first field in which two JSON values differ, or None.

    For example "model.width=8 there, 16 given" for the places ("there", "given").
    """
    if isinstance(a, dict) and isinstance(b, dict):
        differences = (
            first_difference(a.get(k), b.get(k), places, f"{field}.{k}".strip("."))
            for k in sorted({*a, *b})
        )
        return next((text for text in differences if text), None)
    return None if a == b else f"{field}={a} {places[0]}, {b} {places[1]}"
