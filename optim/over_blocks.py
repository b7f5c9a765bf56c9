"""Runs a transformation on the blocks of all parameters, each device on its share (ZeRO-1).

Sources: Rajbhandari et al. 2020, arXiv:1910.02054 (ZeRO stage 1); Shi et al. 2023,
arXiv:2309.06497 (the blocks of Distributed Shampoo over devices).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from . import arguments, blocks, masks, sharding
from .norms import norm
from .sharding import Devices, Sharded, map_sharded

Blocks = dict[str, Array]  # {bucket: [k, *block]}, this device's


class OverBlocksState(NamedTuple):
    """State of `over_blocks`; the inner state holds what it keeps for each block as `Sharded`."""

    skipped_updates: Array  # int32 scalar, updates skipped because a gradient was not finite
    inner: Any


@dataclass(frozen=True)
class Layout:
    """Answers questions about the blocks that `over_blocks` passes to a transformation.

    `update` receives it as the keyword argument `layout`. In its methods, k is the number of blocks
    of a bucket on this device.
    """

    plan: blocks.Layout
    devices: Devices

    def norms(self, x: Blocks) -> Blocks:
        """Norm of each block: `[k]` in each bucket."""
        return {name: norm(b, axis=tuple(range(1, b.ndim))) for name, b in x.items()}

    def tensor_norms(self, *trees: Blocks) -> list[Blocks]:
        """Norm of the whole tensor that each block belongs to, for each tree: `[k]` in each bucket.

        Two small collectives serve all trees.
        """
        tensor = {name: self._tensors(b) for name, b in self.plan.buckets.items()}
        if not tensor:
            return [{} for _ in trees]
        ids = jnp.concatenate(list(tensor.values()))
        counts = jnp.concatenate([self.devices.counts(b.n) for b in self.plan.buckets.values()])
        norms = [self.norms(x) for x in trees]  # in any order: jax.tree.map sorts by name
        lengths = jnp.stack([jnp.concatenate([x[name] for name in tensor]) for x in norms], axis=1)
        lengths = jnp.where(counts[:, None], lengths, 0.0)
        n = self.plan.n_tensors + 1  # the last one is that of padding
        largest = self.devices.max(jnp.maximum(jax.ops.segment_max(lengths, ids, n), 0.0))
        unit = jnp.where(largest > 0, largest, 1.0)
        sums = self.devices.sum(jax.ops.segment_sum((lengths / unit[ids]) ** 2, ids, n))
        whole = unit * jnp.sqrt(sums)
        return [{name: whole[t, i] for name, t in tensor.items()} for i in range(len(trees))]

    def _tensors(self, bucket: blocks.Bucket) -> Array:
        tensor = np.append(bucket.tensor, np.int32(self.plan.n_tensors))
        return jnp.asarray(tensor)[jnp.minimum(self.devices.indices(bucket.n), bucket.n)]

    def total(self, per_block: Blocks) -> Array:
        """Sum over the blocks of all devices, int32 scalar; `per_block` is `[k]` per bucket."""
        sums = [
            jnp.sum(x * self.devices.counts(self.plan.buckets[name].n), dtype=jnp.int32)
            for name, x in per_block.items()
        ]
        return self.devices.sum(sum(sums, jnp.zeros((), jnp.int32)))

    def broadcast(self, name: str, per_block: Array) -> Array:
        """`[k]` -> `[k, 1, ..., 1]`, to multiply the blocks of a bucket with."""
        return jnp.reshape(per_block, (-1, *[1] * len(self.plan.buckets[name].shape)))

    def decays(self, name: str) -> Array | float:
        """1 where a block's tensor has weight decay, else 0: `[k, 1, ..., 1]`, or one number."""
        decays = self.plan.buckets[name].decays
        if decays.all() or not decays.any():
            return float(decays[0])
        return self.broadcast(name, self.devices.own(jnp.asarray(decays)))


