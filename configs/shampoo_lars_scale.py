"""Distributed Shampoo's direction with LARS's layer-wise scale: an unpublished combination.

    python main.py --config=configs/shampoo_lars_scale.py:digits --workdir=DIR

The authors of Shampoo rescale each layer's update to the norm of SGD's update. This recipe uses the
norm of LARS's update instead. Variants: digits, fashion.
"""

from ml_collections import ConfigDict

from configs import base, lars, shampoo


def _at_lars_scale(shampoo_config: ConfigDict, trust: float) -> ConfigDict:
    shampoo_config.optimizer.graft_type = "LARS"
    shampoo_config.optimizer.trust_coefficient = trust
    return shampoo_config


def digits() -> ConfigDict:
    """Returns an untuned recipe: `shampoo:digits` with the hyperparameters of `lars:digits`."""
    scale = lars.digits()
    config = _at_lars_scale(shampoo.digits(), trust=scale.optimizer.trust_coefficient)
    config.optimizer.beta1 = scale.optimizer.momentum
    config.optimizer.weight_decay = scale.optimizer.weight_decay
    config.schedule.peak_learning_rate = scale.schedule.peak_learning_rate
    return config


def fashion() -> ConfigDict:
    """Returns the best trial of the study, see results/fashion/trials.json."""
    config = _at_lars_scale(shampoo.fashion(), trust=0.00315)
    config.optimizer.beta1 = 0.9366
    config.optimizer.beta2 = 0.784
    config.optimizer.matrix_epsilon = 1e-6
    config.optimizer.weight_decay = 4.58e-4
    config.schedule.peak_learning_rate = 9.48
    return config


VARIANTS = {"digits": digits, "fashion": fashion}

# Search space for tuning the proxies: that of Shampoo, and the trust coefficient of LARS.
TRUST = "optimizer.trust_coefficient"
SEARCH = shampoo.SEARCH | {TRUST: lars.SEARCH[TRUST]}


def get_config(variant: str = "digits") -> ConfigDict:
    """Returns the recipe `shampoo_lars_scale:variant`. Raises UserError for an unknown variant."""
    return base.select("shampoo_lars_scale", VARIANTS, variant, name="shampoo")
