"""A sweep on several hosts: order, crashes, restarts, buckets, and two real hosts."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from etils import epath
from etils.epath.backend import os_backend

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from processes import free_port

import sweep
from errors import UserError
from sweeps import hosts, runs, worker
from sweeps.manifest import Manifest
from sweeps.queue import Queue

ROOT = pathlib.Path(__file__).parents[2]
HOSTS = ["--coordinator_address=h0:99", "--num_processes=2"]


@pytest.fixture
def sweep_of(tmp_path, monkeypatch):
    """Starts a sweep of three seeds, as a launcher does; `ends` are (seed, status or error)."""

    def start(*ends, attempts=2, out=tmp_path):
        left = list(ends)

        def train(run):
            seed, end = left.pop(0)
            assert run.seed == seed
            if isinstance(end, Exception):
                raise end
            if end == "done":
                run.folder.mkdir(parents=True, exist_ok=True)
                (run.folder / "run.json").write_text(json.dumps({"status": "done"}))
            return end

        monkeypatch.setattr(worker, "train", train)
        asked = runs.plan_runs("lars:smoke", range(3), epath.Path(out))
        queue = Queue(asked, Manifest(epath.Path(out)), attempts)
        hosts.count_crashes(queue)
        try:
            return hosts.run_all(asked, queue)
        finally:
            assert not left

    return start


def test_all_runs_in_order(sweep_of):
    assert not sweep_of((0, "done"), (1, "diverged"), (2, "done"))


def test_a_crash_is_counted_over_restarts_until_the_run_has_failed(sweep_of, tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError):
            sweep_of((0, RuntimeError("bug")))
    assert sweep_of((1, "done"), (2, "done"))
    record = json.loads((tmp_path / "lars-smoke/seed_0000/run.json").read_text())
    assert (record["status"], record["reason"]) == (
        "aborted", "crashed: 2 processes ended during this run",
    )  # fmt: skip
    assert not sweep_of((0, "done"))  # the user's next call tries it again


def test_a_killed_process_counts_as_a_crash_and_a_preemption_does_not(sweep_of, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sweep_of((0, "preempted"))
    with pytest.raises(SystemError):  # leaves "crashed", as a kill leaves "started"
        sweep_of((0, SystemError()))
    lines = (tmp_path / "manifest.jsonl").read_text().splitlines()[:-1]
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(KeyboardInterrupt):
        sweep_of((0, "preempted"))
    assert not sweep_of((0, "done"), (1, "done"), (2, "done"))


def test_a_user_error_fails_the_run_and_the_sweep_continues(sweep_of):
    assert sweep_of((0, "failed: field=1: the rule"), (1, "done"), (2, "done"))


class Folder:
    """A backend of epath that keeps gs://bucket in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __getattr__(self, name):
        call = getattr(os_backend, name)

        def on_folder(*arguments, **keywords):
            return call(*map(self.place, arguments), **keywords)

        return on_folder

    def place(self, path):
        placed = pathlib.Path(str(path).replace("gs:/", str(self.folder)))
        placed.parent.mkdir(parents=True, exist_ok=True)  # buckets have no folders
        return str(placed)


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    monkeypatch.setattr(type(epath.Path("gs://bucket")), "_backend", Folder(tmp_path / "gs"))


def test_out_may_be_a_bucket(sweep_of, bucket):
    assert not sweep_of((0, "done"), (1, "done"), (2, "done"), out="gs://bucket/out")
    lines = epath.Path("gs://bucket/out/manifest.jsonl").read_text().splitlines()
    statuses = [json.loads(line)["status"] for line in lines]
    assert statuses == ["waiting"] * 3 + ["started", "done"] * 3
    assert not sweep_of(out="gs://bucket/out")


