"""Distributed Shampoo of google-research's `precondition`, from a checkout that stays untouched."""

import importlib
import importlib.util
import pathlib
import sys
import types
import warnings
from typing import Any

import jax
import numpy as np
import optax

import optim
from benchmarks import parity, update_cost

LEARNING_RATE = 0.1
BLOCK = 128


def load(checkout: str) -> types.ModuleType:
    """Imports `precondition.distributed_shampoo` from the checkout.

    The module names one attribute of chex, `Array`, in annotations. Where chex is not installed, a
    stub takes its place.

    Raises:
      ValueError: the folder is not a checkout of github.com/google-research/precondition.
    """
    file = pathlib.Path(checkout, "precondition", "distributed_shampoo.py")
    if not file.is_file():
        raise ValueError(
            f"--peer={checkout}: has no precondition/distributed_shampoo.py; "
            "give a checkout of github.com/google-research/precondition"
        )
    if "chex" not in sys.modules and importlib.util.find_spec("chex") is None:
        stub = types.ModuleType("chex")
        stub.Array = jax.Array  # type: ignore[attr-defined]
        sys.modules["chex"] = stub
    # It asks for float64 roots and, as in every published run, gets float32.
    warnings.filterwarnings("ignore", message="Explicitly requested dtype float64")
    sys.path.insert(0, str(pathlib.Path(checkout).resolve()))
    try:
        return importlib.import_module("precondition.distributed_shampoo")
    finally:
        sys.path.pop(0)


def ours(hyperparameters: dict[str, Any], block_size: int = BLOCK) -> optax.GradientTransformation:
    return optim.distributed_shampoo(
        LEARNING_RATE, **hyperparameters, block_size=block_size, batch_axis_name="batch"
    )


def theirs(
    module: types.ModuleType,
    hyperparameters: dict[str, Any],
    n_devices: int,
    block_size: int = BLOCK,
) -> optax.GradientTransformation:
    """Returns the same optimizer from the peer.

    The settings named here differ from its defaults: merging up to the block size, preconditioning
    dimensions up to 8,192, and no metrics.
    """
    return module.distributed_shampoo(
        LEARNING_RATE,
        block_size,
        **hyperparameters,
        merge_small_dims_block_size=block_size,
        skip_preconditioning_dim_size_gt=8192,
        moving_average_for_momentum=False,
        nesterov=True,
        graft_type=module.GraftingType.SGD,
        generate_training_metrics=False,
        batch_axis_name="batch" if n_devices > 1 else None,
    )


def distance(module: types.ModuleType, steps: int = 10) -> float:
    """Returns the largest |ours - theirs| / |distance moved| of any tensor of a small tree."""
    hyperparameters = update_cost.SHAMPOO | {"start_preconditioning_step": parity.START}
    ends = []
    for tx in (
        ours(hyperparameters, parity.BLOCK),
        theirs(module, hyperparameters, 1, parity.BLOCK),
    ):
        update = update_cost.one_device(tx)
        params = parity.random_tree(0)
        state = tx.init(params)
        for i in range(steps):
            state, params = update(state, params, parity.random_tree(100 + i))
        ends.append(jax.tree.map(np.float64, params))
    start, (one, other) = parity.random_tree(0), ends
    return max(
        float(np.linalg.norm(one[k] - other[k]) / np.linalg.norm(other[k] - w))
        for k, w in start.items()
    )


def compare(module: types.ModuleType, tree: Any, rounds: int) -> dict[tuple[str, int], float]:
    """Median CPU-seconds per update of ("ours", n_devices) and ("theirs", n_devices)."""
    work: dict[tuple[str, int], update_cost.Work] = {}
    for n in (1, 8):
        work["ours", n] = update_cost.Run(ours(update_cost.SHAMPOO), tree, n)
        work["theirs", n] = update_cost.Run(theirs(module, update_cost.SHAMPOO, n), tree, n)
    return update_cost.interleaved(work, rounds)
