"""Which parameters are weights, and which are biases or scales of a normalization layer."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, GetAttrKey

PyTree = Any
BOXES = ("value", "raw_value")  # attributes in which flax's boxes and variables hold their array
VECTORS = ("b", "offset")  # Haiku's names
WEIGHTS = ("kernel", "embedding", "w")


def decay_mask(params: PyTree) -> PyTree:
    """Returns True for weights, to which weight decay (and LARS's trust ratio) applies.

    The name of a leaf, the last key or attribute in its path, decides:

    * "bias", "scale" (anywhere in the name, as in the MLPerf JAX submissions), "b" and "offset"
      are not weights.
    * "kernel", "embedding" and "w" are weights.
    * A leaf with any other name, or without one (in lists and tuples), is a weight if its rank is
      at least two.

    Boxes do not count as names: leaves of an `nnx.State` or of `nn.with_partitioning` have the
    names of their variables.
    """

    def is_weight(path: tuple[Any, ...], leaf: Any) -> bool:
        name = _name(path)
        if "bias" in name or "scale" in name or name in VECTORS:
            return False
        return name in WEIGHTS or jnp.ndim(leaf) >= 2

    return jax.tree_util.tree_map_with_path(is_weight, params)


def _name(path: tuple[Any, ...]) -> str:
    """Returns the last key or attribute of a path without boxes; "" if it is an index."""
    while path and isinstance(path[-1], GetAttrKey) and path[-1].name in BOXES:
        path = path[:-1]
    last = path[-1] if path else None
    if isinstance(last, DictKey):
        return str(last.key)
    return last.name if isinstance(last, GetAttrKey) else ""


def rank_mask(params: PyTree) -> PyTree:
    """Returns True for leaves of rank two and above."""
    return jax.tree.map(lambda w: jnp.ndim(w) >= 2, params)


def resolve(mask: Any, params: PyTree) -> PyTree:
    """Returns a tree of bools: `mask` may be None (all True), a tree, or a function of params.

    The tree may be a prefix of `params`, as in optax: a bool applies to all leaves below it.
    """
    mask = True if mask is None else mask(params) if callable(mask) else mask
    return jax.tree.broadcast(mask, params)
