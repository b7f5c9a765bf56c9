"""Euclidean norms that neither underflow nor overflow before their value does."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from .sharding import Devices, axis_devices


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


def norms(tensors: Sequence[Array], axis_name: str | None = None) -> Array:
    """Returns `norm` of each tensor, `[len(tensors)]`.

    Args:
      tensors: arrays. Under `axis_name` they must be equal on all devices.
      axis_name: an axis of pmap, shard_map or vmap. Each of its devices reads a slice of every
        tensor, and two collectives of a scalar per tensor combine them. Outside of such an axis,
        or with None, every tensor is read in full.
    """
    devices = axis_devices(axis_name)
    if devices.n == 1 or not tensors:
        return jnp.stack([norm(x) for x in tensors]) if tensors else jnp.zeros(0)
    slices = [_own_slice(x.astype(jnp.float32), devices) for x in tensors]
    largest = devices.max(jnp.stack([jnp.max(jnp.abs(x), initial=0.0) for x in slices]))
    unit = jnp.where(largest > 0, largest, 1.0)
    squares = [jnp.sum(jnp.square(x / u)) for x, u in zip(slices, unit, strict=True)]
    return largest * jnp.sqrt(devices.sum(jnp.stack(squares)))


def _own_slice(x: Array, devices: Devices) -> Array:
    """Returns this device's slice of x, in which entries that other devices also have are zero.

    The cut is along the longest dimension but the last, which a TPU lays out in lanes.
    """
    index = lax.axis_index(devices.axis_name)
    if x.ndim == 0 or x.size == 0:
        return jnp.where(index == 0, x, 0.0)
    axis = max(range(max(1, x.ndim - 1)), key=lambda i: x.shape[i])
    length = -(-x.shape[axis] // devices.n)
    start = jnp.minimum(index * length, x.shape[axis] - length)
    own = lax.dynamic_slice_in_dim(x, start, length, axis)
    position = start + lax.broadcasted_iota(jnp.int32, own.shape, axis)
    return jnp.where(position >= index * length, own, 0.0)
