"""Search spaces for hyperparameter trials: SEARCH = {"section.field": Range(...)} in recipe files.

Every optimizer gets the same number of trials, see `sweeps.trials`.
"""

import dataclasses
import math
from typing import Any

from errors import UserError

SCALES = ("log", "complement", "decades")


@dataclasses.dataclass(frozen=True)
class Range:
    """An interval of positive numbers, sampled uniformly on a logarithmic scale.

    Attributes:
      low, high: bounds of the value, or of 1 - value with the scale `complement`.
      scale: `log`, `complement` (log in 1 - value, for decay rates near 1) or `decades` (powers of
        ten only, for a number that is compiled into the program, to limit compilations).
    """

    low: float
    high: float
    scale: str = "log"

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high or self.scale not in SCALES:
            raise UserError(
                f"SEARCH: Range({self.low}, {self.high}, {self.scale!r}) needs 0 < low < high and "
                f"one of the scales {', '.join(SCALES)}"
            )

    def at(self, share: float) -> float:
        """Returns the value at a fraction in [0, 1) of the interval, rounded to three digits."""
        low, high = math.log10(self.low), math.log10(self.high)
        if self.scale == "decades":
            n = round(high - low) + 1
            return float(f"{10 ** (round(low) + math.floor(share * n)):.3g}")
        value = float(f"{10 ** (low + share * (high - low)):.3g}")
        return round(1 - value, 10) if self.scale == "complement" else value

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


PEAK_LEARNING_RATE = Range(0.1, 10.0)
MOMENTUM = Range(0.01, 0.3, "complement")
WEIGHT_DECAY = Range(1e-5, 1e-3)
