"""Makes a study: tunes, measures, and writes results/NAME; the same command continues.

    python -m studies digits [--workers=2] [--dry_run]

The runs lie in runs/studies/NAME. What is kept of them, in results/NAME: runs.json (every run's
record and curve), trials (all that was tried in tuning), report.json, README.md and its figures,
which `python report.py results/NAME` writes anew.

Exit status: 0 done, 1 runs failed (they are marked, and the report counts them), 2 user error,
75 stopped (every run under way is saved; the same command continues).
"""

import os
import pathlib
import shlex
import sys
from collections.abc import Sequence

import report
import sweep
from errors import DONE, FAILED, PREEMPTED, USER_ERROR, OneLineParser, UserError
from reporting import archive, output
from studies import plan
from sweeps import process

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
    if results.exists() and not results.is_dir():
        parser.error(f"argument --results: {results} is not a folder")
    commands = list(plan.commands(plan.STUDIES[options.name], out, options.workers))
    if options.dry_run:
        print(*map(said, commands), sep="\n")
        return DONE
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(out.absolute() / ".compile_cache"))
    sweep.interrupt_on_signals()
    try:
        status = run(commands)
        if status in (DONE, FAILED):
            keep(commands, out, results)
            status = report.main([str(results)]) or status
        return status
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return PREEMPTED
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR


def said(command: Sequence[str]) -> str:
    return shlex.join(["python", "sweep.py", *command])


def run(commands: Sequence[Sequence[str]]) -> int:
    """Sweep after sweep, up to one that was stopped or refused; returns the exit status."""
    statuses = []
    for i, command in enumerate(commands, 1):
        print(f"[{i} of {len(commands)}] {said(command)}", flush=True)
        statuses.append(process.call([str(ROOT / "sweep.py"), *command]))
        if statuses[-1] not in (DONE, FAILED):
            return statuses[-1]
    return max(statuses)


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: is not UTF-8 text; remove it, and run the command again"
        ) from error


def keep(commands: Sequence[Sequence[str]], out: pathlib.Path, results: pathlib.Path) -> None:
    """Writes what is small of the study: all its trials, and each run's record and curve.

    What else lies in `out`, as from an older plan, is not the study's.
    """
    texts, folders = {}, []
    for command in commands:
        options, overrides = sweep.arguments(command)
        if options.trials:
            name = "_".join(["trials", *options.out.relative_to(out).parts[:-1]])
            texts[results / f"{name}.json"] = _text(options.out / "trials.json")
        else:
            folders += [planned.folder for planned in sweep.planned(options, overrides)]
    texts[results / archive.NAME] = archive.text(out, folders)
    results.mkdir(parents=True, exist_ok=True)
    output.write(texts)
    for file in [*results.glob("trials*.json"), *results.glob("*.svg")]:  # figures are drawn anew
        if file not in texts:
            file.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