def over_blocks(
    inner: optax.GradientTransformation,
    *,
    block_size: int = 128,
    merge_dims: bool = True,
    largest_dim: int = 8192,
    weight_decay_mask: Any = None,
    stacked_mask: Any = False,
    axis_name: Any = None,
    reads_params: bool = True,
) -> optax.GradientTransformationExtraArgs:
    """Cuts gradients and parameters into blocks, runs `inner` on them, and joins the updates.

    `inner` must act on each element, or on each block, alone. It sees `{bucket: [k, *block]}` in
    float32, the blocks of one shape stacked, and the keyword argument `layout` (`Layout`). Several
    devices share the blocks: each runs `inner` on its share and keeps that share of the state, and
    the updates are gathered. These are the devices of `axis_name` in `jax.pmap`, `jax.shard_map` or
    `jax.vmap`, or under jit those of the mesh that the arguments are placed on.

    If a gradient is not finite, the update is zero, the floats of the state stay as they are, and
    `skipped_updates` counts it.

    Args:
      inner: the transformation.
      block_size: dimensions above it are cut.
      merge_dims: whether small neighbouring dimensions are merged first.
      largest_dim: tensors with a larger dimension, and scalars, have no preconditioner: their
        buckets are called `elementwise_...`.
      weight_decay_mask: for `Layout.decays`, a tree of bools or a function of the parameters; None
        selects all.
      stacked_mask: selects leaves `[L, m, n]` that are L layers, as for `jax.lax.scan`. Each layer
        is a tensor of its own.
      axis_name: a named axis, or a tuple of them.
      reads_params: False if `inner` ignores the parameters, which are then not cut.

    Raises:
      ValueError: from `update`, if the gradients do not match the parameters, or if the state has
        the layout of another number of devices.
    """
    inner = optax.with_extra_args_support(inner)

    def plan_of(params: Any) -> blocks.Layout:
        return blocks.make_layout(
            [jnp.shape(w) for w in jax.tree.leaves(params)],
            block_size=block_size,
            merge=merge_dims,
            largest_dim=largest_dim,
            decays=jax.tree.leaves(masks.resolve(weight_decay_mask, params)),
            stacked=jax.tree.leaves(masks.resolve(stacked_mask, params)),
        )

    def init(params: Any) -> OverBlocksState:
        zero = jnp.zeros((), jnp.int32)
        if not jax.tree.leaves(params):  # such as the placeholder of optax's tree_map_params
            return OverBlocksState(zero, inner.init(params))
        arguments.check_params(params)
        plan = plan_of(params)

        def begin(devices: Devices, leaves: list[Array], _: None) -> tuple[None, OverBlocksState]:
            (own,) = _own_blocks(plan, devices, leaves)
            state = _mark(plan, inner.init(own))
            return None, OverBlocksState(zero, map_sharded(lambda x, _: devices.vary(x), state))

        leaves = [jnp.asarray(w) for w in jax.tree.leaves(params)]
        return sharding.over_devices(begin, axis_name, leaves, None)[1]

    def update(
        grads: Any, state: OverBlocksState, params: Any = None, **extra: Any
    ) -> tuple[Any, OverBlocksState]:
        arguments.check_gradients(grads, params)
        plan = plan_of(params)

        def advance(
            devices: Devices, trees: list[list[Array]], old: OverBlocksState
        ) -> tuple[list[Array], OverBlocksState]:
            is_whole = _is_canonical(devices, old.inner)
            own = map_sharded(lambda x, _: devices.own(x) if is_whole else x, old.inner)
            before = sharding.unwrap(own)
            with jax.named_scope("blocks"):
                g, *w = _own_blocks(plan, devices, *trees)
            layout = Layout(plan, devices)
            bad = layout.total({name: ~jnp.isfinite(x) for name, x in layout.norms(g).items()})
            finite = bad == 0
            updates, after = inner.update(g, before, w[0] if w else None, layout=layout, **extra)
            after = _mark(plan, _keep_unless(finite, after, before))
            after = map_sharded(devices.gather_canonical, after) if is_whole else after
            updates = _zero_unless(finite, updates, devices)
            with jax.named_scope("gather"):
                whole = {
                    name: devices.gather(x, plan.buckets[name].n) for name, x in updates.items()
                }
                leaves = blocks.from_blocks(plan, whole)
            skipped = old.skipped_updates + (~finite).astype(jnp.int32)
            return leaves, OverBlocksState(skipped, after)

        weights, treedef = jax.tree.flatten(params)
        trees = [jax.tree.leaves(grads), weights if reads_params else []]
        arrays = [[jnp.asarray(x) for x in tree] for tree in trees if tree]
        leaves, state = sharding.over_devices(advance, axis_name, arrays, state)
        in_dtype = [u.astype(jnp.result_type(w)) for u, w in zip(leaves, weights, strict=True)]
        return jax.tree.unflatten(treedef, in_dtype), state

    return optax.GradientTransformationExtraArgs(init, update)


