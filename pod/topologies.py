"""TPU generations (memory, clock and interconnect) and the names of their slices."""

import dataclasses
import math
import re

from errors import UserError

INTERCONNECT_EFFICIENCY = 0.5  # an assumption


@dataclasses.dataclass(frozen=True)
class Generation:
    """One TPU generation, per device as JAX counts them: a core on v2 to v4's two-core chips.

    Sources: Google Cloud's pages on TPU system architecture for memory and interconnect, and
    Jouppi et al. 2021 and 2023 for the clocks of v2 to v4. The clocks of v5e, v5p and v6e are
    estimates: published peak throughput divided by the operations per cycle that the compiler
    assumes for a large matrix product.

    Attributes:
      accelerator: Cloud TPU's name, without the number of cores or chips.
      hbm_gib: memory of one device, GiB.
      clock_mhz: cycles of the compiler's estimates per microsecond.
      link_gbit: interconnect of one chip, all links, one direction, Gbit/s.
      devices_per_chip: number of JAX devices of a chip.
      devices_per_host: number of JAX devices of a host.
    """

    accelerator: str
    hbm_gib: float
    clock_mhz: float
    link_gbit: float
    devices_per_chip: int
    devices_per_host: int

    @property
    def interconnect_bytes_per_second(self) -> float:
        """Bandwidth of one chip at the assumed efficiency."""
        return self.link_gbit * 1e9 / 8 * INTERCONNECT_EFFICIENCY


GENERATIONS = {
    "v2": Generation("v2", 8, 700, 4 * 496, 2, 8),
    "v3": Generation("v3", 16, 940, 4 * 656, 2, 8),
    "v4": Generation("v4", 16, 1050, 2400, 2, 8),
    "v5e": Generation("v5litepod", 16, 1500, 1600, 1, 4),
    "v5p": Generation("v5p", 95, 1750, 4800, 1, 4),
    "v6e": Generation("v6e", 32, 1750, 3200, 1, 4),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of a TPU pod, named after its generation and the chips along each axis: v3:16x8."""

    name: str
    generation: Generation
    n_chips: int

    @property
    def n_devices(self) -> int:
        return self.n_chips * self.generation.devices_per_chip

    @property
    def accelerator_type(self) -> str:
        """Cloud TPU's name of the slice. Its number counts cores up to v5p, then chips."""
        cores = 1 if self.generation.accelerator in ("v5litepod", "v6e") else 2
        return f"{self.generation.accelerator}-{self.n_chips * cores}"


def parse(name: str) -> Topology:
    """Parses a name such as 'v3:16x8' (128 chips, 256 devices).

    Raises:
      UserError: an unknown generation, or impossible sizes.
    """
    generation, _, sizes = name.partition(":")
    if generation not in GENERATIONS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", sizes):
        raise UserError(
            f"topology={name}: needs a generation ({', '.join(GENERATIONS)}) and the chips along "
            "each axis, as v3:16x8 (128 chips, 256 cores) or v4:4x4x8"
        )
    return Topology(name, GENERATIONS[generation], math.prod(map(int, sizes.split("x"))))
