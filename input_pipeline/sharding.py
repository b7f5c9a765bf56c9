"""Index arithmetic of hosts, steps and epochs, and stateless random choices.

The random choices are functions of (seed, epoch, example) alone.
"""

import numpy as np


def shard_bounds(n_examples: int, host_index: int, n_hosts: int) -> tuple[int, int]:
    """Returns the bounds [start, stop) of a host's examples. The shards partition the data set.

    (10, 0, 3) -> (0, 3), (10, 1, 3) -> (3, 6), (10, 2, 3) -> (6, 10).
    """
    return n_examples * host_index // n_hosts, n_examples * (host_index + 1) // n_hosts


def n_eval_batches(n_examples: int, host_batch_size: int, n_hosts: int) -> int:
    """Returns the number of evaluation batches per host, which the largest shard determines."""
    largest = -(-n_examples // n_hosts)
    return -(-largest // host_batch_size)


def stream_positions(
    step: int, host_batch_size: int, n_examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns epoch and position of each example in a training batch, int64 [host_batch_size].

    Batches may straddle two epochs, so no example is dropped. With 4 of 6 examples per batch,
    step 1 gives (0, 0, 1, 1), (4, 5, 0, 1).
    """
    stream = np.arange(step * host_batch_size, (step + 1) * host_batch_size, dtype=np.int64)
    return stream // n_examples, stream % n_examples


def epoch_order(seed: int, epoch: int, shard: tuple[int, int]) -> np.ndarray:
    """Returns the order of a shard's examples in one epoch: a permutation of their positions.

    Args:
      shard: bounds [start, stop) within the data set. Different shards have different orders.
    """
    start, stop = shard
    return np.random.default_rng((seed, epoch, start, stop)).permutation(stop - start)


def coin_flips(seed: int, epochs: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Returns a fair random bool for each (epoch, index of an example in the data set).

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), applied twice.
    """
    base = np.random.SeedSequence((seed, 0xF119)).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is intended
        epoch_keys = _mix(base + epochs.astype(np.uint64))
        return _mix(epoch_keys + indices.astype(np.uint64)) >> np.uint64(63) == 1


def _mix(value: np.ndarray) -> np.ndarray:
    value = value * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
