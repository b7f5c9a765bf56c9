"""README's table, published, predicted and ours: python -m reporting.claims writes it anew."""

from __future__ import annotations

from pathlib import Path

from pod import predict
from reporting import published
from reporting.runs import read_json

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- claims: python -m reporting.claims -->", "<!-- end of claims -->"


def table() -> str:
    """Markdown: each published claim, its predicted time, and what our studies found, if run."""
    rows = [
        row
        for report in sorted((ROOT / "results").glob("*/report.json"))
        if report.parent.name != "demo"
        for row in read_json(report)["rows"]
    ]
    entries = [e for e in published.load() if e["source"].endswith("scalable_shampoo/README.md")]
    seconds = predicted()
    lines = ["| recipe | published | predicted time | ours |", "|---|---|---|---|"]
    for entry in published.table(entries, rows):
        cells = (entry["published"], seconds.get(entry["recipe"], "none"), entry["here"])
        lines.append(f"| `{entry['label']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def predicted() -> dict[str, str]:
    """The time of a recipe's run on a v3-256 as results/pod_plan estimates it, by recipe."""
    plans = [read_json(file) for file in sorted((ROOT / "results" / "pod_plan").glob("*.json"))]
    found = predict.predictions(plans)
    words = {one.recipe: f"{one.anchored_seconds:.0f} s (estimate)" for one in found}
    return words | {predict.ANCHOR: "the anchor of the others"}


def replaced(page: str, begin: str, end: str, content: str) -> str:
    """The page with other content between its two markers."""
    before, rest = page.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def inserted(readme: str) -> str:
    """The README with its table replaced by the present one."""
    return replaced(readme, BEGIN, END, table())


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(inserted(path.read_text("utf-8")), "utf-8")
