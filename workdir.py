"""A run's folder: who may use it, and writing its files so that none is ever half-written."""

import contextlib
import csv
import fcntl
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from errors import UserError

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
# What changes no number of a run, so that it may be another when the run is taken up again; and
# `dataset.data_dir`: the data may lie elsewhere by then.
MAY_CHANGE = (
    "allow_host_count_change",
    "checkpoint_every_minutes",
    "checkpoint_every_steps",
    "keep_checkpoints",
    "on_divergence",
)
PATIENCE_SECONDS = 30.0  # for a process that is just saving before it ends


def write_text(path: epath.Path, text: str) -> None:
    """Writes beside the file, then renames: a reader sees the old text or the new one."""
    beside = _beside(path)
    beside.write_text(text)
    beside.replace(path)


def _beside(path: epath.Path) -> epath.Path:
    return path.parent / f".{path.name}.tmp"


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
      UserError: it is damaged; the message names it.
    """
    try:
        return json.loads(path.read_text())
    except ValueError as e:
        raise UserError(f"{path}: is damaged ({e}); remove it, or the whole folder") from e


@contextlib.contextmanager
def claimed(workdir: epath.Path, config: ConfigDict) -> Iterator[Mapping[str, Any] | None]:
    """Makes the folder this run's, and this process's for the length of the block.

    Yields the run.json of a run that is already complete, else None.

    Raises:
      UserError: the folder cannot be written, holds the run of another config, a damaged one or
        foreign files, or another process is at work in it.
    """
    with contextlib.ExitStack() as stack:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(workdir))
            complete = _claim(workdir, config)
        except OSError as e:
            raise UserError(
                f"workdir={workdir}: cannot be written ({e.strerror or e}); give another workdir"
            ) from e
        yield complete


@contextlib.contextmanager
def _locked(workdir: epath.Path) -> Iterator[None]:
    """Keeps other processes out. A dead one's lock is gone with it; buckets have no locks."""
    if "://" in str(workdir):
        yield
        return
    folder = os.open(workdir, os.O_RDONLY)
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError(
                        f"workdir={workdir}: another process is at work there; wait for it, or "
                        "end it"
                    ) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(folder)


def foreign(workdir: epath.Path) -> str | None:
    """The name of something in a folder that is not of a run, None if there is no such thing."""
    config_file = workdir / "config.json"
    if not workdir.exists() or config_file.exists():
        return None
    return min(
        (p.name for p in workdir.iterdir() if p.name != _beside(config_file).name), default=None
    )


def _claim(workdir: epath.Path, config: ConfigDict) -> Mapping[str, Any] | None:
    config_file, run_file = workdir / "config.json", workdir / "run.json"
    if not config_file.exists():
        if name := foreign(workdir):
            raise UserError(
                f"workdir={workdir}: holds {name}, but no run of ours; give a new folder"
            )
        write_json(config_file, config_as_json(config))
        return None
    different = other_config(workdir, config)
    if different:
        raise UserError(
            f"workdir={workdir}: holds the run of another config ({different}); "
            "give another workdir, or remove this one"
        )
    if not run_file.exists():
        return None
    run = read_json(run_file)
    if not isinstance(run, dict) or "status" not in run:
        raise UserError(f"{run_file}: says no status; remove it, or the whole folder")
    return None if run["status"] == "aborted" else run


def other_config(workdir: epath.Path, config: ConfigDict) -> str | None:
    """The first field in which the run that the folder holds differs; None without such a run."""
    file = workdir / "config.json"
    if not file.exists():
        return None
    there = read_json(file)
    if not isinstance(there, dict):
        return "its config.json is none of ours"
    return first_difference(lasting(there), lasting(config_as_json(config)), ("there", "now"))


def lasting(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the fields that may change when a run is taken up again."""
    dataset = config.get("dataset")
    if isinstance(dataset, dict):
        dataset = {k: v for k, v in dataset.items() if k != "data_dir"}
    return {k: v for k, v in config.items() if k not in MAY_CHANGE} | {"dataset": dataset}


def first_difference(one: Any, other: Any, names: tuple[str, str], field: str = "") -> str | None:
    """The first field (of JSON values) in which they differ, as "a.b=1 there, 2 now"; or None."""
    if isinstance(one, dict) and isinstance(other, dict):
        fields = sorted({*one, *other})
        found = (
            first_difference(one.get(k), other.get(k), names, f"{field}.{k}".strip("."))
            for k in fields
        )
        return next((text for text in found if text), None)
    return None if one == other else f"{field}={one} {names[0]}, {other} {names[1]}"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result can depend on."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in PACKAGES
    }


@functools.cache
def git_commit() -> str:
    """The commit of this code; 'unknown' without git.

    Where Python files differ from it, new ones included, `-dirty-` and a digest of what differs
    follow: two states of an optimizer that is being written are told apart.
    """
    folder = pathlib.Path(__file__).parent

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ("git", *arguments), cwd=folder, capture_output=True, check=True
        ).stdout

    try:
        commit = git("rev-parse", "HEAD").decode().strip()
        changes = git("diff", "HEAD", "--", "*.py")
        new = git("ls-files", "--others", "--exclude-standard", "-z", "--", "*.py").split(b"\0")
        for name in sorted(filter(None, new)):
            changes += name + (folder / os.fsdecode(name)).read_bytes()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else commit
