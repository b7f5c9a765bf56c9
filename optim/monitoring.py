"""Values of an optimizer's state for the log: counters, condition numbers and residuals."""

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from . import sharding
from .over_blocks import OverBlocksState
from .shampoo import ScaleByShampooState

COUNTERS = ("skipped_updates", "skipped_statistics", "failed_roots", "escalated_ridges")


def _states(opt_state: Any, kind: type) -> list[Any]:
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, kind))
    return [x for x in leaves if isinstance(x, kind)]


def metrics(opt_state: Any) -> dict[str, Array]:
    """Returns the counters in a state; {} for most optimizers. Those of several are added up."""
    counts: dict[str, list[Array]] = {}
    for x in [
        s for kind in (OverBlocksState, ScaleByShampooState) for s in _states(opt_state, kind)
    ]:
        for name in set(COUNTERS) & set(x._fields):
            counts.setdefault(f"shampoo_{name}", []).append(getattr(x, name))
    return {name: reduce(jnp.add, values) for name, values in sorted(counts.items())}


def diagnostics(
    opt_state: Any,
    *,
    matrix_epsilon: float,
    relative_matrix_epsilon: bool = True,
    exponent_override: int = 0,
) -> list[dict[str, dict[str, dict[str, Array]]]]:
    """Measures the statistics and roots of each Shampoo in a canonical or padded state.

    It costs an eigendecomposition for each statistic, so call it now and then, outside of the
    training step. The arguments are those of `distributed_shampoo`. With A = S + ridge I:

      condition_number: of A, `[n]`, in float32.
      residual: |P^(p/2) A P^(p/2) - I|_F / sqrt(d), `[n]` (odd p: one factor more on the left);
        about 1e-4 for a good root of this very S, more if its ridge was raised or S is newer.

    Returns:
      {bucket: {axis: {"condition_number": ..., "residual": ...}}} for each Shampoo.
    """

    def measure(s: Array, root: Array, p: int) -> dict[str, Array]:
        values = jnp.linalg.eigvalsh(s)
        ridge = matrix_epsilon * (values[:, -1:] if relative_matrix_epsilon else 1.0)
        shifted = jnp.maximum(values, 0.0) + ridge
        eye = jnp.eye(s.shape[-1], dtype=s.dtype)
        product = s + jnp.reshape(ridge, (-1, 1, 1)) * eye
        for i in range(p):
            factors = (product, root) if i % 2 else (root, product)
            product = jnp.matmul(*factors, precision=lax.Precision.HIGHEST)
        residual = jnp.sqrt(jnp.mean(jnp.sum((product - eye) ** 2, axis=1), axis=1))
        return {"condition_number": shifted[:, -1] / shifted[:, 0], "residual": residual}

    found = []
    for state in _states(opt_state, ScaleByShampooState):
        statistics, roots = sharding.unwrap(sharding.canonical((state.statistics, state.roots)))
        found.append(
            {
                bucket: {
                    axis: measure(s, roots[bucket][axis], exponent_override or 2 * len(axes))
                    for axis, s in axes.items()
                }
                for bucket, axes in statistics.items()
                if axes
            }
        )
    return found
