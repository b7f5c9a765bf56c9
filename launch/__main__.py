"""Prints a script that starts reproduce.py on every host of a pod or cluster.

    python -m launch gcloud --name=pod --zone=europe-west4-a -- ARGUMENTS > go
    python -m launch sbatch --hosts=4 --devices_per_host=8 -- ARGUMENTS > go
    python -m launch jobset --topology=v4:4x4x8 --image=IMAGE -- ARGUMENTS > go

Read the script, then run it: `bash go`, `sbatch go` or `kubectl apply -f go`. The arguments after
-- are those of reproduce.py. Their --out must be a bucket (gs://...) or a folder that all hosts
mount.
"""

import argparse
import sys
from collections.abc import Sequence

from errors import DONE, USER_ERROR, OneLineParser, UserError
from launch import templates
from pod import topologies


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    pod = kinds.add_parser("gcloud", help="a shell script for a Cloud TPU pod (v2, v3, ...)")
    pod.add_argument("--name", required=True, help="name of the TPU")
    pod.add_argument("--zone", required=True, help="as europe-west4-a")
    pod.add_argument("--folder", default="harness", help="folder for this tree on every host")
    batch = kinds.add_parser("sbatch", help="a SLURM batch file, one task per host")
    batch.add_argument("--hosts", required=True, type=int, help="number of hosts")
    batch.add_argument("--devices_per_host", required=True, type=int, help="GPUs of a host")
    batch.add_argument("--hours", type=int, default=24, help="time limit of the job")
    cluster = kinds.add_parser("jobset", help="a JobSet for TPU v4 and newer on Kubernetes")
    cluster.add_argument("--topology", required=True, help="as v4:4x4x8")
    cluster.add_argument("--image", required=True, help="container image with this tree, set up")
    for kind in (pod, batch, cluster):
        kind.add_argument("arguments", nargs="*", help="arguments of reproduce.py, after --")
    return parser


def render(options: argparse.Namespace) -> str:
    """Returns the script or manifest; UserError for an impossible topology or number."""
    command = [".venv/bin/python", "reproduce.py", "--distributed", *options.arguments]
    if options.kind == "gcloud":
        return templates.gcloud(options.name, options.zone, options.folder, command)
    if options.kind == "sbatch":
        return templates.sbatch(options.hosts, options.devices_per_host, options.hours, command)
    return templates.jobset(topologies.parse(options.topology), options.image, command)


def main(argv: Sequence[str]) -> int:
    try:
        print(render(make_parser().parse_args(argv)), end="")
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
