"""Images per CPU-second of the ImageNet pipeline, beside the floor and the common public form.

    python -m benchmarks.input_pipeline [--photos=DIR] [--rounds=10] [--images=400] [--json=FILE]

Every round measures every form once, one after the other, so that load from elsewhere meets all;
the ratios are medians over rounds of the ratio within a round. CPU time, not wall time: it is what
a host has too little of.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import photographs
from input_pipeline import dataset, prepare, stream
from input_pipeline.host import map_in_order, n_cores, tensorflow

BATCH = 50
COPIES = 4  # of every JPEG in the files that are read end to end
POD = {"Shampoo, published": 212_000, "LARS, published": 266_000}  # images/s at batch 32,768
POD_HOSTS = 32
RATIOS = {  # name: (form, form, at least)
    "ours / flax, map only": ("ours", "flax", 1.4),
    "ours / flax, end to end": ("ours, end to end", "flax, end to end", 1.65),
    "ours / crop and decode": ("ours", "crop and decode", 0.6),
    "ours / flax, evaluation": ("ours, evaluation", "flax, evaluation", 1.3),
    "decoded cache / ours": ("decoded cache", "ours", 2.1),
    "ours / ours without determinism": ("ours", "ours, stateful and unordered", 0.97),
}


def flax_train(example: dict) -> dict:
    """The common public form, as in flax's ImageNet example: float32, normalised on the host."""
    tf = tensorflow()
    shape = tf.io.extract_jpeg_shape(example["jpeg"])
    window = _stateful_window(shape, (3 / 4, 4 / 3), 0.08)
    image = tf.io.decode_and_crop_jpeg(example["jpeg"], window, channels=3)
    image = tf.image.resize([image], [224, 224], method="bicubic")[0]
    return {"image": _normalised(tf.image.random_flip_left_right(image)), "label": example["label"]}


def stateful(example: dict) -> dict:
    """Ours, but for the random numbers, which depend on what was drawn before."""
    shape = tensorflow().io.extract_jpeg_shape(example["jpeg"])
    window = _stateful_window(shape, stream.ASPECT_RATIO, 0.05)
    image = stream.decode_window(example["jpeg"], window)
    resized = stream.resize(image, 224, "uint8")
    return {"image": resized, "label": example["label"]}


