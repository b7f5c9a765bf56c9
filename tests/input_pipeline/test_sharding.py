import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline import sharding


@given(st.integers(0, 60_000), st.integers(1, 48))
def test_shards_are_disjoint_and_complete(n_examples, n_hosts):
    bounds = [sharding.shard_bounds(n_examples, host, n_hosts) for host in range(n_hosts)]
    assert [bounds[0][0], bounds[-1][1]] == [0, n_examples]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert max(b - a for a, b in bounds) - min(b - a for a, b in bounds) <= 1


@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 12))
def test_batches_continue_over_epochs(n_examples, batch_size, step):
    endless = ((epoch, i) for epoch in itertools.count() for i in range(n_examples))
    expected = list(itertools.islice(endless, step * batch_size, (step + 1) * batch_size))
    epochs, positions = sharding.stream_positions(step, batch_size, n_examples)
    assert list(zip(epochs, positions, strict=True)) == expected


def test_coin_flips_are_fair_and_independent_of_neighbours_epochs_and_seeds():
    n = 20_000
    bound = 4 / np.sqrt(n)  # four standard deviations of the mean of fair +-1
    index = np.arange(n)
    flips = {
        (seed, epoch): sharding.coin_flips(seed, np.full(n, epoch), index) * 2.0 - 1
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    for one in flips.values():
        assert abs(one.mean()) < bound
        assert abs((one[1:] * one[:-1]).mean()) < bound
    for one, other in itertools.combinations(flips.values(), 2):
        assert abs((one * other).mean()) < bound


def test_shards_epochs_and_seeds_have_different_orders():
    a, b = (0, 50), (50, 100)
    orders = [
        sharding.epoch_order(seed, epoch, shard)
        for seed, epoch, shard in [(0, 0, a), (0, 1, a), (1, 0, a), (0, 0, b)]
    ]
    assert all((np.sort(order) == np.arange(50)).all() for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)
