"""Data sets that tfds has prepared on disk: their JSON metadata, read without TensorFlow."""

import json
import re
from dataclasses import dataclass

from etils import epath

VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Prepared:
    """One prepared data set: `directory` holds dataset_info.json, features.json and the shards.

    `image_shape` is (height, width, channels) as stored, None where it varies.
    """

    directory: epath.Path
    image_shape: tuple[int | None, ...]
    n_classes: int
    shard_lengths: dict[str, tuple[int, ...]]

    def n_examples(self, split: str) -> int:
        n_examples = sum(self.shard_lengths.get(split, ()))
        if not n_examples:
            raise ValueError(
                f"dataset.data_dir={self.directory}: the split {split!r} is empty or missing; "
                f"found {sorted(self.shard_lengths)}; prepare the data set again"
            )
        return n_examples


def missing_message(name: str, data_dir: str) -> str:
    """One line: what is missing and the command that makes it."""
    state = (
        "is not prepared there" if epath.Path(data_dir).exists() else "the directory does not exist"
    )
    return (
        f"dataset.data_dir={data_dir}: {name}: {state}; prepare it with: "
        f"python -m input_pipeline --name={name} --data_dir={data_dir}"
    )


def find(name: str, data_dir: str) -> Prepared | None:
    """Returns the newest version of `name` prepared under `data_dir`, or None.

    Looks at DATA_DIR/NAME/VERSION and, for a name with a configuration such as "emnist/letters", at
    DATA_DIR/NAME/CONFIG/VERSION. Directories that tfds has not finished have other names.
    """
    root = epath.Path(data_dir) / name
    try:
        versions = (
            [path for path in root.iterdir() if VERSION.fullmatch(path.name)]
            if root.is_dir()
            else []
        )
        versions = [path for path in versions if (path / "dataset_info.json").exists()]
    except PermissionError as error:
        raise ValueError(
            f"dataset.data_dir={data_dir}: no permission to read {root}; grant it"
        ) from error
    if not versions:
        return None
    return read(max(versions, key=lambda path: tuple(map(int, path.name.split(".")))))


def read(directory: epath.PathLike) -> Prepared:
    """Returns what the metadata in `directory` say; ValueError if unreadable or of no use."""
    directory = epath.Path(directory)
    try:
        info = json.loads((directory / "dataset_info.json").read_text())
        features = json.loads((directory / "features.json").read_text())["featuresDict"]["features"]
        shape = features["image"]["image"]["shape"]["dimensions"]
        n_classes = int(features["label"]["classLabel"]["numClasses"])
    except PermissionError as error:
        raise ValueError(
            f"dataset.data_dir={directory}: no permission to read the metadata"
        ) from error
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"dataset.data_dir={directory}: not a prepared image classification set (features "
            f"'image' and "
            f"'label'): {error!r}; prepare it again or choose another"
        ) from error
    return Prepared(
        directory=directory,
        image_shape=tuple(int(length) if int(length) > 0 else None for length in shape),
        n_classes=n_classes,
        shard_lengths={
            split["name"]: tuple(int(n) for n in split.get("shardLengths", ()))
            for split in info["splits"]
        },
    )


def is_local(data_dir: str) -> bool:
    """Whether the directory lies on a file system of this machine, and not in a bucket."""
    return "://" not in str(data_dir)
