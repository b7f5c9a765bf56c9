"""SM3-II, batch 32,768. No setting for ResNet-50 at this batch was ever published.

    python main.py --config=configs/sm3.py:untuned --config.seed=0 --workdir=DIR

Variants: untuned (the advice in SM3's README), digits, fashion, smoke.
"""

from ml_collections import ConfigDict

from configs import base, search


def untuned() -> ConfigDict:
    """Returns LARS's budget with a quadratic warm-up over 5 % of it, then a constant rate.

    The README of SM3 advises this schedule. The learning rate is that of upstream's own test, and
    nobody has tuned it.
    """
    config = base.imagenet()
    config.total_steps = 2512
    config.optimizer.momentum = 0.9
    config.optimizer.weight_decay = 0.0  # published SM3 has no weight decay
    config.schedule.peak_learning_rate = 0.1
    config.schedule.warmup_steps = 125.6
    config.schedule.warmup_power = 2.0
    config.schedule.end_learning_rate = 0.1
    config.assumed = (
        "total_steps",
        "label_smoothing",
        "eval_every_steps",
        "dataset.crop_area_min",
        "model.bn_span",
        "model.logits_dtype",
        "optimizer.momentum",
        "optimizer.weight_decay",
        "schedule.peak_learning_rate",
        "schedule.warmup_steps",
        "schedule.warmup_power",
        "schedule.end_learning_rate",
    )
    return config


def _proxy(task: ConfigDict, peak: float, momentum: float, decay: float) -> ConfigDict:
    task.optimizer.momentum = momentum
    task.optimizer.weight_decay = decay
    task.schedule.peak_learning_rate = peak
    return task


def digits() -> ConfigDict:
    """Returns the best trial of the study, see results/digits/trials.json."""
    return _proxy(base.digits(), peak=0.3, momentum=0.746, decay=1.83e-4)


def fashion() -> ConfigDict:
    """Returns the best trial of the study, see results/fashion/trials.json."""
    return _proxy(base.fashion(), peak=0.0948, momentum=0.803, decay=1.15e-5)


def smoke() -> ConfigDict:
    """Returns an untuned recipe of twelve steps on digits."""
    return _proxy(base.smoke(), peak=0.12, momentum=0.719, decay=2.7e-4)


VARIANTS = {"untuned": untuned, "digits": digits, "fashion": fashion, "smoke": smoke}

# Search space for tuning the proxies.
SEARCH = {
    "schedule.peak_learning_rate": search.Range(0.01, 1.0),
    "optimizer.momentum": search.MOMENTUM,
    "optimizer.weight_decay": search.WEIGHT_DECAY,
}


def get_config(variant: str = "untuned") -> ConfigDict:
    """Returns the recipe `sm3:variant`. Raises UserError for an unknown variant."""
    return base.select("sm3", VARIANTS, variant)
