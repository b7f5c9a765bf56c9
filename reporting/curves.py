"""Accuracy curves: curve.csv of a run folder as a tuple of checked points."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from errors import UserError

COLUMNS = ["step", "n_correct", "n_seen", "accuracy", "loss"]


@dataclass(frozen=True)
class Point:
    """One evaluation: step = completed updates; accuracy a fraction; loss None if not finite."""

    step: int
    accuracy: float
    loss: float | None = None


def text(path: Path) -> str | None:
    """Returns the content of a curve.csv, None without one; UserError: not UTF-8."""
    try:
        return path.read_text(encoding="utf-8") if path.exists() else None
    except UnicodeDecodeError as error:
        raise UserError(f"curve.csv: not readable as text ({error})") from error


def parse(text: str | None, *, may_be_cut: bool) -> tuple[tuple[Point, ...], list[str]]:
    """Returns (points with strictly rising steps, flags).

    Args:
      text: of a curve.csv; None, where it is absent, gives no points and a flag.
      may_be_cut: whether a broken last line may be dropped (the run was interrupted).

    Raises:
      UserError: a broken line, an accuracy outside [0, 1], steps that go back.
    """
    if text is None:
        return (), ["no curve.csv"]
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise UserError(f"curve.csv: not readable as text ({error})") from error
    if not lines:
        return (), ["curve.csv is empty"]
    if lines[0][: len(COLUMNS)] != COLUMNS:
        raise UserError(f"curve.csv: the header is {','.join(lines[0])!r:.60}")
    points: list[Point] = []
    for number, cells in enumerate(lines[1:], start=2):
        try:
            point = _point(cells)
        except ValueError as error:
            if may_be_cut and number == len(lines):
                return tuple(points), ["last line of curve.csv is cut off and left out"]
            raise UserError(f"curve.csv, line {number}: {error}") from error
        if points and point.step <= points[-1].step:
            raise UserError(
                f"curve.csv, line {number}: step {point.step} after step {points[-1].step}: "
                "two runs in one folder?"
            )
        points.append(point)
    return tuple(points), []


def _point(cells: list[str]) -> Point:
    if len(cells) < len(COLUMNS):
        raise UserError(f"{len(cells)} cells, {len(COLUMNS)} are expected")
    step, n_correct, n_seen = (int(cell) for cell in cells[:3])
    accuracy, loss = float(cells[3]), float(cells[4] or "nan")
    if step < 0 or n_seen <= 0 or not 0 <= n_correct <= n_seen:
        raise UserError(f"step {step}, {n_correct} of {n_seen} correct: impossible counts")
    # Written with at least six digits; the counts are the measurement.
    if not abs(accuracy - n_correct / n_seen) <= 1e-5:
        raise UserError(f"accuracy {accuracy} is not {n_correct}/{n_seen}")
    return Point(step, n_correct / n_seen, loss if math.isfinite(loss) else None)
