"""Reads MLPerf result files of any submitter as runs."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from errors import UserError
from mlperf import evaluations as log_evaluations
from mlperf import lines as mllog
from mlperf import steps as log_steps
from mlperf.evaluations import Evaluation
from mlperf.lines import Line, Log, as_number
from run.record import Point, Run
from run.schema import reaches

TARGET_ACCURACY = 0.759  # MLPerf training rules, ResNet, since v0.6
TRAIN_EXAMPLES = 1_281_167
OPTIMIZERS = {"distributed shampoo": "shampoo", "shampoo": "shampoo", "lars": "lars", "sgd": "sgd"}
# Others may change (throughput) or differ between workers (seed).
SAID_ONCE = (
    *("submission_org", "submission_platform", "submission_division", "submission_benchmark"),
    *("opt_name", "global_batch_size", "train_samples", "eval_samples"),
)
HYPERPARAMETERS = ("lars_", "sgd_", "opt_", "shampoo_", "model_bn_span", "gradient_accumulation")


def read_log(path: Path) -> list[Run]:
    """Returns the runs in one result file.

    Raises:
      UserError: not an MLPerf log, another benchmark's, or numbers that cannot be.
    """
    logs = mllog.read(path)
    return [_run(path, log, f" run {i}" if len(logs) > 1 else "") for i, log in enumerate(logs, 1)]


def _run(path: Path, log: Log, part: str) -> Run:
    header, flags = _header(log)
    benchmark = header.get("submission_benchmark")
    if benchmark is not None and str(benchmark).lower() not in ("resnet", "resnet50"):
        raise UserError(f"{path.name}{part}: a log of {benchmark!r}, not of resnet")
    flags += _other_data(header, f"{path.name}{part}")
    if benchmark is None:
        flags.append("submission_benchmark is not logged: taken as resnet")
    evaluations = log_evaluations.evaluations(log, f"{path.name}{part}")
    batch = _batch(header, f"{path.name}{part}")
    steps, planned = _steps(header, batch, evaluations)
    hit = next((i for i, e in enumerate(evaluations) if reaches(e.accuracy, TARGET_ACCURACY)), None)
    status, seconds, notes = _clock(log, hit is not None)
    accuracies = [e.accuracy for e in evaluations]
    curve = tuple(Point(s, a) for s, a in zip(steps, accuracies, strict=False))
    name, guessed = _optimizer(header)
    flags += guessed
    ended = bool(curve) and planned == curve[-1].step
    return Run(
        path=f"{path}{part}",
        kind="log",
        recipe=_name(header, name),
        optimizer=OPTIMIZERS.get(name, name),
        dataset="imagenet2012",
        seed=_seed(log),
        status=status,
        target_accuracy=TARGET_ACCURACY,
        global_batch_size=batch,
        total_steps=planned,
        steps_to_target=steps[hit] if hit is not None and steps else None,
        reached=hit is not None,
        final_accuracy=accuracies[-1] if ended else None,
        last_accuracy=accuracies[-1] if accuracies else None,
        seconds_to_target=seconds,
        curve=curve,
        flags=tuple(flags + notes + _step_flags(steps, evaluations)),
        config={k: v for k, v in header.items() if k.startswith(HYPERPARAMETERS)},
        record=_record(path, header, log, evaluations, hit),
    )


def _record(
    path: Path, header: dict[str, Any], log: Log, found: Sequence[Evaluation], hit: int | None
) -> dict[str, Any]:
    start, stop = log.first("run_start"), log.first("run_stop")
    return {
        "run_start_ms": start.time_ms if start else None,
        "folder": str(path.parent),
        "org": header.get("submission_org"),
        "platform": header.get("submission_platform"),
        "division": header.get("submission_division"),
        "content": hashlib.sha256(repr(log.lines).encode()).hexdigest(),
        "log_status": _status_word(stop) if stop else None,
        "epochs_to_target": None if hit is None else found[hit].epoch,
        "accuracies": [e.accuracy for e in found],
    }


def _header(log: Log) -> tuple[dict[str, Any], list[str]]:
    """Returns (first value of each key, flags)."""
    header: dict[str, Any] = {}
    conflicts = set()
    for line in log.lines:
        if line.value is None or isinstance(line.value, dict | list):
            continue
        if header.setdefault(line.key, line.value) != line.value and line.key in SAID_ONCE:
            conflicts.add(line.key)
    flags = [f"logged with different values: {', '.join(sorted(conflicts))}"] if conflicts else []
    if log.n_broken:
        flags.append(f"{log.n_broken} broken {mllog.TOKEN} lines: something may be missing")
    return header, flags


def _other_data(header: dict[str, Any], name: str) -> list[str]:
    """Returns flags for sizes near ImageNet's (a dropped remainder, padding); others raise."""
    flags = []
    for key, expected in (("train_samples", TRAIN_EXAMPLES), ("eval_samples", 50_000)):
        number = as_number(header.get(key))
        if number is None or number == expected:
            continue
        if key == "train_samples" and abs(number / expected - 1) > 0.02:
            raise UserError(f"{name}: train_samples={number:.0f}: not ImageNet")
        flags.append(f"{key}={number:.0f} is logged, ImageNet has {expected}")
    return flags


