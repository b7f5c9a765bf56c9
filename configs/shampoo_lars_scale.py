"""Distributed Shampoo's direction at LARS's layer scale: not the authors' method, never published.

    python main.py --config=configs/shampoo_lars_scale.py:digits --workdir=DIR

Shampoo's authors graft each layer's update to the norm of SGD's. Here it takes the norm that LARS
gives it. Variants: digits, fashion.
"""

from ml_collections import ConfigDict

from configs import base, lars, shampoo


def _at_lars_scale(shampoo_config: ConfigDict, trust: float) -> ConfigDict:
    shampoo_config.optimizer.graft_type = "LARS"
    shampoo_config.optimizer.trust_coefficient = trust
    return shampoo_config


def digits() -> ConfigDict:
    """Not tuned: Shampoo's of `shampoo:digits`, and what LARS has too as `lars:digits` has it."""
    scale = lars.digits()
    config = _at_lars_scale(shampoo.digits(), trust=scale.optimizer.trust_coefficient)
    config.optimizer.beta1 = scale.optimizer.momentum
    config.optimizer.weight_decay = scale.optimizer.weight_decay
    config.schedule.peak_learning_rate = scale.schedule.peak_learning_rate
    return config


def fashion() -> ConfigDict:
    """As the study chose: results/fashion/trials.json."""
    config = _at_lars_scale(shampoo.fashion(), trust=0.00315)
    config.optimizer.beta1 = 0.9366
    config.optimizer.beta2 = 0.784
    config.optimizer.matrix_epsilon = 1e-6
    config.optimizer.weight_decay = 4.58e-4
    config.schedule.peak_learning_rate = 9.48
    return config


VARIANTS = {"digits": digits, "fashion": fashion}

# Of the trials that tune the proxies: Shampoo's, and LARS's trust coefficient.
TRUST = "optimizer.trust_coefficient"
SEARCH = shampoo.SEARCH | {TRUST: lars.SEARCH[TRUST]}


def get_config(variant: str = "digits") -> ConfigDict:
    """Returns the recipe `shampoo_lars_scale:variant`; UserError lists the known variants."""
    return base.select("shampoo_lars_scale", VARIANTS, variant, name="shampoo")
