"""Prints what starts reproduce.py on every host of a pod or cluster; after -- come its arguments.

    python -m launch gcloud --name=pod --zone=europe-west4-a -- ARGUMENTS > go
    python -m launch sbatch --hosts=4 --devices_per_host=8 -- ARGUMENTS > go
    python -m launch jobset --topology=v4:4x4x8 --image=IMAGE -- ARGUMENTS > go

Read it, then run it: `bash go`, `sbatch go`, `kubectl apply -f go`. Every host must see the same
--out: a directory that all of them mount.
"""

import argparse
import sys
from collections.abc import Sequence

from errors import DONE, USER_ERROR, OneLineParser, UserError
from launch import gcloud, jobset, sbatch
from pod import topologies


def parser() -> argparse.ArgumentParser:
    top = OneLineParser(
        prog="python -m launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = top.add_subparsers(dest="kind", required=True)
    pod = kinds.add_parser("gcloud", help="a Cloud TPU pod (v2, v3, ...): a shell script")
    pod.add_argument("--name", required=True, help="of the TPU, as created")
    pod.add_argument("--zone", required=True, help="as europe-west4-a")
    pod.add_argument("--folder", default="harness", help="for this tree, on every host")
    batch = kinds.add_parser("sbatch", help="SLURM: a batch file, one task a host")
    batch.add_argument("--hosts", required=True, type=int)
    batch.add_argument("--devices_per_host", required=True, type=int, help="GPUs")
    batch.add_argument("--hours", type=int, default=24, help="the limit of the job")
    cluster = kinds.add_parser("jobset", help="TPU v4 and newer on Kubernetes: a JobSet manifest")
    cluster.add_argument("--topology", required=True, help="as v4:4x4x8")
    cluster.add_argument("--image", required=True, help="container image with this tree set up")
    for one in (pod, batch, cluster):
        one.add_argument("arguments", nargs="*", help="of reproduce.py, after --")
    return top


def render(options: argparse.Namespace) -> str:
    """The script or manifest.

    Raises:
      UserError: a topology or a count that cannot be.
    """
    command = [".venv/bin/python", "reproduce.py", "--distributed", *options.arguments]
    if options.kind == "gcloud":
        return gcloud.script(options.name, options.zone, options.folder, command)
    if options.kind == "sbatch":
        return sbatch.script(options.hosts, options.devices_per_host, options.hours, command)
    return jobset.manifest(topologies.parse(options.topology), options.image, command)


def main(argv: Sequence[str]) -> int:
    try:
        print(render(parser().parse_args(argv)), end="")
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
