"""Runs MLCommons' checkers on finished runs: python -m mlperf.check DIR [DIR...]

Every run's log goes through the compliance checker (rulesets 1.0.0 and 4.0.0; there are none for
ResNet after 4.0.0), every recipe with five runs or more through the RCP checker (1.0.0).

Exit status: 0 all logs comply, and closed-division recipes keep the reference convergence; 1 not
so; 2 user error.
"""

import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlperf_logging.compliance_checker import mlp_compliance
from mlperf_logging.rcp_checker import rcp_checker

from errors import USER_ERROR, OneLineParser, UserError
from mlperf import lines as mllog
from mlperf.log import TRAIN_EXAMPLES
from mlperf.rules import N_RUNS
from run import files

RULESETS = ("1.0.0", "4.0.0")


@dataclass(frozen=True)
class LogFile:
    """A log and its header."""

    path: Path
    group: str  # our recipe, or the folder of a submission
    division: str
    train_samples: float | None

    @property
    def is_proxy(self) -> bool:
        """Whether the run trained on anything but ImageNet, apart from a dropped remainder."""
        return abs((self.train_samples or 0) / TRAIN_EXAMPLES - 1) > 0.02


def find(roots: Sequence[Path]) -> list[LogFile]:
    """Returns the logs below `roots`: result.txt of our runs, result_*.txt of submissions.

    Raises:
      UserError: a missing folder, or no log at all.
    """
    found = []
    for root in roots:
        if not root.is_dir():
            raise UserError(f"DIR={root}: there is no such folder; give a folder of runs")
        found += [_describe(path) for path in sorted(root.rglob("result*.txt"))]
    if not found:
        places = " ".join(map(str, roots))
        raise UserError(f"DIR={places}: no result.txt below it; give a folder of finished runs")
    return found


def _describe(path: Path) -> LogFile:
    group = str(path.parent)
    if (path.parent / "run.json").exists():
        group = str(files.read_json(path.parent / "run.json").get("recipe", group))
    try:
        log = mllog.read(path)[0]
    except ValueError:  # the checker reports what is wrong
        return LogFile(path, group, "unknown", None)
    division, samples = (log.first(key) for key in ("submission_division", "train_samples"))
    size = mllog.as_number(samples.value) if samples else None
    return LogFile(path, group, str(division.value) if division else "unknown", size)


def complies(path: Path, ruleset: str) -> list[str]:
    """Returns the compliance checker's complaints about one log; [] if it passes."""
    mlp_compliance.enqueued_configs.clear()  # the checker's queue is global to its module
    checker = mlp_compliance.make_checker("training", ruleset, quiet=True, werror=False)
    try:
        valid = checker.check_file(str(path), f"training_{ruleset}/common.yaml")
    except Exception as error:  # the checker evaluates rules on any content of the log
        return [f"the checker fails on it: {type(error).__name__}: {error}"]
    messages = [*checker.overwritable.values(), *checker.not_overwritable]
    return [] if valid else [str(message).splitlines()[0] for message in messages]


def converges(files: Sequence[LogFile]) -> tuple[bool, str]:
    """Returns the result of the RCP checker for the first five logs of one recipe."""
    with tempfile.TemporaryDirectory() as folder:
        for i, file in enumerate(files[:N_RUNS]):
            shutil.copy(file.path, Path(folder) / f"result_{i}.txt")
        try:
            passed, message, _ = rcp_checker.check_directory(
                folder, "training", RULESETS[0], False, False, rcp_pass="pruned_rcps"
            )
        except Exception as error:
            return False, f"the checker fails on them: {type(error).__name__}: {error}"
    return bool(passed), str(message)


def check(roots: Sequence[Path]) -> tuple[list[str], bool]:
    """Returns (lines to print, whether everything passes)."""
    files, passes = find(roots), True
    lines = []
    for file in files:
        cells = []
        for ruleset in RULESETS:
            complaints = complies(file.path, ruleset)
            passes &= not complaints
            cells.append(f"{ruleset} {'FAILED: ' + complaints[0] if complaints else 'SUCCESS'}")
        lines.append(f"{file.path}: {file.division} division, {', '.join(cells)}")
    groups: dict[str, list[LogFile]] = {}
    for file in files:
        groups.setdefault(file.group, []).append(file)
    for group, members in groups.items():
        line, ok = _convergence(group, members)
        passes &= ok
        lines.append(line)
    return lines, passes


def _convergence(group: str, files: Sequence[LogFile]) -> tuple[str, bool]:
    """Returns a line about a recipe's reference convergence, and whether the check passes."""
    if any(file.is_proxy for file in files):
        return f"{group}: not a submission: a proxy data set; no reference convergence", True
    if len(files) < N_RUNS:
        return f"{group}: not a submission yet: {len(files)} of {N_RUNS} runs", True
    passed, message = converges(files)
    closed = all(file.division == "closed" for file in files)
    note = "" if closed else " (open division: for information, not required)"
    words = "PASSED" if passed else "FAILED"
    return f"{group}: reference convergence {RULESETS[0]} {words}: {message}{note}", (
        passed or not closed
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m mlperf.check", description=__doc__.split("\n")[0])
    parser.add_argument("dirs", nargs="+", metavar="DIR", type=Path)
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # the checkers log to the root logger as they go
    try:
        lines, passes = check(options.dirs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    finally:
        logging.disable(logging.NOTSET)
    print("\n".join(lines))
    return 0 if passes else 1


if __name__ == "__main__":
    sys.exit(main())
