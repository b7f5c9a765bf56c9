"""The host's TensorFlow: imported late, on the CPU alone, with no more threads than cores."""

import os
from types import ModuleType


def n_cores() -> int:
    """Returns how many cores this process may run on (fewer than the machine's if pinned)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tensorflow() -> ModuleType:
    """Imports TensorFlow, quietly, without its GPUs (JAX owns them) and with small thread pools."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    try:
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(n_cores())
        tf.config.threading.set_inter_op_parallelism_threads(n_cores())
    except RuntimeError:
        pass  # somebody in this process has already run an operation: the pools stand
    return tf
