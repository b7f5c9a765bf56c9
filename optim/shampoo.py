"""Distributed Shampoo (Anil et al. 2020, arXiv:2002.09018) as a composition of transformations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from . import arguments, grafting, preconditioner, schedules
from .blocks import is_preconditioned
from .grafting import LayerwiseGrafting, add_decayed_weights, graft, switch_at
from .over_blocks import Layout, over_blocks

# Norms of a block's gradient whose squares float32 can hold: not infinite, and none that matters 0.
LEAST, LARGEST = 1e-15, 1e19
LIMIT = "no_preconditioning_for_layers_with_dim_gt"
WHOLE = ("preconditioning_compute_steps", "statistics_compute_steps", "block_size")
COUNTS = ("exponent_override", "start_preconditioning_step")
NOT_NEGATIVE = ("diagonal_epsilon", "matrix_epsilon", "weight_decay", "trust_coefficient", LIMIT)
MASKS = ("weight_decay_mask", "stacked_mask")
# Arguments that shape the program: `static_args` for optax.inject_hyperparams.
STATIC_ARGS = (*WHOLE, *MASKS, LIMIT, "matrix_epsilon", "exponent_override", "graft_type")


def distributed_shampoo(
    learning_rate: float | schedules.Schedule,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    diagonal_epsilon: float = 0.0,
    matrix_epsilon: float = 1e-6,
    relative_matrix_epsilon: bool = True,
    exponent_override: int = 0,
    weight_decay: float = 0.0,
    weight_decay_mask: Any = None,
    stacked_mask: Any = False,
    start_preconditioning_step: int = 1,
    preconditioning_compute_steps: int = 1,
    statistics_compute_steps: int = 1,
    no_preconditioning_for_layers_with_dim_gt: int = 8192,
    best_effort_shape_interpretation: bool = True,
    block_size: int = 128,
    graft_type: LayerwiseGrafting | str = LayerwiseGrafting.SGD,
    trust_coefficient: float = 0.001,
    nesterov: bool = True,
    batch_axis_name: str | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Shampoo with grafting, momentum and blocks. Gradients must be averaged over devices already.

    Args:
      learning_rate: a number, or a function of the number of completed updates.
      beta1: decay of both momentum buffers, m = beta1 m + u, in [0, 1).
      beta2: decay of the statistics, S = beta2 S + (1 - beta2) G G^T, in [0, 1]; 1 sums.
      diagonal_epsilon: added to the denominator of the grafts ADAGRAD and RMSPROP.
      matrix_epsilon: ridge of the roots, and S = matrix_epsilon I before the first update.
      relative_matrix_epsilon: (S + eps lambda_max(S) I)^(-1/p), else (S + eps I)^(-1/p).
      exponent_override: p; 0 takes 2 x rank of the merged shape.
      weight_decay: added after grafting, before the momentum, where weight_decay_mask (tree of
        bools, or a function of the parameters; None selects all) is True.
      stacked_mask: leaves `[L, m, n]` that are L layers, as for `jax.lax.scan`; tree or function.
      start_preconditioning_step: first update (from 0) that uses the preconditioned momentum; the
        updates before it use the graft's. Both buffers run from the first update on.
      preconditioning_compute_steps, statistics_compute_steps: updates between two computations.
      no_preconditioning_for_layers_with_dim_gt: tensors with a larger dimension take the graft.
      best_effort_shape_interpretation: whether to merge small neighbouring dimensions first.
      block_size: dimensions above it are cut.
      graft_type: a `LayerwiseGrafting`, or the name of one.
      trust_coefficient: of the graft LARS.
      nesterov: whether the update is u + beta1 m instead of m.
      batch_axis_name: axis of pmap, shard_map or vmap whose devices share the work (`over_blocks`).

    Raises:
      ValueError: a hyperparameter is out of its range, or is traced and must be static.
    """
    given = locals()
    arguments.check_static(**{name: given[name] for name in STATIC_ARGS})
    arguments.check("in [0, 1)", beta1=beta1)
    arguments.check("in [0, 1]", beta2=beta2)
    arguments.check("finite and at least 0", **{name: given[name] for name in NOT_NEGATIVE})
    arguments.check("a whole number, at least 0", **{name: given[name] for name in COUNTS})
    arguments.check("a whole number, at least 1", **{name: given[name] for name in WHOLE})

    graft_type = grafting.parse(graft_type)
    magnitude = grafting.magnitude_of(graft_type, beta2, diagonal_epsilon)
    trust = trust_coefficient if graft_type == LayerwiseGrafting.LARS else None
    decays = trust is not None or not arguments.equals(weight_decay, 0)

    def momentum() -> optax.GradientTransformation:
        decay = add_decayed_weights(weight_decay, trust) if decays else optax.identity()
        return optax.chain(decay, optax.trace(beta1, nesterov=nesterov))

    direction = scale_by_shampoo(
        beta2,
        matrix_epsilon,
        relative=relative_matrix_epsilon,
        exponent=int(exponent_override),
        statistics_steps=int(statistics_compute_steps),
        roots_steps=int(preconditioning_compute_steps),
    )
    return over_blocks(
        optax.chain(
            switch_at(
                start_preconditioning_step,
                before=optax.chain(magnitude or optax.identity(), momentum()),
                after=optax.chain(graft(direction, magnitude), momentum()),
            ),
            schedules.scale(learning_rate),
        ),
        block_size=int(block_size),
        merge_dims=best_effort_shape_interpretation,
        largest_dim=no_preconditioning_for_layers_with_dim_gt,
        weight_decay_mask=weight_decay_mask,
        stacked_mask=stacked_mask,
        axis_name=batch_axis_name,
        reads_params=decays,
    )


