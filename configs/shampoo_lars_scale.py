"""Distributed Shampoo's direction at LARS's layer scale: not the authors' method, never published.

    python main.py --config=configs/shampoo_lars_scale.py:digits --workdir=DIR

Shampoo's authors graft each layer's update to the norm of SGD's. Here it takes the norm that LARS
gives it. Variants: digits, fashion.
"""

from ml_collections import ConfigDict

from configs import base, lars, shampoo


def _proxy(task: ConfigDict) -> ConfigDict:
    task.optimizer.graft_type = "LARS"
    task.optimizer.beta2 = 0.95
    task.optimizer.diagonal_epsilon = 0.0  # unused with this grafting
    task.optimizer.matrix_epsilon = 2.2e-4
    task.optimizer.relative_matrix_epsilon = True
    task.optimizer.start_preconditioning_step = 5
    task.optimizer.preconditioning_compute_steps = 1
    task.optimizer.statistics_compute_steps = 1
    task.optimizer.no_preconditioning_for_layers_with_dim_gt = 8192
    task.optimizer.block_size = 128
    task.optimizer.best_effort_shape_interpretation = True
    task.optimizer.nesterov = True
    task.optimizer.exponent_override = 4
    return task


def digits() -> ConfigDict:
    """At the hyperparameters of `lars:digits` and `shampoo:digits`."""
    config = _proxy(base.digits())
    config.optimizer.beta1 = 0.858
    config.optimizer.weight_decay = 2.2e-5
    config.optimizer.trust_coefficient = 0.0369
    config.schedule.peak_learning_rate = 2.61
    return config


def fashion() -> ConfigDict:
    """At the hyperparameters of `lars:fashion` and `shampoo:fashion`."""
    config = _proxy(base.fashion())
    config.optimizer.beta1 = 0.719
    config.optimizer.weight_decay = 2.7e-4
    config.optimizer.trust_coefficient = 0.0937
    config.schedule.peak_learning_rate = 1.46
    return config


VARIANTS = {"digits": digits, "fashion": fashion}

# Of the trials that tune the proxies: Shampoo's, and LARS's trust coefficient.
TRUST = "optimizer.trust_coefficient"
SEARCH = shampoo.SEARCH | {TRUST: lars.SEARCH[TRUST]}


def get_config(variant: str = "digits") -> ConfigDict:
    """Returns the recipe `shampoo_lars_scale:variant`; ValueError lists the known variants."""
    return base.select("shampoo_lars_scale", VARIANTS, variant, name="shampoo")
