"""Files that users download themselves: the two ImageNet archives, and Debian's Fashion-MNIST.

The ILSVRC2012 archives are checked in seconds, because preparing them takes hours.

Debian's package dataset-fashion-mnist contains upstream's files without the name and time in the
gzip header. With both restored, the files pass the checksums of tfds.
"""

import shutil
import tarfile
from pathlib import Path

from errors import UserError
from input_pipeline.dataset import GIB
from input_pipeline.formats import SYNSET, is_local

TRAIN, VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
# Sizes from checksums.tsv of tfds.
OFFICIAL_BYTES = {TRAIN: 147_897_477_120, VAL: 6_744_924_160}
OFFICIAL_COUNTS = {TRAIN: 1000, VAL: 50_000}
DISK_FACTOR = 2  # tfds sorts into temporary files before it writes the final ones
BLOCK_BYTES = 512
MODIFIED_SECONDS = {"train": 1504176606, "t10k": 1504176627}  # since 1970, from upstream's headers
FASHION_MNIST_FILES = tuple(
    f"{part}-{content}-ubyte.gz"
    for part in MODIFIED_SECONDS
    for content in ("images-idx3", "labels-idx1")
)
HEADER_BYTES = 10
HAS_NAME = 8  # the flag FNAME of RFC 1952


def check_imagenet(manual_dir: str, data_dir: str, is_subset: bool) -> str:
    """Checks the archives, and returns one line that summarizes them.

    Args:
      manual_dir: directory with both archives.
      data_dir: directory of the prepared data set. Its free space is checked, except in a bucket.
      is_subset: whether to accept fewer synsets and images than in the full set.

    Raises:
      UserError: an archive is missing, truncated or another file, or the disk is too small.
    """
    directory = Path(manual_dir)
    for name in (TRAIN, VAL):
        _check_file(directory / name, is_subset)
    synsets = _names(directory / TRAIN)
    for synset in synsets:
        if not (synset.endswith(".tar") and SYNSET.fullmatch(synset.removesuffix(".tar"))):
            raise _wrong(directory / TRAIN, f"contains {synset!r}; expected n01440764.tar etc.")
    _check_inner(directory / TRAIN)
    images = _names(directory / VAL)
    _check_val_names(directory / VAL, images)
    for name, entries in ((TRAIN, synsets), (VAL, images)):
        if len(entries) != OFFICIAL_COUNTS[name] and not is_subset:
            raise _wrong(
                directory / name, f"contains {len(entries)} entries, not {OFFICIAL_COUNTS[name]}"
            )
    n_bytes = sum((directory / name).stat().st_size for name in (TRAIN, VAL))
    summary = (
        f"{directory}: {len(synsets)} synsets and {len(images)} validation images, "
        f"{n_bytes / GIB:.3g} GiB"
    )
    if not is_local(data_dir):
        return summary
    free_bytes = shutil.disk_usage(data_dir).free
    if free_bytes < DISK_FACTOR * n_bytes:
        raise UserError(
            f"dataset.data_dir={data_dir}: {free_bytes / GIB:.1f} GiB free, "
            f"{DISK_FACTOR * n_bytes / GIB:.1f} GiB needed; free some space or choose another"
        )
    return f"{summary}; {free_bytes / GIB:.0f} GiB free in {data_dir}"


def _wrong(file: Path, problem: str) -> UserError:
    return UserError(
        f"manual_dir: {file}: {problem}; download it again from image-net.org/download-images"
    )


def _check_file(file: Path, is_subset: bool) -> None:
    expected = OFFICIAL_BYTES[file.name]
    if not file.is_file():
        raise UserError(
            f"manual_dir={file.parent}: {file.name} ({expected:,} bytes) is missing; both "
            f"{TRAIN} and {VAL} must be there, from image-net.org/download-images"
        )
    try:
        n_bytes = file.stat().st_size
        with file.open("rb") as archive:
            archive.seek(max(n_bytes - 2 * BLOCK_BYTES, 0))
            tail = archive.read()
    except PermissionError as error:
        raise UserError(f"manual_dir: {file}: no permission to read; grant it") from error
    if n_bytes != expected and not is_subset:
        raise _wrong(
            file,
            f"{n_bytes:,} bytes, not the {expected:,} of the full set: truncated or another file "
            "(to use a part of ImageNet: --subset)",
        )
    if any(tail) or len(tail) < 2 * BLOCK_BYTES:
        raise _wrong(file, "does not end like a tar archive: truncated or another file")


def _names(file: Path) -> list[str]:
    try:
        with tarfile.open(file, "r:") as archive:
            return archive.getnames()
    except tarfile.TarError as error:
        raise _wrong(file, f"truncated or not a tar archive ({error})") from error


def _check_inner(file: Path) -> None:
    """Checks the beginning and the end of every synset's archive."""
    with tarfile.open(file, "r:") as outer:
        for member in outer:
            inner = outer.extractfile(member)
            try:
                if inner is None:
                    raise tarfile.ReadError("not a file")
                tarfile.TarInfo.frombuf(inner.read(BLOCK_BYTES), "utf-8", "strict")
                inner.seek(max(member.size - 2 * BLOCK_BYTES, 0))
                if any(inner.read()):
                    raise tarfile.ReadError("truncated")
            except tarfile.TarError as error:
                raise _wrong(file, f"{member.name} in it is damaged ({error})") from error


def _check_val_names(file: Path, names: list[str]) -> None:
    """Raises UserError unless no name is missing, because tfds assigns labels by order."""
    for i, name in enumerate(sorted(names)):
        expected = f"ILSVRC2012_val_{i + 1:08d}.JPEG"
        if name != expected:
            raise _wrong(
                file,
                f"contains {name!r} where {expected!r} belongs, so later labels would be wrong",
            )
    if not names:
        raise _wrong(file, "is empty")


def restore_fashion_mnist(source: Path, target: Path) -> None:
    """Copies the four files from `source` to `target`, with upstream's gzip headers.

    Raises:
      UserError: a file is missing.
    """
    missing = [name for name in FASHION_MNIST_FILES if not (source / name).is_file()]
    if missing:
        raise UserError(
            f"manual_dir={source}: {', '.join(missing)} missing; "
            "on Debian: apt-get install dataset-fashion-mnist, then "
            "--manual_dir=/usr/share/datasets/fashion-mnist"
        )
    for name in FASHION_MNIST_FILES:
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
