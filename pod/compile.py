"""Compiles the real steps of a recipe for a TPU topology, without a TPU.

`pod_plan.py` runs this module as a separate process, because libtpu reads its environment when it
is imported. Its arguments are TOPOLOGY FILE HLO_FOLDER --config=... [--config.FIELD=VALUE ...].
"""

import dataclasses
import importlib.metadata
import importlib.util
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
OUT_OF_MEMORY = (  # the compiler has two messages
    r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm",
    r"\(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+)([KMG])\)",
)


def environment(topology: topologies.Topology) -> dict[str, str]:
    """Returns the environment in which libtpu compiles for a topology and looks for no TPU."""
    variables = {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": topology.accelerator_type,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_LOG_DIR": "disabled",
        "XLA_FLAGS": "",
    }
    if not any(pathlib.Path("/dev").glob("accel*")):  # unsafe if this machine has a TPU
        variables["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    return {**os.environ, **variables}


def topology_devices(topology: topologies.Topology) -> tuple[Any, ...]:
    """Returns the compiler's devices of a topology.

    Raises:
      UserError: libtpu is not installed, or does not support this slice.
    """
    from jax.experimental import topologies as jax_topologies

    try:
        description = jax_topologies.get_topology_desc(platform="tpu", topology_name=topology.name)
    except (RuntimeError, ValueError, NotImplementedError) as e:
        reason = str(e).splitlines()[0]
        if not importlib.util.find_spec("libtpu"):
            reason = "libtpu is not installed; install it with: make setup EXTRA=tpu"
        raise UserError(f"topology={topology.name}: {reason}") from e
    return tuple(description.devices)


def plan_steps(config: ConfigDict, topology: topologies.Topology, hlo: str = "") -> dict[str, Any]:
    """Compiles the train and eval step for a topology and returns the plan as JSON values.

    Args:
      hlo: folder to write the compiled programs to, as text; "" to write none.

    Raises:
      UserError: the batch does not divide over the devices, or the topology is not supported.
    """
    import jax

    import input_pipeline
    import step
    import train
    from configs import optimizers
    from optim import sharding

    spec = input_pipeline.describe(**{**config.dataset.to_dict(), "data_dir": None})
    devices = topology_devices(topology)
    n = len(devices)
    plan = plans.make_plan(
        config,
        n_train_examples=spec.n_train_examples,
        n_eval_examples=spec.n_eval_examples,
        n_devices=n,
        n_hosts=max(1, n // topology.generation.devices_per_host),
    )
    program = train.build(config, spec, optimizers.from_recipe(config), devices)
    state = step.state_shapes(program.model, program.tx, spec.image_shape)
    opt_state, sharded = jax.eval_shape(partial(sharding.split, n_devices=n), state.opt_state)
    state = dataclasses.replace(state, opt_state=opt_state, sharded=sharded)
    image = jax.ShapeDtypeStruct(spec.image_shape, config.dataset.image_dtype)
    steps = {}
    for name, function, size in (
        ("train_step", program.train_step, plan.device_batch_size),
        ("eval_step", program.eval_step, plan.device_eval_batch_size),
    ):
        arguments = (state, train.batch_shapes(n, size, image))
        steps[name] = plan_step(function, arguments, topology, hlo and f"{hlo}/{name}.txt")
    roots = [
        sharding.rows_per_device(leaf.n, n)
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            opt_state, is_leaf=lambda x: isinstance(x, sharding.Sharded)
        )
        if "roots" in jax.tree_util.keystr(path) and isinstance(leaf, sharding.Sharded)
    ]
    libtpu = importlib.metadata.version("libtpu")
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
        "versions": {"jax": jax.__version__, "libtpu": libtpu},
        **steps,
    }


def plan_step(
    step: Any, arguments: Any, topology: topologies.Topology, hlo_file: str
) -> dict[str, Any]:
    """Returns the memory, work and estimated time of one step on one device, as JSON values.

    A step that does not fit has only `needed_mib` and `exceeded_mib`.
    """
    import jax

    start_time, cpu_start_time = time.monotonic(), time.process_time()
    lowered = step.lower(*arguments)
    n_lines = lowered.as_text().count("\n")
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as e:
        if "RESOURCE_EXHAUSTED" not in str(e):
            raise
        return {"fits": False, **parse_out_of_memory(str(e))}
    seconds = {
        "wall": time.monotonic() - start_time,
        "cpu": time.process_time() - cpu_start_time,
    }
    text = program.as_text()
    if hlo_file:
        pathlib.Path(hlo_file).write_text(text)
    memory, cost = program.memory_analysis(), program.cost_analysis()
    sizes = {
        part: getattr(memory, f"{part}_size_in_bytes") / MIB
        for part in ("argument", "output", "alias", "temp", "generated_code")
    }
    return {
        "fits": True,
        "needed_mib": sum(sizes.values()) - 2 * sizes["alias"],
        "memory_mib": sizes,
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
        "optimal_seconds": cost["optimal_seconds"],
        "stablehlo_lines": n_lines,
        "compile_seconds": seconds,
        **cycles.estimate(text, topology.generation),
    }


def parse_out_of_memory(message: str) -> dict[str, float]:
    """Returns {"needed_mib", "exceeded_mib"} from the compiler's message.

    Raises:
      UserError: the message has no such numbers.
    """
    units = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
    for pattern in OUT_OF_MEMORY:
        match = re.search(pattern, message)
        if match:
            needed, available = (float(match[i]) * units[match[i + 1]] for i in (1, 3))
            return {"needed_mib": needed, "exceeded_mib": needed - available}
    raise UserError(f"the compiler ran out of memory and does not say how much: {message}")


def main(argv: Sequence[str]) -> int:
    topology, file, hlo, *arguments = argv[1:]
    arguments = [argv[0], *arguments]
    values = flags.FlagValues()
    command_line.define_config_flag(values, arguments)
    try:
        config = command_line.parse(arguments, values)
        plans.validate(config)
        plan = plan_steps(config, topologies.parse(topology), hlo)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    pathlib.Path(file).write_text(json.dumps(plan))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
