"""TPU v4 and newer on Kubernetes: a JobSet whose pods are the hosts of one slice."""

import json
import shlex
from collections.abc import Sequence

from errors import UserError
from pod.topologies import Topology

ACCELERATORS = {  # the label cloud.google.com/gke-tpu-accelerator
    "v4": "tpu-v4-podslice",
    "v5litepod": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}
CHIPS_PER_HOST = 4
RESTARTS = 20


def manifest(topology: Topology, image: str, command: Sequence[str]) -> str:
    """A JobSet manifest as JSON, which kubectl takes like YAML.

    A host that ends with 75 (preempted), or dies, restarts the whole set, which continues.

    Raises:
      UserError: a generation that GKE does not have (v2, v3), or not whole hosts.
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
            f"topology={topology.name}: {topology.n_chips} chips are no whole number of hosts of "
            f"{CHIPS_PER_HOST}; take another slice"
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
        "terminationGracePeriodSeconds": 120,
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
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": "reproduce",
            "annotations": {
                "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
            },
        },
        "spec": {
            "failurePolicy": {"maxRestarts": RESTARTS},
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": job}}],
        },
    }
    return json.dumps(jobset, indent=2) + "\n"
