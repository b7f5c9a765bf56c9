"""Rows of the comparison table: runs that differ only in the seed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from run.record import Run, flatten


@dataclass(frozen=True)
class Row:
    """Runs of one recipe at one budget that differ only in the seed; `variant` names the row."""

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
        """What two rows must have in common to be compared."""
        return self.first.dataset, self.first.global_batch_size, self.first.target_accuracy

    def waiting(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns (times [n], reached [n]) of measure A for Kaplan and Meier."""
        lo, hi = np.array([run.reach_interval() for run in self.runs]).T
        return np.where(np.isfinite(hi), hi, lo), np.isfinite(hi)

    def finals(self) -> np.ndarray:
        """Returns measure B in the order of the runs: -inf if diverged, unmeasured runs omitted."""
        return np.array(
            [
                -np.inf if run.status == "diverged" else run.final_accuracy
                for run in self.runs
                if run.status == "diverged" or run.final_accuracy is not None
            ],
            dtype=float,
        )

    def finals_by_seed(self, diverged: float) -> dict[int, float]:
        """Returns measure B by seed; diverged runs have `diverged`, unmeasured ones are omitted."""
        finals = {
            run.seed: diverged if run.status == "diverged" else run.final_accuracy
            for run in self.runs
            if run.seed is not None
        }
        return {seed: accuracy for seed, accuracy in finals.items() if accuracy is not None}

    def median_bounds(self) -> tuple[float, float]:
        """Returns a lower and an upper bound of the median of measure B over all runs.

        An unmeasured run may have ended anywhere: those that a rule or a crash ends are not like
        the others, so the median of the others is not that of all.
        """
        n_unmeasured = self.n - len(self.finals())
        lo, hi = (np.append(self.finals(), [end] * n_unmeasured) for end in (-np.inf, 1.0))
        return float(np.median(lo)), float(np.median(hi))


def group(runs: Sequence[Run]) -> list[Row]:
    """Returns rows. Runs of one recipe with different configs are in different rows."""
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
    """Adds the folder to rows of logs with equal names."""
    folders: dict[str, set[str]] = {}
    for row in rows:
        folders.setdefault(row.first.recipe, set()).add(submission(row.first))
    named = []
    for row in rows:
        if row.first.kind == "log" and len(folders[row.first.recipe]) > 1:
            place = _end(submission(row.first), folders[row.first.recipe])
            row = replace(row, variant=", ".join(filter(None, [place, row.variant])))
        named.append(row)
    return named


def _end(folder: str, others: set[str]) -> str:
    """Returns the shortest end of a folder's path, without "resnet", that no other folder has."""
    ends = {place: [p for p in place.split("/") if p not in ("", "resnet")] for place in others}
    parts = ends.pop(folder)
    n = next((n for n in range(1, len(parts)) if parts[-n:] not in [e[-n:] for e in ends.values()]),
             len(parts))  # fmt: skip
    return "/".join(parts[-n:]) or folder


def submission(run: Run) -> str:
    """Returns the folder of a log. It is one submission, whose runs are not merged with others."""
    return str(run.record.get("folder", "")) if run.kind == "log" else ""


def _split(by_settings: dict[str, list[Run]]) -> list[Row]:
    """Makes one row per setting. Runs without a config join a row only if there is just one."""
    bare = by_settings.pop("{}", [])
    if not by_settings:
        return [Row(_by_seed(bare))]
    if len(by_settings) == 1:
        return [Row(_by_seed(bare + next(iter(by_settings.values()))))]
    flats = {text: json.loads(text) for text in by_settings}
    keys = sorted({key for flat in flats.values() for key in flat})
    differing = [k for k in keys if len({json.dumps(f.get(k)) for f in flats.values()}) > 1]
    for keys in (differing[:3], differing):  # three fields, unless two rows then have equal names
        variants = {
            text: ", ".join(f"{k.rsplit('.', 1)[-1]}={flat.get(k)}" for k in keys)
            for text, flat in flats.items()
        }
        if len(set(variants.values())) == len(variants):
            break
    rows = [Row(_by_seed(by_settings[text]), variants[text]) for text in sorted(by_settings)]
    return rows + ([Row(_by_seed(bare), "config unknown")] if bare else [])


def _by_seed(runs: list[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs, key=lambda run: (run.seed is None, run.seed or 0, run.path)))


def finite(value: float) -> float | None:
    """Returns None for infinities and NaN, which JSON lacks."""
    return value if np.isfinite(value) else None
