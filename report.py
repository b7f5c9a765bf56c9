"""Compares finished runs, or MLPerf logs: python report.py DIR [DIR...] [--json=FILE] [--html=FILE]

Prints the table and the verdicts. The flags also write report.json, a self-contained report.html,
and a page of Markdown with its figures beside it. Without flags, `python report.py results/fashion`
writes README.md and its figures, because the folder contains the archive of a study (runs.csv).
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from errors import DONE, USER_ERROR, OneLineParser, UserError
from reporting import archive, collect, document, output, screen


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 2 user error."""
    parser = OneLineParser(prog="report.py", description=__doc__.split("\n")[0])
    parser.add_argument("dirs", nargs="+", metavar="DIR", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--html", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    outputs = options.json, options.html, options.markdown
    if not any(outputs) and len(options.dirs) == 1 and archive.is_study(options.dirs[0]):
        outputs = None, None, options.dirs[0] / "README.md"
    try:
        make_report(options.dirs, *outputs)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    return DONE


def make_report(
    dirs: Sequence[Path],
    json_path: Path | None = None,
    html_path: Path | None = None,
    markdown_path: Path | None = None,
) -> None:
    """Reads, prints, and writes all files or none.

    Raises:
      UserError: nothing to report, or a file that cannot be written.
      OSError: the disk is full; the files are those of before.
    """
    for path in (json_path, html_path, markdown_path):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UserError(f"FILE={path}: its folder must exist and it must not be a folder")
    runs, problems = collect.collect(dirs)
    if not runs:
        for problem in problems:
            print(f"not counted: {problem.path}: {problem.message}")
        places = " ".join(map(str, dirs))
        raise UserError(f"DIR={places}: no usable run.json or MLPerf result*.txt is below it")
    report, rows = document.build(runs, problems)
    print(screen.render(report), end="")
    texts: dict[Path, str] = {}
    if json_path is not None:
        texts[json_path] = json.dumps(report, indent=1, allow_nan=False) + "\n"
    if html_path is not None:
        from reporting import html  # matplotlib is slow to start and needed here alone

        texts[html_path] = html.render(report, rows)
    if markdown_path is not None:
        from reporting import markdown  # as html

        texts |= markdown.page(markdown_path, report, rows)
    output.write(texts)
    for path in filter(None, (json_path, html_path, markdown_path)):
        print(f"written: {path}")


if __name__ == "__main__":
    sys.exit(main())
