"""Encoded examples in a fixed order, from a set prepared by tfds or from MLPerf's own TFRecords.

Both give a tf.data.Dataset of {index int64, jpeg string, label int32}; `index` numbers the examples
of the whole split. If `named`, also {id string} for messages, which costs as much as reading.
"""

import bisect
import itertools

import numpy as np

from input_pipeline.host import Dataset, as_written, map_in_order, n_cores, tensorflow
from input_pipeline.prepared import Prepared, shard_files

READ_FILES_AT_ONCE = 16  # like tfds
READ_EXAMPLES_AT_ONCE = 16


def read(found: Prepared, split: str, start: int, stop: int, named: bool = False) -> Dataset:
    """Returns the examples [start, stop) of a split, in an order that only the bounds decide."""
    read_split = _read_mlperf if found.is_mlperf else _read_tfds
    return read_split(found, split, start, stop, named)


def _read_tfds(found: Prepared, split: str, start: int, stop: int, named: bool) -> Dataset:
    tf = tensorflow()
    import tensorflow_datasets as tfds

    examples = tfds.builder_from_directory(found.directory).as_dataset(
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


def _read_mlperf(found: Prepared, split: str, start: int, stop: int, named: bool) -> Dataset:
    tf = tensorflow()
    lengths = found.shard_lengths[split]
    ends = list(itertools.accumulate(lengths))
    first, last = bisect.bisect_right(ends, start), bisect.bisect_left(ends, stop)
    starts = np.array(ends[first : last + 1]) - lengths[first : last + 1]
    skips = np.maximum(start - starts, 0)
    takes = np.minimum(stop - starts, lengths[first : last + 1]) - skips
    files = [str(file) for file in shard_files(found, split)[first : last + 1]]

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
