"""Batch normalisation whose statistics span a stated number of examples, on any placement."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


def moments(x: Array, groups: int) -> tuple[Array, Array]:
    """Mean and biased variance of `groups` equal parts of a batch: [n, ..., c] -> two [groups, c].

    One pass over x, summed in float32. A float32 input is shifted by one sample of each channel:
    E[x^2] - E[x]^2 alone gives variance 0 for x = 1000 +- 0.1. A bfloat16 input is not: its own
    steps, 2^-8 of its size, are far above what float32's sums lose (2^-24), and without a shift,
    which must wait for the convolution's output, XLA takes the sums while it computes that output.
    """
    x = x.reshape(groups, x.shape[0] // groups, *x.shape[1:])
    axes = tuple(range(1, x.ndim - 1))
    if x.dtype == jnp.float32:
        sample = (slice(None),) + (0,) * (x.ndim - 2)
        shift = lax.stop_gradient(x[sample])
        x -= jnp.expand_dims(shift, axes)
    else:
        shift, x = jnp.zeros((), jnp.float32), x.astype(jnp.float32)
    mean = x.mean(axes)
    variance = jnp.maximum(jnp.square(x).mean(axes) - jnp.square(mean), 0.0)
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
    Running statistics take the mean over the groups that share statistics: over a device's
    sub-batches here, over micro-batches and devices in the train step (`average_statistics`).

    Attributes:
      span: examples that share statistics; 0 means the device batch.
      decay: of the running statistics, `decay * old + (1 - decay) * batch`.
      epsilon: added to the variance.
      running_variance: "mean_of_groups", as the submissions have it, averages the variances of the
        groups; "pooled" takes that of all their examples together, which is larger by the variance
        of the groups' means.
      axis_name: the device axis; needed only where span exceeds the device batch.
      scale_init: of the scale; ones, or zeros where a block is to begin as the identity.
    """

    span: int
    decay: float
    epsilon: float
    axis_name: str | None = None
    running_variance: str = "mean_of_groups"
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
            mean, variance = moments(x, groups)
            if span > batch:
                mean, variance = pooled_over_devices(
                    mean, variance, span // batch, self.axis_name or ""
                )
            keep, take = self.decay, 1 - self.decay
            running_mean.value = keep * running_mean.value + take * mean.mean(0)
            spread = mean.var(0) if self.running_variance == "pooled" else 0.0
            running_var.value = keep * running_var.value + take * (variance.mean(0) + spread)

        wide = (slice(None),) + (None,) * (y.ndim - 2)
        factor = lax.rsqrt(variance + self.epsilon) * scale
        y = (y - mean[wide]) * factor[wide] + bias
        return y.reshape(x.shape).astype(x.dtype)


def average_statistics(parts: Any, axis_name: str, pooled_decay: float | None) -> Any:
    """Running statistics after a batch, from those after each of its parts, over all devices.

    Args:
      parts: tree whose leaves are [k, ...]: this device's k parts, each begun from the statistics
        before the batch.
      pooled_decay: the decay, where `running_variance` is "pooled"; None: the parts are averaged.

    A running mean takes (1 - decay) times its part's mean, so (1 - decay) times the variance of the
    parts' means, which the pooled variance adds, is the running means' variance / (1 - decay).
    """

    def over_all(tree: Any) -> Any:
        return lax.pmean(jax.tree.map(lambda x: x.mean(0), tree), axis_name)

    averaged = over_all(parts)
    if pooled_decay is None:
        return averaged
    spread = over_all(jax.tree.map(lambda x, mean: jnp.square(x - mean), parts, averaged))

    def pool(statistics: Any, spread: Any) -> Any:
        return statistics | {"var": statistics["var"] + spread["mean"] / (1 - pooled_decay)}

    return jax.tree.map(pool, averaged, spread, is_leaf=lambda x: "var" in x)
