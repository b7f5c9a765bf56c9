"""A miniature ImageNet of generated images, in the format of the real archives."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = {"n01440764": 0, "n02105855": 230, "n15075141": 999}
SYNSETS = tuple(CLASSES)
PNG_IN_DISGUISE = "n02105855_2933.JPEG"  # tfds converts this file, which it identifies by name
N_TRAIN_EACH = 14
N_VAL = 11


def draw(number: int, kind: str = "RGB", size: tuple[int, int] | None = None) -> bytes:
    """Returns a smooth, distinct image with sides of 40 to 90 pixels, as JPEG or PNG."""
    rng = np.random.default_rng(number)
    height, width = size or tuple(rng.integers(40, 90, 2))
    y, x = np.mgrid[0:height, 0:width] / 20
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(0, 3, (3, 3))]
    image = Image.fromarray((127.5 + 127.5 * np.stack(waves, -1)).astype(np.uint8))
    packed = io.BytesIO()
    if kind == "PNG":
        image.save(packed, "PNG")
    else:
        image.convert(kind).save(packed, "JPEG", quality=90)
    return packed.getvalue()


def train_images() -> dict[str, bytes]:
    """Returns training images by file name, including grey, CMYK and tiny ones, and a PNG."""
    images = {}
    for i, synset in enumerate(SYNSETS):
        for j in range(N_TRAIN_EACH):
            images[f"{synset}_{j}.JPEG"] = draw(100 * i + j)
    images[f"{SYNSETS[0]}_0.JPEG"] = draw(1000, "L")
    images[f"{SYNSETS[0]}_1.JPEG"] = draw(1001, "CMYK")
    images[f"{SYNSETS[0]}_2.JPEG"] = draw(1002, size=(1, 1))
    images[f"{SYNSETS[0]}_3.JPEG"] = draw(1003, size=(3, 200))
    del images[f"{SYNSETS[1]}_0.JPEG"]
    images[PNG_IN_DISGUISE] = draw(1004, "PNG")
    return images


def val_images() -> dict[str, bytes]:
    """Returns the validation images by file name, numbered from 1."""
    return {f"ILSVRC2012_val_{i + 1:08d}.JPEG": draw(2000 + i) for i in range(N_VAL)}


def tar(files: dict[str, bytes]) -> bytes:
    """Returns an uncompressed tar archive of the files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def write_tars(
    directory: Path,
    train: dict[str, bytes] | None = None,
    val: dict[str, bytes] | None = None,
) -> Path:
    """Writes both ILSVRC tars, by default from `train_images` and `val_images`."""
    directory.mkdir(parents=True, exist_ok=True)
    train = train_images() if train is None else train
    synsets: dict[str, dict[str, bytes]] = {}
    for name, content in train.items():
        synsets.setdefault(name.split("_")[0], {})[name] = content
    outer = {f"{synset}.tar": tar(files) for synset, files in synsets.items()}
    (directory / "ILSVRC2012_img_train.tar").write_bytes(tar(outer))
    val = val_images() if val is None else val
    (directory / "ILSVRC2012_img_val.tar").write_bytes(tar(val))
    return directory


def write_mlperf(
    directory: Path, split: str, labelled: list[tuple[str, bytes, int]], counts: list[int]
) -> None:
    """Writes (name, image, label from 1) to files with `counts` records."""
    import tensorflow as tf

    def feature(value):
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    remaining = iter(labelled)
    for i, count in enumerate(counts):
        file = directory / f"{split}-{i:05d}-of-{len(counts):05d}"
        with tf.io.TFRecordWriter(str(file)) as writer:
            for name, image, label in (next(remaining) for _ in range(count)):
                features = {
                    "image/encoded": feature(image),
                    "image/class/label": feature(label),
                    "image/filename": feature(name.encode()),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    assert next(remaining, None) is None
