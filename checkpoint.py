"""Checkpoints of a run's canonical state and its record, written asynchronously by orbax.

A checkpoint does not depend on the device count: sharded state is gathered into its canonical
layout first. The record is a `run.logger.RunProgress` as JSON.
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

from errors import UserError
from optim import sharding
from run import distributed
from step import AXIS, TrainState


class AnotherVersionError(UserError):
    """The state or the record in the checkpoints differs from that of this version of the code."""

    def __init__(self, workdir: epath.Path):
        super().__init__(
            f"workdir={workdir}: its checkpoints are of another version of the code; "
            "use another workdir, or remove this one"
        )


class _Manager(ocp.CheckpointManager):
    def reached_preemption(self, step: int) -> bool:
        """Returns False: orbax would poll with a number lower than that of the last `Signals.poll`.

        The hosts would then agree to stop at an earlier poll, and a SIGTERM would be lost.
        """
        return False


def _is_not_from_orbax(record: logging.LogRecord) -> bool:
    """Filters log records of orbax, which logs at length every error that it raises."""
    return "orbax" not in pathlib.Path(record.pathname).parts


class Checkpoints:
    """FOLDER/checkpoints, of which the last `keep` are kept; created by the first save.

    Host 0 writes, and all hosts read. Each host uses orbax as if it were alone, because orbax's
    barriers would block all hosts for minutes if one of them cannot write.

    Args:
      every_steps, every_minutes: interval between checkpoints; 0 for none.
      look_every_steps: interval at which host 0 compares its clock with every_minutes.
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
        self.latest: int | None = None  # the last step that was saved or restored
        self.manager = self._open() if self.directory.exists() else None

    def _open(self) -> ocp.CheckpointManager:
        logging.getLogger("absl").addFilter(_is_not_from_orbax)
        index = jax.process_index()
        alone: dict[str, Any] = {
            "multiprocessing_options": ocp.options.MultiprocessingOptions(
                primary_host=index,
                active_processes={index},
                barrier_sync_key_prefix=f"host_{index}",
            )
        }
        if distributed.is_first():
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
    def are_regular(self) -> bool:
        """Whether the run saves checkpoints at intervals, not only when it is stopped."""
        return bool(self.every_steps or self.every_minutes)

    def is_due(self, step: int) -> bool:
        """Returns whether to save now, the same on all hosts; never at step 0."""
        if step == 0:
            return False
        if self.every_steps and step % self.every_steps == 0:
            return True
        if not self.every_minutes or step % self.look_every_steps:
            return False
        seconds = time.monotonic() - self.looked_from
        return distributed.broadcast(seconds >= 60 * self.every_minutes)

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints, in order."""
        return sorted(self.manager.all_steps()) if self.manager else []

    def save(self, step: int, state: TrainState, record: dict[str, Any]) -> None:
        """Starts a save, unless this step is saved; returns once the state is copied to the host.

        Raises:
          RuntimeError: orbax did not save, because a later step exists.
          OSError: this checkpoint, or the one before, could not be written.
        """
        if step == self.latest:
            return
        whole = canonical(state)  # a collective
        self.latest, self.looked_from = step, time.monotonic()
        if not distributed.is_first():
            return
        if distributed.count() > 1:
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
                f"step {step} was not saved: {self.directory} already contains step "
                f"{self.manager.latest_step()}"
            )

    def close(self) -> None:
        """Waits on all hosts until the last save is written.

        Raises:
          OSError: it could not be written.
        """
        if self.manager:
            with _disk_errors(self.directory):
                self.manager.close()
        distributed.barrier()

    def restore_latest(self, template: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """Returns the latest state that every host can read, as numpy arrays, and its record.

        Returns None without checkpoints. If some host cannot read a checkpoint, prints the reason
        and reads the one before. The unreadable one is then removed, because orbax saves no step
        before an existing one. If none can be read, all are kept, as another version of the code
        may be able to read them.

        Args:
          template: the canonical state of the same config at step 0.

        Raises:
          UserError: no checkpoint can be read, or another version of the code wrote them.
          TypeError: a dtype differs, which orbax would cast silently.
        """
        arrays = jax.tree.map(np.asarray, template)
        reasons: dict[int, str] = {}
        for step in reversed(distributed.broadcast(self.steps())):
            try:
                restored = self._restore(step, arrays)
                reason = None
            except (TypeError, AnotherVersionError):
                raise
            except Exception as e:
                reason = f"step {step}: {type(e).__name__}: {e}".splitlines()[0][:200]
            reason = next((r for r in distributed.gather(reason) if r), None)
            if reason is None:
                self._remove(reasons)
                self.latest = step
                return restored.state, restored.record
            reasons[step] = reason
        if not reasons:
            return None
        raise UserError(
            f"workdir={self.directory.parent}: none of its checkpoints can be read "
            f"({'; '.join(reasons.values())}); remove the workdir to start again"
        )

    def _remove(self, reasons: Mapping[int, str]) -> None:
        if not distributed.is_first():
            return
        for step, reason in reasons.items():
            print(f"skipping a checkpoint that cannot be read: {reason}")
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
    """Raises disk errors as OSError, which orbax and tensorstore wrap in their own types."""
    try:
        yield
    except OSError:
        raise
    except Exception as e:
        match = re.search(r"os_error_code='(\d+)'", str(e))
        if not match:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1])), str(directory)) from e


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
