"""Data for training and evaluation: every data set comes through tfds. TensorFlow is imported on
first read.

spec = describe(**dataset)                                   # counts, shapes, mean and deviation
for batch in train_batches(dataset, seed=0, global_batch_size=640, first_step=0, ...): ...
"""

from input_pipeline.batches import eval_batches, train_batches
from input_pipeline.dataset import DatasetSpec, describe
from input_pipeline.prepare import fetch_if_missing

__all__ = ["DatasetSpec", "describe", "eval_batches", "fetch_if_missing", "train_batches"]
