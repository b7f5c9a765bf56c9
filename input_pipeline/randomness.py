"""Random choices that depend on (seed, epoch, example) alone, never on what was drawn before."""

import numpy as np


def epoch_order(seed: int, epoch: int, shard: tuple[int, int]) -> np.ndarray:
    """Returns the order of a shard's examples in one epoch, a permutation of its positions.

    Args:
      shard: [start, stop) within the data set; other shards have other orders.
    """
    start, stop = shard
    return np.random.default_rng((seed, epoch, start, stop)).permutation(stop - start)


def coin_flips(seed: int, epochs: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Returns a fair bool for every (epoch, index of the example in the data set).

    Source: SplitMix64 (Steele, Lea and Flood, 2014), its finaliser applied twice.
    """
    base = np.random.SeedSequence((seed, 0xF119)).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is meant
        epoch_keys = _mix(base + epochs.astype(np.uint64))
        return _mix(epoch_keys + indices.astype(np.uint64)) >> np.uint64(63) == 1


def _mix(value: np.ndarray) -> np.ndarray:
    value = value * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
