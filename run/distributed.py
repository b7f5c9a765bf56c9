"""The processes of a run, one on each host: how they join, agree and stop together.

Every host runs the same program on its own share of each batch. Facts that only one host can know,
such as a workdir that is in use or a missing directory, are gathered before any host acts on them.
All hosts then take the same branch and end with the same exit status.

JAX is imported where it is used, so that a program can read its flags before it starts devices.
"""

import argparse
import contextlib
import errno
import itertools
import json
import os
import pathlib
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from absl import flags

from errors import CRASHED, FAILED, UserError
from run import files

BARRIER_SECONDS = 1200  # a host that dies is detected by its heartbeat, long before
EXPLICIT = ("coordinator_address", "num_processes", "process_id")
FLAGS: Mapping[str, tuple[type, Any, str]] = {  # {name: (type, default, help)}
    "distributed": (bool, False, "Find the other hosts through Cloud TPU, SLURM, GKE or MPI."),
    "coordinator_address": (str, None, "HOST:PORT of process 0, without --distributed."),
    "num_processes": (int, None, "Number of processes, with --coordinator_address."),
    "process_id": (int, None, "Index of this process from 0, with --coordinator_address."),
    "heartbeat_seconds": (int, 30, "A host silent for this long counts as dead; the others exit."),
}
DISK_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM),
)
_barriers = itertools.count()  # a barrier's key can be used once
_polls = itertools.count(1)  # the numbers of preemption sync points may never repeat


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines `FLAGS` for absl."""
    define: dict[type, Any] = {
        bool: flags.DEFINE_boolean,
        int: flags.DEFINE_integer,
        str: flags.DEFINE_string,
    }
    for name, (kind, default, text) in FLAGS.items():
        define[kind](name, default, text, flag_values=flag_values)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds `FLAGS` to an argparse parser."""
    group = parser.add_argument_group("several hosts, each of which runs the same command")
    for name, (kind, default, text) in FLAGS.items():
        if kind is bool:
            group.add_argument(f"--{name}", action="store_true", help=text)
        else:
            group.add_argument(f"--{name}", type=kind, default=default, help=text)


def as_arguments(options: Any) -> list[str]:
    """Returns the host flags that were given, for the command line of another program.

    Raises:
      UserError: as `is_requested`.
    """
    if not is_requested(options):
        return []
    values = {name: getattr(options, name) for name in FLAGS}
    given = {name: value for name, value in values.items() if value != FLAGS[name][1]}
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given.items()]


def is_requested(options: Any) -> bool:
    """Returns whether the flags ask for several processes.

    Args:
      options: absl's FlagValues or argparse's Namespace, with the attributes `FLAGS`.

    Raises:
      UserError: flags that contradict each other, or an impossible value.
    """
    values = {name: getattr(options, name) for name in EXPLICIT}
    missing = [f"--{name}" for name in EXPLICIT if values[name] is None]
    if options.heartbeat_seconds < 1:
        raise UserError(f"--heartbeat_seconds={options.heartbeat_seconds}: must be at least 1")
    if options.distributed:
        if len(missing) < len(EXPLICIT):
            raise UserError(
                "--distributed: finds the hosts by itself; leave out --" + ", --".join(EXPLICIT)
            )
        return True
    if len(missing) == len(EXPLICIT):
        return False
    if missing:
        raise UserError(
            f"{missing[0]}: missing; several processes need --coordinator_address=HOST:PORT "
            "--num_processes=N --process_id=I, or --distributed"
        )
    address, n, i = values.values()
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise UserError(f"--coordinator_address={address}: must be HOST:PORT")
    if not 0 <= i < n:
        raise UserError(f"--process_id={i}: must be from 0 to below --num_processes={n}")
    return True


def join(options: Any) -> None:
    """Connects this process with the others, if the flags ask for it.

    Call it before anything that starts the devices. Afterwards SIGTERM no longer ends the process;
    `Signals` reports it.

    Raises:
      UserError: as `is_requested`, or no cluster was found.
    """
    if not is_requested(options):
        return
    import jax

    try:
        jax.distributed.initialize(
            **{name: getattr(options, name) for name in EXPLICIT},
            heartbeat_timeout_seconds=options.heartbeat_seconds,
            shutdown_timeout_seconds=max(2 * options.heartbeat_seconds, 60),
        )
    except ValueError as e:
        raise UserError(
            f"--distributed: found no cluster ({e}); use "
            "--coordinator_address=HOST:PORT --num_processes=N --process_id=I"
        ) from e
    except RuntimeError as e:  # another host is missing, or has just crashed
        traceback.print_exception(e)
        os._exit(CRASHED)


def count() -> int:
    """Returns the number of hosts."""
    import jax

    return jax.process_count()


