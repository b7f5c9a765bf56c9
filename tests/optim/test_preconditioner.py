"""Statistics and preconditioning of blocks against numpy, and the batches of their roots."""

import jax
import numpy as np
import pytest

from optim import preconditioner

BLOCK = (2, 3, 4)


def rows(seed, n=3, block=BLOCK):
    return np.float32(np.random.default_rng(seed).normal(size=(n, *block)))


def matrices(seed, n=3):
    return {str(i): rows(seed + i, n, (d, d)) for i, d in enumerate(BLOCK)}


@pytest.mark.parametrize(("beta2", "weight"), [(0.75, 0.25), (1.0, 1.0)])
def test_statistics_average_or_sum_the_squares_of_every_unfolding(beta2, weight):
    g, old = rows(0), matrices(1)
    new, kept = jax.jit(preconditioner.statistics, static_argnums=3)(
        g, np.ones(3, bool), old, beta2
    )
    for axis, letters in enumerate(["aij,bij->ab", "iaj,ibj->ab", "ija,ijb->ab"]):
        for row in range(3):
            square = np.einsum(letters, g[row], g[row])
            wanted = beta2 * old[str(axis)][row] + weight * square
            np.testing.assert_allclose(new[str(axis)][row], wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(kept, np.zeros(3))


def test_rows_that_cannot_be_squared_and_sums_that_would_overflow_keep_their_statistics():
    g, old = rows(0), matrices(1)
    old["2"][1] = np.diag(np.float32([9e37, 9e37, 0, 0]))  # the trace is beyond the limit
    usable = np.array([False, True, True])
    new, kept = preconditioner.statistics(g, usable, old, 1.0)
    np.testing.assert_array_equal(kept, [3, 1, 0])
    for axis in old:
        np.testing.assert_array_equal(new[axis][0], old[axis][0])
    np.testing.assert_array_equal(new["2"][1], old["2"][1])
    assert np.all(new["1"][1] != old["1"][1])


def test_preconditioning_multiplies_every_axis_with_its_root():
    g, roots = rows(0), matrices(1)
    got = jax.jit(preconditioner.precondition)(g, roots)
    # Roots are symmetric; these are not, so that a transposition shows.
    wanted = np.einsum("nabc,nax,nby,ncz->nxyz", g, roots["0"], roots["1"], roots["2"])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [2, 4])
def test_roots_of_buckets_that_share_a_batch_are_those_of_each_alone(p):
    def square(seed, n, d):
        x = rows(seed, n, (d, 2 * d))
        return x @ x.swapaxes(1, 2)

    stats = {"a": {"0": square(0, 3, 4), "1": square(1, 3, 9)}, "b": {"0": square(2, 2, 9)}}
    old = jax.tree.map(np.zeros_like, stats)
    got, failed, escalated = preconditioner.roots(stats, old, {"a": p, "b": p}, 1e-4, True)
    assert {k: list(v) for k, v in failed.items()} == {"a": [0, 0, 0], "b": [0, 0]}
    assert {k: list(v) for k, v in escalated.items()} == {"a": [0, 0, 0], "b": [0, 0]}

    def check(s, root):
        values, v = np.linalg.eigh(np.float64(s))
        ridge = 1e-4 * values[:, -1:, None]
        wanted = (v * (values[:, None] + ridge) ** (-1 / p)) @ v.swapaxes(1, 2)
        np.testing.assert_allclose(root, wanted, atol=1e-4 * np.abs(wanted).max())

    jax.tree.map(check, stats, got)
