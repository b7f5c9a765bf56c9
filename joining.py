"""How the processes of a run, one a host, find each other: from flags, or from the cluster."""

from collections.abc import Mapping
from typing import Any

from absl import flags

from errors import UserError

EXPLICIT = ("coordinator_address", "num_processes", "process_id")


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of `join`."""
    flags.DEFINE_boolean(
        "distributed",
        False,
        "Join the hosts of this Cloud TPU, SLURM, Kubernetes or MPI job, as JAX finds them.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "coordinator_address", None, "HOST:PORT of process 0, without --distributed.",
        flag_values=flag_values,
    )  # fmt: skip
    for name, text in (
        ("num_processes", "How many processes there are, with --coordinator_address."),
        ("process_id", "Which of them this is, from 0, with --coordinator_address."),
    ):
        flags.DEFINE_integer(name, None, text, flag_values=flag_values)
    flags.DEFINE_integer(
        "heartbeat_seconds",
        30,
        "A host that is silent for so long counts as dead, and the others end.",
        lower_bound=1,
        flag_values=flag_values,
    )


def join(flag_values: flags.FlagValues) -> None:
    """Connects the processes as the flags of `define_flags` say; without any, this one is alone.

    Must come before anything that starts the devices. From here on SIGTERM ends no process.

    Raises:
      UserError: flags that do not belong together, no cluster found, or nobody answers.
    """
    value: dict[str, Any] = {name: flag_values[name].value for name in EXPLICIT}
    if not are_several(bool(flag_values["distributed"].value), value):
        return
    heartbeat: Any = flag_values["heartbeat_seconds"].value
    import jax  # late: flags are read before anything heavy starts

    try:
        jax.distributed.initialize(
            **value,
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=max(2 * heartbeat, 60),
        )
    except ValueError as e:
        raise UserError(
            f"--distributed: no cluster is found here ({e}); give "
            "--coordinator_address=HOST:PORT --num_processes=N --process_id=I"
        ) from e


def are_several(distributed: bool, explicit: Mapping[str, Any]) -> bool:
    """Whether the flags join several processes: --distributed, or all of EXPLICIT (absent: None).

    Raises:
      UserError: flags that do not belong together, or a process that cannot be.
    """
    missing = [f"--{name}" for name in EXPLICIT if explicit[name] is None]
    if distributed:
        if len(missing) < len(EXPLICIT):
            raise UserError("--distributed: finds the hosts by itself; leave out --num_processes")
        return True
    if len(missing) == len(EXPLICIT):
        return False
    if missing:
        raise UserError(
            f"{missing[0]}: missing; several processes need --coordinator_address=HOST:PORT "
            "--num_processes=N --process_id=I, or --distributed"
        )
    address, n, i = (explicit[name] for name in EXPLICIT)
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise UserError(f"--coordinator_address={address}: needs HOST:PORT")
    if not 0 <= i < n:
        raise UserError(f"--process_id={i}: needs 0 to below --num_processes={n}")
    return True
