"""A sweep on several hosts: each of them starts the same command, and the runs go one by one.

    python sweep.py --recipes=... --seeds=0:50 --out=SHARED --coordinator_address=HOST:PORT \\
        --num_processes=32 --process_id=I
    python sweep.py --recipes=... --seeds=0:50 --out=SHARED --distributed      (Cloud TPU, SLURM)

A run is one `main.py` on every host, which joins the others by the same flags; `lockstep` keeps the
hosts at the same run. Only host 0 writes the manifest; every host has a lock of its own.
"""

import argparse
import subprocess
import sys

import joining
from errors import UserError

PLACE = "import jax; jax.distributed.initialize(); print(jax.process_index(), jax.process_count())"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that main.py has, too, and gets from here."""
    hosts = parser.add_argument_group("several hosts, each of which starts this same command")
    hosts.add_argument(
        "--distributed", action="store_true", help="they find each other (Cloud TPU, SLURM, ...)"
    )
    hosts.add_argument("--coordinator_address", metavar="HOST:PORT", help="of process 0")
    hosts.add_argument("--num_processes", type=int, help="how many hosts there are")
    hosts.add_argument("--process_id", type=int, help="which of them this is, from 0")


def joining_flags(options: argparse.Namespace) -> list[str]:
    """What main.py is to be given to join the other hosts; [] on a single one.

    Raises:
      UserError: some of the explicit flags without the others, or a process that cannot be.
    """
    explicit = {name: getattr(options, name) for name in joining.EXPLICIT}
    if not joining.are_several(options.distributed, explicit):
        return []
    if options.distributed:
        return ["--distributed"]
    return [f"--{name}={value}" for name, value in explicit.items()]


def place(options: argparse.Namespace) -> tuple[int, int]:
    """Which of how many hosts this is; with --distributed as jax finds them.

    That is asked by a process that then frees the devices.

    Raises:
      UserError: no cluster is found here.
    """
    if not options.distributed:
        return options.process_id or 0, options.num_processes or 1
    command = [sys.executable, "-c", PLACE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"distributed: no cluster is found here ({reason}); give "
            "--coordinator_address=HOST:PORT --num_processes=N --process_id=I"
        )
    process_id, n_hosts = map(int, done.stdout.split()[-2:])
    return process_id, n_hosts
