"""Makes a study: tunes, measures, and writes results/NAME; the same command continues.

    python -m studies digits [--workers=2] [--dry_run]

The runs lie in runs/studies/NAME. What is kept of them, in results/NAME: runs.json (every run's
record and curve), trials (all that was tried in tuning), report.json, README.md and its figures,
which `python report.py results/NAME` writes anew.

Exit status: that of the sweep that did not end well (75: stopped, the same command continues).
"""

import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Sequence

import report
from one_line_parser import OneLineParser
from reporting import archive
from studies import plan

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main(argv: Sequence[str]) -> int:
    parser = OneLineParser(prog="python -m studies", description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=plan.STUDIES)
    parser.add_argument("--out", type=pathlib.Path, help="of the runs; runs/studies/NAME")
    parser.add_argument("--results", type=pathlib.Path, help="what is kept; results/NAME")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dry_run", action="store_true", help="print the commands, run nothing")
    options = parser.parse_args(argv)
    # Relative: a page and a record name their files, and must not tell of this machine.
    out = options.out or pathlib.Path("runs", "studies", options.name)
    results = options.results or pathlib.Path("results", options.name)
    commands = list(plan.commands(plan.STUDIES[options.name], out, options.workers))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(out.absolute() / ".compile_cache"))
    for i, command in enumerate(commands, 1):
        print(
            f"[{i} of {len(commands)}] {shlex.join(['python', 'sweep.py', *command])}", flush=True
        )
        if not options.dry_run:
            done = subprocess.run([sys.executable, ROOT / "sweep.py", *command], check=False)
            if done.returncode:
                return done.returncode
    if options.dry_run:
        return 0
    keep(out, results)
    return report.main([str(results)])


def keep(out: pathlib.Path, results: pathlib.Path) -> None:
    """Copies what is small of the study's runs: all trials, and each run's record and curve."""
    results.mkdir(parents=True, exist_ok=True)
    for trials in sorted(out.glob("**/trials.json")):
        name = "_".join(["trials", *trials.relative_to(out).parts[:-2]])
        (results / f"{name}.json").write_bytes(trials.read_bytes())
    archive.write(results / archive.NAME, out, without="tuning")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(75)
