"""HTML helpers, which escape all text."""

from collections.abc import Collection, Sequence
from html import escape

CSS = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 74rem;
       color: #1a1a1a; background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: .2rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-top: 1px solid #ccc; padding-top: .7rem; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .86rem; }
th, td { padding: .25rem .5rem; text-align: right; border-bottom: 1px solid #ddd;
         vertical-align: top; }
th, td { overflow-wrap: normal; } th { font-weight: 600; } td { white-space: nowrap; }
th:first-child, td:first-child, .wrap { text-align: left; }
td:first-child { white-space: normal; min-width: 9rem; }
td.wrap { white-space: normal; } td.wrap:not(:empty) { min-width: 12rem; }
figure { margin: .8rem 0; } figure svg { width: 100%; height: auto; max-width: 46rem; }
figcaption, .small { font-size: .85rem; color: #444; }
li.shown { font-weight: 600; } ul { padding-left: 1.2rem; }
.note { background: #fff6dd; padding: .6rem .8rem; }
.bad { background: #fdecea; padding: .1rem .8rem; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Returns a document that loads no other file."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def section(title: str, content: str, introduction: str = "") -> str:
    """Returns a section with a heading; "" without content."""
    if not content:
        return ""
    first = f'<p class="small">{escape(introduction)}</p>' if introduction else ""
    return f"<h2>{escape(title)}</h2>\n{first}{content}"


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def note(text: str | None) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def items(lines: Sequence[str], shown: Sequence[bool] = ()) -> str:
    """Returns a list; items whose flag in `shown` is set are bold."""
    marks = [' class="shown"' if flag else "" for flag in shown] or [""] * len(lines)
    cells = [f"<li{m}>{escape(t)}</li>" for m, t in zip(marks, lines, strict=True)]
    return f"<ul>{''.join(cells)}</ul>"


def table(head: Sequence[str], lines: Sequence[Sequence[str]], wrap: Collection[int] = (0,)) -> str:
    """Returns a table that scrolls on a narrow screen. Columns in `wrap` contain prose."""

    def cell(tag: str, column: int, text: str) -> str:
        kind = ' class="wrap"' if column in wrap and column else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    body = "".join(
        "<tr>" + "".join(cell("td", i, text) for i, text in enumerate(line)) + "</tr>"
        for line in lines
    )
    top = "".join(cell("th", i, text) for i, text in enumerate(head))
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def picture(svg: str | None, caption: str) -> str:
    """Returns the figure with its caption; "" without a figure."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" if svg else ""
