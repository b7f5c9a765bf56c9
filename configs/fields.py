"""Every field of a config: its meaning, and what may differ between runs.

    python -m configs.fields > docs/config.md

Names are dotted as on the command line: `--config.dataset.data_dir=DIR`.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from configs import base, command_line


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a config.

    Attributes:
      meaning: one line for docs/config.md.
      may_change_on_resume: whether a run may resume with another value, because the field does not
        affect training.
      same_row: whether runs with different values share a row of a report. True for every field
        that may change on resume.
    """

    meaning: str
    may_change_on_resume: bool = False
    same_row: bool = False


FIELDS: Mapping[str, Field] = {
    "recipe": Field("name of the recipe, `OPTIMIZER:VARIANT`; set by the recipe file"),
    "seed": Field("seed of the parameters, the data order, crops and flips", same_row=True),
    "global_batch_size": Field("examples per update, over all devices"),
    "gradient_accumulation_steps": Field("micro-batches that each device processes in turn"),
    "total_steps": Field("updates in the run"),
    "eval_every_steps": Field("updates between evaluations; the last update is always evaluated"),
    "device_eval_batch_size": Field("examples that a device evaluates at once"),
    "target_accuracy": Field("top-1 accuracy to reach, as a fraction"),
    "stop_at_target": Field("end the run at the first evaluation that reaches the target"),
    "mlperf_division": Field("`submission_division` in result.txt: open or closed"),
    "label_smoothing": Field("weight of the uniform distribution in the training targets"),
    "log_every_steps": Field("updates between two lines of metrics", same_row=True),
    "checkpoint_every_steps": Field(
        "updates between checkpoints; 0 saves only when a signal ends the run",
        may_change_on_resume=True,
    ),
    "checkpoint_every_minutes": Field(
        "minutes between checkpoints, checked when metrics are logged; 0 disables the clock",
        may_change_on_resume=True,
    ),
    "keep_checkpoints": Field("number of latest checkpoints to keep", may_change_on_resume=True),
    "allow_host_count_change": Field(
        "allow a run to resume on another number of hosts, which changes the order of the data",
        may_change_on_resume=True,
    ),
    "max_consecutive_skips": Field("skipped updates in a row after which a run has diverged"),
    "on_divergence": Field(
        "record: note it and let a sweep continue; stop_sweep: end the sweep",
        may_change_on_resume=True,
    ),
    "unverified": Field("fields whose published value was not checked in print", same_row=True),
    "assumed": Field("fields that the publication leaves open", same_row=True),
    "dataset.name": Field("name of the data set in tfds"),
    "dataset.data_dir": Field("directory of the prepared data sets", may_change_on_resume=True),
    "dataset.image_size": Field("side of the square images that the model sees, in pixels"),
    "dataset.flip": Field("mirror half of the training images; None follows the data set"),
    "dataset.crop_area_min": Field("smallest training crop, as a fraction of the image"),
    "dataset.image_dtype": Field("uint8, or bfloat16 for exactly the submissions' pixels"),
    "dataset.shuffle_buffer_examples": Field("examples in the shuffle buffer of each host"),
    "dataset.cache": Field("training images that each host keeps: none, jpeg or decoded"),
    "dataset.cache_limit_gib": Field("memory that the cache of a host may take, in GiB"),
    "dataset.on_corrupt": Field("fail at an image that cannot be decoded, or skip it"),
    "model.stage_sizes": Field("residual blocks in each stage"),
    "model.width": Field("channels of the stem and of the first stage's 3x3 convolutions"),
    "model.stem_kernel_size": Field("side of the first convolution's kernel"),
    "model.stem_stride": Field("stride of the first convolution"),
    "model.stem_pool": Field("apply 3x3 max-pooling with stride 2 after the stem"),
    "model.stem_space_to_depth": Field(
        "compute the stem over 2x2 blocks of pixels: same result, faster for small device batches"
    ),
    "model.bn_span": Field("examples that share BatchNorm statistics"),
    "model.bn_decay": Field("decay of the running BatchNorm statistics per update"),
    "model.bn_epsilon": Field("constant added to BatchNorm's variance"),
    "model.bn_running_variance": Field(
        "mean_of_groups averages the groups' variances; pooled adds the variance of their means"
    ),
    "model.pointwise_as_matmul": Field(
        "compute 1x1 convolutions as matrix products: same result, faster on a CPU"
    ),
    "model.compute_dtype": Field("dtype of convolutions and activations"),
    "model.logits_dtype": Field("dtype of the logits, and so of the log-softmax"),
    "optimizer.name": Field("registered optimizer, or `package.module:factory`"),
    "optimizer.momentum": Field("decay of the momentum buffer"),
    "optimizer.weight_decay": Field("L2 penalty on weights, not on biases or BatchNorm"),
    "optimizer.trust_coefficient": Field("factor of LARS's layer-wise trust ratio"),
    "optimizer.epsilon": Field("constant added to the denominator of LARS's trust ratio"),
    "optimizer.beta1": Field("decay of the momentum buffers"),
    "optimizer.beta2": Field("decay of the statistics; 1 sums them"),
    "optimizer.diagonal_epsilon": Field("constant in the denominator of diagonal grafts"),
    "optimizer.matrix_epsilon": Field("ridge of the inverse roots"),
    "optimizer.relative_matrix_epsilon": Field("scale the ridge by the largest eigenvalue"),
    "optimizer.exponent_override": Field("p of the inverse p-th roots; 0 derives it from the rank"),
    "optimizer.start_preconditioning_step": Field("first update that uses the preconditioner"),
    "optimizer.preconditioning_compute_steps": Field("updates between computations of the roots"),
    "optimizer.statistics_compute_steps": Field("updates between statistics"),
    "optimizer.no_preconditioning_for_layers_with_dim_gt": Field(
        "tensors with a larger dimension are not preconditioned"
    ),
    "optimizer.best_effort_shape_interpretation": Field("merge small neighbouring dimensions"),
    "optimizer.block_size": Field("larger dimensions are cut into blocks of this size"),
    "optimizer.graft_type": Field("optimizer that sets the length of each layer's update"),
    "optimizer.nesterov": Field("apply the momentum in Nesterov's form"),
    "schedule.peak_learning_rate": Field("learning rate at the end of the warm-up"),
    "schedule.warmup_steps": Field("updates of warm-up; may be fractional"),
    "schedule.warmup_power": Field("power of the warm-up's polynomial"),
    "schedule.end_learning_rate": Field("learning rate at the end of the decay"),
    "schedule.decay_power": Field("power of the decay's polynomial"),
    "schedule.decay_end_step": Field("step after which the learning rate is constant; 0: never"),
}
# Fields that do not affect training: a run may resume with another value.
MAY_CHANGE_ON_RESUME = frozenset(name for name, f in FIELDS.items() if f.may_change_on_resume)
# Fields in which the runs of one row may differ.
SAME_ROW = MAY_CHANGE_ON_RESUME | {name for name, f in FIELDS.items() if f.same_row}

