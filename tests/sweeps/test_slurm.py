"""--slurm with submitit's local executor in SLURM's place, and a stand-in in main.py's."""

import contextlib
import json
import os
import pathlib
import signal
import time

import pytest

import sweep
from sweeps import process, runs, slurm
from sweeps.manifest import Manifest
from sweeps.queue import Queue

# Seed 1 crashes at its first attempt; seed 2 trains for a minute unless told to save, and is
# quick where something was saved.
STAND_IN = """
import json, pathlib, signal, sys, time
folder = pathlib.Path(next(a for a in sys.argv if a.startswith("--workdir=")).partition("=")[2])
seed, saved = int(folder.name[-4:]), folder / "saved"
def save(*_):
    saved.touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
if seed == 1 and not folder.exists():
    folder.mkdir()
    print("out of luck")
    sys.exit(9)
folder.mkdir(exist_ok=True)
if seed == 2 and not saved.exists():
    (folder / "training").touch()
    time.sleep(60)
(folder / "run.json").write_text(json.dumps({"status": "done"}))
"""
SETTINGS = {"name": "sweep", "timeout_min": 5}


@pytest.fixture
def out(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    (tmp_path / "main.py").write_text(STAND_IN)
    monkeypatch.setattr(process, "ROOT", tmp_path)
    return tmp_path / "out"


def queue_of(out, seeds):
    out.mkdir(exist_ok=True)
    manifest = Manifest(out)
    return Queue(runs.plan_runs("lars:smoke", seeds, out), manifest, attempts=2)


def statuses(out, seed):
    lines = map(json.loads, (out / "manifest.jsonl").read_text().splitlines())
    return [line["status"] for line in lines if line["seed"] == seed]


def test_an_array_of_runs_and_what_is_tried_again(out):
    queue = queue_of(out, [0, 1])
    slurm.run_all(queue, slurm.executor(out, SETTINGS, cluster="local"), poll_seconds=0.1)
    assert set(queue.ended.values()) == {"done"}
    assert statuses(out, 0) == ["waiting", "submitted", "done"]
    crashed = "crashed: main.py ended with 9: out of luck"
    assert statuses(out, 1) == ["waiting", "submitted", crashed, "submitted", "done"]


def test_a_preempted_task_saves_and_goes_on(out):
    queue = queue_of(out, [2])
    executor = slurm.executor(out, SETTINGS, cluster="local")
    ((run, job),) = slurm.submit(queue, executor).items()
    ends = time.monotonic() + 60
    while not (run.folder / "training").exists() and time.monotonic() < ends:
        time.sleep(0.05)
    children = pathlib.Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text()
    for task in children.split():
        os.kill(int(task), signal.SIGUSR2)  # as SLURM does, ahead of taking the node away
    while not job.done() and time.monotonic() < ends:
        time.sleep(0.05)
    assert slurm.status(run, job) == "done"
    assert (run.folder / "saved").exists()


def test_jobs_of_an_earlier_call_are_waited_for_and_not_submitted_again(out, monkeypatch):
    class StillQueued:
        def __init__(self, folder, job_id):
            self.job_id, self.polls = job_id, 0

        def done(self):
            self.polls += 1
            return self.job_id == "7_1" or self.polls > 2  # 7_1 has ended, and left nothing

        def result(self):
            return "done"

    submitted = []

    class Executor:
        folder = out / ".slurm"

        def batch(self):
            return contextlib.nullcontext()

        def submit(self, task):
            submitted.append(task.run.seed)
            return StillQueued(None, "8_0")

    import submitit

    monkeypatch.setattr(submitit, "SlurmJob", StillQueued)
    queue = queue_of(out, [0, 3])
    Executor.folder.mkdir()
    ids = {str(run.folder): f"7_{i}" for i, run in enumerate(queue.waiting)}
    (Executor.folder / "jobs.json").write_text(json.dumps(ids))
    slurm.run_all(queue, Executor(), poll_seconds=0.0)
    assert submitted == [3]
    assert set(queue.ended.values()) == {"done"}
    assert (
        json.loads((Executor.folder / "jobs.json").read_text())[str(out / "lars-smoke/seed_0003")]
        == "8_0"
    )


def test_dry_run_prints_what_would_be_submitted(tmp_path, capsys):
    arguments = ["--recipes=lars:smoke", "--seeds=0:3", f"--out={tmp_path / 'out'}", "--dry_run"]
    assert sweep.main([*arguments, "--slurm", "--slurm_partition=gpu", "--slurm_minutes=30"]) == 0
    first, *commands = capsys.readouterr().out.splitlines()
    assert first.startswith("# one array of 3 tasks: name=sweep, timeout_min=30, cpus_per_task=2")
    assert "slurm_partition=gpu" in first
    assert len(commands) == 3
    assert commands[2].endswith(
        f"--config.seed=2 --workdir={tmp_path / 'out/lars-smoke/seed_0002'}"
    )
    assert not (tmp_path / "out").exists()


def test_mistake_gets_one_line(tmp_path, capsys):
    arguments = ["--recipes=lars:smoke", f"--out={tmp_path / 'out'}", "--slurm"]
    assert sweep.main([*arguments, "--slurm_minutes=0"]) == 2
    error = capsys.readouterr().err
    assert "slurm_minutes=0: must be at least 1" in error
    assert error.count("\n") == 1
