"""Streams data sets of JPEGs with tf.data: reads, shuffles, decodes and batches them.

Batches are a pure function of the step. The order is fixed before decoding, so a run that starts at
any step skips records without decoding them. All random choices are keyed by (seed, epoch, index of
the example), so there is no state to save.

The crops are those of the MLPerf submissions in JAX (v0.7, v1.0), with one exception: the bicubic
result is rounded and clipped to uint8. Theirs is cast to bfloat16 and may overshoot 0..255 because
of ringing, which `image_dtype="bfloat16"` reproduces exactly.
"""

from collections.abc import Callable, Iterator

import numpy as np

from input_pipeline import damage, formats, sharding
from input_pipeline.dataset import Options
from input_pipeline.formats import Prepared
from input_pipeline.host import Dataset, Tensor, as_written, map_in_order, n_cores, tensorflow

PREFETCHED_BATCHES = 2
EPOCHS = 2**32  # an upper bound for every run
Batch = dict[str, np.ndarray]
ASPECT_RATIO = (0.75, 1.33)  # MLPerf uses 0.75 and 1.33, not 3/4 and 4/3
MIN_OBJECT_COVERED = 0.1
CROP_ATTEMPTS = 10
EVAL_MARGIN_PIXELS = 32  # 224 of 256


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
    decode = train_image(options, seed, image_size)
    step = first_step
    stream = ordered(prepared, options, seed, shard, step * host_batch_size)
    try:
        for batch in batched(stream, decode, host_batch_size).as_numpy_iterator():
            epochs, _ = sharding.stream_positions(step, host_batch_size, shard[1] - shard[0])
            if not np.array_equal(batch["epoch"], epochs):
                raise damage.unreadable(prepared, "train")
            yield {
                "image": batch["image"],
                "label": batch["label"],
                "mask": np.ones(host_batch_size, bool),
                "flip": options.flipped & sharding.coin_flips(seed, batch["epoch"], batch["index"]),
            }
            step += 1
    except damage.reading_errors() as error:
        again = ordered(prepared, options, seed, shard, step * host_batch_size, named=True)
        suspects = again.take(host_batch_size)
        raise damage.explained(prepared, "train", suspects, decode, error) from error


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
    decode = eval_image(options, image_size)
    n_seen = 0
    try:
        examples = formats.read(prepared, split, *shard)
        for batch in batched(examples, decode, host_batch_size, partial=True).as_numpy_iterator():
            yield batch
            n_seen += len(batch["label"])
    except damage.reading_errors() as error:
        suspects = (
            formats.read(prepared, split, *shard, named=True).skip(n_seen).take(host_batch_size)
        )
        raise damage.explained(prepared, split, suspects, decode, error) from error
    if n_seen != shard[1] - shard[0]:
        raise damage.unreadable(prepared, split)


def ordered(
    prepared: Prepared,
    options: Options,
    seed: int,
    shard: tuple[int, int],
    first: int,
    named: bool = False,
) -> Dataset:
    """Returns the shard's encoded examples, epoch after epoch, starting at example `first`."""
    tf = tensorflow()
    examples = formats.read(prepared, "train", *shard, named)

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
        return shuffled.map(as_written(lambda example: {**example, "epoch": epoch}))

    n_examples = shard[1] - shard[0]
    epochs = tf.data.Dataset.range(first // n_examples, EPOCHS)
    return epochs.flat_map(as_written(one_epoch)).skip(first % n_examples)


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


def train_image(options: Options, seed: int, image_size: int) -> Callable[[dict], dict]:
    """Returns a function of an example {jpeg, label, index, epoch} that adds its training image.

    The image is [image_size, image_size, 3] in `options.image_dtype`, not yet flipped.
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
