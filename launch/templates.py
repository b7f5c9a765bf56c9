"""Scripts that start a command on all hosts: Cloud TPU pods, SLURM, and TPUs on Kubernetes.

Each of them starts the command again when it is preempted or crashes, and the command continues
from its checkpoints. It is not started again when it is done or has failed (statuses `FINAL`).
"""

import json
import shlex
from collections.abc import Sequence

from errors import DONE, FAILED, PREEMPTED, USER_ERROR, UserError
from pod.topologies import Topology

ACCELERATORS = {  # the label cloud.google.com/gke-tpu-accelerator
    "v4": "tpu-v4-podslice",
    "v5litepod": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}
BUNDLE = "harness.bundle"
CHIPS_PER_HOST = 4
FINAL = f"{DONE}|{FAILED}|{USER_ERROR}"  # a pattern for `case`
PAUSE_SECONDS = 10  # before a restart, so that the other hosts notice the crash
RESTARTS = 20
SAVE_SECONDS = 120  # between SIGTERM and the end of the job


def gcloud(name: str, zone: str, folder: str, command: Sequence[str]) -> str:
    """Returns a shell script that runs `command` on every worker of a Cloud TPU pod.

    The script copies the committed tree to the workers as a git bundle, so that every run knows
    its commit, and sets it up. A worker runs the command again, at most `RESTARTS` times, after any
    other status than `FINAL`. The exit status is that of the last command.
    """
    workers = f"--zone={shlex.quote(zone)} --worker=all"
    tree = shlex.quote(folder)
    remote = f"""\
git init --quiet {tree} && cd {tree} && git fetch --quiet ~/{BUNDLE} HEAD &&
git checkout --quiet --force FETCH_HEAD && make setup EXTRA=tpu || exit
for restart in $(seq 0 {RESTARTS}); do
  {shlex.join(command)}
  status=$?
  case $status in {FINAL}) break ;; esac
  echo "status $status, restarts so far: $restart"
  sleep {PAUSE_SECONDS}
done
exit $status"""
    tpu = "gcloud compute tpus tpu-vm"
    return f"""\
#!/bin/bash
# Runs on every worker of the TPU: {shlex.join(command)}
set -euo pipefail
bundle=$(mktemp -d)/{BUNDLE}
git bundle create --quiet "$bundle" HEAD
{tpu} scp "$bundle" {shlex.quote(name)}:{BUNDLE} {workers}
{tpu} ssh {shlex.quote(name)} {workers} --command={shlex.quote(remote)}
"""


def sbatch(hosts: int, devices_per_host: int, hours: int, command: Sequence[str]) -> str:
    """Returns a SLURM batch file with one task per host; jax.distributed finds the other hosts.

    Submit it from the root of this tree, on a file system that all hosts share, after `make setup`.
    SLURM queues the job again after any other status than `FINAL`, after crashes at most `RESTARTS`
    times. A host that is done does not end the others, because host 0 writes the report last.

    Raises:
      UserError: a number below 1.
    """
    numbers = {"hosts": hosts, "devices_per_host": devices_per_host, "hours": hours}
    for field, value in numbers.items():
        if value < 1:
            raise UserError(f"{field}={value}: needs at least 1")
    return f"""\
#!/bin/bash
#SBATCH --job-name=reproduce
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={devices_per_host}
#SBATCH --exclusive
#SBATCH --time={hours}:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@{SAVE_SECONDS}
#SBATCH --open-mode=append
set -uo pipefail
srun --kill-on-bad-exit=0 {shlex.join(command)}
status=$?
case $status in
  {FINAL}) ;;
  {PREEMPTED}) scontrol requeue "$SLURM_JOB_ID" ;;
  *) [ "${{SLURM_RESTART_COUNT:-0}}" -ge {RESTARTS} ] || scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit $status
"""


def jobset(topology: Topology, image: str, command: Sequence[str]) -> str:
    """Returns a JobSet manifest as JSON, which kubectl accepts like YAML: one pod per host.

    If one host is preempted or crashes, Kubernetes restarts the whole set, at most `RESTARTS`
    times.

    Raises:
      UserError: a generation that GKE does not offer (v2, v3), or a fraction of a host.
    """
    generation = topology.generation.accelerator
    if generation not in ACCELERATORS:
        raise UserError(
            f"topology={topology.name}: Kubernetes has {', '.join(ACCELERATORS)} only; "
            "for v2 and v3: python -m launch gcloud"
        )
    hosts = max(1, topology.n_chips // CHIPS_PER_HOST)
    if hosts * CHIPS_PER_HOST < topology.n_chips:
        raise UserError(
            f"topology={topology.name}: {topology.n_chips} chips are not a whole number of hosts "
            f"with {CHIPS_PER_HOST} chips; use another topology"
        )
    container = {
        "name": "worker",
        "image": image,
        "command": ["bash", "-c", shlex.join(command)],
        "ports": [{"containerPort": 8471}, {"containerPort": 8080}],
        "resources": {"limits": {"google.com/tpu": min(topology.n_chips, CHIPS_PER_HOST)}},
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": SAVE_SECONDS,
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": ACCELERATORS[generation],
            "cloud.google.com/gke-tpu-topology": topology.name.partition(":")[2],
        },
        "containers": [container],
    }
    job = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    topology_key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": "reproduce",
            "annotations": {topology_key: "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {"maxRestarts": RESTARTS},
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": job}}],
        },
    }
    return json.dumps(manifest, indent=2) + "\n"
