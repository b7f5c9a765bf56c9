"""Hyperparameter trials: quasi-random points, the same number for every optimizer, all published.

    python sweep.py --recipes="lars:digits sm3:digits" --trials=24 --seeds=0:3 --out=runs/tuning
    python sweep.py --recipes="lars:digits sm3:digits" --tuned=runs/tuning/trials.json \\
        --budgets=48,60,76 --seeds=100:110 --out=runs/ladder

A trial is a point of the recipe's SEARCH ranges, run with every seed as OUT/RECIPE/trial_007/.
Chosen is the point with the best median final accuracy; fresh seeds are then the honest measure.
"""

import importlib
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

import workdir as files
from configs.search import Range
from errors import UserError
from reporting.run_folder import read_run
from sweeps.runs import Run

POINTS_SEED = 0  # of the scrambling: every study draws the same points
MOST_TRIALS = 1000


def ranges(recipe: str, fields: str | None = None) -> Mapping[str, Range]:
    """SEARCH of the recipe's file, or those of its fields that are named, with commas between.

    Raises:
      UserError: it has none, or not this field.
    """
    module = importlib.import_module(f"configs.{recipe.partition(':')[0]}")
    found = getattr(module, "SEARCH", None)
    if not found:
        raise UserError(
            f"trials: {recipe} has no ranges; give configs/{recipe.partition(':')[0]}.py a "
            'SEARCH = {"schedule.peak_learning_rate": search.Range(0.1, 10.0)}'
        )
    asked = fields.split(",") if fields else list(found)
    for field in asked:
        if field not in found:
            raise UserError(f"search={field}: {recipe} has ranges for {', '.join(found)}")
    return {field: found[field] for field in asked}


def points(search: Mapping[str, Range], n: int) -> list[dict[str, float]]:
    """The first n points of the scrambled Halton sequence: more trials keep those made before.

    Raises:
      UserError: n is not from 1 to MOST_TRIALS.
    """
    if not 1 <= n <= MOST_TRIALS:
        raise UserError(f"trials={n}: needs a number from 1 to {MOST_TRIALS}")
    from scipy.stats import qmc  # late: half a second that few commands need

    shares = qmc.Halton(len(search), scramble=True, rng=np.random.default_rng(POINTS_SEED))
    return [
        {field: r.at(share) for (field, r), share in zip(search.items(), row, strict=True)}
        for row in shares.random(n)
    ]


def group(trial: int) -> str:
    """The folder between recipe and seed: trial_007."""
    return f"trial_{trial:03d}"


def overrides(values: Mapping[str, float]) -> list[str]:
    return [f"--config.{field}={value}" for field, value in values.items()]


def write(
    path: pathlib.Path, runs: Sequence[Run], n: int, fields: str | None = None
) -> dict[str, Any]:
    """Writes trials.json: per recipe the ranges, every trial's values and results, the chosen one.

    Runs that are not finished have accuracy null; a trial's median counts them, and diverged ones,
    as worse than any other. Returns what it wrote.
    """
    table = {}
    for recipe in {run.recipe: None for run in runs}:
        search = ranges(recipe, fields)
        trials: list[dict[str, Any]] = []
        for i, values in enumerate(points(search, n)):
            own = [run for run in runs if run.recipe == recipe and run.group == group(i)]
            trials.append({"trial": i, "values": values} | results(own))
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


def told(table: Mapping[str, Any]) -> Iterator[str]:
    """Says of each recipe which trial was chosen; its values are as the command line takes them."""
    for recipe, of in table.items():
        if of["chosen"] is None:
            yield f"{recipe}: none of {len(of['trials'])} trials was finished, none is chosen"
            continue
        best = of["trials"][of["chosen"]]
        accuracy, values = best["median"], " ".join(overrides(best["values"]))
        yield f"{recipe}: trial {best['trial']} chosen, median accuracy {accuracy:.4f}: {values}"


def results(runs: Sequence[Run]) -> dict[str, Any]:
    """Status and final accuracy per seed, and the median over all seeds."""
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
    """The overrides of the trial that trials.json chose for a recipe.

    Raises:
      UserError: the file cannot be read, or chose none for this recipe.
    """
    if not path.exists():
        raise UserError(f"tuned={path}: no such file; sweep.py --trials=N writes OUT/trials.json")
    try:
        found = json.loads(path.read_text())[recipe]
        return overrides(found["trials"][found["chosen"]]["values"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as e:
        raise UserError(
            f"tuned={path}: names no chosen trial for {recipe} ({type(e).__name__}: {e}); "
            "it is what sweep.py --trials=N wrote as OUT/trials.json"
        ) from e
