"""Roots against float64 eigendecompositions: accuracy, scale, and the inputs that break others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optim import inverse_root
from optim.inverse_root import MIN_RIDGE

roots = jax.jit(inverse_root.inverse_pth_root, static_argnums=(1, 2, 3))


@functools.cache
def orthogonal(n):
    return np.linalg.qr(np.random.default_rng(n).normal(size=(n, n)))[0]


def with_spectrum(values):
    q = orthogonal(len(values))
    a = (q * values) @ q.T
    return np.float32((a + a.T) / 2)


def worst_direction(a, root, p, ridge, relative=True):
    """max |v root v lambda^(1/p) - 1| over the eigenvectors v of a, in float64."""
    values, v = np.linalg.eigh(np.float64(a))
    wanted = (values + ridge * (values[-1] if relative else 1)) ** (-1 / p)
    return np.max(np.abs(np.einsum("ji,jk,ki->i", v, np.float64(root), v) / wanted - 1))


SPECTRA = {
    "decades": np.logspace(0, -6, 128),
    "rank 10": np.r_[np.linspace(1, 0.1, 10), np.zeros(118)],
    "one large": np.r_[1, np.full(127, 1e-6)],
    "half": np.r_[np.ones(64), np.zeros(64)],
}


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("p", [slow(2), slow(3), 4, slow(6), slow(8)])
@pytest.mark.parametrize(("ridge", "limits"), [(1.5e-5, (1.5e-3, 2e-3)), (1e-6, (1.5e-2, 5e-2))])
def test_the_worst_eigen_direction_is_within_the_limit(p, ridge, limits):
    batch = np.stack([with_spectrum(s) for s in SPECTRA.values()])
    found, ok, _ = roots(batch, p, ridge, True)
    assert np.all(ok)
    for a, root in zip(batch, np.asarray(found), strict=True):
        assert worst_direction(a, root, p, ridge) < limits[p < 4]


@pytest.mark.parametrize("n", [1, slow(2), 3, slow(9), slow(49), slow(104), slow(200)])
def test_any_size_is_within_the_limit(n):
    a = with_spectrum(np.logspace(0, -5, n))
    found, ok, _ = roots(a[None], 4, 1.5e-5, True)
    assert ok[0]
    assert worst_direction(a, np.asarray(found)[0], 4, 1.5e-5) < 1e-3


def test_p_one_is_the_inverse():
    a = with_spectrum(np.logspace(0, -3, 32))
    found, _, _ = roots(a[None], 1, 1e-4, True)
    np.testing.assert_allclose(found[0] @ (a + 1e-4 * np.eye(32)), np.eye(32), atol=1e-3)


def test_scaling_a_matrix_scales_its_root():
    a = with_spectrum(np.logspace(0, -6, 64))
    scales = 10.0 ** np.arange(-12, 37, 8)
    found, ok, escalated = roots(np.float32(a * scales[:, None, None]), 4, 1.5e-5, True)
    assert np.all(ok)
    assert not np.any(escalated)
    at_one = np.asarray(roots(a[None], 4, 1.5e-5, True)[0][0])
    for c, root in zip(scales, np.asarray(found), strict=True):
        np.testing.assert_allclose(root * c**0.25, at_one, atol=2e-3 * np.abs(at_one).max())


def test_powers_of_two_scale_bit_by_bit():
    a = with_spectrum(np.logspace(0, -6, 16))
    found = np.asarray(roots(np.stack([a, a * 2.0**-40, a * 2.0**40]), 4, 1.5e-5, True)[0])
    np.testing.assert_allclose(found[1] / 2.0**10, found[0], rtol=1e-6)
    np.testing.assert_allclose(found[2] * 2.0**10, found[0], rtol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-38, 1e-30])
def test_vanishing_matrices_give_finite_roots_along_the_identity(scale):
    a = np.float32(scale) * np.eye(8, dtype=np.float32)
    found, ok, _ = roots(a[None], 4, 1.5e-5, True)
    assert ok[0]
    diagonal = np.diag(found[0])
    assert np.all(np.isfinite(found))
    assert diagonal.min() > 0
    np.testing.assert_allclose(found[0], np.diag(diagonal), atol=1e-3 * diagonal.max())
    assert diagonal.max() < 1.01 * (1.5e-5 * inverse_root.SMALLEST_SCALE) ** -0.25


def test_wishart_times_1e_20_has_the_scaled_root():
    g = np.random.default_rng(0).normal(size=(16, 64))
    a = np.float32(g @ g.T * 1e-20)
    found = np.asarray(roots(a[None], 4, 1.5e-5, True)[0])[0]
    assert worst_direction(a, found, 4, 1.5e-5) < 1e-4


@pytest.mark.parametrize("rank", [1, 3])
def test_an_absolute_ridge_that_float32_cannot_invert_is_escalated(rank):
    g = np.random.default_rng(rank).normal(size=(128, rank))
    a = np.float32(g @ g.T)
    found, ok, escalated = roots(np.stack([a, a * 1e-9]), 4, 1e-8, False)
    assert np.all(ok)
    assert list(escalated) == [True, False]
    assert worst_direction(a, np.asarray(found)[0], 4, MIN_RIDGE) < 1.5e-2
    small = np.float64(a * 1e-9)
    relative = 1e-8 / np.linalg.eigvalsh(small)[-1]
    assert worst_direction(small, np.asarray(found)[1], 4, relative) < 1.5e-2


def test_an_absolute_ridge_far_above_the_matrix_gives_the_ridges_root():
    g = np.random.default_rng(0).normal(size=(16, 4))
    scales = np.float32([1e-9, 1e-15, 1e-22, 1e-28, 1e-35, 1e-42, 0])
    batch = np.float32(g @ g.T) * scales[:, None, None]
    found, ok, escalated = roots(batch, 4, 1e-8, False)
    assert np.all(ok)
    assert not np.any(escalated)
    for root in np.asarray(found)[1:]:
        np.testing.assert_allclose(root, 100 * np.eye(16), atol=1e-3)
    values, v = np.linalg.eigh(np.float64(batch[0]))
    wanted = (v * (values + 1e-8) ** -0.25) @ v.T
    np.testing.assert_allclose(found[0], wanted, atol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["one", "all", "off the diagonal"])
def test_entries_that_are_not_finite_fail_alone(bad, where):
    good = with_spectrum(np.logspace(0, -3, 64))
    broken = good.copy()
    index = {"one": (5, 5), "all": (slice(None), slice(None)), "off the diagonal": (3, 40)}[where]
    broken[index] = bad
    found, ok, _ = roots(np.stack([good, broken, good]), 4, 1.5e-5, True)
    assert list(ok) == [True, False, True]
    assert worst_direction(good, np.asarray(found)[2], 4, 1.5e-5) < 1e-4


@pytest.mark.parametrize("smallest", [-0.5, -1e-2, -1e-4])
def test_a_matrix_that_is_not_positive_fails(smallest):
    values = np.ones(32)
    values[7] = smallest
    assert not roots(with_spectrum(values)[None], 4, 1.5e-5, True)[1][0]


def test_many_matrices_in_chunks_equal_each_alone():
    batch = np.stack([with_spectrum(np.logspace(0, -k / 10, 16)) for k in range(37)])
    together = np.asarray(roots(batch, 4, 1.5e-5, True)[0])
    assert inverse_root.CHUNK < 37
    for k in (0, 16, 36):
        alone = np.asarray(roots(batch[k : k + 1], 4, 1.5e-5, True)[0])[0]
        np.testing.assert_allclose(together[k], alone, atol=2e-5 * np.abs(alone).max())


def test_padding_with_zeros_does_not_change_the_root():
    a = with_spectrum(np.logspace(0, -5, 9))
    padded = np.zeros((64, 64), np.float32)
    padded[:9, :9] = a
    alone = np.asarray(roots(a[None], 4, 1.5e-5, True)[0])[0]
    inside = np.asarray(roots(padded[None], 4, 1.5e-5, True)[0])[0]
    np.testing.assert_allclose(inside[:9, :9], alone, atol=2e-4 * np.abs(alone).max())
    assert not np.any(inside[:9, 9:])


@pytest.mark.parametrize("kind", ["close", "block"])
def test_the_largest_eigenvalue_is_found_where_it_hides(kind):
    if kind == "close":
        a = with_spectrum(np.r_[1, 0.97, 0.97, 0.96, np.zeros(60)])
    else:  # the largest entry belongs to a block of its own
        a = np.zeros((64, 64), np.float32)
        a[0, 0], a[1:, 1:] = 1.0, 0.5
    squared = a @ a
    normed = squared / np.linalg.norm(squared)
    found = float(inverse_root.largest_eigenvalue(a[None], normed[None])[0, 0])
    top = np.linalg.eigvalsh(np.float64(a))[-1]
    assert top * (1 - 2e-3) < found < top * (1 + 1e-5)


@pytest.mark.parametrize("degree", [1, 2, 4, 6])
def test_the_minimax_polynomial_equioscillates(degree):
    c, e = inverse_root.minimax(1e-3, 2.0, 4, degree)
    x = np.geomspace(1e-3, 2.0, 20001)
    deviation = x**0.25 * np.polyval(c[::-1], x) - 1
    assert np.abs(deviation).max() == pytest.approx(e, rel=1e-3)
    peaks = np.flatnonzero(np.abs(deviation) > 0.999 * e)
    assert np.count_nonzero(np.diff(np.sign(deviation[peaks]))) == degree + 1


@pytest.mark.parametrize("n", [16, slow(128)])
def test_an_absolute_ridge_is_used_as_requested_up_to_condition_1e5(n):
    batch = np.stack([with_spectrum(np.logspace(0, -k, n)) for k in range(6)])
    found, ok, escalated = roots(batch, 4, 1e-8, False)
    assert np.all(ok)
    assert not np.any(escalated)
    for a, root in zip(batch, np.asarray(found), strict=True):
        assert worst_direction(a, root, 4, 1e-8, relative=False) < 6e-4


def test_a_relative_ridge_below_the_covered_interval_is_used_as_requested():
    a = with_spectrum(np.logspace(0, -4, 16))
    singular = with_spectrum(np.r_[np.ones(8), np.zeros(8)])
    found, ok, escalated = roots(np.stack([a, singular]), 4, 1e-9, True)
    assert np.all(ok)
    assert list(escalated) == [False, True]
    assert worst_direction(a, np.asarray(found)[0], 4, 1e-9) < 2e-4
    assert worst_direction(singular, np.asarray(found)[1], 4, MIN_RIDGE) < 1.5e-2


def slightly_indefinite(n, ridge, part):
    """Eigenvalues from 1 to 1e-6, and one of -part * ridge."""
    return with_spectrum(np.r_[np.logspace(0, -6, n - 1), -part * ridge])


@pytest.mark.parametrize("p", [1, slow(2), slow(3), 4, slow(8)])
@pytest.mark.parametrize(("ridge", "part"), [(1e-6, 0.5), (1.5e-5, 0.3)])
def test_slightly_indefinite_statistics_are_escalated(p, ridge, part):
    batch = [slightly_indefinite(64, ridge, part)]
    batch += [with_spectrum(np.logspace(0, -6, 64) - 1.5e-6)] if ridge == 1e-6 else []
    found, ok, escalated = roots(np.stack(batch), p, ridge, True)
    assert np.all(ok)
    assert np.all(escalated)
    for a, root in zip(batch, np.asarray(found), strict=True):
        assert worst_direction(a, root, p, 10 * ridge) < (5e-2 if p == 1 else 5e-3)


def test_one_by_one_matrices():
    a = np.float32([2, 1e-3, 0, -1, np.nan])[:, None, None]
    for p in (1, 3, 4):
        found, ok, escalated = roots(a, p, 1e-6, True)
        assert list(ok) == [True, True, True, False, False]
        assert not np.any(escalated)
        np.testing.assert_allclose(found[:2, 0, 0], a[:2, 0, 0] ** (-1 / p), rtol=1e-5)
    # Between the requested ridge and its negative: (a + r) is positive, but off by a factor of 2.
    assert list(roots(np.float32([-5e-9, -1e-11])[:, None, None], 4, 1e-8, False)[1]) == [0, 1]


def attempts(monkeypatch, batch, ridge=1e-6):
    """How often the roots of a batch are computed."""
    calls = []
    root = inverse_root._root

    def counted(*args):
        jax.debug.callback(lambda: calls.append(1))
        return root(*args)

    monkeypatch.setattr(inverse_root, "_root", counted)
    jax.block_until_ready(
        jax.jit(lambda a: inverse_root.inverse_pth_root(a, 4, ridge, True))(batch)
    )
    jax.effects_barrier()
    monkeypatch.setattr(inverse_root, "_root", root)
    return len(calls)


def test_only_finite_matrices_that_fail_cause_another_attempt(monkeypatch):
    good = with_spectrum(np.logspace(0, -3, 64))
    assert attempts(monkeypatch, np.stack([good, good * np.nan, good * np.inf])) == 1
    assert attempts(monkeypatch, good[None] * np.nan) == 0
    assert attempts(monkeypatch, np.stack([good, slightly_indefinite(64, 1e-6, 0.5)])) == 2
    assert attempts(monkeypatch, -good[None]) == 3  # 1e-6, 1e-5 and 1e-4, then it fails


def psd_families(n):
    """Random positive semi-definite matrices of many kinds, float32."""
    r = np.random.default_rng(n)
    q = np.linalg.qr(r.normal(size=(n, n)))[0]
    factors = [r.normal(size=(n, k)) for k in sorted({1, 2, 10, (n + 1) // 2, n, 2 * n})]
    factors += [q * np.logspace(0, -k, n) for k in (1, 2, 3, 6)]
    factors += [q * np.r_[np.ones(n // 2), np.full(n - n // 2, x)] for x in (0, 1e-2)]
    half = np.arange(n) < n // 2
    factors += [r.normal(size=(n, n)) * np.where(half[:, None] == half, 1, 0)]  # block-diagonal
    factors += [r.normal(size=(n, n)) * np.logspace(0, -4, n)[:, None], np.ones((n, 1))]
    factors += [np.eye(n), np.diag(np.r_[np.ones(n - 1), 1e-10]), np.zeros((n, n))]
    return np.stack([np.float32(g) @ np.float32(g).T for g in factors])


@pytest.mark.parametrize(
    ("n", "p"),
    [(1, 4), (2, 4), (16, 4), *(slow(n, 4) for n in (9, 64, 128, 200))]
    + [slow(100, p) for p in (1, 2, 3, 6, 8)],
)
@pytest.mark.parametrize("ridge", [1.5e-5, 1e-6])
def test_positive_semi_definite_matrices_are_not_escalated(n, p, ridge):
    batch = psd_families(n)
    scales = np.float32(10.0 ** np.arange(-12, 17, 4))[:, None, None, None]
    _, ok, escalated = roots((scales * batch).reshape(-1, n, n), p, ridge, True)
    assert np.all(ok)
    assert not np.any(escalated)


@pytest.mark.parametrize("ridge", [1.5e-5, 1e-6])
def test_the_root_maps_the_range_of_a_low_rank_matrix_to_itself(ridge):
    a = with_spectrum(SPECTRA["rank 10"])
    root = np.asarray(roots(a[None], 4, ridge, True)[0])[0]
    values, v = np.linalg.eigh(np.float64(a))
    wanted = v[:, -10:] * (values[-10:] + ridge * values[-1]) ** (-1 / 4)
    error = np.linalg.norm(root.T @ v[:, -10:] - wanted, axis=0) / np.linalg.norm(wanted, axis=0)
    assert error.max() < (1.5e-3 if ridge > 1e-5 else 1.5e-2)


def mapped(transform):
    """`inverse_pth_root` of `[4, n, n]` under a transformation of JAX."""

    def root(a):
        return inverse_root.inverse_pth_root(a, 4, 1e-6, True)

    def in_pairs(function):
        return lambda a: [
            x.reshape(4, *x.shape[2:]) for x in function(a.reshape(2, 2, *a.shape[1:]))
        ]

    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    return {
        "vmap": in_pairs(jax.vmap(root)),
        "vmap with a name": in_pairs(jax.vmap(root, axis_name="x")),
        "scan": in_pairs(lambda a: jax.lax.scan(lambda c, x: (c, root(x)), 0, a)[1]),
        "cond": lambda a: jax.lax.cond(a[0, 0, 0] >= 0, root, lambda a: root(2 * a), a),
        "shard_map": jax.jit(jax.shard_map(root, mesh=mesh, in_specs=spec, out_specs=spec)),
        "pmap": lambda a: [x[0] for x in jax.pmap(root, axis_name="x")(a[None])],
    }[transform]


@pytest.mark.parametrize(
    ("transform", "x64"),
    [("vmap", True), ("shard_map", False), ("shard_map", True), ("scan", False), ("pmap", False)]
    + [slow(name, x64) for name in ("vmap with a name", "cond") for x64 in (False, True)]
    + [slow("vmap", False), slow("scan", True), slow("pmap", True)],
)
def test_transformations_and_64_bits_change_nothing(transform, x64):
    good = with_spectrum(np.logspace(0, -3, 16))
    batch = np.stack([good, slightly_indefinite(16, 1e-6, 0.5), good * np.nan, 2 * good])
    expected = roots(batch, 4, 1e-6, True)
    with jax.enable_x64(x64):
        root, ok, escalated = mapped(transform)(jnp.asarray(batch))
    assert root.dtype == np.float32
    assert list(ok) == list(expected[1]) == [True, True, False, True]
    assert list(escalated) == list(expected[2]) == [False, True, False, False]
    for k in (0, 1, 3):
        np.testing.assert_allclose(root[k], expected[0][k], atol=1e-3 * np.abs(root[k]).max())


def test_escalated_matrices_in_chunks():
    batch = np.stack([slightly_indefinite(16, 1e-6, 0.5 * (k % 5 == 0)) for k in range(37)])
    _, ok, escalated = roots(batch, 4, 1e-6, True)
    assert np.all(ok)
    assert list(np.flatnonzero(escalated)) == list(range(0, 37, 5))


def test_the_attempts_share_one_program():
    a = jax.ShapeDtypeStruct((4, 64, 64), np.float32)
    products = [roots.lower(a, 4, r, True).as_text().count("dot_general") for r in (1e-6, 1e-3)]
    assert products[0] < 50  # 22 of them for the root
    assert products[1] < products[0]


@pytest.mark.parametrize(
    ("p", "products"), [(2, (18, 22, 13)), (3, (20, 23, 14)), (4, (19, 22, 14)), (8, (19, 23, 15))]
)
def test_schedules_take_few_products(p, products):
    for ridge, most in zip((1.5e-5, 1e-6, 1e-3), products, strict=True):
        lower = ridge / (128**0.25 + ridge)
        coefficients, limit = inverse_root.schedule(lower, p, 0.25)
        degrees = tuple(len(c) - 1 for c in coefficients)
        assert inverse_root._matmuls(degrees, p) <= most
        x = np.geomspace(lower, 1, 100_001)
        for c in coefficients:
            x = x * np.polyval(c[::-1], x) ** p
        assert np.abs(x - 1).max() < 1.1 * p * inverse_root.TOLERANCE < limit
