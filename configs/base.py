"""Tasks for recipes: everything except the optimizer and its schedule.

`imagenet()` is the MLPerf task. `digits()`, `fashion()` and `smoke()` are small proxies that
exercise the same code path. A recipe such as configs/lars.py adds an optimizer to a task.

Lengths are in steps, and accuracies are fractions. Comments give the source of each number: V07 and
V10 are the JAX submissions to MLPerf training v0.7 (resnet-research-JAX-tpu-v3-8192) and v1.0
(resnet-research-JAX-Distributed-Shampoo-tpu-v4-256). docs/config.md explains every field.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from errors import UserError


def imagenet() -> ConfigDict:
    """Returns the task MLPerf ResNet-50 v1.5 on ImageNet, as in the v0.7 JAX submission."""
    config = ConfigDict()
    config.recipe = ""  # set by `select`
    config.seed = 0
    config.global_batch_size = 32_768
    config.gradient_accumulation_steps = 1  # micro-batches per device batch
    config.total_steps = 2512  # V07: 16 loops of ceil(4 * 1281167 / 32768) = 157 steps
    config.eval_every_steps = 157  # V07: "4 epochs", the loop length
    config.device_eval_batch_size = 256  # V07: eval_batch = min(50000, 256 * devices)
    config.target_accuracy = 0.759  # MLPerf training rules: 75.90 % top-1
    config.stop_at_target = False
    config.mlperf_division = "open"  # "closed" where the closed rules of MLPerf allow the recipe
    config.label_smoothing = 0.1  # V07 flag default
    config.log_every_steps = 20
    config.checkpoint_every_steps = 157  # 0: only when a signal ends the run
    config.checkpoint_every_minutes = 0.0  # 0: only by steps
    config.keep_checkpoints = 3
    config.allow_host_count_change = False  # changes which examples each host sees
    config.max_consecutive_skips = 10  # more skipped updates in a row mean divergence
    config.on_divergence = "record"  # or "stop_sweep", which ends the sweep
    config.unverified = ()  # fields whose published value was not checked in print
    config.assumed = ()  # fields that the publication leaves open

    config.dataset = ConfigDict()
    config.dataset.name = "imagenet2012"
    config.dataset.data_dir = "data"
    config.dataset.image_size = 224
    config.dataset.flip = config_dict.placeholder(bool)  # None: mirror natural images only
    config.dataset.crop_area_min = 0.05  # V10; V07 with cached decoded images: 0.08
    config.dataset.image_dtype = "uint8"  # or "bfloat16", exactly the pixels of the submissions
    config.dataset.shuffle_buffer_examples = 16_384  # V10, per host
    config.dataset.cache = "none"  # or "jpeg", "decoded": per host, within cache_limit_gib
    config.dataset.cache_limit_gib = 32.0
    config.dataset.on_corrupt = "fail"  # or "skip", which logs the skipped examples

    config.model = ConfigDict()
    config.model.stage_sizes = (3, 4, 6, 3)
    config.model.width = 64
    config.model.stem_kernel_size = 7
    config.model.stem_stride = 2
    config.model.stem_pool = True
    config.model.stem_space_to_depth = False  # V07: True if a device has 8 images or fewer
    config.model.bn_span = 128  # V07: max(device batch, 64); 128 on 256 cores
    config.model.bn_decay = 0.9  # V07
    config.model.bn_epsilon = 1e-5  # V07
    config.model.bn_running_variance = "mean_of_groups"  # V07; or "pooled"
    config.model.pointwise_as_matmul = False  # same result, faster on a CPU
    config.model.compute_dtype = "bfloat16"  # V07 --bfloat16 default
    config.model.logits_dtype = "bfloat16"  # V07: log_softmax runs on the bfloat16 logits

    config.optimizer = ConfigDict()
    config.schedule = ConfigDict()
    config.schedule.peak_learning_rate = 0.0
    config.schedule.warmup_steps = 0.0
    config.schedule.warmup_power = 1.0
    config.schedule.end_learning_rate = 0.0
    config.schedule.decay_power = 2.0
    config.schedule.decay_end_step = 0.0  # the rate is constant afterwards; 0: never
    return config


def _proxy() -> ConfigDict:
    """Returns the common part of the proxies: float32, a narrow network, a 3x3 stem, no pooling."""
    config = imagenet()
    config.model.width = 8
    config.model.stem_kernel_size = 3
    config.model.stem_stride = 1
    config.model.stem_pool = False
    config.model.pointwise_as_matmul = True
    config.model.compute_dtype = "float32"
    config.model.logits_dtype = "float32"
    config.device_eval_batch_size = 1024
    config.log_every_steps = 10
    config.checkpoint_every_steps = 0  # a run takes seconds
    return config


def digits() -> ConfigDict:
    """Returns the task UCI optical digits, 8x8: 14 layers, 60 steps of batch 640."""
    config = _proxy()
    config.dataset.name = "digits"
    config.dataset.image_size = 8
    config.model.stage_sizes = (2, 2)
    config.model.bn_span = 640
    config.global_batch_size = 640
    config.total_steps = 60
    config.eval_every_steps = 4
    config.target_accuracy = 0.93
    config.schedule.warmup_steps = 6.0
    return config


def fashion() -> ConfigDict:
    """Returns the task Fashion-MNIST averaged to 14x14: 8 layers, 58 steps of batch 2,048."""
    config = _proxy()
    config.dataset.name = "fashion_mnist"
    config.dataset.image_size = 14
    config.model.stage_sizes = (1, 1)
    config.model.stem_stride = 2
    config.model.bn_span = 2048
    config.global_batch_size = 2048
    config.total_steps = 58
    config.eval_every_steps = 8
    config.target_accuracy = 0.78
    config.schedule.warmup_steps = 5.8
    return config


def smoke() -> ConfigDict:
    """Returns a task that tests the installation in a minute: digits, 8 layers, 12 steps."""
    config = digits()
    config.model.stage_sizes = (1, 1)
    config.global_batch_size = 128
    config.model.bn_span = 128
    config.total_steps = 12
    config.eval_every_steps = 6
    config.log_every_steps = 4
    config.schedule.warmup_steps = 2.0
    return config


def flatten(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of a config, or of its JSON, by dotted name: "schedule.warmup_steps"."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict | Mapping):
            values |= flatten(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = value
    return values


def select(
    optimizer: str,
    variants: Mapping[str, Callable[[], ConfigDict]],
    variant: str,
    name: str | None = None,
) -> ConfigDict:
    """Returns the recipe `optimizer:variant`, locked so that no field can be added.

    Args:
      optimizer: name of the recipe file, which recipes and reports use.
      name: key of `configs.optimizers.BUILDERS`, or `package.module:factory`, if it differs.

    Raises:
      UserError: the variant is unknown. The message lists the known ones.
    """
    if variant not in variants:
        raise UserError(
            f"variant={variant}: {optimizer} has no such variant; known: {', '.join(variants)}"
        )
    config = variants[variant]()
    config.recipe = f"{optimizer}:{variant}"
    config.optimizer.name = name or optimizer
    return config.lock()
