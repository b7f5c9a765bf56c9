"""Finds, checks and reads data sets prepared by tfds, and MLPerf's ImageNet TFRecords.

The TFRecords (train-00000-of-01024 ...) are used in place. Their records are counted from the
framing, see https://www.tensorflow.org/tutorials/load_data/tfrecord. TensorFlow is imported when
examples are first read.
"""

import bisect
import itertools
import json
import os
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from etils import epath

from errors import UserError
from input_pipeline.host import Dataset, as_written, map_in_order, n_cores, tensorflow

SYNSET = re.compile(r"n\d{8}")
VERSION = re.compile(r"\d+\.\d+\.\d+")
SHARD = re.compile(r"(train|validation)-(\d{5})-of-(\d{5})")
COUNTS_FILE = ".record_counts.json"
HEADER, FOOTER_BYTES = struct.Struct("<QI"), 4  # length and its checksum; checksum of the data
READERS = 16
READ_FILES_AT_ONCE = 16  # as in tfds
READ_EXAMPLES_AT_ONCE = 16


@dataclass(frozen=True)
class Prepared:
    """A data set on disk. `directory` contains its shards and, unless `is_mlperf`, tfds's metadata.

    `image_shape` is the stored (height, width, channels), with None for sizes that vary.
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
        """The common shape of all images, or None if they differ."""
        height, width, n_channels = self.image_shape
        return (height, width, n_channels) if height and width and n_channels else None

    def n_examples(self, split: str) -> int:
        n_examples = sum(self.shard_lengths.get(split, ()))
        if not n_examples:
            raise UserError(
                f"dataset.data_dir={self.directory}: the split {split!r} is empty or missing; "
                f"its splits are {sorted(self.shard_lengths)}; prepare the data set again"
            )
        return n_examples


def shard_files(prepared: Prepared, split: str) -> list[epath.Path]:
    """Returns the paths of a split's files, in order."""
    stem = split if prepared.is_mlperf else f"{prepared.name}-{split}.tfrecord"
    n_shards = len(prepared.shard_lengths[split])
    return [prepared.directory / f"{stem}-{i:05d}-of-{n_shards:05d}" for i in range(n_shards)]


def check(prepared: Prepared) -> None:
    """Raises UserError if a file is missing, empty or unreadable, or classes are out of order."""
    for split in prepared.shard_lengths:
        for file in shard_files(prepared, split):
            check_shard(file)
    if prepared.name == "imagenet2012" and not prepared.is_mlperf:
        _check_synsets(prepared)


def check_shard(file: epath.PathLike) -> None:
    """Raises UserError if a shard is missing, empty or unreadable."""
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


def _check_synsets(prepared: Prepared) -> None:
    """Raises UserError unless the file of class names is in order, since labels index into it."""
    file = prepared.directory / "label.labels.txt"
    synsets = file.read_text().split() if file.exists() else []
    ordered = sorted(set(synsets)) == synsets
    if len(synsets) != 1000 or not ordered or not all(SYNSET.fullmatch(s) for s in synsets):
        raise UserError(
            f"dataset.data_dir: {file}: not the 1000 synsets of ImageNet in order; "
            "prepare the data set again"
        )


def is_local(data_dir: str) -> bool:
    """Returns whether the directory is on a file system of this machine, not in a bucket."""
    return "://" not in str(data_dir)


