"""Distributed Shampoo (Anil et al. 2020, arXiv:2002.09018) as an optax transformation.

    tx = optim.distributed_shampoo(
        learning_rate=schedule, beta1=0.9, beta2=0.99, diagonal_epsilon=0.0, matrix_epsilon=1e-5,
        exponent_override=4, weight_decay=1e-4, start_preconditioning_step=25,
        preconditioning_compute_steps=1, statistics_compute_steps=1,
        no_preconditioning_for_layers_with_dim_gt=8192, best_effort_shape_interpretation=True,
        block_size=128, graft_type=optim.shampoo.LayerwiseGrafting.SGD, nesterov=True,
        batch_axis_name="batch")

All work is on rows: blocks of equal shape, of whatever tensors, stacked in one array per shape
(`blocks`). Under `batch_axis_name` every device updates its own rows only: statistics, roots,
preconditioned gradients, momenta. Two things are gathered: the norms of all rows (grafting needs
whole tensors), then the finished updates, once per bucket.

The state may be canonical and replicated, as `tx.init` returns it (then it is gathered as well), or
hold each device's own rows only (`distribute`): the shapes tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from optim import distribute, grafting, masks, preconditioner, schedules, traced
from optim.distribute import Owned
from optim.grafting import LayerwiseGrafting
from optim.lars import trust_ratio_of_norms
from optim.norms import norm
from optim.rows import Bucket, Devices, Plan, make_plan

__all__ = ["LayerwiseGrafting", "ShampooState", "distributed_shampoo", "metrics"]

LARGEST_NORM = 1e19  # of a block's gradient: its square is still finite in float32

Rows = dict[str, Any]  # of one bucket: momenta, statistics and roots per axis, accumulator


class Counters(NamedTuple):
    """int32 scalars, counted since step 0."""

    skipped_updates: Array  # a gradient was not finite: nothing but the counts changed
    skipped_statistics: Array  # a statistic would not have been finite and was kept
    failed_roots: Array  # the previous root was kept
    raised_ridges: Array  # matrix_epsilon was below what float32 can invert


class ShampooState(NamedTuple):
    step: Array
    rows: dict[str, Owned]  # per block shape
    plain: dict[str, Rows]  # per tensor without preconditioner, by position
    counters: Counters


@dataclass(frozen=True)
class Options:
    """The hyperparameters of `distributed_shampoo`, named there."""

    beta1: float
    beta2: float
    diagonal_epsilon: float
    matrix_epsilon: float
    relative_matrix_epsilon: bool
    exponent_override: float
    weight_decay: float
    trust_coefficient: float
    start_preconditioning_step: int
    preconditioning_compute_steps: int
    statistics_compute_steps: int
    graft_type: LayerwiseGrafting
    nesterov: bool

    def exponent(self, rank: int) -> int:
        """p of the inverse p-th root for blocks of that rank."""
        return int(self.exponent_override) or 2 * rank


def distributed_shampoo(
    learning_rate: float | schedules.Schedule,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    diagonal_epsilon: float = 0.0,
    matrix_epsilon: float = 1e-6,
    relative_matrix_epsilon: bool = True,
    exponent_override: float = 0,
    weight_decay: float = 0.0,
    weight_decay_mask: Any = None,
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
) -> optax.GradientTransformation:
    """Shampoo with grafting, momentum and blocks; gradients must be averaged already.

    Args:
      learning_rate: a number or a function of the number of completed updates.
      beta1: of both momentum buffers, m = beta1 m + u.
      beta2: of the statistics, S = beta2 S + (1 - beta2) G G^T; 1 sums.
      diagonal_epsilon: added to AdaGrad's and RMSProp's denominator.
      matrix_epsilon: ridge of the roots, and S = matrix_epsilon I at step 0.
      relative_matrix_epsilon: (S + eps lambda_max(S) I)^(-1/p), else (S + eps I)^(-1/p). In both
        the ridge is raised to `inverse_root.MIN_RIDGE` lambda_max where it is below that, the
        least that float32 can invert; this is counted (`metrics`).
      exponent_override: p; 0 takes 2 x rank of the merged shape.
      weight_decay: added after grafting, before the momentum.
      weight_decay_mask: tree of bools, or a function of the parameters; None decays all.
      start_preconditioning_step: first update (from 0) that uses the preconditioned momentum; the
        updates before it take the graft's. Both buffers run from step 0.
      preconditioning_compute_steps, statistics_compute_steps: every how many updates the roots
        and the statistics are computed.
      no_preconditioning_for_layers_with_dim_gt: tensors with a larger dimension take the graft.
      best_effort_shape_interpretation: merge small neighbouring dimensions first.
      block_size: dimensions above it are cut.
      graft_type: see `grafting.LayerwiseGrafting`, or its member's name.
      trust_coefficient: of LARS's layer scale only.
      nesterov: u + beta1 m instead of m.
      batch_axis_name: axis of pmap or shard_map over which the work is shared out; outside of
        such an axis one device does everything.

    Raises:
      ValueError: a hyperparameter out of its range.
    """
    options = Options(
        beta1=beta1,
        beta2=beta2,
        diagonal_epsilon=diagonal_epsilon,
        matrix_epsilon=matrix_epsilon,
        relative_matrix_epsilon=relative_matrix_epsilon,
        exponent_override=exponent_override,
        weight_decay=weight_decay,
        trust_coefficient=trust_coefficient,
        start_preconditioning_step=start_preconditioning_step,
        preconditioning_compute_steps=preconditioning_compute_steps,
        statistics_compute_steps=statistics_compute_steps,
        graft_type=grafting.parse(graft_type),
        nesterov=nesterov,
    )
    _validate(options, block_size)

    def plan(params: Any) -> Plan:
        return make_plan(
            [w.shape for w in jax.tree.leaves(params)],
            jax.tree.leaves(masks.resolve(weight_decay_mask, params)),
            no_preconditioning_for_layers_with_dim_gt,
            int(block_size),
            best_effort_shape_interpretation,
        )

    def init(params: Any) -> ShampooState:
        return _init(plan(params), [w.shape for w in jax.tree.leaves(params)], options)

    def update(grads: Any, state: ShampooState, params: Any) -> tuple[Any, ShampooState]:
        weights, treedef = jax.tree.flatten(params)
        rate = schedules.value(learning_rate, state.step)
        updates, state = _update(
            plan(params),
            options,
            jax.tree.leaves(jax.tree.map(_of_equal_shape, grads, params)),
            state,
            weights,
            rate,
            Devices(distribute.axis_size(batch_axis_name), batch_axis_name),
        )
        return jax.tree.unflatten(treedef, updates), state

    return optax.GradientTransformation(init, update)


def _of_equal_shape(g: Array, w: Array) -> Array:
    """Returns g; rows are cut by the parameter's shape, whatever shape g has."""
    if g.shape != w.shape:
        raise ValueError(f"grads: one has shape {g.shape}, its parameter {w.shape}")
    return g


