"""SGD with Nesterov momentum, batch 32,768: 2,512 steps to 75.9 % (published).

    python main.py --config=configs/nesterov.py:nado --config.seed=0 --workdir=DIR

Variants: nado (Nado, Gilmer et al. 2021, arXiv:2102.06356), digits, fashion, smoke.
"""

from ml_collections import ConfigDict

from configs import base, search


def nado() -> ConfigDict:
    """Returns the paper's Nesterov run. Its numbers are from memory, NOT checked in the paper.

    AlgoPerf's first ImageNet submission (commit 6d6d86ee) confirms the peak 7.05, the final rate
    6e-6 and the two quadratic ramps. It has other values for the warm-up (706.5 instead of 638) and
    the end of the decay (2512 instead of 2497). The semantics of schedule, momentum and L2 on
    kernels are those of init2winit at 97523a8.
    """
    config = base.imagenet()
    config.total_steps = 2512
    config.label_smoothing = 0.15
    config.model.bn_decay = 0.94
    config.model.logits_dtype = "float32"
    config.optimizer.momentum = 0.97603
    config.optimizer.weight_decay = 5.8e-5
    config.schedule.peak_learning_rate = 7.05
    config.schedule.warmup_steps = 638.0
    config.schedule.warmup_power = 2.0
    config.schedule.end_learning_rate = 6e-6
    config.schedule.decay_end_step = 2497.0
    config.unverified = (
        "label_smoothing",
        "model.bn_decay",
        "model.bn_span",
        "optimizer.momentum",
        "optimizer.weight_decay",
        "schedule.peak_learning_rate",
        "schedule.warmup_steps",
        "schedule.warmup_power",
        "schedule.end_learning_rate",
        "schedule.decay_power",
        "schedule.decay_end_step",
    )
    config.assumed = ("model.logits_dtype", "model.compute_dtype", "eval_every_steps")
    return config


def _proxy(task: ConfigDict, peak: float, momentum: float, decay: float) -> ConfigDict:
    task.optimizer.momentum = momentum
    task.optimizer.weight_decay = decay
    task.schedule.peak_learning_rate = peak
    return task


def digits() -> ConfigDict:
    """Returns the best trial of the study, see results/digits/trials.json."""
    return _proxy(base.digits(), peak=1.46, momentum=0.895, decay=1.38e-5)


def fashion() -> ConfigDict:
    """Returns the best trial of the study, see results/fashion/trials.json."""
    return _proxy(base.fashion(), peak=0.821, momentum=0.9662, decay=5.51e-4)


def smoke() -> ConfigDict:
    """Returns an untuned recipe of twelve steps on digits."""
    return _proxy(base.smoke(), peak=0.2, momentum=0.9, decay=6.7e-5)


VARIANTS = {"nado": nado, "digits": digits, "fashion": fashion, "smoke": smoke}

# Search space for tuning the proxies.
SEARCH = {
    "schedule.peak_learning_rate": search.PEAK_LEARNING_RATE,
    "optimizer.momentum": search.MOMENTUM,
    "optimizer.weight_decay": search.WEIGHT_DECAY,
}


def get_config(variant: str = "nado") -> ConfigDict:
    """Returns the recipe `nesterov:variant`. Raises UserError for an unknown variant."""
    return base.select("nesterov", VARIANTS, variant)
