"""Sets of JPEGs: read, shuffled, decoded and batched by tf.data, as a pure function of the step.

The order is fixed before anything is decoded, so that a start at any step skips records, not
images, and every random choice is keyed by (seed, epoch, index of the example): no state to save.
"""

from collections.abc import Callable, Iterator

import numpy as np

from input_pipeline import damage, preprocess, randomness, records, sharding
from input_pipeline.host import Dataset, as_written, map_in_order, n_cores, tensorflow
from input_pipeline.options import Options
from input_pipeline.prepared import Prepared

PREFETCHED_BATCHES = 2
EPOCHS = 2**32  # more than anybody trains
Batch = dict[str, np.ndarray]


def train_batches(
    found: Prepared,
    options: Options,
    *,
    seed: int,
    shard: tuple[int, int],
    host_batch_size: int,
    first_step: int,
    image_size: int,
) -> Iterator[Batch]:
    """Yields host batches {image, label, mask, flip} without end, a new order every epoch.

    Raises:
      UserError: an example or a file cannot be read; the message names it.
    """
    decode = train_image(options, seed, image_size)
    step = first_step
    stream = ordered(found, options, seed, shard, step * host_batch_size)
    try:
        for batch in batched(stream, decode, host_batch_size).as_numpy_iterator():
            epochs, _ = sharding.stream_positions(step, host_batch_size, shard[1] - shard[0])
            if not np.array_equal(batch["epoch"], epochs):
                raise damage.unreadable(found, "train")
            yield {
                "image": batch["image"],
                "label": batch["label"],
                "mask": np.ones(host_batch_size, bool),
                "flip": options.flipped
                & randomness.coin_flips(seed, batch["epoch"], batch["index"]),
            }
            step += 1
    except damage.reading_errors() as error:
        again = ordered(found, options, seed, shard, step * host_batch_size, named=True)
        suspects = again.take(host_batch_size)
        raise damage.explained(found, "train", suspects, decode, error) from error


def eval_batches(
    found: Prepared,
    options: Options,
    *,
    split: str,
    shard: tuple[int, int],
    host_batch_size: int,
    image_size: int,
) -> Iterator[Batch]:
    """Yields the shard's {image, label} in order; the last batch is as short as it comes.

    Raises:
      UserError: an example or a file cannot be read; the message names it.
    """
    decode = eval_image(options, image_size)
    n_seen = 0
    try:
        examples = records.read(found, split, *shard)
        for batch in batched(examples, decode, host_batch_size, partial=True).as_numpy_iterator():
            yield batch
            n_seen += len(batch["label"])
    except damage.reading_errors() as error:
        suspects = records.read(found, split, *shard, named=True).skip(n_seen).take(host_batch_size)
        raise damage.explained(found, split, suspects, decode, error) from error
    if n_seen != shard[1] - shard[0]:
        raise damage.unreadable(found, split)


def ordered(
    found: Prepared,
    options: Options,
    seed: int,
    shard: tuple[int, int],
    first: int,
    named: bool = False,
) -> Dataset:
    """Returns the shard's examples, epoch after epoch, from number `first` of the stream on."""
    tf = tensorflow()
    examples = records.read(found, "train", *shard, named)

    def one_epoch(epoch):
        # tf.data keeps a seed's remainder by 2**31 - 1 alone, so (seed, epoch) must be mixed.
        order = tf.random.stateless_uniform(
            [], tf.stack([tf.constant(seed, tf.int64), epoch]), 0, 2**31 - 1, tf.int64, "philox"
        )
        shuffled = examples.shuffle(
            min(options.shuffle_buffer_examples, shard[1] - shard[0]),  # it is allocated at once
            seed=order,
            reshuffle_each_iteration=False,
        )
        return shuffled.map(as_written(lambda example: {**example, "epoch": epoch}))

    n_examples = shard[1] - shard[0]
    epochs = tf.data.Dataset.range(first // n_examples, EPOCHS)
    return epochs.flat_map(as_written(one_epoch)).skip(first % n_examples)


def batched(
    examples: Dataset, decode: Callable[[dict], dict], host_batch_size: int, partial: bool = False
) -> Dataset:
    """Decodes in order, on all cores of this process; a last batch that is short if `partial`."""
    tf = tensorflow()
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = n_cores()
    return (
        map_in_order(examples, decode)
        .batch(host_batch_size, drop_remainder=not partial)
        .prefetch(PREFETCHED_BATCHES)
        .with_options(options)
    )


def train_image(options: Options, seed: int, image_size: int) -> Callable[[dict], dict]:
    """Returns {jpeg, label, index, epoch} -> the same with `image`.

    image is [image_size, image_size, 3] of `options.image_dtype`, not yet flipped.
    """

    def decode(example: dict) -> dict:
        tf = tensorflow()
        key = tf.stack([tf.constant(seed, tf.int64), example["epoch"] * EPOCHS + example["index"]])
        shape = tf.io.extract_jpeg_shape(example["jpeg"])
        window = preprocess.train_window(shape, key, options.crop_area_min)
        cropped = preprocess.decode_window(example["jpeg"], window)
        return {
            "image": preprocess.resize(cropped, image_size, options.image_dtype),
            **{key: example[key] for key in ("label", "index", "epoch")},
        }

    return decode


def eval_image(options: Options, image_size: int) -> Callable[[dict], dict]:
    """Returns {jpeg, label} -> {image, label}, image as `train_image` has it."""

    def decode(example: dict) -> dict:
        shape = tensorflow().io.extract_jpeg_shape(example["jpeg"])
        window = preprocess.eval_window(shape, image_size)
        cropped = preprocess.decode_window(example["jpeg"], window)
        image = preprocess.resize(cropped, image_size, options.image_dtype)
        return {"image": image, "label": example["label"]}

    return decode
