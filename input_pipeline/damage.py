"""What is wrong with data that cannot be read: the example or file, and the remedy."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from errors import UserError
from input_pipeline import mlperf
from input_pipeline.host import tensorflow
from input_pipeline.prepared import Prepared, shard_files

PNG_SIGNATURE = b"\x89PNG"
MAX_NAMED = 5


@dataclass(frozen=True)
class BadExample:
    """An example whose image cannot be decoded; `index` is its number in the split."""

    index: int
    name: str
    reason: str
    jpeg: bytes


def reading_errors() -> tuple[type[Exception], ...]:
    """Returns what TensorFlow raises for bad data."""
    tf = tensorflow()
    return (
        tf.errors.InvalidArgumentError,  # an image
        tf.errors.DataLossError,  # a record
        tf.errors.FailedPreconditionError,  # tfds: fewer records than its metadata say
    )


def undecodable(examples: Iterable[dict], decode: Callable[[dict], Any]) -> list[BadExample]:
    """Returns the examples that `decode` fails for, by trying one after the other.

    Ends early where the examples themselves cannot be read.
    """
    tf = tensorflow()
    bad = []
    with contextlib.suppress(tf.errors.DataLossError, tf.errors.FailedPreconditionError):
        for example in examples:
            try:
                decode(example)
            except tf.errors.InvalidArgumentError as error:
                name = example["id"].numpy().decode(errors="replace")
                jpeg = example["jpeg"].numpy()
                is_png = jpeg.startswith(PNG_SIGNATURE)
                reason = "a PNG, not a JPEG" if is_png else _first_line(error)
                bad.append(BadExample(int(example["index"]), name, reason, jpeg))
    return bad


def listed(bad: list[BadExample]) -> str:
    """Returns the examples' names and reasons on one line."""
    named = [f"{example.name}: {example.reason}" for example in bad[:MAX_NAMED]]
    return "; ".join(named) + (f"; and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else "")


def corrupt(found: Prepared, bad: list[BadExample]) -> UserError:
    """Returns the error that names the examples."""
    return UserError(
        f"dataset.data_dir={found.directory}: corrupt example {listed(bad)}; prepare it again "
        "from intact files, or train without it: dataset.on_corrupt=skip"
    )


def unreadable(found: Prepared, split: str, error: Exception | None = None) -> UserError:
    """Returns the error for files that end early or hold fewer examples than promised."""
    remedy = "copy or prepare the data set again"
    for file, n_examples in zip(shard_files(found, split), found.shard_lengths[split], strict=True):
        try:
            n_records = mlperf.count_records(Path(file))
        except (UserError, OSError) as reason:
            return UserError(str(reason))
        if n_records != n_examples:
            return UserError(
                f"dataset.data_dir: {file} holds {n_records} examples, its metadata say "
                f"{n_examples}; {remedy}"
            )
    what = _first_line(error) if error else "fewer than the metadata say"
    return UserError(
        f"dataset.data_dir={found.directory}: {split} examples cannot be read: {what}; {remedy}"
    )


def _first_line(error: Exception) -> str:
    """Returns what TensorFlow says, without the names of its ops."""
    text = (getattr(error, "message", "") or str(error)).strip().splitlines()[0]
    return text.split("}} ")[-1].split(" [Op:")[0]
