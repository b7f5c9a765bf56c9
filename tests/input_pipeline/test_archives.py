import shutil
import tarfile
from types import SimpleNamespace

import miniature
import pytest

from input_pipeline import archives


def check(directory, is_subset=True):
    return archives.check_imagenet(str(directory), str(directory), is_subset)


@pytest.fixture
def tars(tmp_path):
    return miniature.write_tars(tmp_path)


def test_an_intact_miniature_passes_and_is_counted(tars):
    assert "3 synsets and 11 validation images" in check(tars)


def test_a_subset_needs_the_flag(tars):
    with pytest.raises(ValueError, match=r"not the 147,897,477,120 of the full set.*--subset"):
        check(tars, is_subset=False)


@pytest.mark.parametrize("name", [archives.TRAIN, archives.VAL])
def test_a_missing_archive_is_named_with_size_and_source(tars, name):
    (tars / name).unlink()
    size = f"{archives.OFFICIAL_BYTES[name]:,}"
    with pytest.raises(ValueError, match=rf"{name} \({size} bytes\) is missing.*image-net.org"):
        check(tars)


@pytest.mark.parametrize("name", [archives.TRAIN, archives.VAL])
@pytest.mark.parametrize("removed_bytes", [100, 5000])
def test_a_truncated_archive_is_named(tars, name, removed_bytes):
    archive = tars / name
    kept = archive.read_bytes().rstrip(b"\0")
    archive.write_bytes(kept[:-removed_bytes])
    with pytest.raises(ValueError, match=rf"{name}.*truncated"):
        check(tars)


def test_an_archive_cut_between_two_images_is_detected_by_its_missing_end(tars):
    """All members are intact. Only the two blocks of zeros that end every tar are missing."""
    with tarfile.open(tars / archives.VAL) as archive:
        last = archive.getmembers()[-1].offset
    (tars / archives.VAL).write_bytes((tars / archives.VAL).read_bytes()[:last])
    with pytest.raises(ValueError, match=r"img_val.tar.*does not end like a tar archive"):
        check(tars)


def test_a_file_that_is_not_an_archive_is_named(tars):
    (tars / archives.TRAIN).write_bytes(b"<html>not found</html>" * 99 + bytes(1024))
    with pytest.raises(ValueError, match=r"img_train.tar.*not a tar archive"):
        check(tars)


def test_a_damaged_synset_within_the_archive_is_named(tars):
    inner = {"n01440764.tar": miniature.tar(miniature.train_images())[:2000]}
    (tars / archives.TRAIN).write_bytes(miniature.tar(inner))
    with pytest.raises(ValueError, match=r"n01440764.tar in it is damaged"):
        check(tars)


@pytest.mark.parametrize(
    ("number", "replacement"),
    [
        (5, None),  # a gap: tfds would shift all later labels
        (1, "val/ILSVRC2012_val_00000001.JPEG"),  # sorts after the others
        (11, "readme.txt"),
    ],
)
def test_val_names_that_would_shift_the_labels_are_refused(tmp_path, number, replacement):
    images = miniature.val_images()
    missing = f"ILSVRC2012_val_{number:08d}.JPEG"
    content = images.pop(missing)
    if replacement:
        images[replacement] = content
    miniature.write_tars(tmp_path, val=images)
    with pytest.raises(ValueError, match=rf"where '{missing}' belongs, so later labels"):
        check(tmp_path)


def test_the_train_archive_must_contain_synsets(tars):
    (tars / archives.TRAIN).write_bytes(miniature.tar(miniature.train_images()))
    with pytest.raises(ValueError, match=r"contains 'n01440764_0.JPEG'; expected n01440764.tar"):
        check(tars)


def test_free_space_of_a_bucket_is_not_checked(tars):
    assert "11 validation images" in archives.check_imagenet(
        str(tars), "gs://bucket/data", is_subset=True
    )


def test_too_little_disk_space_is_reported_before_the_start(tars, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=r"0.0 GiB free, .* GiB needed; free some space"):
        check(tars)
