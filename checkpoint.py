"""Checkpoints: a run's canonical state and its record, written by orbax, asynchronous and atomic.

A checkpoint holds no trace of the device count: sharded rows are gathered into their canonical
layout first. The record is JSON: the curve so far, seconds, the MLPerf lines already written.
"""

import contextlib
import functools
import logging
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hosts
from errors import UserError
from optim import sharding
from step import AXIS, TrainState


class AnotherVersionError(UserError):
    """The checkpoints hold another state or record than this version of the code has."""

    def __init__(self, workdir: epath.Path):
        super().__init__(
            f"workdir={workdir}: its checkpoints are of another version of the code; "
            "give another workdir, or remove this one"
        )


class _Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
        """Never: orbax would ask jax.distributed under a number lower than `Signals`' last poll.

        The hosts would then agree to stop at a poll that is over, and a SIGTERM would be lost.
        """
        return False


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    """orbax logs at length what it raises; the warnings of others stay."""
    return "orbax" not in pathlib.Path(record.pathname).parts


class Checkpoints:
    """FOLDER/checkpoints, the last `keep` kept; the folder is made on the first save.

    The first host writes, all hosts read. To orbax each is alone: its barriers between hosts would
    keep all of them for minutes where one cannot write.

    Args:
      every_steps, every_minutes: when one is due; 0: never.
      look_every_steps: at which steps the clock is looked at (the first host's decides).
    """

    def __init__(
        self,
        folder: epath.Path,
        keep: int,
        *,
        every_steps: int = 0,
        every_minutes: float = 0.0,
        look_every_steps: int = 1,
    ):
        self.directory = epath.Path(folder).absolute() / "checkpoints"
        self.keep = keep
        self.every_steps, self.every_minutes = every_steps, every_minutes
        self.look_every_steps = look_every_steps
        self.looked_from = time.monotonic()
        self.latest: int | None = None  # the step that was saved or restored last
        self.manager = self._open() if self.directory.exists() else None

    def _open(self) -> ocp.CheckpointManager:
        logging.getLogger("absl").addFilter(_is_not_of_orbax)
        me = jax.process_index()
        alone: dict[str, Any] = {
            "multiprocessing_options": ocp.options.MultiprocessingOptions(
                primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"host_{me}"
            )
        }
        if hosts.is_first():
            self.directory.mkdir(parents=True, exist_ok=True)
            options = ocp.CheckpointManagerOptions(max_to_keep=self.keep, create=False, **alone)
        else:
            options = ocp.CheckpointManagerOptions(read_only=True, create=False, **alone)
        handlers: dict[str, Any] = {
            "state": ocp.StandardCheckpointHandler(**alone),
            "record": ocp.JsonCheckpointHandler(**alone),
        }
        return _Manager(self.directory, item_handlers=handlers, options=options)

    @property
    def wanted(self) -> bool:
        """Whether the run is to save without being told to stop."""
        return bool(self.every_steps or self.every_minutes)

    def due(self, step: int) -> bool:
        """Whether to save now; the same answer on all hosts. What a seed gives is never due."""
        if step == 0:
            return False
        if self.every_steps and step % self.every_steps == 0:
            return True
        if not self.every_minutes or step % self.look_every_steps:
            return False
        seconds = time.monotonic() - self.looked_from
        return hosts.first_says(seconds >= 60 * self.every_minutes)

    def steps(self) -> list[int]:
        """The steps that are there, in order."""
        return sorted(self.manager.all_steps()) if self.manager else []

    def save(self, step: int, state: TrainState, record: dict[str, Any]) -> None:
        """Begins to write, unless this very step is there; returns once the state left the devices.

        Raises:
          RuntimeError: orbax did not save, as it silently does below an existing step.
          OSError: this save or the one before it could not be written.
        """
        if step == self.latest:
            return
        whole = canonical(state)  # all hosts take part
        self.latest, self.looked_from = step, time.monotonic()
        if not hosts.is_first():
            return
        if hosts.count() > 1:
            whole = jax.tree.map(np.asarray, whole)
        with _disk_errors(self.directory):
            self.manager = self.manager or self._open()
            saved = self.manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(whole), record=ocp.args.JsonSave(record)
                ),
            )
        if not saved:
            raise RuntimeError(
                f"step {step} was not saved: {self.directory} holds step "
                f"{self.manager.latest_step()} already"
            )

    def close(self) -> None:
        """Waits for what is being written, on all hosts.

        Raises:
          OSError: it could not be written.
        """
        if self.manager:
            with _disk_errors(self.directory):
                self.manager.close()
        hosts.wait_for_all()

    def restore_latest(self, template: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The latest that every host can read, as numpy arrays, and its record; None without any.

        One that some host cannot read is named and the one before it taken; only then is it
        removed, for orbax saves nothing below it. Where none can be read, all stay: another version
        of the code may read them.

        Args:
          template: the canonical state of the same config before its first step.

        Raises:
          UserError: none can be read, or another version of the code wrote them.
          TypeError: a dtype differs (orbax would cast it silently).
        """
        arrays = jax.tree.map(np.asarray, template)
        reasons: dict[int, str] = {}
        for step in reversed(hosts.first_says(self.steps())):
            try:
                restored = self._restore(step, arrays)
                reason = None
            except (TypeError, AnotherVersionError):
                raise
            except Exception as e:
                reason = f"step {step}: {type(e).__name__}: {e}".splitlines()[0][:200]
            reason = next((r for r in hosts.gather(reason) if r), None)
            if reason is None:
                self._remove(reasons)
                self.latest = step
                return restored.state, restored.record
            reasons[step] = reason
        if not reasons:
            return None
        raise UserError(
            f"workdir={self.directory.parent}: no checkpoint there can be read "
            f"({'; '.join(reasons.values())}); remove the workdir to begin anew"
        )

    def _remove(self, reasons: Mapping[int, str]) -> None:
        if not hosts.is_first():
            return
        for step, reason in reasons.items():
            print(f"this checkpoint cannot be read, the one before it is taken: {reason}")
            assert self.manager is not None
            self.manager.delete(step)

    def _restore(self, step: int, arrays: TrainState) -> Any:
        assert self.manager is not None
        _check_leaves(self.manager, step, arrays)
        return self.manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(arrays), record=ocp.args.JsonRestore()
            ),
        )


@contextlib.contextmanager
def _disk_errors(directory: epath.Path) -> Iterator[None]:
    """Errors of the disk as OSError, whatever orbax and tensorstore make of them."""
    try:
        yield
    except OSError:
        raise
    except Exception as e:
        found = re.search(r"os_error_code='(\d+)'", str(e))
        if not found:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(directory)) from e


_merge = jax.jit(sharding.merge)


def canonical(state: TrainState) -> TrainState:
    """Returns a placed state as global arrays in the layout that any number of devices can read."""
    sharded = state.sharded
    if jax.process_count() > 1:
        whole = ocp.utils.fully_replicated_host_local_array_to_global_array
        mesh = Mesh(np.array(jax.devices()), (AXIS,))
        rows = multihost_utils.host_local_array_to_global_array(sharded, mesh, P(AXIS))
        sharded = _replicated(mesh)(rows)
        state = replace(jax.tree.map(whole, replace(state, sharded={})), sharded=sharded)
    return replace(state, opt_state=_merge(state.opt_state, state.sharded), sharded={})


@functools.cache
def _replicated(mesh: Mesh) -> Callable[[Any], Any]:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))


def _check_leaves(checkpoints: ocp.CheckpointManager, step: int, arrays: TrainState) -> None:
    metadata = checkpoints.item_metadata(step)["state"]
    stored = {leaf.name: jnp.dtype(leaf.dtype) for leaf in jax.tree.leaves(metadata)}
    expected = {
        jax.tree_util.keystr(path, simple=True, separator="."): x.dtype
        for path, x in jax.tree_util.tree_leaves_with_path(arrays)
    }
    if set(stored) != set(expected):
        raise AnotherVersionError(epath.Path(checkpoints.directory).parent)
    for name, dtype in expected.items():
        if stored[name] != dtype:
            raise TypeError(f"checkpoint of step {step}: {name} is {stored[name]}, not {dtype}")
