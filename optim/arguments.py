"""Checks of hyperparameters, gradients and parameters, shared by all optimizers.

Every check runs when an optimizer is built or traced. It costs nothing in the compiled program.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

PyTree = Any


def is_static(x: Any) -> bool:
    """Whether `x` is a Python or numpy value, on which code may branch.

    A jax array is not static even if its value can be read: `optax.inject_hyperparams` passes a
    concrete array to `init` and a traced one to `update`, and both must build the same state.
    """
    return not isinstance(x, Array)


def equals(x: Any, constant: float) -> bool:
    """Whether `x` is static and equal to `constant`."""
    return is_static(x) and x == constant


RULES: dict[str, Callable[[Any], bool]] = {  # all are False for NaN
    "in [0, 1)": lambda x: 0 <= x < 1,
    "in [0, 1]": lambda x: 0 <= x <= 1,
    "finite": math.isfinite,
    "finite and at least 0": lambda x: 0 <= x < math.inf,
    "finite and above 0": lambda x: 0 < x < math.inf,
    "a whole number, at least 0": lambda x: x >= 0 and float(x).is_integer(),
    "a whole number, at least 1": lambda x: x >= 1 and float(x).is_integer(),
}


def check(rule: str, **values: Any) -> None:
    """Raises ValueError unless each hyperparameter obeys `rule`, a key of `RULES`.

    A tracer is accepted unchecked; a concrete jax array of size 1 is checked.
    """
    for field, value in values.items():
        if isinstance(value, jax.core.Tracer):
            continue
        if isinstance(value, Array) and value.size == 1:
            value = value.item()
        try:
            valid = bool(RULES[rule](value))
        except (TypeError, ValueError, OverflowError):  # not a number
            valid = False
        if not valid:
            raise ValueError(f"optimizer.{field}={value}: must be {rule}")


def check_static(**values: Any) -> None:
    """Raises ValueError if a hyperparameter that shapes the program is a jax array."""
    for field, value in values.items():
        if not is_static(value):
            raise ValueError(
                f"optimizer.{field}: must be a Python value, not an array; with "
                f"optax.inject_hyperparams pass static_args={(field,)}"
            )


def check_params(params: PyTree) -> None:
    """Raises ValueError unless every parameter is a real floating-point array."""
    for path, w in jax.tree_util.tree_leaves_with_path(params):
        dtype = _dtype(w)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            raise ValueError(
                f"params{_name(path)}: has dtype {dtype}, and complex parameters are not supported"
            )
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"params{_name(path)}: has dtype {dtype}, which gradients cannot change; leave it "
                "out with optax.masked or optax.partition"
            )


def check_gradients(grads: PyTree, params: PyTree) -> None:
    """Raises ValueError, in one sentence, unless `grads` are gradients of `params`.

    They must have the tree structure and the shapes of `params`, and both must be real and
    floating-point.
    """
    if params is None:
        raise ValueError(
            "params=None: this optimizer reads the parameters; call tx.update(grads, state, params)"
        )
    check_params(params)
    structures: list[Any] = [jax.tree.structure(tree) for tree in (grads, params)]
    if structures[0] != structures[1]:
        raise ValueError(
            f"grads: the tree structure differs from that of params; {_difference(grads, params)}"
        )
    weights = jax.tree_util.tree_leaves_with_path(params)
    for (path, w), g in zip(weights, jax.tree.leaves(grads), strict=True):
        dtype = _dtype(g)
        if dtype == jax.dtypes.float0:
            raise ValueError(
                f"grads{_name(path)}: has dtype float0, the gradient of an integer; leave it out "
                "with optax.masked or optax.partition"
            )
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"grads{_name(path)}: has dtype {dtype}; must be real floating-point")
        if jnp.shape(g) != jnp.shape(w):
            raise ValueError(
                f"grads{_name(path)}: has shape {jnp.shape(g)}, its parameter {jnp.shape(w)}"
            )


def in_float32(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Runs `inner` on float32 gradients and parameters, whatever their dtypes.

    Its state is float32, too, and each update has the dtype of its parameter. The arguments are
    checked by `check_gradients`.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: PyTree) -> PyTree:
        check_params(params)
        return inner.init(_cast(params))

    def update(grads: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> Any:
        check_gradients(grads, params)
        updates, state = inner.update(_cast(grads), state, _cast(params), **extra)
        return jax.tree.map(lambda u, w: u.astype(_dtype(w)), updates, params), state

    return optax.GradientTransformationExtraArgs(init, update)


def _cast(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def _dtype(x: Any) -> Any:
    return x.dtype if hasattr(x, "dtype") else jnp.result_type(x)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path)


def _difference(grads: PyTree, params: PyTree) -> str:
    """Names the first leaf that only one of two trees has."""
    names = [
        [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        for tree in (grads, params)
    ]
    for own, other, has, lacks in ((*names, "grads", "params"), (*names[::-1], "params", "grads")):
        extra = [name for name in own if name not in set(other)]
        if extra:
            return f"{has}{extra[0]} has no counterpart in {lacks}"
    return f"the containers are of types {type(grads).__name__} and {type(params).__name__}"
