"""What is wrong with data that cannot be read: the example or file, and the remedy."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def undecodable(examples: Iterable[dict], decode: Callable[[dict], Any]) -> list[BadExample]:
    """Returns the examples that `decode` fails for, by trying one after the other."""
    tf = tensorflow()
    bad = []
    for example in examples:
        try:
            decode(example)
        except tf.errors.InvalidArgumentError as error:
            if example["jpeg"].numpy().startswith(PNG_SIGNATURE):
                reason = "a PNG, not a JPEG"
            else:
                reason = _first_line(error)
            name = example["id"].numpy().decode(errors="replace")
            bad.append(BadExample(int(example["index"]), name, reason))
    return bad


def listed(bad: list[BadExample]) -> str:
    """Returns the examples' names and reasons on one line."""
    named = [f"{example.name}: {example.reason}" for example in bad[:MAX_NAMED]]
    return "; ".join(named) + (f"; and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else "")


def corrupt(found: Prepared, bad: list[BadExample]) -> ValueError:
    """Returns the error that names the examples."""
    return ValueError(
        f"dataset.data_dir={found.directory}: corrupt example {listed(bad)}; prepare it again "
        "from intact files, or train without it: dataset.on_corrupt=skip"
    )


def unreadable(found: Prepared, split: str, error: Exception) -> ValueError:
    """Returns the error for a file that ends early or has changed, named if it can be found."""
    for file in shard_files(found, split):
        try:
            mlperf.count_records(Path(file))
        except (ValueError, OSError) as reason:
            return ValueError(str(reason))
    return ValueError(
        f"dataset.data_dir={found.directory}: the {split} examples cannot be read: "
        f"{_first_line(error)}; copy or prepare the data set again"
    )


def too_few(found: Prepared, split: str) -> ValueError:
    """Returns the error for files that hold fewer examples than promised."""
    for file, n_examples in zip(shard_files(found, split), found.shard_lengths[split], strict=True):
        if (n_records := mlperf.count_records(Path(file))) != n_examples:
            return ValueError(
                f"dataset.data_dir: {file} holds {n_records} examples, its metadata say "
                f"{n_examples}; copy or prepare the data set again"
            )
    return ValueError(
        f"dataset.data_dir={found.directory}: fewer {split} examples were read than its metadata "
        f"say ({found.n_examples(split)}); prepare the data set again"
    )


def _first_line(error: Exception) -> str:
    text = getattr(error, "message", "") or str(error)
    return text.strip().splitlines()[0].removeprefix("{{function_node").split("}} ")[-1]
