"""Inverse p-th roots of many symmetric positive semi-definite matrices at once, in float32.

A coupled iteration, M_0 = (A + ridge I) / u and H_0 = I, repeats

    H <- H q(M),   M <- M q(M)^p                              (so H^-p A stays M u)

until M = I and u^(-1/p) H is the root. Newton's q is linear; here every q is the polynomial of
degree 1, 2 or 4 that is closest to M^(-1/p) on the interval that the spectrum can have reached,
in the sense of the largest relative error. The ridge is at least `MIN_RIDGE` of the largest
eigenvalue and u is at least that eigenvalue, so the first interval, hence the whole schedule, is
known when the program is traced: no tests, no loops, and nothing that can diverge.

Sources: Higham, Functions of Matrices, ch. 7 (coupled Newton); Amsel et al. 2025, arXiv:2505.16932
(greedy minimax schedules for the polar factor). M q^p is computed as q^(p/2) M q^(p/2): measured
against float64 it is four times more accurate than M (q^p).
"""

from __future__ import annotations

import functools
import itertools

import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax import Array, lax

# "Roughly at the limit of condition number that can be correctly inverted with fp32" (seed README).
MIN_RIDGE = 1e-6
# Smaller matrices count as that small: the entries that float32 flushes to zero, below 1e-38,
# would make them indefinite by more than the ridge. At the other end 1 / scale must not be flushed.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-100, 2.0**125
TOLERANCE = 2e-5  # of the schedule, relative; float32 rounding leaves about 1e-4
POWER_STEPS, FILTER_DEGREE, FILTER = 4, 12, 0.95  # of `largest_eigenvalue`
CHUNK = 16  # matrices at a time: their temporaries stay in a CPU's cache
SLACK = 0.8  # the estimate of the largest eigenvalue may be that much too small
HIGHEST = lax.Precision.HIGHEST


def minimax(lower: float, upper: float, p: int, degree: int) -> tuple[np.ndarray, float]:
    """Returns c and e: q(x) = sum c_j x^j has the least e = max |x^(1/p) q(x) - 1| on the interval.

    Remez exchange in float64, in y = x^(1/p); c is for x in the unit of `lower` and `upper`.
    """
    m = degree + 1
    a, b = (lower / upper) ** (1 / p), 1.0
    cosines = np.cos(np.pi * np.linspace(1, 0, 1000))
    y = np.concatenate([np.geomspace(a, b, 1000), (a + b) / 2 + (b - a) / 2 * cosines])
    y = np.unique(y.clip(a, b))
    powers = np.arange(m) * p + 1
    basis = y[:, None] ** powers
    signs = (-1.0) ** np.arange(m + 1)
    reference = (a + b) / 2 + (b - a) / 2 * np.cos(np.pi * np.linspace(1, 0, m + 1))
    best, best_error = np.zeros(m), np.inf
    for _ in range(50):
        system = np.concatenate([reference[:, None] ** powers, signs[:, None]], axis=1)
        c = np.linalg.lstsq(system, np.ones(m + 1), rcond=None)[0][:m]
        deviation = basis @ c - 1
        error = np.abs(deviation).max()
        if error < best_error:
            best, best_error = c, error
        pieces = np.split(np.arange(len(y)), np.flatnonzero(np.diff(np.sign(deviation))) + 1)
        peaks = [piece[np.argmax(np.abs(deviation[piece]))] for piece in pieces]
        while len(peaks) > m + 1:
            peaks.pop(0 if abs(deviation[peaks[0]]) < abs(deviation[peaks[-1]]) else -1)
        if len(peaks) <= m or np.array_equal(y[peaks], reference):
            break
        reference = y[peaks]
    return best * upper ** -(1 / p) / upper ** np.arange(m), float(best_error)


_minimax = functools.lru_cache(maxsize=4096)(minimax)


def _matmuls(degrees: tuple[int, ...], p: int) -> int:
    """Matrix products of a schedule; the square of the first M is needed in any case."""
    evaluate = {1: 0, 2: 1, 4: 2}
    total = sum(evaluate[d] for d in degrees) + (degrees[0] == 1)
    half, odd = divmod(p, 2)
    powering = max(half, 1).bit_length() - 1 + (max(half, 1).bit_count() - 1) + (odd and p > 1)
    return total + (len(degrees) - 1) * (1 + powering + 2)


