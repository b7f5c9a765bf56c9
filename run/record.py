"""One run as a plain value, wherever it was read from.

Two measures are kept apart everywhere: (A) the first evaluation at or above the target, in steps,
and (B) the accuracy at the end of a fixed budget of steps.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from configs import base
from configs.fields import SAME_ROW


@dataclass(frozen=True)
class Point:
    """One evaluation: step = completed updates; accuracy a fraction; loss None if not finite."""

    step: int
    accuracy: float
    loss: float | None = None


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
      kind: "run" (a folder of ours) or "log" (an MLPerf result file).
      seed: None where a log does not tell.
      status: done | diverged | aborted.
      total_steps: the budget in steps; None where a log does not tell.
      steps_to_target: measure A; None if the target was not reached (or steps are not known).
      reached: whether any evaluation was at or above target_accuracy.
      final_accuracy: measure B, a fraction; None unless the whole budget was run.
      last_accuracy: of the last evaluation, at whatever step the run ended.
      seconds_to_target: from the run's clock; None if not reached or not measured.
      flags: what a reader must know about this run ("assumed: ...", "no config.json", ...).
    """

    path: str
    kind: str
    recipe: str
    optimizer: str
    dataset: str
    seed: int | None
    status: str
    target_accuracy: float
    global_batch_size: int | None
    total_steps: int | None
    steps_to_target: int | None
    reached: bool
    final_accuracy: float | None
    last_accuracy: float | None
    seconds_to_target: float | None
    curve: tuple[Point, ...] = ()
    flags: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    def identity(self) -> object:
        """Returns what two runs may not share: seed and setting, or the lines of a log."""
        if self.kind == "log":
            return self.record["content"]
        text = json.dumps(flatten(self.config), sort_keys=True, default=str)
        return self.recipe, self.dataset, self.global_batch_size, self.total_steps, self.seed, text

    def label(self) -> str:
        """Returns a short name for messages."""
        return f"{self.recipe}" + ("" if self.seed is None else f" seed {self.seed}")

    def reach_interval(self) -> tuple[float, float]:
        """Returns (lo, hi]: not yet at the target at step lo, at the target at step hi.

        hi is inf for a run that did not reach it; a diverged run never will, so its lo is the
        budget: it stays in n as "not reached by the end". Without a curve the hit is taken as
        exact (lo = hi).
        """
        if self.steps_to_target is not None:
            hit = float(self.steps_to_target)
            before = [p.step for p in self.curve if p.step < hit]
            return float(max(before, default=0.0)) if self.curve else hit, hit
        if self.status == "aborted" or self.total_steps is None:
            return (float(self.curve[-1].step) if self.curve else 0.0), math.inf
        return float(self.total_steps), math.inf


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {"schedule.peak_learning_rate": 1.0, ...} without the fields of `SAME_ROW`."""
    return {name: value for name, value in base.flatten(config).items() if name not in SAME_ROW}