def _validate(options: Options, block_size: int) -> None:
    def require(field: str, value: Any, holds: Callable[[Any], bool], rule: str) -> None:
        if traced.is_known(value) and not holds(value):
            raise ValueError(f"optimizer.{field}={value}: {rule}")

    def count(x: float) -> bool:
        return x >= 1 and float(x).is_integer()

    exponent = options.exponent_override
    require("exponent_override", exponent, lambda x: x == 0 or count(x), "a whole number >= 0")
    require("block_size", block_size, count, "a whole number, at least 1")
    require("beta1", options.beta1, lambda x: 0 <= x < 1, "in [0, 1)")
    require("beta2", options.beta2, lambda x: 0 <= x <= 1, "in [0, 1]; 1 sums the statistics")
    require("matrix_epsilon", options.matrix_epsilon, lambda x: 0 <= x < math.inf, "finite, >= 0")
    for field in ("preconditioning_compute_steps", "statistics_compute_steps"):
        rule = "every how many updates, a whole number, at least 1"
        require(field, getattr(options, field), count, rule)


def _init(plan: Plan, shapes: list[tuple[int, ...]], options: Options) -> ShampooState:
    def momenta(shape: tuple[int, ...], names: tuple[str, ...]) -> Rows:
        if grafting.accumulates(options.graft_type):
            names += ("accumulator",)
        return {name: jnp.zeros(shape, jnp.float32) for name in names}

    def bucket_rows(bucket: Bucket) -> Rows:
        def scaled_eyes(factor: float) -> dict[str, Array]:
            return {
                str(i): jnp.tile(factor * jnp.eye(d, dtype=jnp.float32), (bucket.n, 1, 1))
                for i, d in enumerate(bucket.block)
            }

        rows = momenta((bucket.n, *bucket.block), ("momentum", "graft_momentum"))
        return rows | {"statistics": scaled_eyes(options.matrix_epsilon), "roots": scaled_eyes(1.0)}

    return ShampooState(
        step=jnp.zeros((), jnp.int32),
        rows={name: Owned(bucket_rows(b), b.n) for name, b in plan.buckets.items()},
        plain={str(i): momenta(shapes[i], ("graft_momentum",)) for i in plan.plain},
        counters=Counters(*(jnp.zeros((), jnp.int32) for _ in Counters._fields)),
    )


