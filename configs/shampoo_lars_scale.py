"""Distributed Shampoo's direction at LARS's layer scale: not the authors' method, never published.

    python main.py --config=configs/shampoo_lars_scale.py:digits --workdir=DIR

Shampoo's authors graft each layer's update to the norm of SGD's. Here it takes the norm that LARS
gives it. Variants: digits, fashion.
"""

from ml_collections import ConfigDict

from configs import base, lars, shampoo


def _at_scale_of(scale: ConfigDict, config: ConfigDict) -> ConfigDict:
    """Shampoo's recipe with LARS's layer scale, and LARS's values where both have them."""
    config.optimizer.graft_type = "LARS"
    config.optimizer.trust_coefficient = scale.optimizer.trust_coefficient
    config.optimizer.beta1 = scale.optimizer.momentum
    config.optimizer.weight_decay = scale.optimizer.weight_decay
    config.schedule.peak_learning_rate = scale.schedule.peak_learning_rate
    return config


def digits() -> ConfigDict:
    """At the hyperparameters of `lars:digits` and `shampoo:digits`."""
    return _at_scale_of(lars.digits(), shampoo.digits())


def fashion() -> ConfigDict:
    """At the hyperparameters of `lars:fashion` and `shampoo:fashion`."""
    return _at_scale_of(lars.fashion(), shampoo.fashion())


VARIANTS = {"digits": digits, "fashion": fashion}

# Of the trials that tune the proxies: Shampoo's, and LARS's trust coefficient.
TRUST = "optimizer.trust_coefficient"
SEARCH = shampoo.SEARCH | {TRUST: lars.SEARCH[TRUST]}


def get_config(variant: str = "digits") -> ConfigDict:
    """Returns the recipe `shampoo_lars_scale:variant`; ValueError lists the known variants."""
    return base.select("shampoo_lars_scale", VARIANTS, variant, name="shampoo")
