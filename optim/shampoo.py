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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from optim import blocks, distribute, grafting, masks, preconditioner, schedules
from optim.distribute import Owned
from optim.grafting import LayerwiseGrafting
from optim.lars import trust_ratio_of_norms
from optim.norms import norm

__all__ = ["LayerwiseGrafting", "ShampooState", "distributed_shampoo", "metrics"]

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
    exponent_override: int
    weight_decay: float
    trust_coefficient: float
    start_preconditioning_step: int
    preconditioning_compute_steps: int
    statistics_compute_steps: int
    graft_type: LayerwiseGrafting
    nesterov: bool

    def exponent(self, rank: int) -> int:
        """p of the inverse p-th root for blocks of that rank."""
        return self.exponent_override or 2 * rank


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
        exponent_override=int(exponent_override),
        weight_decay=weight_decay,
        trust_coefficient=trust_coefficient,
        start_preconditioning_step=start_preconditioning_step,
        preconditioning_compute_steps=preconditioning_compute_steps,
        statistics_compute_steps=statistics_compute_steps,
        graft_type=grafting.parse(graft_type),
        nesterov=nesterov,
    )
    _validate(options, exponent_override, block_size)

    def plan(params: Any) -> Plan:
        return _plan(
            [w.shape for w in jax.tree.leaves(params)],
            jax.tree.leaves(masks.resolve(weight_decay_mask, params)),
            no_preconditioning_for_layers_with_dim_gt,
            block_size,
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
            jax.tree.leaves(grads),
            state,
            weights,
            rate,
            Devices(distribute.axis_size(batch_axis_name), batch_axis_name),
        )
        return jax.tree.unflatten(treedef, updates), state

    return optax.GradientTransformation(init, update)


def _validate(options: Options, exponent: float, block_size: int) -> None:
    def require(field: str, value: Any, holds: bool, rule: str) -> None:
        if not holds:
            raise ValueError(f"optimizer.{field}={value}: {rule}")

    require("exponent_override", exponent, exponent == int(exponent) >= 0, "a whole number >= 0")
    require("block_size", block_size, block_size >= 1, "at least 1")
    require("beta1", options.beta1, 0 <= options.beta1 < 1, "in [0, 1)")
    require("beta2", options.beta2, 0 <= options.beta2 <= 1, "in [0, 1]; 1 sums the statistics")
    require("matrix_epsilon", options.matrix_epsilon, options.matrix_epsilon >= 0, ">= 0")
    for field in ("preconditioning_compute_steps", "statistics_compute_steps"):
        value = getattr(options, field)
        require(field, value, value >= 1, "every how many updates, at least 1")


# What is known without the arrays.


@dataclass(frozen=True)
class Bucket:
    """The rows of one block shape."""

    block: tuple[int, ...]
    tensor: np.ndarray  # int32 [n], position among the preconditioned tensors
    decays: np.ndarray  # float32 [n], 1 where the tensor has weight decay

    @property
    def n(self) -> int:
        return len(self.tensor)

    def spread(self, x: Array | np.ndarray) -> Array:
        """`[k]` -> `[k, 1, ..., 1]`, to multiply rows with."""
        return jnp.reshape(x, (-1, *[1] * len(self.block)))

    def norms(self, rows: Array) -> Array:
        """Norm of every row: `[k, *block]` -> `[k]`."""
        return norm(rows, axis=tuple(range(1, rows.ndim)))


@dataclass(frozen=True)
class Plan:
    preconditioned: tuple[int, ...]  # positions among the leaves
    plain: tuple[int, ...]
    layout: blocks.Layout
    buckets: dict[str, Bucket]
    decays: tuple[bool, ...]  # per leaf


@dataclass(frozen=True)
class Devices:
    n: int
    axis_name: str | None

    def own(self, x: Array) -> Array:
        return distribute.take_own(x, self.n, self.axis_name)

    def gather(self, x: Array, n: int) -> Array:
        return distribute.gather(x, n, self.n, self.axis_name)

    def gather_all(self, x: Array) -> Array:
        """`[...]` -> `[devices, ...]`."""
        return lax.all_gather(x, self.axis_name) if self.n > 1 else x[None]


def _plan(shapes, decays, largest_dim: int, block_size: int, merge: bool) -> Plan:
    def takes_part(shape: tuple[int, ...]) -> bool:
        return len(shape) >= 1 and min(shape) > 0 and max(shape) <= largest_dim

    chosen = tuple(i for i, shape in enumerate(shapes) if takes_part(shape))
    layout = blocks.make_layout([shapes[i] for i in chosen], block_size, merge)
    buckets = {}
    for block in layout.buckets:
        tensor = layout.tensor_of_row(block)
        decaying = np.array([decays[chosen[t]] for t in tensor], np.float32)
        buckets["x".join(map(str, block))] = Bucket(block, tensor, decaying)
    plain = tuple(i for i in range(len(shapes)) if i not in set(chosen))
    return Plan(chosen, plain, layout, buckets, tuple(bool(d) for d in decays))


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


