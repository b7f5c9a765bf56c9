"""Hyperparameter trials: the same number of quasi-random points for every optimizer.

    python sweep.py --recipes="lars:digits sm3:digits" --trials=24 --seeds=0:3 --out=runs/tuning
    python sweep.py --recipes="lars:digits sm3:digits" --tuned=runs/tuning/trials.json \\
        --budgets=48,60,76 --seeds=100:110 --out=runs/ladder

A trial is a point of the recipe's SEARCH ranges, trained with every seed in OUT/RECIPE/trial_007/.
The point with the best median final accuracy is chosen. Measure it with seeds that were not used.
"""

import importlib
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from configs.search import Range
from errors import UserError
from run import files
from run.schema import read_run
from sweeps.runs import Run

POINTS_SEED = 0  # scrambles the sequence: every study draws the same points
MOST_TRIALS = 1000


def ranges(recipe: str, fields: str | None = None) -> Mapping[str, Range]:
    """Returns the SEARCH ranges of the recipe's file.

    Args:
      fields: names of the fields to use, separated by commas; None for all.

    Raises:
      UserError: the file has no ranges, or none for a field.
    """
    module = importlib.import_module(f"configs.{recipe.partition(':')[0]}")
    search = getattr(module, "SEARCH", None)
    if not search:
        raise UserError(
            f"trials: {recipe} has no ranges; give configs/{recipe.partition(':')[0]}.py a "
            'SEARCH = {"schedule.peak_learning_rate": search.Range(0.1, 10.0)}'
        )
    names = fields.split(",") if fields else list(search)
    for field in names:
        if field not in search:
            raise UserError(f"search={field}: {recipe} has ranges for {', '.join(search)}")
    return {field: search[field] for field in names}


def points(search: Mapping[str, Range], n: int) -> list[dict[str, float]]:
    """Returns the first n points of a scrambled Halton sequence; a larger n keeps the others.

    Raises:
      UserError: n is not from 1 to MOST_TRIALS.
    """
    if not 1 <= n <= MOST_TRIALS:
        raise UserError(f"trials={n}: must be from 1 to {MOST_TRIALS}")
    from scipy.stats import qmc  # imported late: it takes half a second

    shares = qmc.Halton(len(search), scramble=True, rng=np.random.default_rng(POINTS_SEED))
    return [
        {field: r.at(share) for (field, r), share in zip(search.items(), row, strict=True)}
        for row in shares.random(n)
    ]


def group(trial: int) -> str:
    """Returns the folder between recipe and seed, such as trial_007."""
    return f"trial_{trial:03d}"


def overrides(values: Mapping[str, float]) -> list[str]:
    return [f"--config.{field}={value}" for field, value in values.items()]


def write(
    path: pathlib.Path, runs: Sequence[Run], n: int, fields: str | None = None
) -> dict[str, Any]:
    """Writes trials.json and returns its content: ranges, trials and the chosen one per recipe.

    Runs that are not finished have the accuracy null. In a trial's median they, and diverged runs,
    count as worse than any other.
    """
    table = {}
    for recipe in {run.recipe: None for run in runs}:
        search = ranges(recipe, fields)
        trials: list[dict[str, Any]] = []
        for i, values in enumerate(points(search, n)):
            repeats = [run for run in runs if run.recipe == recipe and run.group == group(i)]
            trials.append({"trial": i, "values": values} | results(repeats))
        medians = [-1.0 if t["median"] is None else t["median"] for t in trials]
        best = trials[medians.index(max(medians))]
        table[recipe] = {
            "ranges": {field: r.as_json() for field, r in search.items()},
            "points": f"scipy.stats.qmc.Halton, scrambled with seed {POINTS_SEED}",
            "trials": trials,
            "chosen": best["trial"] if best["median"] is not None else None,
        }
    files.write_json(epath.Path(path), table)
    return table


def lines(table: Mapping[str, Any]) -> Iterator[str]:
    """Yields the chosen trial of each recipe, its values as command-line arguments."""
    for recipe, entry in table.items():
        if entry["chosen"] is None:
            yield f"{recipe}: none of {len(entry['trials'])} trials has finished, none is chosen"
            continue
        best = entry["trials"][entry["chosen"]]
        accuracy, values = best["median"], " ".join(overrides(best["values"]))
        yield f"{recipe}: trial {best['trial']} chosen, median accuracy {accuracy:.4f}: {values}"


def results(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns status and final accuracy per seed, and the median over all seeds."""
    statuses, accuracies = {}, {}
    for run in runs:
        statuses[str(run.seed)] = run.status() or "not run"
        done = statuses[str(run.seed)] == "done"
        accuracies[str(run.seed)] = read_run(run.folder).final_accuracy if done else None
    median = statistics.median(-1.0 if a is None else a for a in accuracies.values())
    return {
        "status": statuses,
        "final_accuracy": accuracies,
        "median": median if median >= 0 else None,
    }


def chosen(path: pathlib.Path, recipe: str) -> list[str]:
    """Returns the overrides of the trial that trials.json chose for a recipe.

    Raises:
      UserError: the file cannot be read, or has no chosen trial for this recipe.
    """
    if not path.exists():
        raise UserError(f"tuned={path}: no such file; sweep.py --trials=N writes OUT/trials.json")
    try:
        entry = json.loads(path.read_text())[recipe]
        return overrides(entry["trials"][entry["chosen"]]["values"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as e:
        raise UserError(
            f"tuned={path}: has no chosen trial for {recipe} ({type(e).__name__}: {e}); give a "
            "trials.json that sweep.py --trials=N wrote"
        ) from e
