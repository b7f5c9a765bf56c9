"""Which parameters are weights, and which are biases or BatchNorm's."""

from __future__ import annotations

from typing import Any

import jax

PyTree = Any


def decay_mask(params: PyTree) -> PyTree:
    """True where weight decay (and LARS's trust ratio) applies: all but `bias` and `scale`.

    The MLPerf JAX submissions split by name: a leaf whose own name contains "bias" or "scale"
    is BatchNorm's or a bias.
    """

    def is_weight(path: tuple[Any, ...], _: Any) -> bool:
        last = jax.tree_util.keystr(path[-1:])
        return "bias" not in last and "scale" not in last

    return jax.tree_util.tree_map_with_path(is_weight, params)


def resolve(mask: Any, params: PyTree) -> PyTree:
    """Returns a tree of bools: `mask` may be None (all True), a tree, or a function of params.

    A tree may end early, as optax's may: a bool is that of all the leaves below it.
    """
    mask = True if mask is None else mask(params) if callable(mask) else mask
    return jax.tree.broadcast(mask, params)
