"""Checkpoints: a run's canonical state and its record, written by orbax, asynchronous and atomic.

A checkpoint holds no trace of the device count: what devices own is gathered into canonical rows
first. The record is JSON: the curve so far, seconds, the MLPerf lines already written.
"""

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

from optim import distribute
from step import AXIS, TrainState


def open_checkpoints(folder: epath.Path, keep: int) -> ocp.CheckpointManager:
    """The manager of FOLDER/checkpoints, which keeps the last `keep`; made on the first save."""
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=True)
    return ocp.CheckpointManager(
        epath.Path(folder).absolute() / "checkpoints",
        item_handlers={
            "state": ocp.StandardCheckpointHandler(),
            "record": ocp.JsonCheckpointHandler(),
        },
        options=options,
    )


def canonical(state: TrainState) -> TrainState:
    """The placed state as global arrays, nothing owned: what any number of devices can take up."""
    owned = state.owned
    if jax.process_count() > 1:
        whole = ocp.utils.fully_replicated_host_local_array_to_global_array
        mesh = Mesh(np.array(jax.devices()), (AXIS,))
        rows = multihost_utils.host_local_array_to_global_array(owned, mesh, P(AXIS))
        owned = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))(rows)
        state = replace(jax.tree.map(whole, replace(state, owned={})), owned=owned)
    merge = jax.jit(distribute.merge)
    return replace(state, opt_state=merge(state.opt_state, state.owned), owned={})


def save(
    checkpoints: ocp.CheckpointManager, step: int, state: TrainState, record: dict[str, Any]
) -> None:
    """Begins to write, unless this very step is there; returns once the state left the devices.

    Raises:
      RuntimeError: orbax did not save, as it silently does below an existing step.
    """
    if checkpoints.latest_step() == step:
        return
    saved = checkpoints.save(
        step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(canonical(state)), record=ocp.args.JsonSave(record)
        ),
    )
    if not saved:
        raise RuntimeError(
            f"step {step} was not saved: {checkpoints.directory} holds step "
            f"{checkpoints.latest_step()} already"
        )


def restore_latest(
    checkpoints: ocp.CheckpointManager, template: TrainState
) -> tuple[TrainState, dict[str, Any]] | None:
    """The latest checkpoint that can be read, as numpy arrays, and its record; None without any.

    An unreadable one is named, removed, and the one before it taken.

    Args:
      template: the canonical state of the same config before its first step.

    Raises:
      ValueError: none can be read, or a dtype differs (orbax would cast it silently).
    """
    steps = sorted(checkpoints.all_steps(), reverse=True)
    if not steps:
        return None
    arrays = jax.tree.map(np.asarray, template)
    reasons = []
    for step in steps:
        try:
            _check_dtypes(checkpoints, step, arrays)
            restored = checkpoints.restore(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(arrays), record=ocp.args.JsonRestore()
                ),
            )
        except TypeError:
            raise
        except Exception as e:
            reasons.append(f"step {step}: {type(e).__name__}")
            print(f"checkpoint of step {step} cannot be read ({e}); taking the one before it")
            checkpoints.delete(step)
            continue
        return restored.state, restored.record
    raise ValueError(
        f"workdir={checkpoints.directory.parent}: no checkpoint there can be read "
        f"({'; '.join(reasons)}); remove the workdir to begin anew"
    )


def _check_dtypes(checkpoints: ocp.CheckpointManager, step: int, arrays: TrainState) -> None:
    metadata = checkpoints.item_metadata(step)["state"]
    stored = {leaf.name: jnp.dtype(leaf.dtype) for leaf in jax.tree.leaves(metadata)}
    for path, wanted in jax.tree_util.tree_leaves_with_path(arrays):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in stored and stored[name] != wanted.dtype:
            raise TypeError(
                f"checkpoint of step {step}: {name} is {stored[name]}, not {wanted.dtype}"
            )
