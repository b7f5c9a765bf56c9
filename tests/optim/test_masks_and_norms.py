"""Which leaves are weights; and norms at the ends of float32."""

import jax
import numpy as np
import pytest

from optim import masks
from optim.norms import norm


def test_biases_and_scales_are_told_by_their_own_name():
    params = {
        "scale_of_bias": {"kernel": 0, "bias": 0},
        "bn": {"scale": 0, "bias": 0},
        "embedding": 0,
    }
    assert masks.decay_mask(params) == {
        "scale_of_bias": {"kernel": True, "bias": False},
        "bn": {"scale": False, "bias": False},
        "embedding": True,
    }


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [
        (None, (True, True, True)),
        (False, (False, False, False)),
        ({"bn": False, "head": True}, (False, False, True)),
        ({"bn": {"bias": True, "scale": False}, "head": {"kernel": True}}, (True, False, True)),
        (masks.decay_mask, (False, False, True)),
    ],
)
def test_a_mask_may_end_early_and_is_that_of_all_below(mask, wanted):
    params = {"bn": {"bias": 0, "scale": 0}, "head": {"kernel": 0}, "frozen": None}
    if isinstance(mask, dict):
        mask = mask | {"frozen": True}
    assert tuple(jax.tree.leaves(masks.resolve(mask, params))) == wanted


@pytest.mark.parametrize("mask", [{"a": True}, {"a": True, "c": False}, {"a": {"x": True}, "b": 1}])
def test_a_mask_of_another_tree_is_refused_not_shifted(mask):
    with pytest.raises(ValueError, match="tree structure"):
        masks.resolve(mask, {"a": 0, "b": 0})


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_a_norm_is_exact_where_its_squares_are_not_representable(scale):
    x = np.float32(np.array([[3.0, 0.0], [4.0, 0.0]]) * scale)
    assert norm(x) == pytest.approx(5 * scale, rel=1e-6)
    np.testing.assert_allclose(norm(x, axis=(0,)), [5 * scale, 0], rtol=1e-6)


def test_the_norm_of_nothing_is_zero_and_of_a_nan_is_one():
    assert norm(np.zeros((0, 3), np.float32)) == 0
    assert np.isnan(norm(np.float32([1, np.nan])))
    assert not np.isfinite(norm(np.float32([1, np.inf])))
