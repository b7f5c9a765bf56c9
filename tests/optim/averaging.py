"""An optimizer whose state begins as the parameters themselves, as averaging methods have it."""

from typing import Any, NamedTuple

import jax
import optax


class AveragedState(NamedTuple):
    inner: Any
    average: Any


def averaged_sgd(learning_rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    """SGD that keeps an average of the parameters; `init` returns them, not a copy."""
    sgd = optax.sgd(learning_rate)

    def init(params: Any) -> AveragedState:
        return AveragedState(sgd.init(params), params)

    def update(grads: Any, state: AveragedState, params: Any) -> tuple[Any, AveragedState]:
        updates, inner = sgd.update(grads, state.inner, params)
        average = jax.tree.map(lambda a, w: 0.9 * a + 0.1 * w, state.average, params)
        return updates, AveragedState(inner, average)

    return optax.GradientTransformation(init, update)
