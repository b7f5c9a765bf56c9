"""Runs as separate processes: exit statuses, and what happens when the parent is killed."""

import pathlib
import subprocess
import sys
import time

import pytest
from etils import epath

from sweeps import process, runs

# Ends with the given status, after writing the last words of its log.
STAND_IN = "import sys; print(sys.argv[2]); sys.exit(int(sys.argv[1]))"


@pytest.mark.parametrize(
    ("exit_status", "status"),
    [
        (0, "done"),
        (3, "diverged"),
        (75, "preempted"),
        (130, "aborted"),
        (2, "failed: field=1: the rule"),
        (134, "crashed: main.py ended with 134: error: field=1: the rule"),
    ],
)
def test_exit_statuses(exit_status, status, tmp_path):
    (run,) = runs.plan_runs("lars:smoke", [0], epath.Path(tmp_path))
    run.folder.parent.mkdir()
    command = [sys.executable, "-c", STAND_IN, str(exit_status), "error: field=1: the rule"]
    assert process.RunProcess(run, command).status() == status


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
from etils import epath
from sweeps import process, runs
run = runs.plan_runs("lars:smoke", [0], epath.Path(sys.argv[1]))[0]
run.folder.parent.mkdir(parents=True)
process.RunProcess(run, [sys.executable, "-c", sys.argv[2]])
time.sleep(60)
"""


def test_a_sweep_that_is_killed_takes_its_main_py_along(tmp_path):
    """Else it would hold the devices, and the run's folder, that the next sweep needs."""
    command = [sys.executable, "-c", SWEEP, str(tmp_path), RUN]
    parent = subprocess.Popen(command, cwd=process.ROOT)
    log = pathlib.Path(tmp_path) / "lars-smoke" / "seed_0000.log"

    def comes(word):
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if log.exists() and word in log.read_text():
                return True
            time.sleep(0.05)
        return False

    assert comes("ready")
    parent.kill()
    parent.wait()
    assert comes("told to save")
