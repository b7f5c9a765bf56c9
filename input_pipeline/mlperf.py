"""MLPerf's ImageNet TFRecords (train-00000-of-01024 ...), found and counted where they lie.

Only their framing is looked at here: https://www.tensorflow.org/tutorials/load_data/tfrecord.
"""

import json
import os
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from etils import epath

from errors import UserError
from input_pipeline.prepared import Prepared, check_shard

SHARD = re.compile(r"(train|validation)-(\d{5})-of-(\d{5})")
COUNTS_FILE = ".record_counts.json"
HEADER, FOOTER_BYTES = struct.Struct("<QI"), 4  # length, its checksum; the data's checksum
READERS = 16


def find(data_dir: str) -> Prepared | None:
    """Returns the TFRecords in `data_dir` as a prepared data set, or None if there are none.

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
            f"{len(totals)}; put both splits, and nothing else of the kind, there"
        )
    (n_shards,) = totals
    return [directory / f"{split}-{i:05d}-of-{n_shards:05d}" for i in range(n_shards)]


def _count_all(files: list[Path], directory: Path) -> dict[str, list[int]]:
    """Returns [bytes, records] by file name; counts only what earlier runs have not counted."""
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
    """Returns the number of records, by their headers; UserError if the file ends within one."""
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
    """Keeps the counts for the next run; a directory that is read-only does without."""
    partial = directory / f"{COUNTS_FILE}.{os.getpid()}"
    try:
        partial.write_text(json.dumps(counts))
        partial.replace(directory / COUNTS_FILE)
    except OSError:
        partial.unlink(missing_ok=True)
