"""Figures of the report as SVG text. Equal runs give equal bytes."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reporting import inference, metrics
from reporting.rows import Row
from run.record import Run

# A fixed colour for each optimizer (Okabe and Ito's palette: safe for colour-blind readers).
COLOURS = {"lars": "#0072B2", "nesterov": "#E69F00", "shampoo": "#009E73", "sm3": "#CC79A7"}
OTHERS = ("#D55E00", "#56B4E9", "#999999", "#6A3D9A", "#8C564B", "#111111")
DASHES = ("-", "--", ":", "-.")
STYLE: dict[Any, Any] = {"svg.hashsalt": "report", "svg.fonttype": "path", "font.size": 10,
         "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip


def styles(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """Returns {row name: (colour, dash)}: a colour per optimizer, a dash per recipe."""
    found: dict[str, tuple[str, str]] = {}
    used: dict[str, int] = {}
    others = iter(OTHERS * len(rows))
    unknown: dict[str, str] = {}
    for row in rows:
        optimizer = row.first.optimizer
        if row.name in found:
            continue
        if optimizer not in COLOURS and optimizer not in unknown:
            unknown[optimizer] = next(others)
        colour = COLOURS.get(optimizer) or unknown[optimizer]
        found[row.name] = (colour, DASHES[used.get(optimizer, 0) % len(DASHES)])
        used[optimizer] = used.get(optimizer, 0) + 1
    return found


def svg(figure: Figure) -> str:
    """Returns the figure as an <svg> element without a date, and closes the figure."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def axes(x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Returns an empty figure of 7 x 3.6 inches with labelled axes."""
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(7, 3.6))
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.grid(alpha=0.25)
    return figure, ax


def largest_budgets(rows: Sequence[Row]) -> list[Row]:
    """Returns the row with the largest budget of each recipe; all budgets would hide each other."""
    kept: dict[str, Row] = {}
    for row in rows:
        if row.name not in kept or (row.first.total_steps or 0) > (
            kept[row.name].first.total_steps or 0
        ):
            kept[row.name] = row
    return list(kept.values())


def accuracy_curves(rows: Sequence[Row]) -> str | None:
    """Returns median curves over seeds with the band from the lower to the upper quartile."""
    rows = [row for row in largest_budgets(rows) if any(run.curve for run in row.runs)]
    if not rows:
        return None
    with plt.rc_context(STYLE):
        figure, ax = axes("step", "accuracy")
        for row in rows:
            colour, dash = styles(rows)[row.name]
            steps, quartiles = accuracy_quartiles(row)
            label = f"{row.name}, {row.first.total_steps or '?'} steps, n = {row.n}"
            ax.plot(steps, quartiles[1], dash, color=colour, label=label)
            ax.fill_between(steps, quartiles[0], quartiles[2], color=colour, alpha=0.2, linewidth=0)
        _target_line(ax, rows[0])
        ax.legend(frameon=False, fontsize=8, loc="best")
        return svg(figure)


def accuracy_quartiles(row: Row) -> tuple[list[int], np.ndarray]:
    """Returns (steps, [3, k] quartiles of the accuracy over the runs evaluated there).

    A diverged run stays in, at 0 from its end on: else the curve would be that of the others.
    """
    curves = [{p.step: p.accuracy for p in run.curve} for run in row.runs]
    steps = sorted(set().union(*curves))
    for run, curve in zip(row.runs, curves, strict=True):
        if run.status == "diverged":
            curve |= {step: 0.0 for step in steps if step > max(curve, default=0)}
    values = [[curve[step] for curve in curves if step in curve] for step in steps]
    return steps, np.array([np.quantile(v, [0.25, 0.5, 0.75]) for v in values]).T


def _target_line(ax: Axes, row: Row) -> None:
    ax.axhline(row.first.target_accuracy, color="#444444", linewidth=0.8)
    ax.annotate(
        f"target {row.first.target_accuracy:.4g}",
        (0.01, row.first.target_accuracy),
        xycoords=("axes fraction", "data"),
        va="bottom",
        fontsize=8,
    )


def survival(rows: Sequence[Row]) -> str | None:
    """Returns, over steps, the Kaplan-Meier share of runs that have not reached the target."""
    rows = [row for row in largest_budgets(rows) if not any(_unknown(run) for run in row.runs)]
    if not rows:
        return None
    with plt.rc_context(STYLE):
        figure, ax = axes("step", "share not yet at the target")
        for row in rows:
            colour, dash = styles(rows)[row.name]
            times, share = waiting_curve(*row.waiting())
            ax.step(times, share, dash, where="post", color=colour, label=row.name)
            censored = row.waiting()[0][~row.waiting()[1]]
            ax.plot(censored, np.interp(censored, times, share), "|", color=colour, markersize=9)
        ax.axhline(0.5, color="#444444", linewidth=0.8)
        ax.set_ylim(-0.03, 1.05)
        ax.legend(frameon=False, fontsize=8, loc="lower left")
        return svg(figure)


def _unknown(run: Run) -> bool:
    return run.reached and run.steps_to_target is None


