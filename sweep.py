"""Trains recipes x seeds: on local workers, on a SLURM cluster, or on several hosts together.

    python sweep.py --recipes="lars:digits shampoo:digits" --seeds=0:10 --out=runs/first --workers=2

Each run is in OUT/RECIPE/seed_0007/. Run the same command again to continue: complete runs are
kept, and all others are trained. A worker is a process on its own cores. It trains one run after
the other, first those of one recipe, so that a recipe is compiled once per worker. If a worker
dies, its run is tried again, up to --attempts times, and then counts as failed. No run is dropped.

Exit status: 0 done, 1 runs failed (or one diverged, if config.on_divergence ends the sweep),
2 user error, 75 stopped (the same command continues).
"""

import argparse
import contextlib
import os
import pathlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from configs import command_line, plan
from errors import DONE, FAILED, PREEMPTED, USER_ERROR, OneLineParser, UserError
from run import distributed, files
from sweeps import (
    budgets,
    hosts,
    manifest,
    pool,
    preparation,
    process,
    runs,
    slurm,
    status,
    trials,
    worker,
)
from sweeps.manifest import Manifest
from sweeps.queue import Queue


def arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line into (options, overrides of every recipe)."""
    parser = OneLineParser(
        prog="sweep.py",
        description="Trains recipes x seeds. Run the same command again to continue.",
        epilog="Any --config.FIELD=VALUE overrides that field in every recipe.",
    )
    parser.add_argument("--recipes", default="", help='as "lars:digits shampoo:digits"')
    parser.add_argument("--seeds", default="0:10", help="as 0:10 (0 to 9) or 0,1,5")
    parser.add_argument("--budgets", help="train each recipe for each number of steps: 34,40,48")
    parser.add_argument(
        "--trials", type=int, help="hyperparameter trials per recipe; writes OUT/trials.json"
    )
    parser.add_argument(
        "--search", help="fields that the trials vary, as schedule.peak_learning_rate; default all"
    )
    parser.add_argument(
        "--tuned",
        type=pathlib.Path,
        action="append",
        default=[],
        help="trials.json with the hyperparameters to use; a later file overrides an earlier one",
    )
    parser.add_argument("--out", type=runs.parse_out, help="folder of all runs")
    parser.add_argument("--workers", type=int, default=1, help="processes, each on its own cores")
    parser.add_argument("--attempts", type=int, default=2, help="for a run whose process dies")
    parser.add_argument("--dry_run", action="store_true", help="print the runs and exit")
    slurm.add_flags(parser)
    distributed.add_flags(parser)
    parser.add_argument("--status", type=runs.parse_out, help="print the status of this OUT")
    options, rest = parser.parse_known_args(argv)
    if not options.status and not options.out:
        parser.error("argument --out: missing; give a folder for all runs")
    for argument in rest:
        if not argument.startswith("--config."):
            parser.error(f"argument {argument}: unknown; overrides are --config.FIELD=VALUE")
    return options, rest


def planned(options: argparse.Namespace, overrides: Sequence[str]) -> list[runs.Run]:
    """Returns the runs after checking their configs; UserError for the first mistake."""
    seeds, recipes = runs.parse_seeds(options.seeds), runs.parse_recipes(options.recipes)
    for field in ("workers", "attempts"):
        if getattr(options, field) < 1:
            raise UserError(f"{field}={getattr(options, field)}: must be at least 1")
    refuse_twice(overrides, ["--config.seed"], "--seeds")
    result: list[runs.Run] = []
    for recipe in recipes:
        for group, changes in variants(recipe, overrides, options):
            some = runs.plan_runs(recipe, seeds, options.out, [*overrides, *changes], group)
            for run in some:
                plan.validate(run.check())
            result += some
    return result


def refuse_twice(overrides: Sequence[str], given: Sequence[str], source: str) -> None:
    """Raises UserError for an override of a field that `source` sets: it would have no effect."""
    for override in overrides:
        if override.partition("=")[0] in [other.partition("=")[0] for other in given]:
            raise UserError(f"{override.removeprefix('--')}: {source} sets this field; omit one")


def variants(
    recipe: str, overrides: Sequence[str], options: argparse.Namespace
) -> list[tuple[str, list[str]]]:
    """Returns the groups of a recipe as (folder below the recipe's, overrides).

    The command line takes precedence over tuned values.
    """
    given = [override.partition("=")[0] for override in overrides]
    chosen = [override for path in options.tuned for override in trials.chosen(path, recipe)]
    tuned = [override for override in chosen if override.partition("=")[0] not in given]
    groups = [("", tuned)]
    if options.budgets:
        config = command_line.load(recipe, [*overrides, *tuned])
        groups = [
            (budgets.group(steps), [*tuned, *budgets.stretched(config, steps)])
            for steps in budgets.parse(options.budgets)
        ]
    if options.trials is None:
        if options.search:
            raise UserError(f"search={options.search}: is for trials; add --trials=N")
        return groups
    if len(groups) > 1:
        raise UserError(f"budgets={options.budgets}: trials have one budget; give one")
    points = trials.points(trials.ranges(recipe, options.search), options.trials)
    refuse_twice(overrides, trials.overrides(points[0]), "--trials")
    return [
        (trials.group(i), [*groups[0][1], *trials.overrides(point)])
        for i, point in enumerate(points)
    ]


@contextlib.contextmanager
def locked(out: epath.Path) -> Iterator[None]:
    """Creates OUT and locks it for the length of the block.

    Raises:
      UserError: it cannot be written, or another sweep uses it.
    """
    with contextlib.ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            lock = files.locked(out / files.LOCK, f"out={out}: is used by another sweep")
            stack.enter_context(lock)
            if "://" not in str(out):
                (out / manifest.NAME).open("a").close()
        except OSError as e:
            raise UserError(f"out={out}: cannot be written ({e})") from e
        yield


def dry_run(asked: Sequence[runs.Run], cluster: Mapping[str, Any]) -> None:
    """Prints the runs; with --slurm, their commands."""
    if cluster:
        settings = ", ".join(f"{k}={v}" for k, v in cluster.items())
        n_tasks = sum(not run.is_complete() for run in asked)
        print(f"# one array of {n_tasks} tasks: {settings}")
    for run in asked:
        if cluster:
            print(shlex.join(process.command(run)))
        else:
            print(f"{run.name:<44} {run.folder}  {'complete' if run.is_complete() else ''}")


def for_each_dataset(asked: Sequence[runs.Run], action: Callable[[str, str], None]) -> None:
    """Calls action(name, data_dir) for the data set of each recipe."""
    for run in {run.recipe: run for run in asked}.values():
        dataset = run.config().dataset
        action(dataset.name, dataset.data_dir)


def set_environment(out: epath.Path) -> None:
    """Sets the environment of all training processes, except what the user has set."""
    cache = str(out / ".compile_cache")
    cache = cache if "://" in cache else os.path.abspath(cache)
    for name, value in (worker.ENVIRONMENT | {"JAX_COMPILATION_CACHE_DIR": cache}).items():
        os.environ.setdefault(name, value)


def interrupt_on_signals() -> None:
    """Treats SIGTERM and a closed terminal like Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)


