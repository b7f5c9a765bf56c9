"""Euclidean norms that neither underflow nor overflow before their value does."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def norm(x: Array, axis: tuple[int, ...] | None = None) -> Array:
    """Returns the 2-norm over `axis` (default: all), float32.

    Squares of entries below 1e-19 are zero in float32, so the entries are divided by their
    largest magnitude first. NaN if any entry is not finite, 0 for zeros and for empty arrays.
    """
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=axis, initial=0.0, keepdims=True)
    scaled = x / jnp.where(largest > 0, largest, 1.0)
    root = jnp.sqrt(jnp.sum(scaled * scaled, axis=axis, keepdims=True))
    return jnp.squeeze(largest * root, axis=axis)
