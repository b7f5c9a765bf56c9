"""What the processes of a run, one a host, say to each other so as to be of one mind.

Every host runs the same program on its own share of each batch. What only one of them can know (a
workdir that is taken, a directory that is missing, a clock) passes through `gather` before anyone
acts upon it, so that all of them go the same way and end with the same exit status.
"""

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

import workdir as files
from errors import UserError

PATIENCE_SECONDS = 1200  # a dead host is noticed by its heartbeat, long before
_waits = itertools.count()  # a barrier's key serves once


def count() -> int:
    return jax.process_count()


def is_first() -> bool:
    """Whether this is the host that writes and prints."""
    return jax.process_index() == 0


def wait_for_all() -> None:
    """Returns once every host is here.

    It has more patience than collectives on CPUs, which fail if a host comes 30 s after another
    (gloo): so it must stand before the first collective after anything that may take long.
    """
    if count() > 1:
        barrier = ocp.multihost.get_barrier_sync_fn()
        barrier(key=f"hosts_{next(_waits)}", timeout_ms=1000 * PATIENCE_SECONDS)


def gather(value: Any) -> list[Any]:
    """Every host's value (JSON), in the order of the hosts. All hosts must call it alike."""
    if count() == 1:
        return [value]
    wait_for_all()
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text))).ravel()
    room = 1 << int(sizes.max()).bit_length()  # few sizes, few compilations
    rows = multihost_utils.process_allgather(np.pad(text, (0, room - len(text))))
    return [json.loads(row[:n].tobytes()) for row, n in zip(rows, sizes, strict=True)]


def first_says(value: Any) -> Any:
    """The first host's value (JSON), on all."""
    return gather(value)[0]


@contextlib.contextmanager
def all_or_none() -> Iterator[None]:
    """What must succeed on every host: a UserError of any is raised on all, when all are through.

    On the hosts that it did not happen on, the message names the one that it did happen on.
    """
    problem: UserError | None = None
    try:
        yield
    except UserError as e:
        problem = e
    said = gather(problem and str(problem))
    if problem:
        raise problem
    for host, text in enumerate(said):
        if text:
            raise UserError(f"{text} (host {host} of {len(said)})")


def agree(facts: Mapping[str, Any]) -> None:
    """Makes sure that all hosts have the same facts (JSON).

    Raises:
      UserError: on all hosts; names the first fact that differs, both values and the host.
    """
    first, *others = gather(facts)
    for host, there in enumerate(others, start=1):
        found = files.first_difference(first, there, ("host 0", f"host {host}"))
        if found:
            raise UserError(f"{found}: all hosts must run the same; start them alike")


def told_to_stop(poll: int) -> bool:
    """Whether a host got SIGTERM; becomes true on all hosts at the same poll (1, 2, ...)."""
    return multihost_utils.reached_preemption_sync_point(poll)
