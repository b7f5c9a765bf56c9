"""Reproduces the published comparison on a pod. Run the same command on every host.

    python reproduce.py --data_dir=DIR --out=OUT [--seeds=0:50] [--recipes="..."] [--dry_run]

1. Preflight (launch/preflight.py): checks devices, data, versions and disk space on all hosts.
2. Rehearsal: three steps of every recipe, so that errors appear now.
3. Sweep: all recipes x seeds, one run after another, each on all devices.
4. Report: host 0 writes OUT/report.html and OUT/report.json, unless OUT is a bucket.

OUT is a folder that all hosts mount or, with several hosts, a bucket (gs://...). The same command
continues an interrupted reproduction. Exit status: 0 done, 1 some runs failed, 2 user error
(nothing was started), 75 preempted (run it again). Any other status is a crash.
"""

import argparse
import json
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence

from configs import command_line, plan
from errors import CRASHED, DONE, FAILED, PREEMPTED, USER_ERROR, OneLineParser, UserError
from run import distributed
from sweep import interrupt_on_signals, refuse_twice
from sweeps import budgets, process, runs

RECIPES = "lars:mlperf_v07 nesterov:nado shampoo:readme"
ROOT = pathlib.Path(__file__).parent
PREDICTIONS = ROOT / "results" / "pod_plan" / "predictions.json"
REHEARSAL_STEPS = 3


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Returns the options and the overrides of every recipe, --config.FIELD=VALUE."""
    parser = OneLineParser(
        prog="reproduce.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Any --config.FIELD=VALUE overrides that field in every recipe.",
    )
    parser.add_argument("--data_dir", required=True, help="folder with the prepared ImageNet")
    parser.add_argument(
        "--out",
        type=runs.parse_out,
        default="runs/reproduce",
        help="folder that all hosts mount, or a bucket (gs://...) for several hosts",
    )
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--seeds", default="0:50", help="as 0:50 (0 to 49)")
    parser.add_argument("--devices", type=int, default=256, help="total number of devices")
    parser.add_argument("--subset", action="store_true", help="accept a part of ImageNet")
    parser.add_argument(
        "--dry_run", action="store_true", help="print all commands and start nothing"
    )
    distributed.add_flags(parser)
    options, rest = parser.parse_known_args(argv)
    for argument in rest:
        if not argument.startswith("--config."):
            parser.error(f"argument {argument}: unknown; overrides are --config.FIELD=VALUE")
    return options, [f"--config.dataset.data_dir={options.data_dir}", *rest]


def preflight(options: argparse.Namespace, overrides: Sequence[str], facts: str) -> list[str]:
    """Returns the command that checks all hosts and writes `facts`."""
    return [
        *("-m", "launch.preflight", f"--recipes={options.recipes}", f"--out={options.out}"),
        *(f"--devices={options.devices}", f"--seeds={options.seeds}", f"--facts={facts}"),
        *(["--subset"] if options.subset else []),
        *distributed.as_arguments(options),
        *overrides,
    ]


def rehearsals(options: argparse.Namespace, overrides: Sequence[str]) -> Iterator[list[str]]:
    """Yields a command per recipe that trains three steps in a folder that no report reads."""
    for recipe in runs.parse_recipes(options.recipes):
        yield [
            *("main.py", f"--config={command_line.recipe_path(recipe)}"),
            f"--workdir={options.out}/.rehearsal/{runs.folder_name(recipe)}",
            *distributed.as_arguments(options),
            *overrides,
            *budgets.stretched(command_line.load(recipe, overrides), REHEARSAL_STEPS),
        ]


def sweep(options: argparse.Namespace, overrides: Sequence[str]) -> list[str]:
    """Returns the command that trains all runs."""
    return [
        *("sweep.py", f"--recipes={options.recipes}", f"--seeds={options.seeds}"),
        *(f"--out={options.out}", *distributed.as_arguments(options), *overrides),
    ]


def report(options: argparse.Namespace) -> list[str]:
    """Returns the command that writes the report."""
    out = str(options.out)
    return ["report.py", out, f"--json={out}/report.json", f"--html={out}/report.html"]


def is_bucket(options: argparse.Namespace) -> bool:
    return "://" in str(options.out)


def check(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Raises UserError for impossible recipes, seeds, overrides or flags of several hosts."""
    seeds = runs.parse_seeds(options.seeds)
    if is_bucket(options) and not distributed.is_requested(options):
        raise UserError(f"out={options.out}: must be a folder, unless several hosts are used")
    refuse_twice(overrides, ["--config.seed"], "--seeds")
    for recipe in runs.parse_recipes(options.recipes):
        for run in runs.plan_runs(recipe, seeds, options.out, overrides):
            plan.validate(run.config() if is_bucket(options) else run.check())


def predicted_hours(options: argparse.Namespace) -> Iterator[str]:
    """Yields a line per recipe with the estimated hours of all its runs, if any."""
    predictions = json.loads(PREDICTIONS.read_text())
    n_seeds = len(runs.parse_seeds(options.seeds))
    for recipe in runs.parse_recipes(options.recipes):
        seconds = predictions.get(recipe, {}).get("anchored_seconds")
        if seconds is None:
            yield f"{recipe:<22} no prediction"
        else:
            yield (
                f"{recipe:<22} {n_seeds} x {seconds:.0f} s = {n_seeds * seconds / 3600:.1f} h on a "
                "v3-256, an estimate (results/pod_plan) without starting and compiling"
            )


def run_stages(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Runs the stages up to the first that fails; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        facts = pathlib.Path(folder) / "facts.json"
        stages = [preflight(options, overrides, str(facts)), *rehearsals(options, overrides)]
        for command in stages:
            status = process.call(command, ROOT)
            if status:  # only a sweep uses FAILED; Python ends with it after any exception
                return CRASHED if status == FAILED else status
        is_first = json.loads(facts.read_text())["host"] == 0
    status = process.call(sweep(options, overrides), ROOT)
    if is_first and status in (DONE, FAILED):
        if is_bucket(options):
            print(f"copy {options.out} to a folder FOLDER, then: python report.py FOLDER")
        else:
            process.call(report(options), ROOT)
    return status


def dry_run(options: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Prints the commands of all stages and the predicted hours."""
    first = preflight(options, overrides, "FACTS")
    commands = [first, *rehearsals(options, overrides), sweep(options, overrides)]
    for command in commands if is_bucket(options) else [*commands, report(options)]:
        print(shlex.join(["python", *command]))
    print("\n".join(predicted_hours(options)))


def main(argv: Sequence[str]) -> int:
    """Returns the exit status; user errors are one line on standard error."""
    options, overrides = parse_arguments(argv)
    try:
        check(options, overrides)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    if options.dry_run:
        dry_run(options, overrides)
        return DONE
    interrupt_on_signals()
    try:
        return run_stages(options, overrides)
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return PREEMPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
