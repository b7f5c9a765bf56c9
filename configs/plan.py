"""Validates a config, and derives the lengths and batch sizes of a run from it."""

import dataclasses
import math
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from configs import base
from errors import UserError

COUNT = "needs an integer of at least 1"
DTYPES = ("float32", "bfloat16")
RUNNING_VARIANCES = ("mean_of_groups", "pooled")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The derived lengths and batch sizes of a run.

    A data epoch is one pass over the training examples, and batches may straddle its boundary. The
    "epoch" of the submissions is different: a quarter of their loop of ceil(4 n / batch) steps.
    """

    n_train_examples: int
    n_eval_examples: int
    n_hosts: int
    n_devices: int
    global_batch_size: int
    gradient_accumulation_steps: int
    host_batch_size: int
    device_batch_size: int
    micro_batch_size: int
    device_eval_batch_size: int
    total_steps: int
    warmup_steps: float
    decay_steps: float
    steps_per_data_epoch: float
    data_epochs: float
    eval_steps: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def validate(config: ConfigDict) -> None:
    """Checks everything in a config that needs neither data nor devices.

    Raises:
      UserError: "field=value: the rule; the remedy", for the first field that breaks a rule.
    """
    for field, value in base.flatten(config).items():
        finite = not isinstance(value, float) or math.isfinite(value)
        _check(config, field, finite, "must be finite")
    _check_run(config)
    _check_model(config)
    _check_optimizer(config)


def _check(config: ConfigDict, field: str, ok: Any, rule: str) -> None:
    value = config
    for part in field.split("."):
        value = value[part]
    if not ok:
        raise UserError(f"{field}={value}: {rule}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def _check_run(config: ConfigDict) -> None:
    """Checks the seed, counts, intervals, target and loss."""
    check = partial(_check, config)
    seed = config.seed
    check(
        "seed",
        isinstance(seed, int) and 0 <= seed < 2**31,
        "needs an integer from 0 to 2147483647",
    )
    for field in (
        "global_batch_size",
        "gradient_accumulation_steps",
        "total_steps",
        "eval_every_steps",
        "log_every_steps",
        "device_eval_batch_size",
        "keep_checkpoints",
        "max_consecutive_skips",
    ):
        check(field, _is_count(config[field]), COUNT)
    every = config.checkpoint_every_steps
    check("checkpoint_every_steps", isinstance(every, int) and every >= 0, "needs 0 or a count")
    check("checkpoint_every_minutes", config.checkpoint_every_minutes >= 0, "must not be negative")
    policies = ("record", "stop_sweep")
    check("on_divergence", config.on_divergence in policies, f"known: {', '.join(policies)}")
    check("mlperf_division", config.mlperf_division in ("open", "closed"), "known: open, closed")
    check(
        "target_accuracy",
        0 < config.target_accuracy < 1,
        "is a fraction between 0 and 1; 75.9 % is 0.759",
    )
    check("label_smoothing", 0 <= config.label_smoothing < 1, "needs a fraction from 0 to below 1")


def _check_model(config: ConfigDict) -> None:
    check, model = partial(_check, config), config.model
    for field in ("width", "stem_kernel_size", "stem_stride"):
        check(f"model.{field}", _is_count(model[field]), COUNT)
    sizes = model.stage_sizes
    check(
        "model.stage_sizes",
        isinstance(sizes, tuple) and sizes and all(type(n) is int and n >= 1 for n in sizes),
        "needs a tuple of block counts, each an integer of at least 1, such as (3, 4, 6, 3)",
    )
    check("model.bn_span", model.bn_span >= 1, "needs a number of examples, at least 1")
    check("model.bn_decay", 0 <= model.bn_decay < 1, "needs a fraction from 0 to below 1")
    check("model.bn_epsilon", model.bn_epsilon > 0, "must be positive")
    check(
        "model.bn_running_variance",
        model.bn_running_variance in RUNNING_VARIANCES,
        f"known: {', '.join(RUNNING_VARIANCES)}",
    )
    side = config.dataset.image_size
    check(
        "model.stem_space_to_depth",
        not model.stem_space_to_depth
        or ((model.stem_kernel_size, model.stem_stride) == (7, 2) and not (side and side % 2)),
        "needs model.stem_kernel_size=7, model.stem_stride=2 and an even dataset.image_size; "
        "leave it False for other stems",
    )
    for field in ("compute_dtype", "logits_dtype"):
        check(f"model.{field}", model[field] in DTYPES, f"known: {', '.join(DTYPES)}")


def _check_optimizer(config: ConfigDict) -> None:
    """Checks the optimizer's fractions and weight decay, and the schedule."""
    check, schedule = partial(_check, config), config.schedule
    for field, value in schedule.items():
        check(f"schedule.{field}", 0 <= value < math.inf, "must be finite and not negative")
    check("schedule.peak_learning_rate", schedule.peak_learning_rate > 0, "must be positive")
    check(
        "schedule.warmup_steps",
        schedule.warmup_steps <= config.total_steps,
        f"must not exceed total_steps={config.total_steps}",
    )
    end = schedule.decay_end_step
    check(
        "schedule.decay_end_step",
        end == 0 or schedule.warmup_steps <= end <= config.total_steps,
        f"must be 0 (never), or from warmup_steps={schedule.warmup_steps} "
        f"to total_steps={config.total_steps}",
    )
    for field in ("momentum", "beta1", "beta2"):
        if field in config.optimizer:
            value = config.optimizer[field]
            check(f"optimizer.{field}", 0 <= value <= 1, "needs a fraction from 0 to 1")
    if "weight_decay" in config.optimizer:
        decay = config.optimizer.weight_decay
        check("optimizer.weight_decay", 0 <= decay < math.inf, "must not be negative")


