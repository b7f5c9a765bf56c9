"""A sweep on several hosts, with a stand-in for main.py: commands, exit statuses, who writes."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from processes import free_port

import sweep
from sweeps import attempt, lockstep, runs
from sweeps.manifest import Manifest
from sweeps.queue import Queue

HOSTS = ["--coordinator_address=h0:99", "--num_processes=2"]
# Ends as the run's seed says: an exit status per attempt; notes its arguments.
STAND_IN = """
import json, pathlib, sys
folder = pathlib.Path(next(a for a in sys.argv if a.startswith("--workdir=")).partition("=")[2])
ends = {0: [0], 1: [75, 1, 0], 2: [1, 134], 3: [3], 4: [2], 5: [1]}[int(folder.name[-4:])]
calls = folder.with_suffix(".calls")
done = calls.read_text().splitlines() if calls.exists() else []
calls.write_text("\\n".join([*done, json.dumps(sys.argv[1:])]))
status = ends[len(done)]
print("error: field=1: the rule" if status == 2 else "the last words")
if status in (0, 3) or folder.name == "seed_0005":  # 5: a peer is lost after the last step
    folder.mkdir(parents=True, exist_ok=True)
    word = "diverged" if status == 3 else "done"
    (folder / "run.json").write_text(json.dumps({"status": word}))
sys.exit(status)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    (tmp_path / "main.py").write_text(STAND_IN)
    monkeypatch.setattr(attempt, "MAIN", tmp_path / "main.py")


def test_exit_statuses(stand_in, tmp_path):
    asked = runs.plan_runs("lars:smoke", range(6), tmp_path / "out")
    manifest = Manifest(tmp_path / "out/manifest.jsonl")
    manifest.path.parent.mkdir()
    queue = Queue(asked, manifest, attempts=2)
    lockstep.lead(queue, tmp_path / "out", ["--distributed"], n_hosts=1)
    assert {run.seed: status for run, status in queue.ended.items()} == {
        0: "done",
        1: "done",  # preempted once, which does not count, and crashed once
        2: "crashed: main.py ended with 134: the last words",
        3: "diverged",
        4: "failed: field=1: the rule",
        5: "done",
    }
    lines = [json.loads(line) for line in manifest.path.read_text().splitlines()]
    of_1 = [(line["status"], line["attempt"]) for line in lines if line["seed"] == 1]
    crashed = "crashed: main.py ended with 1: the last words"
    assert of_1 == [
        ("waiting", 0), ("started", 1), ("preempted", 1), ("started", 1), (crashed, 1),
        ("started", 2), ("done", 2),
    ]  # fmt: skip
    assert json.loads((asked[2].folder / "run.json").read_text())["status"] == "aborted"


def test_dry_run_prints_the_very_commands(tmp_path, capsys):
    arguments = ["--recipes=lars:smoke sm3:smoke", "--seeds=3", f"--out={tmp_path}", "--dry_run"]
    arguments += ["--config.total_steps=9"]
    assert sweep.main([*arguments, *HOSTS, "--process_id=1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert printed[0].split() == [
        sys.executable,
        str(attempt.ROOT / "main.py"),
        f"--config={attempt.ROOT / 'configs/lars.py'}:smoke",
        "--config.total_steps=9",
        "--config.seed=3",
        f"--workdir={tmp_path / 'lars:smoke/seed_0003'}",
        *HOSTS,
        "--process_id=1",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (HOSTS, "process_id: missing"),
        ([*HOSTS, "--process_id=2"], "--process_id=2: needs 0 to below --num_processes=2"),
        (["--distributed", *HOSTS], "distributed: finds the hosts by itself"),
        ([*HOSTS, "--process_id=0"], "digits is not prepared there"),
    ],
)
def test_mistakes(arguments, words, tmp_path, capsys):
    arguments = [*arguments, f"--config.dataset.data_dir={tmp_path}"]
    arguments += ["--recipes=lars:smoke", f"--out={tmp_path / 'out'}"]
    assert sweep.main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


RUN = """
import signal, sys, time
def save(*_):
    print("told to save", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""
SWEEP = """
import pathlib, sys, time
from sweeps import attempt, runs
run = runs.plan_runs("lars:smoke", [0], pathlib.Path(sys.argv[1]))[0]
run.folder.parent.mkdir(parents=True)
attempt.Attempt(run, [sys.executable, "-c", sys.argv[2]])
time.sleep(60)
"""


def test_a_sweep_that_is_killed_takes_its_main_py_along(tmp_path):
    """Else it would hold the devices, and the run's folder, that the next sweep needs."""
    command = [sys.executable, "-c", SWEEP, str(tmp_path), RUN]
    process = subprocess.Popen(command, cwd=attempt.ROOT)
    log = tmp_path / "lars:smoke" / "seed_0000.log"

    def comes(word):
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if log.exists() and word in log.read_text():
                return True
            time.sleep(0.05)
        return False

    assert comes("ready")
    process.kill()
    process.wait()
    assert comes("told to save")


@pytest.mark.slow
def test_two_hosts_with_four_devices_each(tmp_path):
    """The same command twice, the real main.py: both end well, and only host 0 wrote."""
    data = tmp_path / "data"
    prepare = [sys.executable, "-m", "input_pipeline", "--name=digits", f"--data_dir={data}"]
    subprocess.run(prepare, cwd=attempt.ROOT, check=True, timeout=900)
    port = free_port()
    arguments = [
        "--recipes=lars:smoke",
        "--seeds=0:2",
        f"--out={tmp_path / 'out'}",
        f"--config.dataset.data_dir={data}",
        "--config.model.stage_sizes=(1,)",
        "--config.model.width=2",
        "--config.total_steps=4",
        f"--coordinator_address=localhost:{port}",
        "--num_processes=2",
    ]
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=1"
    hosts = [
        subprocess.Popen(
            [sys.executable, "sweep.py", *arguments, f"--process_id={i}"],
            cwd=attempt.ROOT,
            env=os.environ | {"XLA_FLAGS": flags, "NPROC": "16", "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    try:
        printed = [host.communicate(timeout=900)[0] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], printed
    for seed in range(2):
        record = json.loads((tmp_path / f"out/lars:smoke/seed_000{seed}/run.json").read_text())
        assert (record["status"], record["device"]["hosts"], record["device"]["count"]) == (
            "done", 2, 8,
        )  # fmt: skip
    lines = [json.loads(x) for x in (tmp_path / "out/manifest.jsonl").read_text().splitlines()]
    assert [(x["seed"], x["status"]) for x in lines if x["status"] != "waiting"] == [
        (0, "started"), (0, "done"), (1, "started"), (1, "done"),
    ]  # fmt: skip