# One update. The scopes name its parts in a compiled program.


class _Own(NamedTuple):
    """This device's rows, per bucket."""

    graft: dict[str, Array]
    accumulator: dict[str, Rows]  # {} for grafts that have none
    shampoo: dict[str, Array]
    decay: dict[str, Array | float]  # weight_decay * w
    old: dict[str, Rows]


def _update(plan, options, grads, state, weights, rate, devices):
    """Returns (updates in the order of the leaves, state)."""
    replicated = _replicated(plan, state.rows, devices)
    old = {name: state.rows[name].rows for name in plan.buckets}
    if replicated:
        old = jax.tree.map(devices.own, old)
    with jax.named_scope("rows"):
        needed = [grads, weights] if _needs_weights(plan, options) else [grads]
        own_rows = devices.own_rows(plan, *needed)
        g, w = own_rows[0], own_rows[-1]
    lengths = {"gradient": {name: b.norms(g[name]) for name, b in plan.buckets.items()}}
    graft, accumulator = _grafts(options, g, old)
    if grafting.accumulates(options.graft_type):
        lengths["graft"] = {name: b.norms(graft[name]) for name, b in plan.buckets.items()}
    if options.graft_type == LayerwiseGrafting.LARS:
        lengths["weight"] = {name: b.norms(w[name]) for name, b in plan.buckets.items()}
    report = devices.gather_columns(plan, lengths)
    finite = [jnp.isfinite(norm(grads[i])) for i in plan.plain]
    ok = jnp.all(jnp.stack([jnp.all(jnp.isfinite(report["gradient"])), *finite]))

    usable = {name: ok & (x < LARGEST_NORM) for name, x in lengths["gradient"].items()}
    with jax.named_scope("statistics"):
        statistics, kept = _statistics(options, g, usable, old, state.step)
    with jax.named_scope("roots"):
        roots, failed, raised = _roots(plan, options, statistics, old, state.step)
    with jax.named_scope("preconditioning"):
        shampoo = {name: preconditioner.precondition(g[name], roots[name]) for name in g}
    own_lengths = {name: b.norms(shampoo[name]) for name, b in plan.buckets.items()}
    counts = {"kept": kept, "failed": failed, "raised": raised}
    report |= devices.gather_columns(plan, {"shampoo": own_lengths} | counts)

    own = _Own(graft, accumulator, shampoo, _decays(plan, options, w, devices), old)
    steps, momenta = _if_finite(
        ok,
        lambda: _steps(plan, options, own, report, rate, state.step, devices),
        lambda: ({k: jnp.zeros_like(x) for k, x in g.items()}, _elementwise(old)),
    )
    new: dict[str, Rows] = {}
    for name, b in plan.buckets.items():
        new[name] = momenta[name] | {"statistics": statistics[name], "roots": roots[name]}
        if replicated:
            new[name] = jax.tree.map(lambda x, n=b.n: devices.gather(x, n), new[name])
    with jax.named_scope("gather"):
        gathered = {name: devices.gather(steps[name], b.n) for name, b in plan.buckets.items()}
        updates = plan.from_rows(gathered)
    plain = {}
    for i in plan.plain:
        before = state.plain[str(i)]
        step, after = _plain_step(options, plan.decays[i], grads[i], before, weights[i])
        updates[i] = jnp.where(ok, -rate * step, 0.0)
        plain[str(i)] = jax.tree.map(lambda n, o: jnp.where(ok, n, o), after, before)
    counters = _count(state.counters, report, ok)
    rows = {name: Owned(new[name], b.n) for name, b in plan.buckets.items()}
    in_order = [updates[i].astype(w.dtype) for i, w in enumerate(weights)]
    return in_order, ShampooState(state.step + 1, rows, plain, counters)


