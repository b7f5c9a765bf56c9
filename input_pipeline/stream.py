"""Sets of JPEGs: read, shuffled, decoded and batched by tf.data, as a pure function of the step.

The order is fixed before anything is decoded, so that a start at any step skips records, not
images, and every random choice is keyed by (seed, epoch, index of the example): no state to save.

The crops are those of the MLPerf submissions in JAX (v0.7, v1.0), but for one choice: the bicubic
result is rounded and clipped to uint8 (theirs is cast to bfloat16 and may overshoot 0..255 by
ringing). `image_dtype="bfloat16"` is exactly theirs.
"""

from collections.abc import Callable, Iterator

import numpy as np

from input_pipeline import damage, formats, sharding
from input_pipeline.dataset import Options
from input_pipeline.formats import Prepared
from input_pipeline.host import Dataset, Tensor, as_written, map_in_order, n_cores, tensorflow

PREFETCHED_BATCHES = 2
EPOCHS = 2**32  # more than anybody trains
Batch = dict[str, np.ndarray]
ASPECT_RATIO = (0.75, 1.33)  # MLPerf writes 0.75 and 1.33, not 3/4 and 4/3
MIN_OBJECT_COVERED = 0.1
CROP_ATTEMPTS = 10
EVAL_MARGIN_PIXELS = 32  # 224 of 256


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
                "flip": options.flipped & sharding.coin_flips(seed, batch["epoch"], batch["index"]),
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
        examples = formats.read(found, split, *shard)
        for batch in batched(examples, decode, host_batch_size, partial=True).as_numpy_iterator():
            yield batch
            n_seen += len(batch["label"])
    except damage.reading_errors() as error:
        suspects = formats.read(found, split, *shard, named=True).skip(n_seen).take(host_batch_size)
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
    examples = formats.read(found, "train", *shard, named)

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
        window = train_window(shape, key, options.crop_area_min)
        cropped = decode_window(example["jpeg"], window)
        return {
            "image": resize(cropped, image_size, options.image_dtype),
            **{key: example[key] for key in ("label", "index", "epoch")},
        }

    return decode


def eval_image(options: Options, image_size: int) -> Callable[[dict], dict]:
    """Returns {jpeg, label} -> {image, label}, image as `train_image` has it."""

    def decode(example: dict) -> dict:
        shape = tensorflow().io.extract_jpeg_shape(example["jpeg"])
        window = eval_window(shape, image_size)
        cropped = decode_window(example["jpeg"], window)
        image = resize(cropped, image_size, options.image_dtype)
        return {"image": image, "label": example["label"]}

    return decode


def train_window(shape: Tensor, seed: Tensor, crop_area_min: float) -> Tensor:
    """Draws a crop window as (y, x, height, width), int32, in pixels of the stored image.

    Args:
      shape: int32 [3] of the stored image.
      seed: int64 [2]; the window is a pure function of it and the shape.
      crop_area_min: smallest area of the window as a fraction of the image's.
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
    """Returns the central square as (y, x, height, width), int32, in pixels of the stored image.

    `shape` is int32 [3]. The side is int(224 / 256 * shorter side) for 224; offsets are rounded up.
    """
    tf = tensorflow()
    ratio = image_size / (image_size + EVAL_MARGIN_PIXELS)
    side = tf.cast(ratio * tf.cast(tf.reduce_min(shape[:2]), tf.float32), tf.int32)
    side = tf.maximum(side, 1)
    return tf.concat([(shape[:2] - side + 1) // 2, [side, side]], axis=0)


def decode_window(jpeg: Tensor, window: Tensor) -> Tensor:
    """Decodes the window alone: uint8 [height, width, 3]; grey and CMYK come out as RGB."""
    return tensorflow().io.decode_and_crop_jpeg(jpeg, window, channels=3)


def resize(image: Tensor, image_size: int, image_dtype: str) -> Tensor:
    """Resizes uint8 [h, w, 3] bicubically to [image_size, image_size, 3] in `image_dtype`, 0..255.

    uint8 is rounded, half to even, and clipped; bfloat16 is neither.
    """
    tf = tensorflow()
    # TensorFlow's kernel is a tenth faster on float32 than on uint8.
    resized = tf.raw_ops.ResizeBicubic(
        images=tf.cast(image, tf.float32)[tf.newaxis],
        size=[image_size, image_size],
        half_pixel_centers=True,
    )[0]
    if image_dtype == "bfloat16":
        return tf.cast(resized, tf.bfloat16)
    # Rounds, clips and casts in one pass over the pixels; the scale, 255 / 255, is 1.
    quantized, _, _ = tf.raw_ops.QuantizeV2(
        input=resized,
        min_range=0.0,
        max_range=255.0,
        T=tf.quint8,
        mode="SCALED",
        round_mode="HALF_TO_EVEN",
    )
    return tf.bitcast(quantized, tf.uint8)
