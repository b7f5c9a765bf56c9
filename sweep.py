"""Recipes x seeds -> runs: a pool of local workers, a manifest that survives interruption.

    python sweep.py --recipes="lars:digits shampoo:digits" --seeds=0:10 --out=runs/first --workers=2

Every run is OUT/RECIPE/seed_0007/. Calling the same command again continues: complete runs are
kept, all others are run. A worker is a process on cores of its own; it takes run after run, those
of one recipe first, so that a recipe is compiled once per worker. A worker that dies is reported,
its run is tried again up to --attempts times, and then counts as failed: it is never dropped.
"""

import argparse
import contextlib
import dataclasses
import datetime
import fcntl
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence

from etils import epath
from ml_collections import ConfigDict

import input_pipeline
import workdir as files
from configs import command_line, plan
from input_pipeline import spec
from interruption import Preempted

DONE, FAILED, USER_ERROR, PREEMPTED = 0, 1, 2, 75
# A CPU step frees and allocates its 100 MB of temporaries anew; by default glibc gives them back to
# the kernel each time, and a digits step then takes 190 ms instead of 118 (interleaved, one core).
WORKER_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}
MOST_SEEDS = 10_000
STOPPED = ("preempted", "aborted")  # statuses of a run that is to be continued


@dataclasses.dataclass(frozen=True)
class Run:
    """One recipe with one seed and the folder that is its own."""

    recipe: str
    seed: int
    folder: pathlib.Path

    @property
    def name(self) -> str:
        return f"{self.recipe} seed {self.seed}"

    def is_complete(self) -> bool:
        """ValueError: its run.json is damaged; the message names it."""
        file = epath.Path(self.folder / "run.json")
        return file.exists() and files.read_json(file).get("status") != "aborted"


def check_parts(config: ConfigDict) -> None:
    """Raises ValueError for a data set or an optimizer that cannot be built, before any worker."""
    import optim  # late: it starts JAX, which --help need not

    input_pipeline.describe(**config.dataset.to_dict())
    hyperparameters = config.optimizer.to_dict()
    name = hyperparameters.pop("name")
    optim.make_optimizer(name, hyperparameters, config.schedule.to_dict(), config.total_steps)


def prepare_data(name: str, data_dir: str) -> None:
    """Prepares a data set that is not there yet, in a process of its own, before workers start.

    Raises:
      ValueError: it cannot be made or fetched; the message says what to do.
    """
    if spec.locate(name, data_dir) is None:
        command = [sys.executable, "-m", "input_pipeline", f"--name={name}"]
        done = subprocess.run(
            [*command, f"--data_dir={data_dir}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ValueError((done.stderr.strip().splitlines() or ["no message"])[-1])


def plan_runs(recipes: Sequence[str], seeds: Sequence[int], out: pathlib.Path) -> list[Run]:
    """All runs, recipe by recipe."""
    return [Run(r, s, out / r / f"seed_{s:04d}") for r in recipes for s in seeds]


def parse_seeds(text: str) -> list[int]:
    """'0:10' -> 0..9, '3,5' -> [3, 5].

    Raises:
      ValueError: no integers, none at all, or one twice.
    """
    try:
        first, colon, last = text.partition(":")
        seeds = (
            list(range(int(first), int(last))[: MOST_SEEDS + 1])
            if colon
            else [int(s) for s in text.split(",")]
        )
    except ValueError as e:
        raise ValueError(f"seeds={text}: needs integers, as 0:10 (0 to 9) or 0,1,5") from e
    if not seeds:
        raise ValueError(f"seeds={text}: holds no seed; 0:10 means 0 to 9")
    if len(seeds) > MOST_SEEDS:
        raise ValueError(f"seeds={text}: more than {MOST_SEEDS} seeds")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={text}: names a seed twice")
    return seeds


# ---------------------------------------------------------------- in the worker's process


def work(connection, cores: Sequence[int], overrides: Sequence[str]) -> None:
    """Takes runs from the connection until None comes; answers each with its status."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    import train

    while (run := connection.recv()) is not None:
        log = (run.folder.parent / f"{run.folder.name}.log").open("a")
        with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            try:
                config = command_line.load(run.recipe, [*overrides, f"--config.seed={run.seed}"])
                status = train.train_and_evaluate(config, str(run.folder)).status
            except Preempted:
                status = "preempted"
            except ValueError as e:  # the same again on a second attempt
                traceback.print_exc()
                status = f"failed: {e}"
            except Exception as e:
                traceback.print_exc()
                status = f"crashed: {type(e).__name__}: {e}"
        connection.send(status)
        if status in STOPPED:
            sys.exit(PREEMPTED)


# ---------------------------------------------------------------- in the sweep's process


@dataclasses.dataclass
class Worker:
    """A worker's process, the pipe to it, and the run it is on."""

    process: multiprocessing.process.BaseProcess
    connection: multiprocessing.connection.Connection
    run: Run | None = None
    last_recipe: str = ""


def start_worker(cores: Sequence[int], overrides: Sequence[str]) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, cores, overrides), daemon=True)
    process.start()
    theirs.close()
    return Worker(process, ours)


