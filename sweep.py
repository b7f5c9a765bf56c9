"""Recipes x seeds -> runs: a pool of local workers, a manifest that survives interruption.

    python sweep.py --recipes="lars:digits shampoo:digits" --seeds=0:10 --out=runs/first --workers=2

Every run is OUT/RECIPE/seed_0007/. Calling the same command again continues: complete runs are
kept, all others are run. A worker is a process on cores of its own; it takes run after run, those
of one recipe first, so that a recipe is compiled once per worker. A worker that dies is reported,
its run is tried again up to --attempts times, and then counts as failed: it is never dropped.

Exit status: 0 done, 1 runs failed (or one diverged, where config.on_divergence ends the sweep),
2 user error, 75 stopped (the same command continues).
"""

import argparse
import fcntl
import os
import pathlib
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from configs import command_line, plan
from errors import DONE, FAILED, PREEMPTED, USER_ERROR, UserError
from one_line_parser import OneLineParser
from sweeps import (
    attempt,
    budgets,
    lockstep,
    pool,
    preparation,
    runs,
    several_hosts,
    slurm,
    status,
    trials,
    worker,
)
from sweeps.manifest import Manifest
from sweeps.queue import Queue

STOPPING = {False: "every worker saves its run", True: "the cluster's jobs go on"}


def arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line; --config.FIELD=VALUE are overrides for every recipe."""
    parser = OneLineParser(
        prog="sweep.py",
        description="Runs recipes x seeds; call again to continue.",
        epilog="Any --config.FIELD=VALUE overrides that field in every recipe.",
    )
    parser.add_argument("--recipes", default="", help='as "lars:digits shampoo:digits"')
    parser.add_argument("--seeds", default="0:10", help="as 0:10 (0 to 9) or 0,1,5")
    parser.add_argument("--budgets", help="every recipe at each number of steps, as 34,40,48")
    parser.add_argument(
        "--trials", type=int, help="hyperparameter trials of every recipe; writes OUT/trials.json"
    )
    parser.add_argument(
        "--search", help="the fields that trials vary, as schedule.peak_learning_rate; else all"
    )
    parser.add_argument(
        "--tuned",
        type=pathlib.Path,
        action="append",
        default=[],
        help="a trials.json whose chosen hyperparameters are taken; a later one goes before",
    )
    parser.add_argument(
        "--stop_hopeless",
        action="store_true",
        help="end runs that the finished ones of their recipe left behind (the median-stopping "
        "rule); they are marked as aborted",
    )
    parser.add_argument("--out", type=runs.parse_out, help="folder for all runs")
    parser.add_argument("--workers", type=int, default=1, help="processes, each on its own cores")
    parser.add_argument("--attempts", type=int, default=2, help="of a run whose worker dies")
    parser.add_argument("--dry_run", action="store_true", help="say what would be run, and stop")
    slurm.add_flags(parser)
    several_hosts.add_flags(parser)
    parser.add_argument("--status", type=pathlib.Path, help="say how the sweep of this OUT stands")
    options, rest = parser.parse_known_args(argv)
    if not options.status and not options.out:
        parser.error("argument --out: missing; give the folder that is to hold all runs")
    for argument in rest:
        if not argument.startswith("--config."):
            parser.error(f"argument {argument}: not understood; overrides are --config.FIELD=VALUE")
    return options, rest


def planned(options: argparse.Namespace, overrides: Sequence[str]) -> list[runs.Run]:
    """The runs that are asked for, all of them checked; UserError for the first mistake."""
    seeds, recipes = runs.parse_seeds(options.seeds), runs.parse_recipes(options.recipes)
    for field in ("workers", "attempts"):
        if getattr(options, field) < 1:
            raise UserError(f"{field}={getattr(options, field)}: needs at least 1")
    refuse_twice(overrides, ["--config.seed"], "--seeds")
    asked: list[runs.Run] = []
    for recipe in recipes:
        for group, changed in variants(recipe, overrides, options):
            some = runs.plan_runs(recipe, seeds, options.out, [*overrides, *changed], group)
            for run in some:
                plan.validate(run.check())
            preparation.check_parts(run.config())
            asked += some
    return asked


def refuse_twice(overrides: Sequence[str], given: Sequence[str], by: str) -> None:
    """UserError for an override of a field that the runs get from elsewhere: it would be lost."""
    for override in overrides:
        if override.partition("=")[0] in [other.partition("=")[0] for other in given]:
            raise UserError(f"{override.removeprefix('--')}: {by} sets this field; leave one out")


def variants(
    recipe: str, overrides: Sequence[str], options: argparse.Namespace
) -> list[tuple[str, list[str]]]:
    """What a recipe is run as, apart from seeds: (folder below the recipe's, overrides).

    What the command line says of a field goes before what was tuned.
    """
    said = [override.partition("=")[0] for override in overrides]
    chosen = [override for path in options.tuned for override in trials.chosen(path, recipe)]
    tuned = [override for override in chosen if override.partition("=")[0] not in said]
    found = [("", tuned)]
    if options.budgets:
        config = command_line.load(recipe, [*overrides, *tuned])
        found = [
            (budgets.group(steps), [*tuned, *budgets.stretched(config, steps)])
            for steps in budgets.parse(options.budgets)
        ]
    if len(found) > 1 and options.stop_hopeless:
        raise UserError(f"budgets={options.budgets}: stop_hopeless compares at one; give one")
    if options.trials is None:
        if options.search:
            raise UserError(f"search={options.search}: is for trials; give --trials=N")
        return found
    if len(found) > 1:
        raise UserError(f"budgets={options.budgets}: trials are made at one budget; give one")
    points = trials.points(trials.ranges(recipe, options.search), options.trials)
    refuse_twice(overrides, trials.overrides(points[0]), "--trials")
    return [
        (trials.group(i), [*found[0][1], *trials.overrides(point)])
        for i, point in enumerate(points)
    ]


def locked(out: pathlib.Path, process_id: int) -> IO[str]:
    """Makes OUT and takes this host's lock there, which a dead sweep's end has freed.

    Raises:
      UserError: it cannot be written, or another sweep is at work there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / (f".lock_{process_id}" if process_id else ".lock")).open("w")
        (out / "manifest.jsonl").open("a").close()
    except OSError as e:
        raise UserError(f"out={out}: cannot be written ({e})") from e
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        raise UserError(f"out={out}: another sweep is at work there") from e
    return lock


