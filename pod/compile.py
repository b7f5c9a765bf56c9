"""Compiles the real steps of a recipe for a TPU topology, with no TPU there.

    python -m pod.compile --config=configs/lars.py:mlperf_v07 --topology=v3:16x8 --json=FILE

In a process of its own, which `pod_plan` starts in `environment(...)`: libtpu reads it on import.
"""

import dataclasses
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from configs import command_line
from configs import plan as plans
from errors import DONE, USER_ERROR, UserError
from pod import cycles, topologies

MIB = 2**20


def environment(topology: topologies.Topology) -> dict[str, str]:
    """What libtpu needs to compile for a topology without looking for a TPU."""
    here = {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": topology.accelerator_type,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_LOG_DIR": "disabled",
        "XLA_FLAGS": "",
    }
    if not any(pathlib.Path("/dev").glob("accel*")):  # never where a TPU could be
        here["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    return {**os.environ, **here}


def devices_of(topology: topologies.Topology) -> tuple[Any, ...]:
    """The devices that the compiler knows for a topology.

    Raises:
      UserError: libtpu is not installed, or knows no such slice.
    """
    from jax.experimental import topologies as jax_topologies

    try:
        found = jax_topologies.get_topology_desc(platform="tpu", topology_name=topology.name)
    except (RuntimeError, ValueError, NotImplementedError) as e:
        reason = str(e).splitlines()[0]
        try:
            import libtpu  # noqa: F401
        except ImportError:
            reason = "libtpu is not installed; install it with: make setup EXTRA=tpu"
        raise UserError(f"topology={topology.name}: {reason}") from e
    return tuple(found.devices)


def measure(config: ConfigDict, topology: topologies.Topology, hlo: str = "") -> dict[str, Any]:
    """Compiles train and eval step for the topology; returns what `pod_plan` writes as JSON.

    Args:
      hlo: folder for the compiled programs as text; "": not written.

    Raises:
      UserError: the batch does not divide over the devices, or the topology is not known.
    """
    import jax

    import input_pipeline
    import step as steps
    import train
    from configs import optimizers
    from optim import sharding

    spec = input_pipeline.describe(**{**config.dataset.to_dict(), "data_dir": None})
    devices = devices_of(topology)
    n = len(devices)
    plan = plans.make_plan(
        config,
        n_train_examples=spec.n_train_examples,
        n_eval_examples=spec.n_eval_examples,
        n_devices=n,
        n_hosts=max(1, n // topology.generation.devices_per_host),
    )
    program = train.build(config, spec, optimizers.from_recipe(config), devices)
    state = steps.state_shapes(program.model, program.tx, spec.image_shape)
    opt_state, sharded = jax.eval_shape(partial(sharding.split, n_devices=n), state.opt_state)
    state = dataclasses.replace(state, opt_state=opt_state, sharded=sharded)
    image = jax.ShapeDtypeStruct(spec.image_shape, config.dataset.image_dtype)
    found = {}
    for name, step, size in (
        ("train_step", program.train_step, plan.device_batch_size),
        ("eval_step", program.eval_step, plan.device_eval_batch_size),
    ):
        arguments = (state, train.batch_shapes(n, size, image))
        found[name] = compiled(step, arguments, topology, hlo and f"{hlo}/{name}.txt")
    roots = [
        sharding.rows_per_device(leaf.n, n)
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            opt_state, is_leaf=lambda x: isinstance(x, sharding.Sharded)
        )
        if "roots" in jax.tree_util.keystr(path) and isinstance(leaf, sharding.Sharded)
    ]
    return {
        "recipe": config.recipe,
        "topology": topology.name,
        "n_devices": n,
        "device_batch_size": plan.device_batch_size,
        "global_batch_size": config.global_batch_size,
        "total_steps": config.total_steps,
        "n_evaluations": len(plan.eval_steps),
        "eval_batches": -(-plan.n_eval_examples // (n * plan.device_eval_batch_size)),
        "hbm_gib": topology.generation.hbm_gib,
        "roots_per_device": sum(roots),
        "versions": {"jax": jax.__version__, "libtpu": _libtpu_version()},
        **found,
    }


def compiled(step: Any, arguments: Any, topology: topologies.Topology, hlo: str) -> dict[str, Any]:
    """Memory, work and estimated time of one step on one device, or by how much it does not fit."""
    import jax

    began, cpu = time.monotonic(), time.process_time()
    lowered = step.lower(*arguments)
    n_lines = lowered.as_text().count("\n")
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as e:
        if "RESOURCE_EXHAUSTED" not in str(e):
            raise
        return {"fits": False, **exceeded(str(e))}
    seconds = {"wall": time.monotonic() - began, "cpu": time.process_time() - cpu}
    text = program.as_text()
    if hlo:
        pathlib.Path(hlo).write_text(text)
    memory, cost = program.memory_analysis(), program.cost_analysis()
    sizes = {
        part: getattr(memory, f"{part}_size_in_bytes") / MIB
        for part in ("argument", "output", "alias", "temp", "generated_code")
    }
    needed = sum(sizes.values()) - 2 * sizes["alias"]
    return {
        "fits": True,
        "needed_mib": needed,
        "memory_mib": sizes,
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
        "optimal_seconds": cost["optimal_seconds"],
        "stablehlo_lines": n_lines,
        "compile_seconds": seconds,
        **cycles.estimate(text, topology.generation),
    }


OUT_OF_MEMORY = (  # the compiler's two ways of saying it
    r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm",
    r"\(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+)([KMG])\)",
)


def exceeded(message: str) -> dict[str, float]:
    """Needed and exceeding MiB from the compiler's message.

    Raises:
      UserError: the message has no such figures.
    """
    units = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
    for pattern in OUT_OF_MEMORY:
        figures = re.search(pattern, message)
        if figures:
            used, unit, there, other = figures.groups()
            needed, available = float(used) * units[unit], float(there) * units[other]
            return {"needed_mib": needed, "exceeded_mib": needed - available}
    raise UserError(f"the compiler ran out of memory and does not say how much: {message}")


def _libtpu_version() -> str:
    from importlib import metadata

    return metadata.version("libtpu")


def main(argv: Sequence[str]) -> int:
    values = flags.FlagValues()
    command_line.define_config_flag(values, argv)
    for name, default in (("topology", None), ("json", None), ("hlo", "")):
        flags.DEFINE_string(name, default, "as pod_plan.py's", flag_values=values)
    try:
        config = command_line.parse(argv, values)
        plans.validate(config)
        found = measure(config, topologies.parse(values.topology), values.hlo)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    pathlib.Path(values.json).write_text(json.dumps(found, indent=2) + "\n")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
