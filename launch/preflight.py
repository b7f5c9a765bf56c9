"""What must hold on every host before a reproduction starts: devices, versions, data, disk.

    python -m launch.preflight --recipes=... --out=DIR --config.dataset.data_dir=DIR --devices=256

Takes the flags of main.py for several hosts. Exit status 0 if all is there, on all hosts; else 2
and one message, on all hosts. It is a process of its own, for a TPU serves one process at a time.
"""

import json
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags
from etils import epath
from ml_collections import ConfigDict

from configs import command_line
from configs import plan as plans
from errors import DONE, USER_ERROR, UserError
from input_pipeline import DatasetSpec
from input_pipeline.dataset import GIB
from run import distributed, identity
from sweeps import runs

LOG_GIB = 0.05  # of a run: events, curves, MLPerf log


def check_devices(wanted: int) -> None:
    """Raises UserError unless JAX sees exactly that many devices, as many on each host."""
    import jax

    devices, hosts = jax.devices(), jax.process_count()
    if len(devices) != wanted:
        raise UserError(
            f"devices={wanted}: {len(devices)} ({devices[0].device_kind}) found on {hosts} "
            f"host(s); the published runs took a TPU v3-256 (256 cores, 32 hosts). Start this on "
            "every host of such a pod (python -m launch --help), or say --devices=N and, where "
            "the memory of N devices asks for it, --config.gradient_accumulation_steps"
        )


def check_data(config: ConfigDict, is_subset: bool) -> DatasetSpec:
    """The recipe's data set; UserError unless it is there, with all files and all examples."""
    import jax

    import input_pipeline
    from input_pipeline import dataset as datasets
    from input_pipeline import formats

    plans.validate(config)
    dataset = config.dataset.to_dict()
    found = input_pipeline.describe(**dataset)
    on_disk = datasets.locate(dataset["name"], dataset["data_dir"])
    if on_disk is not None:
        formats.check(on_disk)
    published = datasets.KNOWN.get(dataset["name"])
    for split in ("n_train_examples", "n_eval_examples"):
        there = getattr(found, split)
        if published and there != getattr(published, split) and not is_subset:
            raise UserError(
                f"dataset.data_dir={dataset['data_dir']}: {split}={there:,}, the full set has "
                f"{getattr(published, split):,}; prepare all of it, or say --subset"
            )
    plans.make_plan(
        config,
        n_train_examples=found.n_train_examples,
        n_eval_examples=found.n_eval_examples,
        n_devices=jax.device_count(),
        n_hosts=jax.process_count(),
    )
    return found


def check_disk(out: str, needed_gib: float) -> None:
    """Raises UserError if a local OUT has less room than the runs that are left need."""
    if "://" in out:
        return
    folder = pathlib.Path(out).absolute()
    while not folder.exists():
        folder = folder.parent
    free_gib = shutil.disk_usage(folder).free / GIB
    if free_gib < needed_gib:
        raise UserError(
            f"out={out}: {free_gib:.1f} GiB free, {needed_gib:.1f} GiB needed for the checkpoints "
            "of the runs that are left; make room, or keep fewer with --config.keep_checkpoints=1"
        )


def run_gib(config: ConfigDict, spec: DatasetSpec) -> float:
    """Room for the kept checkpoints and the logs of one run, uncompressed, GiB."""
    import jax

    import step as steps
    import train
    from configs import optimizers

    program = train.build(config, spec, optimizers.from_recipe(config))
    state = steps.state_shapes(program.model, program.tx, spec.image_shape)
    n_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    return config.keep_checkpoints * n_bytes / GIB + LOG_GIB


def check(options: Any, overrides: Sequence[str]) -> dict[str, Any]:
    """Checks everything on all hosts; returns {host, n_hosts, device_kind, needed_gib}.

    Raises:
      UserError: on all hosts, for the first thing that is missing on any.
    """
    import jax

    distributed.agree({"versions": identity.versions(), "commit": identity.git_commit()})
    with distributed.raise_on_all():
        check_devices(options.devices)
    with distributed.raise_on_all():
        recipes = runs.parse_recipes(options.recipes)
        configs = [command_line.load(recipe, overrides) for recipe in recipes]
        specs = [check_data(config, options.subset) for config in configs]
    with distributed.raise_on_all():
        seeds, out = runs.parse_seeds(options.seeds), epath.Path(options.out)
        needed_gib = 0.0
        for recipe, config, spec in zip(recipes, configs, specs, strict=True):
            planned = runs.plan_runs(recipe, seeds, out, overrides)
            needed_gib += run_gib(config, spec) * sum(not run.is_complete() for run in planned)
        check_disk(options.out, needed_gib)
    return {
        "host": jax.process_index(),
        "n_hosts": distributed.count(),
        "device_kind": jax.devices()[0].device_kind,
        "needed_gib": needed_gib,
    }


def main(argv: Sequence[str]) -> int:
    values = flags.FlagValues()
    distributed.define_flags(values)
    for name, text in (
        ("recipes", "as sweep.py's"),
        ("out", "folder for all runs"),
        ("facts", "file to write what was found to, as JSON"),
    ):
        flags.DEFINE_string(name, None, text, required=True, flag_values=values)
    flags.DEFINE_integer("devices", 256, "devices in all", flag_values=values)
    flags.DEFINE_string("seeds", "0", "as sweep.py's", flag_values=values)
    flags.DEFINE_boolean("subset", False, "accept a part of the data set", flag_values=values)
    overrides = [a for a in argv if a.startswith("--config.")]
    try:
        values([a for a in argv if a not in overrides])
        distributed.join(values)
        found = check(values, overrides)
    except (UserError, flags.Error) as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    pathlib.Path(values.facts).write_text(json.dumps(found))
    if found["host"] == 0:
        print(
            f"preflight: {values.devices} x {found['device_kind']} on {found['n_hosts']} host(s), "
            f"data complete, versions equal, {found['needed_gib']:.1f} GiB for checkpoints",
            flush=True,
        )
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
