"""Small data sets: decoded once with tfds and kept in memory as uint8 arrays."""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from input_pipeline import damage, sharding
from input_pipeline.dataset import check_averaged
from input_pipeline.formats import Prepared, is_local, shard_files
from input_pipeline.host import tensorflow


@lru_cache(maxsize=4)
def load(prepared: Prepared, split: str, image_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (uint8 [n, size, size, C]) and labels (int32 [n]) of a split, read-only.

    The first process to decode a split saves the arrays beside its files, and later ones map them
    into memory, because decoding Fashion-MNIST takes longer than training on it in a study.
    """
    key = [
        (file.name, file.stat().length, file.stat().mtime) for file in shard_files(prepared, split)
    ]
    fingerprint = hashlib.sha256(repr((key, image_size)).encode()).hexdigest()[:12]
    files = [
        prepared.directory / f".{split}-{what}-{fingerprint}.npy" for what in ("image", "label")
    ]
    if not is_local(prepared.directory):
        return _decode(prepared, split, image_size)
    with contextlib.suppress(OSError, EOFError, ValueError):  # missing, or copied in part
        return _mapped(files)
    arrays = _decode(prepared, split, image_size)
    try:
        for file, array in zip(files, arrays, strict=True):
            _save(file, array)
    except OSError:  # the directory is read-only or full
        return arrays
    return _mapped(files)


def _mapped(files: Sequence[os.PathLike]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = (np.asarray(np.load(file, mmap_mode="r")) for file in files)
    return images, labels


def _save(file: os.PathLike, array: np.ndarray) -> None:
    partial = f"{os.fspath(file)}.{os.getpid()}"
    try:
        with open(partial, "wb") as opened:
            np.save(opened, array)
        os.replace(partial, file)  # atomic, also when several processes do it
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise


def _decode(prepared: Prepared, split: str, image_size: int) -> tuple[np.ndarray, np.ndarray]:
    tensorflow()
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(prepared.directory)
    examples = builder.as_dataset(split=split, batch_size=4096, shuffle_files=False)
    try:
        read = list(tfds.as_numpy(examples))
    except damage.reading_errors() as error:
        raise damage.unreadable(prepared, split, error) from error
    images = np.concatenate([mean_pool(batch["image"], image_size) for batch in read])
    labels = np.concatenate([batch["label"] for batch in read]).astype(np.int32)
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


def mean_pool(images: np.ndarray, image_size: int) -> np.ndarray:
    """Averages uint8 [n, H, W, C] over squares to [n, image_size, image_size, C], rounded.

    Raises UserError unless H = W is a multiple of image_size.
    """
    n_images, height, width, n_channels = images.shape
    check_averaged(image_size, height, width)
    if image_size == height:
        return images
    factor = height // image_size
    squares = images.reshape(n_images, image_size, factor, image_size, factor, n_channels)
    return np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)


def train_batches(
    images: np.ndarray,
    labels: np.ndarray,
    *,
    seed: int,
    shard: tuple[int, int],
    host_batch_size: int,
    first_step: int,
    flipped: bool,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields endless host batches {image, label, mask, flip}, in a new order every epoch.

    Args:
      images: uint8 [n, H, W, C] of this host's shard.
      labels: int32 [n].
      shard: bounds [start, stop) of the shard within the data set.
    """
    order = lru_cache(maxsize=2)(  # a batch straddles two epochs
        lambda epoch: sharding.epoch_order(seed, epoch, shard)
    )
    for step in itertools.count(first_step):
        epochs, positions = sharding.stream_positions(step, host_batch_size, len(images))
        index = np.empty(host_batch_size, np.int64)
        for epoch in range(epochs[0], epochs[-1] + 1):
            in_epoch = epochs == epoch
            index[in_epoch] = order(epoch)[positions[in_epoch]]
        yield {
            "image": np.take(images, index, axis=0),
            "label": labels[index],
            "mask": np.ones(host_batch_size, bool),
            "flip": flipped & sharding.coin_flips(seed, epochs, shard[0] + index),
        }


def eval_batches(
    images: np.ndarray, labels: np.ndarray, *, host_batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields {image, label} in file order. The last batch may be shorter."""
    for start in range(0, len(images), host_batch_size):
        stop = start + host_batch_size
        yield {"image": images[start:stop], "label": labels[start:stop]}
