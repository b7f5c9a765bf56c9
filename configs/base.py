"""The tasks that recipes run on: everything except the optimizer and its schedule.

`imagenet()` is the MLPerf task; `digits()`, `fashion()` and `smoke()` are small proxies that take
the very same code path. A recipe (configs/lars.py and so on) takes a task and adds the optimizer.

Lengths are steps, batch sizes say whose they are, accuracies are fractions. Where a number comes
from stands beside it: V07 and V10 are the JAX submissions to MLPerf training v0.7
(resnet-research-JAX-tpu-v3-8192) and v1.0 (resnet-research-JAX-Distributed-Shampoo-tpu-v4-256).
"""

from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from errors import UserError


def imagenet() -> ConfigDict:
    """MLPerf ResNet-50 v1.5 on ImageNet at batch 32,768, as the v0.7 JAX submission has it."""
    config = ConfigDict()
    config.recipe = ""  # filled by `select`
    config.seed = 0
    config.global_batch_size = 32_768
    config.gradient_accumulation_steps = 1  # micro-batches a device takes one after another
    config.total_steps = 2512  # V07: 16 loops of ceil(4 * 1281167 / 32768) = 157 steps
    config.eval_every_steps = 157  # V07: "4 epochs", the loop length
    config.device_eval_batch_size = 256  # V07: eval_batch = min(50000, 256 * devices)
    config.target_accuracy = 0.759  # MLPerf training rules: 75.90 % top-1
    config.stop_at_target = False
    config.mlperf_division = "open"  # "closed" where MLPerf's closed rules allow the recipe
    config.label_smoothing = 0.1  # V07 flag default
    config.log_every_steps = 20
    config.checkpoint_every_steps = 157  # 0: only when told to stop
    config.checkpoint_every_minutes = 0.0  # 0: only by steps; looked at when metrics are logged
    config.keep_checkpoints = 3
    config.allow_host_count_change = False  # in mid-run: the hosts' batches are others then
    config.max_consecutive_skips = 10  # then the run is called diverged
    config.on_divergence = "record"  # "stop_sweep": the sweep ends, too
    config.unverified = ()  # fields whose published value is recollected, not read
    config.assumed = ()  # fields that the publication leaves open

    config.dataset = ConfigDict()
    config.dataset.name = "imagenet2012"
    config.dataset.data_dir = "data"
    config.dataset.image_size = 224
    config.dataset.flip = config_dict.placeholder(bool)  # mirror; None: as the data set allows
    config.dataset.crop_area_min = 0.05  # V10; V07's cache of decoded images takes 0.08
    config.dataset.image_dtype = "uint8"  # "bfloat16": exactly the pixels of the submissions
    config.dataset.shuffle_buffer_examples = 16_384  # V10, a host

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
    config.model.bn_running_variance = "mean_of_groups"  # V07; "pooled" adds that of their means
    config.model.pointwise_as_matmul = False  # the same result, faster on a CPU
    config.model.compute_dtype = "bfloat16"  # V07 --bfloat16 default
    config.model.logits_dtype = "bfloat16"  # V07: log_softmax runs on the bfloat16 logits

    config.optimizer = ConfigDict()
    config.schedule = ConfigDict()
    config.schedule.peak_learning_rate = 0.0
    config.schedule.warmup_steps = 0.0
    config.schedule.warmup_power = 1.0
    config.schedule.end_learning_rate = 0.0
    config.schedule.decay_power = 2.0
    config.schedule.decay_end_step = 0.0  # the rate is constant from there on; 0: never
    return config


def _proxy() -> ConfigDict:
    """What the proxies share: float32, a narrow network with a 3x3 stem and no pooling."""
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
    """UCI optical digits, 8x8: 14 layers, 60 steps of batch 640."""
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
    """Fashion-MNIST averaged to 14x14: 8 layers, 58 steps of batch 2,048."""
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
    """A minute's check that everything is wired: digits, one block a stage, 12 steps."""
    config = digits()
    config.model.stage_sizes = (1, 1)
    config.global_batch_size = 128
    config.model.bn_span = 128
    config.total_steps = 12
    config.eval_every_steps = 6
    config.log_every_steps = 4
    config.schedule.warmup_steps = 2.0
    return config


def flatten(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    """Returns the values of a config by dotted name, such as "schedule.warmup_steps"."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict):
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
    """Returns the recipe `optimizer:variant`, its fields fixed (only values can be overridden).

    Args:
      optimizer: what recipes and reports call it, the name of the recipe's file.
      name: `package.module:factory` where it is not one of `configs.optimizers.BUILDERS`.

    Raises:
      UserError: an unknown variant; the message lists the known ones.
    """
    if variant not in variants:
        raise UserError(
            f"variant={variant}: {optimizer} has no such variant; known: {', '.join(variants)}"
        )
    config = variants[variant]()
    config.recipe = f"{optimizer}:{variant}"
    config.optimizer.name = name or optimizer
    return config.lock()
