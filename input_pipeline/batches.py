"""Batches for training and evaluation, shaped for the local devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from errors import UserError
from input_pipeline import dataset as datasets
from input_pipeline import memory, prepare, sharding, stream
from input_pipeline.dataset import Options, read_options
from input_pipeline.formats import Prepared

Batch = dict[str, np.ndarray]
SEEDS = 2**31


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
    """Yields an endless sequence of training batches that starts at batch `first_step`.

    Batch s is a pure function of (dataset, seed, s, global_batch_size, host_index, n_hosts).
    Batches may straddle the boundary of two data epochs. Each epoch has a new order.

    Args:
      dataset: fields of `Options`.
      seed: 0 ... 2**31 - 1.
      first_step: number of completed updates.
      n_local_devices: number L of devices on this host, equal on all hosts.

    Yields:
      Dictionaries with `image` [L, b, H, W, C] in `image_dtype`, `label` int32 [L, b], `mask` bool
      [L, b] (all True) and `flip` bool [L, b], which says what the device must mirror.
      b = global_batch_size / (n_hosts L).

    Raises:
      UserError: an option or a size is invalid, or data are missing or damaged.
    """
    options = read_options(dataset)
    _check_host(host_index, n_hosts, n_local_devices)
    n_devices = n_hosts * n_local_devices
    if global_batch_size <= 0 or global_batch_size % n_devices:
        above = (global_batch_size // n_devices + 1) * n_devices
        raise UserError(
            f"global_batch_size={global_batch_size}: must be a positive multiple of the "
            f"{n_devices} devices; the nearest are {max(above - n_devices, n_devices)} and {above}"
        )
    if not (0 <= seed < SEEDS and first_step >= 0):
        raise UserError(
            f"seed={seed}, first_step={first_step}: need 0 <= seed < 2**31 and first_step >= 0"
        )
    prepared = prepare.ensure(options.name, options.data_dir)
    n_examples = prepared.n_examples("train")
    if n_examples < n_hosts:
        raise UserError(
            f"n_hosts={n_hosts}: more than the {n_examples} training examples; use fewer hosts"
        )
    shard = sharding.shard_bounds(n_examples, host_index, n_hosts)
    host_batch_size = global_batch_size // n_hosts
    image_size = _image_size(options, prepared)
    if datasets.fits_in_memory(prepared):
        images, labels = memory.load(prepared, "train", image_size)
        batches = memory.train_batches(
            images[slice(*shard)],
            labels[slice(*shard)],
            seed=seed,
            shard=shard,
            host_batch_size=host_batch_size,
            first_step=first_step,
            flipped=options.flipped,
        )
    else:
        stream.check_cache_limit(prepared, options, image_size, host_index, n_hosts)
        batches = stream.train_batches(
            prepared,
            options,
            seed=seed,
            shard=shard,
            host_batch_size=host_batch_size,
            first_step=first_step,
            image_size=image_size,
        )
    return (_over_devices(_checked(batch, prepared), n_local_devices) for batch in batches)


def eval_batches(
    dataset: Mapping,
    *,
    device_batch_size: int,
    host_index: int,
    n_hosts: int,
    n_local_devices: int,
) -> Iterable[Batch]:
    """Returns batches that contain every evaluation example exactly once over all hosts.

    The data set is opened and checked once, here, because evaluations are timed.

    Returns:
      An iterable that starts anew at each iteration, with the same number of batches on every host.
      The batches are like those of `train_batches`, with b = device_batch_size. `mask` is False for
      padding, and `flip` is False everywhere.

    Raises:
      UserError: see `train_batches`.
    """
    options = read_options(dataset)
    _check_host(host_index, n_hosts, n_local_devices)
    if device_batch_size <= 0:
        raise UserError(f"device_batch_size={device_batch_size}: must be at least 1")
    prepared = prepare.ensure(options.name, options.data_dir)
    split = datasets.eval_split(prepared)
    n_examples = prepared.n_examples(split)
    shard = sharding.shard_bounds(n_examples, host_index, n_hosts)
    host_batch_size = device_batch_size * n_local_devices
    n_batches = sharding.n_eval_batches(n_examples, host_batch_size, n_hosts)
    image_size = _image_size(options, prepared)
    empty = np.zeros((0, image_size, image_size, 3), options.numpy_image_dtype)
    begin: Callable[[], Iterator[Batch]] = partial(iter, ())
    if datasets.fits_in_memory(prepared):
        images, labels = (
            array[slice(*shard)] for array in memory.load(prepared, split, image_size)
        )
        empty = images[:0]
        begin = partial(memory.eval_batches, images, labels, host_batch_size=host_batch_size)
    elif shard[0] < shard[1]:  # with more hosts than examples, some hosts have only padding
        begin = partial(
            stream.eval_batches,
            prepared,
            options,
            split=split,
            shard=shard,
            host_batch_size=host_batch_size,
            image_size=image_size,
        )

    def batches() -> Iterator[Batch]:
        for batch in _padded(begin(), n_batches, host_batch_size, empty):
            yield _over_devices(_checked(batch, prepared), n_local_devices)

    return Again(batches)


@dataclass(frozen=True)
class Again:
    """An iterable that starts from the beginning at each iteration."""

    begin: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.begin()


def _padded(
    batches: Iterator[Batch], n_batches: int, host_batch_size: int, empty: np.ndarray
) -> Iterator[Batch]:
    """Pads the last batch and adds batches of padding up to `n_batches`.

    `empty` is an array of zero images with the shape and dtype of the others.
    """
    for _ in range(n_batches):
        batch = next(batches, {"image": empty, "label": np.zeros(0, np.int32)})
        n_real = len(batch["label"])
        missing = host_batch_size - n_real
        image = batch["image"]
        yield {
            "image": np.pad(image, ((0, missing), (0, 0), (0, 0), (0, 0))) if missing else image,
            "label": np.pad(batch["label"], (0, missing)),
            "mask": np.arange(host_batch_size) < n_real,
            "flip": np.zeros(host_batch_size, bool),
        }
    assert next(batches, None) is None, "the shard has more evaluation batches than expected"


def _image_size(options: Options, prepared: Prepared) -> int:
    return options.image_size or prepared.image_shape[0] or datasets.DEFAULT_IMAGE_SIZE


def _check_host(host_index: int, n_hosts: int, n_local_devices: int) -> None:
    if not 0 <= host_index < n_hosts or n_local_devices < 1:
        raise UserError(
            f"host_index={host_index}, n_hosts={n_hosts}, n_local_devices={n_local_devices}: "
            "need 0 <= host_index < n_hosts and at least one device"
        )


def _checked(batch: Batch, prepared: Prepared) -> Batch:
    """Returns the batch, or raises UserError for a label out of range.

    Such a label would silently count as another class or as none.
    """
    wrong = (batch["label"] < 0) | (batch["label"] >= prepared.n_classes)
    if wrong.any():
        counted_from = 1 if prepared.is_mlperf else 0
        raise UserError(
            f"dataset.data_dir={prepared.directory}: contains the label "
            f"{batch['label'][wrong][0] + counted_from}, not one of {counted_from} to "
            f"{prepared.n_classes - 1 + counted_from}; prepare the data set again or choose another"
        )
    return batch


def _over_devices(batch: Batch, n_local_devices: int) -> Batch:
    return {
        key: value.reshape(n_local_devices, -1, *value.shape[1:]) for key, value in batch.items()
    }
