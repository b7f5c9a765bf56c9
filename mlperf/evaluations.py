"""Evaluations of an MLPerf log and the epochs between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from errors import UserError
from mlperf.lines import Line, Log, as_number


@dataclass(frozen=True)
class Evaluation:
    """An eval_accuracy line: the logged epoch or None, and the accuracy as a fraction."""

    epoch: float | None
    accuracy: float
    n_blocks: int
    block_epochs: float | None


def evaluations(log: Log, name: str) -> list[Evaluation]:
    """Returns the evaluations in order, without the copies that other workers log."""
    found: list[Evaluation] = []
    n_blocks, block_epochs = 0, None
    for line in log.lines:
        if line.key == "block_start":
            count = as_number(line.metadata.get("epoch_count"))
            n_blocks, block_epochs = n_blocks + 1, count
        if line.key == "eval_accuracy":
            new = Evaluation(_epoch(line), _accuracy(line, name), n_blocks, block_epochs)
            same = [e for e in found if e.epoch == new.epoch and new.epoch is not None]
            # A short last block may round to the epoch before; without one it is a contradiction.
            if any(e.accuracy != new.accuracy and e.n_blocks == n_blocks for e in same):
                raise UserError(f"{name}: two different accuracies at epoch {new.epoch:g}")
            found += [] if any(e.accuracy == new.accuracy for e in same) else [new]
    return found


def _accuracy(line: Line, name: str) -> float:
    value = line.value
    if isinstance(value, dict):
        known = [value[k] for k in ("accuracy", "eval_accuracy", "value", "top1") if k in value]
        value = known[0] if known else None
    number = as_number(value)
    if number is None or not 0 <= number <= 1:
        raise UserError(f"{name}: eval_accuracy={line.value!r} is not a fraction in [0, 1]")
    return number


def _epoch(line: Line) -> float | None:
    places = [line.metadata, line.value if isinstance(line.value, dict) else {}]
    found = [as_number(place.get("epoch_num")) for place in places]
    return next((epoch for epoch in found if epoch is not None), None)


def numbers_agree(found: Sequence[Evaluation], blocks: Sequence[float]) -> bool:
    """Returns whether epoch numbers and blocks agree, up to numbering from 0 and rounding down.

    Some logs say "4 epochs" of a first block that had one.
    """
    first, last = found[0].epoch, found[-1].epoch
    if first is None or last is None:
        return False
    return abs(first - blocks[0]) <= 1 and abs(last - sum(blocks)) <= 2


def epochs_per_block(found: Sequence[Evaluation]) -> list[float]:
    """Returns the epochs before each evaluation; [] if blocks and evaluations do not match."""
    if found and all(e.n_blocks == i and e.block_epochs for i, e in enumerate(found, start=1)):
        return [e.block_epochs or 0.0 for e in found]
    epochs = [e.epoch for e in found]
    gaps = {b - a for a, b in pairwise(epochs) if a is not None and b is not None}
    if len(gaps) != 1 or None in epochs:
        return []
    gap = gaps.pop()
    # Numbered from 0 or from 1; anything else (floored numbers, an offset) is ambiguous.
    return [gap] * len(epochs) if epochs[0] in (gap, gap - 1) and gap > 0 else []
