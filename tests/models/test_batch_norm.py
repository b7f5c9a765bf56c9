"""Compares batch normalisation with numpy, for several spans and numbers of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.batch_norm import BatchNorm, average_statistics


def apply_in_training(model, variables, x):
    apply = jax.jit(lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]))
    return apply(variables, x)


def norm(x, span=0, axis_name=None, decay=0.9):
    module = BatchNorm(span, decay, 1e-5, axis_name)
    channels = x.shape[-1]
    params = {"scale": jnp.ones(channels), "bias": jnp.zeros(channels)}
    stats = {"mean": jnp.zeros(channels), "var": jnp.ones(channels)}
    y, new = apply_in_training(module, {"params": params, "batch_stats": stats}, x)
    return y, new["batch_stats"]


@pytest.mark.parametrize("offset", [0.0, 1e3, -3e4])
def test_variance_survives_a_large_mean(offset):
    """For x = 1000 +- 0.1, E[x^2] - E[x]^2 in float32 is 0, which scales the output to 31."""
    x = (offset + 0.1 * np.random.default_rng(0).normal(size=(64, 4, 4, 3))).astype(np.float32)
    y, stats = norm(jnp.asarray(x), decay=0.0)
    want = x.astype(np.float64)
    np.testing.assert_allclose(stats["var"], want.var((0, 1, 2)), rtol=1e-3)
    assert np.asarray(y).std() == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize("value", [1.0, 1000.0, -3e4])
def test_bfloat16s_smallest_spread_survives_any_mean(value):
    """Float32 sums must resolve the difference of two neighbouring bfloat16 numbers."""
    low, high = sorted(float(jnp.bfloat16(value * (1 + step))) for step in (0, 2**-7))
    x = np.random.default_rng(0).choice([low, high], size=(64, 8, 8, 3))
    assert high > low
    _, stats = norm(jnp.asarray(x, jnp.bfloat16), decay=0.0)
    np.testing.assert_allclose(stats["var"], x.var((0, 1, 2)), rtol=0.02)


def test_running_statistics_are_biased_and_weigh_the_batch_by_one_minus_decay():
    x = np.random.default_rng(0).normal(3, 2, size=(8, 2, 2, 5)).astype(np.float32)
    _, stats = norm(jnp.asarray(x), decay=0.9)
    np.testing.assert_allclose(stats["mean"], 0.1 * x.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(stats["var"], 0.9 + 0.1 * x.var((0, 1, 2)), rtol=1e-5)


def test_sub_batches_are_separate_batches():
    x = np.random.default_rng(0).normal(size=(12, 3, 3, 2)).astype(np.float32)
    together, stats = norm(jnp.asarray(x), span=4)
    apart = [norm(jnp.asarray(x[i : i + 4])) for i in (0, 4, 8)]
    np.testing.assert_allclose(together, np.concatenate([y for y, _ in apart]), atol=1e-6)
    mean = np.mean([s["var"] for _, s in apart], axis=0)
    np.testing.assert_allclose(stats["var"], mean, rtol=1e-5)


def test_evaluation_uses_the_running_statistics_for_any_batch_size():
    """The span of 3 does not divide the 7 examples, and a variance is as small as epsilon."""
    x = np.random.default_rng(0).normal(size=(7, 2, 2, 3)).astype(np.float32)
    stats = {"mean": np.float32([1, 2, 3]), "var": np.float32([0.5, 2, 0.1])}
    params = {"scale": np.float32([1, 3, -1]), "bias": np.float32([0, 1, 2])}
    module = BatchNorm(3, 0.9, epsilon=0.25)
    variables = {"params": params, "batch_stats": stats}
    y, new = module.apply(variables, x, train=False, mutable=["batch_stats"])
    want = (x - stats["mean"]) / np.sqrt(stats["var"] + 0.25) * params["scale"] + params["bias"]
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, new["batch_stats"], stats)


def test_bfloat16_inputs_have_float32_statistics_and_bfloat16_output():
    x = 5 + np.random.default_rng(0).normal(size=(32, 4, 4, 3))
    x = jnp.asarray(x, jnp.bfloat16)
    y, stats = norm(x, decay=0.0)
    exact = np.asarray(x, np.float64)
    np.testing.assert_allclose(stats["mean"], exact.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(stats["var"], exact.var((0, 1, 2)), rtol=1e-5)
    assert (y.dtype, stats["var"].dtype) == (jnp.bfloat16, jnp.float32)


@pytest.mark.parametrize("span", [2, 4, 8, 16])
def test_span_does_not_depend_on_the_device_count(span):
    x = np.random.default_rng(0).normal(1, 2, size=(16, 3, 3, 2)).astype(np.float32)
    one, stats_of_one = norm(jnp.asarray(x), span)

    def on_device(part):
        y, stats = norm(part, span, "batch")
        return y, jax.lax.pmean(stats, "batch")

    many, stats = jax.pmap(on_device, axis_name="batch")(x.reshape(8, 2, 3, 3, 2))
    np.testing.assert_allclose(many.reshape(x.shape), one, atol=2e-6)
    np.testing.assert_allclose(stats["mean"][0], stats_of_one["mean"], atol=1e-6)
    np.testing.assert_allclose(stats["var"][0], stats_of_one["var"], rtol=1e-5)


def test_gradient_of_batch_norm_is_that_of_the_plain_formula():
    x = jnp.asarray(np.random.default_rng(0).normal(2, 3, size=(6, 2, 2, 3)), jnp.float32)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=x.shape), jnp.float32)

    def plain(x):
        centred = x - x.mean((0, 1, 2))
        return (weights * centred / jnp.sqrt(jnp.square(centred).mean((0, 1, 2)) + 1e-5)).sum()

    ours = jax.grad(lambda x: (weights * norm(x)[0]).sum())(x)
    np.testing.assert_allclose(ours, jax.grad(plain)(x), atol=1e-5)


def after_a_batch(x, span, running_variance, old):
    """Returns the running statistics after x [devices, parts, examples, c]."""
    module = BatchNorm(span, 0.8, 1e-5, "batch", running_variance=running_variance)
    params = {"scale": jnp.ones(x.shape[-1]), "bias": jnp.zeros(x.shape[-1])}

    def on_device(parts):
        variables = {"params": params, "batch_stats": old}
        new = [module.apply(variables, part, True, mutable=["batch_stats"])[1] for part in parts]
        stacked = jax.tree.map(lambda *a: jnp.stack(a), *[n["batch_stats"] for n in new])
        pooled_decay = 0.8 if running_variance == "pooled" else None
        return average_statistics({"bn": stacked}, "batch", pooled_decay)["bn"]

    return jax.pmap(on_device, axis_name="batch", out_axes=None)(x)


@pytest.mark.parametrize(
    ("parts", "span"), [(1, 8), (1, 4), (1, 16), (2, 4)], ids=["own", "sub", "joined", "parts"]
)
def test_running_variance_is_the_groups_mean_or_that_of_all_examples_together(parts, span):
    """Compares eight devices whose groups differ in mean with float64 numpy."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, parts, 8 // parts, 3)) + 3 * rng.normal(size=(8, 1, 1, 3))
    x = (x + [0, 5, -100]).astype(np.float32)
    old = {"mean": jnp.float32([1, 2, -50]), "var": jnp.float32([3, 4, 5])}
    flat = x.astype(np.float64).reshape(-1, 3)
    variance = {
        "pooled": flat.var(0),
        "mean_of_groups": flat.reshape(-1, span, 3).var(1).mean(0),
    }
    assert (variance["pooled"] > 1.3 * variance["mean_of_groups"]).all()  # the two must differ
    for name, want in variance.items():
        new = after_a_batch(x, span, name, old)
        np.testing.assert_allclose(new["mean"], 0.8 * old["mean"] + 0.2 * flat.mean(0), rtol=1e-5)
        np.testing.assert_allclose(new["var"], 0.8 * old["var"] + 0.2 * want, rtol=1e-4)
