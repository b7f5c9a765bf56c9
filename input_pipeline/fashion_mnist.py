"""Fashion-MNIST from Debian's package dataset-fashion-mnist, as the files that tfds expects.

Debian packed upstream's files again without name and time in the gzip header; nothing else differs.
With both put back, the files pass tfds's own checksums.
"""

from pathlib import Path

from errors import UserError

MODIFIED_SECONDS = {"train": 1504176606, "t10k": 1504176627}  # since 1970, in upstream's headers
FILES = tuple(
    f"{part}-{content}-ubyte.gz"
    for part in MODIFIED_SECONDS
    for content in ("images-idx3", "labels-idx1")
)
HEADER_BYTES = 10
HAS_NAME = 8  # the flag FNAME of RFC 1952


def restore_headers(source: Path, target: Path) -> None:
    """Writes the four files of `source` into `target`, with upstream's gzip headers.

    Raises:
      UserError: a file is missing.
    """
    missing = [name for name in FILES if not (source / name).is_file()]
    if missing:
        raise UserError(
            f"manual_dir={source}: {', '.join(missing)} missing; "
            "on Debian: apt-get install dataset-fashion-mnist, then "
            "--manual_dir=/usr/share/datasets/fashion-mnist"
        )
    for name in FILES:
        packed = (source / name).read_bytes()
        if not packed[3] & HAS_NAME:
            modified = MODIFIED_SECONDS[name.split("-")[0]].to_bytes(4, "little")
            stem = name.removesuffix(".gz").encode() + b"\0"
            flags = bytes([packed[3] | HAS_NAME])
            packed = (
                packed[:3]
                + flags
                + modified
                + packed[8:HEADER_BYTES]
                + stem
                + packed[HEADER_BYTES:]
            )
        (target / name).write_bytes(packed)