@functools.lru_cache(maxsize=256)
def schedule(lower: float, p: int) -> tuple[tuple[tuple[float, ...], ...], float]:
    """Plans the cheapest iteration for spectra in [lower, 1]: (coefficients per step, bound).

    `bound` is max |eigenvalue of M - 1| before the last step.
    """
    best: tuple[int, tuple[int, ...]] | None = None
    for length in range(1, 8):
        if best and (length - 1) * 4 > best[0]:
            break
        for degrees in itertools.product((1, 2, 4), repeat=length):
            cost = _matmuls(degrees, p)
            if best and cost >= best[0]:
                continue
            if _run(lower, p, degrees)[1][-1] <= TOLERANCE:
                best = (cost, degrees)
    if best is None:
        raise ValueError(f"no schedule for root {p} of spectra in [{lower}, 1]")
    coefficients, errors = _run(lower, p, best[1])
    last = errors[-2] if len(errors) > 1 else 1.0
    return coefficients, (1 + last) ** p - 1


def _run(lower: float, p: int, degrees: tuple[int, ...]):
    """The coefficients and the largest error after each step of a schedule."""
    coefficients, errors, upper = [], [], 1.0
    for degree in degrees:
        c, e = _minimax(lower, upper, p, degree)
        coefficients.append(tuple(float(x) for x in c))
        errors.append(e)
        lower, upper = max(1 - e, 1e-12) ** p, (1 + e) ** p
    return tuple(coefficients), errors


def _mul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=HIGHEST)


def _apply(a: Array, v: Array) -> Array:
    return jnp.einsum("nij,nj->ni", a, v, precision=HIGHEST)


def _dot(u: Array, v: Array) -> Array:
    return jnp.sum(u * v, axis=-1, keepdims=True)


def _unit(v: Array) -> tuple[Array, Array]:
    length = jnp.sqrt(_dot(v, v))
    return v / jnp.where(length > 0, length, 1.0), length


def largest_eigenvalue(a: Array, squared: Array) -> Array:
    """Estimates the largest eigenvalue of `a` `[n, d, d]` from below: `[n, 1]`.

    `squared` is a^2 divided by its Frobenius norm. A few steps of the power method with it, then
    a Chebyshev filter that amplifies what lies above FILTER of that estimate, then the larger
    Ritz value of two Lanczos steps. The start weighs the columns of a^2 by their length and by
    fixed random numbers, so that no coordinate subspace, in which the largest eigenvector of a
    block-diagonal matrix may lie, is missed.
    """
    random = np.random.RandomState(0).normal(size=a.shape[-1]).astype(np.float32)
    v = _apply(squared, jnp.sqrt(jnp.sum(squared * squared, axis=-1)) * random)
    v, _ = _unit(v)
    v = lax.fori_loop(0, POWER_STEPS, lambda _, v: _apply(squared, v), v)
    v, _ = _unit(v)
    image = _apply(squared, v)
    estimate = FILTER * _dot(v, image)
    twice = 2 / jnp.where(estimate > 0, estimate, 1.0)

    def filtered(_, pair):
        before, v = pair
        return v, 2 * (twice * _apply(squared, v) - v) - before

    _, v = lax.fori_loop(0, FILTER_DEGREE - 1, filtered, (v, twice * image - v))
    v, _ = _unit(v)
    image = _apply(a, v)
    first = _dot(v, image)
    other, coupling = _unit(image - first * v)
    second = _dot(other, _apply(a, other))
    return (first + second) / 2 + jnp.sqrt(((first - second) / 2) ** 2 + coupling**2)


def _polynomial(c: tuple[float, ...], m: Array, squared: Array | None) -> Array:
    """c_0 I + c_1 M + ... of degree 1, 2 or 4 (two products)."""
    eye = jnp.eye(m.shape[-1], dtype=m.dtype)
    if len(c) == 2:
        return c[0] * eye + c[1] * m
    squared = _mul(m, m) if squared is None else squared
    low = c[0] * eye + c[1] * m + c[2] * squared
    return low if len(c) == 3 else low + _mul(squared, c[3] * m + c[4] * squared)


