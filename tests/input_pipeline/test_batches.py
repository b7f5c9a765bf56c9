import gzip
import itertools
import os
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from etils import epath
from hypothesis import given, settings
from hypothesis import strategies as st

import input_pipeline
from input_pipeline import digits, memory, prepare
from input_pipeline.formats import Prepared

ONE_HOST = {"host_index": 0, "n_hosts": 1}


def train(digits_dir, first_step=0, n_batches=4, **kwargs):
    options = {"name": "digits", "data_dir": digits_dir, **kwargs.pop("options", {})}
    chosen = {"seed": 3, "global_batch_size": 400, "n_local_devices": 4, **ONE_HOST, **kwargs}
    batches = input_pipeline.train_batches(options, first_step=first_step, **chosen)
    return list(itertools.islice(batches, n_batches))


def as_keys(images):
    return [image.tobytes() for image in images.reshape(-1, 64)]


def csv_images():
    """Returns images and labels from an independent parser of the file, without numpy."""
    with gzip.open(digits.CSV, "rt") as lines:
        rows = [[int(value) for value in line.split(",")] for line in lines]
    images = [bytes(int(value * 255 / 16) for value in row[:64]) for row in rows]
    return images, [row[64] for row in rows]


def test_an_epoch_of_digits_is_the_first_1437_lines_of_the_csv_each_once(digits_dir):
    batches = train(digits_dir)  # 1600 examples: an epoch and 163 of the next
    shown = [key for batch in batches for key in as_keys(batch["image"])][:1437]
    labels = np.concatenate([batch["label"].ravel() for batch in batches])[:1437]
    images, csv_labels = csv_images()
    pairs = Counter(zip(images[:1437], csv_labels[:1437], strict=True))
    assert Counter(zip(shown, labels.tolist(), strict=True)) == pairs


def test_evaluation_is_the_last_360_lines_in_order_with_padding_masked(digits_dir):
    options = {"name": "digits", "data_dir": digits_dir}
    batches = list(
        input_pipeline.eval_batches(options, device_batch_size=25, n_local_devices=4, **ONE_HOST)
    )
    masks = np.stack([batch["mask"] for batch in batches])
    shown = np.stack([batch["image"] for batch in batches])[masks]
    assert masks.shape == (4, 4, 25)
    assert as_keys(shown) == csv_images()[0][1437:]


def test_batches_have_the_documented_shapes_and_types(digits_dir):
    (batch,) = train(digits_dir, n_batches=1)
    assert {key: (value.shape, value.dtype.name) for key, value in batch.items()} == {
        "image": ((4, 100, 8, 8, 1), "uint8"),
        "label": ((4, 100), "int32"),
        "mask": ((4, 100), "bool"),
        "flip": ((4, 100), "bool"),
    }
    assert batch["mask"].all()
    assert not batch["flip"].any()  # digits are never mirrored


def test_flip_option_mirrors_half_of_the_images(digits_dir):
    batches = train(digits_dir, options={"flip": True})
    flips = np.stack([batch["flip"] for batch in batches])
    assert abs(flips.mean() - 0.5) < 4 * 0.5 / np.sqrt(flips.size)


def test_a_flip_depends_on_example_and_epoch_only(digits_dir):
    drawn = []
    for n_batches, size in ((3, 479), (1, 1437)):
        batches = train(
            digits_dir,
            n_batches=n_batches,
            global_batch_size=size,
            n_local_devices=1,
            options={"flip": True},
        )
        flips = np.concatenate([batch["flip"][0] for batch in batches])
        images = [key for batch in batches for key in as_keys(batch["image"])]
        drawn.append(Counter(zip(images, flips.tolist(), strict=True)))
    assert drawn[0] == drawn[1]


def test_epochs_and_seeds_have_different_orders(digits_dir):
    first = train(digits_dir, global_batch_size=1436, n_batches=2)
    assert (first[0]["image"] != first[1]["image"]).any()
    assert (train(digits_dir)[0]["label"] != train(digits_dir, seed=4)[0]["label"]).any()


@pytest.mark.parametrize("step", [1, 2, 3, 4])  # 3 straddles two epochs, 4 is in the second
def test_a_start_at_any_step_gives_the_same_batches(digits_dir, step):
    options = {"flip": True}
    for whole, part in zip(
        train(digits_dir, n_batches=6, options=options)[step:],
        train(digits_dir, first_step=step, n_batches=6 - step, options=options),
        strict=True,
    ):
        assert all((whole[key] == part[key]).all() for key in whole)


def test_hosts_partition_the_training_examples(digits_dir):
    shown = []
    for host in range(3):  # 479 examples each
        batches = train(
            digits_dir,
            host_index=host,
            n_hosts=3,
            global_batch_size=3 * 479,
            n_local_devices=1,
            n_batches=1,
        )
        shown += as_keys(batches[0]["image"])
    assert Counter(shown) == Counter(csv_images()[0][:1437])


def simulate_data_set(monkeypatch, n_examples):
    """Simulates a data set of n examples with labels 0 ... n - 1, without files."""
    lengths: dict[str, tuple[int, ...]] = {"train": (n_examples,), "test": (n_examples,)}
    prepared = Prepared("fake", epath.Path("/nowhere"), (2, 2, 1), n_examples, lengths)

    def load(prepared, split, image_size):
        return np.zeros((n_examples, 2, 2, 1), np.uint8), np.arange(n_examples, dtype=np.int32)

    monkeypatch.setattr(prepare, "ensure", lambda name, data_dir: prepared)
    monkeypatch.setattr(memory, "load", load)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 48), st.integers(1, 9), st.integers(1, 200))