def write_trials(options: argparse.Namespace, asked: Sequence[runs.Run]) -> None:
    """Writes OUT/trials.json and prints the chosen trials."""
    path = options.out / "trials.json"
    table = trials.write(path, asked, options.trials, options.search)
    print(*trials.lines(table), f"use them with {shlex.quote(f'--tuned={path}')}", sep="\n")


def on_one_machine(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Runs the sweep on local workers or on a SLURM cluster; returns the exit status."""
    cluster = slurm.parameters(options)
    if "://" in str(options.out):
        raise UserError(f"out={options.out}: must be a folder, unless several hosts run the sweep")
    asked = planned(options, overrides)
    preparation.check_parts(asked, on_cpu=True)
    if options.dry_run:
        dry_run(asked, cluster)
        return DONE
    with locked(options.out):  # before the data: two sweeps must not prepare them at once
        for_each_dataset(asked, preparation.prepare_data)
        queue = Queue(asked, Manifest(options.out), options.attempts)
        executor = slurm.executor(options.out, cluster) if cluster else None
        set_environment(options.out)
        interrupt_on_signals()
        try:
            if executor:
                slurm.run_all(queue, executor)
            else:
                pool.run_all(queue, options.workers)
        except KeyboardInterrupt:
            state = "the cluster's jobs continue" if cluster else "every worker saves its run"
            print(f"\nstopping: {state}; the same command continues", flush=True)
            worker.stop_all()
            return PREEMPTED
        if options.trials:
            write_trials(options, asked)
    return FAILED if queue.has_failures or queue.is_stopped else DONE


def on_several_hosts(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Runs this host's part of the sweep; returns the exit status."""
    if slurm.parameters(options):
        raise UserError("slurm: each task is one host; omit --slurm or the flags of several hosts")
    asked = planned(options, overrides)
    if options.dry_run:
        dry_run(asked, {})
        return DONE
    set_environment(options.out)
    distributed.join(options)
    with contextlib.ExitStack() as stack:
        queue = None
        with distributed.raise_on_all():
            preparation.check_parts(asked, on_cpu=False)
            for_each_dataset(asked, preparation.require_data)
        distributed.agree({"runs": [[run.name, *run.overrides] for run in asked]})
        with distributed.raise_on_all():
            if distributed.is_first():
                stack.enter_context(locked(options.out))
                queue = Queue(asked, Manifest(options.out), options.attempts)
                hosts.count_crashes(queue)
        try:
            has_failures = hosts.run_all(asked, queue)
        except KeyboardInterrupt:
            print("\nstopped; the same command on all hosts continues", flush=True)
            return PREEMPTED
        if queue and options.trials:
            write_trials(options, asked)
    return FAILED if has_failures else DONE


def main(argv: Sequence[str]) -> int:
    """Returns the exit status; user errors are one line on standard error."""
    options, overrides = arguments(argv)
    try:
        if options.status:
            print(*status.lines(options.status), sep="\n")
            return DONE
        if not distributed.is_requested(options):
            return on_one_machine(options, overrides)
        try:
            return on_several_hosts(options, overrides)
        except UserError:
            raise
        except Exception as e:
            return distributed.crash(e, str(options.out))
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
