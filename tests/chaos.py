"""Kills processes of two sweeps at random, and checks that no byte of any curve changes.

    make chaos [KILLS=30] [SEED=0]      (python tests/chaos.py --recipes="lars:smoke" for fewer)

One sweep has a pool of workers, the other runs on two hosts. Each is first run undisturbed, then
again while its processes are killed or its disk is full, until all kills are used. A sweep that
ends early is started again, and one that is done is repeated in a new folder. Exit status 1 for any
difference, any lost run, or if the time is not sufficient.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time

from processes import NETWORK, ROOT, free_port

RECIPES = "lars:smoke nesterov:smoke shampoo:smoke sm3:smoke"
OVERRIDES = (
    *NETWORK,
    "--config.total_steps=20",
    "--config.eval_every_steps=4",
    "--config.checkpoint_every_steps=3",
)
PROGRESS_LINES = 40  # about those of one run: a kill follows after at most that many
DISK_FULL_SECONDS = 3.0


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of sweep: its number of hosts, and what happens to its processes."""

    name: str
    n_hosts: int
    seeds: str
    kills: tuple[str, ...]


POOL = Kind(
    "pool", 1, "0:2", ("worker SIGKILL", "worker SIGTERM", "worker disk full", "sweep SIGKILL")
)
HOSTS = Kind(
    "hosts",
    2,
    "0:1",
    ("one host SIGKILL", "one host SIGTERM", "one host disk full"),
)


