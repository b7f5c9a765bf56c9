"""A sweep on several hosts: one process on each joins once and trains all runs.

    python sweep.py --recipes=... --seeds=0:50 --out=OUT --distributed      (Cloud TPU, SLURM)
    python sweep.py --recipes=... --seeds=0:50 --out=OUT --coordinator_address=HOST:PORT \\
        --num_processes=32 --process_id=I

Host 0 chooses each run and broadcasts it, and only host 0 writes, so OUT may be a bucket. Each
recipe is compiled once per host. A crash ends the process on all hosts. The launcher restarts them,
and the same command continues; a run that has crashed `--attempts` times in a row has then failed.
"""

import traceback
from collections.abc import Sequence

from run import distributed
from sweeps import worker
from sweeps.queue import STOPPED, Queue
from sweeps.runs import Run


def count_crashes(queue: Queue) -> None:
    """Sets the tries of each waiting run from the manifest, and ends those that have failed.

    The last entry of a run whose process died is `started`, or `crashed: ...`. After the last
    attempt run.json has the status `aborted`, and counting starts again.
    """
    entries = queue.manifest.entries()
    for run in list(queue.waiting):
        entry = entries.get(run.folder)
        crashed = entry is not None and entry.status.startswith(("started", "crashed"))
        if entry is None or not crashed or run.status() == "aborted":
            continue
        queue.tries[run] = entry.attempt
        if entry.attempt >= queue.attempts:
            queue.waiting.remove(run)
            queue.running.add(run)
            queue.end(run, f"crashed: {entry.attempt} processes ended during this run")


def run_all(runs: Sequence[Run], queue: Queue | None) -> bool:
    """Trains all waiting runs together with the other hosts; returns whether some failed.

    Args:
      runs: all runs of the sweep, the same on all hosts.
      queue: on host 0, else None.

    Raises:
      KeyboardInterrupt: SIGTERM or SIGINT was received and the run was saved.
    """
    by_name = {run.name: run for run in runs}
    while True:
        name = queue.waiting[0].name if queue and queue.waiting else None
        name = distributed.broadcast(name)
        if name is None:
            return distributed.broadcast(bool(queue and (queue.has_failures or queue.is_stopped)))
        run = by_name[name]
        if queue:
            print(f"\n{run.name}", flush=True)
            queue.take(run)
        try:
            status = worker.train(run)
        except Exception as e:
            if queue:
                traceback.print_exc()
                queue.manifest.write(run, f"crashed: {type(e).__name__}: {e}", queue.tries[run])
            raise
        if queue:
            queue.end(run, status)
        if status in STOPPED:
            raise KeyboardInterrupt
