"""Convolutions without bias, and an equivalent of the stem that works on blocks of pixels."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
LAYOUT = ("NHWC", "HWIO", "NHWC")


class Conv(nn.Module):
    """A convolution without bias, with a float32 kernel [k, k, c_in, features] and SAME padding.

    Attributes:
      pointwise_as_matmul: whether to apply a 1x1 kernel as a matrix product over all positions. The
        result is the same, and on a CPU its gradient takes XLA a quarter of the time.
    """

    features: int
    kernel_size: int
    stride: int = 1
    padding: Any = "SAME"
    dtype: Any = jnp.float32
    pointwise_as_matmul: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size, stride = self.kernel_size, self.stride
        shape = (size, size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, jnp.float32)
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        if size == 1 and self.pointwise_as_matmul:
            x = x[:, ::stride, ::stride]
            y = x.reshape(-1, x.shape[-1]) @ kernel[0, 0]
            return y.reshape(*x.shape[:-1], self.features)
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), self.padding, dimension_numbers=LAYOUT
        )


def space_to_depth(x: Array) -> Array:
    """Merges 2x2 blocks of pixels: [n, h, w, c] -> [n, h / 2, w / 2, 4 c], for even h and w."""
    n, h, w, c = x.shape
    blocks = x.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(n, h // 2, w // 2, 4 * c)


class StemOverBlocks(nn.Module):
    """The 7x7 convolution with stride 2 and padding 3, as one with stride 1 over 2x2 blocks.

    The input 224x224x3 becomes 112x112x12, which uses the lanes of a matrix unit better if a device
    has few images. The parameter remains [7, 7, c_in, features]. A row and a column of zeros before
    it extend it to 8x8, which is 4x4 blocks. The window of an output starts two blocks before it
    and ends one block after it.
    Source: V07 models.py.
    """

    features: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c = x.shape[-1]
        shape = (7, 7, c, self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, jnp.float32)
        kernel = jnp.pad(kernel.astype(self.dtype), [(1, 0), (1, 0), (0, 0), (0, 0)])
        blocks = kernel.reshape(4, 2, 4, 2, c, self.features).transpose(0, 2, 1, 3, 4, 5)
        blocks = blocks.reshape(4, 4, 4 * c, self.features)
        x = space_to_depth(x.astype(self.dtype))
        return lax.conv_general_dilated(x, blocks, (1, 1), [(2, 1)] * 2, dimension_numbers=LAYOUT)
