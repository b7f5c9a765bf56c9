"""Ctrl-C in a terminal: the signal goes to every process of the group, not to the sweep alone."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TINY = (
    "--config.model.stage_sizes=(1,)",
    "--config.model.width=2",
    "--config.global_batch_size=64",
    "--config.model.bn_span=64",
    "--config.total_steps=400",
    "--config.eval_every_steps=100",
    "--config.log_every_steps=10",
)


# A job in the background of a script has SIGINT ignored; one in a terminal has not.
AS_IN_A_TERMINAL = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, 'sweep.py', *sys.argv[1:]])"
)


def start(out):
    arguments = ["--recipes=nesterov:smoke", "--seeds=0:1", f"--out={out}"]
    arguments += [*TINY, f"--config.dataset.data_dir={out.parent / 'data'}"]
    environment = os.environ | {
        "XLA_FLAGS": "--xla_backend_optimization_level=1",
        "JAX_COMPILATION_CACHE_DIR": str(out.parent / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", AS_IN_A_TERMINAL, *arguments],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until_it_trains(log, seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if log.exists() and "step    10/" in log.read_text():
            return
        time.sleep(0.02)
    raise TimeoutError(f"no run began in {seconds} s")


@pytest.mark.slow
def test_a_worker_saves_and_the_same_command_continues_to_the_same_bytes(tmp_path):
    interrupted, undisturbed = tmp_path / "a", tmp_path / "b"
    sweep = start(interrupted)
    try:
        wait_until_it_trains(interrupted / "nesterov-smoke/seed_0000.log", 240)
        os.killpg(sweep.pid, signal.SIGINT)
        printed, _ = sweep.communicate(timeout=60)
    finally:
        sweep.kill()
    assert sweep.returncode == 75, printed
    assert "Traceback" not in printed
    folder = interrupted / "nesterov-smoke/seed_0000"
    assert not (folder / "run.json").exists()
    (saved,) = (int(p.name) for p in (folder / "checkpoints").iterdir())
    assert 10 <= saved < 400
    curves = []
    for out in (interrupted, undisturbed):
        sweep = start(out)
        printed, _ = sweep.communicate(timeout=300)
        assert sweep.returncode == 0, printed
        curves.append((out / "nesterov-smoke/seed_0000/curve.csv").read_bytes())
    assert curves[0] == curves[1]
    assert curves[0].count(b"\n") == 5
