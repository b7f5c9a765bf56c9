"""Writes run folders as a training run leaves them, for the tests of the report."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

N_EVAL = 1000


def write_run(
    out: Path,
    recipe: str = "lars:digits",
    seed: int = 0,
    counts: Sequence[int] = (500, 900, 980),
    *,
    eval_every_steps: int = 16,
    target: float = 0.97,
    n_eval: int = N_EVAL,
    status: str = "done",
    record: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Writes OUT/RECIPE/steps_N/seed_NNNN; `counts` are the right answers of n_eval."""
    steps = [eval_every_steps * (i + 1) for i in range(len(counts))]
    hit = next((s for s, c in zip(steps, counts, strict=True) if c / n_eval >= target), None)
    folder = out / recipe.replace(":", "-") / f"steps_{steps[-1]:04d}" / f"seed_{seed:04d}"
    folder.mkdir(parents=True)
    run = {
        "recipe": recipe, "optimizer": recipe.split(":")[0], "dataset": "digits", "seed": seed,
        "status": status, "target_accuracy": target, "steps_to_target": hit,
        "seconds_to_target": None if hit is None else hit * 0.1,
        "final_accuracy": counts[-1] / n_eval, "best_accuracy": max(counts) / n_eval,
        "total_steps": steps[-1], "global_batch_size": 640, "n_eval_examples": n_eval, "plan": {},
        "seconds": {"init": 1.0, "train": steps[-1] * 0.1, "eval": 0.5},
        "versions": {"jax": "0.10.2"}, "git": "abc1234",
        "device": {"kind": "cpu", "count": 1, "hosts": 1}, "unverified": [], "assumed": [],
    }  # fmt: skip
    rows = [f"{s},{c},{n_eval},{c / n_eval},0.5" for s, c in zip(steps, counts, strict=True)]
    metrics = [f"{s},{1 / s:.6g},0.5,0{',0.01' if 'shampoo' in recipe else ''}" for s in steps]
    columns = "step,learning_rate,loss,skipped" + (",root_error" if "shampoo" in recipe else "")
    (folder / "metrics.csv").write_text("\n".join([columns, *metrics, ""]))
    (folder / "curve.csv").write_text("\n".join(["step,n_correct,n_seen,accuracy,loss", *rows, ""]))
    run |= record or {}
    (folder / "run.json").write_text(json.dumps(run))
    settings = {key: run[key] for key in ("recipe", "seed", "total_steps", "global_batch_size")}
    settings |= {"stop_at_target": False, "optimizer": {"name": run["optimizer"]}}
    (folder / "config.json").write_text(json.dumps(settings | (config or {})))
    return folder
