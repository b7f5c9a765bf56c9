"""Error messages for damaged data, which name the example or file and the fix."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from errors import UserError
from input_pipeline.formats import Prepared, count_records, shard_files
from input_pipeline.host import tensorflow

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
    """Returns the exceptions that TensorFlow raises for damaged data."""
    tf = tensorflow()
    return (
        tf.errors.InvalidArgumentError,  # an image
        tf.errors.DataLossError,  # a record
        tf.errors.FailedPreconditionError,  # tfds: fewer records than in its metadata
    )


def undecodable(examples: Iterable[dict], decode: Callable[[dict], Any]) -> list[BadExample]:
    """Returns the examples for which `decode` fails, by decoding them one by one.

    Stops where a record cannot be read.
    """
    tf = tensorflow()
    bad = []
    with contextlib.suppress(tf.errors.DataLossError, tf.errors.FailedPreconditionError):
        for example in examples:
            try:
                decode(example)
            except tf.errors.InvalidArgumentError as error:
                jpeg = example["jpeg"].numpy()
                is_png = jpeg.startswith(PNG_SIGNATURE)
                name = example["id"].numpy().decode(errors="replace")
                reason = "a PNG, not a JPEG" if is_png else _first_line(error)
                bad.append(BadExample(int(example["index"]), name, reason, jpeg))
    return bad


def listed(bad: Sequence[BadExample]) -> str:
    """Returns the names of the examples and the reasons on one line."""
    named = "; ".join(f"{example.name}: {example.reason}" for example in bad[:MAX_NAMED])
    return named + (f"; and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else "")


def explained(
    prepared: Prepared, split: str, bad: Sequence[BadExample], error: Exception
) -> UserError:
    """Returns an error that names the bad examples, or a damaged file if there are none."""
    if not bad:
        return unreadable(prepared, split, error)
    skip = ", or set dataset.on_corrupt=skip" if split == "train" else ""
    return UserError(
        f"dataset.data_dir={prepared.directory}: corrupt example {listed(bad)}; prepare the data "
        f"set again from intact files{skip}"
    )


def unreadable(prepared: Prepared, split: str, error: Exception | None = None) -> UserError:
    """Returns an error for files that are truncated or have fewer examples than their metadata."""
    fix = "copy or prepare the data set again"
    for file, n_examples in zip(
        shard_files(prepared, split), prepared.shard_lengths[split], strict=True
    ):
        try:
            n_records = count_records(Path(file))
        except (UserError, OSError) as file_error:
            return UserError(str(file_error))
        if n_records != n_examples:
            return UserError(
                f"dataset.data_dir: {file} contains {n_records} examples, but its metadata "
                f"promise {n_examples}; {fix}"
            )
    reason = _first_line(error) if error else "fewer than in the metadata"
    return UserError(
        f"dataset.data_dir={prepared.directory}: {split} examples cannot be read: {reason}; {fix}"
    )


def _first_line(error: Exception) -> str:
    """Returns the first line of TensorFlow's message without the names of its ops."""
    text = (getattr(error, "message", "") or str(error)).strip().splitlines()[0]
    return text.split("}} ")[-1].split(" [Op:")[0]
