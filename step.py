"""The training step: pure per-device functions, the state, its placement, and the one pmap line.

`train_step(state, batch)` and `eval_step(state, batch)` know no config, flags, files or
TensorFlow. `over_devices` and `evaluate_over_devices` put them on this process's devices, in
train.py, in the tests and in the ahead-of-time compiles alike.

A step is numbered by the updates completed before it: the update that takes `state.step` from s to
s + 1 uses batch s and the learning rate schedule(s).
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
    """What a run consists of between two steps.

    Attributes:
      step: int32 scalar, completed updates (skipped ones included).
      params, batch_stats: of the model, float32.
      opt_state: of the optimizer, without its sharded part.
      sharded: the part of the optimizer's state that is sharded over devices: leaves
        [devices, k, ...]; {} for most optimizers.
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
    """The canonical state before the first update; to be jitted, or traced for its shapes."""
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
    """The canonical state before the first update, on the host's default device.

    The same seed gives the same parameters on every host. `opt_state` is canonical; `place` splits
    it over the devices.
    """
    # The optimizer's part apart: it is quick, and differs where only a hyperparameter does.
    begun = _compiled_initial_state(model, image_shape)(jax.random.key(seed))
    return replace(begun, opt_state=jax.jit(tx.init)(begun.params))


@lru_cache(maxsize=4)  # a worker's runs differ in the seed alone
def _compiled_initial_state(
    model: nn.Module, image_shape: tuple[int, int, int]
) -> Callable[[jax.Array], TrainState]:
    # Threefry and erf_inv, unrolled for every leaf, take LLVM five times as long to optimise as
    # they are worth here; level 1 gives the same bits.
    build = partial(initial_state, model, optax.identity(), image_shape)
    options: dict[str, str | bool] = {"xla_backend_optimization_level": "1"}
    return jax.jit(build).lower(jax.random.key(0)).compile(options)


def state_shapes(
    model: nn.Module, tx: optax.GradientTransformation, image_shape: tuple[int, int, int]
) -> TrainState:
    """`init_state` as jax.ShapeDtypeStruct: nothing is computed."""
    return jax.eval_shape(partial(initial_state, model, tx, image_shape), jax.random.key(0))


def place(canonical: TrainState) -> TrainState:
    """Puts a canonical state on this process's devices, each with its share of the sharded rows.

    Everything goes through numpy, whose memory is never donated: two leaves may be one array, and
    `canonical` outlives the step. All steps meet the same placement (one compilation).
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
    """uint8 [b, h, w, c] -> float32, mirrored where `flip` [b], in units of std around mean."""
    image = jnp.where(flip[:, None, None, None], image[:, :, ::-1], image)
    return (image.astype(jnp.float32) - jnp.asarray(mean)) / jnp.asarray(std)


def cross_entropy(logits: jax.Array, label: jax.Array, label_smoothing: float) -> jax.Array:
    """Loss per example [b] against y (1 - a) + a / K (V07/V10; float32 after log_softmax)."""
    log_probs = jax.nn.log_softmax(logits).astype(jnp.float32)
    hit = jnp.take_along_axis(log_probs, label[:, None], axis=-1)[:, 0]
    return -((1 - label_smoothing) * hit + label_smoothing * log_probs.mean(-1))


def all_finite(tree: Any) -> jax.Array:
    """Whether every element of every leaf is finite: a bool scalar."""
    return jnp.all(jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]))


def keep_unless(ok: jax.Array, new: Any, old: Any) -> Any:
    """`new` where ok, else `old`; integer leaves always advance.

    The integers of an optimizer's state are counts of steps: were they held back, the schedule
    would no longer be that of `state.step`.
    """

    def choose(n: jax.Array, o: jax.Array) -> jax.Array:
        return jnp.where(ok, n, o) if jnp.issubdtype(n.dtype, jnp.inexact) else n

    return jax.tree.map(choose, new, old)


def over_micro_batches(
    compute: Callable[[Batch], tuple[Any, Any]], batch: Batch, n: int, zeros: Any
) -> tuple[Any, Any]:
    """Cuts [b, ...] into n times [b / n, ...], one after another in a loop that compiles once.

    Returns the sum of `compute`'s first results, which have the structure of `zeros`, and the
    second ones stacked [n, ...].
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

    Gradients, metrics and running statistics are averaged over the micro-batches and the devices:
    k micro-batches on each of N devices are one update of k N devices. An update whose averaged
    gradient is not finite changes nothing but the counts, and is reported as skipped.

    Args:
      label_smoothing: weight of the uniform distribution over classes, a fraction.
      mean, std: per channel, in pixel units 0..255.
      accumulation_steps: micro-batches, one after another, into which a device's batch is cut;
        activations are held for one of them.
      pooled_decay: of the model's batch normalisation, see `average_statistics`.
    """

    def gradients(state: TrainState, batch: Batch) -> tuple[Any, Any]:
        """Returns a micro-batch's share of (grads, loss, accuracy), and the running statistics."""
        image = normalise(batch["image"], batch["flip"], mean, std)

        def loss_fn(params: Any) -> tuple[jax.Array, Any]:
            logits, variables = model.apply(
                {"params": params, "batch_stats": state.batch_stats},
                image,
                train=True,
                mutable=["batch_stats"],
            )
            # The gradients are summed over micro-batches and devices. A mean would be a division
            # of its own, which reads and writes all of them; scaling the loss costs nothing, and
            # is exact for powers of two.
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

    n_correct and n_seen are int32 (float32 stops counting at 2^24), loss_sum is float32 without
    label smoothing.
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