def _optimizer(header: dict[str, Any]) -> tuple[str, list[str]]:
    if header.get("opt_name"):
        return " ".join(str(header["opt_name"]).lower().split()), []
    for prefix in ("lars", "sgd"):
        if any(key.startswith(f"{prefix}_") for key in header):
            return prefix, [f"opt_name is not logged: {prefix} from the names of its settings"]
    return "unknown", ["opt_name is not logged"]


def _batch(header: dict[str, Any], name: str) -> int | None:
    value = header.get("global_batch_size")
    number = as_number(value)
    if value is not None and (number is None or number < 1 or number != int(number)):
        raise UserError(f"{name}: global_batch_size={value!r} is not a batch size")
    return None if number is None else int(number)


def _name(header: dict[str, Any], optimizer: str) -> str:
    who = [header.get("submission_org"), header.get("submission_platform")]
    words = [" ".join(str(w).split()) for w in who if w]
    return " ".join([*words, optimizer]) if words else f"unnamed log, {optimizer}"


def _seed(log: Log) -> int | None:
    """Returns the logged seed, or None if there is none or each worker logs another."""
    seeds = {as_number(value) for value in log.values("seed")} - {None}
    return int(seeds.pop() or 0) if len(seeds) == 1 else None


def _steps(
    header: dict[str, Any], batch: int | None, found: Sequence[Evaluation]
) -> tuple[list[int], int | None]:
    """Returns (steps of the evaluations, planned steps); ([], None) if unknown."""
    blocks = log_evaluations.epochs_per_block(found)
    if batch is None or not blocks or not log_evaluations.numbers_agree(found, blocks):
        return [], None
    numbers = {key: n for key, v in header.items() if (n := as_number(v)) is not None}
    known = {"train_samples": TRAIN_EXAMPLES, "global_batch_size": batch}
    return log_steps.derive(log_steps.schedule_of(numbers | known), blocks) or ([], None)


def _step_flags(steps: Sequence[int], found: Sequence[Evaluation]) -> list[str]:
    if not found:
        return ["no evaluation logged"]
    if not steps:
        return ["steps: not logged, and the schedule does not tell them; epochs only"]
    return ["steps derived from the logged epochs and schedule"]


def _status_word(stop: Line) -> str:
    value = stop.value if isinstance(stop.value, dict) else {"status": stop.value}
    return str(stop.metadata.get("status") or value.get("status") or "not logged")


def _clock(log: Log, reached: bool) -> tuple[str, float | None, list[str]]:
    """Returns (status, seconds from run_start to run_stop if it succeeded, flags)."""
    start, stop = log.first("run_start"), log.first("run_stop")
    if stop is None:
        return "aborted", None, ["no run_stop: time not known"]
    word, flags = _status_word(stop), []
    if (word == "success") != reached:
        flags.append(f"run_stop says {word}, but the target was{'' if reached else ' not'} reached")
    if len({_status_word(line) for line in log.lines if line.key == "run_stop"}) > 1:
        flags.append("several run_stop lines that disagree: the first is taken")
    status = "done" if word == "success" or reached else "aborted"
    if start is None or start.time_ms is None or stop.time_ms is None:
        return status, None, [*flags, "run_start or run_stop without a time: time not known"]
    seconds = (stop.time_ms - start.time_ms) / 1000
    if seconds <= 0:
        return status, None, [*flags, f"run_stop {-seconds:g} s before run_start: time left out"]
    return status, seconds if word == "success" and reached else None, flags
