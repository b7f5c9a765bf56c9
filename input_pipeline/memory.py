"""Small data sets: read once through tfds, kept as uint8 arrays, batches gathered from them."""

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from input_pipeline import prepared, sharding
from input_pipeline.host import tensorflow

LIMIT_BYTES = 256 * 2**20  # of decoded images, a split
ORDER, FLIP = 0, 1  # the independent random streams of an epoch


def fits(found: prepared.Prepared) -> bool:
    """Whether the images have one shape and a decoded training split stays within LIMIT_BYTES."""
    n_values = math.prod(length or 0 for length in found.image_shape)
    return 0 < found.n_examples("train") * n_values <= LIMIT_BYTES


@lru_cache(maxsize=4)
def load(
    directory: str, split: str, start: int, stop: int, image_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (uint8 [n, size, size, C]) and labels (int32 [n]) of split[start:stop]."""
    tensorflow()
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    instruction = tfds.core.ReadInstruction(split, from_=start, to=stop, unit="abs")
    examples = builder.as_dataset(split=instruction, batch_size=4096, shuffle_files=False)
    read = list(tfds.as_numpy(examples))
    images = np.concatenate([mean_pool(batch["image"], image_size) for batch in read])
    labels = np.concatenate([batch["label"] for batch in read]).astype(np.int32)
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


def mean_pool(images: np.ndarray, image_size: int) -> np.ndarray:
    """Averages uint8 [n, H, W, C] over squares to [n, image_size, image_size, C], rounded half to
    even.

    Raises ValueError unless H = W is a multiple of image_size.
    """
    n_images, height, width, n_channels = images.shape
    if height != width or height % image_size:
        raise ValueError(
            f"dataset.image_size={image_size}: must divide the images' {height}x{width}"
        )
    if image_size == height:
        return images
    factor = height // image_size
    squares = images.reshape(n_images, image_size, factor, image_size, factor, n_channels)
    return np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)


def generator(seed: int, epoch: int, stream: int, shard: tuple[int, int]) -> np.random.Generator:
    """Returns the random numbers of one purpose, one epoch and one shard."""
    return np.random.default_rng((seed, epoch, stream, *shard))


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
      shard: [start, stop) of the shard in the whole data set; names the host's random streams.
    """

    @lru_cache(maxsize=2)  # a batch straddles two epochs
    def drawn(epoch: int) -> tuple[np.ndarray, np.ndarray]:
        order = generator(seed, epoch, ORDER, shard).permutation(len(images))
        flips = generator(seed, epoch, FLIP, shard).integers(2, size=len(images), dtype=bool)
        return order, flips & flipped

    step = first_step
    while True:
        epochs, positions = sharding.stream_positions(step, host_batch_size, len(images))
        index = np.empty(host_batch_size, np.int64)
        flip = np.empty(host_batch_size, bool)
        for epoch in range(epochs[0], epochs[-1] + 1):
            order, flips = drawn(epoch)
            here = epochs == epoch
            index[here] = order[positions[here]]
            flip[here] = flips[index[here]]
        yield {
            "image": np.take(images, index, axis=0),
            "label": labels[index],
            "mask": np.ones(host_batch_size, bool),
            "flip": flip,
        }
        step += 1


def eval_batches(
    images: np.ndarray, labels: np.ndarray, *, host_batch_size: int, n_batches: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields `n_batches` host batches in file order, padded at the end (mask False)."""
    for start in range(0, n_batches * host_batch_size, host_batch_size):
        n_real = len(images[start : start + host_batch_size])
        image = np.zeros((host_batch_size, *images.shape[1:]), np.uint8)
        label = np.zeros(host_batch_size, np.int32)
        image[:n_real] = images[start : start + n_real]
        label[:n_real] = labels[start : start + n_real]
        yield {
            "image": image,
            "label": label,
            "mask": np.arange(host_batch_size) < n_real,
            "flip": np.zeros(host_batch_size, bool),
        }
