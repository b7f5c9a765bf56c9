"""The median-stopping rule: ends trials early that others have left far behind. Off by default.

A run is hopeless after an evaluation at step s if its best accuracy so far lies below the median,
over the finished runs of its recipe, of their mean accuracy up to s (Golovin et al. 2017, Google
Vizier, section 3.2.2). It is marked as aborted with the reason, and counted as such.
"""

import statistics
from collections.abc import Iterable, Sequence

from reporting import curves
from reporting.curves import Point
from sweeps.runs import STOPPED_EARLY, Run

LEAST_FINISHED = 5  # runs to compare with


def reason(curve: Sequence[Point], others: Sequence[Sequence[Point]]) -> str | None:
    """Why a run with this curve is hopeless beside the curves of finished ones, or None."""
    if not curve or len(others) < LEAST_FINISHED:
        return None
    step, best = curve[-1].step, max(point.accuracy for point in curve)
    means = [
        statistics.fmean(point.accuracy for point in other if point.step <= step)
        for other in others
        if other[0].step <= step
    ]
    if len(means) < LEAST_FINISHED or best >= (median := statistics.median(means)):
        return None
    return (
        f"{STOPPED_EARLY} at step {step}: its best accuracy {best:.4f} lies below {median:.4f}, "
        f"the median of {len(means)} finished runs' means up to there"
    )


def judge(run: Run, finished: Iterable[Run]) -> str | None:
    """`reason` from the files of runs; a curve that cannot be read judges nobody."""
    try:
        own = read(run)
        others = [read(other) for other in finished if other.recipe == run.recipe]
        return reason(own, [curve for curve in others if curve])
    except (OSError, ValueError):
        return None


def read(run: Run) -> tuple[Point, ...]:
    """Its curve up to the last evaluation that is written down whole."""
    return curves.parse(curves.text(run.folder / "curve.csv"), may_be_cut=True)[0]
