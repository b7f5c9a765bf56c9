"""Prepares a data set on disk.

python -m input_pipeline --name=fashion_mnist --data_dir=data [--manual_dir=DIRECTORY]
python -m input_pipeline --name=imagenet2012 --data_dir=data --manual_dir=ILSVRC_DIRECTORY
"""

import sys

from errors import DONE, USER_ERROR, OneLineParser, UserError
from input_pipeline import prepare
from input_pipeline.dataset import KNOWN


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0, or 2 after one message for the user."""
    parser = OneLineParser(
        prog="python -m input_pipeline", description="Prepare a data set on disk with tfds."
    )
    parser.add_argument(
        "--name", default="digits", help=", ".join(KNOWN) + ", or any other tfds data set"
    )
    parser.add_argument("--data_dir", required=True, help="directory for the prepared data set")
    parser.add_argument("--manual_dir", help="directory with files that you downloaded yourself")
    parser.add_argument(
        "--subset", action="store_true", help="accept archives with a part of ImageNet"
    )
    flags = parser.parse_args(arguments)
    try:
        prepared = prepare.ensure(flags.name, flags.data_dir, flags.manual_dir, flags.subset)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    counts = {split: sum(lengths) for split, lengths in prepared.shard_lengths.items()}
    print(f"{flags.name} is prepared in {prepared.directory}: {counts}")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