def next_run(waiting: deque[Run], worker: Worker, taken: set[str]) -> Run:
    """The next run of the worker's last recipe, else of one that no other worker is on.

    So workers begin with different recipes, and each recipe is compiled once, then cached.
    """
    own = (run for run in waiting if run.recipe == worker.last_recipe)
    free = (run for run in waiting if run.recipe not in taken)
    run = next(own, None) or next(free, None) or waiting[0]
    waiting.remove(run)
    return run


class Manifest:
    """OUT/manifest.jsonl: a line whenever a run starts or ends; the last line of a run counts."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def write(self, run: Run, status: str, attempt: int) -> None:
        line = {
            "recipe": run.recipe,
            "seed": run.seed,
            "status": status,
            "attempt": attempt,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        with self.path.open("a") as f:
            f.write(json.dumps(line) + "\n")


def sweep(
    runs: Sequence[Run], manifest: Manifest, n_workers: int, attempts: int, overrides: Sequence[str]
) -> dict[Run, str]:
    """Runs all that are not complete; returns how each of those ended."""
    waiting = deque(run for run in runs if not run.is_complete())
    total, complete = len(waiting), len(runs) - len(waiting)
    if complete:
        print(f"{complete} of {len(runs)} runs are complete already", flush=True)
    tries: dict[Run, int] = dict.fromkeys(waiting, 0)
    ended: dict[Run, str] = {}
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares = [cores[i::n_workers] or cores for i in range(n_workers)]
    workers: list[Worker | None] = [None] * min(n_workers, total)
    began = time.monotonic()

    def give(worker: Worker) -> None:
        run = next_run(waiting, worker, {w.last_recipe for w in workers if w and w is not worker})
        worker.run, worker.last_recipe = run, run.recipe
        tries[run] += 1
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        manifest.write(run, "started", tries[run])
        worker.connection.send(run)

    def end(worker: Worker, status: str) -> None:
        run, worker.run = worker.run, None
        assert run is not None
        manifest.write(run, status, tries[run])
        if status in STOPPED:
            tries[run] -= 1  # nobody's fault
            waiting.appendleft(run)
            return
        if status.startswith("crashed") and tries[run] < attempts:
            print(f"\n{run.name}: {status}; trying again", flush=True)
            waiting.append(run)
            return
        ended[run] = status
        if status != "done":
            print(f"\n{run.name}: {status}; see {run.folder}.log", flush=True)
        show_progress(len(ended), total, time.monotonic() - began, run)

    while len(ended) < total:
        for i, worker in enumerate(workers):
            if worker is None and waiting:
                workers[i] = worker = start_worker(shares[i], overrides)
            if worker is not None and worker.run is None and waiting:
                give(worker)
        busy = [w for w in workers if w is not None and w.run is not None]
        multiprocessing.connection.wait([w.connection for w in busy])
        for i, worker in enumerate(workers):
            if worker is None or worker.run is None or not worker.connection.poll():
                continue
            try:
                status = worker.connection.recv()
            except EOFError:
                worker.process.join()
                status = f"crashed: worker ended with {worker.process.exitcode}"
            if status in STOPPED or not worker.process.is_alive():
                worker.process.join()
                workers[i] = None
            end(worker, status)
    for worker in workers:
        if worker is not None:
            worker.connection.send(None)
            worker.process.join()
    print()
    return ended


def stop_workers() -> None:
    """Lets every worker save its run and end; the next call continues."""
    for process in multiprocessing.active_children():
        process.terminate()
    for process in multiprocessing.active_children():
        process.join()


def show_progress(n: int, total: int, seconds: float, last: Run) -> None:
    """One line, rewritten on a terminal, with the time that the rest will take at this rate."""
    eta = datetime.timedelta(seconds=round(seconds / n * (total - n)))
    line = f"{n:>3} of {total} runs, ETA {eta}, last: {last.name}"
    tty = sys.stdout.isatty()
    print(f"\r{line:<72}" if tty else line, end="" if tty else "\n", flush=True)


def arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line; --config.FIELD=VALUE are overrides for every recipe."""
    parser = argparse.ArgumentParser(
        description="Runs recipes x seeds; call again to continue.",
        epilog="Any --config.FIELD=VALUE overrides that field in every recipe.",
    )
    parser.add_argument("--recipes", required=True, help='as "lars:digits shampoo:digits"')
    parser.add_argument("--seeds", default="0:10", help="as 0:10 (0 to 9) or 0,1,5")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for all runs")
    parser.add_argument("--workers", type=int, default=1, help="processes, each on its own cores")
    parser.add_argument("--attempts", type=int, default=2, help="of a run whose worker dies")
    parser.add_argument("--dry_run", action="store_true", help="say what would be run, and stop")
    options, rest = parser.parse_known_args(argv)
    for argument in rest:
        if not argument.startswith("--config."):
            parser.error(f"argument {argument}: not understood; overrides are --config.FIELD=VALUE")
    return options, rest


