"""Grafting: the direction of one transformation at the norm of another, tensor by tensor.

Source: Agarwal et al. 2020, arXiv:2002.11803. All transformations here run inside `over_blocks`.
"""

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from . import arguments
from .lars import trust_ratio_of_norms


class LayerwiseGrafting(enum.IntEnum):
    """Whose norm an update has. SGD and ADAGRAD are the published ones, the others extensions."""

    SGD = 1
    ADAGRAD = 2
    NONE = 3  # Shampoo's own norm
    RMSPROP = 4
    LARS = 5  # SGD's, with weight decay, times LARS's trust ratio


def parse(graft_type: LayerwiseGrafting | str) -> LayerwiseGrafting:
    """Returns the member, given itself or its name in any case."""
    if isinstance(graft_type, LayerwiseGrafting):
        return graft_type
    try:
        return LayerwiseGrafting[str(graft_type).upper()]
    except KeyError:
        names = ", ".join(LayerwiseGrafting.__members__)
        raise ValueError(f"optimizer.graft_type={graft_type!r}: use one of {names}") from None


def graft(
    direction: optax.GradientTransformation, magnitude: optax.GradientTransformation | None
) -> optax.GradientTransformationExtraArgs:
    """Scales each tensor of `direction`'s update to the norm of `magnitude`'s.

    Where the norm of the direction is 0 or not a number, as gradients at the ends of float32 make
    it, the update is the magnitude's own. Where it is infinite, the update is zero.

    Args:
      magnitude: None keeps the direction's norm; the gradient replaces an unusable direction.
    """
    keeps_norm = magnitude is None
    direction = optax.with_extra_args_support(direction)
    magnitude = optax.with_extra_args_support(magnitude or optax.identity())

    def init(params: Any) -> Any:
        return direction.init(params), magnitude.init(params)

    def update(grads: Any, state: Any, params: Any = None, *, layout: Any, **extra: Any) -> Any:
        d, first = direction.update(grads, state[0], params, layout=layout, **extra)
        m, second = magnitude.update(grads, state[1], params, layout=layout, **extra)
        d_norms, m_norms = layout.tensor_norms(d, m)
        updates = {}
        for name, length in d_norms.items():
            ratio = (length if keeps_norm else m_norms[name]) / jnp.where(length > 0, length, 1.0)
            ratio = layout.broadcast(name, jnp.where(length > 0, ratio, jnp.nan))
            updates[name] = jnp.where(jnp.isfinite(ratio), d[name] * ratio, m[name])
        return updates, (first, second)

    return optax.GradientTransformationExtraArgs(init, update)


class SwitchState(NamedTuple):
    step: Array  # int32 scalar, completed updates
    before: Any
    after: Any


def switch_at(
    step: int, before: optax.GradientTransformation, after: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    """Uses the update of `before` until update number `step` (from 0), then that of `after`.

    Both run from the first update on, so the state of `after` is warm.
    """
    before, after = map(optax.with_extra_args_support, (before, after))

    def init(params: Any) -> SwitchState:
        return SwitchState(jnp.zeros((), jnp.int32), before.init(params), after.init(params))

    def update(grads: Any, state: SwitchState, params: Any = None, **extra: Any) -> Any:
        early, first = before.update(grads, state.before, params, **extra)
        late, second = after.update(grads, state.after, params, **extra)
        chosen = jax.tree.map(lambda a, b: jnp.where(state.step >= step, b, a), early, late)
        return chosen, SwitchState(state.step + 1, first, second)

    return optax.GradientTransformationExtraArgs(init, update)


def magnitude_of(
    graft_type: LayerwiseGrafting, beta2: float, epsilon: float
) -> optax.GradientTransformation | None:
    """Returns the transformation whose norm `graft_type` takes; None for the direction's own."""
    if graft_type == LayerwiseGrafting.NONE:
        return None
    if graft_type in (LayerwiseGrafting.SGD, LayerwiseGrafting.LARS):
        return optax.identity()
    return scale_by_second_moment(beta2 if graft_type == LayerwiseGrafting.RMSPROP else 1, epsilon)


def scale_by_second_moment(decay: float, epsilon: float) -> optax.GradientTransformation:
    """g / (sqrt(A) + epsilon), and 0 where A is 0; A = decay A + (1 - decay) g^2 as in RMSProp.

    A decay of 1 sums g^2, as in AdaGrad. Where g^2 overflows, A stays and the update is 0.
    """
    weight = 1.0 if arguments.equals(decay, 1) else 1 - decay

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        del params

        def scale(g: Array, a: Array) -> Array:
            root = jnp.sqrt(a) + epsilon
            return jnp.where(root > 0, g / jnp.where(root > 0, root, 1.0), 0.0)

        new = jax.tree.map(lambda g, a: decay * a + weight * g * g, grads, state)
        kept = jax.tree.map(lambda n, o: jnp.where(jnp.isfinite(n), n, o), new, state)
        return jax.tree.map(scale, grads, new), kept

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)


def add_decayed_weights(
    weight_decay: float, trust_coefficient: float | None = None
) -> optax.GradientTransformationExtraArgs:
    """Adds weight_decay w to the tensors that `Layout.decays` selects.

    Args:
      trust_coefficient: if given, the sum is multiplied with LARS's trust ratio, for which the norm
        of the incoming update is that of the gradient.
    """

    def update(grads: Any, state: Any, params: Any = None, *, layout: Any, **extra: Any) -> Any:
        del extra
        decays = {name: layout.decays(name) for name in grads}
        u = {name: g + weight_decay * decays[name] * params[name] for name, g in grads.items()}
        if trust_coefficient is not None:
            w_norms, g_norms = layout.tensor_norms(params, grads)
            for name in u:
                norms = w_norms[name], g_norms[name]
                trust = trust_ratio_of_norms(*norms, weight_decay, trust_coefficient)
                trust = layout.broadcast(name, trust)
                u[name] = jnp.where(decays[name] > 0, trust, 1.0) * u[name]
        return u, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
