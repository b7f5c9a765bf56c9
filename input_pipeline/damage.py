"""What is wrong with data that cannot be read: the example or file, and the remedy."""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from errors import UserError
from input_pipeline.formats import Prepared, count_records, shard_files
from input_pipeline.host import tensorflow

PNG_SIGNATURE = b"\x89PNG"
MAX_NAMED = 5


def reading_errors() -> tuple[type[Exception], ...]:
    """Returns what TensorFlow raises for bad data."""
    tf = tensorflow()
    return (
        tf.errors.InvalidArgumentError,  # an image
        tf.errors.DataLossError,  # a record
        tf.errors.FailedPreconditionError,  # tfds: fewer records than its metadata say
    )


def explained(
    found: Prepared,
    split: str,
    suspects: Iterable[dict],
    decode: Callable[[dict], Any],
    error: Exception,
) -> UserError:
    """Returns the error that names those of `suspects` that `decode` fails for, or the file.

    Tries one example after the other, until the examples themselves cannot be read.
    """
    tf = tensorflow()
    bad = []
    with contextlib.suppress(tf.errors.DataLossError, tf.errors.FailedPreconditionError):
        for example in suspects:
            try:
                decode(example)
            except tf.errors.InvalidArgumentError as reason:
                is_png = example["jpeg"].numpy().startswith(PNG_SIGNATURE)
                name = example["id"].numpy().decode(errors="replace")
                bad.append(f"{name}: {'a PNG, not a JPEG' if is_png else _first_line(reason)}")
    if not bad:
        return unreadable(found, split, error)
    named = "; ".join(bad[:MAX_NAMED])
    more = f"; and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
    return UserError(
        f"dataset.data_dir={found.directory}: corrupt example {named}{more}; prepare the data set "
        "again from intact files"
    )


def unreadable(found: Prepared, split: str, error: Exception | None = None) -> UserError:
    """Returns the error for files that end early or hold fewer examples than promised."""
    remedy = "copy or prepare the data set again"
    for file, n_examples in zip(shard_files(found, split), found.shard_lengths[split], strict=True):
        try:
            n_records = count_records(Path(file))
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
