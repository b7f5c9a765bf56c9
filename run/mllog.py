"""result.txt: the `:::MLLOG` lines of a run, written with mlperf_logging as in a submission.

Keys and values follow the rulesets of MLPerf training 1.0.0 and 4.0.0 for `resnet` (closed: common,
closed_resnet and its lars part; open: open_resnet).
"""

import logging
import time
from typing import Any

from etils import epath
from ml_collections import ConfigDict
from mlperf_logging.mllog import constants
from mlperf_logging.mllog.mllog import MLLogger

from configs.plan import Plan
from run import files


class Clock:
    """Milliseconds since the epoch that only go forward and exclude the time between processes.

    The wall clock is read once, when the run begins. Afterwards the monotonic clock counts, and a
    resumed run continues from the value in its checkpoint.
    """

    def __init__(self, start_ms: int | None, seconds: float):
        self.start_ms = time.time_ns() // 1_000_000 if start_ms is None else start_ms
        self.origin = time.monotonic() - seconds

    def seconds(self) -> float:
        return time.monotonic() - self.origin

    def now_ms(self) -> int:
        return self.start_ms + round(1000 * self.seconds())


class _Handler(logging.StreamHandler):
    """Writes each line to a stream and appends it to a list."""

    def __init__(self, stream: Any, lines: list[str]):
        super().__init__(stream)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Raises the error, such as that of a full disk; logging would print it and continue."""
        raise


def open_log(path: epath.Path, lines: list[str]) -> MLLogger:
    """Returns a logger that rewrites a file with `lines` and appends to both."""
    files.write_text(path, "".join(f"{line}\n" for line in lines))
    logger = logging.Logger("mlperf", logging.INFO)
    logger.addHandler(_Handler(path.open("a"), lines))
    return MLLogger(logger, root_dir=str(epath.Path(__file__).parent.parent))


def close_log(log: MLLogger) -> None:
    """Closes the file."""
    for handler in log.logger.handlers:
        handler.stream.close()


def epoch_of(step: int, plan: Plan) -> int:
    """Returns the epoch number that submissions log at this step: data epochs, rounded."""
    return round(step / plan.steps_per_data_epoch)


def opening(config: ConfigDict, plan: Plan, platform: str) -> list[tuple[str, str, Any]]:
    """Returns the first lines of a submission as (kind, key, value): who, what, hyperparameters."""
    return [
        ("event", constants.SUBMISSION_ORG, "independent reproduction"),
        ("event", constants.SUBMISSION_PLATFORM, platform),
        ("event", constants.SUBMISSION_DIVISION, config.mlperf_division),
        ("event", constants.SUBMISSION_STATUS, constants.RESEARCH),
        ("event", constants.SUBMISSION_BENCHMARK, constants.RESNET),
        ("event", constants.CACHE_CLEAR, True),
        ("start", constants.INIT_START, None),
        *(("event", key, value) for key, value in hyperparameters(config, plan).items()),
    ]


def hyperparameters(config: ConfigDict, plan: Plan) -> dict[str, Any]:
    """Returns the hyperparameters to log, those of LARS and SGD under MLPerf's own keys."""
    schedule, optimizer = config.schedule, config.optimizer
    warmup_epochs = plan.warmup_steps / plan.steps_per_data_epoch
    values: dict[str, Any] = {
        constants.SEED: config.seed,
        constants.GLOBAL_BATCH_SIZE: plan.global_batch_size,
        constants.GRADIENT_ACCUMULATION_STEPS: plan.gradient_accumulation_steps,
        constants.TRAIN_SAMPLES: plan.n_train_examples,
        constants.EVAL_SAMPLES: plan.n_eval_examples,
        constants.MODEL_BN_SPAN: config.model.bn_span,
    }
    if optimizer.name == "lars":
        return values | {
            constants.OPT_NAME: constants.LARS,
            constants.LARS_OPT_BASE_LEARNING_RATE: schedule.peak_learning_rate,
            constants.LARS_OPT_END_LR: schedule.end_learning_rate,
            constants.LARS_OPT_LR_DECAY_POLY_POWER: schedule.decay_power,
            constants.LARS_OPT_LR_DECAY_STEPS: plan.decay_steps,
            constants.LARS_OPT_LEARNING_RATE_WARMUP_EPOCHS: round(warmup_epochs),
            constants.LARS_EPSILON: optimizer.epsilon,
            constants.LARS_OPT_MOMENTUM: optimizer.momentum,
            constants.LARS_OPT_WEIGHT_DECAY: optimizer.weight_decay,
        }
    return values | {
        constants.OPT_NAME: optimizer.name,
        constants.OPT_BASE_LR: schedule.peak_learning_rate,
        constants.OPT_END_LR: schedule.end_learning_rate,
        constants.OPT_LR_WARMUP_EPOCHS: round(warmup_epochs),
        constants.OPT_LR_TRAINING_STEPS: plan.total_steps,
        constants.OPT_WEIGHT_DECAY: optimizer.get("weight_decay", 0.0),
    }
