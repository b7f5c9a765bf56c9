"""Prepares data sets on disk with tfds, once, in whichever process needs them first."""

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from etils import epath

from errors import UserError
from input_pipeline import archives, formats
from input_pipeline.dataset import EMBEDDED, KNOWN, locate, missing_message
from input_pipeline.host import tensorflow

REACH_SECONDS = 5.0
DEBIAN_PACKAGE = "Debian's package dataset-fashion-mnist, in /usr/share/datasets/fashion-mnist,"


def ensure(
    name: str, data_dir: str, manual_dir: str | None = None, is_subset: bool = False
) -> formats.Prepared:
    """Returns the data set, and prepares it first if necessary. Several processes may call this.

    Args:
      manual_dir: directory of files that the user has downloaded, named as in the data set's URLs.
      is_subset: whether to accept archives with a part of ImageNet.

    Raises:
      UserError: the name is unknown, or the data cannot be prepared; the message has the fix.
    """
    prepared = locate(name, data_dir)
    if prepared is None:
        if name == "imagenet2012" and manual_dir is None:
            raise UserError(missing_message(name, data_dir))
        _make_directory(data_dir)
        with _lock(name, data_dir):
            prepared = locate(name, data_dir)  # another process may have prepared it meanwhile
            if prepared is None:
                _remove_leftovers(name, data_dir)
                _build(name, data_dir, manual_dir, is_subset)
                prepared = locate(name, data_dir)
                if name == "imagenet2012" and not is_subset:
                    _check_complete(prepared)
    assert prepared is not None, f"tfds did not prepare {name} in {data_dir}"
    formats.check(prepared)
    return prepared


def fetch_if_missing(name: str, data_dir: str) -> None:
    """Prepares a known data set that is missing and must be downloaded, which may fail.

    Does not check a data set that exists. Embedded data sets are prepared when they are read.

    Raises:
      UserError: see `ensure`.
    """
    if name in KNOWN and name not in EMBEDDED and locate(name, data_dir) is None:
        ensure(name, data_dir)


def _check_complete(prepared: formats.Prepared | None) -> None:
    for split, n_expected in (
        ("train", KNOWN["imagenet2012"].n_train_examples),
        ("validation", KNOWN["imagenet2012"].n_eval_examples),
    ):
        if prepared and (n_found := prepared.n_examples(split)) != n_expected:
            raise UserError(
                f"dataset.data_dir={prepared.directory}: {n_found:,} {split} images prepared, not "
                f"the {n_expected:,} of ImageNet; remove it and download the archives again"
            )


def _make_directory(data_dir: str) -> None:
    try:
        epath.Path(data_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"dataset.data_dir={data_dir}: cannot be created: {error}; choose another"
        ) from error


def _remove_leftovers(name: str, data_dir: str) -> None:
    """Removes incomplete directories, as large as the data set, that a killed preparation left.

    The caller has the lock, so no other process is writing to them.
    """
    if not formats.is_local(data_dir):
        return
    for leftover in Path(data_dir, name).glob("incomplete.*"):
        print(f"{leftover}: left by a preparation that was killed; removing it", file=sys.stderr)
        shutil.rmtree(leftover)


@contextlib.contextmanager
def _lock(name: str, data_dir: str) -> Iterator[None]:
    """Locks the preparation of `name`. The lock ends with the process."""
    if not formats.is_local(data_dir):
        yield  # a bucket has no locks, but tfds renames the result atomically
        return
    path = Path(data_dir) / f".{name.replace('/', '.')}.lock"
    try:
        file = path.open("w")
    except OSError as error:
        raise UserError(
            f"dataset.data_dir={data_dir}: not writable: {error}; choose another"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(name: str, data_dir: str, manual_dir: str | None, is_subset: bool) -> None:
    if manual_dir and name == "imagenet2012":
        print(archives.check_imagenet(manual_dir, data_dir, is_subset), file=sys.stderr)
    builder = _builder(name, data_dir)
    with tempfile.TemporaryDirectory() as scratch:
        if manual_dir and name == "fashion_mnist":
            archives.restore_fashion_mnist(Path(manual_dir), Path(scratch))
            manual_dir = scratch
        if name != "imagenet2012" and not (manual_dir and _has_files(builder, manual_dir)):
            _check_reachable(name, list(builder.url_infos or ()), data_dir)
        _download_and_prepare(builder, name, data_dir, manual_dir)


def _download_and_prepare(builder, name: str, data_dir: str, manual_dir: str | None) -> None:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import download_manager

    tfds.display_progress_bar(False)
    config = tfds.download.DownloadConfig(
        manual_dir=manual_dir,
        force_checksums_validation=bool(builder.url_infos),
        try_download_gcs=False,
    )
    print(f"{name}: not in {data_dir} yet; preparing it", file=sys.stderr)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # tfds prints to stdout
            builder.download_and_prepare(
                download_dir=os.path.join(data_dir, "downloads"), download_config=config
            )
    except download_manager.NonMatchingChecksumError as error:
        raise UserError(
            f"dataset.name={name}: a file of {manual_dir or 'the download'} is not the "
            f"published one: {' '.join(str(error).split())}; download it again"
        ) from error


def _builder(name: str, data_dir: str):
    tensorflow()
    import tensorflow_datasets as tfds

    if name in EMBEDDED:
        from input_pipeline.digits import Digits

        return Digits(data_dir=data_dir)
    try:
        return tfds.builder(name, data_dir=data_dir)
    except (tfds.core.registered.DatasetNotFoundError, ValueError):
        raise UserError(  # tfds's own message lists six hundred data sets
            f"dataset.name={name}: neither a known data set ({', '.join(KNOWN)}) nor one of tfds; "
            "check the spelling"
        ) from None


def _has_files(builder, manual_dir: str) -> bool:
    """Returns whether `manual_dir` has all files of the builder's URLs (tfds checks their sums)."""
    names = [info.filename for info in (builder.url_infos or {}).values()]
    return bool(names) and all(name and (epath.Path(manual_dir) / name).exists() for name in names)


def _check_reachable(name: str, urls: list[str], data_dir: str) -> None:
    """Raises UserError within seconds if a download host does not answer (tfds takes minutes)."""
    for host in sorted({urlsplit(url).netloc for url in urls}):
        url = next(url for url in urls if urlsplit(url).netloc == host)
        reason = _why_unreachable(url)
        if reason:
            raise UserError(
                f"dataset.name={name}: cannot be downloaded: {host}: {reason}; connect this "
                f"machine, or fetch the files elsewhere ({', '.join(sorted(urls))}) and run: "
                f"python -m input_pipeline --name={name} --data_dir={data_dir} "
                "--manual_dir=DIRECTORY_OF_THE_FILES"
                + (f" ({DEBIAN_PACKAGE} has them)" if name == "fashion_mnist" else "")
            )


def _why_unreachable(url: str) -> str | None:
    """Returns why a HEAD request fails, or None.

    The request runs in a thread, because name resolution has no timeout.
    """
    reason: list[str | None] = [f"no answer in {REACH_SECONDS:g} s"]

    def request_head() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=REACH_SECONDS):
                reason[0] = None
        except (OSError, urllib.error.URLError) as error:
            reason[0] = str(error)

    thread = threading.Thread(target=request_head, daemon=True)
    thread.start()
    thread.join(REACH_SECONDS)
    return reason[0]