class ScaleByShampooState(NamedTuple):
    """State of `scale_by_shampoo`; the counts are int32 scalars over all blocks and updates."""

    step: Array  # completed updates
    skipped_statistics: Array  # statistics kept, as float32 could not hold their squares
    failed_roots: Array  # roots that failed at every ridge; the previous root was kept
    escalated_ridges: Array  # roots that needed a larger ridge than `epsilon`
    statistics: dict[str, preconditioner.PerAxis]
    roots: dict[str, preconditioner.PerAxis]


def scale_by_shampoo(
    beta2: float,
    epsilon: float,
    *,
    relative: bool = True,
    exponent: int = 0,
    statistics_steps: int = 1,
    roots_steps: int = 1,
) -> optax.GradientTransformationExtraArgs:
    """Preconditions each block inside `over_blocks`: G x_1 S_1^(-1/p) x_2 S_2^(-1/p) ...

    `epsilon` is `distributed_shampoo`'s matrix_epsilon, `exponent` its exponent_override.
    """

    def init(params: Any) -> ScaleByShampooState:
        def identities(factor: float) -> Any:
            def one(path: Any, blocks: Array) -> preconditioner.PerAxis:
                k, *dims = blocks.shape if is_preconditioned(path[-1].key) else (0,)
                eyes = [factor * jnp.eye(d, dtype=jnp.float32) for d in dims]
                return {str(i): jnp.tile(eye, (k, 1, 1)) for i, eye in enumerate(eyes)}

            return jax.tree_util.tree_map_with_path(one, params)

        a, b, c, d = (jnp.zeros((), jnp.int32) for _ in range(4))  # not one, so donation works
        return ScaleByShampooState(a, b, c, d, identities(epsilon), identities(1.0))

    def update(g: Any, state: ScaleByShampooState, params: Any = None, *, layout: Layout) -> Any:
        blocks = {k: x for k, x in g.items() if is_preconditioned(k)}
        old, old_roots = ({k: x[k] for k in blocks} for x in (state.statistics, state.roots))
        norms = layout.norms(blocks)
        usable = {k: (x == 0) | ((x > LEAST) & (x < LARGEST)) for k, x in norms.items()}
        none = {k: jnp.zeros_like(x, jnp.int32) for k, x in norms.items()}

        def new_statistics() -> Any:
            both = {
                k: preconditioner.statistics(x, usable[k], old[k], beta2) for k, x in blocks.items()
            }
            # A gradient that is not finite is counted as a skipped update.
            kept = {k: jnp.where(jnp.isfinite(norms[k]), both[k][1], 0) for k in blocks}
            return {k: new for k, (new, _) in both.items()}, kept

        def new_roots() -> Any:
            p = {k: exponent or 2 * (x.ndim - 1) for k, x in blocks.items()}
            return preconditioner.roots(statistics, old_roots, p, epsilon, relative)

        with jax.named_scope("statistics"):
            statistics, kept = _every(statistics_steps, state.step, new_statistics, (old, none))
        with jax.named_scope("roots"):
            keep = old_roots, none, none
            roots, failed, escalated = _every(roots_steps, state.step, new_roots, keep)
        with jax.named_scope("preconditioning"):
            updates = {k: preconditioner.precondition(x, roots[k]) for k, x in blocks.items()}
        state = ScaleByShampooState(
            state.step + 1,
            state.skipped_statistics + layout.total(kept),
            state.failed_roots + layout.total(failed),
            state.escalated_ridges + layout.total(escalated),
            state.statistics | statistics,
            state.roots | roots,
        )
        return g | updates, state

    return optax.GradientTransformationExtraArgs(init, update)


def _every(steps: int, step: Array, compute: Callable[[], Any], old: Any) -> Any:
    return compute() if steps == 1 else lax.cond(step % steps == 0, compute, lambda: old)