def dry_run(asked: Sequence[runs.Run], joining: Sequence[str], cluster: Mapping[str, Any]) -> None:
    """Says what would be run; on several hosts and on a cluster the very commands."""
    if cluster:
        told = ", ".join(f"{k}={v}" for k, v in cluster.items())
        print(f"# one array of {sum(not run.is_complete() for run in asked)} tasks: {told}")
    for run in asked:
        if joining or cluster:
            print(shlex.join(attempt.command(run, joining)))
        else:
            print(f"{run.name:<44} {run.folder}  {'complete' if run.is_complete() else ''}")


def see_to_data(asked: Sequence[runs.Run], see_to: Callable[[str, str], None]) -> None:
    """Prepares or requires the data set of every recipe."""
    for run in {run.recipe: run for run in asked}.values():
        dataset = run.config().dataset
        see_to(dataset.name, dataset.data_dir)


def follow(
    asked: Sequence[runs.Run], out: pathlib.Path, joining: list[str], process_id: int
) -> int:
    """The sweep on a host that is not the first; returns the exit status."""
    see_to_data(asked, preparation.require_data)
    set_environment(out)
    interrupt_on_signals()
    try:
        return DONE if lockstep.follow(asked, out, joining, process_id) else FAILED
    except KeyboardInterrupt:
        print("\nstopped; the same command on all hosts continues", flush=True)
        return PREEMPTED


def set_environment(out: pathlib.Path) -> None:
    """What every process that trains inherits; what the user has set stays."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(out.absolute() / ".compile_cache")}
    for name, value in (worker.ENVIRONMENT | cache).items():
        os.environ.setdefault(name, value)


def interrupt_on_signals() -> None:
    """Makes SIGTERM and a lost terminal what Ctrl-C is."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)


def main(argv: Sequence[str]) -> int:
    options, overrides = arguments(argv)
    try:
        if options.status:
            print(*status.lines(options.status), sep="\n")
            return DONE
        joining, cluster = several_hosts.joining_flags(options), slurm.parameters(options)
        asked = planned(options, overrides)
        if joining and cluster:
            raise UserError("slurm: a task is one host; leave out --slurm or the several hosts")
        if options.stop_hopeless and (joining or cluster):
            raise UserError("stop_hopeless: is for --workers on one host; leave it out here")
        if options.dry_run:
            dry_run(asked, joining, cluster)
            return DONE
        process_id, n_hosts = several_hosts.place(options)
        # Before the data: two sweeps must not prepare them at once, nor answer for one host.
        lock = locked(options.out, process_id)
        if process_id:
            with lock:
                return follow(asked, options.out, joining, process_id)
        see_to_data(asked, preparation.require_data if joining else preparation.prepare_data)
        queue = Queue(asked, Manifest(options.out / "manifest.jsonl"), options.attempts)
        executor = slurm.executor(options.out, cluster) if cluster else None
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    set_environment(options.out)
    interrupt_on_signals()
    with lock:
        try:
            if executor:
                slurm.run_all(queue, executor)
            elif joining:
                lockstep.lead(queue, options.out, joining, n_hosts)
            else:
                pool.run_all(queue, options.workers, options.stop_hopeless)
        except KeyboardInterrupt:
            print(f"\nstopping: {STOPPING[bool(cluster)]}; the same command continues", flush=True)
            worker.stop_all()
            return PREEMPTED
        if options.trials:
            path = options.out / "trials.json"
            table = trials.write(path, asked, options.trials, options.search)
            print(*trials.told(table), f"{shlex.quote(f'--tuned={path}')} takes them", sep="\n")
    return FAILED if queue.has_failures or queue.stopped else DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
