"""Runs the published ImageNet recipe on the miniature through main.py."""

import csv
import json
import os
import subprocess
import sys

import miniature
import pytest

SMALLER = {
    "global_batch_size": 16,
    "total_steps": 6,
    "eval_every_steps": 3,
    "device_eval_batch_size": 4,
    "log_every_steps": 2,
    "schedule.warmup_steps": 2,
    "schedule.decay_end_step": 6,
    "dataset.image_size": 32,
    "model.stage_sizes": "(1,1)",
    "model.width": 8,
    "model.bn_span": 8,
}


def run(workdir, data_dir):
    overrides = [f"--config.{name}={value}" for name, value in SMALLER.items()]
    command = [sys.executable, "main.py", "--config=configs/lars.py:mlperf_v07", *overrides]
    command += [f"--config.dataset.data_dir={data_dir}", f"--workdir={workdir}"]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return (workdir / "curve.csv").read_bytes()


@pytest.mark.slow
def test_the_recipe_evaluates_each_image_once_and_repeats_bit_by_bit(imagenet_dir, tmp_path):
    curve = run(tmp_path / "first", imagenet_dir)
    rows = list(csv.DictReader(curve.decode().splitlines()))
    assert [row["step"] for row in rows] == ["3", "6"]
    assert {row["n_seen"] for row in rows} == {str(miniature.N_VAL)}
    record = json.loads((tmp_path / "first" / "run.json").read_text())
    assert (record["dataset"], record["status"]) == ("imagenet2012", "done")
    assert run(tmp_path / "second", imagenet_dir) == curve
