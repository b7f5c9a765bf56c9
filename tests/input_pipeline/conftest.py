from pathlib import Path

import miniature
import pytest

from input_pipeline import prepare


@pytest.fixture(scope="session")
def digits_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data directory with `digits`, prepared by tfds."""
    directory = str(tmp_path_factory.mktemp("digits"))
    prepare.ensure("digits", directory)
    return directory


@pytest.fixture(scope="session")
def imagenet_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the miniature ImageNet, prepared by tfds's own builder."""
    tars = miniature.write_tars(tmp_path_factory.mktemp("tars"))
    directory = tmp_path_factory.mktemp("imagenet")
    prepare.ensure("imagenet2012", str(directory), str(tars), is_subset=True)
    return directory


@pytest.fixture(scope="session")
def mlperf_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The miniature's images as MLPerf's TFRecords: uneven files, labels from 1."""
    directory = tmp_path_factory.mktemp("mlperf")
    images = miniature.train_images()
    del images[miniature.PNG_IN_DISGUISE]
    labelled = [
        (name, image, miniature.CLASSES[name.split("_")[0]] + 1) for name, image in images.items()
    ]
    miniature.write_mlperf(directory, "train", labelled, [20, 1, 13, 7])
    val = [(name, image, i + 1) for i, (name, image) in enumerate(miniature.val_images().items())]
    miniature.write_mlperf(directory, "validation", val, [4, 7])
    return directory