PAGE = """# Config fields

Generated by `python -m configs.fields > docs/config.md`.

Override any field on the command line, as in `--config.schedule.peak_learning_rate=10.0`. Defaults
are those of the ImageNet task in `configs/base.py`; recipes change them, see
[the recipes and their sources](recipes.md). "Resume" marks fields that may change when a run
resumes. "Row" marks fields that put runs into different rows of a report. Optimizer fields have no
default here; the column lists the optimizers that take them.

| field | type | default | meaning | resume | row |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Returns docs/config.md."""
    rows = {
        name: (_type(value), _code(value)) for name, value in base.flatten(base.imagenet()).items()
    }
    takers: dict[str, dict[str, None]] = {}  # names of optimizers, in order, without repetition
    for recipe in command_line.optimizers():
        config = command_line.load(recipe)
        if ":" in config.optimizer.name:  # a factory of your own
            continue
        for name, value in config.optimizer.items():
            takers.setdefault(name, {})[config.optimizer.name] = None
            rows[f"optimizer.{name}"] = (_type(value), ", ".join(takers[name]))
    return PAGE + "".join(
        f"| `{name}` | {rows[name][0]} | {rows[name][1]} | {field.meaning} "
        f"| {'yes' if field.may_change_on_resume else ''} | {'' if name in SAME_ROW else 'yes'} |\n"
        for name, field in FIELDS.items()
    )


def _code(value: Any) -> str:
    return f"`{value}`" if value != "" else ""


def _type(value: Any) -> str:
    return "bool or None" if value is None else type(value).__name__  # only `dataset.flip`


if __name__ == "__main__":
    sys.stdout.write(page())
