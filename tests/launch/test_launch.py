"""The generated scripts, run for real against stand-ins for gcloud, srun and make."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import reproduce
from launch import __main__ as launch

ROOT = pathlib.Path(reproduce.__file__).parent
GCLOUD = """\
#!{python}
# Copies to, and runs on, every worker: a folder each.
import os, pathlib, shutil, subprocess, sys
workers = [pathlib.Path(os.environ["WORKERS"]) / str(i) for i in range(2)]
arguments = [a for a in sys.argv[1:] if a[:2] != "--"]
assert arguments[:3] == ["compute", "tpus", "tpu-vm"], arguments
assert "--worker=all" in sys.argv and "--zone=my-zone" in sys.argv
for worker in workers:
    worker.mkdir(parents=True, exist_ok=True)
    if arguments[3] == "scp":
        name, _, path = arguments[5].partition(":")
        assert name == "my-pod"
        shutil.copy(arguments[4], worker / path)
    else:
        assert arguments[3:] == ["ssh", "my-pod"]
        command = next(a.partition("=")[2] for a in sys.argv if a.startswith("--command="))
        environment = os.environ | {{"HOME": str(worker)}}
        subprocess.run(["bash", "-c", command], cwd=worker, env=environment, check=True)
"""
MAKE = """\
#!/bin/bash
# What `make setup EXTRA=tpu` leaves behind.
[ "$*" = "setup EXTRA=tpu" ] && ln -sfn {prefix} .venv
"""


def put(folder, **programs):
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text.format(python=sys.executable, prefix=sys.prefix))
        (folder / name).chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}


def printed(capsys, *arguments):
    assert launch.main(arguments) == 0
    return capsys.readouterr().out


def test_the_gcloud_script_brings_the_committed_tree_to_every_worker(tmp_path, capsys):
    arguments = ["--data_dir=gs://my data/imagenet", "--out=/mnt/my runs", "--dry_run"]
    pod = ["gcloud", "--name=my-pod", "--zone=my-zone", "--"]
    (tmp_path / "go").write_text(printed(capsys, *pod, *arguments))
    environment = put(tmp_path / "bin", gcloud=GCLOUD, make=MAKE)
    environment["WORKERS"] = str(tmp_path / "workers")
    done = subprocess.run(
        ["bash", str(tmp_path / "go")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    here = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True)
    for worker in "01":
        tree = tmp_path / "workers" / worker / "harness"
        assert subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tree, text=True) == here
    assert done.stdout.count("--distributed '--config.dataset.data_dir=gs://my data/imagenet'") >= 2


def test_the_batch_file_asks_for_its_hosts_and_queues_a_preempted_job_again(tmp_path, capsys):
    text = printed(capsys, "sbatch", "--hosts=4", "--devices_per_host=8", "--", "--data_dir=/d")
    for line in ("--nodes=4", "--gpus-per-node=8", "--ntasks-per-node=1", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    (tmp_path / "go").write_text(text)
    for status, requeued in ((0, False), (75, True), (2, False)):
        folder = tmp_path / str(status)
        environment = put(
            folder,
            srun=f'#!/bin/bash\necho "$@" > {folder}/said; exit {status}\n',
            scontrol=f'#!/bin/bash\necho "$@" > {folder}/requeued\n',
        )
        environment["SLURM_JOB_ID"] = "17"
        done = subprocess.run(["bash", str(tmp_path / "go")], env=environment, check=False)
        assert done.returncode == status
        assert (folder / "requeued").exists() == requeued
        said = (folder / "said").read_text()
        assert said.endswith(".venv/bin/python reproduce.py --distributed --data_dir=/d\n")


def test_the_jobset_has_a_pod_for_each_host_of_the_slice(capsys):
    """v4:4x4x8 is 128 chips, 4 a host."""
    text = printed(capsys, "jobset", "--topology=v4:4x4x8", "--image=me/harness", "--", "--out=x")
    job = json.loads(text)["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["completionMode"]) == (32, 32, "Indexed")
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4x8",
    }
    container = pod["containers"][0]
    assert container["image"] == "me/harness"
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert container["command"][-1] == ".venv/bin/python reproduce.py --distributed --out=x"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jobset", "--topology=v3:16x8", "--image=x"], "python -m launch gcloud"),
        (["jobset", "--topology=v4", "--image=x"], "topology=v4: needs a generation"),
        (["jobset", "--topology=v5e:3x3", "--image=x"], "9 chips are no whole number of hosts"),
        (["sbatch", "--hosts=0", "--devices_per_host=8"], "hosts=0: needs at least 1"),
        (["sbatch", "--hosts=-1", "--devices_per_host=8"], "hosts=-1: needs at least 1"),
        (["sbatch", "--hosts=x", "--devices_per_host=8"], "see python -m launch sbatch --help"),
        (["gcloud", "--name=x"], "required: --zone; see python -m launch gcloud --help"),
        ([], "required: kind; see python -m launch --help"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    try:
        status = launch.main(arguments)
    except SystemExit as end:
        status = end.code
    assert status == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
