"""Renders report.html, a self-contained file that starts with the verdict."""

from collections.abc import Sequence
from typing import Any

from reporting import figures, metrics, provenance, screen, verdict
from reporting.elements import heading, items, note, page, picture, section, table
from reporting.rows import Row


def render(report: dict[str, Any], rows: Sequence[Row]) -> str:
    """Returns the page. `rows` has the order of report["rows"]."""
    tasks: dict[Any, list[Row]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(row)
    groups = list(tasks.values())
    return page(
        "Optimizer comparison",
        [
            "<h1>Which optimizer needs fewer steps?</h1>",
            verdicts(report),
            note(report["proxy_note"]),
            claims(report),
            section("Runs", run_tables(report["rows"]), MEASURES),
            section("Budget ladders", ladders(report["ladders"]), LADDERS),
            section("Batch sizes", batches(report["batches"]), BATCHES),
            section("Figures", "".join(map(plots, groups))),
            section("Seeds needed", power(report["rows"]), POWER),
            section("Cost", costs(rows), COST),
            section("Published results beside ours", published(report["published"])),
            section("Provenance", "".join(map(origins, groups))),
            section("Failed runs", failed(report) or "<p>None.</p>"),
        ],
    )


MEASURES = (
    "A: steps to the first evaluation at or above the target "
    "(Kaplan-Meier median, which includes runs that diverged or did not reach it). B: accuracy at "
    "the end of the budget, where a diverged run counts as worst. Intervals: 95 %, bootstrap."
)
VERDICTS = {
    "ladder": "Steps needed, by budget ladders",
    "A": "Steps to the target (measure A)",
    "B": "Accuracy at the budget (measure B)",
}
LADDERS = "The smallest budget whose median final accuracy reaches the target."
BATCHES = "Shampoo's advantage in final accuracy after the same number of examples."
POWER = (
    "Seeds per recipe that show x % fewer steps with 80 % power in a two-sided rank test at 5 %, "
    "if the other recipe has the same spread. A normal approximation from the runs that reached "
    "the target; below ten seeds it may be two too large, and it is never below 6."
)
COST = "Medians over runs. On a shared machine, wall times are unreliable."


def verdicts(report: dict[str, Any]) -> str:
    """Returns the comparisons by measure; differences that are shown come first, in bold."""
    tests = report["comparisons"]
    parts = [] if tests else ["<p>There is only one recipe, so nothing is compared.</p>"]
    for measure, title in VERDICTS.items():
        found = [test for test in tests if test["measure"] == measure]
        told = [test for test in found if not test["verdict"].startswith("not ")]
        told.sort(key=lambda test: test["verdict"].startswith("no "))
        shown = [not test["verdict"].startswith("no ") for test in told]
        if told:
            parts.append(heading(title) + items([test["sentence"] for test in told], shown))
    refused = screen.verdict_lines([t for t in tests if t["verdict"].startswith("not ")])
    if refused:
        parts.append(heading("Not compared") + items(refused))
    return "".join(parts)


def claims(report: dict[str, Any]) -> str:
    """Returns whether each row's median reaches the target. Ladders have their own table."""
    laddered = {(ladder["recipe"], ladder["dataset"]) for ladder in report["ladders"]}
    rows = [r for r in report["rows"] if (verdict.row_name(r), r["dataset"]) not in laddered]
    lines = [sentence for row in rows if (sentence := verdict.claim_sentence(row))]
    return heading("Does the median over seeds reach the target?") + items(lines) if lines else ""


def run_tables(rows: Sequence[dict[str, Any]]) -> str:
    """Returns one table for each task, measures A and B in separate columns."""
    head = ["recipe", "budget", "n", "reached", "div.", "A: steps to target [95 %]"]
    head += ["B: final accuracy [quartiles] [95 %]", "target", "s to target", "olympic s", "flags"]
    parts = []
    for title, found in screen.tasks(rows):
        parts.append(heading(title) + table(head, [_cells(row) for row in found], wrap={10}))
    return "".join(parts)


def _cells(row: dict[str, Any]) -> list[str]:
    accuracy, seconds = row["final_accuracy"], row["seconds_to_target"]
    b, _, claim = screen.accuracy_cell(row).rpartition(" ")
    if accuracy["ci95"]:
        b += " [" + ", ".join(screen.fraction(end) for end in accuracy["ci95"]) + "]"
    words = {"yes": "reached", "no": "not reached"}.get(claim, "-")
    return [
        *screen.counts(row),
        screen.steps_cell(row),
        b if accuracy["n_measured"] else "not measured",
        words,
        *(number(s, 1) for s in seconds.values()),
        "; ".join(row["flags"]),
    ]


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def ladders(found: Sequence[dict[str, Any]]) -> str:
    head = ("recipe", "data set", "smallest budget", "interpolated", "budgets", "medians")
    lines = []
    for ladder in found:
        smallest, interpolated = ladder["smallest_budget"], ladder["interpolated"]
        lines.append(
            [
                ladder["recipe"],
                ladder["dataset"],
                f">{ladder['budgets'][-1]}" if smallest is None else str(smallest),
                "at most the smallest" if ladder["at_the_smallest"] else number(interpolated, 1),
                " ".join(map(str, ladder["budgets"])),
                " ".join(screen.fraction(m) for m in ladder["medians"]),
            ]
        )
    return table(head, lines) if lines else ""


def batches(tests: Sequence[dict[str, Any]]) -> str:
    if not tests:
        return ""
    drawn = picture(figures.batches(tests), "Advantage: median over seeds, 95 % interval.")
    return items([test["sentence"] for test in tests]) + drawn


def plots(rows: Sequence[Row]) -> str:
    """Returns the figures of one task."""
    dataset, batch, _ = rows[0].task
    band = "median over seeds with quartiles; of a ladder, the largest budget"
    pictures = [
        picture(figures.accuracy_curves(rows), f"Accuracy: {band}."),
        picture(figures.survival(rows), "Share of runs not yet at the target (Kaplan-Meier); "
                "ticks mark runs that ended without reaching it."),
        picture(figures.medians_and_intervals(rows), "Measure A: steps to the target."),
        picture(figures.learning_rates(rows), "Learning rate as logged."),
        picture(figures.training_loss(rows), "Training loss (median over seeds)."),
    ]  # fmt: skip
    zero = []
    for counter in sorted({c for row in rows for c in metrics.counters(row)}):
        if any(metrics.ever(row, counter) for row in rows):
            drawn = figures.counter(rows, counter)
            pictures.append(picture(drawn, f"{counter}: median over seeds."))
        else:
            zero.append(counter)
    if zero:
        pictures.append(note(f"Zero in every run: {', '.join(zero)}."))
    return heading(f"{dataset}, batch {batch or 'not known'}") + "".join(pictures)


def power(rows: Sequence[dict[str, Any]]) -> str:
    known = [row for row in rows if row["power"]["seeds"]]
    if not known:
        return ""
    head = ["recipe", "budget", "spread of log steps", *known[0]["power"]["seeds"]]
    lines = [
        [verdict.row_name(row), str(row["total_steps"] or "?"), f"{row['power']['log_sd']:.3f}",
         *map(str, row["power"]["seeds"].values())]
        for row in known
    ]  # fmt: skip
    return table(head, lines)


def costs(rows: Sequence[Row]) -> str:
    """Returns the cost of our runs; logs have none."""
    ours = [row for row in rows if row.first.kind == "run"]
    head = ("recipe", "budget", "init s", "train s", "eval s", "CPU-s", "images/s")
    lines = []
    for row in ours:
        cost = provenance.cost(row)
        cells = [number(value, 1) for value in cost.values()]
        lines.append([row.name, str(row.first.total_steps), *cells])
    return table(head, lines) if lines else ""


def published(entries: Sequence[dict[str, Any]]) -> str:
    lines = [[e["label"], e["published"], e["here"], e["source"]] for e in entries]
    return table(("recipe or system", "published", "ours", "source"), lines, wrap={1, 2, 3})


def origins(rows: Sequence[Row]) -> str:
    """Returns, for one task, the settings that differ, then code, versions and devices."""
    shown = figures.largest_budgets(rows)
    dataset, batch, _ = rows[0].task
    differences = provenance.config_differences(shown)
    parts = [heading(f"{dataset}, batch {batch or 'not known'}: settings that differ")]
    if differences:
        lines = [[field, *values] for field, values in differences]
        parts.append(table(("field", *(row.name for row in shown)), lines))
    known = [(row.name, provenance.origins(row)) for row in shown if row.first.kind == "run"]
    keys = ("fields", "commit", "device", "versions")
    head = ("recipe", "unverified or assumed fields", "commit", "devices", "versions")
    if known:
        lines = [[name, *(origin[key] for key in keys)] for name, origin in known]
        parts.append(table(head, lines, wrap={1, 3, 4}))
    return "".join(parts) if len(parts) > 1 else ""


def failed(report: dict[str, Any]) -> str:
    lines = screen.failed_lines(report)
    return f'<div class="bad">{items(lines)}</div>' if lines else ""
