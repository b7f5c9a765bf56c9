"""The step on one device, on eight, under shard_map and in two processes; skipped updates."""

import logging
import pathlib
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from processes import free_port

import step as steps
from configs import optimizers
from models.batch_norm import BatchNorm
from optim import sharding

SIDE, CLASSES, BATCH = 6, 4, 16
TRACED_AS = "_fun"  # the name that pmap gives to compiled functions
PIXELS = {"mean": np.float32([100.0]), "std": np.float32([50.0])}
SCHEDULE = {"peak_learning_rate": 0.3, "warmup_steps": 1}
HYPERPARAMETERS = {
    "lars": {"momentum": 0.9, "weight_decay": 1e-4, "trust_coefficient": 0.05},
    "nesterov": {"momentum": 0.9, "weight_decay": 1e-4},
    "sm3": {"momentum": 0.9},
    "shampoo": {
        "beta1": 0.9,
        "beta2": 0.9,
        "matrix_epsilon": 1e-4,
        "exponent_override": 4,
        "start_preconditioning_step": 1,
        "block_size": 16,
    },
}


class Net(nn.Module):
    """A minimal network with a convolution, a BatchNorm over a span, and a head."""

    span: int

    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(4, (3, 3), use_bias=False)(x)
        x = nn.relu(BatchNorm(self.span, 0.9, 1e-5, steps.AXIS)(x, train))
        return nn.Dense(CLASSES)(x.reshape(len(x), -1))


def make_model(span=BATCH):
    return Net(span)


def make_optimizer(name):
    return optimizers.make_optimizer(name, HYPERPARAMETERS[name], SCHEDULE, total_steps=10)[0]


def make_step(tx, span=BATCH, **options):
    return steps.make_train_step(make_model(span), tx, label_smoothing=0.1, **PIXELS, **options)


