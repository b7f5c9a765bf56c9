"""Evaluation by counting: every example once, accuracy divided once, at the end."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from etils import epath

import workdir
from reporting import curves


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One point of a curve, after `step` completed updates; loss is the mean over examples."""

    step: int
    n_correct: int
    n_seen: int
    loss: float

    @property
    def accuracy(self) -> float:
        return self.n_correct / self.n_seen


def count(
    eval_step: Callable[[Any, Mapping[str, Any]], Mapping[str, jax.Array]],
    state: Any,
    batches: Iterable[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:
    """Sums of every batch, over all devices of all hosts, on the host.

    Args:
      eval_step: returns n_correct, n_seen (int32) and loss_sum (float32), summed over the devices.
      batches: as `input_pipeline.eval_batches` gives them; padding is masked.
    """
    return jax.device_get([eval_step(state, batch) for batch in batches])


def total(sums: Sequence[Mapping[str, Any]], step: int, n_examples: int) -> Evaluation:
    """Adds the batches up.

    Raises:
      RuntimeError: not each of the split's `n_examples` was seen exactly once.
    """
    n_seen = sum(int(s["n_seen"]) for s in sums)
    if n_seen != n_examples:
        raise RuntimeError(f"evaluated {n_seen} of {n_examples} examples at step {step}")
    return Evaluation(
        step=step,
        n_correct=sum(int(s["n_correct"]) for s in sums),
        n_seen=n_seen,
        loss=sum(float(s["loss_sum"]) for s in sums) / n_seen,
    )


def steps_to_target(curve: Sequence[Evaluation], target_accuracy: float) -> int | None:
    """The first evaluated step with accuracy >= target (MLCommons's rule), or None."""
    return next((point.step for point in curve if point.accuracy >= target_accuracy), None)


def write_curve(path: epath.Path, curve: Sequence[Evaluation]) -> None:
    """Writes curve.csv; it holds no times, so two equal runs are equal byte for byte."""
    rows = [(p.step, p.n_correct, p.n_seen, f"{p.accuracy:.6f}", f"{p.loss:.9g}") for p in curve]
    workdir.write_csv(path, curves.COLUMNS, rows)
