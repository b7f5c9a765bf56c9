import io
import itertools
from collections import Counter

import miniature
import numpy as np
import pytest
from PIL import Image

import input_pipeline
from input_pipeline import dataset, stream

N_TRAIN = 42


def options(directory, **chosen):
    return {"name": "imagenet2012", "data_dir": str(directory), "image_size": 24, **chosen}


def train(directory, first_step=0, n_batches=6, host=(0, 1), **chosen):
    batches = input_pipeline.train_batches(
        options(directory, **chosen),
        seed=5,
        global_batch_size=12,
        first_step=first_step,
        host_index=host[0],
        n_hosts=host[1],
        n_local_devices=2,
    )
    return list(itertools.islice(batches, n_batches))


def ordered(directory, shard, seed=0):
    """Returns the encoded examples of a shard in training order."""
    prepared = dataset.locate("imagenet2012", str(directory))
    assert prepared is not None
    return stream.ordered(
        prepared, dataset.Options(**options(directory)), seed, shard, 0, named=True
    )


def assert_same(batches, others):
    for one, other in zip(batches, others, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


@pytest.fixture(scope="module")
def whole(imagenet_dir):
    return train(imagenet_dir)


# 42 examples in batches of 12: batch 3 straddles two epochs, batch 4 is in the second
@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_start_at_any_step_gives_the_same_batches(imagenet_dir, whole, step):
    assert_same(train(imagenet_dir, step, 6 - step), whole[step:])


def test_caching_jpegs_changes_no_bit(imagenet_dir, whole):
    assert_same(train(imagenet_dir, cache="jpeg"), whole)


def test_caching_decoded_images_changes_only_the_rims_of_crops(imagenet_dir, whole):
    # libjpeg interpolates chroma at the rim of a crop from the pixels that it has decoded
    for one, other in zip(train(imagenet_dir, cache="decoded"), whole, strict=True):
        np.testing.assert_array_equal(one["label"], other["label"])
        np.testing.assert_array_equal(one["flip"], other["flip"])
        assert np.abs(one["image"].astype(int) - other["image"]).mean() < 0.2


def test_every_epoch_has_every_example_once_in_a_new_order(imagenet_dir):
    shown = [
        (int(example["epoch"]), example["id"].numpy().split()[0].decode())
        for example in ordered(imagenet_dir, (0, N_TRAIN)).take(2 * N_TRAIN)
    ]
    epochs = [[name for epoch, name in shown if epoch == e] for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(miniature.train_images())
    assert epochs[0] != epochs[1]


def test_no_two_seeds_share_an_order_in_any_epoch(imagenet_dir):
    """tf.data reduces shuffle seeds: with 2 seed + epoch, seeds 0 and 1 would share orders."""
    orders = set()
    for seed in range(4):
        examples = list(ordered(imagenet_dir, (0, N_TRAIN), seed).take(6 * N_TRAIN))
        names = [example["id"].numpy() for example in examples]
        orders |= {tuple(names[e * N_TRAIN : (e + 1) * N_TRAIN]) for e in range(6)}
    assert len(orders) == 24


def test_every_epoch_has_new_crops(imagenet_dir):
    chosen = {"seed": 0, "global_batch_size": N_TRAIN, "host_index": 0, "n_hosts": 1}
    batches = input_pipeline.train_batches(
        options(imagenet_dir, image_size=8), first_step=0, n_local_devices=1, **chosen
    )
    first, second = (
        {image.tobytes() for image in batch["image"][0]} for batch in itertools.islice(batches, 2)
    )
    assert len(first & second) < 5  # the image of one pixel, and coincidences


def test_hosts_partition_the_training_examples(imagenet_dir):
    names: Counter[str] = Counter()
    for shard in ((0, 14), (14, 28), (28, 42)):
        examples = ordered(imagenet_dir, shard).take(14)
        names.update(example["id"].numpy().split()[0].decode() for example in examples)
    assert names == Counter(miniature.train_images().keys())


def test_labels_belong_to_their_images(imagenet_dir):
    """The file name contains the class, which must match the label after shuffling."""
    for example in ordered(imagenet_dir, (0, N_TRAIN)).take(N_TRAIN):
        name = example["id"].numpy().decode()
        assert int(example["label"]) == miniature.CLASSES[name.split("_")[0]]


@pytest.mark.parametrize("cache", ["none", "jpeg"])
def test_evaluation_has_every_central_crop_once(imagenet_dir, cache):
    evaluation = input_pipeline.eval_batches(
        options(imagenet_dir, cache=cache),
        device_batch_size=2,
        host_index=0,
        n_hosts=1,
        n_local_devices=2,
    )
    for _ in range(2):  # the second time from the cache
        batches = list(evaluation)
        mask = np.concatenate([batch["mask"].ravel() for batch in batches])
        images = np.concatenate([batch["image"].reshape(-1, 24, 24, 3) for batch in batches])[mask]
        assert len(batches) == 3
        assert mask.sum() == miniature.N_VAL
        means = sorted(image.mean() for image in images)
        expected = sorted(central_mean(jpeg) for jpeg in miniature.val_images().values())
        np.testing.assert_allclose(means, expected, atol=1.0)


def central_mean(jpeg):
    """Returns the mean of the central square, 24/56 of the shorter side, from another decoder."""
    image = np.asarray(Image.open(io.BytesIO(jpeg)), np.float64)
    side = int(24 / 56 * min(image.shape[:2]))
    y, x = ((length - side + 1) // 2 for length in image.shape[:2])
    square = Image.fromarray(image[y : y + side, x : x + side].astype(np.uint8))
    return np.asarray(square.resize((24, 24), Image.Resampling.BILINEAR), np.float64).mean()


@pytest.mark.parametrize(("image_dtype", "value_bytes"), [("uint8", 1), ("bfloat16", 2)])
def test_a_cache_needs_the_files_and_evaluation_images(mlperf_dir, image_dtype, value_bytes):
    """Two hosts: half of the files, and six of eleven images at their final size."""
    n_bytes = sum(file.stat().st_size for file in mlperf_dir.glob("train-*"))
    limit_gib = (n_bytes * 20 / 41 + 6 * 24 * 24 * 3 * value_bytes) / 2**30
    kept = {"host": (0, 2), "n_batches": 1, "cache": "jpeg", "image_dtype": image_dtype}
    train(mlperf_dir, cache_limit_gib=limit_gib * 1.001, **kept)
    with pytest.raises(ValueError, match="needs"):
        train(mlperf_dir, cache_limit_gib=limit_gib * 0.999, **kept)


def test_a_cache_beyond_its_limit_is_refused_before_the_start(imagenet_dir):
    with pytest.raises(ValueError, match=r"dataset.cache=decoded: needs .* GiB on this host"):
        train(imagenet_dir, cache="decoded", cache_limit_gib=1e-6)


def test_the_shuffle_buffer_is_limited_to_the_shard(imagenet_dir, whole):
    """TensorFlow allocates the whole buffer, so 10**12 examples would end the process."""
    assert_same(train(imagenet_dir, n_batches=1, shuffle_buffer_examples=10**12), whole[:1])
    assert_same(train(imagenet_dir, n_batches=6, shuffle_buffer_examples=N_TRAIN), whole)


def test_mlperfs_records_give_the_same_images_with_labels_from_zero(mlperf_dir):
    description = input_pipeline.describe("imagenet2012", str(mlperf_dir))
    assert (description.n_train_examples, description.n_eval_examples) == (41, miniature.N_VAL)
    shown: dict[str, tuple[bytes, int]] = {}
    for shard in ((0, 20), (20, 22), (22, 41)):  # bounds at and inside files
        n_examples = shard[1] - shard[0]
        for example in ordered(mlperf_dir, shard).take(n_examples):
            name = example["id"].numpy().decode().split(" ")[0]
            assert name not in shown
            shown[name] = (example["jpeg"].numpy(), int(example["label"]))
    images = miniature.train_images()
    del images[miniature.PNG_IN_DISGUISE]
    assert shown == {
        name: (image, miniature.CLASSES[name.split("_")[0]]) for name, image in images.items()
    }


def test_mlperfs_records_can_start_at_any_step(mlperf_dir):
    assert_same(train(mlperf_dir, 2, 3), train(mlperf_dir, 0, 5)[2:])


def test_hosts_without_examples_pad_with_the_same_dtype(imagenet_dir):
    """20 hosts share 11 images. Collectives need equal shapes and dtypes on all hosts."""
    kinds = set()
    for host in (0, 19):
        (batch,) = input_pipeline.eval_batches(
            options(imagenet_dir, image_dtype="bfloat16"),
            device_batch_size=1,
            host_index=host,
            n_hosts=20,
            n_local_devices=1,
        )
        kinds.add(tuple((value.dtype.name, value.shape) for value in batch.values()))
        assert batch["mask"].sum() == host // 19
    assert len(kinds) == 1
