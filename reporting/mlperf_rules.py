"""MLPerf's rules for a set of ResNet runs: five of them, one may fail, olympic mean.

Source: MLCommons training policies, training_rules.adoc, "Run results".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reporting.inference import olympic_mean
from reporting.runs import Run

N_RUNS = 5


def check(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns {valid, score_seconds (None if there is no score), problems}.

    The score is the mean of the times without the fastest and the slowest; a run that did not
    reach the target counts as the slowest.
    """
    problems = []
    if len(runs) != N_RUNS:
        problems.append(f"MLPerf asks for {N_RUNS} runs, here are {len(runs)}")
    failed = [run for run in runs if not run.reached]
    if len(failed) > 1:
        problems.append(f"{len(failed)} runs did not reach the target, one may")
    seeds = [run.seed for run in runs if run.seed is not None]
    if len(set(seeds)) < len(seeds):
        problems.append("a seed occurs twice")
    if any(run.reached and run.seconds_to_target is None for run in runs):
        problems.append("a time is missing")
    seconds = [run.seconds_to_target if run.reached else np.inf for run in runs]
    score = None if problems else olympic_mean([s for s in seconds if s is not None])
    return {"valid": not problems, "score_seconds": score, "problems": problems}
