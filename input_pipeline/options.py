"""What a user may choose about the data: the keys of `config.dataset`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import ml_dtypes
import numpy as np

from errors import UserError

FLIPPED = ("imagenet2012", "cifar10")  # a mirrored digit is another digit, or none
GIB = 2**30
IMAGE_DTYPES = ("uint8", "bfloat16")


@dataclass(frozen=True)
class Options:
    """The choices about a data set. Those after `flip` concern sets of JPEGs of varying size.

    Attributes:
      name: a name of `spec.KNOWN`, or of any image classification set of tfds.
      data_dir: the directory that holds prepared data sets, as tfds lays them out; or the one with
        MLPerf's ImageNet TFRecords (train-00000-of-01024 ...).
      image_size: side in pixels of the square image fed to the model; None: the data set's own.
        Small images are averaged over squares, so it must divide their side.
      flip: mirror half of the training images; None: as the data set allows it (see FLIPPED).
      crop_area_min: smallest area of a training crop as a fraction of the image. 0.05 in MLPerf
        v1.0 and where v0.7 caches JPEGs; 0.08 where v0.7 caches decoded images. The two draw alike:
        `preprocess.MIN_OBJECT_COVERED`, with the image as the object, rejects areas below 0.1.
      image_dtype: "uint8", or "bfloat16" for exactly the pixels of the submissions.
      shuffle_buffer_examples: examples that a host draws from at random; 16384 in MLPerf.
    """

    name: str
    data_dir: str
    image_size: int | None = None
    flip: bool | None = None
    crop_area_min: float = 0.05
    image_dtype: str = "uint8"
    shuffle_buffer_examples: int = 16384

    def __post_init__(self) -> None:
        if self.image_dtype not in IMAGE_DTYPES:
            raise UserError(
                f"dataset.image_dtype={self.image_dtype!r}: must be one of "
                f"{', '.join(IMAGE_DTYPES)}"
            )
        if not 0 < self.crop_area_min <= 1:
            raise UserError(f"dataset.crop_area_min={self.crop_area_min}: must be in (0, 1]")
        for key in ("image_size", "shuffle_buffer_examples"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise UserError(f"dataset.{key}={value}: must be at least 1")

    @property
    def flipped(self) -> bool:
        return self.name in FLIPPED if self.flip is None else self.flip

    @property
    def numpy_image_dtype(self) -> np.dtype:
        return np.dtype(np.uint8 if self.image_dtype == "uint8" else ml_dtypes.bfloat16)


def check_averaged(image_size: int, height: int, width: int) -> None:
    """UserError unless images of height x width can be averaged over squares to image_size."""
    if height == width and height % image_size == 0:
        return
    sides = ", ".join(str(side) for side in range(height, 1, -1) if height % side == 0)
    remedy = f"use one of {sides}" if height == width else "small sets need square images"
    raise UserError(
        f"dataset.image_size={image_size}: must divide the images' {height}x{width}; {remedy}"
    )


def read_options(dataset: Mapping) -> Options:
    """Returns the options in a mapping; UserError for keys and values that make no sense."""
    known = [field.name for field in fields(Options)]
    for key in dataset:
        if key not in known:
            raise UserError(
                f"dataset.{key}={dataset[key]!r}: no such option; known: {', '.join(known)}"
            )
    for key in ("name", "data_dir"):
        if not dataset.get(key):
            raise UserError(f"dataset.{key}={dataset.get(key)!r}: must be given")
    return Options(**dataset)
