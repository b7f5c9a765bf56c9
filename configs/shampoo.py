"""Distributed Shampoo, batch 32,768: 1,729 steps to 75.9 % (published; median of 50 seeds).

    python main.py --config=configs/shampoo.py:readme --config.seed=0 --workdir=DIR

Variants: readme (google-research scalable_shampoo/README.md: the 1,729 steps), mlperf_v1 and
mlperf_v1_64k (the MLPerf v1.0 submission's code at 32,768 and 65,536), digits, fashion, smoke.
`readme` and `mlperf_v1` are different runs. Never merge their results.
"""

from ml_collections import ConfigDict

from configs import base, search


def _shampoo(task: ConfigDict) -> ConfigDict:
    """Adds the values that all published settings share to a task."""
    task.optimizer.diagonal_epsilon = 0.0  # unused with SGD grafting
    task.optimizer.relative_matrix_epsilon = True
    task.optimizer.preconditioning_compute_steps = 1
    task.optimizer.statistics_compute_steps = 1
    task.optimizer.no_preconditioning_for_layers_with_dim_gt = 8192
    task.optimizer.block_size = 128
    task.optimizer.best_effort_shape_interpretation = True
    task.optimizer.graft_type = "SGD"
    task.optimizer.nesterov = True
    task.optimizer.exponent_override = 4
    task.schedule.end_learning_rate = 0.0
    task.schedule.decay_power = 2.0
    return task


def readme() -> ConfigDict:
    """Returns the run of the README, "Hyperparameters" and "Learning rate schedule".

    Fields that the README does not specify are listed in `assumed`.
    """
    config = _shampoo(base.imagenet())
    config.total_steps = 1729
    config.optimizer.beta1 = 0.95
    config.optimizer.beta2 = 0.85
    config.optimizer.matrix_epsilon = 1.5e-5
    config.optimizer.weight_decay = 1e-4  # weights only; 0 for biases and BN
    config.optimizer.start_preconditioning_step = 25
    config.schedule.peak_learning_rate = 13.0
    config.schedule.warmup_steps = 196.0
    config.dataset.crop_area_min = 0.08  # V07's decoded cache
    config.assumed = (
        "label_smoothing",
        "dataset.crop_area_min",
        "model.bn_span",
        "model.logits_dtype",
        "eval_every_steps",
    )
    return config


def mlperf_v1() -> ConfigDict:
    """Returns V10 at batch 32,768: 44 epochs of 39.25 steps. Five published runs reached 75.9 %."""
    config = _shampoo(base.imagenet())
    config.total_steps = 1727
    config.label_smoothing = 0.2  # V10 run_and_time.sh
    config.model.bn_span = 256  # model_bn_span in the logs
    config.optimizer.beta1 = 0.96
    config.optimizer.beta2 = 0.75
    config.optimizer.matrix_epsilon = 1e-8
    config.optimizer.relative_matrix_epsilon = False  # V10 adds an absolute epsilon
    config.optimizer.weight_decay = 6.248644874764753e-05
    config.optimizer.start_preconditioning_step = 5
    config.schedule.peak_learning_rate = 16.22
    config.schedule.warmup_steps = 196.25  # 5 epochs
    return config


def mlperf_v1_64k() -> ConfigDict:
    """Returns V10 at batch 65,536: 60 epochs of 19.75 steps. No run of it was published."""
    config = mlperf_v1()
    config.global_batch_size = 65_536
    config.total_steps = 1185
    config.eval_every_steps = 79  # ceil(4 * 1281167 / 65536)
    config.label_smoothing = 0.1  # V10 flag default
    config.optimizer.beta1 = 0.953
    config.optimizer.beta2 = 0.666
    config.optimizer.weight_decay = 2.25e-4
    config.schedule.peak_learning_rate = 12.0
    config.schedule.warmup_steps = 39.5  # 2 epochs
    config.assumed = ("label_smoothing", "model.bn_span")
    return config


def _proxy(
    task: ConfigDict, peak: float, beta1: float, beta2: float, epsilon: float, decay: float
) -> ConfigDict:
    config = _shampoo(task)
    config.optimizer.beta1 = beta1
    config.optimizer.beta2 = beta2
    config.optimizer.matrix_epsilon = epsilon
    config.optimizer.weight_decay = decay
    config.optimizer.start_preconditioning_step = 5
    config.schedule.peak_learning_rate = peak
    return config


def digits() -> ConfigDict:
    """Returns the best trial of the study, see results/digits/trials.json."""
    return _proxy(base.digits(), peak=0.948, beta1=0.803, beta2=0.9868, epsilon=1e-3, decay=1.15e-5)


def fashion() -> ConfigDict:
    """Returns the best trial of the study, see results/fashion/trials.json."""
    return _proxy(
        base.fashion(), peak=0.821, beta1=0.9662, beta2=0.9627, epsilon=1e-4, decay=5.51e-4
    )


def smoke() -> ConfigDict:
    """Returns an untuned recipe of twelve steps on digits."""
    return _proxy(base.smoke(), peak=1.64, beta1=0.899, beta2=0.95, epsilon=2.2e-4, decay=4.3e-5)


VARIANTS = {
    "readme": readme,
    "mlperf_v1": mlperf_v1,
    "mlperf_v1_64k": mlperf_v1_64k,
    "digits": digits,
    "fashion": fashion,
    "smoke": smoke,
}

# Search space for tuning the proxies.
SEARCH = {
    "schedule.peak_learning_rate": search.PEAK_LEARNING_RATE,
    "optimizer.beta1": search.MOMENTUM,
    "optimizer.weight_decay": search.WEIGHT_DECAY,
    "optimizer.beta2": search.Range(0.01, 0.5, "complement"),
    "optimizer.matrix_epsilon": search.Range(1e-6, 1e-1, "decades"),  # range in the README
}


def get_config(variant: str = "readme") -> ConfigDict:
    """Returns the recipe `shampoo:variant`. Raises UserError for an unknown variant."""
    return base.select("shampoo", VARIANTS, variant)
