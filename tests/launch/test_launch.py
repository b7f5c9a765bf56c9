"""The generated scripts, run with stand-ins for gcloud, srun, scontrol and make."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import reproduce
from launch import __main__ as launch
from launch import templates

ROOT = pathlib.Path(reproduce.__file__).parent
GCLOUD = """\
#!{python}
# Copies files to every worker, or runs a command there. Each worker is a folder.
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
        done = subprocess.run(["bash", "-c", command], cwd=worker, env=environment)
        if done.returncode:
            sys.exit(done.returncode)
"""
FLAKY = """\
#!{python}
# Exits with the statuses of $STATUSES, one after the other.
import os, pathlib, sys
log = pathlib.Path(os.environ["HOME"], "log")
statuses = os.environ["STATUSES"].split()
count = len(log.read_text()) if log.exists() else 0
log.write_text("x" * (count + 1))
sys.exit(int(statuses[min(count, len(statuses) - 1)]))
"""
MAKE = """\
#!/bin/bash
# Stands in for `make setup EXTRA=tpu`.
[ "$*" = "setup EXTRA=tpu" ] && ln -sfn {prefix} .venv
"""


def add_programs(folder, **programs):
    """Writes the programs to a folder; returns an environment with the folder in PATH."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text.format(python=sys.executable, prefix=sys.prefix))
        (folder / name).chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}


def printed(capsys, *arguments):
    assert launch.main(arguments) == 0
    return capsys.readouterr().out


def run_on_workers(script, tmp_path, **variables):
    """Runs a gcloud script with two workers, `tmp_path / "workers"`."""
    (tmp_path / "go").write_text(script)
    programs = {"gcloud": GCLOUD, "make": MAKE, "flaky": FLAKY, "sleep": "#!/bin/bash\n"}
    environment = add_programs(tmp_path / "bin", **programs)
    return subprocess.run(
        ["bash", str(tmp_path / "go")],
        cwd=ROOT,
        env=environment | {"WORKERS": str(tmp_path / "workers"), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_gcloud_script_copies_the_committed_tree_to_every_worker(tmp_path, capsys):
    arguments = ["--data_dir=gs://my data/imagenet", "--out=/mnt/my runs", "--dry_run"]
    pod = ["gcloud", "--name=my-pod", "--zone=my-zone", "--"]
    done = run_on_workers(printed(capsys, *pod, *arguments), tmp_path)
    assert done.returncode == 0, done.stderr
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True)
    for worker in "01":
        tree = tmp_path / "workers" / worker / "harness"
        assert subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tree, text=True) == commit
    assert done.stdout.count("--distributed '--config.dataset.data_dir=gs://my data/imagenet'") >= 2


@pytest.mark.parametrize(
    ("statuses", "n_starts"),
    [("0", 1), ("1", 1), ("2", 1), ("75 70 134 0", 4), ("75 1", 2), ("70", 21)],
)
def test_the_gcloud_script_restarts_after_crashes_and_preemptions(statuses, n_starts, tmp_path):
    script = templates.gcloud("my-pod", "my-zone", "harness", ["flaky"])
    done = run_on_workers(script, tmp_path, STATUSES=statuses)
    assert done.returncode == int(statuses.split()[-1]), done.stderr
    assert (tmp_path / "workers" / "0" / "log").read_text() == "x" * n_starts


def test_the_gcloud_script_ends_if_the_setup_fails(tmp_path):
    script = templates.gcloud("my-pod", "my-zone", "harness", ["flaky"])
    script = script.replace("make setup", "make nothing")
    assert run_on_workers(script, tmp_path).returncode == 1
    assert not (tmp_path / "workers" / "0" / "log").exists()


@pytest.mark.parametrize(
    ("status", "restarts", "is_requeued"),
    [
        (0, 0, False),
        (1, 0, False),
        (2, 0, False),
        (75, 0, True),
        (75, 20, True),
        (70, 19, True),
        (137, 0, True),
        (70, 20, False),
    ],
)
def test_the_batch_file_requeues_a_job_that_was_preempted_or_crashed(
    status, restarts, is_requeued, tmp_path, capsys
):
    text = printed(capsys, "sbatch", "--hosts=4", "--devices_per_host=8", "--", "--data_dir=/d")
    for line in ("--nodes=4", "--gpus-per-node=8", "--ntasks-per-node=1", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    (tmp_path / "go").write_text(text)
    environment = add_programs(
        tmp_path / "bin",
        srun=f'#!/bin/bash\necho "$@" > {tmp_path}/started; exit {status}\n',
        scontrol=f'#!/bin/bash\necho "$@" > {tmp_path}/requeued\n',
    )
    environment |= {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": str(restarts)}
    done = subprocess.run(["bash", str(tmp_path / "go")], env=environment, check=False)
    assert done.returncode == status
    assert (tmp_path / "requeued").exists() == is_requeued
    started = (tmp_path / "started").read_text()
    assert started.endswith(".venv/bin/python reproduce.py --distributed --data_dir=/d\n")


def test_the_jobset_has_a_pod_for_each_host_of_the_slice(capsys):
    """v4:4x4x8 has 128 chips, 4 per host."""
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
        (["jobset", "--topology=v5e:3x3", "--image=x"], "9 chips are not a whole number of hosts"),
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
