"""report.html: one self-contained file that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from reporting import figures, screen
from reporting.rows import Row

CSS = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 62rem;
       color: #1a1a1a; background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: .2rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem;
     border-top: 1px solid #ccc; padding-top: .7rem; } h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .86rem; }
th, td { padding: .25rem .55rem; text-align: right; border-bottom: 1px solid #ddd;
         white-space: nowrap; overflow-wrap: normal; }
th:first-child, td:first-child { text-align: left; } td.text, th.text { text-align: left; }
td.wrap { white-space: normal; min-width: 16rem; text-align: left; }
figure { margin: .8rem 0; } figure svg { width: 100%; height: auto; max-width: 46rem; }
figcaption, .small { font-size: .85rem; color: #444; }
li.shown { font-weight: 600; } .note { background: #fff6dd; padding: .6rem .8rem; }
.bad { background: #fdecea; padding: .6rem .8rem; } ul { padding-left: 1.2rem; }
"""


def render(report: dict[str, Any], rows: Sequence[Row]) -> str:
    """Returns the page; `rows` are the runs behind report["rows"], in the same order."""
    body = [
        "<h1>Which optimizer needs fewer steps?</h1>",
        verdicts(report),
        note(report["proxy_note"]),
        tables(report["rows"]),
        plots(rows),
        section("Published, and found here", published_table(report["published"])),
        section("Failed runs", failed(report)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Optimizer comparison</title><style>{CSS}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}" if content else ""


def note(text: str | None) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def items(lines: Sequence[str], shown: Sequence[bool] = ()) -> str:
    marks = [' class="shown"' if flag else "" for flag in shown] or [""] * len(lines)
    cells = [f"<li{m}>{escape(t)}</li>" for m, t in zip(marks, lines, strict=True)]
    return f"<ul>{''.join(cells)}</ul>"


def table(head: Sequence[str], lines: Sequence[Sequence[str]], wrap: Sequence[int] = ()) -> str:
    """Returns a table that scrolls by itself on a narrow screen; cells are escaped here."""
    cells = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = ""
    for line in lines:
        marked = (('<td class="wrap">' if i in wrap else "<td>") + escape(c) + "</td>"
                  for i, c in enumerate(line))  # fmt: skip
        body += f"<tr>{''.join(marked)}</tr>"
    return f'<div class="scroll"><table><tr>{cells}</tr>{body}</table></div>'


def verdicts(report: dict[str, Any]) -> str:
    """Returns the comparisons, shown differences first and in bold."""
    tests = report["comparisons"]
    if not tests:
        return "<p>One recipe only: nothing to compare.</p>"
    silent = ("not ", "no ")
    order = sorted(tests, key=lambda t: [t["verdict"].startswith(s) for s in silent])
    shown = [not t["verdict"].startswith(silent) for t in order]
    return items([t["sentence"] for t in order], shown)


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Returns one table for each task, measures A and B in separate columns."""
    head = ("recipe", "budget", "n", "reached", "diverged", "A: steps to target [95 %]",
            "B: accuracy at budget [quartiles], reaches target", "s to target", "olympic mean s",
            "flags")  # fmt: skip
    parts = []
    for title, found in screen.tasks(rows):
        lines = [_cells(row) for row in found]
        parts.append(f"<h3>{escape(title)}</h3>" + table(head, lines, wrap=(len(head) - 1,)))
    return section("Runs", "".join(parts))


def _cells(row: dict[str, Any]) -> list[str]:
    name = row["recipe"] + (f" [{row['variant']}]" if row["variant"] else "")
    seconds = row["seconds_to_target"]
    return [
        name,
        "?" if row["total_steps"] is None else str(row["total_steps"]),
        str(row["n"]),
        f"{row['n_reached']}/{row['n']}",
        str(row["n_diverged"]),
        screen.steps_cell(row),
        screen.accuracy_cell(row),
        *(("-" if s is None else f"{s:.1f}") for s in seconds.values()),
        "; ".join(row["flags"]),
    ]


def plots(rows: Sequence[Row]) -> str:
    """Returns the figures of each task."""
    tasks: dict[Any, list[Row]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(row)
    parts = []
    for (dataset, batch, _), found in tasks.items():
        title = f"{dataset}, batch {batch or 'not known'}"
        pictures = [
            (figures.accuracy_curves(found), "Accuracy: median over seeds, band from the lower to "
             "the upper quartile; of a ladder its largest budget."),
            (figures.survival(found), "Share of runs not yet at the target (Kaplan-Meier); "
             "ticks: runs that ended without reaching it."),
            (figures.medians_and_intervals(found), "Measure A: steps to the target."),
        ]  # fmt: skip
        drawn = [picture(svg, caption) for svg, caption in pictures if svg]
        parts.append(f"<h3>{escape(title)}</h3>" + "".join(drawn) if drawn else "")
    return section("Figures", "".join(parts))


def picture(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def published_table(entries: Sequence[dict[str, Any]]) -> str:
    lines = [[e["label"], e["published"], e["here"], e["source"]] for e in entries]
    return table(("recipe or system", "published", "here", "source"), lines, wrap=(1, 2, 3))


def failed(report: dict[str, Any]) -> str:
    lines = screen.failed_lines(report)
    return f'<div class="bad">{items(lines)}</div>' if lines else "<p>None.</p>"
