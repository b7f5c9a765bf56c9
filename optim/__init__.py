"""Optimizers for large batches, as optax transformations: LARS, Nesterov, Shampoo and SM3.

tx = distributed_shampoo(learning_rate=0.1, batch_axis_name="batch")
"""

from importlib import metadata

from . import masks, schedules, sharding
from .grafting import LayerwiseGrafting, graft, switch_at
from .lars import lars
from .monitoring import diagnostics, metrics
from .nesterov import nesterov
from .over_blocks import over_blocks
from .shampoo import distributed_shampoo, scale_by_shampoo
from .sm3 import sm3

try:
    __version__ = metadata.version("largebatch")
except metadata.PackageNotFoundError:  # used from a checkout
    __version__ = "0+checkout"

__all__ = [
    "LayerwiseGrafting",
    "diagnostics",
    "distributed_shampoo",
    "graft",
    "lars",
    "masks",
    "metrics",
    "nesterov",
    "over_blocks",
    "scale_by_shampoo",
    "schedules",
    "sharding",
    "sm3",
    "switch_at",
]
