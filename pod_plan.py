"""What a recipe needs on a TPU pod, found without one: memory, time, communication of its steps.

    python pod_plan.py --config=configs/shampoo.py:readme --topology=v3:16x8 --json=FILE

The real train and eval step are compiled for the topology's devices by the TPU compiler (libtpu:
make setup EXTRA=tpu), in a process of its own. Exit status: 0 planned, 2 user error.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from errors import DONE, USER_ERROR, OneLineParser, UserError
from pod import compile as pod_compile
from pod import summary, topologies


def plan(
    config: str, overrides: Sequence[str], topology: topologies.Topology, hlo: str = ""
) -> dict:
    """Compiles a recipe's steps for a topology in a process of its own; returns its figures.

    Args:
      config: recipe file and variant, as for main.py.
      overrides: as --config.FIELD=VALUE.
      hlo: folder for the compiled programs as text; "": not written.

    Raises:
      UserError: what is wrong with config or topology, or a compilation that failed otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "plan.json"
        command = [sys.executable, "-m", "pod.compile", f"--config={config}", *overrides]
        command += [f"--topology={topology.name}", f"--json={file}", f"--hlo={hlo}"]
        done = subprocess.run(
            command,
            env=pod_compile.environment(topology),
            cwd=pathlib.Path(__file__).parent,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise UserError(lines[-1].removeprefix("error: "))
        return json.loads(file.read_text())


def largest_batch(
    config: str, overrides: Sequence[str], topology: topologies.Topology, device_batch_size: int
) -> int | None:
    """The largest halving of the device batch whose step fits, compiled to be sure; or None."""
    size = device_batch_size // 2
    while size:
        total = size * topology.n_devices
        smaller = [
            *overrides,
            f"--config.global_batch_size={total}",
            f"--config.model.bn_span={size}",
        ]
        if plan(config, smaller, topology)["train_step"]["fits"]:
            return total
        size //= 2
    return None


def figures(
    config: str, overrides: Sequence[str], topology: topologies.Topology, hlo: str = ""
) -> dict:
    """`plan`, and for a batch that does not fit the largest that does."""
    found = plan(config, overrides, topology, hlo)
    if not found["train_step"]["fits"]:
        found["largest_global_batch_size"] = largest_batch(
            config, overrides, topology, found["device_batch_size"]
        )
    return found


def main(argv: Sequence[str]) -> int:
    parser = OneLineParser(
        prog="pod_plan.py",
        description="Compiles a recipe's steps for a TPU topology, without a TPU.",
        epilog="Any --config.FIELD=VALUE overrides that field of the recipe.",
    )
    parser.add_argument("--config", required=True, help="as configs/shampoo.py:readme")
    parser.add_argument("--topology", default="v3:16x8", help="as v3:16x8, v4:4x4x8, v5e:16x16")
    parser.add_argument("--json", help="file to write the figures to")
    parser.add_argument("--hlo", default="", help="folder for the compiled programs as text")
    options, overrides = parser.parse_known_args(argv)
    try:
        topology = topologies.parse(options.topology)
        hlo = str(pathlib.Path(options.hlo).absolute()) if options.hlo else ""
        found = figures(options.config, overrides, topology, hlo)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    except (UserError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    print(summary.text(found))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