def make_plan(
    config: ConfigDict, n_train_examples: int, n_eval_examples: int, n_devices: int, n_hosts: int
) -> Plan:
    """Derives the plan of a validated config for a number of devices and hosts.

    Raises:
      UserError: the batch does not divide over the devices, or the BN span does not fit it.
    """
    batch, span, total = config.global_batch_size, config.model.bn_span, config.total_steps
    if batch % n_devices:
        nearest = max(batch // n_devices, 1) * n_devices
        raise UserError(
            f"global_batch_size={batch}: is not a multiple of the {n_devices} devices; "
            f"the nearest multiple is {nearest}"
        )
    device_batch = batch // n_devices
    micro_batches = config.gradient_accumulation_steps
    if device_batch % micro_batches:
        below = range(1, min(micro_batches, device_batch + 1))
        fitting = max(k for k in below if device_batch % k == 0)
        raise UserError(
            f"gradient_accumulation_steps={micro_batches}: does not divide the device batch of "
            f"{device_batch} ({batch} over {n_devices} devices); the next "
            f"smaller divisor is {fitting}"
        )
    micro_batch = device_batch // micro_batches
    if micro_batches > 1 and micro_batch % span:
        raise UserError(
            f"model.bn_span={span}: does not divide the micro-batch of {micro_batch} "
            f"({device_batch} per device in {micro_batches} parts), but examples that share "
            "statistics must be in one micro-batch; use fewer gradient_accumulation_steps"
        )
    if span % device_batch and device_batch % span:
        raise UserError(
            f"model.bn_span={span}: neither divides the device batch of {device_batch} "
            f"({batch} over {n_devices} devices) nor is a multiple of it; choose "
            "another span or batch"
        )
    if span > device_batch and n_devices % (span // device_batch):
        raise UserError(
            f"model.bn_span={span}: needs groups of {span // device_batch} devices, "
            f"which do not divide the {n_devices} devices; choose a smaller span or another batch"
        )
    warmup = config.schedule.warmup_steps
    epoch_steps = n_train_examples / batch
    every = config.eval_every_steps
    return Plan(
        n_train_examples=n_train_examples,
        n_eval_examples=n_eval_examples,
        n_hosts=n_hosts,
        n_devices=n_devices,
        global_batch_size=batch,
        gradient_accumulation_steps=micro_batches,
        host_batch_size=batch // n_hosts,
        device_batch_size=device_batch,
        micro_batch_size=micro_batch,
        device_eval_batch_size=min(config.device_eval_batch_size, -(-n_eval_examples // n_devices)),
        total_steps=total,
        warmup_steps=warmup,
        decay_steps=total - warmup + 1,
        steps_per_data_epoch=epoch_steps,
        data_epochs=total / epoch_steps,
        eval_steps=tuple(sorted({*range(every, total + 1, every), total})),
    )
