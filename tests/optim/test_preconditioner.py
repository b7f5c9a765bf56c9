"""Statistics and preconditioning of rows against numpy, and which sizes share a batch of roots."""

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


@pytest.mark.parametrize(
    ("counts", "batches"),
    [
        pytest.param({(4, 8): 9, (4, 16): 3}, {(4, 16): [8, 16]}, id="small ones are joined"),
        pytest.param({(4, 8): 9, (2, 16): 3}, {(2, 16): [16], (4, 8): [8]}, id="not across p"),
        pytest.param(
            {(4, 64): 100, (4, 128): 100}, {(4, 64): [64], (4, 128): [128]}, id="too much padding"
        ),
        pytest.param(  # ResNet-50
            {(4, 128): 2287, (4, 104): 17, (4, 64): 35, (4, 49): 1, (4, 9): 79, (4, 3): 1},
            {(4, 128): [3, 9, 49, 64, 104, 128]},
            id="little against the whole",
        ),
    ],
)
def test_sizes_join_a_larger_batch_where_padding_is_cheap(counts, batches):
    assert preconditioner.join_sizes(counts) == batches
