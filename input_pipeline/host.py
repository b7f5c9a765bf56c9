"""The host's TensorFlow: imported late, on the CPU alone, with no more threads than cores."""

import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

Dataset = Any  # tf.data.Dataset, and Tensor tf.Tensor, without the import
Tensor = Any


def n_cores() -> int:
    """Returns how many cores this process may run on (fewer than the machine's if pinned)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def tensorflow() -> ModuleType:
    """Imports TensorFlow, quietly, without its GPUs (JAX owns them) and with small thread pools."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Where it is on, TensorFlow says so whatever the log level; no operation here is of it.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    try:
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(n_cores())
        tf.config.threading.set_inter_op_parallelism_threads(n_cores())
    except RuntimeError:
        pass  # somebody in this process has already run an operation: the pools stand
    return tf


def as_written(function: Callable) -> Callable:
    """Keeps TensorFlow from rewriting a function that it traces: none of ours needs it."""
    return tensorflow().autograph.experimental.do_not_convert(function)


def map_in_order(examples: Dataset, function: Callable) -> Dataset:
    """Maps on all cores of this process, in the order of the examples."""
    return examples.map(as_written(function), num_parallel_calls=n_cores(), deterministic=True)
