"""ResNet v1.5 with bottleneck blocks, as the MLPerf JAX submissions (V07/V10 models.py) have it.

Stride 2 sits on the 3x3 convolution, the last scale of each block starts at zero, convolutions have
no bias, and batch normalisation takes its statistics over a stated number of examples. ResNet-50 is
`stage_sizes=(3, 4, 6, 3), width=64`: 25,557,032 parameters with 1000 classes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
HEAD_INIT = nn.initializers.normal(stddev=0.01)  # V07/V10: Dense kernel


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and biased variance over all axes but the first and last: [g, ..., c] -> two [g, c].

    One pass over x, shifted by one sample of each channel: E[x^2] - E[x]^2 alone gives variance 0
    for x = 1000 +- 0.1 in float32.
    """
    axes = tuple(range(1, x.ndim - 1))
    sample = (slice(None),) + (0,) * (x.ndim - 2)
    shift = lax.stop_gradient(x[sample])
    centred = x - jnp.expand_dims(shift, axes)
    mean = centred.mean(axes)
    variance = jnp.maximum(jnp.square(centred).mean(axes) - jnp.square(mean), 0.0)
    return mean + shift, variance


def pooled_over_devices(
    mean: Array, variance: Array, devices: int, axis_name: str
) -> tuple[Array, Array]:
    """Moments of the union of `devices` neighbouring devices' equally large batches."""
    n = lax.axis_size(axis_name)
    groups = [list(range(i, i + devices)) for i in range(0, n, devices)]
    mean_of = partial(lax.pmean, axis_name=axis_name, axis_index_groups=groups)
    pooled = mean_of(mean)
    return pooled, mean_of(variance + jnp.square(mean - pooled))


class BatchNorm(nn.Module):
    """Batch normalisation whose statistics span `span` examples, whatever the device count.

    A device batch larger than `span` is split into sub-batches of `span` consecutive examples; a
    smaller one is joined with those of span / device_batch neighbouring devices over `axis_name`.
    Parameters, statistics and the computation are float32; the output has the input's dtype.
    Running statistics are the mean over a device's sub-batches; the train step averages them over
    the devices.

    Attributes:
      span: examples that share statistics; 0 means the device batch.
      decay: of the running statistics, `decay * old + (1 - decay) * batch`.
      epsilon: added to the variance.
      axis_name: the device axis; needed only where span exceeds the device batch.
    """

    span: int
    decay: float
    epsilon: float
    axis_name: str | None = None
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        channels = x.shape[-1]
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
        scale = self.param("scale", self.scale_init, (channels,), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)

        batch = x.shape[0]
        span = self.span or batch
        groups = batch // span if train and span < batch else 1
        y = x.astype(jnp.float32).reshape(groups, batch // groups, *x.shape[1:])
        if not train:
            mean, variance = running_mean.value[None], running_var.value[None]
        else:
            mean, variance = moments(y)
            if span > batch:
                mean, variance = pooled_over_devices(
                    mean, variance, span // batch, self.axis_name or ""
                )
            keep, take = self.decay, 1 - self.decay
            running_mean.value = keep * running_mean.value + take * mean.mean(0)
            running_var.value = keep * running_var.value + take * variance.mean(0)

        wide = (slice(None),) + (None,) * (y.ndim - 2)
        factor = lax.rsqrt(variance + self.epsilon) * scale
        y = (y - mean[wide]) * factor[wide] + bias
        return y.reshape(x.shape).astype(x.dtype)


class Conv(nn.Module):
    """A convolution without bias, SAME unless padded; its kernel [k, k, c_in, features] is float32.

    Attributes:
      pointwise_as_matmul: a 1x1 kernel is applied as a matrix product over all positions. Same
        parameter, same result; XLA's CPU backend takes a fourth of the time for its gradient.
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
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), self.padding, dimension_numbers=layout
        )


class BottleneckBlock(nn.Module):
    """1x1, 3x3 (strided), 1x1 to 4 * width channels, added to a projection of the input."""

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
    """ResNet v1.5: images [n, h, w, c] -> logits [n, n_classes] in `logits_dtype`.

    Attributes:
      stage_sizes: blocks per stage; stage i has width * 2^i channels in its 3x3 convolutions.
      width: channels of the stem and of the first stage's 3x3 convolutions.
      n_classes: outputs.
      stem_kernel_size, stem_stride: of the first convolution, explicitly padded by kernel // 2.
      stem_pool: 3x3 max-pooling with stride 2 after the stem.
      bn_span, bn_decay, bn_epsilon: see `BatchNorm`.
      pointwise_as_matmul: see `Conv`.
      compute_dtype: of convolutions and activations; parameters are float32.
      logits_dtype: of the output, hence of log_softmax (the JAX submissions: bfloat16).
      axis_name: the device axis, for a bn_span above the device batch.
    """

    stage_sizes: Sequence[int]
    width: int
    n_classes: int
    stem_kernel_size: int = 7
    stem_stride: int = 2
    stem_pool: bool = True
    bn_span: int = 0
    bn_decay: float = 0.9
    bn_epsilon: float = 1e-5
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
            axis_name=self.axis_name,
        )
        kernel, stride, pad = self.stem_kernel_size, self.stem_stride, self.stem_kernel_size // 2
        x = x.astype(self.compute_dtype)
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
