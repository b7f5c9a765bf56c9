"""Rows of the comparison table: runs that differ in nothing but the seed, and their statistics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reporting import inference, mlperf_rules
from reporting.runs import TIE_TOLERANCE, Run

# Fields that change no result of a run.
NOT_COMPARED = {
    "seed", "workdir", "data_dir", "log_every_steps", "checkpoint_every_steps", "unverified",
    "assumed", "resume", "profile", "compile_cache",
}  # fmt: skip

REDUCTIONS = (0.05, 0.10, 0.20, 0.31)  # fewer steps, as fractions; the last is the published one


@dataclass(frozen=True)
class Row:
    """Runs of one recipe at one budget: only the seed differs. `variant` tells rows apart."""

    runs: tuple[Run, ...]
    variant: str = ""

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def name(self) -> str:
        return self.first.recipe + (f" [{self.variant}]" if self.variant else "")

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def task(self) -> tuple[str, int | None, float]:
        """What two rows must share to be compared at all."""
        return self.first.dataset, self.first.global_batch_size, self.first.target_accuracy

    def waiting(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (times [n], reached [n]) of measure A for Kaplan and Meier."""
        lo, hi = np.array([run.reach_interval() for run in self.runs]).T
        return np.where(np.isfinite(hi), hi, lo), np.isfinite(hi)

    def finals(self) -> np.ndarray:
        """Returns measure B, sorted by nothing: -inf for diverged runs, the unmeasured left out."""
        return np.array(
            [
                -np.inf if run.status == "diverged" else run.final_accuracy
                for run in self.runs
                if run.status == "diverged" or run.final_accuracy is not None
            ],
            dtype=float,
        )


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {"schedule.peak_learning_rate": 1.0, ...} without the fields in NOT_COMPARED."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if key in NOT_COMPARED:
            continue
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def group(runs: Sequence[Run]) -> list[Row]:
    """Returns rows; runs of one recipe whose configs differ stand in different rows."""
    groups: dict[tuple[Any, ...], dict[str, list[Run]]] = {}
    for run in runs:
        task = (run.dataset, run.global_batch_size or 0, run.target_accuracy)
        key = (*task, run.kind, run.recipe, run.optimizer, run.total_steps or 0, submission(run))
        settings = json.dumps(flatten(run.config), sort_keys=True, default=str)
        groups.setdefault(key, {}).setdefault(settings, []).append(run)
    rows: list[Row] = []
    for key in sorted(groups):
        rows += _split(groups[key])
    return _name_submissions(rows)


def _name_submissions(rows: list[Row]) -> list[Row]:
    """Adds the folder to rows of logs that could not be told apart by their names."""
    folders: dict[str, set[str]] = {}
    for row in rows:
        folders.setdefault(row.first.recipe, set()).add(submission(row.first))
    named = []
    for row in rows:
        if row.first.kind == "log" and len(folders[row.first.recipe]) > 1:
            parts = [p for p in submission(row.first).split("/") if p not in ("", "resnet")]
            row = replace(row, variant=", ".join(filter(None, [parts[-1], row.variant])))
        named.append(row)
    return named


def submission(run: Run) -> str:
    """Returns the folder of a log: one submission, and never merged with another one's runs."""
    return str(run.record.get("folder", "")) if run.kind == "log" else ""


def _split(by_settings: dict[str, list[Run]]) -> list[Row]:
    """Makes one row per setting; runs without a config join only if there is no choice."""
    bare = by_settings.pop("{}", [])
    if not by_settings:
        return [Row(_by_seed(bare))]
    if len(by_settings) == 1:
        return [Row(_by_seed(bare + next(iter(by_settings.values()))))]
    flats = {text: json.loads(text) for text in by_settings}
    keys = sorted({key for flat in flats.values() for key in flat})
    differing = [k for k in keys if len({json.dumps(f.get(k)) for f in flats.values()}) > 1]
    rows = [
        Row(
            _by_seed(by_settings[text]),
            ", ".join(f"{k.rsplit('.', 1)[-1]}={flats[text].get(k)}" for k in differing[:3]),
        )
        for text in sorted(by_settings)
    ]
    return rows + ([Row(_by_seed(bare), "config unknown")] if bare else [])


def _by_seed(runs: list[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs, key=lambda run: (run.seed is None, run.seed or 0, run.path)))


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
    q25, q75 = np.quantile(np.maximum(finals, -1e9), [0.25, 0.75])  # linear, diverged far below
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
    # A run that should have a time and has none would make the others look like all.
    if any(run.reached and run.seconds_to_target is None for run in row.runs):
        return {"median": None, "olympic_mean": None}
    seconds = [np.inf if not r.reached else r.seconds_to_target or 0.0 for r in row.runs]
    mean = inference.olympic_mean(seconds)
    return {
        "median": finite(float(inference.km_median(np.array(seconds), np.isfinite(seconds)))),
        "olympic_mean": None if mean is None else finite(mean),
    }


def power(row: Row) -> dict[str, Any]:
    """Returns the spread of log steps over seeds and the seeds a recipe needs to show x % fewer.

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
    """Returns the seed's question: does the median over seeds reach the target at this budget?"""
    finals, target = row.finals(), row.first.target_accuracy
    if not len(finals):
        return {"reaches_target": None, "margin": None}
    median = float(np.median(finals))
    return {
        "reaches_target": median >= target - TIE_TOLERANCE,
        "margin": finite(median - target),
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
        "final_accuracy": accuracy_statistics(row),
        "claim": claim(row),
        "seconds_to_target": seconds_statistics(row),
        "power": power(row),
        "flags": row_flags(row),
        **(log_statistics(row) if first.kind == "log" else {}),
    }


def log_statistics(row: Row) -> dict[str, Any]:
    """Returns what only MLPerf logs have: who, epochs as logged, the five-run rules."""
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
    """Returns every flag of the runs, with the number of runs where not all carry it."""
    counts: dict[str, int] = {}
    for run in row.runs:
        for flag in run.flags:
            counts[flag] = counts.get(flag, 0) + 1
    flags = [f if c == row.n else f"{f} ({c} of {row.n} runs)" for f, c in counts.items()]
    if row.variant:
        flags.append(f"other rows of this recipe have another config: {row.variant}")
    n_unmeasured = row.n - len(row.finals())
    if n_unmeasured:
        flags.append(f"B: {n_unmeasured} of {row.n} runs did not run the whole budget")
    if row.first.kind == "log":
        flags += [
            f"MLPerf rules: {problem}" for problem in mlperf_rules.check(row.runs)["problems"]
        ]
    return flags


def finite(value: float) -> float | None:
    """Returns None for infinities and NaN: JSON has neither."""
    return value if np.isfinite(value) else None
