"""result.txt: a run's `:::MLLOG` lines, written with mlperf_logging as a submission's would be.

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

import workdir as files
from configs.plan import Plan
from errors import UserError


class Clock:
    """Milliseconds since the epoch that only go forward and leave out what a run was not running.

    The wall clock is read once, when the run begins; from then on seconds are counted by the
    monotonic clock, and a resumed run counts on from its checkpoint.
    """

    def __init__(self, began_ms: int | None, seconds: float):
        self.began_ms = time.time_ns() // 1_000_000 if began_ms is None else began_ms
        self.origin = time.monotonic() - seconds

    def seconds(self) -> float:
        return time.monotonic() - self.origin

    def now_ms(self) -> int:
        return self.began_ms + round(1000 * self.seconds())


class _Handler(logging.StreamHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Raises what went wrong (a full disk), where logging would print it and go on."""
        raise


def open_log(path: epath.Path, n_lines: int) -> MLLogger:
    """A logger that continues a file after its first `n_lines`; later ones will be written anew.

    Raises:
      UserError: it has fewer, as after a loss of power.
    """
    there = path.read_text().splitlines(keepends=True) if n_lines and path.exists() else []
    lines = [line for line in there if line.endswith("\n")][:n_lines]
    if len(lines) < n_lines:
        raise UserError(
            f"{path}: holds {len(lines)} of the {n_lines} lines that the checkpoint knows of; "
            "bring it back, or remove the whole folder to begin anew"
        )
    files.write_text(path, "".join(lines))
    logger = logging.Logger("mlperf", logging.INFO)
    logger.addHandler(_Handler(path.open("a")))
    return MLLogger(logger, root_dir=str(epath.Path(__file__).parent))


def close_log(log: MLLogger) -> None:
    for handler in log.logger.handlers:
        handler.stream.close()


def epoch_of(step: int, plan: Plan) -> int:
    """The epoch number that the submissions log at this step: passes over the data, rounded."""
    return round(step / plan.steps_per_data_epoch)


def opening(config: ConfigDict, plan: Plan, platform: str) -> list[tuple[str, str, Any]]:
    """What a submission says first: (kind, key, value) of who, what, and the hyperparameters."""
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
    """The logged hyperparameters, LARS's and SGD's under MLPerf's own keys."""
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
