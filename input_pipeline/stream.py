"""Streams data sets of JPEGs with tf.data: reads, shuffles, decodes and batches them.

Batches are a pure function of the step. The order is fixed before decoding, so a run that starts at
any step skips records without decoding them. All random choices are keyed by (seed, epoch, index of
the example), so there is no state to save.

The crops are those of the MLPerf submissions in JAX (v0.7, v1.0), with one exception: the bicubic
result is rounded and clipped to uint8. Theirs is cast to bfloat16 and may overshoot 0..255 because
of ringing, which `image_dtype="bfloat16"` reproduces exactly.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from absl import logging

from errors import UserError
from input_pipeline import damage, dataset, formats, sharding
from input_pipeline.damage import BadExample
from input_pipeline.dataset import GIB, Options
from input_pipeline.formats import Prepared
from input_pipeline.host import Dataset, Tensor, as_written, map_in_order, n_cores, tensorflow

PREFETCHED_BATCHES = 2
EPOCHS = 2**32  # an upper bound for every run
Batch = dict[str, np.ndarray]
ASPECT_RATIO = (0.75, 1.33)  # MLPerf uses 0.75 and 1.33, not 3/4 and 4/3
MIN_OBJECT_COVERED = 0.1
CROP_ATTEMPTS = 10
EVAL_MARGIN_PIXELS = 32  # 224 of 256
HEADERS_SAMPLED = 64  # JPEG headers that are read to estimate the size of decoded images


def train_batches(
    prepared: Prepared,
    options: Options,
    *,
    seed: int,
    shard: tuple[int, int],
    host_batch_size: int,
    first_step: int,
    image_size: int,
) -> Iterator[Batch]:
    """Yields endless host batches {image, label, mask, flip}, in a new order every epoch.

    Raises:
      UserError: an example or a file cannot be read; the message names it.
    """
    errors = damage.reading_errors()
    decode = train_image(options, seed, image_size)

    def decode_alone(example: dict) -> dict:
        return decode(decoded(example) if options.cache == "decoded" else example)

    bad: list[BadExample] = []
    step = first_step
    while True:
        stream = ordered(prepared, options, seed, shard, step * host_batch_size, bad)
        try:
            for batch in batched(stream, decode, host_batch_size).as_numpy_iterator():
                epochs, _ = sharding.stream_positions(step, host_batch_size, shard[1] - shard[0])
                if not np.array_equal(batch["epoch"], epochs):
                    raise damage.unreadable(prepared, "train")
                batch = _without(bad, batch, decode_alone)
                flips = sharding.coin_flips(seed, batch["epoch"], batch["index"])
                yield {
                    "image": batch["image"],
                    "label": batch["label"],
                    "mask": np.ones(host_batch_size, bool),
                    "flip": options.flipped & flips,
                }
                step += 1
        except errors as error:
            # Read the batch again, example by example, to find which one is bad.
            if options.cache == "decoded":  # decoded in advance, so it may be any of the shard
                encoded = _blanked(formats.read(prepared, "train", *shard, named=True), bad)
                suspects = encoded.map(as_written(_in_epoch(np.int64(0))))
            else:
                first = step * host_batch_size
                again = ordered(prepared, options, seed, shard, first, bad, named=True)
                suspects = again.take(host_batch_size)
            new = damage.undecodable(suspects, decode_alone)
            if options.on_corrupt == "fail" or not new:
                raise damage.explained(prepared, "train", new, error) from error
            bad += new
            logging.warning("%d corrupt examples are skipped: %s", len(bad), damage.listed(new))


def eval_batches(
    prepared: Prepared,
    options: Options,
    *,
    split: str,
    shard: tuple[int, int],
    host_batch_size: int,
    image_size: int,
) -> Iterator[Batch]:
    """Yields the shard's {image, label} in order. The last batch may be shorter.

    Raises:
      UserError: an example or a file cannot be read; the message names it.
    """
    n_seen = 0
    try:
        batches = _eval_dataset(prepared, options, split, shard, host_batch_size, image_size)
        for batch in batches.as_numpy_iterator():
            yield batch
            n_seen += len(batch["label"])
    except damage.reading_errors() as error:
        examples = formats.read(prepared, split, *shard, named=True)
        suspects = examples.skip(n_seen).take(host_batch_size)
        bad = damage.undecodable(suspects, eval_image(options, image_size))
        raise damage.explained(prepared, split, bad, error) from error
    if n_seen != shard[1] - shard[0]:
        raise damage.unreadable(prepared, split)


@lru_cache(maxsize=2)
def _eval_dataset(
    prepared: Prepared,
    options: Options,
    split: str,
    shard: tuple[int, int],
    host_batch_size: int,
    image_size: int,
) -> Dataset:
    """Returns the same data set to all evaluations, so that a cache is filled only once."""
    examples = formats.read(prepared, split, *shard)
    decode = eval_image(options, image_size)
    batches = batched(examples, decode, host_batch_size, partial=True)
    return batches if options.cache == "none" else batches.cache()


def ordered(
    prepared: Prepared,
    options: Options,
    seed: int,
    shard: tuple[int, int],
    first: int,
    bad: Sequence[BadExample] = (),
    named: bool = False,
) -> Dataset:
    """Returns the shard's examples, epoch after epoch, starting at example `first`.

    They are encoded, unless `options.cache` is "decoded". `bad` examples have a black image.
    """
    tf = tensorflow()
    examples = _blanked(formats.read(prepared, "train", *shard, named), bad)
    if options.cache == "decoded":
        examples = map_in_order(examples, decoded)
    if options.cache != "none":
        examples = examples.cache()  # filled in the first epoch, used by all

    def one_epoch(epoch):
        # tf.data reduces seeds modulo 2**31 - 1, so (seed, epoch) must be mixed.
        order = tf.random.stateless_uniform(
            [], tf.stack([tf.constant(seed, tf.int64), epoch]), 0, 2**31 - 1, tf.int64, "philox"
        )
        shuffled = examples.shuffle(
            min(options.shuffle_buffer_examples, shard[1] - shard[0]),  # allocated in full
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
    """Decodes and batches in order, on all cores. Keeps a short last batch if `partial`."""
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
    """Replaces the JPEG of an example by its decoded image."""
    example = dict(example)
    example["decoded"] = tensorflow().io.decode_jpeg(example.pop("jpeg"), channels=3)
    return example


def train_image(options: Options, seed: int, image_size: int) -> Callable[[dict], dict]:
    """Returns a function of {jpeg or decoded uint8 [H, W, 3], label, index, epoch} that adds image.

    The image is [image_size, image_size, 3] in `options.image_dtype`, not yet flipped.
    """

    def decode(example: dict) -> dict:
        tf = tensorflow()
        key = tf.stack([tf.constant(seed, tf.int64), example["epoch"] * EPOCHS + example["index"]])
        if "decoded" in example:
            window = train_window(tf.shape(example["decoded"]), key, options.crop_area_min)
            cropped = cut_window(example["decoded"], window)
        else:
            shape = tf.io.extract_jpeg_shape(example["jpeg"])
            window = train_window(shape, key, options.crop_area_min)
            cropped = decode_window(example["jpeg"], window)
        return {
            "image": resize(cropped, image_size, options.image_dtype),
            **{key: example[key] for key in ("label", "index", "epoch")},
        }

    return decode


def eval_image(options: Options, image_size: int) -> Callable[[dict], dict]:
    """Returns a function {jpeg, label} -> {image, label}, with images as from `train_image`."""

    def decode(example: dict) -> dict:
        shape = tensorflow().io.extract_jpeg_shape(example["jpeg"])
        window = eval_window(shape, image_size)
        cropped = decode_window(example["jpeg"], window)
        image = resize(cropped, image_size, options.image_dtype)
        return {"image": image, "label": example["label"]}

    return decode


def train_window(shape: Tensor, seed: Tensor, crop_area_min: float) -> Tensor:
    """Draws a crop window (y, x, height, width), int32, in pixels of the stored image.

    Args:
      shape: int32 [3] of the stored image.
      seed: int64 [2]. The window is a pure function of the seed and the shape.
      crop_area_min: smallest area of the window, as a fraction of the image.
    """
    tf = tensorflow()
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros([1, 0, 4]),  # no boxes: the whole image is the object
        seed=seed,
        min_object_covered=MIN_OBJECT_COVERED,
        aspect_ratio_range=ASPECT_RATIO,
        area_range=(crop_area_min, 1.0),
        max_attempts=CROP_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def eval_window(shape: Tensor, image_size: int) -> Tensor:
    """Returns the central square (y, x, height, width), int32, in pixels of the stored image.

    `shape` is int32 [3]. For image_size 224, the side is int(224 / 256 * shorter side). Offsets are
    rounded up.
    """
    tf = tensorflow()
    ratio = image_size / (image_size + EVAL_MARGIN_PIXELS)
    side = tf.cast(ratio * tf.cast(tf.reduce_min(shape[:2]), tf.float32), tf.int32)
    side = tf.maximum(side, 1)
    return tf.concat([(shape[:2] - side + 1) // 2, [side, side]], axis=0)


def decode_window(jpeg: Tensor, window: Tensor) -> Tensor:
    """Decodes only the window, as uint8 [height, width, 3]. Converts grey and CMYK to RGB."""
    return tensorflow().io.decode_and_crop_jpeg(jpeg, window, channels=3)


def cut_window(image: Tensor, window: Tensor) -> Tensor:
    """Cuts the window out of a decoded image, uint8 [H, W, 3]."""
    return tensorflow().slice(image, [window[0], window[1], 0], [window[2], window[3], 3])


def resize(image: Tensor, image_size: int, image_dtype: str) -> Tensor:
    """Resizes uint8 [h, w, 3] bicubically to [image_size, image_size, 3] in `image_dtype`, 0..255.

    uint8 is rounded half to even and clipped. bfloat16 is neither rounded to integers nor
    clipped.
    """
    tf = tensorflow()
    # TensorFlow's kernel is 10 % faster on float32 than on uint8.
    resized = tf.raw_ops.ResizeBicubic(
        images=tf.cast(image, tf.float32)[tf.newaxis],
        size=[image_size, image_size],
        half_pixel_centers=True,
    )[0]
    if image_dtype == "bfloat16":
        return tf.cast(resized, tf.bfloat16)
    # Rounds, clips and casts in one pass over the pixels. The scale 255 / 255 is 1.
    quantized, _, _ = tf.raw_ops.QuantizeV2(
        input=resized,
        min_range=0.0,
        max_range=255.0,
        T=tf.quint8,
        mode="SCALED",
        round_mode="HALF_TO_EVEN",
    )
    return tf.bitcast(quantized, tf.uint8)


def _blanked(examples: Dataset, bad: Sequence[BadExample]) -> Dataset:
    """Replaces bad images by black ones, so that all examples keep their position."""
    if not bad:
        return examples
    tf = tensorflow()
    indices = tf.constant([example.index for example in bad], tf.int64)
    blank = tf.io.encode_jpeg(tf.zeros([8, 8, 3], tf.uint8))

    def replace(example: dict) -> dict:
        is_bad = tf.reduce_any(example["index"] == indices)
        return {**example, "jpeg": tf.where(is_bad, blank, example["jpeg"])}

    return examples.map(as_written(replace))


def _without(bad: Sequence[BadExample], batch: Batch, decode: Callable[[dict], dict]) -> Batch:
    """Replaces each bad example by the nearest good one before it, or else the last one.

    A truncated image fails only if its crop reaches the missing part. Each use is therefore tried,
    whatever the result of earlier ones; otherwise a batch would depend on where the run started.
    """
    jpegs = {example.index: example.jpeg for example in bad}
    suspects = np.flatnonzero(np.isin(batch["index"], list(jpegs)))
    if not len(suspects):
        return batch
    is_bad = np.zeros(len(batch["index"]), bool)
    batch["image"] = batch["image"].copy()
    for i in suspects:
        example = {key: batch[key][i] for key in ("label", "index", "epoch")}
        try:
            image = decode(example | {"jpeg": jpegs[int(example["index"])]})["image"]
            batch["image"][i] = image
        except tensorflow().errors.InvalidArgumentError:
            is_bad[i] = True
    if is_bad.all():
        raise UserError(
            f"dataset.on_corrupt=skip: a whole batch is corrupt ({damage.listed(bad)}); prepare "
            "the data set again"
        )
    good = np.flatnonzero(~is_bad)
    source = good[np.searchsorted(good, np.arange(len(is_bad)), side="right") - 1]
    return {key: value[source] for key, value in batch.items()}


def check_cache_limit(
    prepared: Prepared, options: Options, image_size: int, host_index: int, n_hosts: int
) -> None:
    """Raises UserError if the cache of this host would exceed `options.cache_limit_gib`."""
    if options.cache == "none":
        return
    n_eval = -(-prepared.n_examples(dataset.eval_split(prepared)) // n_hosts)
    shard = sharding.shard_bounds(prepared.n_examples("train"), host_index, n_hosts)
    eval_bytes = n_eval * 3 * image_size**2 * options.numpy_image_dtype.itemsize
    needed_gib = (_train_bytes(prepared, options.cache, shard) + eval_bytes) / GIB
    if needed_gib > options.cache_limit_gib:
        raise UserError(
            f"dataset.cache={options.cache}: needs {needed_gib:.3g} GiB on this host, more than "
            f"dataset.cache_limit_gib={options.cache_limit_gib:g}; raise it, use more hosts, or "
            "cache less (jpeg, none)"
        )


def _train_bytes(prepared: Prepared, cache: str, shard: tuple[int, int]) -> float:
    """Estimates the bytes of a shard's JPEGs, or of its decoded images from a sample of headers."""
    n_examples = shard[1] - shard[0]
    if cache == "jpeg":
        n_bytes = sum(file.stat().length for file in formats.shard_files(prepared, "train"))
        return n_bytes * n_examples / prepared.n_examples("train")
    tf = tensorflow()
    areas = []
    for example in itertools.islice(formats.read(prepared, "train", *shard), HEADERS_SAMPLED):
        try:
            height, width, _ = tf.io.extract_jpeg_shape(example["jpeg"]).numpy()
        except tf.errors.InvalidArgumentError:
            continue  # `train_batches` names it
        areas.append(int(height) * int(width))
    return 3 * n_examples * sum(areas) / max(len(areas), 1)
