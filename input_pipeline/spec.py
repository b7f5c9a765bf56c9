"""What a data set is: the facts that model, schedule and step need. No TensorFlow here."""

from dataclasses import dataclass, replace

from etils import epath

from errors import UserError
from input_pipeline import memory, mlperf, prepared, tfds_metadata
from input_pipeline.options import Options, check_averaged, read_options


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
EMBEDDED = ("digits",)
DEFAULT_IMAGE_SIZE = 224  # of sets of JPEGs of varying size


def eval_split(found: prepared.Prepared) -> str:
    """Returns the name of the split to evaluate on; ImageNet's test split has no labels."""
    splits = ("validation",) if found.name == "imagenet2012" else ("test", "validation")
    for split in splits:
        if found.shard_lengths.get(split):
            return split
    raise UserError(
        f"dataset.data_dir={found.directory}: no {' or '.join(splits)} split, or an empty one; "
        "prepare the data set again"
    )


def locate(name: str, data_dir: str) -> prepared.Prepared | None:
    """Returns the data set in `data_dir`, as tfds prepared it or as MLPerf's TFRecords; or None."""
    try:
        found = tfds_metadata.find(name, data_dir)
        if found is None and name == "imagenet2012" and prepared.is_local(data_dir):
            found = mlperf.find(data_dir)
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
    return _as_chosen(_from_metadata(name, found), chosen, not memory.fits(found))


def _known(name: str) -> DatasetSpec:
    if name not in KNOWN:
        raise UserError(f"dataset.name={name}: not a known data set; known: {', '.join(KNOWN)}")
    return KNOWN[name]


def _from_metadata(name: str, found: prepared.Prepared) -> DatasetSpec:
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
