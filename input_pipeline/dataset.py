"""Options of a data set, and the facts that model, schedule and step need.

This module does not import TensorFlow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import ml_dtypes
import numpy as np
from etils import epath

from errors import UserError
from input_pipeline import formats
from input_pipeline.formats import Prepared

FLIPPED = ("imagenet2012", "cifar10")  # a mirrored digit is no digit
GIB = 2**30
CHOICES = {
    "image_dtype": ("uint8", "bfloat16"),
    "cache": ("none", "jpeg", "decoded"),
    "on_corrupt": ("fail", "skip"),
}
EMBEDDED = ("digits",)
DEFAULT_IMAGE_SIZE = 224  # for JPEGs of varying size
LIMIT_BYTES = 256 * 2**20  # decoded images of one split that are kept in memory


@dataclass(frozen=True)
class Options:
    """Options of a data set. Those after `flip` apply to JPEGs of varying size.

    Attributes:
      name: a key of `KNOWN`, or any image classification data set of tfds.
      data_dir: directory of data sets prepared by tfds, or of MLPerf's ImageNet TFRecords
        (train-00000-of-01024 ...).
      image_size: side of the square image fed to the model, in pixels. None keeps the size of the
        data set. Small images are averaged over squares, so it must divide their side.
      flip: whether to mirror half of the training images. None follows `FLIPPED`.
      crop_area_min: smallest area of a training crop as a fraction of the image. 0.05 in MLPerf
        v1.0 and where v0.7 caches JPEGs; 0.08 where v0.7 caches decoded images. Both give the same
        crops, because `stream.MIN_OBJECT_COVERED` rejects areas below 0.1.
      image_dtype: "uint8", or "bfloat16" for exactly the pixels of the MLPerf submissions.
      shuffle_buffer_examples: size of each host's shuffle buffer; 16384 in MLPerf.
      cache: what a host keeps of its training shard: "none", "jpeg" or "decoded".
      cache_limit_gib: memory that the cache of a host may take. More is an error before the start.
      on_corrupt: what happens at an image that cannot be decoded. "fail" raises an error. "skip",
        for training only, replaces it by its neighbour in the batch and logs it.
    """

    name: str
    data_dir: str
    image_size: int | None = None
    flip: bool | None = None
    crop_area_min: float = 0.05
    image_dtype: str = "uint8"
    shuffle_buffer_examples: int = 16384
    cache: str = "none"
    cache_limit_gib: float = 32.0
    on_corrupt: str = "fail"

    def __post_init__(self) -> None:
        for key, choices in CHOICES.items():
            if getattr(self, key) not in choices:
                raise UserError(
                    f"dataset.{key}={getattr(self, key)!r}: must be one of {', '.join(choices)}"
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
    """Raises UserError unless images of height x width can be averaged to image_size."""
    if height == width and height % image_size == 0:
        return
    sides = ", ".join(str(side) for side in range(height, 1, -1) if height % side == 0)
    fix = f"use one of {sides}" if height == width else "small data sets need square images"
    raise UserError(
        f"dataset.image_size={image_size}: must divide the images' {height}x{width}; {fix}"
    )


def read_options(dataset: Mapping) -> Options:
    """Returns the options in a mapping. Raises UserError for an unknown key or an invalid value."""
    names = [field.name for field in fields(Options)]
    for key in dataset:
        if key not in names:
            raise UserError(
                f"dataset.{key}={dataset[key]!r}: no such option; options: {', '.join(names)}"
            )
    for key in ("name", "data_dir"):
        if not dataset.get(key):
            raise UserError(f"dataset.{key}={dataset.get(key)!r}: must be given")
    return Options(**dataset)


@dataclass(frozen=True)
class DatasetSpec:
    """The facts of a data set that model, schedule and step need.

    `image_shape` is (height, width, channels) of the model's input. `mean` and `std` have one value
    per channel, in pixel units 0..255.
    """

    name: str
    n_train_examples: int
    n_eval_examples: int
    n_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _unit(*values: float) -> tuple[float, ...]:
    return tuple(255 * value for value in values)


# Mean and standard deviation: for imagenet2012 those of the MLPerf submissions, for the others the
# commonly published values over the training images, for pixels in 0..1.
KNOWN = {
    spec.name: spec
    for spec in (
        DatasetSpec("digits", 1437, 360, 10, (8, 8, 1), _unit(0.30457), _unit(0.37543)),
        DatasetSpec("mnist", 60_000, 10_000, 10, (28, 28, 1), _unit(0.1307), _unit(0.3081)),
        DatasetSpec("fashion_mnist", 60_000, 10_000, 10, (28, 28, 1), _unit(0.2860), _unit(0.3530)),
        DatasetSpec(
            "cifar10",
            50_000,
            10_000,
            10,
            (32, 32, 3),
            _unit(0.4914, 0.4822, 0.4465),
            _unit(0.2470, 0.2435, 0.2616),
        ),
        DatasetSpec(
            "imagenet2012",
            1_281_167,
            50_000,
            1000,
            (224, 224, 3),
            _unit(0.485, 0.456, 0.406),
            _unit(0.229, 0.224, 0.225),
        ),
    )
}


def fits_in_memory(prepared: Prepared) -> bool:
    """Returns whether the data set is kept in memory: one image shape, at most LIMIT_BYTES.

    Raises UserError for a data set that neither fits nor consists of JPEGs, and so cannot be
    streamed.
    """
    shape = prepared.fixed_shape
    if shape and prepared.n_examples("train") * math.prod(shape) <= LIMIT_BYTES:
        return True
    if prepared.encoding != "jpeg":
        raise UserError(
            f"dataset.name={prepared.name}: stored as {prepared.encoding}, with images of varying "
            f"shape or more than {LIMIT_BYTES:,} bytes; only data sets of JPEGs can be streamed; "
            "choose another"
        )
    return False


def eval_split(prepared: Prepared) -> str:
    """Returns the name of the evaluation split. ImageNet's test split has no labels."""
    splits = ("validation",) if prepared.name == "imagenet2012" else ("test", "validation")
    for split in splits:
        if prepared.shard_lengths.get(split):
            return split
    raise UserError(
        f"dataset.data_dir={prepared.directory}: no {' or '.join(splits)} split, or an empty one; "
        "prepare the data set again"
    )


