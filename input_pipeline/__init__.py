"""Batches for training and evaluation from data sets of TensorFlow Datasets (tfds).

    spec = describe(**dataset)                               # counts, shapes, mean and deviation
    for batch in train_batches(dataset, seed=0, global_batch_size=640, first_step=0, ...): ...

TensorFlow is imported when data are first read.
"""

from input_pipeline.batches import eval_batches, train_batches
from input_pipeline.dataset import DatasetSpec, describe
from input_pipeline.prepare import fetch_if_missing

__all__ = ["DatasetSpec", "describe", "eval_batches", "fetch_if_missing", "train_batches"]
