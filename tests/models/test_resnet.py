"""Compares the network with a float64 transcription and with closed forms."""

import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from models.resnet import ResNet


def shapes(model, side, channels):
    key, image = jax.random.key(0), jnp.zeros((1, side, side, channels))
    return jax.eval_shape(lambda: model.init(key, image, train=False))


def initialise(model, image, seed=0):
    return jax.jit(lambda key: model.init(key, image, train=False))(jax.random.key(seed))


def random_variables(model, image, rng):
    tree = shapes(model, image.shape[1], image.shape[3])
    return jax.tree.map(lambda v: rng.normal(size=v.shape).astype(np.float32), tree)


def apply_in_training(model, variables, x):
    apply = jax.jit(lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]))
    return apply(variables, x)


def resnet50_shapes():
    """Returns the shapes of all tensors of ResNet-50 v1.5, from table 1 of the paper."""
    layers = {"stem": (7, 7, 3, 64), "bn_stem": 64, "head": (2048, 1000)}
    c_in = 64
    for stage, (blocks, c) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=1):
        for block in range(1, blocks + 1):
            name = f"stage{stage}_block{block}"
            layers[f"{name}/conv1"], layers[f"{name}/bn1"] = (1, 1, c_in, c), c
            layers[f"{name}/conv2"], layers[f"{name}/bn2"] = (3, 3, c, c), c
            layers[f"{name}/conv3"], layers[f"{name}/bn3"] = (1, 1, c, 4 * c), 4 * c
            if block == 1:
                layers[f"{name}/conv_proj"], layers[f"{name}/bn_proj"] = (1, 1, c_in, 4 * c), 4 * c
            c_in = 4 * c
    shapes = {}
    for name, shape in layers.items():
        if isinstance(shape, int):
            shapes[f"{name}/scale"] = shapes[f"{name}/bias"] = (shape,)
        else:
            shapes[f"{name}/kernel"] = shape
    return shapes | {"head/bias": (1000,)}


def test_resnet50_has_the_submissions_parameters():
    params = shapes(ResNet((3, 4, 6, 3), 64, 1000), 224, 3)["params"]
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    got = {"/".join(part.key for part in path): leaf.shape for path, leaf in leaves}
    assert got == resnet50_shapes()
    assert {leaf.dtype for _, leaf in leaves} == {jnp.dtype("float32")}
    assert sum(map(math.prod, got.values())) == 25_557_032
    assert sum(len(shape) > 1 for shape in got.values()) == 54  # weight tensors
    assert sum(len(shape) == 1 for shape in got.values()) == 107  # biases, BN's scales and biases


# ------------------------------------------------------------- a float64 transcription


