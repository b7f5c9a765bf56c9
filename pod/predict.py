"""Predicts the seconds of a run from its plan and one published time.

A plan estimates the time of each step. The published time of the LARS run (results/published)
gives the ratio of real to estimated time, and every other estimate is multiplied by this ratio.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from errors import UserError
from run import files

ANCHOR = "lars:mlperf_v07"
PUBLISHED = epath.Path(__file__).parents[1] / "results" / "published" / "seed_table.json"
PUBLISHED_TOPOLOGY = "v3:16x8"  # 256 cores
BASELINE, METHOD = "nesterov:nado", "shampoo:readme"
OPTIMIZER_PARTS = ("blocks", "statistics", "roots", "preconditioning", "gather", "optimizer")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Seconds of one recipe's run.

    Attributes:
      step_seconds, run_seconds: estimates from the plan alone.
      anchored_seconds: run_seconds times the anchor's ratio; None on another topology than the
        published runs'.
      published_seconds: the published (least, most), if any; None on another topology.
    """

    recipe: str
    step_seconds: float
    run_seconds: float
    anchored_seconds: float | None
    published_seconds: tuple[float, float] | None


def step_seconds(step: Mapping[str, Any]) -> float:
    """Returns the estimated seconds of one step: its cycles, then its collectives."""
    return step["compute_seconds"] + step["link_seconds"]


def parts(step: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of one step by part, collectives included.

    The sum of the gradients is the part `all_reduce`.
    """
    seconds = dict(step["compute_seconds_by_part"])
    for part, link_seconds in step["link_seconds_by_part"].items():
        seconds[part] = seconds.get(part, 0.0) + link_seconds
    return seconds


def optimizer_seconds(step: Mapping[str, Any]) -> float:
    """Returns the estimated seconds of the optimizer in one step, its gathers included."""
    return sum(seconds for part, seconds in parts(step).items() if part in OPTIMIZER_PARTS)


def run_seconds(plan: Mapping[str, Any]) -> float:
    """Returns the estimated seconds of all steps and all evaluations of a run."""
    n_eval_steps = plan["n_evaluations"] * plan["eval_batches"]
    train_seconds = plan["total_steps"] * step_seconds(plan["train_step"])
    return train_seconds + n_eval_steps * step_seconds(plan["eval_step"])


def published_runs() -> dict[str, Mapping[str, Any]]:
    """Returns {recipe: published run on a v3-256}, with its `steps` and `seconds` (least, most)."""
    return {row["recipe"]: row for row in files.read_json(PUBLISHED)["rows"] if row["recipe"]}


def predictions(plans: Sequence[Mapping[str, Any]]) -> list[Prediction]:
    """Returns a prediction for each plan that fits.

    Raises:
      UserError: the plan of the anchor is missing.
    """
    published = published_runs()
    fitting = [plan for plan in plans if plan["train_step"]["fits"]]
    comparable = [plan for plan in fitting if plan["topology"] == PUBLISHED_TOPOLOGY]
    anchors = [run_seconds(plan) for plan in comparable if plan["recipe"] == ANCHOR]
    if comparable and not anchors:
        raise UserError(f"recipe={ANCHOR}: has no plan, and all other predictions need it")
    result = []
    for plan in fitting:
        anchored_seconds = published_seconds = None
        if plan["topology"] == PUBLISHED_TOPOLOGY:
            ratio = sum(published[ANCHOR]["seconds"]) / 2 / anchors[0]
            anchored_seconds = ratio * run_seconds(plan)
            if plan["recipe"] in published:
                least, most = published[plan["recipe"]]["seconds"]
                published_seconds = least, most
        prediction = Prediction(
            recipe=plan["recipe"],
            step_seconds=step_seconds(plan["train_step"]),
            run_seconds=run_seconds(plan),
            anchored_seconds=anchored_seconds,
            published_seconds=published_seconds,
        )
        result.append(prediction)
    return result


def overhead_seconds(plans: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns by how many estimated seconds a step of METHOD exceeds one of BASELINE.

    None if one of them does not fit.
    """
    steps = {p["recipe"]: p["train_step"] for p in plans if p["train_step"]["fits"]}
    if BASELINE not in steps or METHOD not in steps:
        return None
    return step_seconds(steps[METHOD]) - step_seconds(steps[BASELINE])


def published_overhead_seconds() -> float:
    """Returns the same difference between the published runs: least seconds over steps."""
    runs = published_runs()
    per_step = {name: runs[name]["seconds"][0] / runs[name]["steps"] for name in (BASELINE, METHOD)}
    return per_step[METHOD] - per_step[BASELINE]
