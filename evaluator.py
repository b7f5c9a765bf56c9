"""Evaluation by integer counts: every example exactly once, one division at the end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from run.schema import Evaluation


def count(
    eval_step: Callable[[Any, Mapping[str, Any]], Mapping[str, jax.Array]],
    state: Any,
    batches: Iterable[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:
    """Returns the sums of every batch over all devices of all hosts, fetched to this host.

    Args:
      eval_step: returns n_correct, n_seen (int32) and loss_sum (float32), summed over the devices.
      batches: from `input_pipeline.eval_batches`; padding is masked.
    """
    return jax.device_get([eval_step(state, batch) for batch in batches])


def total(sums: Sequence[Mapping[str, Any]], step: int, n_examples: int) -> Evaluation:
    """Adds the sums of all batches.

    Raises:
      RuntimeError: the number of examples differs from the split's `n_examples`.
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