def _power(t: Array, k: int) -> Array:
    """t^k for k >= 1 by squaring."""
    if k == 1:
        return t
    half = _power(t, k // 2)
    square = _mul(half, half)
    return square if k % 2 == 0 else _mul(square, t)


def _next(m: Array, t: Array, p: int) -> Array:
    """m t^p, multiplied from both sides."""
    if p == 1:
        return _mul(m, t)
    left = _power(t, p // 2)
    right = left if p % 2 == 0 else _mul(left, t)
    return _mul(left, _mul(m, right))


def _power_of_two(x: Array) -> Array:
    """The largest power of two <= x, for normal positive x; dividing by it rounds nothing."""
    bits = lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0x7F800000)
    return lax.bitcast_convert_type(bits, jnp.float32)


def inverse_pth_root(a: Array, p: int, ridge: float, relative: bool) -> tuple[Array, Array, Array]:
    """Returns (a + r I)^(-1/p) of every matrix, whether it succeeded, and whether r was raised.

    r is `ridge * lambda_max` if `relative`, else `ridge`; never below MIN_RIDGE * lambda_max.
    Relative roots are scale-invariant: root(c a) = c^(-1/p) root(a). A zero matrix counts as one
    of scale SMALLEST_SCALE. Where `ok` is False (an entry is not finite, or the matrix is far from
    positive semi-definite) the result is not to be used.

    Args:
      a: `[n, d, d]`, symmetric positive semi-definite, float32.
      p: root order >= 1, static.
      ridge: >= 0, static; the same for all.

    Returns:
      root `[n, d, d]` float32, ok `[n]` bool, raised `[n]` bool.
    """
    n, d, _ = a.shape
    chunks = -(-n // CHUNK)
    if chunks == 1:
        return _roots(a, p, ridge, relative)
    size = -(-n // chunks)
    a = jnp.pad(a, ((0, chunks * size - n), (0, 0), (0, 0))).reshape(chunks, size, d, d)
    parts = lax.map(lambda part: _roots(part, p, ridge, relative), a)
    root, ok, raised = (x.reshape(-1, *x.shape[2:])[:n] for x in parts)
    return root, ok, raised


def _roots(a: Array, p: int, ridge: float, relative: bool) -> tuple[Array, Array, Array]:
    diagonal = jnp.diagonal(a, axis1=1, axis2=2)
    largest = jnp.max(jnp.abs(diagonal), axis=-1)
    if not relative:
        largest = jnp.maximum(largest, ridge)  # else ridge / scale, squared, could overflow
    scale = _power_of_two(jnp.clip(largest, SMALLEST_SCALE, LARGEST_SCALE))[:, None]
    a = a * (1 / scale)[:, :, None]
    squared = _mul(a, a)
    bound = jnp.sqrt(jnp.sqrt(jnp.sum(squared * squared, axis=(1, 2))))[:, None]
    normed = squared * (1 / jnp.maximum(bound, 1e-6) ** 2)[:, :, None]
    top = jnp.maximum(largest_eigenvalue(a, normed), 1.0)  # the largest number is in [1, 2)
    wanted = ridge * top if relative else ridge / scale
    shift = jnp.maximum(wanted, MIN_RIDGE * top)
    root, ok = _root(a, squared, bound, shift, p, max(ridge, MIN_RIDGE) if relative else MIN_RIDGE)
    root = root * (scale ** (-1 / p))[:, :, None]
    return root, ok & jnp.isfinite(jnp.sum(root, axis=(1, 2))), (shift > wanted)[:, 0]


def _root(
    a: Array, squared: Array, bound: Array, shift: Array, p: int, ridge: float
) -> tuple[Array, Array]:
    """(a + shift I)^(-1/p) for shift >= ridge * lambda_max and lambda_max <= bound, both [n, 1]."""
    d = a.shape[-1]
    eye = jnp.eye(d, dtype=a.dtype)
    shift_, always = shift[:, :, None], jnp.ones(a.shape[0], bool)
    if d == 1:
        return (a + shift_) ** (-1 / p), always
    if p == 1:
        factor = jax.scipy.linalg.cho_factor(a + shift_ * eye)
        return jax.scipy.linalg.cho_solve(factor, jnp.broadcast_to(eye, a.shape)), always
    upper = (bound + shift) * (1 + 1e-5)
    coefficients, spread = schedule(float(SLACK * ridge / (d**0.25 + ridge)), p)
    inverse = (1 / upper)[:, :, None]
    m = (a + shift_ * eye) * inverse
    m_squared: Array | None = (squared + (2 * shift_) * a + (shift_ * shift_) * eye) * inverse**2
    h, residual = eye, jnp.zeros(a.shape[0])
    for i, c in enumerate(coefficients):
        t = _polynomial(c, m, m_squared)
        h = t if i == 0 else _mul(h, t)
        m_squared = None
        if i + 1 < len(coefficients):
            m = _next(m, t, p)
            residual = jnp.max(jnp.abs(m - eye), axis=(1, 2))
    return h * (upper ** (-1 / p))[:, :, None], residual <= spread + 0.1