class Sweep:
    """The processes of one sweep, which are started again until all runs are done."""

    def __init__(self, kind: Kind, out: pathlib.Path, recipes: str):
        self.kind, self.out, self.recipes = kind, out, recipes
        self.data = f"--config.dataset.data_dir={out.parent / 'data'}"
        self.environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "NPROC": "16",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={kind.n_hosts} "
            "--xla_backend_optimization_level=1",
            "JAX_COMPILATION_CACHE_DIR": str(out.parent / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        self.processes: list[subprocess.Popen] = []
        self.port = 0

    def start(self) -> None:
        self.port = free_port()
        self.processes = [self.start_on(i) for i in range(self.kind.n_hosts)]

    def start_on(self, host: int) -> subprocess.Popen:
        arguments = [f"--recipes={self.recipes}", f"--seeds={self.kind.seeds}", f"--out={self.out}"]
        command = [sys.executable, "sweep.py", *arguments, "--attempts=1000", *OVERRIDES, self.data]
        host_flags = [
            f"--coordinator_address=localhost:{self.port}",
            f"--num_processes={self.kind.n_hosts}",
            f"--process_id={host}",
        ]
        with self.log(host).open("a") as log:
            return subprocess.Popen(
                command + (host_flags if self.kind.n_hosts > 1 else []),
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def log(self, host: int) -> pathlib.Path:
        return self.out.parent / f"{self.out.name}_{host}.log"

    def is_done(self) -> bool:
        """Returns whether all runs are done; starts the sweep again if it has ended early."""
        statuses = [p.poll() for p in self.processes]
        if None in statuses:
            return False
        if 2 in statuses:
            raise RuntimeError(f"{self.out.name}: a user error; see the logs")
        if statuses == [0] * self.kind.n_hosts:
            return True
        self.start()
        return False

    def n_lines(self) -> int:
        """Returns the number of lines in the logs, a measure of progress."""
        logs = [self.log(0)] if self.kind.n_hosts > 1 else self.out.glob("*/*.log")
        return sum(len(log.read_bytes().splitlines()) for log in logs)

    def victims(self) -> list[int]:
        """Returns the processes that train."""
        if self.kind.n_hosts > 1:
            return [p.pid for p in self.processes if p.poll() is None]
        pids = itertools.chain.from_iterable(descendants(p.pid) for p in self.processes)
        return [pid for pid in pids if "--multiprocessing-fork" in command_line(pid)]

    def hit(self, kill: str, rng: random.Random) -> bool:
        """Kills, stops or fills the disk of a process; returns whether there was one."""
        if kill == "sweep SIGKILL":
            host = rng.randrange(self.kind.n_hosts)
            self.processes[host].kill()
            self.processes[host].wait()
            self.processes[host] = self.start_on(host)
            return True
        victims = self.victims()
        if not victims:
            return False
        victim = rng.choice(victims)
        try:
            if kill.endswith("disk full"):
                fill_disk_of(victim)
            else:
                os.kill(victim, getattr(signal, kill.split()[-1]))
        except ProcessLookupError:
            return False
        return True

    def end(self) -> None:
        """Kills all processes."""
        for pid in (*self.victims(), *(p.pid for p in self.processes)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [p for child in children for p in (int(child), *descendants(int(child)))]


def command_line(pid: int) -> list[str]:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def fill_disk_of(pid: int) -> None:
    """Prevents files of the process from growing for some seconds, like a full disk or a quota."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (40, resource.RLIM_INFINITY))
    time.sleep(DISK_FULL_SECONDS)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def curves(out: pathlib.Path) -> dict[str, bytes]:
    return {str(p.parent.relative_to(out)): p.read_bytes() for p in out.glob("*/*/curve.csv")}


def disturb(
    sweep: Sweep, n_kills: int, rng: random.Random, until: float, done: collections.Counter
) -> int:
    """Runs the sweep to its end with at most `n_kills`; returns the number used."""
    used = 0
    sweep.start()
    try:
        next_at = sweep.n_lines() + rng.randrange(PROGRESS_LINES)
        while not sweep.is_done():
            if time.monotonic() > until:
                raise TimeoutError(f"{sweep.out.name}: not done in time after {used} kills")
            if used < n_kills and sweep.n_lines() >= next_at:
                kill = min(sweep.kind.kills, key=lambda name: done[name])
                if sweep.hit(kill, rng):
                    used += 1
                    done[kill] += 1
                    print(f"{sweep.out.name}: {kill} ({used})", flush=True)
                    next_at = sweep.n_lines() + rng.randrange(PROGRESS_LINES)
            time.sleep(0.05)
    finally:
        sweep.end()
    return used


def check(kind: Kind, got: dict[str, bytes], want: dict[str, bytes]) -> list[str]:
    """Returns what differs from the undisturbed sweep."""
    lost = [f"{kind.name}: {run} lost" for run in sorted(want.keys() - got.keys())]
    return lost + [
        f"{kind.name}: {run}/curve.csv differs" for run in sorted(want) if got.get(run) != want[run]
    ]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Kills processes of sweeps at random.")
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120.0, help="time limit")
    options = parser.parse_args(argv)
    rng = random.Random(options.seed)
    until = time.monotonic() + 60 * options.minutes
    done: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    n_runs = 0
    shares = {POOL: options.kills - options.kills // 2, HOSTS: options.kills // 2}
    with tempfile.TemporaryDirectory() as folder:
        for kind, n_kills in shares.items():
            undisturbed = Sweep(kind, pathlib.Path(folder, f"{kind.name}_0"), options.recipes)
            disturb(undisturbed, 0, rng, until, done)
            want = curves(undisturbed.out)
            print(f"{kind.name}: {len(want)} runs undisturbed", flush=True)
            for i in itertools.count(1):
                if n_kills <= 0:
                    break
                sweep = Sweep(kind, pathlib.Path(folder, f"{kind.name}_{i}"), options.recipes)
                try:
                    n_kills -= disturb(sweep, n_kills, rng, until, done)
                except TimeoutError as e:
                    wrong.append(str(e))
                    n_kills = 0
                n_runs += len(want)
                wrong += check(kind, curves(sweep.out), want)
    for kill, n in sorted(done.items()):
        print(f"{kill:<20} {n:>3}")
    print(f"{'kills':<20} {sum(done.values()):>3}, over {n_runs} runs")
    for line in wrong:
        print(line)
    print("FAILED" if wrong else "all curves equal those of the undisturbed sweep")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