def find_tfds(name: str, data_dir: str) -> Prepared | None:
    """Returns the newest version of `name` prepared under `data_dir`, or None.

    Searches DATA_DIR/NAME/VERSION, where NAME may include a configuration ("emnist/letters").
    Unfinished directories of tfds have other names.
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
    prepared = read_metadata(max(versions, key=lambda path: tuple(map(int, path.name.split(".")))))
    if prepared.name != name.split("/")[0]:
        raise UserError(
            f"dataset.data_dir={data_dir}: {prepared.directory} contains {prepared.name}, not "
            f"{name}; choose the right directory"
        )
    return prepared


def read_metadata(directory: epath.PathLike) -> Prepared:
    """Returns the data set that the metadata in `directory` describe.

    Raises UserError for metadata that are unreadable or not of an image classification data set.
    """
    directory = epath.Path(directory)
    try:
        info = json.loads((directory / "dataset_info.json").read_text())
        features = json.loads((directory / "features.json").read_text())["featuresDict"]["features"]
        image = features["image"]["image"]
        n_classes = int(features["label"]["classLabel"]["numClasses"])
        lengths = [int(length) for length in image["shape"]["dimensions"]]
        file_format = info.get("fileFormat", "tfrecord")
        prepared = Prepared(
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
        raise  # `dataset.locate` reports it
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"dataset.data_dir={directory}: not a prepared image classification data set (features "
            f"'image' and 'label'): {error!r}; prepare it again or choose another"
        ) from error
    if file_format != "tfrecord":
        raise UserError(
            f"dataset.data_dir={directory}: its files are {file_format}, which tf.data cannot "
            "read; prepare it again as tfrecord, the default of tfds"
        )
    return prepared


def find_mlperf(data_dir: str) -> Prepared | None:
    """Returns MLPerf's TFRecords in `data_dir`, or None if there are none.

    Raises:
      UserError: a shard is missing, empty, unreadable or truncated.
    """
    directory = Path(data_dir)
    if not directory.is_dir() or not any(SHARD.fullmatch(name) for name in os.listdir(directory)):
        return None
    files = {split: _expected_files(directory, split) for split in ("train", "validation")}
    counts = _count_all([file for split in files.values() for file in split], directory)
    shard_lengths = {split: tuple(counts[file.name][1] for file in files[split]) for split in files}
    return Prepared(
        name="imagenet2012",
        directory=epath.Path(directory),
        image_shape=(None, None, 3),
        n_classes=1000,
        shard_lengths=shard_lengths,
        is_mlperf=True,
    )


def _expected_files(directory: Path, split: str) -> list[Path]:
    matches = [SHARD.fullmatch(name) for name in os.listdir(directory)]
    totals = {int(match[3]) for match in matches if match and match[1] == split}
    if len(totals) != 1:
        raise UserError(
            f"dataset.data_dir={directory}: expected one set of files {split}-*-of-*, found "
            f"{len(totals)}; keep exactly one set per split there"
        )
    (n_shards,) = totals
    return [directory / f"{split}-{i:05d}-of-{n_shards:05d}" for i in range(n_shards)]


def _count_all(files: list[Path], directory: Path) -> dict[str, list[int]]:
    """Returns {file name: [bytes, records]}, and counts only files that have changed."""
    for file in files:
        check_shard(file)
    sizes = {file.name: file.stat().st_size for file in files}
    kept = _read_counts(directory)
    new = [file for file in files if kept.get(file.name, [0])[0] != sizes[file.name]]
    with ThreadPoolExecutor(READERS) as pool:
        counted = dict(zip([file.name for file in new], pool.map(count_records, new), strict=True))
    counts = {
        name: [size, counted[name]] if name in counted else kept[name]
        for name, size in sizes.items()
    }
    if new:
        _write_counts(directory, counts)
    return counts


def count_records(file: Path) -> int:
    """Returns the number of records in a file. Raises UserError if it is truncated."""
    size, position, n_records = file.stat().st_size, 0, 0
    with file.open("rb", buffering=0) as records:
        while position < size:
            records.seek(position)
            header = records.read(HEADER.size)
            if len(header) == HEADER.size:
                position += HEADER.size + HEADER.unpack(header)[0] + FOOTER_BYTES
            if len(header) < HEADER.size or position > size:
                raise UserError(
                    f"dataset.data_dir: {file}: truncated or not a TFRecord file "
                    f"(record {n_records} ends after the file's {size} bytes); copy it again"
                )
            n_records += 1
    return n_records


def _read_counts(directory: Path) -> dict[str, list[int]]:
    try:
        return json.loads((directory / COUNTS_FILE).read_text())
    except (OSError, ValueError):
        return {}


def _write_counts(directory: Path, counts: dict[str, list[int]]) -> None:
    """Saves the counts for the next run, unless the directory is read-only."""
    partial = directory / f"{COUNTS_FILE}.{os.getpid()}"
    try:
        partial.write_text(json.dumps(counts))
        partial.replace(directory / COUNTS_FILE)
    except OSError:
        partial.unlink(missing_ok=True)


def read(prepared: Prepared, split: str, start: int, stop: int, named: bool = False) -> Dataset:
    """Returns the encoded examples [start, stop) of a split, in an order fixed by the bounds.

    Returns:
      A tf.data.Dataset of {index int64, jpeg string, label int32}, where `index` numbers the
      examples of the whole split. If `named`, it also has {id string} for messages, which costs as
      much time as reading.
    """
    read_split = _read_mlperf if prepared.is_mlperf else _read_tfds
    return read_split(prepared, split, start, stop, named)


def _read_tfds(prepared: Prepared, split: str, start: int, stop: int, named: bool) -> Dataset:
    tf = tensorflow()
    import tensorflow_datasets as tfds

    examples = tfds.builder_from_directory(prepared.directory).as_dataset(
        split=tfds.core.ReadInstruction(split, from_=start, to=stop, unit="abs"),
        decoders={"image": tfds.decode.SkipDecoding()},
        shuffle_files=False,
        read_config=tfds.ReadConfig(
            interleave_cycle_length=READ_FILES_AT_ONCE,
            interleave_block_length=READ_EXAMPLES_AT_ONCE,
            try_autocache=False,
            skip_prefetch=True,
            add_tfds_id=named,
        ),
    )

    def encoded(index, example):
        label = tf.cast(example["label"], tf.int32)
        numbered = {"index": index, "jpeg": example["image"], "label": label}
        if named:
            name = example.get("file_name", "")
            numbered["id"] = tf.strings.join([name, " (", example["tfds_id"], ")"])
        return numbered

    return map_in_order(examples.enumerate(start), encoded)


def _read_mlperf(prepared: Prepared, split: str, start: int, stop: int, named: bool) -> Dataset:
    tf = tensorflow()
    lengths = prepared.shard_lengths[split]
    ends = list(itertools.accumulate(lengths))
    first, last = bisect.bisect_right(ends, start), bisect.bisect_left(ends, stop)
    starts = np.array(ends[first : last + 1]) - lengths[first : last + 1]
    skips = np.maximum(start - starts, 0)
    takes = np.minimum(stop - starts, lengths[first : last + 1]) - skips
    files = [str(file) for file in shard_files(prepared, split)[first : last + 1]]

    def records(file, skip, take):
        numbers = tf.data.Dataset.range(skip, skip + take)
        packed = tf.data.TFRecordDataset(file).skip(skip).take(take)
        return tf.data.Dataset.zip(packed, numbers).map(
            as_written(lambda record, number: (record, file, number))
        )

    def encoded(index, located):
        record, file, number = located
        parsed = tf.io.parse_single_example(
            record,
            {
                "image/encoded": tf.io.FixedLenFeature((), tf.string),
                "image/class/label": tf.io.FixedLenFeature((), tf.int64),
                "image/filename": tf.io.FixedLenFeature((), tf.string, default_value=""),
            },
        )
        numbered = {
            "index": index,
            "jpeg": parsed["image/encoded"],
            "label": tf.cast(parsed["image/class/label"] - 1, tf.int32),  # stored as 1..1000
        }
        if named:
            place = tf.strings.join(
                [tf.strings.regex_replace(file, ".*/", ""), tf.strings.as_string(number)], "__"
            )
            numbered["id"] = tf.strings.join([parsed["image/filename"], " (", place, ")"])
        return numbered

    interleaved = tf.data.Dataset.from_tensor_slices((files, skips, takes)).interleave(
        as_written(records),
        cycle_length=READ_FILES_AT_ONCE,
        block_length=READ_EXAMPLES_AT_ONCE,
        num_parallel_calls=min(n_cores(), READ_FILES_AT_ONCE),
        deterministic=True,
    )
    return map_in_order(interleaved.enumerate(start), encoded)
