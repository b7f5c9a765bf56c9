"""Checks devices, versions, data and disk space on all hosts before a reproduction starts.

    python -m launch.preflight --recipes=... --out=DIR --config.dataset.data_dir=DIR --devices=256

It accepts main.py's flags for several hosts. Its exit status is 0 if all checks pass on all hosts,
else 2 with one message on all hosts. It is a separate process, because a TPU serves one process at
a time.
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

LOG_GIB = 0.05  # events, curve and MLPerf log of a run


def check_devices(n_devices: int) -> None:
    """Raises UserError unless JAX has this number of devices."""
    import jax

    devices, n_hosts = jax.devices(), jax.process_count()
    if len(devices) != n_devices:
        raise UserError(
            f"devices={n_devices}: {len(devices)} ({devices[0].device_kind}) found on {n_hosts} "
            "host(s); the published runs used a TPU v3-256 (256 cores, 32 hosts). Start this on "
            "every host of such a pod (python -m launch --help), or set --devices=N and, if N "
            "devices have too little memory, --config.gradient_accumulation_steps"
        )


def check_data(config: ConfigDict, is_subset: bool) -> DatasetSpec:
    """Returns the recipe's data set; UserError unless all its files and examples are present."""
    import jax

    import input_pipeline
    from input_pipeline import dataset as datasets
    from input_pipeline import formats

    plans.validate(config)
    dataset = config.dataset.to_dict()
    description = input_pipeline.describe(**dataset)
    on_disk = datasets.locate(dataset["name"], dataset["data_dir"])
    if on_disk is not None:
        formats.check(on_disk)
    published = datasets.KNOWN.get(dataset["name"])
    for split in ("n_train_examples", "n_eval_examples"):
        n_examples = getattr(description, split)
        if published and n_examples != getattr(published, split) and not is_subset:
            raise UserError(
                f"dataset.data_dir={dataset['data_dir']}: {split}={n_examples:,}, the full set has "
                f"{getattr(published, split):,}; prepare all of it, or add --subset"
            )
    plans.make_plan(
        config,
        n_train_examples=description.n_train_examples,
        n_eval_examples=description.n_eval_examples,
        n_devices=jax.device_count(),
        n_hosts=jax.process_count(),
    )
    return description


def check_disk(out: str, needed_gib: float) -> None:
    """Raises UserError if OUT is a folder with less free space than the remaining runs need."""
    if "://" in out:
        return
    folder = pathlib.Path(out).absolute()
    while not folder.exists():
        folder = folder.parent
    free_gib = shutil.disk_usage(folder).free / GIB
    if free_gib < needed_gib:
        raise UserError(
            f"out={out}: {free_gib:.1f} GiB free, {needed_gib:.1f} GiB needed for the checkpoints "
            "of the remaining runs; free some space, or keep fewer with "
            "--config.keep_checkpoints=1"
        )


def run_gib(config: ConfigDict, spec: DatasetSpec) -> float:
    """Returns the space for the kept checkpoints and the logs of one run, uncompressed, GiB."""
    import jax

    import step
    import train
    from configs import optimizers

    program = train.build(config, spec, optimizers.from_recipe(config))
    state = step.state_shapes(program.model, program.tx, spec.image_shape)
    n_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    return config.keep_checkpoints * n_bytes / GIB + LOG_GIB


def check(options: Any, overrides: Sequence[str]) -> dict[str, Any]:
    """Checks everything on all hosts; returns {host, n_hosts, device_kind, needed_gib}.

    Raises:
      UserError: on all hosts, for the first problem on any of them.
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
    """Returns the exit status; user errors are one line on standard error."""
    values = flags.FlagValues()
    distributed.define_flags(values)
    for name, text in (
        ("recipes", "as for sweep.py"),
        ("out", "folder of all runs"),
        ("facts", "file to write the result of `check` to, as JSON"),
    ):
        flags.DEFINE_string(name, None, text, required=True, flag_values=values)
    flags.DEFINE_integer("devices", 256, "total number of devices", flag_values=values)
    flags.DEFINE_string("seeds", "0", "as for sweep.py", flag_values=values)
    flags.DEFINE_boolean("subset", False, "accept a part of the data set", flag_values=values)
    overrides = [a for a in argv if a.startswith("--config.")]
    try:
        values([a for a in argv if a not in overrides])
        distributed.join(values)
        facts = check(values, overrides)
    except (UserError, flags.Error) as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    pathlib.Path(values.facts).write_text(json.dumps(facts))
    if facts["host"] == 0:
        print(
            f"preflight: {values.devices} x {facts['device_kind']} on {facts['n_hosts']} host(s), "
            f"data complete, versions equal, {facts['needed_gib']:.1f} GiB for checkpoints",
            flush=True,
        )
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
