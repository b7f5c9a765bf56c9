"""Data sets that tfds has prepared: their JSON metadata, read without TensorFlow or tfds."""

import json
import re

from etils import epath

from input_pipeline.prepared import Prepared

VERSION = re.compile(r"\d+\.\d+\.\d+")


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
    found = read(max(versions, key=lambda path: tuple(map(int, path.name.split(".")))))
    if found.name != name.split("/")[0]:
        raise ValueError(
            f"dataset.data_dir={data_dir}: {found.directory} holds {found.name}, not {name}; "
            "point it at the right directory"
        )
    return found


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
        name=info["name"],
        directory=directory,
        image_shape=tuple(int(length) if int(length) > 0 else None for length in shape),
        n_classes=n_classes,
        shard_lengths={
            split["name"]: tuple(int(n) for n in split.get("shardLengths", ()))
            for split in info["splits"]
        },
    )
