"""What a run writes down while it goes: curve, timing, metrics, MLPerf log, events, progress."""

import dataclasses
import datetime
import errno
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict
from mlperf_logging.mllog import constants

import evaluator
import hosts
import mlperf_log
import workdir as files
from configs.plan import Plan
from input_pipeline.host import tensorflow

AVERAGED = ("loss", "accuracy", "skipped")  # the step's own; the optimizer's are of its state
STEPS_AHEAD = 2  # that the host may be ahead of the devices, which so never wait for it
TIMING_HEADER = ("step", "train_seconds", "eval_seconds", "images_per_second")


def summary_writer(folder: str) -> Any:
    """A clu SummaryWriter; clu imports TensorFlow, which `tensorflow` has then done, quietly."""
    tensorflow()
    from clu import metric_writers

    return metric_writers.SummaryWriter(folder)


@dataclasses.dataclass
class Record:
    """All that a resumed run must know of what came before: plain values, JSON as they are.

    Attributes:
      curve: [step, n_correct, n_seen, loss] of every evaluation.
      metrics: one {step, learning_rate, loss, ...} a logging interval: loss, accuracy and skipped
        are means over its steps, all else is that of its last one.
      timing: rows of timing.csv; seconds are cumulative.
      init_seconds, train_seconds, eval_seconds: spent in this run, interruptions not counted.
      cpu_seconds: of the host's cores, all of the above together.
      seconds_to_target: train and evaluation seconds up to the first hit, or None.
      bad_steps: consecutive steps up to now without a finite gradient and loss.
      n_hosts: that wrote it.
      n_log_lines: lines of result.txt.
      clock_began_ms, clock_seconds: wall clock at the first line, seconds since; see `Clock`.
    """

    curve: list[list[Any]] = dataclasses.field(default_factory=list)
    metrics: list[dict[str, float]] = dataclasses.field(default_factory=list)
    timing: list[list[float]] = dataclasses.field(default_factory=list)
    init_seconds: float = 0.0
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    cpu_seconds: float = 0.0
    seconds_to_target: float | None = None
    bad_steps: int = 0
    n_hosts: int = 1
    n_log_lines: int = 0
    clock_began_ms: int | None = None
    clock_seconds: float = 0.0


