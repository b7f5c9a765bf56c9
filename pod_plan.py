"""Plans a recipe on a TPU pod without one: the memory, time and communication of its steps.

    python pod_plan.py --config=configs/shampoo.py:readme --topology=v3:16x8 --json=FILE
    python pod_plan.py --all [--topology=v3:16x8]

The TPU compiler (libtpu: make setup EXTRA=tpu) compiles the real train and eval step for the
devices of the topology. The second form plans all published recipes and writes the page
results/pod_plan/README.md with its data; topologies other than v3:16x8 get a folder of their own.
Exit status: 0 done, 2 user error.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from etils import epath

from configs import command_line
from errors import DONE, USER_ERROR, OneLineParser, UserError
from pod import compile as pod_compile
from pod import page, predict, topologies
from sweeps.runs import folder_name

ROOT = pathlib.Path(__file__).parent
PLANS = epath.Path(ROOT / "results" / "pod_plan")
RECIPES = (
    "lars:mlperf_v07",
    "nesterov:nado",
    "sm3:untuned",
    "shampoo:readme",
    "shampoo:mlperf_v1",
    "shampoo:mlperf_v1_64k",
)


def compile_steps(
    config: str, overrides: Sequence[str], topology: topologies.Topology, hlo: str = ""
) -> dict:
    """Compiles a recipe's steps for a topology in a separate process and returns the plan.

    Args:
      config: recipe file and variant, as for main.py.
      overrides: as --config.FIELD=VALUE.
      hlo: folder to write the compiled programs to, as text; "" to write none.

    Raises:
      UserError: a mistake in the config or the topology.
      RuntimeError: the compilation failed otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "plan.json"
        command = [sys.executable, "-m", "pod.compile", topology.name, str(file), hlo]
        process = subprocess.run(
            [*command, f"--config={config}", *overrides],
            env=pod_compile.environment(topology),
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if process.returncode == USER_ERROR:
            raise UserError(process.stderr.strip().splitlines()[-1].removeprefix("error: "))
        if process.returncode:
            raise RuntimeError(f"the compilation failed:\n{process.stderr}")
        return json.loads(file.read_text())


def largest_batch(
    config: str, overrides: Sequence[str], topology: topologies.Topology, device_batch_size: int
) -> int | None:
    """Returns the largest global batch that compiles, among halvings of the device batch."""
    size = device_batch_size // 2
    while size:
        total = size * topology.n_devices
        smaller = [
            *overrides,
            f"--config.global_batch_size={total}",
            f"--config.model.bn_span={size}",
        ]
        if compile_steps(config, smaller, topology)["train_step"]["fits"]:
            return total
        size //= 2
    return None


def make_plan(
    config: str, overrides: Sequence[str], topology: topologies.Topology, hlo: str = ""
) -> dict:
    """Returns the plan, with the largest batch that fits if the batch of the recipe does not."""
    plan = compile_steps(config, overrides, topology, hlo)
    if not plan["train_step"]["fits"]:
        plan["largest_global_batch_size"] = largest_batch(
            config, overrides, topology, plan["device_batch_size"]
        )
    return plan


def plan_all(topology: topologies.Topology, *, is_compiled: bool) -> None:
    """Plans all published recipes and writes their JSON files, the page and the predictions.

    Args:
      is_compiled: whether the JSON files exist, so that only the page and the predictions are
        written.
    """
    is_published = topology.name == predict.PUBLISHED_TOPOLOGY
    folder = PLANS if is_published else PLANS / topology.name.replace(":", "_")
    folder.mkdir(parents=True, exist_ok=True)
    paths = {recipe: folder / f"{folder_name(recipe)}.json" for recipe in RECIPES}
    for recipe, path in paths.items():
        if not is_compiled:
            plan = make_plan(command_line.recipe_path(recipe), [], topology)
            print(page.summary(plan), flush=True)
            path.write_text(json.dumps(plan, indent=1) + "\n")
    plans = [json.loads(path.read_text()) for path in paths.values() if path.exists()]
    page.write(folder, plans, topology.generation.interconnect_bytes_per_second / 1e9)


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns the options and the overrides --config.FIELD=VALUE."""
    parser = OneLineParser(
        prog="pod_plan.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Any --config.FIELD=VALUE overrides that field of the recipe.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", help="one recipe, as configs/shampoo.py:readme")
    what.add_argument("--all", action="store_true", help="all published recipes")
    what.add_argument("--page", action="store_true", help="only write the page of --all again")
    parser.add_argument(
        "--topology", default=predict.PUBLISHED_TOPOLOGY, help="as v3:16x8, v4:4x4x8, v5e:16x16"
    )
    parser.add_argument("--json", help="file to write the plan of --config to")
    parser.add_argument("--hlo", default="", help="folder for the programs of --config, as text")
    options, overrides = parser.parse_known_args(argv)
    for argument in overrides:
        if not argument.startswith("--config."):
            parser.error(f"argument {argument}: unknown; overrides are --config.FIELD=VALUE")
    if not options.config and (options.json or options.hlo or overrides):
        parser.error("--json, --hlo and overrides need --config")
    return options, overrides


def main(argv: Sequence[str]) -> int:
    """Returns the exit status; user errors are one line on standard error."""
    options, overrides = parse_arguments(argv)
    try:
        topology = topologies.parse(options.topology)
        if not options.config:
            plan_all(topology, is_compiled=options.page)
            return DONE
        hlo = str(pathlib.Path(options.hlo).absolute()) if options.hlo else ""
        plan = make_plan(options.config, overrides, topology, hlo)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(plan, indent=1) + "\n")
    except (UserError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    print(page.summary(plan))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