def _own_blocks(plan: blocks.Layout, devices: Devices, *trees: list[Array]) -> list[Blocks]:
    """This device's blocks of each list of leaves."""
    if devices.n == 1:
        return [blocks.to_blocks(plan, leaves) for leaves in trees]
    varying = [[devices.vary(x) for x in leaves] for leaves in trees]
    own: list[Blocks] = [{} for _ in trees]
    for name, bucket in plan.buckets.items():
        zeros = devices.vary(jnp.zeros(bucket.shape, jnp.float32))
        read = blocks.some_blocks(bucket, varying, devices.indices(bucket.n), zeros)
        for tree, x in zip(own, read, strict=True):
            tree[name] = x
    return own


def _zero_unless(finite: Array, updates: Blocks, devices: Devices) -> Blocks:
    """`updates` if finite, else zeros.

    A conditional, not a select: its result is written to memory. Otherwise XLA would repeat the
    elementwise work in each of the hundreds of kernels that cut the leaves' updates out of it,
    which doubles the time to compile. It makes a select of a conditional without arithmetic, so
    there is a factor of 1.
    """
    one = finite.astype(jnp.float32)
    return lax.cond(
        finite,
        lambda: {name: one * x for name, x in updates.items()},
        lambda: {name: devices.vary(jnp.zeros_like(x)) for name, x in updates.items()},
    )


def _keep_unless(finite: Array, new: Any, old: Any) -> Any:
    """`new` if finite, else `old`; integers, which count updates, always advance."""

    def choose(n: Array, o: Array) -> Array:
        return jnp.where(finite, n, o) if jnp.issubdtype(n.dtype, jnp.inexact) else n

    return jax.tree.map(choose, new, old)


def _mark(plan: blocks.Layout, state: Any) -> Any:
    """Wraps each array below the name of a bucket as `Sharded`."""

    def wrap(path: Any, x: Any) -> Any:
        names = [key.key for key in path if getattr(key, "key", None) in plan.buckets]
        return Sharded(x, plan.buckets[names[0]].n) if names else x

    return jax.tree_util.tree_map_with_path(wrap, state)


def _is_canonical(devices: Devices, state: Any) -> bool:
    """Whether the state is whole, not a device's share; ValueError if it is neither."""
    lengths: list[tuple[int, int]] = []
    map_sharded(lambda x, n: lengths.append((len(x), n)), state)
    if all(length == sharding.rows_per_device(n, devices.n) for length, n in lengths):
        return False
    if all(length == n for length, n in lengths):
        return True
    raise ValueError(
        f"opt_state: its rows are neither all blocks nor the share of one of {devices.n} devices; "
        "call update with the devices that the state was made for, or convert it with "
        "sharding.merge or sharding.canonical"
    )
