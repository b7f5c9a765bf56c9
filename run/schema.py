"""The files of a run, run.json and curve.csv: the one place that writes, reads and checks them."""

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from errors import UserError
from run import files

STATUSES = ("done", "diverged", "aborted")
CURVE_COLUMNS = ["step", "n_correct", "n_seen", "accuracy", "loss"]
TIMING_COLUMNS = ["step", "train_seconds", "eval_seconds", "images_per_second"]
REQUIRED = ("recipe", "optimizer", "dataset", "seed", "status", "target_accuracy", "total_steps")
# The average of two counts may equal the target while their float average misses it by one ulp.
TIE_TOLERANCE = 1e-9
# Half of one example in 50,000 is 1e-5: a larger difference is a contradiction, not rounding.
ACCURACY_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One point of a curve, after `step` completed updates.

    `loss` is the mean over the examples; NaN if it was not finite when it was read.
    """

    step: int
    n_correct: int
    n_seen: int
    loss: float

    @property
    def accuracy(self) -> float:
        return self.n_correct / self.n_seen


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The content of run.json. Accuracies are fractions; None where there is no value.

    Attributes:
      status: done, diverged or aborted.
      reason: why a sweep gave the run up.
      diverged: the step, the metric that was not finite, and the last checkpoint before.
      seconds: init, train, eval and cpu.
      segments: `identity.Segment` of each process that continued the run.
      unverified, assumed: config fields whose published value is recollected or missing.
    """

    recipe: str
    optimizer: str
    dataset: str
    seed: int
    status: str
    target_accuracy: float
    steps_to_target: int | None
    seconds_to_target: float | None
    final_accuracy: float | None
    best_accuracy: float | None
    total_steps: int
    global_batch_size: int
    n_eval_examples: int | None
    plan: Mapping[str, Any]
    seconds: Mapping[str, float]
    versions: Mapping[str, str]
    git: str
    device: Mapping[str, Any]
    unverified: Sequence[str]
    assumed: Sequence[str]
    diverged: Mapping[str, Any] | None = None
    reason: str | None = None
    segments: Sequence[Mapping[str, Any]] = ()


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run as read from its files, which agree with each other.

    Attributes:
      record: run.json.
      config: config.json; {} without one.
      curve: None without curve.csv.
      notes: what a reader must know, such as "no curve.csv".
      final_accuracy: at the end of the whole budget; None if the run ended before.
      last_accuracy: of the last evaluation.
    """

    record: Mapping[str, Any]
    config: Mapping[str, Any]
    curve: tuple[Evaluation, ...] | None
    notes: tuple[str, ...]
    steps_to_target: int | None
    seconds_to_target: float | None
    final_accuracy: float | None
    last_accuracy: float | None


def reaches(accuracy: float, target_accuracy: float) -> bool:
    """Returns whether an accuracy is at or above the target (MLCommons' rule)."""
    return accuracy >= target_accuracy - TIE_TOLERANCE


def steps_to_target(curve: Sequence[Evaluation], target_accuracy: float) -> int | None:
    """Returns the first evaluated step that reaches the target, or None."""
    return next((e.step for e in curve if reaches(e.accuracy, target_accuracy)), None)


def write_curve(path: epath.Path, curve: Sequence[Evaluation]) -> None:
    """Writes curve.csv. It holds no times: equal runs are equal byte for byte."""
    rows = [(e.step, e.n_correct, e.n_seen, f"{e.accuracy:.6f}", f"{e.loss:.9g}") for e in curve]
    files.write_csv(path, CURVE_COLUMNS, rows)


def write_result(folder: epath.Path, result: RunResult) -> None:
    """Writes run.json."""
    files.write_json(folder / "run.json", dataclasses.asdict(result))


def result_of(record: Mapping[str, Any], file: str) -> RunResult:
    """Returns a run.json of this version of the code as a RunResult; else raises UserError."""
    names = {field.name for field in dataclasses.fields(RunResult)}
    if set(record) != names:
        raise UserError(
            f"{file}: was not written by this version of the code; use another workdir, or "
            "remove this one"
        )
    return RunResult(**record)


def read_run(folder: epath.Path) -> StoredRun:
    """Reads and checks run.json, config.json and curve.csv.

    Raises:
      UserError: a file is damaged, or two files contradict each other.
      FileNotFoundError: there is no run.json.
    """
    record = files.read_json(folder / "run.json")
    config_file = folder / "config.json"
    config = files.read_json(config_file) if config_file.exists() else {}
    return check_run(record, config, read_curve_text(folder / "curve.csv"))


def check_run(
    record: Mapping[str, Any], config: Mapping[str, Any], curve_text: str | None
) -> StoredRun:
    """Returns the run with these contents of its files; UserError if they make no sense."""
    missing = [key for key in REQUIRED if record.get(key) is None]
    if missing:
        raise UserError(f"run.json: lacks {', '.join(missing)}")
    if record["status"] not in STATUSES:
        raise UserError(f"run.json: status={record['status']!r}: must be {', '.join(STATUSES)}")
    for key in ("recipe", "optimizer", "dataset"):
        _check_name(record, key)
    _check_config(record, config)
    notes = [] if config else ["no config.json"]
    curve, curve_notes = parse_curve(curve_text, may_be_cut=record["status"] != "done")
    target = number(record, "target_accuracy", 0, 1)
    total_steps = whole_number(record, "total_steps", 1)
    whole_number(record, "seed", 0)
    whole_number(record, "global_batch_size", 1)
    assert target is not None
    assert total_steps is not None
    reached = _check_steps_to_target(record, curve, target, total_steps)
    final, last = _check_final_accuracy(record, config, curve, total_steps, reached)
    try:
        seconds = number(record, "seconds_to_target", 0, 1e9)
    except UserError as error:
        seconds, notes = None, [*notes, f"time ignored ({error})"]
    return StoredRun(
        record=record,
        config=config,
        curve=curve if curve_text is not None else None,
        notes=(*notes, *curve_notes),
        steps_to_target=reached,
        seconds_to_target=None if reached is None else seconds,
        final_accuracy=final,
        last_accuracy=last,
    )


def number(record: Mapping[str, Any], key: str, lo: float, hi: float) -> float | None:
    """Returns record[key] as a float in [lo, hi], None if absent or null; else UserError."""
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not lo <= value <= hi:
        raise UserError(f"run.json: {key}={value!r}: must be a number in [{lo:g}, {hi:g}]")
    return float(value)


def whole_number(record: Mapping[str, Any], key: str, lo: int) -> int | None:
    """Returns record[key] as an int >= lo, None if absent or null; else UserError."""
    value = number(record, key, lo, 2**53)
    if value is not None and value != int(value):
        raise UserError(f"run.json: {key}={value!r}: must be a whole number")
    return None if value is None else int(value)


def _check_name(record: Mapping[str, Any], key: str) -> None:
    value = record[key]
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise UserError(f"run.json: {key}={value!r}: must be a name")


def _check_config(record: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    for key in ("recipe", "seed", "global_batch_size", "target_accuracy", "total_steps"):
        if key in config and key in record and config[key] != record[key]:
            raise UserError(
                f"run.json has {key}={record[key]!r}, config.json has {config[key]!r}: "
                "files of two runs?"
            )


def _check_steps_to_target(
    record: Mapping[str, Any], curve: Sequence[Evaluation], target: float, total_steps: int
) -> int | None:
    claimed = whole_number(record, "steps_to_target", 1)
    if claimed is not None and claimed > total_steps:
        raise UserError(f"run.json: steps_to_target={claimed} is after the {total_steps} steps")
    if not curve:
        return claimed
    computed = steps_to_target(curve, target)
    if claimed != computed:
        raise UserError(f"run.json has steps_to_target={claimed}, but curve.csv has {computed}")
    return computed


def _check_final_accuracy(
    record: Mapping[str, Any],
    config: Mapping[str, Any],
    curve: Sequence[Evaluation],
    total_steps: int,
    reached: int | None,
) -> tuple[float | None, float | None]:
    """Returns (accuracy at the end of the budget or None, accuracy of the last evaluation)."""
    claimed = number(record, "final_accuracy", 0, 1)
    last = curve[-1].accuracy if curve else claimed
    if record["status"] != "done":
        return None, last
    stopped = bool(config.get("stop_at_target")) and reached is not None
    if not curve:
        if claimed is None:
            raise UserError("run.json: status=done, but no final_accuracy and no curve.csv")
        return (None if stopped and reached != total_steps else claimed), last
    if curve[-1].step > total_steps:
        raise UserError(f"curve.csv: step {curve[-1].step} is after the {total_steps} steps")
    if claimed is not None and abs(claimed - curve[-1].accuracy) > ACCURACY_TOLERANCE:
        raise UserError(
            f"run.json has final_accuracy={claimed:g}, but curve.csv has {curve[-1].accuracy:g}"
        )
    if curve[-1].step < total_steps and not stopped:
        raise UserError(
            f"run.json: status=done, but curve.csv ends at step {curve[-1].step} of {total_steps}"
        )
    return (curve[-1].accuracy if curve[-1].step == total_steps else None), last


def read_curve_text(path: epath.Path) -> str | None:
    """Returns the content of a curve.csv, None without one; UserError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8") if path.exists() else None
    except UnicodeDecodeError as error:
        raise UserError(f"curve.csv: is not text ({error})") from error


def parse_curve(
    text: str | None, *, may_be_cut: bool
) -> tuple[tuple[Evaluation, ...], tuple[str, ...]]:
    """Returns (evaluations with strictly rising steps, notes).

    Args:
      text: of a curve.csv; None gives no evaluations and a note.
      may_be_cut: whether a broken last line is dropped (the run was interrupted).

    Raises:
      UserError: a broken line, impossible counts, or steps that go back.
    """
    if text is None:
        return (), ("no curve.csv",)
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise UserError(f"curve.csv: is not text ({error})") from error
    if not lines:
        return (), ("curve.csv is empty",)
    if lines[0][: len(CURVE_COLUMNS)] != CURVE_COLUMNS:
        raise UserError(f"curve.csv: the header is {','.join(lines[0])!r:.60}")
    curve: list[Evaluation] = []
    for line, cells in enumerate(lines[1:], start=2):
        try:
            evaluation = _parse_cells(cells)
        except ValueError as error:
            if may_be_cut and line == len(lines):
                return tuple(curve), ("dropped the last line of curve.csv, which is cut off",)
            raise UserError(f"curve.csv, line {line}: {error}") from error
        if curve and evaluation.step <= curve[-1].step:
            raise UserError(
                f"curve.csv, line {line}: step {evaluation.step} after step {curve[-1].step}: "
                "two runs in one folder?"
            )
        curve.append(evaluation)
    return tuple(curve), ()


def _parse_cells(cells: Sequence[str]) -> Evaluation:
    if len(cells) < len(CURVE_COLUMNS):
        raise ValueError(f"has {len(cells)} cells, must have {len(CURVE_COLUMNS)}")
    step, n_correct, n_seen = (int(cell) for cell in cells[:3])
    accuracy, loss = float(cells[3]), float(cells[4] or "nan")
    if step < 0 or n_seen <= 0 or not 0 <= n_correct <= n_seen:
        raise ValueError(f"step {step}, {n_correct} of {n_seen} correct: impossible counts")
    # The accuracy has at least six digits; the counts are the measurement.
    if not abs(accuracy - n_correct / n_seen) <= 1e-5:
        raise ValueError(f"accuracy {accuracy} is not {n_correct}/{n_seen}")
    return Evaluation(step, n_correct, n_seen, loss if math.isfinite(loss) else math.nan)
