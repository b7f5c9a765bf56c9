"""README's table of published against ours: python -m reporting.claims writes it anew."""

from __future__ import annotations

from pathlib import Path

from reporting import published
from reporting.runs import read_json

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- claims: python -m reporting.claims -->", "<!-- end of claims -->"


def table() -> str:
    """Markdown: each published claim beside what the committed studies found, or "not run"."""
    rows = [
        row
        for report in sorted((ROOT / "results").glob("*/report.json"))
        if report.parent.name != "demo"
        for row in read_json(report)["rows"]
    ]
    entries = [e for e in published.load() if e["source"].endswith("scalable_shampoo/README.md")]
    lines = ["| recipe | published | ours |", "|---|---|---|"]
    for entry in published.table(entries, rows):
        lines.append(f"| `{entry['label']}` | {entry['published']} | {entry['here']} |")
    return "\n".join(lines)


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
