"""What a run writes while it trains: curve, timing, metrics, MLPerf log, events, progress lines."""

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

from configs.plan import Plan
from input_pipeline.host import tensorflow
from run import distributed, files, mllog, schema

# Metrics of single steps are averaged; those of the optimizer's state are read at the last step.
AVERAGED = ("loss", "accuracy", "skipped")
STEPS_AHEAD = 2  # steps that the host may run ahead, so that devices never wait for it


def summary_writer(folder: str) -> Any:
    """Returns a clu SummaryWriter. clu imports TensorFlow; `tensorflow` does so quietly first."""
    tensorflow()
    from clu import metric_writers

    return metric_writers.SummaryWriter(folder)


@dataclasses.dataclass
class RunProgress:
    """Everything that a resumed run must know about the steps before: JSON values.

    Attributes:
      curve: [step, n_correct, n_seen, loss] of every evaluation.
      metrics: one {step, learning_rate, loss, ...} per logging interval. `AVERAGED` are means over
        its steps; the others are those of its last step.
      timing: rows of timing.csv; seconds are cumulative.
      init_seconds, train_seconds, eval_seconds: without the time between processes.
      cpu_seconds: of this host's cores, all of the above together.
      seconds_to_target: training and evaluation up to the first hit, or None.
      bad_steps: consecutive steps, up to the last one, without a finite gradient and loss.
      n_hosts: number of hosts that wrote this.
      log_lines: all lines of result.txt.
      clock_start_ms, clock_seconds: of `mllog.Clock`.
      segments: `identity.Segment` of each process that continued the run.
      checksum: of the checkpoint's arrays; None if not computed.
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
    log_lines: list[str] = dataclasses.field(default_factory=list)
    clock_start_ms: int | None = None
    clock_seconds: float = 0.0
    segments: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    checksum: str | None = None


class RunLogger:
    """Writes a run's files. On hosts other than the first it only tracks progress."""

    def __init__(
        self,
        config: ConfigDict,
        plan: Plan,
        folder: epath.Path,
        schedule: Callable[[Any], Any],
        progress: RunProgress,
    ):
        self.config, self.plan, self.folder = config, plan, folder
        self.learning_rates = np.asarray(jax.vmap(schedule)(np.arange(plan.total_steps)))
        self.progress = progress
        self.curve = [schema.Evaluation(*row) for row in progress.curve]
        self.progress.n_hosts = plan.n_hosts
        self.is_writer = distributed.is_first()
        self.clock = mllog.Clock(progress.clock_start_ms, progress.clock_seconds)
        is_new = not progress.log_lines
        self.log = (
            mllog.open_log(folder / "result.txt", progress.log_lines) if self.is_writer else None
        )
        self.events = summary_writer(str(folder)) if self.is_writer else None
        self.divergence: dict[str, Any] | None = None
        self.pending: list[Mapping[str, jax.Array]] = []  # metrics still on the devices
        self.interval_start = time.monotonic()
        self.cpu_start = time.process_time() - progress.cpu_seconds
        self.steps_timed, self.seconds_timed = 0, 0.0
        if is_new:
            for kind, key, value in mllog.opening(config, plan, jax.devices()[0].device_kind):
                self.event(kind, key, value)

    @property
    def steps_to_target(self) -> int | None:
        return schema.steps_to_target(self.curve, self.config.target_accuracy)

    @property
    def diverged(self) -> bool:
        return self.divergence is not None

    def event(self, kind: str, key: str, value: Any = None, **metadata: Any) -> None:
        """Writes one :::MLLOG line; kind is start, end or event."""
        if self.log:
            write = getattr(self.log, kind)
            write(key=key, value=value, metadata=metadata or None, time_ms=self.clock.now_ms())

    def start(self, init_seconds: float) -> None:
        """Starts the clock, once everything is compiled and before an example is read."""
        if not self.progress.init_seconds:
            self.event("end", constants.INIT_STOP)
            self.event("start", constants.RUN_START)
            self._log_block("start", 0)
        self.progress.init_seconds += init_seconds
        self.interval_start = time.monotonic()

    def record_step(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Keeps a step's metrics on the devices, and fetches all of them at logging steps.

        Waits for the step `STEPS_AHEAD` before this one. The batch of each step that has not run
        yet occupies device memory, and with accumulation it holds many micro-batches.
        """
        self.pending.append(metrics)
        if len(self.pending) > STEPS_AHEAD:
            jax.block_until_ready(self.pending[-1 - STEPS_AHEAD])
        if step % self.config.log_every_steps == 0 or step in self.plan.eval_steps:
            self._fetch(step)

    def record_evaluation(self, evaluation: schema.Evaluation) -> None:
        """Records an evaluation that has just ended and that began when its step was recorded."""
        progress, step = self.progress, evaluation.step
        was_reached = self.steps_to_target is not None
        progress.eval_seconds += time.monotonic() - self.interval_start
        self.interval_start = time.monotonic()  # writing files counts as training
        progress.curve.append(list(dataclasses.astuple(evaluation)))
        self.curve.append(evaluation)
        epoch = mllog.epoch_of(step, self.plan)
        self._log_block("end", step)
        self.event("event", constants.EVAL_ACCURACY, evaluation.accuracy, epoch_num=epoch)
        if not was_reached and self.steps_to_target is not None:
            progress.seconds_to_target = progress.train_seconds + progress.eval_seconds
            self.event("end", constants.RUN_STOP, status=constants.SUCCESS)
        if step < self.plan.total_steps:
            self._log_block("start", step)
        self._write_events(
            step, {"eval_accuracy": evaluation.accuracy, "eval_loss": evaluation.loss}
        )
        self.write_files()
        is_hit = schema.reaches(evaluation.accuracy, self.config.target_accuracy)
        self._print(
            f"step {step:>5}  evaluation: {evaluation.n_correct} of {evaluation.n_seen} correct, "
            f"accuracy {evaluation.accuracy:.4f}{'  target reached' if is_hit else ''}"
        )

    def has_evaluated(self, step: int) -> bool:
        return any(evaluation.step == step for evaluation in self.curve)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to train."""
        is_early_end = self.config.stop_at_target and self.steps_to_target is not None
        return self.diverged or is_early_end or self.has_evaluated(self.plan.total_steps)

    def as_record(self, step: int) -> dict[str, Any]:
        """Returns the progress up to `step`, for a checkpoint."""
        self._fetch(step)
        self.progress.cpu_seconds = time.process_time() - self.cpu_start
        self.progress.clock_start_ms = self.clock.start_ms
        self.progress.clock_seconds = self.clock.seconds()
        return dataclasses.asdict(self.progress)

    def close(self, step: int) -> None:
        """Writes the last lines; a run that ended without reaching the target logs that."""
        self._fetch(step)
        self.progress.cpu_seconds = time.process_time() - self.cpu_start
        if self.is_over and self.steps_to_target is None:
            self.event("end", constants.RUN_STOP, status=constants.ABORTED)
        self.write_files()
        if self.events:
            self.events.close()
        if self.log:
            mllog.close_log(self.log)

    def write_files(self) -> None:
        """Writes curve.csv, timing.csv and metrics.csv."""
        if not self.is_writer:
            return
        schema.write_curve(self.folder / "curve.csv", self.curve)
        files.write_csv(self.folder / "timing.csv", schema.TIMING_COLUMNS, self.progress.timing)
        if self.progress.metrics:
            header = list(self.progress.metrics[0])
            rows = [[f"{row[key]:.9g}" for key in header] for row in self.progress.metrics]
            files.write_csv(self.folder / "metrics.csv", header, rows)

    def _fetch(self, step: int) -> None:
        if not self.pending:
            return
        fetched = jax.device_get(self.pending)  # the only transfer; waits for the last step
        self.pending = []
        elapsed = time.monotonic() - self.interval_start
        self.interval_start = time.monotonic()
        progress, n = self.progress, len(fetched)
        progress.train_seconds += elapsed
        self.steps_timed += n
        self.seconds_timed += elapsed
        for i, metrics in enumerate(fetched, start=step - n + 1):
            finite = np.isfinite(metrics["loss"])
            bad = metrics["skipped"] > 0 or not finite
            progress.bad_steps = progress.bad_steps + 1 if bad else 0
            if progress.bad_steps >= self.config.max_consecutive_skips:
                self.divergence = {"step": i, "metric": "skipped" if finite else "loss"}
                break
        row = {"step": step, "learning_rate": float(self.learning_rates[step - 1])}
        row |= {key: float(np.mean([m[key] for m in fetched])) for key in AVERAGED}
        row |= {key: float(last) for key, last in fetched[-1].items() if key not in AVERAGED}
        progress.metrics.append(row)
        rate = n * self.plan.global_batch_size / elapsed
        seconds = round(progress.train_seconds, 3), round(progress.eval_seconds, 3)
        progress.timing.append([step, *seconds, round(rate, 1)])
        self._write_events(step, {k: v for k, v in row.items() if math.isfinite(v)})
        self._print(
            f"step {step:>5}/{self.plan.total_steps}  loss {row['loss']:.4f}  "
            f"lr {row['learning_rate']:.4g}  {rate:,.0f} images/s  ETA {self._eta(step)}"
        )

    def _write_events(self, step: int, values: Mapping[str, float]) -> None:
        if not self.events:
            return
        try:
            self.events.write_scalars(step, values)
        except Exception as e:  # TensorFlow raises its own errors for a full disk
            raise OSError(errno.EIO, "cannot write TensorBoard events", str(self.folder)) from e

    def _eta(self, step: int) -> datetime.timedelta:
        """Estimates from the steps of this process, so that restored steps do not count."""
        seconds = (self.plan.total_steps - step) * self.seconds_timed / self.steps_timed
        if self.curve:
            n_left = sum(s >= step for s in self.plan.eval_steps)
            seconds += n_left * self.progress.eval_seconds / len(self.curve)
        return datetime.timedelta(seconds=round(seconds))

    def _log_block(self, kind: str, step: int) -> None:
        """Logs that the training between two evaluations starts or ends at `step`."""
        if kind == "start":
            key, first_step = constants.BLOCK_START, step
            last_step = next((s for s in self.plan.eval_steps if s > step), step)
        else:
            key, last_step = constants.BLOCK_STOP, step
            first_step = max((s for s in self.plan.eval_steps if s < step), default=0)
        first = mllog.epoch_of(first_step, self.plan)
        n_epochs = max(mllog.epoch_of(last_step, self.plan) - first, 1)
        self.event(kind, key, first_epoch_num=first + 1, epoch_count=n_epochs)

    def _print(self, line: str) -> None:
        if self.is_writer:
            print(line, flush=True)
