"""Roots against float64 eigendecompositions: accuracy, scale, and the inputs that break others."""

import functools

import jax
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


def worst_direction(a, root, p, ridge):
    """max |v root v lambda^(1/p) - 1| over the eigenvectors v of a, in float64."""
    values, v = np.linalg.eigh(np.float64(a))
    wanted = (values + ridge * values[-1]) ** (-1 / p)
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
    found, ok, raised = roots(np.float32(a * scales[:, None, None]), 4, 1.5e-5, True)
    assert np.all(ok)
    assert not np.any(raised)
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
def test_an_absolute_ridge_that_float32_cannot_invert_is_raised_and_counted(rank):
    g = np.random.default_rng(rank).normal(size=(128, rank))
    a = np.float32(g @ g.T)
    found, ok, raised = roots(np.stack([a, a * 1e-9]), 4, 1e-8, False)
    assert np.all(ok)
    assert list(raised) == [True, False]
    assert worst_direction(a, np.asarray(found)[0], 4, MIN_RIDGE) < 1.5e-2
    small = np.float64(a * 1e-9)
    relative = 1e-8 / np.linalg.eigvalsh(small)[-1]
    assert worst_direction(small, np.asarray(found)[1], 4, relative) < 1.5e-2


def test_an_absolute_ridge_far_above_the_matrix_gives_the_ridges_root():
    g = np.random.default_rng(0).normal(size=(16, 4))
    scales = np.float32([1e-9, 1e-15, 1e-22, 1e-28, 1e-35, 1e-42, 0])
    batch = np.float32(g @ g.T) * scales[:, None, None]
    found, ok, raised = roots(batch, 4, 1e-8, False)
    assert np.all(ok)
    assert not np.any(raised)
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


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_the_minimax_polynomial_equioscillates(degree):
    c, e = inverse_root.minimax(1e-3, 2.0, 4, degree)
    x = np.geomspace(1e-3, 2.0, 20001)
    deviation = x**0.25 * np.polyval(c[::-1], x) - 1
    assert np.abs(deviation).max() == pytest.approx(e, rel=1e-3)
    peaks = np.flatnonzero(np.abs(deviation) > 0.999 * e)
    assert np.count_nonzero(np.diff(np.sign(deviation[peaks]))) == degree + 1
