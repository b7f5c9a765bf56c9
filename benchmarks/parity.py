"""Distance of fifty updates from float64 transcriptions that share no code with the optimizers.

    python -m benchmarks.parity

Prints each distance beside its limit. Exits with status 1 if any is over.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax

import optim
from benchmarks import reference
from optim import lars, sm3

# Ranks 0 to 4, dimensions of one, odd sizes, tails in one and two dimensions.
SHAPES: dict[str, tuple[int, ...]] = {"conv": (3, 3, 5, 7), "dense": (20, 13), "bias": (37,)}
SHAPES |= {"cube": (2, 9, 11), "scalar": (), "single": (1,), "point": (1, 1, 16, 33)}
README: dict[str, Any] = {"beta2": 0.85, "matrix_epsilon": 1.5e-5, "exponent_override": 4}
MLPERF_V1: dict[str, Any] = {"beta2": 0.75, "matrix_epsilon": 1e-8, "exponent_override": 4}
MLPERF_V1 |= {"relative_matrix_epsilon": False}
STEPS, BLOCK, DECAY, START = 50, 16, 1e-3, 5
SCALES = (1e-3, 0.1, 1.0, 10.0)  # of the gradients; an absolute ridge is small beside large ones
Tree = dict[str, Any]
Optimizer = tuple[optax.GradientTransformation, Callable[..., Any]]  # and its update, compiled


def rate(step: Any) -> Any:
    return 0.1 / (1 + step)


def random_tree(seed: int, scale: float = 1.0) -> Tree:
    r = np.random.default_rng(seed)
    return {k: np.float32(scale * r.normal(size=s)) for k, s in SHAPES.items()}


def shampoo(options: dict[str, Any], scale: float) -> float:
    """Returns the largest |ours - theirs| / |distance moved| of any tensor after `STEPS` updates.

    Args:
      options: README or MLPERF_V1, or a variation of them.
      scale: standard deviation of the gradients' entries.
    """

    def theirs(w: np.ndarray) -> reference.Shampoo:
        return reference.Shampoo(
            w,
            rate=rate,
            beta1=0.9,
            beta2=options["beta2"],
            epsilon=options["matrix_epsilon"],
            relative=options.get("relative_matrix_epsilon", True),
            p=options["exponent_override"],
            decay=DECAY,
            start=START,
            block=BLOCK,
        )

    made = _compiled_shampoo(tuple(sorted(options.items())))
    start, ours, others = _fifty_updates(made, theirs, scale)
    moved = {k: np.linalg.norm(others[k] - w) for k, w in start.items()}
    return max(float(np.linalg.norm(ours[k] - others[k]) / moved[k]) for k in start)


@functools.cache
def _compiled_shampoo(options: tuple[tuple[str, Any], ...]) -> Optimizer:
    tx = optim.distributed_shampoo(
        rate,
        beta1=0.9,
        weight_decay=DECAY,
        start_preconditioning_step=START,
        block_size=BLOCK,
        **dict(options),
    )
    return tx, jax.jit(tx.update)


def first_order(name: str) -> float:
    """Returns the largest |ours - theirs| / |theirs| of any tensor after `STEPS` updates.

    Args:
      name: "lars" (all tensors count as weights) or "sm3".
    """
    if name == "sm3":
        tx = sm3(0.1)
        made = tx, jax.jit(tx.update)
        return _relative(*_fifty_updates(made, lambda w: reference.SM3(w, 0.1, 0.9), 1.0))
    tx = lars(rate, momentum=0.9, weight_decay=DECAY, trust_coefficient=0.1, weight_mask=True)
    return _relative(*_fifty_updates((tx, jax.jit(tx.update)), _Lars, 1.0))


def _relative(_: Tree, ours: Tree, theirs: Tree) -> float:
    return max(float(np.linalg.norm(ours[k] - w) / np.linalg.norm(w)) for k, w in theirs.items())


class _Lars:
    def __init__(self, w: np.ndarray):
        self.w, self.m, self.step = np.float64(w), np.zeros(w.shape), 0

    def update(self, g: np.ndarray) -> None:
        self.w, self.m = reference.lars_weight(
            self.w, self.m, np.float64(g), rate(self.step), 0.9, DECAY, 0.1
        )
        self.step += 1


def _fifty_updates(
    made: Optimizer, theirs: Callable[[np.ndarray], Any], scale: float
) -> tuple[Tree, Tree, Tree]:
    """Returns the initial parameters, those after our updates, and those after theirs."""
    start = params = random_tree(0)
    grads = [random_tree(100 + i, scale) for i in range(STEPS)]
    tx, update = made
    state = tx.init(params)
    for g in grads:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    others = {}
    for k, w in start.items():
        one = theirs(w)
        for g in grads:
            one.update(g[k])
        others[k] = one.w
    return start, params, others


def checks() -> Iterator[tuple[str, float, float]]:
    """Yields (claim, distance, limit)."""
    yield "shampoo, readme", shampoo(README, 1.0), 1e-4
    for scale in SCALES:
        yield f"shampoo, mlperf_v1, gradients times {scale:g}", shampoo(MLPERF_V1, scale), 2e-4
    for name in ("lars", "sm3"):
        yield name, first_order(name), 1e-6


def report(claim: str, measured: float, limit: float, unit: str = "") -> bool:
    """Prints a figure beside its limit. Returns whether it is within; NaN is not."""
    within = bool(measured <= limit)
    verdict = "" if within else "   OVER"
    print(f"  {claim:52}{measured:10.3g} {unit:5} limit {limit:6.3g}{verdict}", flush=True)
    return within


def main() -> int:
    jax.config.update("jax_platforms", "cpu")
    print("fifty updates against float64 transcriptions")
    within = [report(*check) for check in checks()]
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
