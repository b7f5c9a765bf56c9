"""Padding in closed form, and the equality of the two stems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.convolution import Conv, StemOverBlocks

PLAIN = Conv(5, 7, 2, [(3, 3)] * 2)
OVER_BLOCKS = StemOverBlocks(5)


@pytest.mark.parametrize(("height", "width"), [(2, 2), (8, 8), (14, 6), (32, 32), (64, 50)])
def test_the_stem_over_blocks_is_the_plain_stem(height, width):
    rng = np.random.default_rng(height)
    x = rng.normal(size=(3, height, width, 3)).astype(np.float32)
    weights = rng.normal(size=(3, height // 2, width // 2, 5)).astype(np.float32)
    key = jax.random.key(1)
    variables = PLAIN.init(key, x)
    same = OVER_BLOCKS.init(key, x)
    np.testing.assert_array_equal(variables["params"]["kernel"], same["params"]["kernel"])

    def output_and_gradients(stem):
        def loss(variables, x):
            y = stem.apply(variables, x)
            return (weights * y).sum(), y

        (_, y), grads = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(variables, x)
        return y, *grads

    for got, want in zip(
        jax.tree.leaves(output_and_gradients(OVER_BLOCKS)),
        jax.tree.leaves(output_and_gradients(PLAIN)),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize("side", [6, 7])
def test_same_with_stride_2_pads_even_sides_at_the_end_only(side):
    """Even sides are padded by (0, 1) and odd ones by (1, 1), unlike TensorFlow's fixed padding."""
    x = np.random.default_rng(0).normal(size=(1, side, side, 1)).astype(np.float32)
    first = np.zeros((3, 3, 1, 1), np.float32)
    first[0, 0] = 1  # the output is the first pixel of each window
    y = Conv(1, 3, 2).apply({"params": {"kernel": first}}, x)
    padded = np.pad(x, [(0, 0), (side % 2, 1), (side % 2, 1), (0, 0)])
    np.testing.assert_array_equal(y, padded[:, : side + side % 2 : 2, : side + side % 2 : 2])


def test_the_stem_over_blocks_computes_in_its_dtype():
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    variables = PLAIN.init(jax.random.key(0), x)
    y = StemOverBlocks(5, jnp.bfloat16).apply(variables, x)
    assert isinstance(y, jax.Array)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, Conv(5, 7, 2, [(3, 3)] * 2, jnp.bfloat16).apply(variables, x))
