"""Nesterov momentum as in init2winit, the code base of Nado et al. 2021."""

import jax.numpy as jnp
import optax

from . import arguments, masks, schedules


def nesterov(
    learning_rate: float | schedules.Schedule, *, momentum: float, weight_decay: float = 0.0
) -> optax.GradientTransformationExtraArgs:
    """m = momentum m + g; w -= lr (g + momentum m): the learning rate is outside the buffer.

    `weight_decay` is an L2 term, g + weight_decay w, on parameters of rank two and above only
    (init2winit's `l2_decay_factor` with its default `l2_decay_rank_threshold` of 2).

    Raises:
      ValueError: a hyperparameter is out of its range.
    """
    arguments.check("in [0, 1)", momentum=momentum)
    arguments.check("finite and at least 0", weight_decay=weight_decay)
    return arguments.in_float32(
        optax.chain(
            optax.add_decayed_weights(weight_decay, masks.rank_mask),
            optax.trace(momentum, nesterov=True, accumulator_dtype=jnp.float32),
            schedules.scale(learning_rate),
        )
    )
