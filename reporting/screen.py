"""Renders the report for the console, in at most 100 columns."""

import textwrap
from collections.abc import Sequence
from typing import Any

from reporting.verdict import row_name

WIDTH = 100
MAX_REFUSED = 12
NAME = 20
HEAD = (
    f"{'':{NAME}} {'':21}  {'A: steps to target':<19} {'B: accuracy at budget':<24} s to target\n"
    f"{'recipe':<{NAME}} budget   n reach div  {'median [95 %]':<19} "
    f"{'median [q25, q75] claim':<24}median olymp."
)


def render(report: dict[str, Any]) -> str:
    """Returns the whole report as text."""
    parts = []
    for title, rows in tasks(report["rows"]):
        parts.append(_table(title, rows))
    parts.append(_section("Verdicts", verdict_lines(report["comparisons"])))
    parts.append(_section("Budget ladders", ladder_lines(report["ladders"])))
    batches = [test["sentence"] for test in report["batches"]]
    parts.append(_section("Does the advantage grow with the batch?", batches))
    parts.append(_section("Published results beside ours", published_lines(report["published"])))
    if report["proxy_note"]:
        parts.append(_wrap(report["proxy_note"]))
    parts.append(_section("Failed runs", failed_lines(report)))
    return "\n\n".join(part for part in parts if part) + "\n"


def tasks(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Returns rows by task: data set, batch size, target."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        batch = row["global_batch_size"]
        title = f"{row['dataset']}, batch {'not known' if batch is None else f'{batch:,}'}, "
        groups.setdefault(f"{title}target {row['target_accuracy']:.4g}", []).append(row)
    return list(groups.items())


def _table(title: str, rows: Sequence[dict[str, Any]]) -> str:
    lines, notes = [title, HEAD, "-" * WIDTH], []  # type: tuple[list[str], list[str]]
    for row in rows:
        lines += _lines(row, _marks(row["flags"], notes))
    return "\n".join([*lines, *(_wrap(f"[{i}] {note}", "    ") for i, note in enumerate(notes, 1))])


def _marks(flags: Sequence[str], notes: list[str]) -> str:
    notes += [flag for flag in flags if flag not in notes]
    return " ".join(f"[{notes.index(flag) + 1}]" for flag in flags)


def _lines(row: dict[str, Any], marks: str) -> list[str]:
    """Returns the lines of a row: a long name above, the marks of its flags below."""
    name, budget, n, reached, diverged = counts(row)
    above = [] if len(name) <= NAME else textwrap.wrap(name, WIDTH)
    seconds = row["seconds_to_target"]
    line = (
        f"{'' if above else name:<{NAME}} {budget:>6} {n:>3} {reached:>5} "
        f"{diverged:>3}  {steps_cell(row):<19} {accuracy_cell(row):<24}"
        f"{_seconds(seconds['median']):>6} {_seconds(seconds['olympic_mean']):>6}"
    )
    return [*above, line, *([f"{'':{NAME}} flags {marks}"] if marks else [])]


def counts(row: dict[str, Any]) -> list[str]:
    """Returns the cells before the measures: recipe, budget, n, reached, diverged."""
    budget = "?" if row["total_steps"] is None else str(row["total_steps"])
    n = str(row["n"])
    return [row_name(row), budget, n, f"{row['n_reached']}/{n}", str(row["n_diverged"])]


def steps_cell(row: dict[str, Any]) -> str:
    """Returns measure A as text; a median that is not reached is beyond the last step."""
    steps, last = row["steps_to_target"], row["last_step"]
    unreached = f">{last:.0f}" if last else "?"
    if steps["median"] is None and row["n_reached"] * 2 >= row["n"]:
        return "not known"
    median = unreached if steps["median"] is None else f"{steps['median']:.0f}"
    if steps["ci95"] is None:
        return median
    ends = [unreached if end is None else f"{end:.0f}" for end in steps["ci95"]]
    return f"{median} [{', '.join(ends)}]"


def accuracy_cell(row: dict[str, Any]) -> str:
    """Returns measure B as text, and whether its median reaches the target."""
    accuracy = row["final_accuracy"]
    if not accuracy["n_measured"]:
        return "not measured"
    cells = [fraction(accuracy[key]) for key in ("median", "q25", "q75")]
    reaches = {True: "yes", False: "no", None: "?"}[row["claim"]["reaches_target"]]
    return f"{cells[0]} [{cells[1]}, {cells[2]}] {reaches}"


def fraction(value: float | None) -> str:
    """Returns four digits without the leading zero; a diverged run has no accuracy."""
    return "div." if value is None else f"{value:.4f}".lstrip("0") if value < 1 else "1.000"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def verdict_lines(comparisons: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the sentences. Pairs that cannot be compared come last, once for both measures."""
    told = [t["sentence"] for t in comparisons if not t["verdict"].startswith("not ")]
    refused: dict[str, None] = {}
    for test in comparisons:
        if test["verdict"].startswith("not "):
            refused[test["sentence"]] = None
    lines = [*told, *list(refused)[:MAX_REFUSED]]
    if len(refused) > MAX_REFUSED:
        lines.append(f"{len(refused) - MAX_REFUSED} further pairs are not comparable (report.json)")
    return lines


def ladder_lines(ladders: Sequence[dict[str, Any]]) -> list[str]:
    """Returns one line per ladder: the smallest and interpolated budget that reach the target."""
    lines = []
    for ladder in ladders:
        budgets, smallest = ladder["budgets"], ladder["smallest_budget"]
        found = f"smallest budget that reaches the target: {smallest}"
        if smallest is None:
            found = f"no budget up to {budgets[-1]} reaches the target"
        elif not ladder["at_the_smallest"]:
            found += f" (interpolated: {ladder['interpolated']:.1f})"
        lines.append(f"{ladder['recipe']} ({ladder['dataset']}): {found}")
    return lines


def published_lines(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Returns a line for each published recipe, and for each published log among the runs."""
    shown = [e for e in entries if "accuracies" not in e or e["here"] != "not run"]
    lines = [f"{e['label']}: {e['published']}; ours: {e['here']}" for e in shown]
    if len(shown) < len(entries):
        lines.append(f"{len(entries) - len(shown)} published MLPerf results are shown by --html")
    return lines


def failed_lines(report: dict[str, Any]) -> list[str]:
    """Returns one line for each run that diverged, was aborted or could not be read."""
    failed = [f"{run['status']}: {run['path']} ({run['why']})" for run in report["failed"]]
    return failed + [f"not counted: {p['path']}: {p['message']}" for p in report["problems"]]


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(_wrap("- " + line, "  ") for line in lines)]) if lines else ""


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
