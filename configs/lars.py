"""LARS, batch 32,768: 2,512 steps to 75.9 % (published, with ~309-311 s on a v3-256).

    python main.py --config=configs/lars.py:mlperf_v07 --config.seed=0 --workdir=DIR

Variants: mlperf_v07 (the v0.7 JAX submission's code at this batch), digits, fashion, smoke.
"""

from ml_collections import ConfigDict

from configs import base, search


def mlperf_v07() -> ConfigDict:
    """Returns the v0.7 submission. All numbers are from V07 train.py at 32768 <= batch < 65536."""
    config = base.imagenet()
    config.mlperf_division = "closed"
    config.total_steps = 2512  # 64 epochs of 39.25 steps
    config.dataset.crop_area_min = 0.08  # V07's decoded cache, which it uses above 64 devices
    config.optimizer.momentum = 0.929
    config.optimizer.weight_decay = 1e-4
    config.optimizer.trust_coefficient = 0.001
    config.optimizer.epsilon = 0.0
    config.schedule.peak_learning_rate = 29.0
    config.schedule.warmup_steps = 706.5  # 18 epochs
    config.schedule.end_learning_rate = 1e-4
    return config


def _proxy(
    task: ConfigDict, peak: float, momentum: float, decay: float, trust: float
) -> ConfigDict:
    task.optimizer.momentum = momentum
    task.optimizer.weight_decay = decay
    task.optimizer.trust_coefficient = trust
    task.optimizer.epsilon = 0.0
    task.schedule.peak_learning_rate = peak
    return task


def digits() -> ConfigDict:
    """Returns the best trial of the study, see results/digits/trials.json."""
    return _proxy(base.digits(), peak=6.16, momentum=0.826, decay=1.26e-4, trust=0.0129)


def fashion() -> ConfigDict:
    """Returns the best trial of the study, see results/fashion/trials.json."""
    return _proxy(base.fashion(), peak=6.16, momentum=0.826, decay=1.26e-4, trust=0.0129)


def smoke() -> ConfigDict:
    """Returns an untuned recipe of twelve steps on digits."""
    return _proxy(base.smoke(), peak=2.61, momentum=0.858, decay=2.2e-5, trust=0.0369)


VARIANTS = {"mlperf_v07": mlperf_v07, "digits": digits, "fashion": fashion, "smoke": smoke}

# Search space for tuning the proxies.
SEARCH = {
    "schedule.peak_learning_rate": search.PEAK_LEARNING_RATE,
    "optimizer.momentum": search.MOMENTUM,
    "optimizer.weight_decay": search.WEIGHT_DECAY,
    "optimizer.trust_coefficient": search.Range(0.003, 0.3),
}


def get_config(variant: str = "mlperf_v07") -> ConfigDict:
    """Returns the recipe `lars:variant`. Raises UserError for an unknown variant."""
    return base.select("lars", VARIANTS, variant)
