"""Options of a data set, and its facts: what model, schedule and step need. No TensorFlow here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import ml_dtypes
import numpy as np
from etils import epath

from errors import UserError
from input_pipeline import formats
from input_pipeline.formats import Prepared

FLIPPED = ("imagenet2012", "cifar10")  # a mirrored digit is another digit, or none
GIB = 2**30
IMAGE_DTYPES = ("uint8", "bfloat16")
EMBEDDED = ("digits",)
DEFAULT_IMAGE_SIZE = 224  # of sets of JPEGs of varying size
LIMIT_BYTES = 256 * 2**20  # of decoded images, a split


@dataclass(frozen=True)
class Options:
    """The choices about a data set. Those after `flip` concern sets of JPEGs of varying size.

    Attributes:
      name: a name of `KNOWN`, or of any image classification set of tfds.
      data_dir: the directory that holds prepared data sets, as tfds lays them out; or the one with
        MLPerf's ImageNet TFRecords (train-00000-of-01024 ...).
      image_size: side in pixels of the square image fed to the model; None: the data set's own.
        Small images are averaged over squares, so it must divide their side.
      flip: mirror half of the training images; None: as the data set allows it (see FLIPPED).
      crop_area_min: smallest area of a training crop as a fraction of the image. 0.05 in MLPerf
        v1.0 and where v0.7 caches JPEGs; 0.08 where v0.7 caches decoded images. The two draw alike:
        `stream.MIN_OBJECT_COVERED`, with the image as the object, rejects areas below 0.1.
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


@dataclass(frozen=True)
class DatasetSpec:
    """The facts of a data set that model, schedule and step need.

    `image_shape` is (height, width, channels) as fed to the model; `mean` and `std`, one value a
    channel, are in pixel units 0..255.
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


# Mean and deviation: imagenet2012 as in the MLPerf submissions; the others over their training
# images, as commonly published for pixels in 0..1.
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


def fits_in_memory(found: Prepared) -> bool:
    """Whether the images have one shape and a decoded training split stays within LIMIT_BYTES.

    Raises UserError for a set that neither fits nor consists of JPEGs, which can be streamed.
    """
    shape = found.fixed_shape
    if shape and found.n_examples("train") * math.prod(shape) <= LIMIT_BYTES:
        return True
    if found.encoding != "jpeg":
        raise UserError(
            f"dataset.name={found.name}: stored as {found.encoding} and, decoded, larger than "
            f"{LIMIT_BYTES:,} bytes or of varying shape; only sets of JPEGs can be streamed"
        )
    return False


def eval_split(found: Prepared) -> str:
    """Returns the name of the split to evaluate on; ImageNet's test split has no labels."""
    splits = ("validation",) if found.name == "imagenet2012" else ("test", "validation")
    for split in splits:
        if found.shard_lengths.get(split):
            return split
    raise UserError(
        f"dataset.data_dir={found.directory}: no {' or '.join(splits)} split, or an empty one; "
        "prepare the data set again"
    )


def locate(name: str, data_dir: str) -> Prepared | None:
    """Returns the data set in `data_dir`, as tfds prepared it or as MLPerf's TFRecords; or None."""
    try:
        found = formats.find_tfds(name, data_dir)
        if found is None and name == "imagenet2012" and formats.is_local(data_dir):
            found = formats.find_mlperf(data_dir)
    except PermissionError as error:
        raise UserError(
            f"dataset.data_dir={data_dir}: no permission to read {error.filename}; grant it"
        ) from error
    return found


def missing_message(name: str, data_dir: str) -> str:
    """One line: what is missing and the command that makes it."""
    state = (
        "is not prepared there" if epath.Path(data_dir).exists() else "the directory does not exist"
    )
    return (
        f"dataset.data_dir={data_dir}: {name}: {state}; prepare it with: "
        f"python -m input_pipeline --name={name} --data_dir={data_dir}"
    )


def describe(name: str, data_dir: str | None, **options) -> DatasetSpec:
    """Returns the facts of a data set, from its metadata if it is prepared. Needs no TensorFlow.

    Args:
      name: a name of KNOWN, or a data set already prepared in `data_dir`.
      data_dir: where it is prepared; None: the published facts of a known one, without a look at
        the disk.
      options: the other fields of `Options`.

    Raises:
      UserError: for an unknown data set, a missing or unreadable directory, an empty split.
    """
    chosen = read_options({"name": name, "data_dir": data_dir or "unused", **options})
    if data_dir is None:
        return _as_chosen(_known(name), chosen, name == "imagenet2012")
    found = locate(name, data_dir)
    if found is None and name in KNOWN:
        # Made or fetched on first use. ImageNet cannot be.
        if name == "imagenet2012":
            raise UserError(missing_message(name, data_dir))
        return _as_chosen(_known(name), chosen, name == "imagenet2012")
    if found is None:
        raise UserError(
            f"dataset.name={name}: not a known data set ({', '.join(KNOWN)}) and not prepared in "
            f"dataset.data_dir={data_dir}; prepare another one of tfds with: "
            f"python -m input_pipeline --name={name} --data_dir={data_dir}"
        )
    return _as_chosen(_from_metadata(name, found), chosen, not fits_in_memory(found))


def _known(name: str) -> DatasetSpec:
    if name not in KNOWN:
        raise UserError(f"dataset.name={name}: not a known data set; known: {', '.join(KNOWN)}")
    return KNOWN[name]


def _from_metadata(name: str, found: Prepared) -> DatasetSpec:
    """Counts and shapes are those on disk (a miniature stays one); mean and deviation are known."""
    known = KNOWN.get(name)
    side = known.image_shape[0] if known else DEFAULT_IMAGE_SIZE
    shape = found.fixed_shape or (side, side, 3)
    mean = known.mean if known else (127.5,) * shape[2]
    std = known.std if known else (64.0,) * shape[2]
    return DatasetSpec(
        name=name,
        n_train_examples=found.n_examples("train"),
        n_eval_examples=found.n_examples(eval_split(found)),
        n_classes=found.n_classes,
        image_shape=shape,
        mean=mean,
        std=std,
    )


def _as_chosen(spec: DatasetSpec, options: Options, streamed: bool) -> DatasetSpec:
    """Sets in memory (not `streamed`) are uint8, averaged over squares that divide their side."""
    if not streamed and options.image_dtype != "uint8":
        raise UserError(
            f"dataset.image_dtype={options.image_dtype}: is for sets that are streamed; "
            f"{spec.name} is kept in memory as uint8; leave it out"
        )
    image_size = options.image_size
    if image_size is None:
        return spec
    height, width, n_channels = spec.image_shape
    if not streamed:
        check_averaged(image_size, height, width)
    return replace(spec, image_shape=(image_size, image_size, n_channels))