def same_padding(size, kernel, stride):
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def conv(x, w, stride, padding=None):
    kernel = w.shape[0]
    pads = [padding or same_padding(x.shape[i], kernel, stride) for i in (1, 2)]
    x = np.pad(x, [(0, 0), *pads, (0, 0)])
    rows = (x.shape[1] - kernel) // stride + 1
    columns = (x.shape[2] - kernel) // stride + 1
    out = np.zeros((x.shape[0], rows, columns, w.shape[3]))
    for i in range(rows):
        for j in range(columns):
            patch = x[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            out[:, i, j] = np.tensordot(patch, w, axes=3)
    return out


def max_pool(x):
    pads = [same_padding(x.shape[i], 3, 2) for i in (1, 2)]
    x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=-np.inf)
    rows, columns = (x.shape[1] - 3) // 2 + 1, (x.shape[2] - 3) // 2 + 1
    out = np.zeros((x.shape[0], rows, columns, x.shape[3]))
    for i in range(rows):
        for j in range(columns):
            out[:, i, j] = x[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((1, 2))
    return out


def batch_norm(x, p, span, epsilon=1e-5):
    out = np.empty_like(x)
    for i in range(0, len(x), span):
        part = x[i : i + span]
        centred = part - part.mean((0, 1, 2))
        out[i : i + span] = centred / np.sqrt(part.var((0, 1, 2)) + epsilon)
    return out * p["scale"] + p["bias"]


def forward(params, x, stage_sizes, span, stem):
    kernel, stride, pool = stem
    x = conv(x, params["stem"]["kernel"], stride, (kernel // 2, kernel // 2))
    x = np.maximum(batch_norm(x, params["bn_stem"], span), 0)
    if pool:
        x = max_pool(x)
    for stage, blocks in enumerate(stage_sizes):
        for block in range(blocks):
            p = params[f"stage{stage + 1}_block{block + 1}"]
            stride = 2 if stage and not block else 1
            y = np.maximum(batch_norm(conv(x, p["conv1"]["kernel"], 1), p["bn1"], span), 0)
            y = np.maximum(batch_norm(conv(y, p["conv2"]["kernel"], stride), p["bn2"], span), 0)
            y = batch_norm(conv(y, p["conv3"]["kernel"], 1), p["bn3"], span)
            if "conv_proj" in p:
                x = batch_norm(conv(x, p["conv_proj"]["kernel"], stride), p["bn_proj"], span)
            x = np.maximum(x + y, 0)
    return x.mean((1, 2)) @ params["head"]["kernel"] + params["head"]["bias"]


@pytest.mark.parametrize(
    ("side", "stem", "span"),
    [(18, (7, 2, True), 6), (17, (7, 2, True), 2), (8, (3, 1, False), 3)],
)
def test_forward_pass_is_the_float64_transcription(side, stem, span):
    kernel, stride, pool = stem
    model = ResNet((1, 1), 4, 5, kernel, stride, pool, bn_span=span)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, side, side, 3)).astype(np.float32)
    variables = initialise(model, x[:1])
    # Random scales and biases: zero scales would disable half of the network.
    params = jax.tree.map(
        lambda w: rng.normal(size=w.shape).astype(np.float32), variables["params"]
    )
    got, _ = apply_in_training(model, variables | {"params": params}, x)
    wide = jax.tree.map(lambda w: np.asarray(w, np.float64), params)
    want = forward(wide, x.astype(np.float64), (1, 1), span, stem)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize(("devices", "span"), [(2, 4), (1, 2)], ids=["joined", "divided"])
def test_options_of_batch_norm_reach_it(devices, span):
    """Uses a stem and a head on four examples, with statistics over two devices or half of one."""
    options = {"bn_decay": 0.5, "bn_epsilon": 0.25, "bn_running_variance": "pooled"}
    model = ResNet((), 4, 5, 3, 1, False, bn_span=span, axis_name="batch", **options)
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(4, 6, 6, 3)) + 3 * rng.normal(size=(4, 1, 1, 3))).astype(np.float32)
    variables = initialise(model, x[:1])

    def on_device(x):
        y, new = model.apply(variables, x, train=True, mutable=["batch_stats"])
        return y, jax.lax.pmean(new["batch_stats"]["bn_stem"], "batch")

    run = jax.pmap(on_device, axis_name="batch", devices=jax.devices()[:devices])
    got, stats = run(x.reshape(devices, 4 // devices, 6, 6, 3))
    params = jax.tree.map(lambda w: np.asarray(w, np.float64), variables["params"])
    y = conv(x.astype(np.float64), params["stem"]["kernel"], 1, (1, 1))
    np.testing.assert_allclose(stats["mean"][0], 0.5 * y.mean((0, 1, 2)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(stats["var"][0], 0.5 + 0.5 * y.var((0, 1, 2)), rtol=1e-4)
    y = np.maximum(batch_norm(y, params["bn_stem"], span, 0.25), 0).mean((1, 2))
    want = y @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(got.reshape(4, 5), want, rtol=1e-4, atol=1e-6)


def test_pointwise_convolutions_as_matrix_products_are_the_same_network():
    model = ResNet((1, 1), 4, 5, 3, 1, False, bn_span=6)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 8, 8, 3)).astype(np.float32)
    variables = random_variables(model, x, rng)
    other = model.clone(pointwise_as_matmul=True)
    assert jax.tree.map(jnp.shape, shapes(other, 8, 3)) == jax.tree.map(jnp.shape, variables)

    def loss(model, params):
        v = variables | {"params": params}
        return jnp.square(model.apply(v, x, train=True, mutable=["batch_stats"])[0]).sum()

    want = jax.jit(jax.grad(partial(loss, model)))(variables["params"])
    got = jax.jit(jax.grad(partial(loss, other)))(variables["params"])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4 * np.abs(b).max() + 1e-4)


def test_the_stem_over_blocks_is_the_same_network():
    model = ResNet((1,), 4, 5, bn_span=3)
    x = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype(np.float32)
    other = model.clone(stem_space_to_depth=True)
    variables, same = initialise(model, x), initialise(other, x)
    jax.tree.map(np.testing.assert_array_equal, variables, same)
    want, _ = apply_in_training(model, variables, x)
    got, _ = apply_in_training(other, variables, x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_initialisers():
    """Initial values have the distributions of the submissions.

    Kernels: normal, truncated at two deviations, with variance 1 / fan-in after truncation.
    Head: normal with deviation 0.01, not truncated. Biases: 0. Scales: 1, but 0 for the last scale
    of a block. Running means: 0. Running variances: 1.
    """
    variables = initialise(ResNet((1,), 64, 1000), jnp.zeros((1, 16, 16, 3)))
    for path, leaf in jax.tree_util.tree_flatten_with_path(variables["batch_stats"])[0]:
        assert (leaf == (path[-1].key == "var")).all(), path
    params = variables["params"]
    cut = scipy.stats.truncnorm(-2, 2)
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        layer, kind = path[-2].key, path[-1].key
        values = np.ravel(leaf)
        if layer == "head" and kind == "kernel":
            assert scipy.stats.kstest(values / 0.01, "norm").pvalue > 1e-3
            assert np.abs(values).max() > 0.035
        elif kind == "kernel":
            standard = values * math.sqrt(math.prod(leaf.shape[:-1])) * cut.std()
            assert scipy.stats.kstest(standard, cut.cdf).pvalue > 1e-3, path
        else:
            assert (values == (kind == "scale" and layer != "bn3")).all(), path
    assert len({float(leaf.ravel()[0]) for leaf in kernels(params)}) == 6  # all kernels differ


def kernels(params):
    return [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters_and_statistics():
    model = ResNet((1,), 8, 10, 3, 1, False, compute_dtype="bfloat16", logits_dtype="bfloat16")
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)
    variables = random_variables(model, x, np.random.default_rng(1))
    logits, new = apply_in_training(model, variables, x)
    assert logits.dtype == jnp.bfloat16
    assert {v.dtype for v in jax.tree.leaves((variables, new))} == {jnp.dtype("float32")}
    exact = model.clone(compute_dtype="float32", logits_dtype="float32")
    want, _ = apply_in_training(exact, variables, x)
    np.testing.assert_allclose(np.float32(logits), want, atol=0.03 * np.abs(want).max())
    assert not np.allclose(np.float32(logits), want, rtol=1e-5, atol=0)  # not computed in float32


@pytest.mark.parametrize(("compute", "logits"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_products_use_compute_dtype_and_logits_their_own_dtype(compute, logits):
    model = ResNet((1,), 8, 10, compute_dtype=compute, logits_dtype=logits)
    x = jnp.zeros((4, 16, 16, 3))
    variables = shapes(model, 16, 3)
    traced = jax.make_jaxpr(partial(model.apply, train=False))(variables, x)
    products = re.findall(r":(\w+)\[[\d,]*\] = (?:dot_general|conv_general_dilated)", str(traced))
    assert products == [{"bfloat16": "bf16", "float32": "f32"}[compute]] * 6  # 5 layers, the head
    assert traced.out_avals[0].dtype == logits
