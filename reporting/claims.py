"""README's two tables, written anew by python -m reporting.claims.

The published claims beside what is predicted and what was run; and what the studies found.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pod import predict
from reporting import markdown_table, published
from reporting.runs import read_json

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- claims: python -m reporting.claims -->", "<!-- end of claims -->"
STUDIES = "<!-- studies: python -m reporting.claims -->", "<!-- end of studies -->"


def reports() -> dict[str, dict[str, Any]]:
    """The committed reports, by the name of their folder."""
    files = sorted((ROOT / "results").glob("*/report.json"))
    return {file.parent.name: read_json(file) for file in files if file.parent.name != "demo"}


def table() -> str:
    """Markdown: each published claim, its predicted time, and what our studies found, if run."""
    rows = [row for report in reports().values() for row in report["rows"]]
    entries = [e for e in published.load() if e["source"].endswith("scalable_shampoo/README.md")]
    seconds = predicted()
    lines = [
        (f"`{e['label']}`", e["published"], seconds.get(e["recipe"], "none"), e["here"])
        for e in published.table(entries, rows)
    ]
    return "\n".join(markdown_table.table(("recipe", "published", "predicted time", "ours"), lines))


def predicted() -> dict[str, str]:
    """The time of a recipe's run on a v3-256 as results/pod_plan estimates it, by recipe."""
    plans = [read_json(file) for file in sorted((ROOT / "results" / "pod_plan").glob("*.json"))]
    found = predict.predictions(plans)
    seconds = {one.recipe: one.anchored_seconds for one in found}
    words = {recipe: f"{s:.0f} s (estimate)" for recipe, s in seconds.items() if s is not None}
    return words | {predict.ANCHOR: "the anchor of the others"}


def studies() -> str:
    """Markdown: the steps that each optimizer needed, by study, and what the batch size changed."""
    committed = reports()
    every = {name: _longest_ladders(report) for name, report in committed.items()}
    found = {name: ladders for name, ladders in every.items() if ladders}
    names = list(dict.fromkeys(_optimizer(ladder) for of in found.values() for ladder in of))
    rows = []
    for name, ladders in found.items():
        steps = {_optimizer(ladder): _steps(ladder) for ladder in ladders}
        target = f"{100 * ladders[0]['target_accuracy']:g} % on {ladders[0]['dataset']}"
        rows.append([f"[{target}](results/{name}/README.md)", *(steps.get(n, "-") for n in names)])
    lines = markdown_table.table(("steps to a median of", *names), rows)
    for name, report in committed.items():
        if tests := report["batches"]:
            counts = collections.Counter(test["verdict"] for test in tests)
            said = ", ".join(f"{verdict} in {n}" for verdict, n in counts.most_common())
            batches = tests[0]["batches"]
            lines += [
                "",
                f"Does Shampoo's advantage grow with the batch? From {batches[0]:,} to "
                f"{batches[-1]:,}, over {len(tests)} comparisons: {said} "
                f"([all of them](results/{name}/README.md)).",
            ]
    return "\n".join(lines)


def _longest_ladders(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    longest = max((len(ladder["budgets"]) for ladder in report["ladders"]), default=0)
    return [ladder for ladder in report["ladders"] if len(ladder["budgets"]) == longest]


def _optimizer(ladder: Mapping[str, Any]) -> str:
    return f"`{ladder['recipe'].partition(':')[0]}`"


def _steps(ladder: Mapping[str, Any]) -> str:
    if ladder["smallest_budget"] is None:
        return f"over {ladder['budgets'][-1]}"
    if ladder["at_the_smallest"]:
        return f"{ladder['budgets'][0]} or fewer"
    return f"{ladder['interpolated']:.1f}"


def replaced(page: str, begin: str, end: str, content: str) -> str:
    """The page with other content between its two markers."""
    before, rest = page.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def inserted(readme: str) -> str:
    """The README with its tables replaced by the present ones."""
    return replaced(replaced(readme, BEGIN, END, table()), *STUDIES, studies())


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(inserted(path.read_text("utf-8")), "utf-8")
