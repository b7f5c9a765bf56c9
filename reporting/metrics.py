"""Reads metrics.csv: learning rate, loss and the optimizer's counters over steps."""

import csv
from pathlib import Path

import numpy as np

from reporting.rows import Row

PLAIN = ("step", "learning_rate", "loss", "accuracy")  # loss and accuracy in training


def read(path: Path) -> dict[str, np.ndarray]:
    """Returns {column: [n] values} by rising step; {} if the file is absent or unreadable.

    Metrics illustrate; nothing is decided on them, so a broken line is left out.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        return {}
    if not lines or "step" not in lines[0]:
        return {}
    rows = []
    for line in lines[1:]:
        try:
            rows.append([float(cell) for cell in line])
        except ValueError:
            continue
    rows = [row for row in rows if len(row) == len(lines[0])]
    if not rows:
        return {}
    table = np.array(rows)
    return dict(zip(lines[0], table[np.argsort(table[:, lines[0].index("step")])].T, strict=True))


def median_over_runs(row: Row, column: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns (steps, medians over the row's runs) of one column; None if no run has it."""
    by_step: dict[float, list[float]] = {}
    for table in tables(row):
        for step, value in zip(table["step"], table.get(column, []), strict=False):
            if np.isfinite(value):
                by_step.setdefault(step, []).append(value)
    if not by_step:
        return None
    steps = sorted(by_step)
    return np.array(steps), np.array([np.median(by_step[step]) for step in steps])


def counters(row: Row) -> list[str]:
    """Returns the columns with counters: all except `PLAIN`."""
    names = {name for table in tables(row) for name in table}
    return sorted(names - set(PLAIN))


def ever(row: Row, column: str) -> bool:
    """Returns whether any run of the row has a value other than zero in this column."""
    return any(np.any(table[column] != 0) for table in tables(row) if column in table)


def tables(row: Row) -> list[dict[str, np.ndarray]]:
    """Returns the metrics of each run that has some. Logs have none."""
    found = [read(Path(run.path) / "metrics.csv") for run in row.runs if run.kind == "run"]
    return [table for table in found if table]
