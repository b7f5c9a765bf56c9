"""Optimizers as optax transformations, chosen by name.

    tx, schedule = make_optimizer("lars", {"momentum": 0.9}, {"peak_learning_rate": 29.0}, 2512)

A name is a key of `BUILDERS` or `package.module:factory` for any factory of an optax
transformation that takes `learning_rate`.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from errors import UserError
from optim import distributed_shampoo, lars, masks, nesterov, schedules, sm3

BUILDERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "lars": partial(lars, batch_axis_name="batch"),
    "nesterov": nesterov,
    "shampoo": partial(
        distributed_shampoo, weight_decay_mask=masks.decay_mask, batch_axis_name="batch"
    ),
    "sm3": sm3,
}
# A transformation, and the very schedule it uses, for the log.
Optimizer = tuple[optax.GradientTransformation, schedules.Schedule]
PEAK = "peak_learning_rate"
# Injected per registered optimizer, besides the peak. Shampoo's matrix_epsilon is not: the
# polynomials of its roots depend on it.
INJECTED: dict[str, tuple[str, ...]] = {
    "lars": ("momentum", "weight_decay", "trust_coefficient"),
    "nesterov": ("momentum", "weight_decay"),
    "shampoo": ("beta1", "beta2", "weight_decay", "trust_coefficient"),
    "sm3": ("momentum", "weight_decay"),
}
PLACEHOLDER = 0.5  # for an injected hyperparameter in a cache key; in every range


def _factory(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        if module[:1] in ("", "."):
            raise ImportError("a relative name, or none")
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"optimizer.name={name}: cannot be imported ({error}); "
            "give package.module:factory of what is installed, lies in this folder, or in one that "
            "PYTHONPATH names"
        ) from error


def check(name: str) -> None:
    """Raises UserError unless `name` is registered or an importable `package.module:factory`."""
    if ":" in name:
        _factory(name)
    elif name not in BUILDERS:
        raise UserError(
            f"optimizer.name={name}: unknown; use one of {', '.join(sorted(BUILDERS))} "
            "or package.module:factory"
        )


def make_optimizer(
    name: str,
    hyperparameters: Mapping[str, Any],
    schedule: Mapping[str, float],
    total_steps: int,
) -> Optimizer:
    """Returns a transformation and its schedule.

    The learning rate's peak and the hyperparameters in `INJECTED` are float32 scalars in its state
    (`optax.inject_hyperparams`), so that one compiled step serves all their values. 0 and 1 remain
    constants: they switch terms off, as weight_decay = 0 and beta2 = 1 do.

    Args:
      name: a key of `BUILDERS`, or `package.module:factory`; the factory is called as
        `factory(learning_rate=schedule, **hyperparameters)`.
      hyperparameters: keywords of the builder or factory, without a learning rate.
      schedule: keywords of `schedules.polynomial`, except `total_steps`.

    Raises:
      UserError: unknown name, or a field that the optimizer or the schedule does not take.
    """
    check(name)
    builder = _factory(name) if ":" in name else BUILDERS[name]

    def build(**injected: Any) -> optax.GradientTransformation:
        rate = schedules.polynomial(total_steps=total_steps, **_replaced(schedule, injected))
        return builder(learning_rate=rate, **_replaced(hyperparameters, injected))

    try:
        learning_rate = schedules.polynomial(total_steps=total_steps, **schedule)
    except ValueError as error:
        raise UserError(str(error)) from error
    except TypeError as error:
        raise UserError(f"schedule: does not take these fields: {error}") from error
    try:
        inspect.signature(builder).bind(learning_rate=learning_rate, **hyperparameters)
    except TypeError as error:
        raise UserError(
            f"optimizer: {name} does not take these fields: {error}; it must take learning_rate "
            "and every other field of config.optimizer"
        ) from error
    try:
        tx = build()  # checks the values: under `jit` they are tracers
    except ValueError as error:
        raise UserError(f"{error}" if ":" not in name else f"optimizer: {name}: {error}") from error
    if not all(callable(getattr(tx, part, None)) for part in ("init", "update")):
        raise UserError(
            f"optimizer: {name} returned {type(tx).__name__}, not an optax transformation with "
            "init and update"
        )
    if ":" in name:
        _check_update(name, tx)
    injected = _injected(name, hyperparameters, schedule)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(field, keyword) for field in injected]
    build.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    inject = optax.inject_hyperparams(build, hyperparam_dtype=jnp.float32)
    return inject(**injected), learning_rate


def _check_update(name: str, tx: optax.GradientTransformation) -> None:
    """Raises UserError if `tx.update` needs more than gradients, state and parameters."""
    shapes = {"kernel": jax.ShapeDtypeStruct((2, 2), "float32")}
    try:
        jax.eval_shape(lambda params: tx.update(params, tx.init(params), params), shapes)
    except NameError:  # it uses the axis of the training step
        return
    except Exception as error:
        raise UserError(
            f"optimizer.name={name}: update(grads, state, params) fails ({error}); optimizers that "
            "need the loss or other arguments are not supported, because the loss of a step is "
            "known only after all devices and micro-batches"
        ) from error


def _injected(
    name: str, hyperparameters: Mapping[str, Any], schedule: Mapping[str, float]
) -> dict[str, float]:
    """Returns the hyperparameters that `make_optimizer` injects, and their values."""
    values = {field: hyperparameters.get(field) for field in INJECTED.get(name, ())}
    values[PEAK] = schedule.get(PEAK)
    return {k: v for k, v in values.items() if isinstance(v, float) and v not in (0.0, 1.0)}


def _replaced(section: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section of a recipe with those of `values` that it has."""
    return {field: values.get(field, value) for field, value in section.items()}


def from_recipe(config: Mapping[str, Any]) -> Optimizer:
    """Calls `make_optimizer` for a recipe: a ConfigDict, or its JSON values."""
    hyperparameters = dict(config["optimizer"])
    name = hyperparameters.pop("name")
    return make_optimizer(name, hyperparameters, dict(config["schedule"]), config["total_steps"])


def cache_key(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns optimizer and schedule with `PLACEHOLDER` for every injected hyperparameter.

    Recipes with equal keys share a compiled step: the transformation of each has the same `update`.
    """
    optimizer, schedule = config["optimizer"], config["schedule"]
    values = dict.fromkeys(_injected(optimizer["name"], optimizer, schedule), PLACEHOLDER)
    return {"optimizer": _replaced(optimizer, values), "schedule": _replaced(schedule, values)}
