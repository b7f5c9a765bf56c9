"""The run.json of a run that the sweep gave up: status `aborted`, so that the report counts it."""

from typing import Any

from etils import epath

import workdir as files
from errors import UserError
from reporting import curves
from sweeps.runs import Run


def write(run: Run, reason: str) -> None:
    """Writes run.json with what is known, null where nothing is, and the reason.

    A later call of the sweep tries the run again. A folder that holds the run of another config, or
    foreign files, is left alone, and one that cannot be written is reported by the manifest alone.
    """
    folder = epath.Path(run.folder)
    config = run.config()
    try:
        if files.other_config(folder, config) or files.foreign(folder):
            return
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / "config.json", files.config_as_json(config))
        files.write_json(folder / "run.json", record(run, reason))
    except (OSError, UserError) as e:
        print(f"{run.name}: cannot be marked as aborted ({e})", flush=True)


def record(run: Run, reason: str) -> dict[str, Any]:
    """The keys of run.json; what its curve shows up to its last evaluation is kept."""
    config = run.config()
    curve, _ = curves.parse(curves.text(run.folder / "curve.csv"), may_be_cut=True)
    accuracies = [point.accuracy for point in curve]
    reached = (point.step for point in curve if point.accuracy >= config.target_accuracy)
    return {
        "recipe": config.recipe,
        "optimizer": config.recipe.partition(":")[0],
        "dataset": config.dataset.name,
        "seed": config.seed,
        "status": "aborted",
        "reason": reason,
        "target_accuracy": config.target_accuracy,
        "steps_to_target": next(reached, None),
        "seconds_to_target": None,
        "final_accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        "total_steps": config.total_steps,
        "global_batch_size": config.global_batch_size,
        "n_eval_examples": None,
        "plan": {},
        "seconds": {},
        "versions": files.versions(),
        "git": files.git_commit(),
        "device": {},
        "unverified": list(config.unverified),
        "assumed": list(config.assumed),
    }
