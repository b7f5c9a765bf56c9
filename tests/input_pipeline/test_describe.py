import os
import subprocess
import sys

import numpy as np
import pytest

import input_pipeline
from input_pipeline import digits
from input_pipeline.dataset import KNOWN


def test_digits_mean_and_deviation_are_over_its_training_images():
    images, _ = digits.read_csv()
    spec = KNOWN["digits"]
    np.testing.assert_allclose(spec.mean, images[: spec.n_train_examples].mean(), rtol=1e-4)
    np.testing.assert_allclose(spec.std, images[: spec.n_train_examples].std(), rtol=1e-4)


def test_imagenet_is_described_as_published_without_a_directory():
    spec = input_pipeline.describe("imagenet2012", None)
    assert (spec.n_train_examples, spec.n_eval_examples, spec.n_classes) == (
        1_281_167,
        50_000,
        1000,
    )
    assert spec.image_shape == (224, 224, 3)
    np.testing.assert_allclose(spec.mean, [123.675, 116.28, 103.53])  # 255 (0.485, 0.456, 0.406)
    np.testing.assert_allclose(spec.std, [58.395, 57.12, 57.375])


def test_a_prepared_set_is_described_from_disk_without_tensorflow(imagenet_dir):
    code = (
        "import sys, input_pipeline as p\n"
        f"s = p.describe('imagenet2012', {str(imagenet_dir)!r}, image_size=64)\n"
        "assert not {'tensorflow', 'tensorflow_datasets'} & set(sys.modules)\n"
        "print(s.n_train_examples, s.n_eval_examples, s.image_shape)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "42 11 (64, 64, 3)"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("imagnet", r"imagnet: not a known data set \(digits, mnist.*python -m input_pipeline"),
        ("imagenet2012", r"data_dir=.*: imagenet2012: the directory does not exist; prepare it"),
    ],
)
def test_missing_data_sets_raise_an_error_with_the_fix(tmp_path, name, message):
    with pytest.raises(ValueError, match=message) as error:
        input_pipeline.describe(name, str(tmp_path / "missing"))
    assert "\n" not in str(error.value)


def test_an_unknown_name_without_a_directory_lists_known_names():
    with pytest.raises(ValueError, match=r"digit: not a known data set; known: digits, mnist"):
        input_pipeline.describe("digit", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without permission")
def test_a_directory_without_permission_raises_one_line(imagenet_dir):
    try:
        os.seteuid(65534)  # other users cannot read pytest's directories
        with pytest.raises(ValueError, match=r"no permission to read .*; grant it"):
            input_pipeline.describe("imagenet2012", str(imagenet_dir))
    finally:
        os.seteuid(0)


def test_image_dtype_is_refused_where_it_would_be_ignored(tmp_path, imagenet_dir):
    for name in ("digits", "fashion_mnist"):
        with pytest.raises(ValueError, match=r"image_dtype=bfloat16: applies .* leave it out"):
            input_pipeline.describe(name, str(tmp_path), image_dtype="bfloat16")
    input_pipeline.describe("imagenet2012", str(imagenet_dir), image_dtype="bfloat16")