def test_every_example_is_evaluated_once_on_any_hosts_and_devices(
    n_examples, n_hosts, n_devices, device_batch_size
):
    with pytest.MonkeyPatch.context() as monkeypatch:
        simulate_data_set(monkeypatch, n_examples)
        seen, n_batches = [], set()
        for host in range(n_hosts):
            batches = list(
                input_pipeline.eval_batches(
                    {"name": "fake", "data_dir": "/nowhere"},
                    device_batch_size=device_batch_size,
                    host_index=host,
                    n_hosts=n_hosts,
                    n_local_devices=n_devices,
                )
            )
            n_batches.add(len(batches))
            for batch in batches:
                assert batch["label"].shape == (n_devices, device_batch_size)
                seen += batch["label"][batch["mask"]].tolist()
        assert len(n_batches) == 1
        assert seen == list(range(n_examples))


@pytest.mark.parametrize("n_hosts", [32, 24, 7, 48])
def test_the_50000_images_of_imagenet_are_seen_once_on_a_pod(monkeypatch, n_hosts):
    simulate_data_set(monkeypatch, 50_000)
    shards = [
        input_pipeline.eval_batches(
            {"name": "fake", "data_dir": "/nowhere"},
            device_batch_size=196,
            host_index=host,
            n_hosts=n_hosts,
            n_local_devices=8,
        )
        for host in range(n_hosts)
    ]
    counts = [[int(batch["mask"].sum()) for batch in batches] for batches in shards]
    assert sum(map(sum, counts)) == 50_000
    assert len({len(count) for count in counts}) == 1


def test_a_later_process_maps_the_decoded_arrays_and_needs_no_tensorflow(digits_dir):
    expected = train(digits_dir, n_batches=2)[1]["label"]
    code = (
        "import sys, input_pipeline as p\n"
        f"d = {{'name': 'digits', 'data_dir': {digits_dir!r}}}\n"
        "b = next(p.train_batches(d, seed=3, global_batch_size=400, first_step=1, host_index=0,"
        " n_hosts=1, n_local_devices=4))\n"
        "assert 'tensorflow' not in sys.modules\n"
        "print(b['label'].ravel().tolist())"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == str(expected.ravel().tolist())


@pytest.mark.parametrize("n_bytes", [0, 50, 1000])
def test_truncated_decoded_arrays_are_made_again(digits_dir, tmp_path, n_bytes):
    prepared = prepare.ensure("digits", digits_dir)
    images, labels = memory.load(prepared, "train", 8)
    shutil.copytree(digits_dir, tmp_path, dirs_exist_ok=True)
    for file in tmp_path.glob("digits/*/.train*.npy"):
        os.truncate(file, n_bytes)
    again = memory.load(prepare.ensure("digits", str(tmp_path)), "train", 8)
    np.testing.assert_array_equal(again[0], images)
    np.testing.assert_array_equal(again[1], labels)


def test_decoded_arrays_that_cannot_be_saved_leave_nothing_behind(
    digits_dir, tmp_path, monkeypatch
):
    shutil.copytree(digits_dir, tmp_path, dirs_exist_ok=True)
    for file in tmp_path.glob("digits/*/.*.npy"):
        file.unlink()

    def full(file, array):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    memory.load.cache_clear()
    images, _ = memory.load(prepare.ensure("digits", str(tmp_path)), "train", 8)
    memory.load.cache_clear()
    assert images.shape == (1437, 8, 8, 1)
    assert not list(tmp_path.glob("digits/*/.*.npy*"))


def test_decoded_arrays_of_changed_files_are_not_used(digits_dir, tmp_path):
    shutil.copytree(digits_dir, tmp_path, dirs_exist_ok=True)
    (shard,) = tmp_path.glob("digits/*/digits-test.tfrecord-*")
    train_shard = shard.with_name(shard.name.replace("test", "train"))
    prepared = prepare.ensure("digits", str(tmp_path))
    memory.load(prepared, "train", 8)
    shutil.copy(shard, train_shard)
    memory.load.cache_clear()
    with pytest.raises(ValueError, match=r"contains 360 examples, but its metadata promise 1437"):
        memory.load(prepared, "train", 8)


def test_mean_pooling_averages_squares_to_the_nearest_integer():
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), dtype=np.uint8)
    pooled = memory.mean_pool(images, 14)
    corner = sum(int(images[2, y, x, 0]) for y in (26, 27) for x in (0, 1)) / 4
    assert pooled.shape == (3, 14, 14, 1)
    assert abs(pooled[2, 13, 0, 0] - corner) <= 0.5
    with pytest.raises(ValueError, match=r"divide the images' 28x28; use one of 28, 14, 7, 4, 2$"):
        memory.mean_pool(images, 13)
    with pytest.raises(
        ValueError, match=r"divide the images' 14x28; small data sets need square images"
    ):
        memory.mean_pool(images[:, :14], 14)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_batch_size": 30}, r"global_batch_size=30.* 4 devices; the nearest are 28 and 32"),
        ({"global_batch_size": 3}, r"global_batch_size=3.* the nearest are 4 and 4"),
        ({"seed": -1}, r"seed=-1"),
        ({"host_index": 2, "n_hosts": 2}, r"host_index=2, n_hosts=2"),
        ({"n_hosts": 1500, "global_batch_size": 6000}, r"n_hosts=1500: more than the 1437"),
        ({"options": {"cropp": 1}}, r"dataset.cropp=1: no such option; options: name, data_dir"),
        ({"options": {"image_dtype": "f4"}}, r"image_dtype='f4': must be one of uint8, bfloat16"),
        ({"options": {"image_size": 3}}, r"image_size=3: must divide"),
    ],
)
def test_invalid_arguments_raise_one_line_errors(digits_dir, change, message):
    with pytest.raises(ValueError, match=message) as error:
        train(digits_dir, **change)
    assert "\n" not in str(error.value)
