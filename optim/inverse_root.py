"""Inverse p-th roots of batches of symmetric positive semi-definite matrices, in float32.

The coupled iteration M_0 = (A + ridge I) / u, H_0 = I,

    H <- H q(M),   M <- M q(M)^p                              (this keeps H^-p A = u M)

converges to M = I, and u^(-1/p) H is the root. Newton's q is linear. Here each q is the polynomial
of degree 1, 2, 4 or 6 with the smallest relative error to M^(-1/p) on the interval that contains
the spectrum of M. u is at least the largest eigenvalue and at most a known multiple of ridge, so
the whole schedule is known at trace time, and a positive semi-definite A cannot diverge.

The residual after the last step, M q(M)^p - I, reveals eigenvalues below the covered interval. A
matrix that has one gets a larger ridge. MIN_RIDGE limits the interval, not the requested ridge.

The root is slightly asymmetric. Contract its first index: for A with a null space, root.T @ v is 20
times more accurate than root @ v. Do not compute the last M afresh as H^p M_0: for eigenvectors v,
v.T root v gets 20 times more accurate, but the rest of root.T @ v 10 times less.

Sources: Higham, Functions of Matrices, ch. 7 (coupled Newton); Amsel et al. 2025, arXiv:2505.16932
(greedy minimax schedules for the polar factor); Paterson and Stockmeyer 1973 (degrees 4 and 6).
M q^p is computed as q^(p/2) M q^(p/2), which is four times more accurate than M (q^p).
"""

import functools
import heapq
from collections.abc import Callable

import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax import Array, lax

# "Roughly at the limit of condition number that can be correctly inverted with fp32" (seed README).
MIN_RIDGE = 1e-6
# Smaller matrices count as that small: the entries that float32 flushes to zero, below 1e-38,
# would make them indefinite by more than the ridge. At the other end 1 / scale must not be flushed.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-100, 2.0**125
TOLERANCE = 1e-5  # relative error of a schedule; float32 rounding adds 1e-5 to 1e-2
POWER_STEPS, FILTER_DEGREE, FILTER = 4, 12, 0.95  # of `largest_eigenvalue`
CHUNK = 16  # matrices at a time: their temporaries stay in a CPU's cache
DEGREES = {1: 0, 2: 1, 4: 2, 6: 3}  # degree of q: matrix products that evaluate it
MAX_RIDGE = 5e-4  # of the largest eigenvalue: escalation stops here; rounding never needs more
# A root fails where A has an eigenvalue below -max(SHORT ridge, ROUNDING lambda_max). Rounding A
# and its products to float32 gives up to 1e-7 lambda_max.
SHORT, ROUNDING = 0.1, 2.5e-7
PANEL = 8  # vectors that probe a residual
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
    fine = np.geomspace(a, b, 20_000)  # an error too small by 1e-5 here is 1e-1 after four steps
    error = np.abs(fine * np.polyval(best[::-1], fine**p) - 1).max()
    return best * upper ** -(1 / p) / upper ** np.arange(m), float(error)


_minimax = functools.lru_cache(maxsize=4096)(minimax)


