"""Damaged data raise one-line errors that name the file or example, and never hang."""

import contextlib
import itertools
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import miniature
import numpy as np
import pytest

import input_pipeline
from input_pipeline import prepare

CORRUPT, PNG = "n15075141_3.JPEG", "n01440764_5.JPEG"


def options(directory, **chosen):
    return {"name": "imagenet2012", "data_dir": str(directory), "image_size": 16, **chosen}


def train(directory, first_step=0, n_batches=4, **chosen):
    batches = input_pipeline.train_batches(
        options(directory, **chosen),
        seed=0,
        global_batch_size=14,
        first_step=first_step,
        host_index=0,
        n_hosts=1,
        n_local_devices=1,
    )
    return list(itertools.islice(batches, n_batches))


def evaluate(directory):
    return list(
        input_pipeline.eval_batches(
            options(directory), device_batch_size=4, host_index=0, n_hosts=1, n_local_devices=1
        )
    )


@contextlib.contextmanager
def one_line_error(*words):
    with pytest.raises(ValueError, match=words[0]) as error:
        yield error
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.fixture
def copied(imagenet_dir, tmp_path):
    """A copy of the miniature to damage: its data_dir and the directory of its files."""
    shutil.copytree(imagenet_dir, tmp_path / "data")
    return tmp_path / "data", tmp_path / "data" / "imagenet2012" / "5.1.0"


TRAIN_SHARD = "imagenet2012-train.tfrecord-00000-of-00001"
VAL_SHARD = "imagenet2012-validation.tfrecord-00000-of-00001"


def test_missing_shard(copied):
    (copied[1] / VAL_SHARD).unlink()
    with one_line_error(VAL_SHARD, "is missing; copy or prepare"):
        train(copied[0])  # before training, although only evaluation needs the file


def test_an_evaluation_does_not_check_the_files_again(copied, monkeypatch):
    """Checking thousands of files in a bucket would count towards the reported seconds."""
    batches = input_pipeline.eval_batches(
        options(copied[0]), device_batch_size=4, host_index=0, n_hosts=1, n_local_devices=1
    )
    monkeypatch.setattr(prepare, "ensure", None)  # calling it fails
    first, second = ([batch["image"] for batch in batches] for _ in range(2))
    assert len(first) == 3
    np.testing.assert_array_equal(first, second)


def test_zero_byte_shard(copied):
    (copied[1] / TRAIN_SHARD).write_bytes(b"")
    with one_line_error(TRAIN_SHARD, "is empty; copy or prepare"):
        train(copied[0])


def test_truncated_shard(copied):
    shard = copied[1] / TRAIN_SHARD
    shard.write_bytes(shard.read_bytes()[:-100])
    with one_line_error(TRAIN_SHARD, "truncated"):
        train(copied[0])


def test_shard_with_fewer_examples_than_in_its_metadata(copied):
    info = copied[1] / "dataset_info.json"
    described = json.loads(info.read_text())
    for split in described["splits"]:
        split["shardLengths"] = [str(int(split["shardLengths"][0]) + 2)]
    info.write_text(json.dumps(described))
    with one_line_error(TRAIN_SHARD, "contains 42 examples, but its metadata promise 44"):
        train(copied[0])
    with one_line_error(VAL_SHARD, "contains 11 examples, but its metadata promise 13"):
        evaluate(copied[0])


def test_labels_file_in_another_order(copied):
    file = copied[1] / "label.labels.txt"
    file.write_text("\n".join(reversed(file.read_text().split())))
    with one_line_error("label.labels.txt", "not the 1000 synsets of ImageNet in order"):
        train(copied[0])


def test_empty_directory(tmp_path):
    with one_line_error("imagenet2012: is not prepared there", "python -m input_pipeline"):
        train(tmp_path)


def test_empty_evaluation_split(copied):
    info = copied[1] / "dataset_info.json"
    described = json.loads(info.read_text())
    described["splits"] = [split for split in described["splits"] if split["name"] == "train"]
    info.write_text(json.dumps(described))
    with one_line_error("no validation split, or an empty one"):
        input_pipeline.describe(**options(copied[0]))


