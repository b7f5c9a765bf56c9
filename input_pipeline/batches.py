"""Batches for training and evaluation, shaped for the local devices."""

from collections.abc import Iterator, Mapping

import numpy as np

from input_pipeline import memory, prepare, prepared, sharding, spec

Batch = dict[str, np.ndarray]


def train_batches(
    dataset: Mapping,
    *,
    seed: int,
    global_batch_size: int,
    first_step: int,
    host_index: int,
    n_hosts: int,
    n_local_devices: int,
) -> Iterator[Batch]:
    """Yields training batches without end, from batch number `first_step` on.

    Batch number s is a pure function of (dataset, seed, s, global_batch_size, host_index, n_hosts).
    The stream is continuous over data epochs (batches straddle them), and every epoch has a new
    order.

    Args:
      dataset: the fields of `spec.Options`.
      first_step: number of the first batch; completed updates so far.
      n_local_devices: devices of this host, L; all hosts have as many.

    Yields:
      image uint8 [L, b, H, W, C]; label int32 [L, b]; mask bool [L, b], all True; flip bool [L, b],
      to be mirrored on the device. b = global_batch_size / (n_hosts L).

    Raises:
      ValueError: for options and sizes that make no sense, and data that are missing or damaged.
    """
    options = spec.read_options(dataset)
    _check_host(host_index, n_hosts, n_local_devices)
    n_devices = n_hosts * n_local_devices
    if global_batch_size <= 0 or global_batch_size % n_devices:
        raise ValueError(
            f"global_batch_size={global_batch_size}: must be a positive multiple of the "
            f"{n_devices} devices; "
            f"the nearest are {max(global_batch_size // n_devices, 1) * n_devices} and "
            f"{(global_batch_size // n_devices + 1) * n_devices}"
        )
    if seed < 0 or first_step < 0:
        raise ValueError(f"seed={seed}, first_step={first_step}: must not be negative")
    found = prepare.ensure(options.name, options.data_dir)
    n_examples = found.n_examples("train")
    if n_examples < n_hosts:
        raise ValueError(
            f"n_hosts={n_hosts}: more hosts than the {n_examples} training examples; use fewer "
            f"hosts"
        )
    shard = sharding.shard_bounds(n_examples, host_index, n_hosts)
    images, labels = memory.load(str(found.directory), "train", *shard, _image_size(options, found))
    batches = memory.train_batches(
        images,
        labels,
        seed=seed,
        shard=shard,
        host_batch_size=global_batch_size // n_hosts,
        first_step=first_step,
        flipped=options.flipped,
    )
    return (_over_devices(batch, n_local_devices) for batch in batches)


def eval_batches(
    dataset: Mapping,
    *,
    device_batch_size: int,
    host_index: int,
    n_hosts: int,
    n_local_devices: int,
) -> Iterator[Batch]:
    """Yields every evaluation example exactly once over all hosts, padded; each host the same count
    of batches.

    Yields:
      As `train_batches`, with b = device_batch_size; mask False marks padding; flip all False.

    Raises:
      ValueError: as `train_batches`.
    """
    options = spec.read_options(dataset)
    _check_host(host_index, n_hosts, n_local_devices)
    if device_batch_size <= 0:
        raise ValueError(f"device_batch_size={device_batch_size}: must be at least 1")
    found = prepare.ensure(options.name, options.data_dir)
    split = spec.eval_split(found)
    n_examples = found.n_examples(split)
    host_batch_size = device_batch_size * n_local_devices
    start, stop = sharding.shard_bounds(n_examples, host_index, n_hosts)
    if stop > start:
        images, labels = memory.load(
            str(found.directory), split, start, stop, _image_size(options, found)
        )
    else:  # more hosts than examples: this one has padding only
        side = _image_size(options, found)
        images, labels = (
            np.zeros((0, side, side, found.image_shape[2]), np.uint8),
            np.zeros(0, np.int32),
        )
    batches = memory.eval_batches(
        images,
        labels,
        host_batch_size=host_batch_size,
        n_batches=sharding.n_eval_batches(n_examples, host_batch_size, n_hosts),
    )
    return (_over_devices(batch, n_local_devices) for batch in batches)


def _image_size(options: spec.Options, found: prepared.Prepared) -> int:
    return options.image_size or found.image_shape[0]


def _check_host(host_index: int, n_hosts: int, n_local_devices: int) -> None:
    if not 0 <= host_index < n_hosts or n_local_devices < 1:
        raise ValueError(
            f"host_index={host_index}, n_hosts={n_hosts}, n_local_devices={n_local_devices}: "
            "need 0 <= host_index < n_hosts and at least one device"
        )


def _over_devices(batch: Batch, n_local_devices: int) -> Batch:
    return {
        key: value.reshape(n_local_devices, -1, *value.shape[1:]) for key, value in batch.items()
    }
