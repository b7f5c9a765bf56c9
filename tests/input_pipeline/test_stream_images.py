import io

import miniature
import numpy as np
import pytest
from PIL import Image

from input_pipeline import stream
from input_pipeline.host import tensorflow


def keys_cubic(x):
    """The cubic convolution kernel with a = -1/2 (Keys, 1981)."""
    x = np.abs(x)
    near = 1.5 * x**3 - 2.5 * x**2 + 1
    far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def bicubic(image, size):
    """Bicubic resize in float64: half-pixel centres, no antialiasing, no taps outside the image."""

    def weights(length):
        centre = (np.arange(size) + 0.5) * length / size - 0.5
        taps = keys_cubic(centre[:, None] - np.arange(length)[None])
        return taps / taps.sum(1, keepdims=True)

    rows, columns = weights(image.shape[0]), weights(image.shape[1])
    return np.einsum("iy,jx,yxc->ijc", rows, columns, image.astype(np.float64))


@pytest.mark.parametrize("shape", [(57, 80, 3), (20, 9, 3), (3, 200, 3), (1, 1, 3)])
def test_resize_is_keys_bicubic_rounded_and_clipped(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    exact = bicubic(image, 32)
    resized = stream.resize(tensorflow().constant(image), 32, "uint8").numpy()
    assert resized.dtype == np.uint8
    # TensorFlow tabulates the kernel at 1/1024, which costs up to 0.2 grey levels on noise
    assert np.abs(resized - np.clip(exact, 0, 255)).max() < 0.5 + 0.3


def test_an_image_of_the_right_size_is_unchanged():
    image = np.arange(256, dtype=np.uint8).repeat(3 * 4).reshape(32, 32, 3)
    resized = stream.resize(tensorflow().constant(image), 32, "uint8").numpy()
    np.testing.assert_array_equal(resized, image)


def test_bfloat16_keeps_the_overshoot_of_the_submissions():
    image = np.zeros((40, 40, 3), np.uint8)
    image[:, 20:] = 255
    resized = stream.resize(tensorflow().constant(image), 64, "bfloat16").numpy()
    assert resized.dtype.name == "bfloat16"
    exact = bicubic(image, 64)
    assert exact.max() > 265
    np.testing.assert_allclose(resized.astype(np.float64), exact, rtol=2**-8, atol=0.3)


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((375, 500, 3), (24, 86, 328, 328)),  # int(0.875 * 375) = 328; (375 - 328 + 1) // 2 = 24
        ((500, 333, 3), (105, 21, 291, 291)),
        ((256, 256, 3), (16, 16, 224, 224)),
        ((1, 7, 3), (0, 3, 1, 1)),
    ],
)
def test_the_eval_window_is_the_central_square(shape, window):
    square = stream.eval_window(tensorflow().constant(shape), 224)
    assert tuple(square.numpy()) == window


def test_decoding_a_window_equals_cropping_the_image():
    jpeg = miniature.draw(5, size=(60, 80))
    whole = np.asarray(Image.open(io.BytesIO(jpeg)), np.int64)  # another decoder
    window = (8, 16, 30, 50)
    tf = tensorflow()
    part = stream.decode_window(tf.constant(jpeg), tf.constant(window)).numpy()
    expected = whole[8:38, 16:66]
    # the fast and the accurate inverse DCT of libjpeg differ; a shift by one pixel gives 5
    assert np.abs(part - expected).mean() < 1.5
    cut = stream.cut_window(tf.constant(whole), tf.constant(window)).numpy()
    np.testing.assert_array_equal(cut, expected)


@pytest.mark.parametrize(
    ("crop_area_min", "effective"),
    [(0.05, 0.1), (0.08, 0.1), (0.5, 0.5)],  # min_object_covered is 0.1 of the whole image
)
def test_crop_windows_have_mlperfs_area_and_aspect(crop_area_min, effective):
    tf = tensorflow()

    @tf.function
    def windows_of(seeds):
        shape = tf.constant([400, 500, 3])
        return tf.map_fn(
            lambda seed: stream.train_window(shape, seed, crop_area_min),
            seeds,
            fn_output_signature=tf.int32,
        )

    windows = windows_of(tf.stack([tf.zeros(1000, tf.int64), tf.range(1000, dtype=tf.int64)], 1))
    y, x, height, width = windows.numpy().T.astype(np.float64)
    assert (y >= 0).all()
    assert (x >= 0).all()
    assert (y + height <= 400).all()
    assert (x + width <= 500).all()
    area, aspect = height * width / 200_000, width / height
    assert effective * 0.98 < area.min() < effective + 0.02
    assert area.max() > 0.9
    assert 0.74 < aspect.min() < 0.78
    assert 1.3 < aspect.max() < 1.35
    assert len(np.unique(windows, axis=0)) > 990
