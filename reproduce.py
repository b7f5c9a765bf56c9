"""The published comparison from preflight to report: on a pod, the same command on every host.

    python reproduce.py --data_dir=DIR --out=DIR [--seeds=0:50] [--recipes="..."] [--dry_run]

1. Preflight (launch/preflight.py): devices, data, versions and disk on all hosts.
2. Three steps of every recipe, so that what cannot work fails now.
3. The sweep: all recipes x seeds, one run after another, each over all devices.
4. The report: OUT/report.html and OUT/report.json, by the first host.

The same command continues. Exit status: 0 done, 1 runs failed, 2 something is missing (nothing was
started), 75 preempted (run it again).
"""

import argparse
import json
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence

from configs import command_line, plan
from errors import DONE, FAILED, PREEMPTED, USER_ERROR, OneLineParser, UserError
from pod import predict
from run import distributed
from sweep import interrupt_on_signals, refuse_twice
from sweeps import budgets, process, runs

RECIPES = "lars:mlperf_v07 nesterov:nado shampoo:readme"
ROOT = pathlib.Path(__file__).parent
PLANS = ROOT / "results" / "pod_plan"
REHEARSAL_STEPS = 3


def arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line; --config.FIELD=VALUE are overrides for every recipe."""
    parser = OneLineParser(
        prog="reproduce.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Any --config.FIELD=VALUE overrides that field in every recipe.",
    )
    parser.add_argument("--data_dir", required=True, help="where ImageNet is prepared")
    parser.add_argument(
        "--out", type=runs.parse_out, default="runs/reproduce", help="folder that all hosts mount"
    )
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--seeds", default="0:50", help="as 0:50 (0 to 49)")
    parser.add_argument("--devices", type=int, default=256, help="devices in all")
    parser.add_argument("--subset", action="store_true", help="accept a part of ImageNet")
    parser.add_argument("--dry_run", action="store_true", help="print all of it, start nothing")
    distributed.add_flags(parser)
    options, rest = parser.parse_known_args(argv)
    for argument in rest:
        if not argument.startswith("--config."):
            parser.error(f"argument {argument}: not understood; overrides are --config.FIELD=VALUE")
    return options, [f"--config.dataset.data_dir={options.data_dir}", *rest]


def preflight(options: argparse.Namespace, overrides: Sequence[str], facts: str) -> list[str]:
    return [
        *("-m", "launch.preflight", f"--recipes={options.recipes}", f"--out={options.out}"),
        *(f"--devices={options.devices}", f"--seeds={options.seeds}", f"--facts={facts}"),
        *(["--subset"] if options.subset else []),
        *distributed.as_arguments(options),
        *overrides,
    ]


def rehearsals(options: argparse.Namespace, overrides: Sequence[str]) -> Iterator[list[str]]:
    """A run of three steps for each recipe; its folder is none that the report would look into."""
    for recipe in runs.parse_recipes(options.recipes):
        yield [
            *("main.py", f"--config={command_line.recipe_path(recipe)}"),
            f"--workdir={options.out}/.rehearsal/{runs.folder_name(recipe)}",
            *distributed.as_arguments(options),
            *overrides,
            *budgets.stretched(command_line.load(recipe, overrides), REHEARSAL_STEPS),
        ]


def sweep(options: argparse.Namespace, overrides: Sequence[str]) -> list[str]:
    return [
        *("sweep.py", f"--recipes={options.recipes}", f"--seeds={options.seeds}"),
        *(f"--out={options.out}", *distributed.as_arguments(options), *overrides),
    ]


def report(options: argparse.Namespace) -> list[str]:
    out = str(options.out)
    return ["report.py", out, f"--json={out}/report.json", f"--html={out}/report.html"]


def check(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Raises UserError for recipes, seeds, overrides or flags of several hosts that cannot be."""
    seeds = runs.parse_seeds(options.seeds)
    distributed.as_arguments(options)
    refuse_twice(overrides, ["--config.seed"], "--seeds")
    for recipe in runs.parse_recipes(options.recipes):
        for run in runs.plan_runs(recipe, seeds, options.out, overrides):
            plan.validate(run.check())


def predicted(options: argparse.Namespace) -> Iterator[str]:
    """Lines: the estimated hours of all runs, of the recipes that results/pod_plan has."""
    plans = [json.loads(file.read_text()) for file in sorted(PLANS.glob("*:*.json"))]
    found = predict.predictions(plans) if plans else []
    seconds = {one.recipe: s for one in found if (s := one.anchored_seconds) is not None}
    n_seeds = len(runs.parse_seeds(options.seeds))
    for recipe in runs.parse_recipes(options.recipes):
        if recipe in seconds:
            hours = n_seeds * seconds[recipe] / 3600
            yield (
                f"{recipe:<22} {n_seeds} x {seconds[recipe]:.0f} s = {hours:.1f} h on a v3-256, an "
                "estimate (results/pod_plan), starting and compiling left out"
            )
        else:
            yield f"{recipe:<22} no prediction"


def reproduced(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """All stages, up to the first that fails; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        facts = pathlib.Path(folder) / "facts.json"
        if status := process.call(preflight(options, overrides, str(facts)), ROOT):
            return status
        is_first = json.loads(facts.read_text())["host"] == 0
    for rehearsal in rehearsals(options, overrides):
        if status := process.call(rehearsal, ROOT):
            return status
    status = process.call(sweep(options, overrides), ROOT)
    if is_first and status in (DONE, FAILED):
        process.call(report(options), ROOT)
    return status


def main(argv: Sequence[str]) -> int:
    options, overrides = arguments(argv)
    try:
        check(options, overrides)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    if options.dry_run:
        first = preflight(options, overrides, "FACTS")
        for command in (first, *rehearsals(options, overrides), sweep(options, overrides)):
            print(shlex.join(["python", *command]))
        print(shlex.join(["python", *report(options)]))
        print("\n".join(predicted(options)))
        return DONE
    interrupt_on_signals()
    try:
        return reproduced(options, overrides)
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return PREEMPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
