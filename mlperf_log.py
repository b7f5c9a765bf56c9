"""result.txt: a run's `:::MLLOG` lines, written with mlperf_logging as a submission's would be.

Keys and values follow the rulesets of MLPerf training 1.0.0 and 4.0.0 for `resnet` (closed: common,
closed_resnet and its lars part; open: open_resnet).
"""

import logging
from typing import Any

from etils import epath
from ml_collections import ConfigDict
from mlperf_logging.mllog import constants
from mlperf_logging.mllog.mllog import MLLogger

from configs.plan import Plan


def open_log(path: epath.Path) -> MLLogger:
    """A logger of its own for each run; lines are appended, so a resumed run continues its file."""
    logger = logging.Logger("mlperf", logging.INFO)
    logger.addHandler(logging.StreamHandler(path.open("a")))
    return MLLogger(logger, root_dir=str(epath.Path(__file__).parent))


def close_log(log: MLLogger) -> None:
    for handler in log.logger.handlers:
        handler.stream.close()


def epoch_of(step: int, plan: Plan) -> int:
    """The epoch number that the submissions log at this step: passes over the data, rounded."""
    return round(step / plan.steps_per_data_epoch)


def log_start(log: MLLogger, config: ConfigDict, plan: Plan, platform: str) -> None:
    """What a submission says before init_start: who, what, and the hyperparameters."""
    for key, value in {
        constants.SUBMISSION_ORG: "independent reproduction",
        constants.SUBMISSION_PLATFORM: platform,
        constants.SUBMISSION_DIVISION: config.mlperf_division,
        constants.SUBMISSION_STATUS: constants.RESEARCH,
        constants.SUBMISSION_BENCHMARK: constants.RESNET,
        constants.CACHE_CLEAR: True,
    }.items():
        log.event(key=key, value=value)
    log.start(key=constants.INIT_START, value=None)
    for key, value in hyperparameters(config, plan).items():
        log.event(key=key, value=value)


def hyperparameters(config: ConfigDict, plan: Plan) -> dict[str, Any]:
    """The logged hyperparameters, LARS's and SGD's under MLPerf's own keys."""
    schedule, optimizer = config.schedule, config.optimizer
    warmup_epochs = plan.warmup_steps / plan.steps_per_data_epoch
    values: dict[str, Any] = {
        constants.SEED: config.seed,
        constants.GLOBAL_BATCH_SIZE: plan.global_batch_size,
        constants.GRADIENT_ACCUMULATION_STEPS: 1,
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
        constants.OPT_WEIGHT_DECAY: optimizer.get("weight_decay", 0.0),
    }
