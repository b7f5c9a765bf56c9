"""Optimizers as optax transformations, chosen by name.

    tx, schedule = make_optimizer("lars", {"momentum": 0.9}, {"peak_learning_rate": 29.0}, 2512)

A name is a key of `BUILDERS` or `package.module:factory` for any factory of an optax
transformation that takes `learning_rate`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from optim import lars, masks, nesterov, schedules, shampoo, sm3, traced
from optim.shampoo import distributed_shampoo

__all__ = [
    "BUILDERS",
    "check",
    "distributed_shampoo",
    "from_recipe",
    "make_optimizer",
    "metrics",
    "structure",
]

BUILDERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "lars": lars.lars,
    "nesterov": nesterov.nesterov,
    "shampoo": partial(
        distributed_shampoo, weight_decay_mask=masks.decay_mask, batch_axis_name="batch"
    ),
    "sm3": sm3.sm3,
}


def _factory(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        if module[:1] in ("", "."):
            raise ImportError("a relative name, or none")
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"optimizer.name={name}: cannot be imported ({error}); "
            "give package.module:factory of what is installed, lies in this folder, or in one that "
            "PYTHONPATH names"
        ) from error


def check(name: str) -> None:
    """Raises ValueError unless `name` is registered or an importable `package.module:factory`."""
    if ":" in name:
        _factory(name)
    elif name not in BUILDERS:
        raise ValueError(
            f"optimizer.name={name}: unknown; use one of {', '.join(sorted(BUILDERS))} "
            "or package.module:factory"
        )


def make_optimizer(
    name: str,
    hyperparameters: Mapping[str, Any],
    schedule: Mapping[str, float],
    total_steps: int,
) -> tuple[optax.GradientTransformation, schedules.Schedule]:
    """Returns (transformation, the very schedule it uses, for the log).

    Its state is a `traced.TracedState`: one compiled step serves all values of most numbers.

    Args:
      name: a key of `BUILDERS`, or `package.module:factory`; the factory is called as
        `factory(learning_rate=schedule, **hyperparameters)`.
      hyperparameters: keywords of the builder or factory, without a learning rate.
      schedule: keywords of `schedules.polynomial`, except `total_steps`.

    Raises:
      ValueError: unknown name, or a field that the optimizer or the schedule does not take.
    """
    check(name)
    builder = _factory(name) if ":" in name else BUILDERS[name]

    def rate(numbers: traced.Numbers) -> schedules.Schedule:
        peak = {k: v for k, v in numbers.items() if k == traced.PEAK}
        return schedules.polynomial(**{"total_steps": total_steps, **schedule, **peak})

    def build(numbers: traced.Numbers) -> optax.GradientTransformation:
        own = {k: v for k, v in numbers.items() if k != traced.PEAK}
        return builder(learning_rate=rate(numbers), **{**hyperparameters, **own})

    try:
        learning_rate = rate({})
    except TypeError as error:
        raise ValueError(f"schedule: does not take these fields: {error}") from error
    try:
        inspect.signature(builder).bind(learning_rate=learning_rate, **hyperparameters)
    except TypeError as error:
        raise ValueError(
            f"optimizer: {name} does not take these fields: {error}; it must take learning_rate "
            "and every other field of config.optimizer"
        ) from error
    tx = build({})  # checks the values, which it cannot once they are traced
    if not all(callable(getattr(tx, part, None)) for part in ("init", "update")):
        raise ValueError(
            f"optimizer: {name} returned {type(tx).__name__}, not an optax transformation with "
            "init and update"
        )
    numbers = traced.numbers_of(name, hyperparameters, schedule)
    return traced.transformation(build, numbers), learning_rate


def from_recipe(
    optimizer: Mapping[str, Any], schedule: Mapping[str, float], total_steps: int
) -> tuple[optax.GradientTransformation, schedules.Schedule]:
    """`make_optimizer` for a recipe's section: its name, the hyperparameters beside it."""
    hyperparameters = dict(optimizer)
    name = hyperparameters.pop("name")
    return make_optimizer(name, hyperparameters, schedule, total_steps)


def structure(
    optimizer: Mapping[str, Any], schedule: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """A recipe's two sections with `traced.ANY` for every number that the step reads.

    Equal structures are one compiled step: `from_recipe` of any of them has its `update`.
    """
    numbers = dict.fromkeys(traced.numbers_of(optimizer["name"], optimizer, schedule), traced.ANY)
    peak = {k: v for k, v in numbers.items() if k == traced.PEAK}
    own = {k: v for k, v in numbers.items() if k != traced.PEAK}
    return {**optimizer, **own}, {**schedule, **peak}


def metrics(opt_state: Any) -> dict[str, Array]:
    """Returns the scalars that an optimizer counts for the log; {} for most optimizers.

    Several Shampoos, as of `optax.multi_transform`, are counted together.
    """
    found = jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, shampoo.ShampooState))
    counted = [shampoo.metrics(x) for x in found if isinstance(x, shampoo.ShampooState)]
    return jax.tree.map(lambda *x: reduce(jnp.add, x), *counted) if counted else {}
