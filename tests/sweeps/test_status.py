"""--status: what the files of a sweep tell, whoever asks, whether it is alive or dead."""

import fcntl
import json
import math
import pathlib
import subprocess
import sys

import pytest
from etils import epath

from sweeps import runs, status
from sweeps.manifest import Manifest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def out(tmp_path):
    """Five runs: done in 10 s, diverged, given up, at step 6 of 12 after 3 s, and waiting."""
    made = runs.plan_runs("lars:smoke", range(5), tmp_path, group="steps_000012")
    manifest = Manifest(epath.Path(tmp_path))
    manifest.note_waiting(made)
    ends = ["done", "diverged", "crashed: killed", "started"]
    for run, end in zip(made, ends, strict=False):
        manifest.write(run, "started", 1)
        manifest.write(run, end, 1)
        run.folder.mkdir(parents=True)
        if end != "started":
            word = "aborted" if end.startswith("crashed") else end
            seconds = {"init": 99.0, "train": 8.0, "eval": 2.0}
            (run.folder / "run.json").write_text(json.dumps({"status": word, "seconds": seconds}))
    (made[3].folder / "config.json").write_text('{"total_steps": 12}')
    timing = "step,train_seconds,eval_seconds,images_per_second\n3,1,0,9\n6,2.5,0.5,9\n"
    (made[3].folder / "timing.csv").write_text(timing)
    return tmp_path


def test_a_live_sweep(out):
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        summary, running, last = status.lines(out)
    counts = "5 runs: 1 done, 1 diverged, 1 failed, 1 running, 1 waiting"
    assert summary.split() == ["lars-smoke/steps_000012", *counts.split()]
    assert running == ("  lars-smoke/steps_000012/seed_0003: step 6 of 12, about 0:00:03 left")
    assert last == "sweep is running, about 0:00:13 left"  # 3 s, and 10 s for the one that waits


def test_a_run_that_was_given_up_and_is_tried_again_is_running(out):
    (third,) = runs.plan_runs("lars:smoke", [2], out, group="steps_000012")
    Manifest(epath.Path(out)).write(third, "started", 1)
    (out / "lars-smoke/steps_000012/seed_0000/run.json").write_text(
        '{"status": "done", "seconds": [1]}'
    )
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        summary, *running, _ = status.lines(out)
    assert "1 diverged, 2 running, 1 stopped, 1 waiting" in summary
    assert running[0] == "  lars-smoke/steps_000012/seed_0002: starting"


def test_a_dead_sweep(out):
    (out / ".lock").touch()
    summary, last = status.lines(out)
    assert "1 failed, 1 stopped, 1 waiting" in summary
    assert last == "sweep is not running; the same command continues"


def test_a_complete_sweep_does_not_ask_to_be_continued(tmp_path):
    manifest = Manifest(epath.Path(tmp_path))
    made = runs.plan_runs("lars:smoke", [0, 1], tmp_path)
    manifest.note_waiting(made)
    for run, record in zip(made, [{"status": "done"}, {"status": "diverged"}], strict=True):
        run.folder.mkdir(parents=True)
        (run.folder / "run.json").write_text(json.dumps(record))
        manifest.write(run, "started", 1)
        manifest.write(run, record["status"], 1)
    summary, last = status.lines(tmp_path)
    assert summary.endswith("2 runs: 1 done, 1 diverged")
    assert last == "sweep is not running; all runs have ended"


def test_another_process_needs_neither_jax_nor_tensorflow(out):
    code = (
        "import sys, sweep\n"
        f"assert sweep.main(['--status={out}']) == 0\n"
        "heavy = {'tensorflow', 'jax', 'tensorflow_datasets', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "1 done" in done.stdout


def test_no_sweep_was_there(tmp_path):
    with pytest.raises(ValueError, match=r"contains no manifest\.jsonl"):
        list(status.lines(tmp_path))


def test_waiting_is_noted_once(out):
    before = (out / "manifest.jsonl").read_text()
    Manifest(epath.Path(out)).note_waiting(
        runs.plan_runs("lars:smoke", range(5), out, group="steps_000012")
    )
    assert (out / "manifest.jsonl").read_text() == before


def test_what_waits_is_expected_to_take_what_others_took():
    done, waiting = status.Progress("done", seconds=10.0), status.Progress("waiting")
    assert status.seconds_left([waiting, waiting], [done, waiting, waiting]) == 20.0
    assert status.seconds_left([waiting], [waiting]) == math.inf
    assert status.seconds_left([done], [done]) == 0.0
