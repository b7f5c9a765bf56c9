"""`digits`: the UCI optical digits as a tfds data set, embedded here (see README.md).

Importing this module imports tfds and registers the name.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds

from input_pipeline.dataset import KNOWN

CSV = Path(__file__).with_name("digits.csv.gz")


def read_csv(path: Path = CSV) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (uint8 [1797, 8, 8, 1], 0..255) and labels (int64 [1797], 0..9) in order."""
    with gzip.open(path, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.int64)
    images = (table[:, :-1] * 255 // 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    return images, table[:, -1]


class Digits(tfds.core.GeneratorBasedBuilder):
    """1797 grey 8x8 digits: the first 1437 for training, the last 360 for testing."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        digits = KNOWN["digits"]
        return tfds.core.DatasetInfo(
            builder=self,
            description="The test half of UCI's optical digits (CC BY 4.0).",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=digits.image_shape, encoding_format="png"),
                    "label": tfds.features.ClassLabel(num_classes=digits.n_classes),
                }
            ),
            supervised_keys=("image", "label"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager) -> dict[str, Iterator]:
        del dl_manager  # nothing is downloaded
        n_train, n_eval = KNOWN["digits"].n_train_examples, KNOWN["digits"].n_eval_examples
        return {
            "train": self._generate_examples(0, n_train),
            "test": self._generate_examples(n_train, n_train + n_eval),
        }

    def _generate_examples(self, start: int, stop: int) -> Iterator[tuple[int, dict]]:
        images, labels = read_csv()
        for i in range(start, stop):
            yield i, {"image": images[i], "label": int(labels[i])}