def locate(name: str, data_dir: str) -> Prepared | None:
    """Returns the data set in `data_dir`, from tfds or as MLPerf's TFRecords, or None."""
    try:
        prepared = formats.find_tfds(name, data_dir)
        if prepared is None and name == "imagenet2012" and formats.is_local(data_dir):
            prepared = formats.find_mlperf(data_dir)
    except PermissionError as error:
        raise UserError(
            f"dataset.data_dir={data_dir}: no permission to read {error.filename}; grant it"
        ) from error
    return prepared


def missing_message(name: str, data_dir: str) -> str:
    """Returns one line that names the missing data set and the command that prepares it."""
    state = (
        "is not prepared there" if epath.Path(data_dir).exists() else "the directory does not exist"
    )
    return (
        f"dataset.data_dir={data_dir}: {name}: {state}; prepare it with: "
        f"python -m input_pipeline --name={name} --data_dir={data_dir}"
    )


def describe(name: str, data_dir: str | None, **options) -> DatasetSpec:
    """Returns the facts of a data set, from its metadata if it is prepared.

    Args:
      name: a key of `KNOWN`, or a data set already prepared in `data_dir`.
      data_dir: directory of the prepared data set. None returns the published facts of a known
        data set without reading the disk.
      options: other fields of `Options`.

    Raises:
      UserError: the data set is unknown, its directory missing or unreadable, or a split empty.
    """
    chosen = read_options({"name": name, "data_dir": data_dir or "unused", **options})
    if data_dir is None:
        return _as_chosen(_known(name), chosen, name == "imagenet2012")
    prepared = locate(name, data_dir)
    if prepared is None and name in KNOWN:
        # Prepared on first use, except ImageNet.
        if name == "imagenet2012":
            raise UserError(missing_message(name, data_dir))
        return _as_chosen(_known(name), chosen, name == "imagenet2012")
    if prepared is None:
        raise UserError(
            f"dataset.name={name}: not a known data set ({', '.join(KNOWN)}) and not prepared in "
            f"dataset.data_dir={data_dir}; prepare another tfds data set with: "
            f"python -m input_pipeline --name={name} --data_dir={data_dir}"
        )
    return _as_chosen(_from_metadata(name, prepared), chosen, not fits_in_memory(prepared))


def _known(name: str) -> DatasetSpec:
    if name not in KNOWN:
        raise UserError(f"dataset.name={name}: not a known data set; known: {', '.join(KNOWN)}")
    return KNOWN[name]


def _from_metadata(name: str, prepared: Prepared) -> DatasetSpec:
    """Returns the counts and shapes on disk, with the mean and deviation of a known data set."""
    published = KNOWN.get(name)
    side = published.image_shape[0] if published else DEFAULT_IMAGE_SIZE
    shape = prepared.fixed_shape or (side, side, 3)
    mean = published.mean if published else (127.5,) * shape[2]
    std = published.std if published else (64.0,) * shape[2]
    return DatasetSpec(
        name=name,
        n_train_examples=prepared.n_examples("train"),
        n_eval_examples=prepared.n_examples(eval_split(prepared)),
        n_classes=prepared.n_classes,
        image_shape=shape,
        mean=mean,
        std=std,
    )


def _as_chosen(spec: DatasetSpec, options: Options, streamed: bool) -> DatasetSpec:
    """Applies `image_size` and checks the options against the kind of data set."""
    if not streamed and options.image_dtype != "uint8":
        raise UserError(
            f"dataset.image_dtype={options.image_dtype}: applies to streamed data sets only; "
            f"{spec.name} is kept in memory as uint8; leave it out"
        )
    image_size = options.image_size
    if image_size is None:
        return spec
    height, width, n_channels = spec.image_shape
    if not streamed:
        check_averaged(image_size, height, width)
    return replace(spec, image_shape=(image_size, image_size, n_channels))