def _grafts(options: Options, g: dict[str, Array], old: dict[str, Rows]):
    """The graft's own update per bucket, and {"accumulator": ...} where it has one."""
    grafts, accumulators = {}, {}
    for name, rows in g.items():
        grafts[name], accumulator = grafting.direction(
            options.graft_type,
            rows,
            old[name].get("accumulator"),
            options.beta2,
            options.diagonal_epsilon,
        )
        accumulators[name] = {} if accumulator is None else {"accumulator": accumulator}
    return grafts, accumulators


def _needs_weights(plan: Plan, options: Options) -> bool:
    decaying = not traced.equals(options.weight_decay, 0) and any(plan.decays)
    return decaying or options.graft_type == LayerwiseGrafting.LARS


def _decays(plan: Plan, options: Options, w: dict[str, Array], devices: Devices):
    """weight_decay * w per bucket, 0 where the mask says so; 0.0 for buckets without any."""
    decays: dict[str, Array | float] = {}
    for name, b in plan.buckets.items():
        if traced.equals(options.weight_decay, 0) or not b.decays.any():
            decays[name] = 0.0
        elif b.decays.all():
            decays[name] = options.weight_decay * w[name]
        else:
            factor = b.spread(devices.own(jnp.asarray(options.weight_decay * b.decays)))
            decays[name] = factor * w[name]
    return decays


def _statistics(options: Options, g, usable, old: dict[str, Rows], step: Array):
    """Statistics per bucket and how many of each row's were kept, if this is a step for them."""
    before = {name: rows["statistics"] for name, rows in old.items()}

    def compute():
        pairs = {
            name: preconditioner.statistics(g[name], usable[name], before[name], options.beta2)
            for name in g
        }
        return {k: s for k, (s, _) in pairs.items()}, {k: kept for k, (_, kept) in pairs.items()}

    def keep():
        return before, {name: jnp.zeros(len(rows)) for name, rows in g.items()}

    return _every(options.statistics_compute_steps, step, compute, keep)


def _roots(plan: Plan, options: Options, statistics, old: dict[str, Rows], step: Array):
    """Roots per bucket, and how many of each row's failed or had their ridge raised."""
    before = {name: rows["roots"] for name, rows in old.items()}
    exponents = {name: options.exponent(len(b.block)) for name, b in plan.buckets.items()}

    def compute():
        return preconditioner.roots(
            statistics, before, exponents, options.matrix_epsilon, options.relative_matrix_epsilon
        )

    def keep():
        zeros = {name: jnp.zeros(len(per_axis["0"])) for name, per_axis in before.items()}
        return before, zeros, dict(zeros)

    return _every(options.preconditioning_compute_steps, step, compute, keep)


def _every(steps: int, step: Array, compute: Callable[[], Any], keep: Callable[[], Any]) -> Any:
    return compute() if steps == 1 else lax.cond(step % steps == 0, compute, keep)


def _if_finite(ok: Array, compute: Callable[[], Any], keep: Callable[[], Any]) -> Any:
    """A conditional, not a select: what comes out of it is written to memory.

    Else XLA would repeat the whole elementwise step in each of the hundreds of kernels that cut
    the parameters' updates out of it, which doubles the time to compile.
    """
    return lax.cond(ok, compute, keep)


def _elementwise(old: dict[str, Rows]) -> dict[str, Rows]:
    """The rows without statistics and roots."""
    apart = ("statistics", "roots")
    return {name: {k: x for k, x in rows.items() if k not in apart} for name, rows in old.items()}