# One update.


def _update(plan, options, grads, state, weights, rate, devices):
    """Returns (updates in the order of the leaves, state)."""

    def rows_of(leaves: list[Array]) -> dict[str, Array]:
        rows = blocks.to_rows(plan.layout, [leaves[i] for i in plan.preconditioned])
        return {name: devices.own(rows[b.block]) for name, b in plan.buckets.items()}

    replicated = _replicated(plan, state.rows, devices)
    old = {name: state.rows[name].rows for name in plan.buckets}
    if replicated:
        old = jax.tree.map(devices.own, old)
    own = _Own(g=rows_of(grads), w=rows_of(weights), old=old, step=state.step)

    candidates, columns = _candidates(plan, options, own)
    report = _gather_columns(plan, columns, devices)
    plain_finite = [jnp.isfinite(norm(grads[i])) for i in plan.plain]
    ok = jnp.all(jnp.stack([jnp.all(jnp.isfinite(report["gradient"])), *plain_finite]))

    steps, new = _steps(plan, options, own, candidates, _factors(plan, options, report), devices)
    new = jax.tree.map(lambda n, o: jnp.where(ok, n, o), new, old)
    gathered = {
        b.block: devices.gather(jnp.where(ok, -rate * steps[name], 0.0), b.n)
        for name, b in plan.buckets.items()
    }
    updates: list[Any] = [None] * len(weights)
    for i, step in zip(plan.preconditioned, blocks.from_rows(plan.layout, gathered), strict=True):
        updates[i] = step
    plain = {}
    for i in plan.plain:
        key, decays = str(i), plan.decays[i]
        step, moved = _plain_step(options, decays, grads[i], state.plain[key], weights[i])
        updates[i] = jnp.where(ok, -rate * step, 0.0)
        plain[key] = jax.tree.map(lambda n, o: jnp.where(ok, n, o), moved, state.plain[key])

    rows = {}
    for name, b in plan.buckets.items():
        whole = jax.tree.map(lambda x, n=b.n: devices.gather(x, n), new[name])
        rows[name] = Owned(whole if replicated else new[name], b.n)
    updates = [u.astype(w.dtype) for u, w in zip(updates, weights, strict=True)]
    counters = _count(state.counters, report, ok)
    return updates, ShampooState(state.step + 1, rows, plain, counters)


class _Own(NamedTuple):
    """This device's rows, per bucket."""

    g: dict[str, Array]
    w: dict[str, Array]
    old: dict[str, Rows]
    step: Array


class _Candidate(NamedTuple):
    """What a bucket's rows would become."""

    shampoo: Array
    graft: Array
    accumulator: Array | None
    statistics: preconditioner.PerAxis
    roots: preconditioner.PerAxis


COLUMNS = ("gradient", "shampoo", "graft", "weight", "kept", "failed", "raised")


def _candidates(plan: Plan, options: Options, own: _Own):
    """Returns per bucket the candidate and its `COLUMNS`: norms and counts of every row."""
    statistics, kept = _statistics(options, own)
    roots, failed, raised = _roots(plan, options, statistics, own)
    candidates, columns = {}, {}
    for name, b in plan.buckets.items():
        shampoo = preconditioner.precondition(own.g[name], roots[name])
        graft, accumulator = grafting.direction(
            options.graft_type,
            own.g[name],
            own.old[name].get("accumulator"),
            options.beta2,
            options.diagonal_epsilon,
        )
        candidates[name] = _Candidate(shampoo, graft, accumulator, statistics[name], roots[name])
        norms = [b.norms(x) for x in (own.g[name], shampoo, graft, own.w[name])]
        columns[name] = jnp.stack([*norms, kept[name], failed[name], raised[name]], axis=1)
    return candidates, columns


def _statistics(options: Options, own: _Own):
    """Statistics per bucket and how many of each row's were kept, if this is a step for them."""
    old = {name: rows["statistics"] for name, rows in own.old.items()}

    def compute():
        pairs = {
            name: preconditioner.statistics(own.g[name], old[name], options.beta2) for name in old
        }
        return {k: s for k, (s, _) in pairs.items()}, {k: kept for k, (_, kept) in pairs.items()}

    def keep():
        return old, {name: jnp.zeros(len(g)) for name, g in own.g.items()}

    return _every(options.statistics_compute_steps, own.step, compute, keep)


