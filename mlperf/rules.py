"""MLPerf's rules for a set of ResNet runs: five runs, at most one failure, olympic mean.

Source: MLCommons training policies, training_rules.adoc, "Run results".
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from run.record import Run

N_RUNS = 5


def check(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns {valid, score_seconds (None if there is no score), problems, notes}.

    The score is the mean of the times without the fastest and the slowest; a run that did not
    reach the target counts as the slowest. Of more than five runs the five consecutive ones (by
    their start) with the median score count, so that nobody submits the fastest five.
    """
    problems = []
    if len(runs) < N_RUNS:
        problems.append(f"MLPerf asks for {N_RUNS} runs, here are {len(runs)}")
    seeds = [run.seed for run in runs if run.seed is not None]
    if len(set(seeds)) < len(seeds):
        problems.append("a seed occurs twice")
    if any(run.reached and run.seconds_to_target is None for run in runs):
        problems.append("a time is missing")
    if problems:
        return {"valid": False, "score_seconds": None, "problems": problems, "notes": []}
    score = _median_window(runs)
    if not np.isfinite(score):
        failed = sum(not run.reached for run in runs)
        problems.append(f"{failed} runs did not reach the target, one may")
    notes = [f"{len(runs)} runs: the five consecutive ones with the median score count"]
    return {
        "valid": not problems,
        "score_seconds": None if problems else score,
        "problems": problems,
        "notes": notes if len(runs) > N_RUNS else [],
    }


def _median_window(runs: Sequence[Run]) -> float:
    """Returns the median over windows of five of their olympic means, inf where two runs failed.

    Of an even number of windows the slower of the middle two counts.
    """
    starts = [run.record.get("run_start_ms") or 0.0 for run in runs]
    order = np.argsort(starts, kind="stable")
    seconds = [runs[i].seconds_to_target if runs[i].reached else np.inf for i in order]
    times = [s for s in seconds if s is not None]
    scores = [olympic_mean(times[i : i + N_RUNS]) for i in range(len(times) - N_RUNS + 1)]
    return sorted(score for score in scores if score is not None)[len(scores) // 2]


def olympic_mean(values: Sequence[float]) -> float | None:
    """Returns the mean without the smallest and the largest; None with fewer than 3 values.

    One infinity (a run that did not converge) may stand for the slowest; two make it inf.
    Source: MLPerf training rules, section on results.
    """
    return None if len(values) < 3 else float(np.mean(sorted(values)[1:-1]))