def test_directory_of_another_data_set(digits_dir, tmp_path):
    shutil.copytree(Path(digits_dir) / "digits", tmp_path / "imagenet2012")
    with one_line_error("contains digits, not imagenet2012"):
        train(tmp_path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("features.json", b"{"),
        ("features.json", b"[]"),
        ("features.json", b"\xff\xfe"),
        ("dataset_info.json", b"{}"),
        ("dataset_info.json", b'{"name": "imagenet2012", "splits": null}'),
    ],
)
def test_invalid_metadata(copied, file, content):
    (copied[1] / file).write_bytes(content)
    with one_line_error("not a prepared image classification data set"):
        input_pipeline.describe(**options(copied[0]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without permission")
def test_no_permission_to_read(copied):
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(copied[0], directory, dirs_exist_ok=True)
        Path(directory).chmod(0o755)
        shard = Path(directory) / "imagenet2012" / "5.1.0" / TRAIN_SHARD
        shard.chmod(0o600)
        try:
            os.seteuid(65534)
            with one_line_error(TRAIN_SHARD, "no permission to read; grant it"):
                train(directory)
        finally:
            os.seteuid(0)


@pytest.fixture(scope="module")
def corrupt_dir(tmp_path_factory):
    """The miniature with a PNG and a damaged JPEG among its training images."""
    images = miniature.train_images()
    images[PNG] = miniature.draw(3000, "PNG")
    images[CORRUPT] = images[CORRUPT][:30] + bytes(100)
    tars = miniature.write_tars(tmp_path_factory.mktemp("tars"), images)
    directory = tmp_path_factory.mktemp("corrupt")
    prepare.ensure("imagenet2012", str(directory), str(tars), is_subset=True)
    return directory


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_corrupt_images_are_named(corrupt_dir, cache):
    with one_line_error("corrupt example", "dataset.on_corrupt=skip", ".JPEG") as error:
        train(corrupt_dir, cache=cache)
    named = set(re.findall(r"n\d+_\d+.JPEG", str(error.value)))
    assert named <= {CORRUPT, PNG}
    if PNG in named:
        assert "a PNG, not a JPEG" in str(error.value)


def test_a_skipped_image_is_replaced_by_a_neighbour_and_nothing_else_moves(
    corrupt_dir, imagenet_dir, caplog
):
    skipped = train(corrupt_dir, on_corrupt="skip", n_batches=6)
    assert f"{PNG} (imagenet2012-train.tfrecord-00000-of-00001__" in caplog.text
    assert "a PNG, not a JPEG" in caplog.text
    assert f"{CORRUPT} (imagenet2012-train" in caplog.text
    assert "2 corrupt examples are skipped" in caplog.text
    intact = train(imagenet_dir, n_batches=6)
    differ = [
        (step, i)
        for step in range(6)
        for i in range(14)
        if (skipped[step]["image"][0, i] != intact[step]["image"][0, i]).any()
    ]
    assert len(differ) == 2 * 2  # two images, two epochs of 42
    for step, i in differ:
        others = skipped[step]["image"][0, [k for k in range(14) if k != i]]
        assert (skipped[step]["image"][0, i] == others).all(axis=(1, 2, 3)).any()
    for one, other in zip(
        train(corrupt_dir, on_corrupt="skip", first_step=2, n_batches=4), skipped[2:], strict=True
    ):
        np.testing.assert_array_equal(one["image"], other["image"])


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_a_truncated_image_is_skipped_alike_from_any_start(mlperf_dir, tmp_path, cache):
    """A crop above the cut can be decoded; the whole image cannot."""
    images = miniature.train_images()
    del images[miniature.PNG_IN_DISGUISE]
    for name in ("intact", "cut"):
        directory = tmp_path / name
        shutil.copytree(mlperf_dir, directory, ignore=shutil.ignore_patterns("train*", ".*"))
        labelled = [(file, jpeg, 1 + (file == CORRUPT)) for file, jpeg in images.items()]
        miniature.write_mlperf(directory, "train", labelled, [41])
        images[CORRUPT] = images[CORRUPT][: len(images[CORRUPT]) * 24 // 25]
    intact = train(tmp_path / "intact", cache=cache, n_batches=30)
    cut = train(tmp_path / "cut", cache=cache, on_corrupt="skip", n_batches=30)
    shown = kept = 0
    for one, other in zip(intact, cut, strict=True):
        shown += one["label"].sum()  # 1 where it is the image
        kept += other["label"].sum()
        same = one["label"] == other["label"]
        np.testing.assert_array_equal(one["image"][same], other["image"][same])
    assert 0 < kept < shown if cache == "none" else kept == 0 < shown
    for start in range(1, 30, 4):
        again = train(tmp_path / "cut", start, 30 - start, cache=cache, on_corrupt="skip")
        for one, other in zip(again, cut[start:], strict=True):
            np.testing.assert_array_equal(one["image"], other["image"])


def test_a_corrupt_evaluation_image_is_named(mlperf_dir, tmp_path):
    for file in mlperf_dir.glob("train-*"):
        shutil.copy(file, tmp_path)
    images = list(miniature.val_images().items())
    images[6] = (images[6][0], b"\xff\xd8 no image")
    labelled = [(name, image, 1) for name, image in images]
    miniature.write_mlperf(tmp_path, "validation", labelled, [11])
    with one_line_error(images[6][0], "validation-00000-of-00001__6", "corrupt example"):
        evaluate(tmp_path)


@pytest.mark.parametrize("label", [0, 1001])
def test_a_label_out_of_range_is_refused(mlperf_dir, tmp_path, label):
    """In records that count labels from 0, label 0 would train as class 999."""
    for split, read in (("train", train), ("validation", evaluate)):
        directory = tmp_path / split
        shutil.copytree(mlperf_dir, directory, ignore=shutil.ignore_patterns(f"{split}*", ".*"))
        images = [(name, image, 1) for name, image in miniature.val_images().items()]
        images[3] = (*images[3][:2], label)
        miniature.write_mlperf(directory, split, images, [11])
        with one_line_error(f"contains the label {label}, not one of 1 to 1000"):
            read(directory)


def test_a_truncated_mlperf_file_is_named_before_the_start(mlperf_dir, tmp_path):
    for file in mlperf_dir.glob("*-of-*"):
        shutil.copy(file, tmp_path)
    shard = tmp_path / "train-00002-of-00004"
    shard.write_bytes(shard.read_bytes()[:-1])
    with one_line_error("train-00002-of-00004", "truncated"):
        input_pipeline.describe(**options(tmp_path))
    shard.unlink()
    with one_line_error("train-00002-of-00004", "is missing"):
        input_pipeline.describe(**options(tmp_path))
