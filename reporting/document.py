"""The content of report.json, a plain dict."""

from collections.abc import Sequence
from typing import Any

from reporting import batches, compare, ladder, published, rows, summaries
from reporting.collect import Problem
from reporting.rows import Row
from run.record import Run


def build(runs: Sequence[Run], problems: Sequence[Problem]) -> tuple[dict[str, Any], list[Row]]:
    """Returns (report, rows in the same order as report["rows"])."""
    groups = rows.group(runs)
    entries = published.load()
    told = [summaries.summary(row) for row in groups]
    for summary in told:
        summary["published"] = published.beside(summary, entries)
        lost = sum(p.recipe == summary["recipe"] for p in problems)
        if lost:
            runs_are = "runs of this recipe are" if lost > 1 else "run of this recipe is"
            summary["flags"].append(f"{lost} {runs_are} unfinished, lost or unreadable, not in n")
    report = {
        "rows": told,
        "comparisons": compare.compare_all(groups),
        "ladders": _ladders(groups),
        "batches": batches.compare(groups),
        "published": published.table(entries, told),
        "proxy_note": published.proxy_note(told),
        "failed": [_failed(run) for run in runs if run.status != "done"],
        "problems": [{"path": p.path, "message": p.message} for p in problems],
    }
    return report, groups


def _ladders(groups: Sequence[Row]) -> list[dict[str, Any]]:
    recipes: dict[tuple[Any, ...], list[Row]] = {}
    for row in groups:
        if row.first.total_steps is not None and row.first.kind == "run":
            recipes.setdefault((row.name, *row.task), []).append(row)
    ladders = [found for found in recipes.values() if len(found) > 1 and not ladder.mixed(found)]
    return [ladder.summarise(found) for found in ladders]


def _failed(run: Run) -> dict[str, Any]:
    where = f"last evaluated at step {run.curve[-1].step}" if run.curve else "never evaluated"
    return {"path": run.path, "recipe": run.recipe, "seed": run.seed, "status": run.status,
            "why": where}  # fmt: skip
