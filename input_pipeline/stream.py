"""Sets of JPEGs: read, shuffled, decoded and batched by tf.data, as a pure function of the step.

The order is fixed before anything is decoded, so that a start at any step skips records, not
images, and every random choice is keyed by (seed, epoch, index of the example): no state to save.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from absl import logging

from errors import UserError
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
    errors = damage.reading_errors()
    decode = train_image(options, seed, image_size)

    def decode_alone(example: dict) -> dict:
        return decode(decoded(example) if options.cache == "decoded" else example)

    bad: list[damage.BadExample] = []
    step = first_step
    while True:
        stream = ordered(found, options, seed, shard, step * host_batch_size, bad)
        try:
            for batch in batched(stream, decode, host_batch_size).as_numpy_iterator():
                epochs, _ = sharding.stream_positions(step, host_batch_size, shard[1] - shard[0])
                if not np.array_equal(batch["epoch"], epochs):
                    raise damage.unreadable(found, "train")
                batch = _without(bad, batch, decode_alone)
                yield {
                    "image": batch["image"],
                    "label": batch["label"],
                    "mask": np.ones(host_batch_size, bool),
                    "flip": options.flipped
                    & randomness.coin_flips(seed, batch["epoch"], batch["index"]),
                }
                step += 1
        except errors as error:
            # Once more, example by example, to learn which it is.
            if options.cache == "decoded":  # decoded ahead of its turn: any of the shard
                encoded = _blanked(records.read(found, "train", *shard, named=True), bad)
                suspects = encoded.map(as_written(_in_epoch(np.int64(0))))
            else:
                first = step * host_batch_size
                again = ordered(found, options, seed, shard, first, bad, named=True)
                suspects = again.take(host_batch_size)
            new = damage.undecodable(suspects, decode_alone)
            if not new:
                raise damage.unreadable(found, "train", error) from error
            if options.on_corrupt == "fail":
                raise damage.corrupt(found, new) from error
            bad += new
            logging.warning("%d corrupt examples left out: %s", len(bad), damage.listed(new))


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
      UserError: an example or a file cannot be read, whatever `on_corrupt` says.
    """
    errors = damage.reading_errors()
    n_seen = 0
    try:
        batches = _eval_dataset(found, options, split, shard, host_batch_size, image_size)
        for batch in batches.as_numpy_iterator():
            yield batch
            n_seen += len(batch["label"])
    except errors as error:
        suspects = records.read(found, split, *shard, named=True).skip(n_seen).take(host_batch_size)
        bad = damage.undecodable(suspects, eval_image(options, image_size))
        raise (
            damage.corrupt(found, bad) if bad else damage.unreadable(found, split, error)
        ) from error
    if n_seen != shard[1] - shard[0]:
        raise damage.unreadable(found, split)


@lru_cache(maxsize=2)
def _eval_dataset(
    found: Prepared,
    options: Options,
    split: str,
    shard: tuple[int, int],
    host_batch_size: int,
    image_size: int,
) -> Dataset:
    """Kept between evaluations, so that a cache, if the options ask for one, is filled once."""
    examples = records.read(found, split, *shard)
    batches = batched(examples, eval_image(options, image_size), host_batch_size, partial=True)
    return batches if options.cache == "none" else batches.cache()


def ordered(
    found: Prepared,
    options: Options,
    seed: int,
    shard: tuple[int, int],
    first: int,
    bad: list[damage.BadExample],
    named: bool = False,
) -> Dataset:
    """Returns the shard's examples, epoch after epoch, from number `first` of the stream on."""
    tf = tensorflow()
    examples = _blanked(records.read(found, "train", *shard, named), bad)
    if options.cache == "decoded":
        examples = map_in_order(examples, decoded)
    if options.cache != "none":
        examples = examples.cache()  # filled in the first epoch, shared by all

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
        return shuffled.map(as_written(_in_epoch(epoch)))

    n_examples = shard[1] - shard[0]
    epochs = tf.data.Dataset.range(first // n_examples, EPOCHS)
    return epochs.flat_map(as_written(one_epoch)).skip(first % n_examples)


def _in_epoch(epoch) -> Callable[[dict], dict]:
    return lambda example: {**example, "epoch": epoch}


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


def decoded(example: dict) -> dict:
    """Replaces the JPEG by its whole image."""
    example = dict(example)
    example["decoded"] = tensorflow().io.decode_jpeg(example.pop("jpeg"), channels=3)
    return example


def train_image(options: Options, seed: int, image_size: int) -> Callable[[dict], dict]:
    """Returns {jpeg or decoded uint8 [H, W, 3], label, index, epoch} -> the same with `image`.

    image is [image_size, image_size, 3] of `options.image_dtype`, not yet flipped.
    """

    def decode(example: dict) -> dict:
        tf = tensorflow()
        key = tf.stack([tf.constant(seed, tf.int64), example["epoch"] * EPOCHS + example["index"]])
        if "decoded" in example:
            shape = tf.shape(example["decoded"])
            window = preprocess.train_window(shape, key, options.crop_area_min)
            cropped = preprocess.cut_window(example["decoded"], window)
        else:
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


def _blanked(examples: Dataset, bad: list[damage.BadExample]) -> Dataset:
    """Puts a black image in the place of bad ones, which keeps every position of the stream."""
    if not bad:
        return examples
    tf = tensorflow()
    indices = tf.constant([example.index for example in bad], tf.int64)
    blank = tf.io.encode_jpeg(tf.zeros([8, 8, 3], tf.uint8))

    def replace(example: dict) -> dict:
        is_bad = tf.reduce_any(example["index"] == indices)
        return {**example, "jpeg": tf.where(is_bad, blank, example["jpeg"])}

    return examples.map(as_written(replace))


def _without(bad: list[damage.BadExample], batch: Batch, decode: Callable[[dict], dict]) -> Batch:
    """Gives the place of a bad example to the nearest good one before it, else to the last.

    An image that is cut short fails only where its crop reaches the missing part. So each use is
    tried, whatever earlier ones gave: else a batch would depend on where the run was started.
    """
    known = {example.index: example.jpeg for example in bad}
    suspects = np.flatnonzero(np.isin(batch["index"], list(known)))
    if not len(suspects):
        return batch
    is_bad = np.zeros(len(batch["index"]), bool)
    batch["image"] = batch["image"].copy()
    for i in suspects:
        example = {key: batch[key][i] for key in ("label", "index", "epoch")}
        try:
            image = decode(example | {"jpeg": known[int(example["index"])]})["image"]
            batch["image"][i] = image
        except tensorflow().errors.InvalidArgumentError:
            is_bad[i] = True
    if is_bad.all():
        raise UserError(f"dataset.on_corrupt=skip: a whole batch is corrupt: {damage.listed(bad)}")
    good = np.flatnonzero(~is_bad)
    source = good[np.searchsorted(good, np.arange(len(is_bad)), side="right") - 1]
    return {key: value[source] for key, value in batch.items()}
