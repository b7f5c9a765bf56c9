"""A study's README.md and its figures, for the folder that holds its runs.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reporting import figures, html, provenance, screen, verdict
from reporting.rows import Row
from reporting.runs import read_json


def write(path: Path, report: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes `path` and, beside it, the figures that it shows."""
    pictures = drawn(report, rows)
    for name, svg in pictures.items():
        (path.parent / name).write_text(svg + "\n", "utf-8")
    trials = sorted(path.parent.glob("trials*.json"))
    path.write_text(render(report, rows, list(pictures), trials), "utf-8")


def drawn(report: dict[str, Any], rows: Sequence[Row]) -> dict[str, str]:
    """Returns {file name: SVG}: the ladders, curves by task, and the batch sizes."""
    found: dict[str, str | None] = {}
    tasks: dict[Any, list[Row]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(row)
    for (_, batch, _), some in tasks.items():
        found[f"ladder_{batch}.svg"] = figures.ladders(some)
        found[f"curves_{batch}.svg"] = figures.accuracy_curves(some)
    found["batches.svg"] = figures.batches(report["batches"])
    return {name: svg for name, svg in found.items() if svg}


def render(
    report: dict[str, Any], rows: Sequence[Row], pictures: Sequence[str], trials: Sequence[Path]
) -> str:
    """Returns the page."""
    datasets = sorted({row.first.dataset for row in rows})
    lines = [
        f"# {', '.join(datasets)}: what was run, and what it shows",
        "",
        "Written by `report.py --markdown` from `runs.json`, the records and curves of all runs "
        "here; nothing on this page is typed.",
        "",
        report["proxy_note"] or "",
        "",
        "## Verdict",
        "",
        *(f"* {line}" for line in screen.verdict_lines(report["comparisons"])),
        *_batches(report["batches"]),
        *_ladders(report["ladders"]),
        *(f"![{name.removesuffix('.svg')}]({name})\n" for name in pictures),
        *_runs(report["rows"]),
        *_tuning(trials),
        *_cost(rows),
        *_provenance(rows),
        *_failed(report),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for line in lines:
        yield f"| {' | '.join(cell.replace('|', ';') for cell in line)} |"
    yield ""


def _batches(tests: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if tests:
        yield "\n## Does Shampoo's advantage grow with the batch?\n"
        yield "Final accuracy after the same number of examples, seed by seed.\n"
        yield from (f"* {test['sentence']}" for test in tests)
        yield ""
        head = ["examples", "over", *(f"batch {batch:,}" for batch in tests[0]["batches"])]
        yield from table(head, [[f"{t['n_examples']:,}", t["other"], *_points(t)] for t in tests])


def _points(test: Mapping[str, Any]) -> list[str]:
    return [
        f"{100 * a['median']:+.2f} [{100 * a['ci95'][0]:+.2f}, {100 * a['ci95'][1]:+.2f}] points"
        for a in test["advantages"]
    ]


def _ladders(ladders: Sequence[dict[str, Any]]) -> Iterator[str]:
    if ladders:
        yield "\n## Budget ladders\n"
        yield "The smallest number of steps at which the median over seeds reaches the target.\n"
        yield from (f"* {line}" for line in screen.ladder_lines(ladders))
        yield ""


def _runs(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "## Runs\n"
    head = ("recipe", "steps", "n", "reached", "diverged", "steps to target [95 %]",
            "final accuracy [quartiles]", "[95 %]")  # fmt: skip
    for title, found in screen.tasks(rows):
        yield f"{title}\n"
        yield from table(head, [_cells(row) for row in found])


def _cells(row: dict[str, Any]) -> list[str]:
    accuracy = row["final_accuracy"]
    ends = accuracy["ci95"]
    return [
        verdict.row_name(row),
        str(row["total_steps"]),
        str(row["n"]),
        f"{row['n_reached']}/{row['n']}",
        str(row["n_diverged"]),
        screen.steps_cell(row),
        screen.accuracy_cell(row).rpartition(" ")[0] or "not measured",
        "-" if ends is None else "[" + ", ".join(map(screen.fraction, ends)) + "]",
    ]


def _tuning(files: Sequence[Path]) -> Iterator[str]:
    """What the trials chose: each file holds all of them, with their accuracies."""
    if files:
        yield "## Tuning\n"
        yield "Quasi-random trials, the same number for every optimizer, on seeds not used above.\n"
    lines = []
    for file in files:
        for recipe, found in read_json(file).items():
            chosen = found["trials"][found["chosen"]]
            values = ", ".join(f"{k.split('.')[-1]} {v:g}" for k, v in chosen["values"].items())
            n_seeds = str(len(chosen["final_accuracy"]))
            lines.append([f"[{file.name}]({file.name})", recipe, str(len(found["trials"])), n_seeds,
                          values, screen.fraction(chosen["median"])])  # fmt: skip
    if lines:
        head = ("all trials", "recipe", "trials", "seeds each", "chosen", "its median accuracy")
        yield from table(head, lines)


def _cost(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Cost\n"
    yield f"{html.COST}\n"
    lines = []
    for row in rows:
        cost = provenance.cost(row)
        numbers = [html.number(cost[key], 1) for key in ("cpu", "train", "images_per_second")]
        lines.append([row.name, f"{row.first.global_batch_size:,}", str(row.first.total_steps),
                      *numbers])  # fmt: skip
    yield from table(("recipe", "batch", "steps", "CPU-s", "train s", "images/s"), lines)


def _provenance(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Provenance\n"
    found: dict[str, dict[str, None]] = {"commit": {}, "device": {}, "versions": {}}
    for row in rows:
        for key, texts in found.items():
            texts[provenance.origins(row)[key]] = None
    for key, texts in found.items():
        yield f"* {key}: {'; '.join(texts)}"
    yield ""


def _failed(report: dict[str, Any]) -> Iterator[str]:
    lines = screen.failed_lines(report)
    if lines:
        yield "## Failed runs\n"
        yield from (f"* {line}" for line in lines)
