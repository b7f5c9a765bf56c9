"""Data sets that tfds has prepared: their JSON metadata, read without TensorFlow or tfds."""

import json
import re

from etils import epath

from errors import UserError
from input_pipeline.prepared import Prepared

VERSION = re.compile(r"\d+\.\d+\.\d+")


def find(name: str, data_dir: str) -> Prepared | None:
    """Returns the newest version of `name` prepared under `data_dir`, or None.

    Looks at DATA_DIR/NAME/VERSION and, for a name with a configuration such as "emnist/letters", at
    DATA_DIR/NAME/CONFIG/VERSION. Directories that tfds has not finished have other names.
    """
    root = epath.Path(data_dir) / name
    if not root.is_dir():
        return None
    versions = [
        path
        for path in root.iterdir()
        if VERSION.fullmatch(path.name) and (path / "dataset_info.json").exists()
    ]
    if not versions:
        return None
    found = read(max(versions, key=lambda path: tuple(map(int, path.name.split(".")))))
    if found.name != name.split("/")[0]:
        raise UserError(
            f"dataset.data_dir={data_dir}: {found.directory} holds {found.name}, not {name}; "
            "point it at the right directory"
        )
    return found


def read(directory: epath.PathLike) -> Prepared:
    """Returns what the metadata in `directory` say; UserError if unreadable or of no use."""
    directory = epath.Path(directory)
    try:
        info = json.loads((directory / "dataset_info.json").read_text())
        features = json.loads((directory / "features.json").read_text())["featuresDict"]["features"]
        image = features["image"]["image"]
        n_classes = int(features["label"]["classLabel"]["numClasses"])
        lengths = [int(length) for length in image["shape"]["dimensions"]]
        file_format = info.get("fileFormat", "tfrecord")
        found = Prepared(
            name=info["name"],
            directory=directory,
            image_shape=tuple(length if length > 0 else None for length in lengths),
            n_classes=n_classes,
            shard_lengths={
                split["name"]: tuple(int(n) for n in split.get("shardLengths", ()))
                for split in info["splits"]
            },
            encoding=image.get("encodingFormat", "png"),
        )
    except PermissionError:
        raise  # told like any other file without permission
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"dataset.data_dir={directory}: not a prepared image classification set (features "
            f"'image' and 'label'): {error!r}; prepare it again or choose another"
        ) from error
    if file_format != "tfrecord":
        raise UserError(
            f"dataset.data_dir={directory}: its files are {file_format}, which tf.data does "
            "not read; prepare it again as tfrecord, which is tfds's default"
        )
    return found