class Journal:
    """Writes a run's files as it goes; on hosts other than the first it only keeps count."""

    def __init__(
        self,
        config: ConfigDict,
        plan: Plan,
        folder: epath.Path,
        schedule: Callable[[Any], Any],
        record: Record,
    ):
        self.config, self.plan, self.folder = config, plan, folder
        self.learning_rates = np.asarray(jax.vmap(schedule)(np.arange(plan.total_steps)))
        self.record = record
        self.curve = [evaluator.Evaluation(*row) for row in record.curve]
        self.record.n_hosts = plan.n_hosts
        self.writes = hosts.is_first()
        self.clock = mlperf_log.Clock(record.clock_began_ms, record.clock_seconds)
        self.log = (
            mlperf_log.open_log(folder / "result.txt", record.n_log_lines) if self.writes else None
        )
        self.events = summary_writer(str(folder)) if self.writes else None
        self.divergence: dict[str, Any] | None = None
        self.waiting: list[Mapping[str, jax.Array]] = []  # metrics of steps not yet fetched
        self.since = time.monotonic()
        self.cpu_before = time.process_time() - record.cpu_seconds
        self.steps_timed, self.seconds_timed = 0, 0.0
        if not record.n_log_lines:
            for kind, key, value in mlperf_log.opening(config, plan, jax.devices()[0].device_kind):
                self.event(kind, key, value)

    @property
    def steps_to_target(self) -> int | None:
        return evaluator.steps_to_target(self.curve, self.config.target_accuracy)

    @property
    def diverged(self) -> bool:
        return self.divergence is not None

    def event(self, kind: str, key: str, value: Any = None, **metadata: Any) -> None:
        """One :::MLLOG line; kind is start, end or event."""
        self.record.n_log_lines += 1
        if self.log:
            write = getattr(self.log, kind)
            write(key=key, value=value, metadata=metadata or None, time_ms=self.clock.now_ms())

    def start(self, init_seconds: float) -> None:
        """The clock starts: everything is compiled, no example has been read."""
        if not self.record.init_seconds:
            self.event("end", constants.INIT_STOP)
            self.event("start", constants.RUN_START)
            self._block("start", 0)
        self.record.init_seconds += init_seconds
        self.since = time.monotonic()

    def record_step(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Keeps a step's metrics on the device; fetches them all at the logging steps.

        Waits for the step STEPS_AHEAD before this one: the batch of each step that is still to run
        lies on the device, and with accumulation it holds many micro-batches.
        """
        self.waiting.append(metrics)
        if len(self.waiting) > STEPS_AHEAD:
            jax.block_until_ready(self.waiting[-1 - STEPS_AHEAD])
        if step % self.config.log_every_steps == 0 or step in self.plan.eval_steps:
            self._fetch(step)

    def record_evaluation(self, point: evaluator.Evaluation) -> None:
        """Takes down an evaluation that has just ended; it began when the step was recorded."""
        record = self.record
        hit_before = self.steps_to_target is not None
        record.eval_seconds += time.monotonic() - self.since
        self.since = time.monotonic()  # what is written below belongs to the training after it
        record.curve.append([point.step, point.n_correct, point.n_seen, point.loss])
        self.curve.append(point)
        epoch = mlperf_log.epoch_of(point.step, self.plan)
        self._block("end", point.step)
        self.event("event", constants.EVAL_ACCURACY, point.accuracy, epoch_num=epoch)
        if not hit_before and self.steps_to_target is not None:
            record.seconds_to_target = record.train_seconds + record.eval_seconds
            self.event("end", constants.RUN_STOP, status=constants.SUCCESS)
        if point.step < self.plan.total_steps:
            self._block("start", point.step)
        self._write_events(point.step, {"eval_accuracy": point.accuracy, "eval_loss": point.loss})
        self.write_files()
        hit = "  target reached" if point.accuracy >= self.config.target_accuracy else ""
        self._say(
            f"step {point.step:>5}  evaluation: {point.n_correct} of {point.n_seen} right, "
            f"accuracy {point.accuracy:.4f}{hit}"
        )

    def has_evaluated(self, step: int) -> bool:
        return any(point.step == step for point in self.curve)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        early = self.config.stop_at_target and self.steps_to_target is not None
        return self.diverged or early or self.has_evaluated(self.plan.total_steps)

    def as_record(self, step: int) -> dict[str, Any]:
        """All that has happened up to `step`, for a checkpoint."""
        self._fetch(step)
        self.record.cpu_seconds = time.process_time() - self.cpu_before
        self.record.clock_began_ms = self.clock.began_ms
        self.record.clock_seconds = self.clock.seconds()
        return dataclasses.asdict(self.record)

    def close(self, step: int) -> None:
        """Writes what is left; a run that is over without the target says so in the log."""
        self._fetch(step)
        self.record.cpu_seconds = time.process_time() - self.cpu_before
        if self.is_over and self.steps_to_target is None:
            self.event("end", constants.RUN_STOP, status=constants.ABORTED)
        self.write_files()
        if self.events:
            self.events.close()
        if self.log:
            mlperf_log.close_log(self.log)

    def write_files(self) -> None:
        """Writes curve.csv, timing.csv and metrics.csv from the record."""
        if not self.writes:
            return
        evaluator.write_curve(self.folder / "curve.csv", self.curve)
        files.write_csv(self.folder / "timing.csv", TIMING_HEADER, self.record.timing)
        if self.record.metrics:
            header = list(self.record.metrics[0])
            rows = [[f"{row[key]:.9g}" for key in header] for row in self.record.metrics]
            files.write_csv(self.folder / "metrics.csv", header, rows)

    def _fetch(self, step: int) -> None:
        if not self.waiting:
            return
        fetched = jax.device_get(self.waiting)  # the only transfer; waits for the last step
        self.waiting = []
        elapsed = time.monotonic() - self.since
        self.since = time.monotonic()
        record, n = self.record, len(fetched)
        record.train_seconds += elapsed
        self.steps_timed += n
        self.seconds_timed += elapsed
        for i, metrics in enumerate(fetched, start=step - n + 1):
            finite = np.isfinite(metrics["loss"])
            bad = metrics["skipped"] > 0 or not finite
            record.bad_steps = record.bad_steps + 1 if bad else 0
            if record.bad_steps >= self.config.max_consecutive_skips:
                self.divergence = {"step": i, "metric": "skipped" if finite else "loss"}
                break
        row = {"step": step, "learning_rate": float(self.learning_rates[step - 1])}
        row |= {key: float(np.mean([m[key] for m in fetched])) for key in AVERAGED}
        row |= {key: float(last) for key, last in fetched[-1].items() if key not in AVERAGED}
        record.metrics.append(row)
        rate = n * self.plan.global_batch_size / elapsed
        record.timing.append(
            [step, round(record.train_seconds, 3), round(record.eval_seconds, 3), round(rate, 1)]
        )
        self._write_events(step, {k: v for k, v in row.items() if math.isfinite(v)})
        self._say(
            f"step {step:>5}/{self.plan.total_steps}  loss {row['loss']:.4f}  "
            f"lr {row['learning_rate']:.4g}  {rate:,.0f} images/s  ETA {self._eta(step)}"
        )

    def _write_events(self, step: int, values: Mapping[str, float]) -> None:
        if not self.events:
            return
        try:
            self.events.write_scalars(step, values)
        except Exception as e:  # TensorFlow has its own errors for a disk's
            raise OSError(errno.EIO, "TensorBoard's events file fails", str(self.folder)) from e

    def _eta(self, step: int) -> datetime.timedelta:
        """From this process's own steps, so that a resumed run does not count restored ones."""
        seconds = (self.plan.total_steps - step) * self.seconds_timed / self.steps_timed
        if self.curve:
            ahead = sum(s >= step for s in self.plan.eval_steps)
            seconds += ahead * self.record.eval_seconds / len(self.curve)
        return datetime.timedelta(seconds=round(seconds))

    def _block(self, kind: str, step: int) -> None:
        """A line where the training between two evaluations starts or ends."""
        if kind == "start":
            key, began = constants.BLOCK_START, step
            end = next((s for s in self.plan.eval_steps if s > step), step)
        else:
            key, end = constants.BLOCK_STOP, step
            began = max((s for s in self.plan.eval_steps if s < step), default=0)
        first = mlperf_log.epoch_of(began, self.plan)
        count = max(mlperf_log.epoch_of(end, self.plan) - first, 1)
        self.event(kind, key, first_epoch_num=first + 1, epoch_count=count)

    def _say(self, line: str) -> None:
        if self.writes:
            print(line, flush=True)