def waiting_curve(times: np.ndarray, reached: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the corners (steps, share still waiting) of the Kaplan-Meier curve from step 0."""
    order = np.lexsort((~reached, times))
    at_risk = len(times) - np.arange(len(times))
    share = np.cumprod(1 - reached[order] / at_risk)
    return np.concatenate([[0.0], times[order]]), np.concatenate([[1.0], share])


def medians_and_intervals(rows: Sequence[Row]) -> str | None:
    """Returns the Kaplan-Meier medians of measure A with their bootstrap intervals."""
    rows = [row for row in rows if not any(_unknown(run) for run in row.runs)]
    if not rows:
        return None
    with plt.rc_context(STYLE):
        figure, ax = axes("steps to the target (median, 95 % interval)", "")
        figure.set_figheight(0.8 + 0.32 * len(rows))
        for y, row in enumerate(reversed(rows)):
            _median_bar(ax, y, row, styles(rows)[row.name][0])
        names = [f"{row.name}, {row.first.total_steps or '?'}" for row in reversed(rows)]
        ax.set_yticks(range(len(rows)), names, fontsize=8)
        ax.set_xlim(left=0)
        return svg(figure)


def _median_bar(ax: Axes, y: int, row: Row, colour: str) -> None:
    times, reached = row.waiting()
    median = float(inference.km_median(times, reached))
    interval = inference.km_interval(times, reached)
    end = float(times.max())
    if interval is not None and np.isfinite(interval[0]):
        ax.plot([interval[0], min(interval[1], end)], [y, y], color=colour, linewidth=2)
        if not np.isfinite(interval[1]):
            ax.plot(end, y, ">", color=colour)
    if np.isfinite(median):
        ax.plot(median, y, "o", color=colour)
    else:
        ax.annotate(
            "not reached by half of the runs", (end, y), fontsize=8, va="bottom", ha="right"
        )


def learning_rates(rows: Sequence[Row]) -> str | None:
    """Returns the learning rate over steps on a log scale, one line per recipe."""
    return _metric(rows, "learning_rate", "learning rate", scale="log")


def training_loss(rows: Sequence[Row]) -> str | None:
    """Returns the training loss over steps, one line per recipe."""
    return _metric(rows, "loss", "training loss")


def counter(rows: Sequence[Row], column: str) -> str | None:
    """Returns a counter of the optimizers over steps, one line per recipe that has it."""
    return _metric(rows, column, column)


def _metric(rows: Sequence[Row], column: str, label: str, scale: str = "linear") -> str | None:
    drawn = [(row, metrics.median_over_runs(row, column)) for row in largest_budgets(rows)]
    lines = [(row, line) for row, line in drawn if line is not None]
    if not lines:
        return None
    with plt.rc_context(STYLE):
        figure, ax = axes("step", label)
        figure.set_figheight(2.6)
        ax.set_yscale(scale)
        for row, (steps, values) in lines:
            colour, dash = styles(rows)[row.name]
            ax.plot(steps, values, dash, color=colour, label=row.name)
        ax.legend(frameon=False, fontsize=8)
        return svg(figure)


def ladders(rows: Sequence[Row]) -> str | None:
    """Returns median final accuracy over the budgets of each recipe, with its 95 % interval."""
    recipes: dict[str, list[Row]] = {}
    for row in rows:
        if row.first.total_steps and len(row.finals()) and np.isfinite(np.median(row.finals())):
            recipes.setdefault(row.name, []).append(row)
    if not any(len(found) > 1 for found in recipes.values()):
        return None
    with plt.rc_context(STYLE):
        figure, ax = axes("budget (steps)", "final accuracy (median, 95 %)")
        for name, found in recipes.items():
            colour, dash = styles(rows)[name]
            found.sort(key=lambda row: row.first.total_steps or 0)
            steps = [float(row.first.total_steps or 0) for row in found]
            medians = [float(np.median(row.finals())) for row in found]
            ax.plot(steps, medians, dash, marker="o", markersize=3, color=colour, label=name)
            for x, row in zip(steps, found, strict=True):
                interval = inference.median_interval(list(row.finals()))
                if interval is not None and np.isfinite(interval).all():
                    ax.plot([x, x], interval, color=colour, linewidth=1.5, alpha=0.6)
        _target_line(ax, rows[0])
        ax.legend(frameon=False, fontsize=8)
        return svg(figure)


def batches(tests: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the advantages of `reporting.batches` over batch size, one line per comparison."""
    if not tests:
        return None
    with plt.rc_context(STYLE):
        figure, ax = axes("batch size", "Shampoo's advantage (points, 95 %)")
        budgets = sorted({test["n_examples"] for test in tests})
        for test in tests:
            optimizer = test["other"].partition(":")[0]
            colour = COLOURS.get(optimizer, OTHERS[0])
            dash = DASHES[budgets.index(test["n_examples"]) % len(DASHES)]
            medians = [100 * a["median"] for a in test["advantages"]]
            label = f"over {test['other']}, {test['n_examples']:,} examples"
            ax.plot(test["batches"], medians, dash, marker="o", color=colour, label=label)
            for x, a in zip(test["batches"], test["advantages"], strict=True):
                ends = [100 * end for end in a["ci95"] if end is not None]
                ax.plot([x] * len(ends), ends, color=colour, linewidth=1.5, alpha=0.6)
        ax.axhline(0.0, color="#444444", linewidth=0.8)
        ax.set_xscale("log", base=2)
        ticks = sorted({batch for test in tests for batch in test["batches"]})
        ax.set_xticks(ticks, [f"{x:,}" for x in ticks])
        ax.legend(frameon=False, fontsize=7)
        return svg(figure)
