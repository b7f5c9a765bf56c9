"""A sweep's hosts go from run to run together: the first one says which, the others answer.

OUT/.hosts/now.json is the word of the first host: {"attempt": 7, "run": "lars:digits seed 3",
"state": "running"}, then "ended", and after the last run "over", or "stopped". A host that has
ended an attempt, or never began it, says so in OUT/.hosts/host_001.json: {"attempt": 7, "status":
"preempted"}. The first host waits for all answers. So a host that was killed, slow or started anew
never trains another run than its peers, and a run is given up by the first host alone.
"""

import contextlib
import pathlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from etils import epath

import workdir as files
from errors import UserError
from sweeps.attempt import Attempt, command
from sweeps.queue import STOPPED, Queue
from sweeps.runs import Run

NOT_BEGUN = "not begun"
POLL_SECONDS = 0.2
GRACE_SECONDS = 60.0  # for main.py to find out by itself that another host's has ended
TELL_AFTER_SECONDS = 60.0  # of waiting for a host


def say(out: pathlib.Path, name: str, word: Mapping[str, Any]) -> None:
    (out / ".hosts").mkdir(parents=True, exist_ok=True)
    files.write_json(epath.Path(out / ".hosts" / name), word)


def heard(out: pathlib.Path, name: str = "now.json") -> dict[str, Any]:
    """What a host said last, {} if nothing; a shared folder may lose a file for a moment."""
    with contextlib.suppress(OSError, ValueError):
        return dict(files.read_json(epath.Path(out / ".hosts" / name)))
    return {}


def lead(queue: Queue, out: pathlib.Path, flags: Sequence[str], n_hosts: int) -> None:
    """Runs all that waits, in order, here and on the other hosts.

    A KeyboardInterrupt lets the run save, as far as it can, before it is passed on.
    """
    names = ["now.json", *map(host_file, range(1, n_hosts))]
    attempt = max(heard(out, name).get("attempt", 0) for name in names)
    try:
        while not queue.is_over:
            run = queue.waiting[0]
            queue.take(run)
            attempt += 1
            word = {"attempt": attempt, "run": run.name}
            say(out, "now.json", word | {"state": "running"})
            mine = Attempt(run, command(run, flags))
            try:
                wait(mine, partial(has_ended_elsewhere, out, attempt, n_hosts))
            except KeyboardInterrupt:
                mine.stop()
                raise
            say(out, "now.json", word | {"state": "ended"})
            queue.end(run, joint(mine.status(), answers(out, attempt, n_hosts)))
    except KeyboardInterrupt:
        say(out, "now.json", {"attempt": attempt, "state": "stopped"})
        raise
    failed = queue.has_failures or queue.stopped
    say(out, "now.json", {"attempt": attempt, "state": "over", "failed": failed})


def answers(out: pathlib.Path, attempt: int, n_hosts: int) -> list[str]:
    """How the attempt ended on the other hosts; waits for all of them."""
    statuses = []
    for i in range(1, n_hosts):
        pause = pausing(f"host {i}")
        while (answer := heard(out, host_file(i))).get("attempt") != attempt:
            pause()
        statuses.append(answer["status"])
    return statuses


def pausing(host: str) -> Callable[[], None]:
    """A pause between two looks for a host's word, which now and then says what is waited for."""
    tell_at = time.monotonic() + TELL_AFTER_SECONDS

    def pause() -> None:
        nonlocal tell_at
        time.sleep(POLL_SECONDS)
        if time.monotonic() > tell_at:
            print(f"waiting for {host}: start the same command there", flush=True)
            tell_at += 10 * TELL_AFTER_SECONDS

    return pause


def host_file(process_id: int) -> str:
    return f"host_{process_id:03d}.json"


def joint(status: str, others: Sequence[str]) -> str:
    """The status of an attempt: the first host's, unless another one was told to stop.

    A crash because a peer was preempted, or had not come back yet, is no fault of the run.
    """
    if status.startswith("crashed"):
        stopped = ["preempted" if other == NOT_BEGUN else other for other in others]
        return next((other for other in stopped if other in STOPPED), status)
    return status


def follow(asked: Sequence[Run], out: pathlib.Path, flags: Sequence[str], process_id: int) -> bool:
    """Runs what the first host says until it says that all is over; whether all went well.

    Raises:
      KeyboardInterrupt: the first host was stopped, or this one.
      UserError: the first host was started with other runs.
    """
    runs = {run.name: run for run in asked}
    stale = heard(out)
    if stale.get("state") not in ("over", "stopped"):
        stale = {}
    answered, pause = None, pausing("the first host")
    while True:
        word = heard(out)
        if not word or word == stale:
            if all(run.is_complete() for run in asked):
                return True
        elif word["state"] == "over":
            return not word["failed"]
        elif word["state"] == "stopped":
            raise KeyboardInterrupt
        elif word["attempt"] != answered:
            if word["run"] not in runs:
                raise UserError(f"the first host is at {word['run']}: start all hosts alike")
            status = NOT_BEGUN
            if word["state"] == "running":
                status = run_along(runs[word["run"]], word, out, flags, process_id)
            answered = word["attempt"]
            say(out, host_file(process_id), {"attempt": answered, "status": status})
            pause = pausing("the first host")
            continue
        pause()


def run_along(
    run: Run, word: Mapping[str, Any], out: pathlib.Path, flags: Sequence[str], process_id: int
) -> str:
    """The status of this host's part of an attempt.

    Its main.py is ended where the first host has gone on: it would join another run.
    """
    mine = Attempt(run, command(run, flags), process_id)

    def grace() -> float | None:
        now = heard(out)
        if not now or now == word:
            return None
        return GRACE_SECONDS if now["attempt"] == word["attempt"] else 0.0

    try:
        wait(mine, grace)
    except KeyboardInterrupt:
        mine.stop()
        answer = {"attempt": word["attempt"], "status": mine.status()}
        say(out, host_file(process_id), answer)
        raise
    return mine.status()


def has_ended_elsewhere(out: pathlib.Path, attempt: int, n_hosts: int) -> float | None:
    """The grace that main.py has here, once another host's has ended: it may wait for that one."""
    answered = [heard(out, host_file(i)).get("attempt") for i in range(1, n_hosts)]
    return GRACE_SECONDS if attempt in answered else None


def wait(mine: Attempt, grace: Callable[[], float | None]) -> None:
    """Waits for main.py, and kills it so many seconds after `grace` first said how many."""
    end_at = float("inf")
    while mine.process.poll() is None:
        seconds = grace()
        if seconds is not None:
            end_at = min(end_at, time.monotonic() + seconds)
        if time.monotonic() >= end_at:
            mine.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            mine.process.wait(POLL_SECONDS)
