"""How much memory a host's cache will take, told before it is filled."""

import itertools

from errors import UserError
from input_pipeline import records, sharding, spec
from input_pipeline.host import tensorflow
from input_pipeline.options import GIB, Options
from input_pipeline.prepared import Prepared, shard_files

HEADERS_SAMPLED = 64  # JPEG headers read to foretell the size of decoded images


def check_limit(
    found: Prepared, options: Options, image_size: int, host_index: int, n_hosts: int
) -> None:
    """Raises UserError if what `options.cache` keeps on this host exceeds its limit."""
    if options.cache == "none":
        return
    split = spec.eval_split(found)
    n_eval = -(-found.n_examples(split) // n_hosts)
    shard = sharding.shard_bounds(found.n_examples("train"), host_index, n_hosts)
    image_bytes = 3 * image_size**2 * options.numpy_image_dtype.itemsize
    needed_bytes = train_bytes(found, options.cache, shard) + n_eval * image_bytes
    if needed_bytes > options.cache_limit_bytes:
        raise UserError(
            f"dataset.cache={options.cache}: needs {needed_bytes / GIB:.3g} GiB on this host, more "
            f"than dataset.cache_limit_gib={options.cache_limit_gib:g}; raise it, use more hosts, "
            "or cache less (jpeg, none)"
        )


def train_bytes(found: Prepared, cache: str, shard: tuple[int, int]) -> float:
    """Returns the bytes of a shard's JPEGs, or of its decoded images by their mean size."""
    n_examples = shard[1] - shard[0]
    if cache == "jpeg":
        n_bytes = sum(file.stat().length for file in shard_files(found, "train"))
        return n_bytes * n_examples / found.n_examples("train")
    tf = tensorflow()
    sampled = itertools.islice(records.read(found, "train", *shard), HEADERS_SAMPLED)
    areas = []
    for example in sampled:
        try:
            height, width, _ = tf.io.extract_jpeg_shape(example["jpeg"]).numpy()
        except tf.errors.InvalidArgumentError:
            continue  # told, with its name, when its turn comes
        areas.append(int(height) * int(width))
    return 3 * n_examples * sum(areas) / max(len(areas), 1)
