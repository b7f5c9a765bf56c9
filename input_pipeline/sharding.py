"""Which example is where: index arithmetic of hosts, steps and epochs."""

import numpy as np


def shard_bounds(n_examples: int, host_index: int, n_hosts: int) -> tuple[int, int]:
    """Returns [start, stop) of a host's examples; the shards are disjoint and together complete.

    (10, 0, 3) -> (0, 3), (10, 1, 3) -> (3, 6), (10, 2, 3) -> (6, 10).
    """
    return n_examples * host_index // n_hosts, n_examples * (host_index + 1) // n_hosts


def n_eval_batches(n_examples: int, host_batch_size: int, n_hosts: int) -> int:
    """Returns the number of evaluation batches of every host: what the largest shard needs."""
    largest = -(-n_examples // n_hosts)
    return -(-largest // host_batch_size)


def stream_positions(
    step: int, host_batch_size: int, n_examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the epochs and the positions within them (int64 [host_batch_size]) of one training
    batch.

    The stream is continuous: batches straddle epochs, and no example is dropped at an epoch's end.
    step 1 of 4 examples over 6: (0, 0, 1, 1), (4, 5, 0, 1).
    """
    stream = np.arange(step * host_batch_size, (step + 1) * host_batch_size, dtype=np.int64)
    return stream // n_examples, stream % n_examples
