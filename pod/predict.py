"""From the plans of recipes to predicted seconds, anchored on one published time.

A plan gives cycles and bytes; the published time of LARS (results/published) says how long such a
step takes on the real pod. Every other prediction is that ratio times its own estimate.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from errors import UserError
from reporting import published

ANCHOR = "lars:mlperf_v07"
PUBLISHED_TOPOLOGY = "v3:16x8"  # 256 cores
BASELINE, METHOD = "nesterov:nado", "shampoo:readme"
OPTIMIZER_PARTS = ("rows", "statistics", "roots", "preconditioning", "gather", "optimizer")


def step_seconds(step: Mapping[str, Any]) -> float:
    """Estimated seconds of one step: its cycles, then the time of its collectives on the links."""
    return step["compute_seconds"] + step["link_seconds"]


def parts(step: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of one step by part; what the links take of the gradients' sum is `all_reduce`."""
    found = dict(step["compute_seconds_by_part"])
    for part, seconds in step["link_seconds_by_part"].items():
        found[part] = found.get(part, 0.0) + seconds
    return found


def optimizer_seconds(step: Mapping[str, Any]) -> float:
    """Estimated seconds of one step that the optimizer takes, its gathers included."""
    return sum(seconds for part, seconds in parts(step).items() if part in OPTIMIZER_PARTS)


def run_seconds(plan: Mapping[str, Any]) -> float:
    """Estimated seconds of a whole run: all steps and all evaluations, nothing else."""
    evaluations = plan["n_evaluations"] * plan["eval_batches"]
    return plan["total_steps"] * step_seconds(plan["train_step"]) + evaluations * step_seconds(
        plan["eval_step"]
    )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """One recipe's run.

    Attributes:
      anchored_seconds: by the anchor's ratio; None on another slice than the published runs'.
      published_seconds: the range in the literature, if there is one; None on another slice.
    """

    recipe: str
    step_seconds: float
    run_seconds: float
    anchored_seconds: float | None
    published_seconds: tuple[float, float] | None


def published_seconds() -> dict[str, tuple[float, float]]:
    """The published (least, most) seconds of a run on v3-256, by recipe."""
    return {
        entry["recipe"]: (entry["seconds"][0], entry["seconds"][1])
        for entry in published.load()
        if entry.get("recipe") and entry.get("seconds") and "v3-256" in (entry["hardware"] or "")
    }


def predictions(plans: Sequence[Mapping[str, Any]]) -> list[Prediction]:
    """One prediction for each plan that fits.

    Raises:
      UserError: the anchor's plan is missing.
    """
    known = published_seconds()
    fitting = [plan for plan in plans if plan["train_step"]["fits"]]
    there = [plan for plan in fitting if plan["topology"] == PUBLISHED_TOPOLOGY]
    anchors = [run_seconds(plan) for plan in there if plan["recipe"] == ANCHOR]
    if len(there) > len(anchors) == 0:
        raise UserError(f"recipe={ANCHOR}: has no plan here, and all others are anchored on it")

    def predicted(plan: Mapping[str, Any]) -> Prediction:
        estimate, is_there = run_seconds(plan), plan["topology"] == PUBLISHED_TOPOLOGY
        return Prediction(
            recipe=plan["recipe"],
            step_seconds=step_seconds(plan["train_step"]),
            run_seconds=estimate,
            anchored_seconds=sum(known[ANCHOR]) / 2 / anchors[0] * estimate if is_there else None,
            published_seconds=known.get(plan["recipe"]) if is_there else None,
        )

    return [predicted(plan) for plan in fitting]


def overhead_seconds(plans: Sequence[Mapping[str, Any]]) -> float | None:
    """Estimated seconds that a step of METHOD takes longer than one of BASELINE, if both fit."""
    steps = {p["recipe"]: p["train_step"] for p in plans if p["train_step"]["fits"]}
    if BASELINE not in steps or METHOD not in steps:
        return None
    return step_seconds(steps[METHOD]) - step_seconds(steps[BASELINE])


def published_overhead_seconds() -> float:
    """The same difference in the published runs: seconds of a run over its steps."""
    table = {e["recipe"]: e for e in published.load() if e.get("recipe") and e.get("seconds")}
    per_step = {r: table[r]["seconds"][0] / table[r]["steps"] for r in (BASELINE, METHOD)}
    return per_step[METHOD] - per_step[BASELINE]