def _roots(plan: Plan, options: Options, statistics: Any, own: _Own):
    """Roots per bucket, and how many of each row's failed or had their ridge raised."""
    old = {name: rows["roots"] for name, rows in own.old.items()}
    exponents = {name: options.exponent(len(b.block)) for name, b in plan.buckets.items()}

    def compute():
        return preconditioner.roots(
            statistics, old, exponents, options.matrix_epsilon, options.relative_matrix_epsilon
        )

    def keep():
        zeros = {name: jnp.zeros(len(g)) for name, g in own.g.items()}
        return old, zeros, dict(zeros)

    return _every(options.preconditioning_compute_steps, own.step, compute, keep)


def _every(steps: int, count: Array, compute: Callable[[], Any], keep: Callable[[], Any]) -> Any:
    return compute() if steps == 1 else lax.cond(count % steps == 0, compute, keep)


def _gather_columns(plan: Plan, columns: dict[str, Array], devices: Devices) -> dict[str, Array]:
    """`[k, columns]` per bucket -> `{column: [n_1 + n_2 + ...]}` on all devices, in one gather."""
    lengths = [len(columns[name]) for name in plan.buckets]
    together = jnp.concatenate([columns[name] for name in plan.buckets])
    together = devices.gather_all(together)
    cuts = np.cumsum(lengths)[:-1]
    parts = jnp.split(together, cuts, axis=1)
    rows = [
        part.reshape(-1, len(COLUMNS))[: b.n]
        for part, b in zip(parts, plan.buckets.values(), strict=True)
    ]
    return dict(zip(COLUMNS, jnp.concatenate(rows).T, strict=True))


def _factors(plan: Plan, options: Options, report: dict[str, Array]):
    """Returns `[n]` per bucket: what Shampoo's rows, and what LARS's layers, are multiplied with.

    The first is NaN where Shampoo's rows have no usable length; the graft takes their place.
    """
    tensor = np.concatenate([b.tensor for b in plan.buckets.values()])
    decays = np.concatenate([b.decays for b in plan.buckets.values()])
    n_tensors = len(plan.preconditioned)

    def of_tensors(norms: Array) -> Array:
        largest = jax.ops.segment_max(norms, tensor, n_tensors)
        scaled = norms / jnp.where(largest > 0, largest, 1.0)[tensor]
        return largest * jnp.sqrt(jax.ops.segment_sum(scaled * scaled, tensor, n_tensors))

    shampoo, graft = of_tensors(report["shampoo"]), of_tensors(report["graft"])
    length = shampoo if options.graft_type == LayerwiseGrafting.NONE else graft
    ratio = jnp.where(shampoo > 0, length / shampoo, jnp.nan)[tensor]
    trust = jnp.ones_like(ratio)
    if options.graft_type == LayerwiseGrafting.LARS:
        g, w = of_tensors(report["gradient"]), of_tensors(report["weight"])
        lengths = trust_ratio_of_norms(w, g, options.weight_decay, options.trust_coefficient)
        trust = jnp.where(decays > 0, lengths[tensor], 1.0)
    cuts = np.cumsum([b.n for b in plan.buckets.values()])[:-1]
    pairs = zip(jnp.split(ratio, cuts), jnp.split(trust, cuts), strict=True)
    return dict(zip(plan.buckets, pairs, strict=True))


def _steps(plan: Plan, options: Options, own: _Own, candidates, factors, devices: Devices):
    """Returns per bucket the step (before the learning rate) and the new rows."""
    steps, new = {}, {}
    for name, b in plan.buckets.items():
        c = candidates[name]
        ratio, trust = (b.spread(devices.own(x)) for x in factors[name])
        usable = jnp.isfinite(ratio)
        direction = jnp.where(usable, c.shampoo * ratio, c.graft)
        decay = options.weight_decay * b.spread(devices.own(jnp.asarray(b.decays))) * own.w[name]
        shampoo, graft = direction + decay, c.graft + decay
        if options.graft_type == LayerwiseGrafting.LARS:
            shampoo, graft = trust * shampoo, trust * graft
        use = own.step >= options.start_preconditioning_step
        rows: Rows = {}
        after, rows["momentum"] = _momentum(options, own.old[name]["momentum"], shampoo)
        before, rows["graft_momentum"] = _momentum(options, own.old[name]["graft_momentum"], graft)
        steps[name] = jnp.where(use, after, before)
        if c.accumulator is not None:
            rows["accumulator"] = c.accumulator
        new[name] = rows | {"statistics": c.statistics, "roots": c.roots}
    return steps, new


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
    step, buffer = _momentum(options, old["graft_momentum"], u)
    rows = {"graft_momentum": buffer}
    return step, rows if accumulator is None else rows | {"accumulator": accumulator}


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
