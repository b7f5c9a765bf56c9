"""TensorFlow on the host: imported lazily, without GPUs, with one thread per core."""

import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

Dataset = Any  # tf.data.Dataset; named here because TensorFlow is imported lazily
Tensor = Any  # tf.Tensor


def n_cores() -> int:
    """Returns the number of cores that this process may use, which pinning can reduce."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def tensorflow() -> ModuleType:
    """Imports TensorFlow without log messages and GPUs (JAX owns them), with small thread pools."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # oneDNN logs a message at any log level, and no operation of the pipeline uses it.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    try:
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(n_cores())
        tf.config.threading.set_inter_op_parallelism_threads(n_cores())
    except RuntimeError:
        pass  # this process has already run an operation, so the pools cannot change
    return tf


def as_written(function: Callable) -> Callable:
    """Disables AutoGraph for a function. No function of the pipeline needs it."""
    return tensorflow().autograph.experimental.do_not_convert(function)


def map_in_order(examples: Dataset, function: Callable) -> Dataset:
    """Maps a function over examples on all cores, and keeps their order."""
    return examples.map(as_written(function), num_parallel_calls=n_cores(), deterministic=True)
