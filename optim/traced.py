"""Hyperparameters as values of the optimizer's state, so that one program serves all of them.

A compiled step holds a Python number as a constant, and every new value costs a compilation: tens
of trials of a small network would spend their time on it. Here the learning rate's peak and the
numbers named in `NUMBERS` are float32 scalars in the state, where the step reads them.

0 and 1 remain constants: they switch terms off, as weight_decay = 0 and beta2 = 1 do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

PEAK = "peak_learning_rate"
# Per registered optimizer. Not Shampoo's matrix_epsilon: the schedule of its roots depends on it.
NUMBERS: dict[str, tuple[str, ...]] = {
    "lars": ("momentum", "weight_decay", "trust_coefficient"),
    "nesterov": ("momentum", "weight_decay"),
    "shampoo": ("beta1", "beta2", "weight_decay", "trust_coefficient"),
    "sm3": ("momentum", "weight_decay"),
}
ANY = 0.5  # in the place of a traced number, where its value does not matter; in every range
Numbers = Mapping[str, Any]


class TracedState(NamedTuple):
    numbers: dict[str, Array]  # float32 scalars, never changed by an update
    inner: Any  # the optimizer's own state


def is_known(x: Any) -> bool:
    """Whether x is a number of the program, not one that it reads: only then may code branch."""
    return not isinstance(x, Array)


def equals(x: Any, constant: float) -> bool:
    """Whether x is known to be `constant`; a number that is read never is."""
    return is_known(x) and x == constant


def numbers_of(name: str, hyperparameters: Mapping[str, Any], schedule: Numbers) -> dict[str, Any]:
    """The hyperparameters that a step reads from the state: {field: value}."""
    wanted = {field: hyperparameters.get(field) for field in NUMBERS.get(name, ())}
    wanted[PEAK] = schedule.get(PEAK)
    return {k: v for k, v in wanted.items() if isinstance(v, float) and v not in (0.0, 1.0)}


def transformation(
    build: Callable[[Numbers], optax.GradientTransformation], numbers: Mapping[str, float]
) -> optax.GradientTransformation:
    """`build(numbers)`, with the numbers kept in the state as `TracedState`.

    Args:
      build: makes the transformation from numbers, be they Python's or traced.
    """

    def init(params: Any) -> TracedState:
        scalars = {k: jnp.asarray(v, jnp.float32) for k, v in numbers.items()}
        return TracedState(scalars, build(numbers).init(params))

    def update(grads: Any, state: TracedState, params: Any = None) -> tuple[Any, TracedState]:
        updates, inner = build(state.numbers).update(grads, state.inner, params)
        return updates, TracedState(state.numbers, inner)

    return optax.GradientTransformation(init, update)
