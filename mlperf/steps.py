"""Converts epochs of an MLPerf log to steps if the learning-rate schedule determines the rounding.

A log counts epochs, and submitters round "steps per epoch" differently (Google's JAX code up over
a loop of four epochs, TensorFlow's loops down, others down for each epoch); some number epochs
from 0, some floor them. But the schedule is logged in steps: only the right rounding makes the
planned length (warm-up + decay) a whole number of loops. Without that, no steps are claimed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A plan longer than this many times the run is a coincidence, not this run's plan.
MAX_PLAN_RATIO = 1.5


@dataclass(frozen=True)
class Schedule:
    """Logged values about steps: sizes in examples, warm-up in epochs, the others in steps."""

    train_examples: float
    global_batch_size: float
    warmup_epochs: float | None
    decay_steps: float | None
    train_steps: float | None

    @property
    def steps_per_epoch(self) -> float:
        return self.train_examples / self.global_batch_size


def schedule_of(header: Mapping[str, Any]) -> Schedule:
    """Returns the schedule from the logged keys, whatever the optimizer's prefix."""

    def ending(suffix: str) -> float | None:
        return next((header[key] for key in sorted(header) if key.endswith(suffix)), None)

    return Schedule(
        header["train_samples"],
        header["global_batch_size"],
        ending("learning_rate_warmup_epochs"),
        ending("learning_rate_decay_steps"),
        ending("learning_rate_train_steps"),
    )


def derive(
    schedule: Schedule, epochs_per_block: Sequence[float]
) -> tuple[list[int], int | None] | None:
    """Returns (steps at each evaluation, planned steps), or None unless exactly one rounding fits.

    Args:
      epochs_per_block: epochs trained before each evaluation since the one before.
    """
    fits: dict[tuple[int, ...], set[int]] = {}
    for steps, unit, warmups in _roundings(schedule, epochs_per_block):
        for planned in _planned(schedule, warmups):
            whole = abs(planned - round(planned)) < 1e-6 and round(planned) % unit == 0
            if whole and steps[-1] <= round(planned) <= MAX_PLAN_RATIO * steps[-1]:
                fits.setdefault(tuple(steps), set()).add(round(planned))
    if len(fits) != 1:
        return None
    ((found, plans),) = fits.items()
    return list(found), plans.pop() if len(plans) == 1 else None


def _roundings(
    schedule: Schedule, epochs_per_block: Sequence[float]
) -> Iterator[tuple[list[int], int, list[float]]]:
    """Yields (steps at each evaluation, unit of the plan in steps, possible warm-up steps)."""
    exact, warmup = schedule.steps_per_epoch, schedule.warmup_epochs or 0.0
    for rounded in (math.ceil, math.floor):
        loop_epochs = epochs_per_block[0]
        if len(set(epochs_per_block)) == 1 and (loop := rounded(loop_epochs * exact)):
            steps = [loop * (i + 1) for i in range(len(epochs_per_block))]
            yield steps, loop, [warmup * loop / loop_epochs, math.floor(warmup * exact)]
        if epoch := rounded(exact):
            ends = [sum(epochs_per_block[: i + 1]) for i in range(len(epochs_per_block))]
            yield [round(end * epoch) for end in ends], epoch, [warmup * epoch]


def _planned(schedule: Schedule, warmups: Sequence[float]) -> list[float]:
    """Returns possible lengths: logged, or decay + warm-up with the two known conventions."""
    if schedule.train_steps is not None:
        return [schedule.train_steps]
    if schedule.decay_steps is None:
        return []
    lengths = [schedule.decay_steps + warmup - 1 for warmup in warmups]
    return [*lengths, schedule.decay_steps + warmups[0]]