def _steps(plan, options: Options, own: _Own, report, rate, step: Array, devices: Devices):
    """Returns per bucket the step, and the new momenta (and accumulator)."""
    if not plan.buckets:
        return {}, {}
    ratios = plan.split(_ratio(plan, options, report))
    trusts = plan.split(_trust(plan, options, report))
    steps, rows = {}, {}
    for name, b in plan.buckets.items():
        ratio = b.spread(devices.own(ratios[name]))
        direction = jnp.where(jnp.isfinite(ratio), own.shampoo[name] * ratio, own.graft[name])
        shampoo, graft = direction + own.decay[name], own.graft[name] + own.decay[name]
        if options.graft_type == LayerwiseGrafting.LARS:
            trust = b.spread(devices.own(trusts[name]))
            shampoo, graft = trust * shampoo, trust * graft
        after, momentum = _momentum(options, own.old[name]["momentum"], shampoo)
        before, graft_momentum = _momentum(options, own.old[name]["graft_momentum"], graft)
        use = step >= options.start_preconditioning_step
        steps[name] = -rate * jnp.where(use, after, before)
        rows[name] = {"momentum": momentum, "graft_momentum": graft_momentum}
        rows[name] |= own.accumulator[name]
    return steps, rows


def _ratio(plan: Plan, options: Options, report: dict[str, Array]) -> Array:
    """What every row of Shampoo's is multiplied with; NaN where its tensor has no usable length.

    A length of 0 or NaN comes of gradients or roots at the ends of float32; the graft's own
    direction is taken instead. An infinite one gives 0: the tensor stays where it is.
    """
    shampoo = plan.tensor_norms(report["shampoo"])
    if options.graft_type == LayerwiseGrafting.NONE:
        length = shampoo
    else:
        length = plan.tensor_norms(report.get("graft", report["gradient"]))
    return jnp.where(shampoo > 0, length / shampoo, jnp.nan)


def _trust(plan: Plan, options: Options, report: dict[str, Array]) -> Array:
    """LARS's trust ratio of every row's tensor; 1 where there is no decay, or no LARS."""
    if options.graft_type != LayerwiseGrafting.LARS:
        return jnp.ones_like(report["gradient"])
    decays = np.concatenate([b.decays for b in plan.buckets.values()])
    g, w = plan.tensor_norms(report["gradient"]), plan.tensor_norms(report["weight"])
    trust = trust_ratio_of_norms(w, g, options.weight_decay, options.trust_coefficient)
    return jnp.where(decays > 0, trust, 1.0)


def _momentum(options: Options, buffer: Array, u: Array) -> tuple[Array, Array]:
    """Returns (step, buffer)."""
    buffer = options.beta1 * buffer + u
    return (u + options.beta1 * buffer if options.nesterov else buffer), buffer


def _plain_step(options: Options, decays: bool, g: Array, old: Rows, w: Array):
    """The graft's step for a tensor without preconditioner, and its new rows."""
    g, w = g.astype(jnp.float32), w.astype(jnp.float32)
    u, accumulator = grafting.direction(
        options.graft_type, g, old.get("accumulator"), options.beta2, options.diagonal_epsilon
    )
    if decays:
        u = u + options.weight_decay * w
        if options.graft_type == LayerwiseGrafting.LARS:
            u = u * trust_ratio_of_norms(
                norm(w), norm(g), options.weight_decay, options.trust_coefficient
            )
    moved, buffer = _momentum(options, old["graft_momentum"], u)
    rows = {"graft_momentum": buffer}
    return moved, rows if accumulator is None else rows | {"accumulator": accumulator}


def _replicated(plan: Plan, rows: dict[str, Owned], devices: Devices) -> bool:
    """Whether the state is canonical on several devices; ValueError if it is neither layout."""
    whole = own = True
    for name, b in plan.buckets.items():
        found = rows[name].rows["momentum"].shape[0]
        whole &= found == b.n
        own &= found == distribute.rows_per_device(b.n, devices.n)
    if not whole and not own:
        raise ValueError(
            f"opt_state: its rows are neither all rows nor one of {devices.n} devices' share; "
            "call update under the axis that the state was split for, or merge it first"
        )
    return not own


def _count(counters: Counters, report: dict[str, Array], ok: Array) -> Counters:
    def added(counter: Array, per_row: Array) -> Array:
        return counter + jnp.sum(per_row).astype(jnp.int32)

    return Counters(
        skipped_updates=added(counters.skipped_updates, ~ok),
        skipped_statistics=added(counters.skipped_statistics, report["kept"]),
        failed_roots=added(counters.failed_roots, report["failed"]),
        raised_ridges=added(counters.raised_ridges, report["raised"]),
    )


def metrics(state: ShampooState) -> dict[str, Array]:
    """The counters, for the log."""
    return {f"shampoo_{name}": value for name, value in state.counters._asdict().items()}
