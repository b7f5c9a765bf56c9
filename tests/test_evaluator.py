"""Counting, the target's rule, and a curve without times."""

import numpy as np
import pytest
from etils import epath

import evaluator
from run import schema
from run.schema import Evaluation


def counting_step(state, batch):
    """Stands for the devices: `state` is the set of labels that count as right."""
    right = np.isin(batch["label"], list(state)) & batch["mask"]
    return {
        "n_correct": np.int32(right.sum()),
        "n_seen": np.int32(batch["mask"].sum()),
        "loss_sum": np.float32(0.5 * batch["mask"].sum()),
    }


def batches(labels, size):
    for i in range(0, len(labels), size):
        part = np.array(labels[i : i + size])
        pad = size - len(part)
        yield {
            "label": np.pad(part, (0, pad)),
            "mask": np.arange(size) < len(part),
        }


def evaluate(state, batches, step, n_examples, eval_step=counting_step):
    return evaluator.total(evaluator.count(eval_step, state, batches), step, n_examples)


@pytest.mark.parametrize("size", [1, 3, 7, 10, 64])
def test_every_example_counts_once_whatever_the_batch(size):
    labels = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    got = evaluate({0, 1}, batches(labels, size), 5, n_examples=10)
    assert got == Evaluation(step=5, n_correct=7, n_seen=10, loss=0.5)
    assert got.accuracy == 0.7


@pytest.mark.parametrize("n_examples", [9, 11])
def test_a_miscount_is_an_error(n_examples):
    with pytest.raises(RuntimeError, match=f"evaluated 10 of {n_examples} examples at step 5"):
        evaluate({0}, batches([0] * 10, 4), 5, n_examples=n_examples)


def test_counts_beyond_what_float32_can_count():
    n = 2**24 + 1
    big = iter([{"n_correct": np.int32(n), "n_seen": np.int32(n), "loss_sum": np.float32(0)}])
    got = evaluate(None, big, 1, n_examples=n, eval_step=lambda _, b: b)
    assert (got.n_correct, got.n_seen) == (n, n)


def test_target_is_reached_at_equality():
    curve = [Evaluation(157, 37949, 50000, 1.0), Evaluation(314, 37950, 50000, 1.0)]
    assert schema.steps_to_target(curve, 0.759) == 314


def test_first_hit_counts_even_if_the_curve_falls_again():
    curve = [Evaluation(s, n, 10, 1.0) for s, n in ((1, 5), (2, 9), (3, 6), (4, 10))]
    assert schema.steps_to_target(curve, 0.9) == 2
    assert schema.steps_to_target(curve, 0.95) == 4
    assert schema.steps_to_target(curve[:3], 0.95) is None
    assert schema.steps_to_target([], 0.5) is None


def test_curve_file(tmp_path):
    schema.write_curve(
        epath.Path(tmp_path / "curve.csv"),
        [Evaluation(4, 1, 3, 2.5), Evaluation(8, 2, 3, 0.123456789)],
    )
    assert (tmp_path / "curve.csv").read_text() == (
        "step,n_correct,n_seen,accuracy,loss\n4,1,3,0.333333,2.5\n8,2,3,0.666667,0.123456789\n"
    )
