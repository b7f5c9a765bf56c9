"""From a JPEG to the image that is fed to the model: crop, decode, resize, as TensorFlow ops.

The choices are those of the MLPerf submissions in JAX (v0.7, v1.0), but for one: the bicubic
result is rounded and clipped to uint8 (theirs is cast to bfloat16 and may overshoot 0..255 by
ringing). `image_dtype="bfloat16"` is exactly theirs.
"""

from input_pipeline.host import Tensor, tensorflow

ASPECT_RATIO = (0.75, 1.33)  # MLPerf writes 0.75 and 1.33, not 3/4 and 4/3
MIN_OBJECT_COVERED = 0.1
CROP_ATTEMPTS = 10
EVAL_MARGIN_PIXELS = 32  # 224 of 256


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
