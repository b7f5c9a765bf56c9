"""A pool of local workers: those of one recipe first, so that a recipe is compiled once each."""

import contextlib
import multiprocessing.connection
import os
from typing import Any

from sweeps import hopeless
from sweeps import worker as workers
from sweeps.queue import STOPPED, Queue
from sweeps.runs import Run
from sweeps.worker import Worker

POLL_SECONDS = 0.5  # between looks at the curves of the runs under way


def run_all(queue: Queue, n_workers: int, stop_hopeless: bool = False) -> None:
    """Runs all that waits on `n_workers` processes; a worker that dies is replaced.

    Args:
      stop_hopeless: whether the median-stopping rule ends runs (`hopeless`).
    """
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
        pause = POLL_SECONDS if stop_hopeless else None
        for connection in multiprocessing.connection.wait(list(busy), pause):
            i = busy[connection]
            worker = pool[i]
            assert worker is not None
            if not collect(queue, worker):
                pool[i] = None
        if stop_hopeless:
            end_hopeless(queue, [worker for worker in pool if worker])
    for worker in pool:
        if worker is not None:
            with contextlib.suppress(OSError):
                worker.connection.send(None)
            worker.process.join()
    print()


def next_run(queue: Queue, last_recipe: str, taken: set[str]) -> Run:
    """The next run of the worker's last recipe, else of one that no other worker is on.

    So workers begin with different recipes, and each recipe is compiled once, then cached.
    """
    own = (run for run in queue.waiting if run.recipe == last_recipe)
    free = (run for run in queue.waiting if run.recipe not in taken)
    return next(own, None) or next(free, None) or queue.waiting[0]


def give(queue: Queue, worker: Worker, taken: set[str]) -> None:
    run = next_run(queue, worker.last_recipe, taken)
    worker.run, worker.last_recipe, worker.stopped_because = run, run.recipe, None
    queue.take(run)
    with contextlib.suppress(OSError):  # it is dead already; `collect` meets that next
        worker.connection.send(run)


def end_hopeless(queue: Queue, pool: list[Worker]) -> None:
    """Lets the workers whose run is hopeless save and end."""
    for worker in pool:
        if worker.run is not None and worker.stopped_because is None:
            worker.stopped_because = hopeless.judge(worker.run, queue.finished)
            if worker.stopped_because:
                worker.process.terminate()


def collect(queue: Queue, worker: Worker) -> bool:
    """Takes down how the worker's run ended; whether the worker can take another one."""
    run, worker.run = worker.run, None
    assert run is not None
    try:
        status = worker.connection.recv()
    except (EOFError, OSError):  # a reset, where it died before it had read everything
        worker.process.join()
        status = f"crashed: worker ended with {worker.process.exitcode}"
    if status in STOPPED:
        worker.process.join()
        status = worker.stopped_because or status
    queue.end(run, status)
    return worker.process.is_alive()
