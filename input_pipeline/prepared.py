"""Data sets on disk: what is known of one, and checks of its files. No TensorFlow here."""

import re
from dataclasses import dataclass, field

from etils import epath

from errors import UserError

SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Prepared:
    """One data set on disk: `directory` holds the shards and, but for MLPerf's, tfds's metadata.

    `image_shape` is (height, width, channels) as stored, None where it varies.
    """

    name: str
    directory: epath.Path
    image_shape: tuple[int | None, ...]
    n_classes: int
    shard_lengths: dict[str, tuple[int, ...]] = field(hash=False)
    encoding: str = "jpeg"  # or "png"
    is_mlperf: bool = False

    @property
    def fixed_shape(self) -> tuple[int, int, int] | None:
        """The shape that all images have; None if they differ (JPEGs, decoded as RGB)."""
        height, width, n_channels = self.image_shape
        return (height, width, n_channels) if height and width and n_channels else None

    def n_examples(self, split: str) -> int:
        n_examples = sum(self.shard_lengths.get(split, ()))
        if not n_examples:
            raise UserError(
                f"dataset.data_dir={self.directory}: the split {split!r} is empty or missing; "
                f"found {sorted(self.shard_lengths)}; prepare the data set again"
            )
        return n_examples


def shard_files(found: Prepared, split: str) -> list[epath.Path]:
    """Returns the paths of a split's files, in order."""
    stem = split if found.is_mlperf else f"{found.name}-{split}.tfrecord"
    n_shards = len(found.shard_lengths[split])
    return [found.directory / f"{stem}-{i:05d}-of-{n_shards:05d}" for i in range(n_shards)]


def check(found: Prepared) -> None:
    """Raises UserError if a file is missing, empty or unreadable, or the classes disordered."""
    for split in found.shard_lengths:
        for file in shard_files(found, split):
            check_shard(file)
    if found.name == "imagenet2012" and not found.is_mlperf:
        _check_synsets(found)


def check_shard(file: epath.PathLike) -> None:
    """Raises UserError if one file of examples is missing, empty or unreadable."""
    file = epath.Path(file)
    try:
        with file.open("rb") as opened:
            is_empty = not opened.read(1)
    except FileNotFoundError as error:
        raise UserError(
            f"dataset.data_dir: {file} is missing; copy or prepare the data set again"
        ) from error
    except PermissionError as error:
        raise UserError(
            f"dataset.data_dir: {file}: no permission to read; grant it (chmod a+r)"
        ) from error
    if is_empty:
        raise UserError(f"dataset.data_dir: {file} is empty; copy or prepare the data set again")


def _check_synsets(found: Prepared) -> None:
    """The labels are positions in this file: another order would train, and evaluate, nonsense."""
    file = found.directory / "label.labels.txt"
    synsets = file.read_text().split() if file.exists() else []
    ordered = sorted(set(synsets)) == synsets
    if len(synsets) != 1000 or not ordered or not all(SYNSET.fullmatch(s) for s in synsets):
        raise UserError(
            f"dataset.data_dir: {file}: not the 1000 synsets of ImageNet in order; "
            "prepare the data set again"
        )


def is_local(data_dir: str) -> bool:
    """Whether the directory lies on a file system of this machine, and not in a bucket."""
    return "://" not in str(data_dir)
