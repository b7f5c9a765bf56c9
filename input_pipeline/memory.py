"""Small data sets: read once through tfds, kept as uint8 arrays, batches gathered from them."""

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
def load(found: Prepared, split: str, image_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (uint8 [n, size, size, C]) and labels (int32 [n]) of a split, read-only.

    The first process to decode a split leaves the arrays beside its files, and later ones map them
    into memory: decoding Fashion-MNIST takes longer than a short study trains.
    """
    key = [(file.name, file.stat().length, file.stat().mtime) for file in shard_files(found, split)]
    fingerprint = hashlib.sha256(repr((key, image_size)).encode()).hexdigest()[:12]
    files = [found.directory / f".{split}-{what}-{fingerprint}.npy" for what in ("image", "label")]
    if not is_local(found.directory):
        return _decode(found, split, image_size)
    with contextlib.suppress(OSError, EOFError, ValueError):  # not there, or copied in part
        return _mapped(files)
    arrays = _decode(found, split, image_size)
    try:
        for file, array in zip(files, arrays, strict=True):
            _save(file, array)
    except OSError:  # a directory that is read-only, or full, does without
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
        os.replace(partial, file)  # whole or not at all, whoever else does the same
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise


def _decode(found: Prepared, split: str, image_size: int) -> tuple[np.ndarray, np.ndarray]:
    tensorflow()
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(found.directory)
    examples = builder.as_dataset(split=split, batch_size=4096, shuffle_files=False)
    try:
        read = list(tfds.as_numpy(examples))
    except damage.reading_errors() as error:
        raise damage.unreadable(found, split, error) from error
    images = np.concatenate([mean_pool(batch["image"], image_size) for batch in read])
    labels = np.concatenate([batch["label"] for batch in read]).astype(np.int32)
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


def mean_pool(images: np.ndarray, image_size: int) -> np.ndarray:
    """Averages uint8 [n, H, W, C] over squares to [n, image_size, image_size, C], to the nearest.

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
    """Yields host batches {image, label, mask, flip} without end, a new order every epoch.

    Args:
      images: uint8 [n, H, W, C], this host's shard.
      labels: int32 [n].
      shard: [start, stop) of the shard in the whole data set.
    """
    order = lru_cache(maxsize=2)(  # a batch straddles two epochs
        lambda epoch: sharding.epoch_order(seed, epoch, shard)
    )
    for step in itertools.count(first_step):
        epochs, positions = sharding.stream_positions(step, host_batch_size, len(images))
        index = np.empty(host_batch_size, np.int64)
        for epoch in range(epochs[0], epochs[-1] + 1):
            here = epochs == epoch
            index[here] = order(epoch)[positions[here]]
        yield {
            "image": np.take(images, index, axis=0),
            "label": labels[index],
            "mask": np.ones(host_batch_size, bool),
            "flip": flipped & sharding.coin_flips(seed, epochs, shard[0] + index),
        }


def eval_batches(
    images: np.ndarray, labels: np.ndarray, *, host_batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields {image, label} in file order; the last batch is as short as it comes."""
    for start in range(0, len(images), host_batch_size):
        stop = start + host_batch_size
        yield {"image": images[start:stop], "label": labels[start:stop]}