def test_a_bucket_needs_several_hosts(tmp_path, capsys):
    assert sweep.main(["--recipes=lars:smoke", "--out=gs://bucket/out"]) == 2
    assert "out=gs://bucket/out: must be a folder, unless" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (HOSTS, "process_id: missing"),
        ([*HOSTS, "--process_id=2"], "--process_id=2: must be from 0 to below --num_processes=2"),
        (["--distributed", *HOSTS], "distributed: finds the hosts by itself"),
        (["--distributed", "--heartbeat_seconds=0"], "heartbeat_seconds=0: must be at least 1"),
    ],
)
def test_mistakes(arguments, words, tmp_path, capsys):
    assert sweep.main([*arguments, "--recipes=lars:smoke", f"--out={tmp_path / 'out'}"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_missing_data_are_reported_and_not_prepared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep.distributed, "join", lambda options: None)
    data = f"--config.dataset.data_dir={tmp_path}"
    arguments = [*HOSTS, "--process_id=0", "--recipes=lars:smoke", f"--out={tmp_path / 'out'}"]
    assert sweep.main([*arguments, data]) == 2
    assert "digits is not prepared there" in capsys.readouterr().err


def test_another_sweep_in_the_folder_is_refused(tmp_path):
    again = sweep.locked(epath.Path(tmp_path))
    with sweep.locked(epath.Path(tmp_path)), pytest.raises(UserError, match="another sweep"), again:
        pass


NETWORK = [
    "--config.model.stage_sizes=(1,)",
    "--config.model.width=2",
    "--config.total_steps=40",
    "--config.eval_every_steps=20",
    "--config.checkpoint_every_steps=4",
    "--config.log_every_steps=4",
    "--config.schedule.warmup_steps=2",
]
RECIPES = ("lars:smoke", "shampoo:smoke")


class Pair:
    """The same command on two hosts of two devices, their output in FOLDER/host_I.log."""

    def __init__(self, folder, *command):
        port = free_port()
        flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=1"
        environment = os.environ | {
            "XLA_FLAGS": flags,
            "NPROC": "16",
            "JAX_PLATFORMS": "cpu",
            "JAX_LOG_COMPILES": "1",
        }
        self.logs = [folder / f"host_{i}.log" for i in range(2)]
        self.processes = []
        for i, log in enumerate(self.logs):
            arguments = [
                f"--coordinator_address=localhost:{port}",
                "--num_processes=2",
                f"--process_id={i}",
                "--heartbeat_seconds=60",
            ]
            with log.open("w") as out:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *command, *arguments],
                        cwd=ROOT,
                        env=environment,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )

    def wait_for(self, words):
        deadline = time.monotonic() + 600
        while words not in self.logs[0].read_text():
            assert time.monotonic() < deadline
            assert all(p.poll() is None for p in self.processes), self.logs[0].read_text()[-3000:]
            time.sleep(0.02)

    def end(self):
        for process in self.processes:
            process.wait(900)
        return [process.returncode for process in self.processes]

    def n_compiled_steps(self, host):
        """How many pmapped programs the host compiled: a train step and an eval step each."""
        return len(re.findall(r"Compiling jit\(_fun\) ", self.logs[host].read_text()))


@pytest.mark.slow
def test_two_hosts_compile_once_survive_kills_and_equal_main_py(tmp_path):
    data = tmp_path / "data"
    prepare = [sys.executable, "-m", "input_pipeline", "--name=digits", f"--data_dir={data}"]
    subprocess.run(prepare, cwd=ROOT, check=True, timeout=900)
    overrides = [f"--config.dataset.data_dir={data}", *NETWORK]

    def start(out):
        recipes = f"--recipes={' '.join(RECIPES)}"
        return Pair(tmp_path, "sweep.py", recipes, "--seeds=0:3", f"--out={out}", *overrides)

    pair = start(tmp_path / "undisturbed")
    assert pair.end() == [0, 0], pair.logs[0].read_text()[-3000:]
    for host in range(2):
        assert pair.n_compiled_steps(host) == 2 * len(RECIPES), pair.logs[host].read_text()[-3000:]

    killed = tmp_path / "killed"
    for host, words in ((0, "lars:smoke seed 1"), (1, "shampoo:smoke seed 0")):
        pair = start(killed)
        pair.wait_for(words)
        pair.wait_for("step     8/40") if host == 0 else time.sleep(8)
        pair.processes[host].send_signal(signal.SIGKILL)
        assert 0 not in pair.end()
    assert start(killed).end() == [0, 0]

    for recipe in RECIPES:
        folder = runs.folder_name(recipe)
        for seed in range(3):
            name = f"{folder}/seed_{seed:04d}/curve.csv"
            curve = (tmp_path / "undisturbed" / name).read_bytes()
            assert (killed / name).read_bytes() == curve
        optimizer, _, task = recipe.partition(":")
        alone = tmp_path / f"alone-{folder}"
        config = [f"--config=configs/{optimizer}.py:{task}", "--config.seed=2", *overrides]
        assert Pair(tmp_path, "main.py", f"--workdir={alone}", *config).end() == [0, 0]
        assert (alone / "curve.csv").read_bytes() == curve