def _stateful_window(shape, aspect_ratio: tuple[float, float], area_min: float):
    tf = tensorflow()
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.constant([0.0, 0.0, 1.0, 1.0], shape=[1, 1, 4]),
        min_object_covered=0.1,
        aspect_ratio_range=aspect_ratio,
        area_range=(area_min, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def flax_eval(example: dict) -> dict:
    """The evaluation of the same form."""
    tf = tensorflow()
    window = stream.eval_window(tf.io.extract_jpeg_shape(example["jpeg"]), 224)
    image = tf.io.decode_and_crop_jpeg(example["jpeg"], window, channels=3)
    image = tf.image.resize([image], [224, 224], method="bicubic")[0]
    return {"image": _normalised(image), "label": example["label"]}


def _normalised(image):
    tf = tensorflow()
    known = dataset.KNOWN["imagenet2012"]
    image -= tf.constant(known.mean, shape=[1, 1, 3], dtype=tf.float32)
    image /= tf.constant(known.std, shape=[1, 1, 3], dtype=tf.float32)
    return tf.image.convert_image_dtype(image, tf.float32)


def crop_and_decode(example: dict) -> dict:
    """The floor: draw the window, decode it, nothing else."""
    tf = tensorflow()
    key = tf.stack([tf.constant(0, tf.int64), example["index"]])
    window = stream.train_window(tf.io.extract_jpeg_shape(example["jpeg"]), key, 0.05)
    return {"image": stream.decode_window(example["jpeg"], window)}


def map_only(jpegs: list[bytes]) -> dict[str, Callable[[], Any]]:
    """Forms over JPEGs in memory, without reading or batching; counted within TensorFlow."""
    tf = tensorflow()
    n_images = len(jpegs)
    numbers = np.arange(n_images)
    encoded = tf.data.Dataset.from_tensor_slices(
        {"jpeg": jpegs, "index": numbers, "label": numbers, "epoch": np.zeros(n_images, np.int64)}
    ).cache()
    chosen = dataset.Options("imagenet2012", "none")
    ours = stream.train_image(chosen, 0, 224)
    unordered = encoded.map(stateful, num_parallel_calls=n_cores(), deterministic=False)
    mapped = {
        "crop and decode": map_in_order(encoded, crop_and_decode),
        "flax": map_in_order(encoded, flax_train),
        "ours": map_in_order(encoded, ours),
        "ours, stateful and unordered": unordered,
        "decoded cache": map_in_order(map_in_order(encoded, stream.decoded).cache(), ours),
        "flax, evaluation": map_in_order(encoded, flax_eval),
        "ours, evaluation": map_in_order(encoded, stream.eval_image(chosen, 224)),
    }
    return {name: counter(examples) for name, examples in mapped.items()}


def counter(examples) -> Callable[[], Any]:
    """Runs through the examples without a step of Python for each."""
    tf = tensorflow()
    return tf.function(lambda: examples.reduce(tf.constant(0), lambda count, _: count + 1))


def end_to_end(data_dir: str, n_images: int) -> dict[str, Callable[[], Any]]:
    """Forms from tfds's files to batches of numpy arrays; traced here, outside the clock."""
    tf = tensorflow()
    import tensorflow_datasets as tfds

    found = prepare.ensure("imagenet2012", data_dir)
    chosen = dataset.Options("imagenet2012", data_dir)
    ordered = stream.ordered(found, chosen, 0, (0, n_images), 0).take(n_images)
    ours = stream.batched(ordered, stream.train_image(chosen, 0, 224), BATCH)

    examples = tfds.builder("imagenet2012", data_dir=data_dir).as_dataset(
        split="train",
        decoders={"image": tfds.decode.SkipDecoding()},
        read_config=tfds.ReadConfig(try_autocache=False),  # it would cache this little set
    )
    examples = examples.repeat().shuffle(16 * BATCH, seed=0).take(n_images)
    decoded = examples.map(
        lambda example: flax_train({**example, "jpeg": example["image"]}),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    threads = tf.data.Options()
    threads.threading.private_threadpool_size = 48  # as flax's example sets it
    flax = decoded.batch(BATCH, drop_remainder=True).prefetch(10).with_options(threads)
    return {
        "ours, end to end": lambda: sum(1 for _ in ours.as_numpy_iterator()),
        "flax, end to end": lambda: sum(1 for _ in flax.as_numpy_iterator()),
    }


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(forms: dict[str, Callable[[], Any]], n_images: int, n_rounds: int) -> dict:
    """Returns images per CPU-second of every form, a value a round but for the first."""
    rates: dict[str, list[float]] = {name: [] for name in forms}
    for i in range(n_rounds + 1):
        for name, form in forms.items():
            start = cpu_seconds()
            form()
            if i:
                rates[name].append(n_images / (cpu_seconds() - start))
    return rates


def ratio(rates: dict[str, list[float]], form: str, other: str) -> float:
    """Returns the median over rounds of the ratio within a round."""
    pairs = zip(rates[form], rates[other], strict=True)
    return statistics.median(one / another for one, another in pairs)


def report(rates: dict[str, list[float]]) -> dict:
    """Returns medians, ratios and, from ours end to end, the cores that feed a v3-256."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    rate = medians["ours, end to end"]
    return {
        "images per CPU-second": {name: round(value) for name, value in medians.items()},
        "ratios": {
            name: {"measured": round(ratio(rates, form, other), 3), "at least": at_least}
            for name, (form, other, at_least) in RATIOS.items()
        },
        "cores of each of 32 hosts": {
            name: round(needed / rate / POD_HOSTS, 1) for name, needed in POD.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input_pipeline")
    parser.add_argument("--photos", help="directory of photographs; default: matplotlib's one")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--images", type=int, default=400, help="JPEGs drawn")
    parser.add_argument("--json", help="file to write the figures to")
    flags = parser.parse_args()
    jpegs = photographs.draw_jpegs(photographs.photographs(flags.photos), flags.images)
    with tempfile.TemporaryDirectory() as directory:
        photographs.write_archives(Path(directory), jpegs * COPIES)
        prepare.ensure("imagenet2012", directory, directory, is_subset=True)
        rates = measure(map_only(jpegs), flags.images, flags.rounds)
        n_read = COPIES * flags.images
        rates |= measure(end_to_end(directory, n_read), n_read, flags.rounds)
    figures = report(rates)
    figures["mean JPEG bytes"] = round(statistics.mean(map(len, jpegs)))
    text = json.dumps(figures, indent=2)
    print(text)
    if flags.json:
        Path(flags.json).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
