"""ResNet v1.5 with bottleneck blocks, as in the MLPerf JAX submissions (V07/V10 models.py).

The 3x3 convolutions have the stride 2, the last scale of each block is initialized to zero,
convolutions have no bias, and BatchNorm statistics span a fixed number of examples. ResNet-50 is
`stage_sizes=(3, 4, 6, 3), width=64`: 25,557,032 parameters with 1000 classes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from models.batch_norm import BatchNorm
from models.convolution import Conv, StemOverBlocks

Array = jax.Array
HEAD_INIT = nn.initializers.normal(stddev=0.01)  # V07/V10: Dense kernel


class BottleneckBlock(nn.Module):
    """Bottleneck: 1x1, 3x3 (strided) and 1x1 to 4 * width channels, plus the projected input."""

    width: int
    stride: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        y = self.conv(self.width, 1, name="conv1")(x)
        y = nn.relu(self.norm(name="bn1")(y, train))
        y = self.conv(self.width, 3, self.stride, name="conv2")(y)
        y = nn.relu(self.norm(name="bn2")(y, train))
        y = self.conv(4 * self.width, 1, name="conv3")(y)
        y = self.norm(name="bn3", scale_init=nn.initializers.zeros)(y, train)
        if x.shape != y.shape:
            x = self.conv(4 * self.width, 1, self.stride, name="conv_proj")(x)
            x = self.norm(name="bn_proj")(x, train)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """ResNet v1.5, which maps images [n, h, w, c] to logits [n, n_classes] in `logits_dtype`.

    Attributes:
      stage_sizes: blocks per stage. Stage i has width * 2^i channels in its 3x3 convolutions.
      width: channels of the stem and of the first stage's 3x3 convolutions.
      n_classes: number of outputs.
      stem_kernel_size, stem_stride: kernel and stride of the first convolution. Its padding is
        kernel // 2 on each side.
      stem_pool: whether to apply 3x3 max-pooling with stride 2 after the stem.
      stem_space_to_depth: whether to use `StemOverBlocks`, for the 7x7 stem with stride 2 and even
        image sides.
      bn_span, bn_decay, bn_epsilon, bn_running_variance: see `BatchNorm`.
      pointwise_as_matmul: see `Conv`.
      compute_dtype: dtype of convolutions and activations. Parameters are float32.
      logits_dtype: dtype of the output and so of log_softmax (bfloat16 in the JAX submissions).
      axis_name: the device axis, if bn_span exceeds the device batch.
    """

    stage_sizes: Sequence[int]
    width: int
    n_classes: int
    stem_kernel_size: int = 7
    stem_stride: int = 2
    stem_pool: bool = True
    stem_space_to_depth: bool = False
    bn_span: int = 0
    bn_decay: float = 0.9
    bn_epsilon: float = 1e-5
    bn_running_variance: str = "mean_of_groups"
    pointwise_as_matmul: bool = False
    compute_dtype: Any = jnp.float32
    logits_dtype: Any = jnp.float32
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        conv = partial(Conv, dtype=self.compute_dtype, pointwise_as_matmul=self.pointwise_as_matmul)
        norm = partial(
            BatchNorm,
            span=self.bn_span,
            decay=self.bn_decay,
            epsilon=self.bn_epsilon,
            running_variance=self.bn_running_variance,
            axis_name=self.axis_name,
        )
        kernel, stride, pad = self.stem_kernel_size, self.stem_stride, self.stem_kernel_size // 2
        if self.stem_space_to_depth:
            x = StemOverBlocks(self.width, self.compute_dtype, name="stem")(x)
        else:
            x = conv(self.width, kernel, stride, [(pad, pad)] * 2, name="stem")(x)
        x = nn.relu(norm(name="bn_stem")(x, train))
        if self.stem_pool:
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for stage, blocks in enumerate(self.stage_sizes):
            for block in range(blocks):
                x = BottleneckBlock(
                    width=self.width * 2**stage,
                    stride=2 if stage > 0 and block == 0 else 1,
                    conv=conv,
                    norm=norm,
                    name=f"stage{stage + 1}_block{block + 1}",
                )(x, train)
        x = x.mean(axis=(1, 2))
        x = nn.Dense(self.n_classes, dtype=self.compute_dtype, kernel_init=HEAD_INIT, name="head")(
            x
        )
        return x.astype(self.logits_dtype)