def _matmuls(degrees: tuple[int, ...], p: int) -> int:
    """Matrix products of a schedule; the square of the first M is needed in any case."""
    half = max(p // 2, 1)
    powering = half.bit_length() + half.bit_count() - 2 + (p % 2 and p > 1)
    evaluation = sum(DEGREES[d] for d in degrees) + (degrees[0] == 1)
    return evaluation + (len(degrees) - 1) * (powering + 3)


@functools.lru_cache(maxsize=256)
def schedule(lower: float, p: int, short: float) -> tuple[tuple[tuple[float, ...], ...], float]:
    """Plans the cheapest iteration for spectra in [lower, 1]: (coefficients per step, limit).

    `limit` is the last |M - 1| of a spectrum point that starts at (1 - short) lower. The search
    visits schedules by cost and drops those that a cheaper one matches in accuracy.
    """
    queue: list[tuple[int, tuple[int, ...]]] = [(_matmuls((d,), p), (d,)) for d in DEGREES]
    least = 1.0
    while queue:
        _, degrees = heapq.heappop(queue)
        coefficients, error = _run(lower, p, degrees)
        if error <= TOLERANCE:
            x = (1 - short) * lower
            for c in coefficients:
                x *= float(np.polyval(c[::-1], x)) ** p
            return coefficients, abs(x - 1)
        if error < least:
            least = error
            for d in DEGREES:
                heapq.heappush(queue, (_matmuls((*degrees, d), p), (*degrees, d)))
    raise ValueError(f"no schedule for root {p} of spectra in [{lower}, 1]")


def _run(lower: float, p: int, degrees: tuple[int, ...]):
    """The coefficients of a schedule and its largest error."""
    coefficients, upper = [], 1.0
    for degree in degrees:
        c, e = _minimax(lower, upper, p, degree)
        coefficients.append(tuple(float(x) for x in c))
        lower, upper = max(1 - e, 1e-12) ** p, (1 + e) ** p
    return tuple(coefficients), e


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
    """c_0 I + c_1 M + ... of degree 1, 2, 4 or 6, in 0, 1, 2 or 3 products."""
    eye = jnp.eye(m.shape[-1], dtype=m.dtype)
    if len(c) == 2:
        return c[0] * eye + c[1] * m
    squared = _mul(m, m) if squared is None else squared
    low = c[0] * eye + c[1] * m + c[2] * squared
    if len(c) == 3:
        return low
    if len(c) == 5:
        return low + _mul(squared, c[3] * m + c[4] * squared)
    cubed = _mul(squared, m)
    return low + _mul(cubed, c[3] * eye + c[4] * m + c[5] * squared + c[6] * cubed)


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
    """Computes (a + r I)^(-1/p) for each matrix, with r = ridge lambda_max or r = ridge.

    A matrix whose root fails its check is tried again with r <- max(10 r, MIN_RIDGE lambda_max),
    up to MAX_RIDGE lambda_max. Relative roots are scale-invariant: root(c a) = c^(-1/p) root(a).
    A zero matrix is treated as one of scale SMALLEST_SCALE.

    Args:
      a: `[n, d, d]`, symmetric positive semi-definite, float32.
      p: root order >= 1, static.
      ridge: >= 0, static.
      relative: whether `ridge` is relative to the largest eigenvalue, static.

    Returns:
      root: `[n, d, d]`, float32. Do not use it where `ok` is False.
      ok: `[n]`, bool. False for entries that are not finite and for matrices that are too far from
        positive semi-definite.
      escalated: `[n]`, bool. True where the root is ok, but with a larger ridge than requested.
    """
    n, d, _ = a.shape
    chunks = -(-n // CHUNK)
    if chunks == 1:
        return _roots(a, p, ridge, relative)
    size = -(-n // chunks)
    a = jnp.pad(a, ((0, chunks * size - n), (0, 0), (0, 0))).reshape(chunks, size, d, d)
    parts = lax.map(lambda part: _roots(part, p, ridge, relative), a)
    root, ok, escalated = (x.reshape(-1, *x.shape[2:])[:n] for x in parts)
    return root, ok, escalated


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
    requested = ridge * top if relative else ridge / scale
    covered = max(ridge, MIN_RIDGE) if relative else MIN_RIDGE

    def attempt(state):
        active, ok, shift, root = state
        new, good = _root(a, squared, bound, shift, p, covered)
        good &= active & jnp.isfinite(jnp.sum(new, axis=(1, 2)))
        root = jnp.where(good[:, None, None], new, root)
        active &= ~good
        shift = jnp.where(active[:, None], jnp.maximum(10 * shift, MIN_RIDGE * top), shift)
        return active & (shift <= MAX_RIDGE * top)[:, 0], ok | good, shift, root

    # Each initial value depends on `a`, so that its type under shard_map is that of the results.
    finite = jnp.isfinite(bound[:, 0])
    state = finite, finite & False, requested, a
    _, ok, shift, root = lax.while_loop(lambda state: jnp.any(state[0]), attempt, state)
    return root * (scale ** (-1 / p))[:, :, None], ok, ok & (shift > requested)[:, 0]


def _root(
    a: Array, squared: Array, bound: Array, shift: Array, p: int, ridge: float
) -> tuple[Array, Array]:
    """Computes (a + shift I)^(-1/p) `[n, d, d]`, and checks that its spectrum is covered: `[n]`.

    Args:
      a, squared: `[n, d, d]`, and a^2.
      bound: `[n, 1]`, between lambda_max and d^(1/4) lambda_max.
      shift: `[n, 1]`.
      ridge: the smallest shift / lambda_max that is covered.
    """
    d = a.shape[-1]
    eye = jnp.eye(d, dtype=a.dtype)
    shift_ = shift[:, :, None]
    short = max(SHORT, ROUNDING / ridge)
    if d == 1:
        return (a + shift_) ** (-1 / p), (a + short * shift_ >= 0)[:, 0, 0]
    if p == 1:  # one check: the norm of the inverse is at most 1 / shift
        factor = jax.scipy.linalg.cho_factor(a + shift_ * eye)
        root = jax.scipy.linalg.cho_solve(factor, jnp.broadcast_to(eye, a.shape))
        return root, _norm(lambda v: shift_ * _mul(root, v), d, 6) <= 1 / (1 - short)
    lower = ridge / (d**0.25 + ridge)
    coefficients, limit = schedule(lower, p, short)
    upper = jnp.maximum(bound + shift, shift / lower) * (1 + 1e-5)
    inverse = (1 / upper)[:, :, None]
    m = (a + shift_ * eye) * inverse
    m_squared = (squared + (2 * shift_) * a + (shift_ * shift_) * eye) * inverse**2
    h = t = _polynomial(coefficients[0], m, m_squared)
    for c in coefficients[1:]:
        m = _next(m, t, p)
        t = _polynomial(c, m, None)
        h = _mul(h, t)

    def residual(v: Array) -> Array:
        image = v
        for _ in range(p):
            image = _mul(t, image)
        return _mul(m, image) - v

    return h * (upper ** (-1 / p))[:, :, None], _norm(residual, d, 2) <= limit


def _norm(operator: Callable[[Array], Array], d: int, steps: int) -> Array:
    """Estimates the norm of symmetric matrices from below, by the power method: `[n]`.

    `operator` multiplies `[n or 1, d, PANEL]` by them. Entries that are not finite give NaN or inf.
    """
    v = jnp.asarray(np.random.RandomState(1).normal(size=(1, d, PANEL)), jnp.float32)
    for _ in range(steps):
        before, v = v, operator(v)
    squares = [jnp.sum(x * x, axis=(1, 2)) for x in (v, before)]
    return jnp.sqrt(squares[0] / (squares[1] + 1e-30))
