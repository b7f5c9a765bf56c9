"""JPEGs like ImageNet's, drawn from photographs, and the two ILSVRC archives made of them."""

import io
import tarfile
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image

SIZES = [(500, 375)] * 6 + [(375, 500)] * 2 + [(500, 333), (400, 350)]  # width, height
QUALITIES = (93, 98)
NOISE_GREY_LEVELS = 10
SYNSETS = ("n01440764", "n01443537")


def photographs(directory: str | None) -> list[Image.Image]:
    """Returns the photographs of a directory, or the one that matplotlib ships."""
    shipped = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    files = sorted(Path(directory).iterdir()) if directory else [shipped]
    return [Image.open(file).convert("RGB") for file in files]


def draw_jpegs(photos: list[Image.Image], n_images: int) -> list[bytes]:
    """Returns JPEGs like ImageNet's: random cuts, enlarged at random, with a camera's noise."""
    rng = np.random.default_rng(0)
    jpegs = []
    for _ in range(n_images):
        photo = photos[rng.integers(len(photos))]
        width, height = SIZES[rng.integers(len(SIZES))]
        scale = max(width / photo.width, height / photo.height) * rng.uniform(1, 1.5)
        enlarged = photo.resize((int(photo.width * scale) + 1, int(photo.height * scale) + 1))
        x = int(rng.integers(enlarged.width - width + 1))
        y = int(rng.integers(enlarged.height - height + 1))
        cut = np.asarray(enlarged.crop((x, y, x + width, y + height)), np.float64)
        noisy = cut + rng.normal(0, NOISE_GREY_LEVELS, (height, width, 1))
        packed = io.BytesIO()
        image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
        image.save(packed, "JPEG", quality=int(rng.integers(*QUALITIES)), subsampling="4:2:0")
        jpegs.append(packed.getvalue())
    return jpegs


def _tar(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def write_archives(directory: Path, jpegs: list[bytes]) -> None:
    """Writes the JPEGs as the two ILSVRC archives, a quarter of them for validation."""
    synsets = {
        f"{synset}.tar": _tar({f"{synset}_{j}.JPEG": jpeg for j, jpeg in enumerate(jpegs[i::2])})
        for i, synset in enumerate(SYNSETS)
    }
    val = {f"ILSVRC2012_val_{i + 1:08d}.JPEG": jpeg for i, jpeg in enumerate(jpegs[::4])}
    (directory / "ILSVRC2012_img_train.tar").write_bytes(_tar(synsets))
    (directory / "ILSVRC2012_img_val.tar").write_bytes(_tar(val))