def is_first() -> bool:
    """Returns whether this is host 0, the one that writes and prints."""
    import jax

    return jax.process_index() == 0


def barrier() -> None:
    """Waits for all hosts.

    Call it before the first collective after slow work: gloo times out after 30 s of skew.
    """
    if count() > 1:
        import orbax.checkpoint as ocp

        wait = ocp.multihost.get_barrier_sync_fn()
        wait(key=f"hosts_{next(_barriers)}", timeout_ms=1000 * BARRIER_SECONDS)


def gather(value: Any) -> list[Any]:
    """Returns the JSON values of all hosts, in the order of the hosts. All hosts must call it."""
    if count() == 1:
        return [value]
    from jax.experimental import multihost_utils

    barrier()
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text))).ravel()
    length = 1 << int(sizes.max()).bit_length()  # few lengths, few compilations
    rows = multihost_utils.process_allgather(np.pad(text, (0, length - len(text))))
    return [json.loads(row[:n].tobytes()) for row, n in zip(rows, sizes, strict=True)]


def broadcast(value: Any) -> Any:
    """Returns the JSON value of host 0 on all hosts."""
    return gather(value)[0]


@contextlib.contextmanager
def raise_on_all() -> Iterator[None]:
    """Raises a UserError on all hosts if the block raises one on any of them.

    The other hosts raise the same error, naming the host that failed.
    """
    error: UserError | None = None
    try:
        yield
    except UserError as e:
        error = e
    messages = gather(error and str(error))
    if error:
        raise error
    for host, message in enumerate(messages):
        if message:
            raise UserError(f"{message} (host {host} of {len(messages)})")


def agree(facts: Mapping[str, Any]) -> None:
    """Checks that all hosts have the same facts (JSON).

    Raises:
      UserError: on all hosts; names the first fact that differs, both values and the host.
    """
    first, *others = gather(facts)
    for host, other in enumerate(others, start=1):
        difference = files.first_difference(first, other, ("on host 0", f"on host {host}"))
        if difference:
            raise UserError(f"{difference}: must be equal on all hosts; start them alike")


def crash(error: Exception, workdir: str | None) -> int:
    """Prints the reason and returns the exit status; raises the error if it needs a traceback.

    On several hosts this process ends here: a normal exit would block in jax.distributed's shutdown
    barrier. The other hosts detect a broken connection, or the missing heartbeat. If the disk is
    full, printing may fail, too.
    """
    on_several_hosts = "jax" in sys.modules and count() > 1
    is_disk_error = isinstance(error, OSError) and error.errno in DISK_ERRORS
    if not (on_several_hosts or is_disk_error):
        raise error
    with contextlib.suppress(OSError):
        if isinstance(error, OSError) and is_disk_error:
            folder = pathlib.Path(workdir or "").absolute()
            file = pathlib.Path(error.filename or folder).absolute()
            is_inside = file == folder or folder in file.parents
            place = f"workdir={workdir}: cannot be written" if is_inside else f"{file}: failed"
            message = f"error: {place} ({error.strerror}); fix this, then run the command again"
            print(message, file=sys.stderr, flush=True)
        else:
            traceback.print_exception(error)
        if on_several_hosts:
            print(
                "this host exits, and so do the others; the same command continues from the last "
                "checkpoint",
                file=sys.stderr,
                flush=True,
            )
    if on_several_hosts:
        os._exit(CRASHED)
    return FAILED


class Signals:
    """Notes the first SIGTERM or SIGINT; a second one ends the process at once.

    On several hosts, jax.distributed catches SIGTERM. All hosts learn of it at the same poll and
    save the same step, so every host must poll equally often. SIGINT is passed on as SIGTERM, and
    only a second SIGINT, or SIGKILL, ends such a process at once.

    Attributes:
      received: the signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "Signals":
        self.on_several_hosts = count() > 1
        self.interrupted = False
        self.previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            caught = (signal.SIGINT,) if self.on_several_hosts else (signal.SIGTERM, signal.SIGINT)
            for number in caught:
                self.previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        for caught in self.previous:
            signal.signal(caught, signal.SIG_DFL)
        if self.on_several_hosts:
            self.interrupted = True
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.received = number

    @property
    def by_user(self) -> bool:
        """Whether the signal was SIGINT."""
        return self.received == signal.SIGINT

    def poll(self) -> bool:
        """Returns whether to stop now: the same answer on all hosts at the same poll."""
        if self.on_several_hosts and not self.received:
            from jax.experimental import multihost_utils

            if multihost_utils.reached_preemption_sync_point(next(_polls)):
                by_user = any(gather(self.interrupted))
                self.received = signal.SIGINT if by_user else signal.SIGTERM
        return self.received is not None

    def until_received(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yields the items, up to the first poll that finds a signal."""
        for item in items:
            if self.poll():
                return
            yield item
