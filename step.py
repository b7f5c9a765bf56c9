"""The training step: pure per-device functions, the training state, and its placement.

`train_step(state, batch)` and `eval_step(state, batch)` do not depend on config, flags, files or
TensorFlow. `over_devices` and `evaluate_over_devices` map them over the devices of this process, in
train.py, in the tests and in ahead-of-time compilation.

The number of a step is the number of updates completed before it: the update that takes
`state.step` from s to s + 1 uses batch s and the learning rate schedule(s).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import optim
from models.batch_norm import average_statistics
from optim import sharding

AXIS = "batch"
Batch = Mapping[str, jax.Array]


@struct.dataclass
class TrainState:
    """The state of a run between two steps.

    Attributes:
      step: int32 scalar, the number of completed updates, skipped ones included.
      params, batch_stats: variables of the model, float32.
      opt_state: state of the optimizer without its sharded part.
      sharded: part of the optimizer's state that is sharded over devices, with leaves
        [devices, k, ...]. It is {} for most optimizers.
    """

    step: Any
    params: Any
    batch_stats: Any
    opt_state: Any
    sharded: Any


AXES = TrainState(step=None, params=None, batch_stats=None, opt_state=None, sharded=0)
over_devices = partial(
    jax.pmap, axis_name=AXIS, in_axes=(AXES, 0), out_axes=(AXES, None), donate_argnums=0
)
evaluate_over_devices = partial(jax.pmap, axis_name=AXIS, in_axes=(AXES, 0), out_axes=None)


def initial_state(
    model: nn.Module,
    tx: optax.GradientTransformation,
    image_shape: tuple[int, int, int],
    key: jax.Array,
) -> TrainState:
    """Returns the canonical state before the first update. Jit it, or trace it for shapes."""
    variables = model.init(key, jnp.zeros((1, *image_shape), jnp.float32), train=False)
    params = variables["params"]
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=variables["batch_stats"],
        opt_state=tx.init(params),
        sharded={},
    )


def init_state(
    model: nn.Module,
    tx: optax.GradientTransformation,
    image_shape: tuple[int, int, int],
    seed: int,
) -> TrainState:
    """Returns the canonical state before the first update, on the default device of the host.

    Equal seeds give equal parameters on every host. `place` shards the state over the devices.
    """
    # The optimizer's state is separate: it compiles fast, and depends on the hyperparameters.
    state = _compiled_initial_state(model, image_shape)(jax.random.key(seed))
    return replace(state, opt_state=jax.jit(tx.init)(state.params))


@lru_cache(maxsize=4)  # the runs of a sweep's worker differ mostly in the seed
def _compiled_initial_state(
    model: nn.Module, image_shape: tuple[int, int, int]
) -> Callable[[jax.Array], TrainState]:
    # LLVM spends most of its time on Threefry and erf_inv, which are unrolled for every leaf.
    # Optimization level 1 gives the same bits and compiles faster.
    build = partial(initial_state, model, optax.identity(), image_shape)
    options: dict[str, str | bool] = {"xla_backend_optimization_level": "1"}
    return jax.jit(build).lower(jax.random.key(0)).compile(options)


def state_shapes(
    model: nn.Module, tx: optax.GradientTransformation, image_shape: tuple[int, int, int]
) -> TrainState:
    """Returns the jax.ShapeDtypeStructs of `init_state` without computing it."""
    return jax.eval_shape(partial(initial_state, model, tx, image_shape), jax.random.key(0))


def place(canonical: TrainState) -> TrainState:
    """Places a canonical state on the devices of this process, and shards it over them.

    All leaves are copied through numpy, whose memory is never donated, so that `canonical` outlives
    the step and two leaves may share an array. All steps get the same placement, so that the step
    compiles once.
    """
    devices = jax.local_devices()
    mesh = Mesh(np.array(devices), (AXIS,))
    opt_state, sharded = sharding.split(canonical.opt_state, jax.device_count())
    first = jax.process_index() * len(devices)
    state = replace(
        canonical,
        opt_state=opt_state,
        sharded=jax.tree.map(lambda x: x[first : first + len(devices)], sharded),
    )

    def put(spec: P, tree: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: jax.device_put(np.asarray(x), sharding), tree)

    return replace(put(P(), replace(state, sharded={})), sharded=put(P(AXIS), state.sharded))


def normalise(image: jax.Array, flip: jax.Array, mean: Any, std: Any) -> jax.Array:
    """Returns (image - mean) / std in float32 for uint8 [b, h, w, c], mirrored where `flip` [b]."""
    image = jnp.where(flip[:, None, None, None], image[:, :, ::-1], image)
    return (image.astype(jnp.float32) - jnp.asarray(mean)) / jnp.asarray(std)


def cross_entropy(logits: jax.Array, label: jax.Array, label_smoothing: float) -> jax.Array:
    """Returns the loss per example [b] for targets y (1 - a) + a / K.

    As in V07 and V10, log_softmax has the dtype of the logits, and the rest is float32.
    """
    log_probs = jax.nn.log_softmax(logits).astype(jnp.float32)
    hit = jnp.take_along_axis(log_probs, label[:, None], axis=-1)[:, 0]
    return -((1 - label_smoothing) * hit + label_smoothing * log_probs.mean(-1))


def all_finite(tree: Any) -> jax.Array:
    """Returns whether all elements of all leaves are finite, as a bool scalar."""
    return jnp.all(jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]))


def keep_unless(ok: jax.Array, new: Any, old: Any) -> Any:
    """Returns `new` if ok, else `old` with the integer leaves of `new`.

    The integers of an optimizer's state count steps. They always advance, so that its schedule
    remains aligned with `state.step`.
    """

    def choose(n: jax.Array, o: jax.Array) -> jax.Array:
        return jnp.where(ok, n, o) if jnp.issubdtype(n.dtype, jnp.inexact) else n

    return jax.tree.map(choose, new, old)


def over_micro_batches(
    compute: Callable[[Batch], tuple[Any, Any]], batch: Batch, n: int, zeros: Any
) -> tuple[Any, Any]:
    """Calls `compute` on n micro-batches [b / n, ...] of a batch [b, ...], in a loop.

    The loop compiles once.

    Returns:
      The sum of the first results of `compute`, which have the structure of `zeros`, and its second
      results, stacked [n, ...].
    """
    if n == 1:
        result, part = compute(batch)
        return result, jax.tree.map(lambda x: x[None], part)

    def add(total: Any, micro_batch: Batch) -> tuple[Any, Any]:
        result, part = compute(micro_batch)
        return jax.tree.map(jnp.add, total, result), part

    cut = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), batch)
    return jax.lax.scan(add, zeros, cut)


def make_train_step(
    model: nn.Module,
    tx: optax.GradientTransformation,
    *,
    label_smoothing: float,
    mean: Any,
    std: Any,
    accumulation_steps: int = 1,
    pooled_decay: float | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """Returns the per-device step (state, batch) -> (state, metrics) over axis `batch`.

    Gradients, metrics and running statistics are averaged over micro-batches and devices, so that k
    micro-batches on each of N devices are equivalent to k N devices. If the averaged gradient is
    not finite, the update is skipped: only counts change, and the metrics report it.

    Args:
      label_smoothing: weight of the uniform distribution over classes, a fraction.
      mean, std: one value per channel, in pixel units 0..255.
      accumulation_steps: number of micro-batches per device batch. Memory for activations is needed
        for one micro-batch only.
      pooled_decay: decay of the model's BatchNorm if its variance is pooled, see
        `average_statistics`.
    """

    def gradients(state: TrainState, batch: Batch) -> tuple[Any, Any]:
        """Returns a micro-batch's share of (grads, loss, accuracy), and its running statistics."""
        image = normalise(batch["image"], batch["flip"], mean, std)

        def loss_fn(params: Any) -> tuple[jax.Array, Any]:
            logits, variables = model.apply(
                {"params": params, "batch_stats": state.batch_stats},
                image,
                train=True,
                mutable=["batch_stats"],
            )
            # Scaling the loss turns the later sum of gradients into a mean. It costs nothing and is
            # exact for powers of two, while dividing the gradients would read and write them all.
            share = 1 / (accumulation_steps * jax.lax.axis_size(AXIS))
            loss = cross_entropy(logits, batch["label"], label_smoothing).mean() * share
            accuracy = (logits.argmax(-1) == batch["label"]).mean() * share
            return loss, (accuracy, variables["batch_stats"])

        gradient_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, (accuracy, batch_stats)), grads = gradient_fn(state.params)
        return (grads, loss, accuracy), batch_stats

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        zeros = (jax.tree.map(jnp.zeros_like, state.params), jnp.zeros(()), jnp.zeros(()))
        shares, parts = over_micro_batches(
            partial(gradients, state), batch, accumulation_steps, zeros
        )
        with jax.named_scope("all_reduce"):
            grads, loss, accuracy = jax.lax.psum(shares, AXIS)
            batch_stats = average_statistics(parts, AXIS, pooled_decay)
        ok = all_finite(grads)
        old = sharding.attach(state.opt_state, state.sharded)
        with jax.named_scope("optimizer"):
            updates, new = tx.update(grads, old, state.params)
        opt_state, sharded = sharding.detach(keep_unless(ok, new, old))
        params = optax.apply_updates(state.params, updates)
        next_state = TrainState(
            step=state.step + 1,
            params=keep_unless(ok, params, state.params),
            batch_stats=keep_unless(ok, batch_stats, state.batch_stats),
            opt_state=opt_state,
            sharded=sharded,
        )
        metrics = {"loss": loss, "accuracy": accuracy, "skipped": 1 - ok.astype(jnp.int32)}
        return next_state, metrics | optim.metrics(opt_state)

    return train_step


def make_eval_step(
    model: nn.Module, *, mean: Any, std: Any
) -> Callable[[TrainState, Batch], dict[str, jax.Array]]:
    """Returns the per-device step (state, batch) -> sums over the unmasked examples of all devices.

    The sums n_correct and n_seen are int32, because float32 cannot count beyond 2^24. loss_sum is
    float32, without label smoothing.
    """

    def eval_step(state: TrainState, batch: Batch) -> dict[str, jax.Array]:
        image = normalise(batch["image"], batch["flip"], mean, std)
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        logits = cast(jax.Array, model.apply(variables, image, train=False))
        mask, label = batch["mask"], batch["label"]
        sums = {
            "n_correct": jnp.sum((logits.argmax(-1) == label) & mask, dtype=jnp.int32),
            "n_seen": jnp.sum(mask, dtype=jnp.int32),
            "loss_sum": jnp.where(mask, cross_entropy(logits, label, 0.0), 0.0).sum(),
        }
        return jax.lax.psum(sums, AXIS)

    return eval_step
