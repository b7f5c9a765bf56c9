"""Grafting: a tensor's update takes its direction from Shampoo and its length from elsewhere.

Source: Agarwal et al. 2020, arXiv:2002.11803.
"""

from __future__ import annotations

import enum

import jax.numpy as jnp
from jax import Array

from optim import traced


class LayerwiseGrafting(enum.IntEnum):
    """Whose length an update takes. SGD and ADAGRAD as in the seed; the others are extensions."""

    SGD = 1
    ADAGRAD = 2
    NONE = 3  # Shampoo's own length
    RMSPROP = 4
    LARS = 5  # SGD's, decay added, times LARS's trust ratio


def parse(graft_type: LayerwiseGrafting | str) -> LayerwiseGrafting:
    """Returns the member, given itself or its name in any case."""
    if isinstance(graft_type, LayerwiseGrafting):
        return graft_type
    try:
        return LayerwiseGrafting[str(graft_type).upper()]
    except KeyError:
        known = ", ".join(LayerwiseGrafting.__members__)
        raise ValueError(f"optimizer.graft_type={graft_type!r}: use one of {known}") from None


def accumulates(graft_type: LayerwiseGrafting) -> bool:
    """Whether the graft keeps sums of squared gradients."""
    return graft_type in (LayerwiseGrafting.ADAGRAD, LayerwiseGrafting.RMSPROP)


def direction(
    graft_type: LayerwiseGrafting,
    g: Array,
    accumulator: Array | None,
    beta2: float,
    diagonal_epsilon: float,
) -> tuple[Array, Array | None]:
    """Returns the graft's own update and the new accumulator (None where there is none).

    g / (sqrt(A) + diagonal_epsilon), and 0 where A is 0; A sums g^2 (AdaGrad) or averages it
    with beta2 (RMSProp; beta2 = 1 sums). Where a square overflows, A stays and the update is 0.
    The other types take g itself.
    """
    if accumulator is None:
        return g, None
    if graft_type == LayerwiseGrafting.ADAGRAD:
        new = accumulator + g * g
    else:
        new = beta2 * accumulator + (1.0 if traced.equals(beta2, 1) else 1 - beta2) * g * g
    root = jnp.sqrt(new) + diagonal_epsilon
    update = jnp.where(root > 0, g / jnp.where(root > 0, root, 1.0), 0.0)
    return update, jnp.where(jnp.isfinite(new), new, accumulator)
