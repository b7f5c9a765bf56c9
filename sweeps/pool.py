"""A pool of local workers, which run one recipe after the other so that each compiles it once."""

import contextlib
import multiprocessing.connection
import os
from typing import Any

from sweeps import worker as workers
from sweeps.queue import STOPPED, Queue
from sweeps.runs import Run
from sweeps.worker import Worker


def run_all(queue: Queue, n_workers: int) -> None:
    """Runs the queue on `n_workers` processes; a worker that dies is replaced."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares = [cores[i::n_workers] or cores for i in range(n_workers)]
    pool: list[Worker | None] = [None] * min(n_workers, queue.total)
    while not queue.is_over:
        for i, worker in enumerate(pool):
            if worker is None and queue.waiting:
                pool[i] = worker = workers.start(shares[i])
            if worker is not None and worker.run is None and queue.waiting:
                give(queue, worker, {w.last_recipe for w in pool if w and w is not worker})
        busy: dict[Any, int] = {
            w.connection: i for i, w in enumerate(pool) if w is not None and w.run is not None
        }
        for connection in multiprocessing.connection.wait(list(busy)):
            i = busy[connection]
            worker = pool[i]
            assert worker is not None
            if not collect(queue, worker):
                pool[i] = None
    for worker in pool:
        if worker is not None:
            with contextlib.suppress(OSError):
                worker.connection.send(None)
            worker.process.join()
    print()


def next_run(queue: Queue, last_recipe: str, taken: set[str]) -> Run:
    """Returns a run of the worker's last recipe, else of a recipe that no other worker runs.

    Workers thus start with different recipes, and each recipe is compiled once, then cached.
    """
    same = (run for run in queue.waiting if run.recipe == last_recipe)
    free = (run for run in queue.waiting if run.recipe not in taken)
    return next(same, None) or next(free, None) or queue.waiting[0]


def give(queue: Queue, worker: Worker, taken: set[str]) -> None:
    """Sends the worker its next run."""
    run = next_run(queue, worker.last_recipe, taken)
    worker.run, worker.last_recipe = run, run.recipe
    queue.take(run)
    with contextlib.suppress(OSError):  # it has died; `collect` notices
        worker.connection.send(run)


def collect(queue: Queue, worker: Worker) -> bool:
    """Records how the worker's run ended; returns whether the worker can take another one."""
    run, worker.run = worker.run, None
    assert run is not None
    try:
        status = worker.connection.recv()
    except (EOFError, OSError):  # a reset if it died before it read everything
        worker.process.join()
        status = f"crashed: worker ended with {worker.process.exitcode}"
    if status in STOPPED:
        worker.process.join()
    queue.end(run, status)
    return worker.process.is_alive()
