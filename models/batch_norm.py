"""Batch normalisation whose statistics span a fixed number of examples on any set of devices."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


def moments(x: Array, groups: int) -> tuple[Array, Array]:
    """Returns mean and biased variance, [groups, c] each, of equal parts of a batch [n, ..., c].

    Makes one pass over x, with sums in float32. A float32 input is shifted by one sample of each
    channel, because E[x^2] - E[x]^2 alone gives variance 0 for x = 1000 +- 0.1. A bfloat16 input
    needs no shift: its precision of 2^-8 is far coarser than the error of float32 sums (2^-24).
    Without a shift, XLA can compute the sums together with the convolution that produces x.
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
    """Returns the moments over the batches of each group of `devices` neighbouring devices."""
    n = lax.axis_size(axis_name)
    groups = [list(range(i, i + devices)) for i in range(0, n, devices)]
    mean_of = partial(lax.pmean, axis_name=axis_name, axis_index_groups=groups)
    pooled = mean_of(mean)
    return pooled, mean_of(variance + jnp.square(mean - pooled))


class BatchNorm(nn.Module):
    """Batch normalisation whose statistics span `span` examples on any number of devices.

    A device batch larger than `span` is split into sub-batches of `span` consecutive examples. A
    smaller one is joined with those of span / device_batch neighbouring devices over `axis_name`.
    Parameters, statistics and the computation are float32. The output has the input's dtype.
    Running statistics are means over the groups that share statistics: this module averages over
    the sub-batches of a device, and the train step over micro-batches and devices (see
    `average_statistics`).

    Attributes:
      span: number of examples that share statistics. 0 means the device batch.
      decay: decay of the running statistics, `decay * old + (1 - decay) * batch`.
      epsilon: constant added to the variance.
      running_variance: "mean_of_groups" averages the variances of the groups, as the submissions
        do. "pooled" is the variance of all their examples together, which is larger by the variance
        of the groups' means.
      axis_name: the device axis, which is needed only if span exceeds the device batch.
      scale_init: initializer of the scale: ones, or zeros for a block that starts as the identity.
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
            between = mean.var(0) if self.running_variance == "pooled" else 0.0
            running_var.value = keep * running_var.value + take * (variance.mean(0) + between)

        wide = (slice(None),) + (None,) * (y.ndim - 2)
        factor = lax.rsqrt(variance + self.epsilon) * scale
        y = (y - mean[wide]) * factor[wide] + bias
        return y.reshape(x.shape).astype(x.dtype)


def average_statistics(parts: Any, axis_name: str, pooled_decay: float | None) -> Any:
    """Combines the running statistics of the parts of a batch over all devices.

    With "pooled", the variance of the parts' means is added to the variance. A running mean
    contains (1 - decay) times the mean of its part, so that variance, times (1 - decay), is the
    variance of the running means divided by (1 - decay).

    Args:
      parts: tree with leaves [k, ...], the running statistics after each of this device's k parts,
        all computed from the statistics before the batch.
      pooled_decay: the decay if `running_variance` is "pooled", or None to average the parts.
    """

    def over_all(tree: Any) -> Any:
        return lax.pmean(jax.tree.map(lambda x: x.mean(0), tree), axis_name)

    averaged = over_all(parts)
    if pooled_decay is None:
        return averaged
    between = over_all(jax.tree.map(lambda x, mean: jnp.square(x - mean), parts, averaged))

    def pool(statistics: Any, between: Any) -> Any:
        return statistics | {"var": statistics["var"] + between["mean"] / (1 - pooled_decay)}

    return jax.tree.map(pool, averaged, between, is_leaf=lambda x: "var" in x)