def make_batch(seed, n_devices=1):
    rng = np.random.default_rng(seed)
    batch = {
        "image": rng.integers(0, 256, (BATCH, SIDE, SIDE, 1), np.uint8),
        "label": rng.integers(0, CLASSES, BATCH, np.int32),
        "mask": np.ones(BATCH, bool),
        "flip": rng.random(BATCH) < 0.5,
    }
    return {k: v.reshape(n_devices, BATCH // n_devices, *v.shape[1:]) for k, v in batch.items()}


def init(tx):
    return steps.init_state(make_model(), tx, (SIDE, SIDE, 1), seed=0)


def canonical(state):
    whole = sharding.merge(state.opt_state, state.sharded)
    return jax.device_get(state.params), jax.device_get(state.batch_stats), jax.device_get(whole)


def on_devices(monkeypatch, n):
    """Lets `place` and pmap see the first n of the eight simulated devices."""
    devices = jax.devices()[:n]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    monkeypatch.setattr(jax, "device_count", lambda: n)
    return devices


def run(monkeypatch, tx, n_devices, n_steps=3, step=None, first=0, **options):
    devices = on_devices(monkeypatch, n_devices)
    state = steps.place(init(tx))
    train_step = steps.over_devices(step or make_step(tx, **options), devices=devices)
    for s in range(first, first + n_steps):
        state, metrics = train_step(state, make_batch(s, n_devices))
    return state, jax.device_get(metrics), train_step


def assert_close(got, want, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = np.abs(np.asarray(b, np.float64)).max(initial=1e-3)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("name", "span", "accumulation_steps"),
    [("nesterov", BATCH, 1), *((name, BATCH // 8, 8) for name in sorted(HYPERPARAMETERS))],
)
def test_eight_devices_equal_one_with_one_bn_span(monkeypatch, name, span, accumulation_steps):
    """The one device processes the batch at once, or in micro-batches of one device batch each."""
    tx = make_optimizer(name)
    one, metrics_of_one, _ = run(
        monkeypatch, tx, 1, span=span, accumulation_steps=accumulation_steps
    )
    eight, metrics, _ = run(monkeypatch, tx, 8, span=span)
    assert metrics["loss"] == pytest.approx(metrics_of_one["loss"], rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(metrics_of_one["accuracy"], rel=1e-5)
    for got, want in zip(canonical(eight), canonical(one), strict=True):
        assert_close(got, want, 2e-4)


def test_a_bn_span_of_the_device_batch_is_another_computation(monkeypatch):
    """Shows that the span has an effect, so that the test above is not trivial."""
    tx = make_optimizer("nesterov")
    one, _, _ = run(monkeypatch, tx, 1)
    eight, _, _ = run(monkeypatch, tx, 8, span=2)
    a, b = (np.concatenate([x.ravel() for x in jax.tree.leaves(s.params)]) for s in (one, eight))
    assert np.abs(a - b).max() > 1e-3


def test_pmap_is_shard_map(monkeypatch):
    tx = make_optimizer("shampoo")
    train_step = make_step(tx)
    by_pmap, metrics, _ = run(monkeypatch, tx, 8, step=train_step)

    spec = steps.TrainState(P(), P(), P(), P(), P(steps.AXIS))
    local = lambda tree: jax.tree.map(lambda x: x[0], tree)  # noqa: E731

    def on_shard(state, batch):
        state = steps.replace(state, sharded=local(state.sharded))
        state, metrics = train_step(state, local(batch))
        sharded = jax.tree.map(lambda x: x[None], state.sharded)
        return steps.replace(state, sharded=sharded), metrics

    mesh = Mesh(np.array(jax.devices()), (steps.AXIS,))
    by_shard_map = jax.jit(
        jax.shard_map(
            on_shard,
            mesh=mesh,
            in_specs=(spec, P(steps.AXIS)),
            out_specs=(spec, P()),
            check_vma=False,
        )
    )
    state = steps.place(init(tx))
    for s in range(3):
        state, other = by_shard_map(state, make_batch(s, 8))
    assert metrics["loss"] == pytest.approx(float(other["loss"]), rel=1e-6)
    for got, want in zip(canonical(state), canonical(by_pmap), strict=True):
        assert_close(got, want, 1e-5)


@pytest.mark.parametrize(("name", "accumulation_steps"), [("nesterov", 2), ("shampoo", 1)])
def test_three_steps_compile_once(monkeypatch, caplog, name, accumulation_steps):
    tx = make_optimizer(name)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        run(monkeypatch, tx, 4, span=2, accumulation_steps=accumulation_steps)
    compiled = [r.getMessage() for r in caplog.records if "Finished XLA" in r.getMessage()]
    assert sum(f"jit({TRACED_AS})" in message for message in compiled) == 1, compiled


def test_gradient_is_the_mean_over_devices(monkeypatch):
    """Compares one step of gradient descent with the gradient of the whole batch's loss."""
    tx = optax.sgd(1.0)
    before = init(tx)
    after, metrics, _ = run(monkeypatch, tx, 8, n_steps=1, first=2)  # a batch with 6 hits of 16
    batch = jax.tree.map(lambda x: x.reshape(BATCH, *x.shape[2:]), make_batch(2))

    def loss(params):
        image = np.where(
            batch["flip"][:, None, None, None], batch["image"][:, :, ::-1], batch["image"]
        )
        logits, _ = make_model().apply(
            {"params": params, "batch_stats": before.batch_stats},
            (image.astype(np.float32) - 100) / 50,
            train=True,
            mutable=["batch_stats"],
        )
        target = optax.smooth_labels(jax.nn.one_hot(batch["label"], CLASSES), 0.1)
        return optax.softmax_cross_entropy(logits, target).mean(), logits

    (value, logits), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(before.params)
    assert metrics["loss"] == pytest.approx(float(value), rel=1e-5)
    assert metrics["accuracy"] == (np.argmax(logits, 1) == batch["label"]).mean()
    want = jax.tree.map(lambda w, g: w - g, before.params, grads)
    assert_close(jax.device_get(after.params), want, 1e-5)


def test_running_statistics_are_averaged_over_devices(monkeypatch):
    tx = optax.sgd(0.0)
    after, _, _ = run(monkeypatch, tx, 8, n_steps=1, span=2)
    spans, _, _ = run(monkeypatch, tx, 1, n_steps=1, span=2)  # eight sub-batches of one device
    assert_close(jax.device_get(after.batch_stats), jax.device_get(spans.batch_stats), 1e-5)


@pytest.mark.slow
def test_accumulation_needs_memory_for_one_micro_batch():
    """Compares the scratch memory with that of a device batch an eighth as large."""
    tx, side = optax.sgd(1.0), 32
    state = steps.place(steps.init_state(make_model(), tx, (side, side, 1), seed=0))

    def temporary_bytes(examples, accumulation_steps):
        shape = (1, examples)
        batch = {
            "image": jnp.zeros((*shape, side, side, 1), jnp.uint8),
            "label": jnp.zeros(shape, jnp.int32),
            "mask": jnp.ones(shape, bool),
            "flip": jnp.zeros(shape, bool),
        }
        train_step = make_step(tx, span=16, accumulation_steps=accumulation_steps)
        on_one = steps.over_devices(train_step, devices=jax.devices()[:1])
        lowered = on_one.lower(jax.device_get(state), batch)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    small, whole, cut = (temporary_bytes(*x) for x in ((32, 1), (256, 1), (256, 8)))
    assert whole > 6 * small
    assert cut < 1.5 * small


def test_running_variance_is_pooled_over_micro_batches_and_devices(monkeypatch):
    """The pooled statistics of the groups equal those of one group of all examples."""
    tx = optax.sgd(0.0)
    parts, _, _ = run(monkeypatch, tx, 4, n_steps=1, span=2, accumulation_steps=2, pooled_decay=0.9)
    whole, _, _ = run(monkeypatch, tx, 1, n_steps=1)
    assert_close(jax.device_get(parts.batch_stats), jax.device_get(whole.batch_stats), 1e-5)


# ------------------------------------------------------------- non-finite gradients


class FailsOnBlack(nn.Module):
    """A linear model that multiplies its logits by `value` if all images of a device are black."""

    value: float

    @nn.compact
    def __call__(self, x, train):
        shift = self.variable("batch_stats", "mean", jnp.zeros, (1,))
        shift.value = shift.value + train
        logits = nn.Dense(CLASSES)(x.reshape(len(x), -1))
        return logits * jnp.where(x.max() == x.min(), self.value, 1.0)


@pytest.mark.parametrize("name", sorted(HYPERPARAMETERS))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_devices_non_finite_gradient_changes_nothing_but_counts(monkeypatch, name, value):
    tx = make_optimizer(name)
    model = FailsOnBlack(value)
    devices = on_devices(monkeypatch, 8)
    train_step = steps.over_devices(
        steps.make_train_step(model, tx, label_smoothing=0.0, **PIXELS), devices=devices
    )
    state = steps.place(steps.init_state(model, tx, (SIDE, SIDE, 1), seed=0))
    state, metrics = train_step(state, make_batch(0, 8))
    assert metrics["skipped"] == 0
    before = canonical(state)
    black = make_batch(1, 8)
    black["image"][3] = 0
    state, metrics = train_step(state, black)
    assert metrics["skipped"] == 1
    assert state.step == 2
    for got, want in zip(canonical(state), before, strict=True):
        assert_same_floats(got, want)
    state, metrics = train_step(state, make_batch(2, 8))
    assert metrics["skipped"] == 0
    moved = np.abs(canonical(state)[0]["Dense_0"]["kernel"] - before[0]["Dense_0"]["kernel"])
    assert 0 < moved.max() < 10


def assert_same_floats(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if np.issubdtype(np.asarray(a).dtype, np.inexact):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_non_finite_element_is_detected(value):
    tree = {"scalar": jnp.float32(1), "tensor": jnp.ones((3, 4)), "vector": jnp.ones(5)}
    assert steps.all_finite(tree)
    assert not steps.all_finite(tree | {"tensor": tree["tensor"].at[1, 2].set(value)})
    assert not steps.all_finite(tree | {"scalar": jnp.float32(value)})


def test_counts_advance_over_a_skipped_update():
    """The schedule remains aligned with `state.step`."""
    old, new = {"count": jnp.int32(4), "m": jnp.ones(2)}, {"count": jnp.int32(5), "m": jnp.zeros(2)}
    kept = steps.keep_unless(jnp.bool_(False), new, old)
    assert kept["count"] == 5
    assert (kept["m"] == 1).all()


# ------------------------------------------------------------- loss, evaluation, two processes


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.2])
def test_loss_equals_cross_entropy_with_smoothed_targets(label_smoothing):
    rng = np.random.default_rng(0)
    logits, label = rng.normal(size=(5, 7)), rng.integers(0, 7, 5)
    target = np.eye(7)[label] * (1 - label_smoothing) + label_smoothing / 7
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    want = -(target * log_probs).sum(1)
    got = steps.cross_entropy(jnp.float32(logits), jnp.int32(label), label_smoothing)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_loss_of_bfloat16_logits_uses_a_bfloat16_log_softmax():
    """As in the submissions. `logits_dtype` selects float32 logits."""
    rng = np.random.default_rng(0)
    logits, label = jnp.asarray(rng.normal(size=(50, 7)), jnp.bfloat16), rng.integers(0, 7, 50)
    loss = steps.cross_entropy(logits, jnp.int32(label), 0.0)
    assert loss.dtype == jnp.float32
    np.testing.assert_array_equal(loss, loss.astype(jnp.bfloat16).astype(jnp.float32))
    smoothed = steps.cross_entropy(logits, jnp.int32(label), 0.1)  # a float32 sum of such values
    assert (smoothed != smoothed.astype(jnp.bfloat16).astype(jnp.float32)).any()
    exact = np.asarray(logits, np.float64)
    want = np.log(np.exp(exact).sum(1)) - exact[np.arange(50), label]
    np.testing.assert_allclose(loss, want, atol=0.03)


def test_evaluation_counts_unmasked_examples_of_all_devices():
    model = make_model()
    tx = optax.sgd(0.1)
    state = steps.place(init(tx))
    batch = make_batch(0, 8)
    batch["flip"][:] = False
    batch["mask"] = np.arange(BATCH).reshape(8, 2) % 3 > 0
    eval_step = steps.evaluate_over_devices(steps.make_eval_step(model, **PIXELS))
    sums = jax.device_get(eval_step(state, batch))

    image = (batch["image"].reshape(BATCH, SIDE, SIDE, 1).astype(np.float32) - 100) / 50
    variables = jax.device_get({"params": state.params, "batch_stats": state.batch_stats})
    logits = np.float64(model.apply(variables, image, train=False))
    label, mask = batch["label"].ravel(), batch["mask"].ravel()
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert sums["n_seen"] == mask.sum()
    assert sums["n_correct"] == ((logits.argmax(1) == label) & mask).sum()
    loss_sum = -(log_probs[np.arange(BATCH), label] * mask).sum()
    assert float(sums["loss_sum"]) == pytest.approx(loss_sum, rel=1e-5)
    assert {sums["n_seen"].dtype, sums["n_correct"].dtype} == {np.dtype("int32")}


class BlackIsNan(nn.Module):
    """A model whose logits are NaN for black images and 0 for others."""

    @nn.compact
    def __call__(self, x, train):
        black = (x == x[:1, :1, :1]).all((1, 2, 3))
        return jnp.where(black, jnp.nan, 0.0)[:, None] * jnp.ones(CLASSES)


def test_outputs_for_padding_do_not_count(monkeypatch):
    devices = on_devices(monkeypatch, 1)
    batch = make_batch(0)
    batch["image"][0, ::3] = 0
    batch["mask"] = (np.arange(BATCH) % 3 > 0)[None]
    eval_step = steps.evaluate_over_devices(
        steps.make_eval_step(BlackIsNan(), **PIXELS), devices=devices
    )
    sums = eval_step(steps.TrainState(np.int32(0), {}, {}, {}, {}), batch)
    assert float(sums["loss_sum"]) == pytest.approx(batch["mask"].sum() * np.log(CLASSES))


def test_a_seed_decides_the_parameters():
    one, same, other = (
        steps.init_state(make_model(), optax.sgd(0.1), (SIDE, SIDE, 1), seed).params
        for seed in (1, 1, 2)
    )
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert (one["Dense_0"]["kernel"] != other["Dense_0"]["kernel"]).all()


def test_donating_a_placed_state_keeps_the_original(monkeypatch):
    """train.py uses the initial state twice. Here, two of its leaves share an array."""
    tx = optax.sgd(0.1)
    state = init(tx)
    shared = state.params["BatchNorm_0"]["bias"]
    state.params["Dense_0"]["bias"] = shared
    before = jax.tree.map(np.array, state)
    train_step = steps.over_devices(make_step(tx, span=BATCH), devices=on_devices(monkeypatch, 1))
    jax.block_until_ready(train_step(steps.place(state), make_batch(0)))
    jax.tree.map(np.testing.assert_array_equal, state, before)
    train_step(steps.place(state), make_batch(0))


def test_a_step_reuses_the_memory_of_the_previous_state(monkeypatch):
    devices = on_devices(monkeypatch, 1)
    tx = optax.sgd(0.1)
    before = steps.place(init(tx))
    after, _ = steps.over_devices(make_step(tx), devices=devices)(before, make_batch(0))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after.params))


def test_two_processes_of_four_devices_equal_one_of_eight(monkeypatch, tmp_path):
    worker = pathlib.Path(__file__).parent / "two_process_worker.py"
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, str(worker), str(i), str(port), str(tmp_path / f"{i}.npz")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        errors = [process.communicate(timeout=180)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()  # after jax.distributed.initialize SIGTERM ends nothing
    assert [process.returncode for process in processes] == [0, 0], errors
    state, metrics, _ = run(monkeypatch, make_optimizer("shampoo"), 8)
    want = np.concatenate([x.ravel() for x in jax.tree.leaves(jax.device_get(state.params))])
    for i in range(2):
        got = np.load(tmp_path / f"{i}.npz")
        np.testing.assert_allclose(got["params"], want, atol=2e-5)
        assert float(got["loss"]) == pytest.approx(float(metrics["loss"]), rel=1e-5)
        assert int(got["compilations"]) == 1