def main(argv: Sequence[str]) -> int:
    options, overrides = arguments(argv)
    try:
        seeds = parse_seeds(options.seeds)
        recipes = options.recipes.replace(",", " ").split()
        if not recipes:
            raise ValueError("recipes: names none; give some, as 'lars:digits shampoo:digits'")
        if len(set(recipes)) < len(recipes):
            raise ValueError(f"recipes={options.recipes}: names a recipe twice")
        for field in ("workers", "attempts"):
            if getattr(options, field) < 1:
                raise ValueError(f"{field}={getattr(options, field)}: needs at least 1")
        for recipe in recipes:
            for seed in seeds:
                config = command_line.load(recipe, [*overrides, f"--config.seed={seed}"])
                plan.validate(config)
            check_parts(config)
        runs = plan_runs(recipes, seeds, options.out)
        if options.dry_run:
            for run in runs:
                print(f"{run.name:<32} {run.folder}  {'complete' if run.is_complete() else ''}")
            return DONE
        for recipe in recipes:
            dataset = command_line.load(recipe, overrides).dataset
            prepare_data(dataset.name, dataset.data_dir)
        options.out.mkdir(parents=True, exist_ok=True)
        lock = (options.out / ".lock").open("w")
        manifest = Manifest(options.out / "manifest.jsonl")
        manifest.path.open("a").close()
    except (ValueError, OSError) as e:
        message = f"out={options.out}: cannot be written ({e})" if isinstance(e, OSError) else e
        print(f"error: {message}", file=sys.stderr)
        return USER_ERROR
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a dead sweep's lock is gone with it
    except OSError:
        print(f"error: out={options.out}: another sweep is at work there", file=sys.stderr)
        return USER_ERROR
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(options.out / ".compile_cache"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        ended = sweep(runs, manifest, options.workers, options.attempts, overrides)
    except KeyboardInterrupt:
        print("\nstopping: every worker saves its run; the same command continues", flush=True)
        stop_workers()
        return PREEMPTED
    return FAILED if any(s.startswith(("crashed", "failed")) for s in ended.values()) else DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
