"""LARS as in the MLPerf submissions: the JAX form and, by name, the TensorFlow form."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from . import arguments, masks, schedules
from .norms import norms

FORMS = ("jax", "tf")


def lars(
    learning_rate: float | schedules.Schedule,
    *,
    momentum: float,
    weight_decay: float = 0.0,
    trust_coefficient: float = 0.001,
    epsilon: float = 0.0,
    form: str = "jax",
    weight_mask: Any = None,
    batch_axis_name: str | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Weights: m = momentum m + lr trust (g + weight_decay w); w -= m.

    Learning rate and trust ratio are inside the buffer of the weights. Biases and BatchNorm
    (False in `weight_mask`) have neither ratio nor decay, and there the two forms differ as soon
    as the rate changes: `jax` has it outside the buffer (m = momentum m + g; w -= lr m, flax's
    Momentum beside flax's LARS), `tf` inside (m = momentum m + lr g; w -= m).

    Sources: flax v0.3.3 `optim/lars.py`, `optim/momentum.py` as split by MLPerf v0.7/v1.0
    `train.py`; TensorFlow 1 contrib `lars_optimizer.py`.

    Args:
      learning_rate: a number or a function of the number of completed updates.
      momentum: decay of the buffer, in [0, 1).
      weight_decay: L2 term of the weights.
      trust_coefficient: factor of the trust ratio.
      epsilon: term of the ratio's denominator.
      form: "jax" or "tf".
      weight_mask: tree of bools, or a function of the parameters; None is `masks.decay_mask`.
      batch_axis_name: axis of pmap, shard_map or vmap over whose devices the norms are computed.
        Gradients (averaged already) and parameters must be equal on all of them. Outside of such
        an axis every device computes all norms.

    Raises:
      ValueError: a hyperparameter is out of its range.
    """
    arguments.check("in [0, 1)", momentum=momentum)
    arguments.check("finite and above 0", trust_coefficient=trust_coefficient)
    arguments.check("finite and at least 0", weight_decay=weight_decay, epsilon=epsilon)
    if form not in FORMS:
        raise ValueError(f"optimizer.form={form!r}: unknown form of LARS; use one of {FORMS}")

    def weights(tree: Any) -> Any:
        return masks.resolve(masks.decay_mask if weight_mask is None else weight_mask, tree)

    def others(tree: Any) -> Any:
        return jax.tree.map(lambda is_weight: not is_weight, weights(tree))

    trust = scale_by_trust_ratio(weight_decay, trust_coefficient, epsilon, batch_axis_name)
    rate = schedules.scale(learning_rate)
    buffer = optax.trace(momentum, accumulator_dtype=jnp.float32)
    if form == "tf":
        return arguments.in_float32(optax.chain(optax.masked(trust, weights), rate, buffer))
    return arguments.in_float32(
        optax.chain(
            optax.masked(optax.chain(trust, rate), weights), buffer, optax.masked(rate, others)
        )
    )


def scale_by_trust_ratio(
    weight_decay: float, coefficient: float, epsilon: float, axis_name: str | None
) -> optax.GradientTransformation:
    """Returns trust (g + weight_decay w) for each tensor; `optax.lars` has another ratio."""

    def update(grads: Any, state: optax.EmptyState, params: Any) -> tuple[Any, optax.EmptyState]:
        g, treedef = jax.tree.flatten(grads)
        w = jax.tree.leaves(params)
        w_norms, g_norms = jnp.split(norms([*w, *g], axis_name), 2)
        ratios = trust_ratio_of_norms(w_norms, g_norms, weight_decay, coefficient, epsilon)
        scaled = [r * (x + weight_decay * y) for r, x, y in zip(ratios, g, w, strict=True)]
        return jax.tree.unflatten(treedef, scaled), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def trust_ratio_of_norms(
    w_norm: Array, g_norm: Array, weight_decay: float, coefficient: float, epsilon: float = 0.0
) -> Array:
    """Returns coefficient |w| / (|g| + weight_decay |w| + epsilon), 1 where |w| or |g| is 0."""
    moving = (w_norm > 0) & (g_norm > 0)
    below = g_norm + weight_decay * w_norm + epsilon
    return jnp.where(moving, coefficient * w_norm / jnp.where(moving, below, 1.0), 1.0)
