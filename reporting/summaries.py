"""Statistics of one row: the rows of report.json."""

from typing import Any

import numpy as np

from mlperf import rules as mlperf_rules
from mlperf.rules import olympic_mean
from reporting import inference
from reporting.rows import Row, finite
from run.schema import reaches

REDUCTIONS = (0.05, 0.10, 0.20, 0.31)  # fewer steps, as fractions; the last is the published one


def steps_statistics(row: Row) -> dict[str, Any]:
    """Returns measure A: Kaplan-Meier median and bootstrap interval, in steps."""
    times, reached = row.waiting()
    if any(run.reached and run.steps_to_target is None for run in row.runs):
        return {"median": None, "ci95": None}
    interval = inference.km_interval(times, reached)
    return {
        "median": finite(float(inference.km_median(times, reached))),
        "ci95": None if interval is None else [finite(interval[0]), finite(interval[1])],
    }


def accuracy_statistics(row: Row) -> dict[str, Any]:
    """Returns measure B: median, quartiles, interval; n_measured runs ended their budget."""
    finals = row.finals()
    if not len(finals):
        return {"median": None, "q25": None, "q75": None, "ci95": None, "n_measured": 0}
    q25, q75 = np.quantile(
        np.maximum(finals, -1e9), [0.25, 0.75]
    )  # linear; diverged runs are far below
    interval = inference.median_interval(list(finals))
    return {
        "median": finite(float(np.median(finals))),
        "q25": float(q25) if q25 >= 0 else None,
        "q75": float(q75) if q75 >= 0 else None,
        "ci95": None if interval is None else [finite(interval[0]), finite(interval[1])],
        "n_measured": len(finals),
    }


def seconds_statistics(row: Row) -> dict[str, Any]:
    """Returns the median and MLPerf's olympic mean of the seconds to the target."""
    # If a run that reached the target has no time, statistics of the others would mislead.
    if any(run.reached and run.seconds_to_target is None for run in row.runs):
        return {"median": None, "olympic_mean": None}
    seconds = [np.inf if not r.reached else r.seconds_to_target or 0.0 for r in row.runs]
    mean = olympic_mean(seconds)
    return {
        "median": finite(float(np.median(seconds))),
        "olympic_mean": None if mean is None else finite(mean),
    }


def power(row: Row) -> dict[str, Any]:
    """Returns the spread of log steps over seeds, and the seeds needed to show x % fewer steps.

    The other recipe is taken to spread alike. A row without any spread spreads at least by the
    rounding of its evaluation grid (a uniform error of one cadence).
    """
    steps = np.array([r.steps_to_target for r in row.runs if r.steps_to_target], dtype=float)
    if len(steps) < 3:
        return {"log_sd": None, "seeds": {}}
    widths = [hi - lo for lo, hi in (run.reach_interval() for run in row.runs) if np.isfinite(hi)]
    rounding = float(np.median(widths) / np.median(steps) / np.sqrt(12))
    log_sd = max(float(np.std(np.log(steps), ddof=1)), rounding)
    seeds = {f"{100 * x:.0f} %": inference.seeds_needed(log_sd, x) for x in REDUCTIONS}
    return {"log_sd": log_sd, "seeds": seeds}


def claim(row: Row) -> dict[str, Any]:
    """Returns whether the median over seeds reaches the target at this budget.

    None where that depends on runs without measure B.
    """
    finals, target = row.finals(), row.first.target_accuracy
    if not len(finals):
        return {"reaches_target": None, "margin": None}
    lowest, highest = (reaches(bound, target) for bound in row.median_bounds())
    return {
        "reaches_target": lowest if lowest == highest else None,
        "margin": finite(float(np.median(finals)) - target),
    }


def summary(row: Row) -> dict[str, Any]:
    """Returns the row of report.json (without `published`)."""
    first = row.first
    return {
        "recipe": first.recipe,
        "variant": row.variant,
        "kind": first.kind,
        "optimizer": first.optimizer,
        "dataset": first.dataset,
        "global_batch_size": first.global_batch_size,
        "total_steps": first.total_steps,
        "target_accuracy": first.target_accuracy,
        "n": row.n,
        "n_reached": sum(run.reached for run in row.runs),
        "n_diverged": sum(run.status == "diverged" for run in row.runs),
        "n_aborted": sum(run.status == "aborted" for run in row.runs),
        "seeds": [run.seed for run in row.runs],
        "steps_to_target": steps_statistics(row),
        "last_step": float(row.waiting()[0].max()),
        "final_accuracy": accuracy_statistics(row),
        "claim": claim(row),
        "seconds_to_target": seconds_statistics(row),
        "power": power(row),
        "flags": row_flags(row),
        **(log_statistics(row) if first.kind == "log" else {}),
    }


def log_statistics(row: Row) -> dict[str, Any]:
    """Returns values that only MLPerf logs have: submitter, logged epochs, the five-run rules."""
    record = row.first.record
    epochs = [run.record["epochs_to_target"] for run in row.runs if run.reached]
    known = [epoch for epoch in epochs if epoch is not None]
    return {
        "org": record["org"],
        "platform": record["platform"],
        "division": record["division"],
        "folder": record["folder"],
        "epochs_to_target": {"median": float(np.median(known)) if known else None, "all": epochs},
        "accuracy_at_stop": [run.last_accuracy for run in row.runs],
        "mlperf": mlperf_rules.check(row.runs),
    }


def row_flags(row: Row) -> list[str]:
    """Returns every flag of the runs, with the number of runs if not all have it."""
    counts: dict[str, int] = {}
    for run in row.runs:
        for flag in run.flags:
            counts[flag] = counts.get(flag, 0) + 1
    flags = [f if c == row.n else f"{f} ({c} of {row.n} runs)" for f, c in counts.items()]
    if row.variant:
        flags.append(f"other rows of this recipe have another config: {row.variant}")
    commits = {str(run.record.get("git")) for run in row.runs}
    if len(commits) > 1:
        flags.append(f"runs of {len(commits)} commits, or states of the code")
    n_unmeasured = row.n - len(row.finals())
    if n_unmeasured:
        flags.append(f"B: {n_unmeasured} of {row.n} runs did not run the whole budget")
    if row.first.kind == "log":
        rules = mlperf_rules.check(row.runs)
        flags += [f"MLPerf rules: {text}" for text in rules["problems"] + rules["notes"]]
    return flags
