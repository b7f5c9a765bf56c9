"""Shampoo against a float64 transcription, and the inputs that break public implementations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optim
from benchmarks import parity, reference
from benchmarks.parity import MLPERF_V1, README, SHAPES, rate
from optim import blocks, shampoo, sharding
from optim.shampoo import LayerwiseGrafting


@functools.cache
def make(options, **more):
    tx = optim.distributed_shampoo(rate, **(dict(options) | more))
    return tx, jax.jit(tx.update)


def optimizer(options=None, **more):
    settings = {"beta1": 0.9, "start_preconditioning_step": 0, "block_size": 16}
    return make(tuple(sorted((settings | (options or README) | more).items())))


def random_tree(seed, shapes=None, scale=1.0):
    r = np.random.default_rng(seed)
    shapes = SHAPES if shapes is None else shapes
    return {k: np.float32(scale * r.normal(size=s)) for k, s in shapes.items()}


def run(made, params, grads):
    tx, update = made
    state = tx.init(params)
    for g in grads:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def counts(state):
    return {k.removeprefix("shampoo_"): int(v) for k, v in optim.metrics(state).items()}


def part(state, kind):
    """The only part of a state of that type."""
    found = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, kind))
    (one,) = [x for x in found if isinstance(x, kind)]
    return one


def preconditioners(state):
    """(statistics, roots), arrays `{bucket: {axis: [n, d, d]}}`."""
    both = part(state, shampoo.ScaleByShampooState)
    return sharding.unwrap((both.statistics, both.roots))


def with_statistics(state, change):
    """The state with `change(bucket, axis, S)` for each statistic."""
    old = part(state, shampoo.ScaleByShampooState)
    new = {
        name: {i: dataclasses.replace(s, rows=change(name, i, s.rows)) for i, s in axes.items()}
        for name, axes in old.statistics.items()
    }
    return jax.tree.map(
        lambda x: x._replace(statistics=new) if x is old else x, state, is_leaf=lambda x: x is old
    )


@pytest.mark.parametrize(("relative", "exponent"), [(True, 0), (False, 4)])
def test_diagnostics_equal_the_definitions_in_float64(relative, exponent):
    ridge = 1e-3
    hyperparameters = {
        "matrix_epsilon": ridge,
        "relative_matrix_epsilon": relative,
        "exponent_override": exponent,
    }
    params = random_tree(0)
    made = optimizer(preconditioning_compute_steps=1, **hyperparameters)
    state = run(made, params, [random_tree(i) for i in range(1, 4)])[1]
    (found,) = optim.diagnostics(state, **hyperparameters)
    statistics, roots = preconditioners(state)
    assert {k for k, axes in statistics.items() if axes} == set(found)
    for name, axes in found.items():
        p = exponent or 2 * len(axes)
        for axis, values in axes.items():
            s, root = np.float64(statistics[name][axis]), np.float64(roots[name][axis])
            eye = np.eye(s.shape[-1])
            largest = np.linalg.eigvalsh(s)[:, -1] if relative else np.ones(len(s))
            a = s + ridge * largest[:, None, None] * eye
            left, right = (np.linalg.matrix_power(root, k) for k in (p - p // 2, p // 2))
            residual = np.linalg.norm(left @ a @ right - eye, axis=(1, 2))
            np.testing.assert_allclose(values["condition_number"], np.linalg.cond(a), rtol=1e-3)
            np.testing.assert_allclose(values["residual"], residual / len(eye) ** 0.5, atol=2e-4)
            assert values["residual"].max() < 2e-3


def at_count(state, count):
    """The state as if `count` updates were completed."""

    def one(path, x):
        return jnp.int32(count) if getattr(path[-1], "name", "") in ("count", "step") else x

    return jax.tree_util.tree_map_with_path(one, state)


@pytest.mark.parametrize(
    ("options", "scale", "limit"),
    [
        pytest.param(README, 1.0, 1e-4, id="readme"),
        pytest.param(
            README | {"exponent_override": 0}, 1.0, 2e-4, id="2 x rank", marks=pytest.mark.slow
        ),
        pytest.param(MLPERF_V1, 1e-3, 2e-4, id="mlperf_v1 1e-3"),
        pytest.param(MLPERF_V1, 0.1, 2e-4, id="mlperf_v1 0.1"),
        pytest.param(MLPERF_V1, 1.0, 2e-4, id="mlperf_v1 1"),
        pytest.param(MLPERF_V1, 10.0, 2e-4, id="mlperf_v1 10"),
    ],
)
def test_fifty_steps_equal_the_float64_transcription(options, scale, limit):
    assert parity.shampoo(options, scale) < limit


def layout():
    return blocks.make_layout(list(SHAPES.values()), block_size=16, merge=True)


RANKS_5_AND_6 = {"five": (2, 3, 2, 3, 2), "six": (2, 1, 3, 2, 2, 2), "ones": (1, 1, 1)}


@pytest.mark.parametrize(
    ("change", "shapes", "limit"),
    [
        pytest.param(
            {
                "statistics_compute_steps": 3,
                "preconditioning_compute_steps": 2,
                "start_preconditioning_step": 5,
                "block_size": 1,
                "exponent_override": 3,
            },
            {"dense": (3, 2), "bias": (3,), "scalar": ()},
            5e-6,
            id="cadences 3 and 2, start 5, blocks of one element",
        ),
        pytest.param(
            {"best_effort_shape_interpretation": False, "exponent_override": 0, "beta2": 1.0},
            RANKS_5_AND_6,
            5e-4,
            id="ranks 5 and 6 unmerged, sums",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"exponent_override": 1, "beta2": 0.0},
            {"dense": (5, 4), "cube": (2, 3, 4)},
            1e-2,
            id="p 1, the last gradient alone",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_options_nobody_publishes_equal_the_float64_transcription(change, shapes, limit):
    options = README | {"beta1": 0.9, "start_preconditioning_step": 0, "block_size": 16} | change
    made = optimizer(options, weight_decay=1e-2)
    params, grads = random_tree(0, shapes), [random_tree(i, shapes) for i in range(1, 10)]
    got, _ = run(made, params, grads)
    for k, w in params.items():
        one = reference.Shampoo(
            w,
            rate=rate,
            beta1=options["beta1"],
            beta2=options["beta2"],
            epsilon=options["matrix_epsilon"],
            relative=True,
            p=options["exponent_override"],
            decay=1e-2,
            start=options["start_preconditioning_step"],
            block=options["block_size"],
            merge=options.get("best_effort_shape_interpretation", True),
            every=(
                options.get("statistics_compute_steps", 1),
                options.get("preconditioning_compute_steps", 1),
            ),
        )
        for g in grads:
            one.update(g[k])
        assert np.linalg.norm(got[k] - one.w) < limit * np.linalg.norm(one.w - w)


def test_a_beta2_of_one_sums_whatever_type_it_has():
    shapes = {"w": (3,)}
    params, grads = random_tree(0, shapes), [random_tree(i, shapes) for i in (1, 2)]
    _, state = run(make((("beta2", np.float32(1.0)), ("graft_type", "RMSPROP"))), params, grads)
    squares = sum(np.outer(g["w"], g["w"]) for g in grads)
    statistics, _ = preconditioners(state)
    np.testing.assert_allclose(statistics["3"]["0"][0] - 1e-6 * np.eye(3), squares, rtol=1e-5)
    accumulators = state.inner[0].before[0]
    np.testing.assert_allclose(accumulators["3"].rows[0], np.diag(squares), rtol=1e-6)


@pytest.mark.parametrize("graft_type", ["ADAGRAD", "RMSPROP"])
def test_a_square_that_overflows_does_not_end_the_graft(graft_type):
    made = make((("graft_type", graft_type), ("beta2", 0.9)))
    params, g = {"s": np.float32(1.0)}, {"s": np.float32(2.0)}
    got, state = run(made, params, [{"s": np.float32(1e25)}])
    accumulators = state.inner[0].before[0]
    assert (got["s"], accumulators["elementwise_1"].rows[0, 0]) == (1.0, 0.0)
    updates, _ = made[1](g, state, got)
    length = 1.0 if graft_type == "ADAGRAD" else 0.1**-0.5
    np.testing.assert_allclose(updates["s"], -rate(1) * 1.9 * length, rtol=1e-5)


@pytest.mark.parametrize(
    ("grads", "error"),
    [
        pytest.param({"a": np.ones((3, 2)), "c": np.ones(2)}, "tree structure", id="another name"),
        pytest.param({"a": np.ones((3, 2))}, "tree structure", id="one is missing"),
        pytest.param({"a": np.ones((2, 3)), "b": np.ones(2)}, r"\(2, 3\).*\(3, 2\)", id="shape"),
    ],
)
def test_gradients_that_are_not_of_the_parameters_are_refused(grads, error):
    tx = optim.distributed_shampoo(0.1)
    params = {"a": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)}
    with pytest.raises(ValueError, match=error):
        tx.update(grads, tx.init(params), params)
    with pytest.raises(ValueError, match="params=None"):
        tx.update(params, tx.init(params), None)


def test_two_shampoos_under_one_transformation_are_counted_together():
    tx = optax.multi_transform(
        {"x": optim.distributed_shampoo(0.1), "y": optim.distributed_shampoo(0.1)},
        {"a": "x", "b": "y"},
    )
    params = {"a": jnp.ones(()), "b": jnp.ones(())}
    for bad, wanted in [({}, 0), ({"b": jnp.nan}, 1), ({"a": jnp.nan, "b": jnp.inf}, 2)]:
        _, state = tx.update(params | jax.tree.map(jnp.float32, bad), tx.init(params), params)
        assert counts(state)["skipped_updates"] == wanted


def test_a_state_from_init_can_be_donated():
    params = random_tree(0, {"a": (5, 4), "b": ()})
    tx = optim.distributed_shampoo(0.1, block_size=4)
    update = jax.jit(tx.update, donate_argnums=1)
    updates, state = update(params, tx.init(params), params)
    _, _ = update(params, state, params)
    expected, _ = tx.update(params, tx.init(params), params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), updates, expected)


def test_the_readme_snippet_works():
    tx = optim.distributed_shampoo(
        learning_rate=0.1,
        beta1=0.9,
        beta2=0.99,
        diagonal_epsilon=0.0,
        matrix_epsilon=1e-5,
        exponent_override=4,
        weight_decay=1e-4,
        start_preconditioning_step=25,
        preconditioning_compute_steps=1,
        statistics_compute_steps=1,
        no_preconditioning_for_layers_with_dim_gt=8192,
        best_effort_shape_interpretation=True,
        block_size=128,
        graft_type=shampoo.LayerwiseGrafting.SGD,
        nesterov=True,
        batch_axis_name="batch",
    )
    assert optim.metrics(jax.eval_shape(tx.init, random_tree(0)))


def test_a_grafted_step_has_the_length_of_the_gradient_and_another_direction():
    params, g = random_tree(0), random_tree(1)
    after, _ = run(optimizer(), params, [g])
    for k in ("conv", "dense", "bias", "cube"):
        step = (after[k] - params[k]) / -0.19  # rate 0.1; Nesterov's first step is 1 + 0.9 long
        assert np.linalg.norm(step) == pytest.approx(np.linalg.norm(g[k]), rel=1e-5)
        cosine = np.vdot(step, g[k]) / np.linalg.norm(g[k]) ** 2
        assert 0.1 < cosine < 0.999


def test_a_dimension_above_the_limit_is_not_preconditioned():
    shapes = {"large": (40, 3), "small": (39, 3)}
    params, g = random_tree(0, shapes), random_tree(1, shapes)
    made = optimizer(nesterov=False, no_preconditioning_for_layers_with_dim_gt=39)
    after, _ = run(made, params, [g])
    np.testing.assert_allclose(after["large"], params["large"] - 0.1 * g["large"], rtol=1e-5)
    assert np.abs(after["small"] - (params["small"] - 0.1 * g["small"])).max() > 1e-3


def test_weight_decay_follows_its_mask():
    params = random_tree(0, {"a": (5, 4), "b": (5, 4), "c": ()})
    zeros = {k: np.zeros_like(w) for k, w in params.items()}
    tx = optim.distributed_shampoo(
        0.1, nesterov=False, weight_decay=0.5, weight_decay_mask={"a": True, "b": False, "c": True}
    )
    after, _ = run((tx, jax.jit(tx.update)), params, [zeros])
    for k in ("a", "c"):
        np.testing.assert_allclose(after[k], params[k] - 0.1 * 0.5 * params[k], rtol=1e-6)
    np.testing.assert_array_equal(after["b"], params["b"])


@pytest.mark.slow
def test_statistics_every_third_step_see_every_third_gradient():
    shapes = {"w": (6, 5)}
    params = random_tree(0, shapes)
    grads = [random_tree(i, shapes) for i in range(7)]
    tx, update = optimizer(statistics_compute_steps=3, preconditioning_compute_steps=2)
    every_tx, every_update = optimizer()
    state, every = tx.init(params), every_tx.init(params)
    for i, g in enumerate(grads):
        before = state
        _, state = update(g, state, params)
        if i % 3 == 0:
            _, every = every_update(g, every, params)
        (statistics, roots), (_, roots_before) = preconditioners(state), preconditioners(before)
        np.testing.assert_allclose(
            statistics["6x5"]["0"], preconditioners(every)[0]["6x5"]["0"], rtol=1e-5
        )
        kept = np.array_equal(roots["6x5"]["1"], roots_before["6x5"]["1"])
        assert kept == (i not in (0, 4, 6))  # new statistics at 0, 3, 6; roots at 0, 2, 4, 6


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(bad):
    made = optimizer()
    params, grads = random_tree(0), [random_tree(i) for i in range(1, 5)]
    broken = random_tree(9)
    broken["dense"][3, 3] = broken["bias"][:] = bad
    clean, clean_state = run(made, params, grads)
    tx, update = made
    state, got = tx.init(params), params
    for i, g in enumerate([*grads[:2], broken]):
        updates, state = update(g, state, got)
        got = optax.apply_updates(got, updates)
        if i == 1:
            before, kept = got, state
    jax.tree.map(np.testing.assert_array_equal, got, before)
    floats = [
        [x for x in jax.tree.leaves(one) if jnp.issubdtype(x.dtype, jnp.inexact)]
        for one in (state, kept)
    ]
    jax.tree.map(np.testing.assert_array_equal, *floats)
    assert counts(state)["skipped_updates"] == 1
    state = at_count(state, 2)  # so that the rates are those of the clean run
    for g in grads[2:]:
        updates, state = update(g, state, got)
        got = optax.apply_updates(got, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, clean)
    assert counts(clean_state)["skipped_updates"] == 0


def test_gradients_whose_squares_overflow_keep_the_statistics():
    made = optimizer()
    params, g = random_tree(0), random_tree(1)
    large = g | {"dense": g["dense"] * np.float32(1e25)}
    tx, update = made
    state = tx.init(params)
    _, first = update(g, state, params)
    updates, second = update(large, first, params)
    assert counts(second)["skipped_statistics"] == 4  # two axes of the two blocks of 20 x 13
    (old, _), (new, _) = preconditioners(first), preconditioners(second)
    kept = [np.array_equal(x, y) for x, y in zip(old["16x16"]["0"], new["16x16"]["0"], strict=True)]
    dense = [p for p in layout().buckets["16x16"].pieces if p.shape == (1, 20, 13)]
    assert sum(kept) == sum(p.blocks_per_leaf for p in dense) == 2
    assert all(np.all(np.isfinite(u)) for u in jax.tree.leaves(updates))


def test_gradients_whose_squares_vanish_keep_the_statistics_and_are_counted():
    """Otherwise part of the squares would be zero, and the direction another one."""
    tx, update = optimizer()
    params, g = random_tree(0), random_tree(1)
    _, first = update(g, tx.init(params), params)
    tiny = g | {"dense": g["dense"] * np.float32(1e-18)}
    updates, second = update(tiny, first, params)
    assert counts(second)["skipped_statistics"] == 4
    assert counts(first)["skipped_statistics"] == 0
    assert all(np.all(np.isfinite(u)) for u in jax.tree.leaves(updates))


def test_a_root_that_fails_keeps_the_previous_one_and_is_counted():
    made = optimizer()
    params, g = random_tree(0), random_tree(1)
    _, state = run(made, params, [g])

    def poison(name, axis, s):
        return s.at[0].set(jnp.nan) if (name, axis) == ("16", "0") else s

    updates, after = made[1](g, with_statistics(state, poison), params)
    old, new = (preconditioners(x)[1]["16"]["0"] for x in (state, after))
    np.testing.assert_array_equal(new[0], old[0])
    assert np.any(new[1] != old[1])
    assert counts(after)["failed_roots"] == 1
    assert all(np.all(np.isfinite(u)) for u in jax.tree.leaves(updates))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-12, 1e-3, 1e3, 1e12])
def test_the_direction_does_not_depend_on_the_gradients_scale(scale):
    made = optimizer()
    params, g = random_tree(0), random_tree(1)
    tx, update = made
    state = tx.init(params)
    state = with_statistics(state, lambda *s: jnp.zeros_like(s[-1]))  # no eps I
    unit, _ = update(g, state, params)
    scaled, _ = update({k: np.float32(x * scale) for k, x in g.items()}, state, params)
    for k in SHAPES:
        # Below 1e-19 the squares underflow: the statistics are zero and the graft is what is left.
        wanted = unit[k] if scale > 1e-18 else -0.19 * g[k]
        np.testing.assert_allclose(scaled[k] / scale, wanted, rtol=2e-3, atol=2e-3)


def test_layers_without_gradient_stay_finite_for_hundreds_of_steps_and_wake_up():
    made = optimizer()
    params = random_tree(0)
    dead = {k: g * (k != "dense") for k, g in random_tree(1).items()}
    got, state = run(made, params, [dead] * 600)
    np.testing.assert_array_equal(got["dense"], params["dense"])
    updates, state = made[1](random_tree(2), state, got)
    length = np.linalg.norm(updates["dense"])
    wanted = float(rate(600)) * 1.9 * np.linalg.norm(random_tree(2)["dense"])
    assert length == pytest.approx(wanted, rel=1e-4)
    assert counts(state)["failed_roots"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("graft_type", list(LayerwiseGrafting))
def test_every_graft_gives_its_own_length(graft_type):
    shapes = {"w": (20, 13), "b": (7,)}
    params, g = random_tree(0, shapes), random_tree(1, shapes)
    made = optimizer(graft_type=graft_type, nesterov=False, weight_decay=0.01)
    after, _ = run(made, params, [g])
    step = (np.float64(after["w"]) - params["w"]) / -0.1
    w, gw = np.float64(params["w"]), np.float64(g["w"])
    lengths = {"SGD": np.linalg.norm(gw), "ADAGRAD": gw.size**0.5}
    lengths["RMSPROP"] = (gw.size / (1 - 0.85)) ** 0.5
    if graft_type == LayerwiseGrafting.LARS:
        trust = 0.001 * np.linalg.norm(w) / (np.linalg.norm(gw) + 0.01 * np.linalg.norm(w))
        direction, wanted = step / trust - 0.01 * w, np.linalg.norm(gw)
    elif graft_type == LayerwiseGrafting.NONE:
        one = reference.Shampoo(
            w,
            rate=rate,
            beta1=0.9,
            beta2=0.85,
            epsilon=1.5e-5,
            relative=True,
            p=4,
            decay=0.0,
            start=0,
            block=16,
        )
        direction, wanted = step - 0.01 * w, np.linalg.norm(one._direction(gw))
    else:
        direction, wanted = step - 0.01 * w, lengths[graft_type.name]
    assert np.linalg.norm(direction) == pytest.approx(wanted, rel=1e-3)


def test_a_thousand_hostile_steps_end_on_course():
    """Zeros for hundreds of steps, scales from 1e-20 to 1e3, a NaN at step 500; then descent."""
    tx, update = optimizer()
    target = random_tree(7)
    params = random_tree(0)
    state = tx.init(params)
    r = np.random.default_rng(3)

    def distance():
        return sum(np.sum((np.float64(params[k]) - target[k]) ** 2) for k in SHAPES)

    for i in range(1000):
        g = {k: np.asarray(params[k] - target[k]) for k in SHAPES}
        if 100 <= i < 700:
            g = {k: np.float32(x * 10.0 ** r.uniform(-20, 3) * (k != "cube")) for k, x in g.items()}
        if i == 500:
            g["conv"] = np.full_like(g["conv"], np.nan)
        if i == 700:
            state = at_count(state, 0)  # the rate rises again
            before = distance()
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
        assert all(np.all(np.isfinite(x)) for x in params.values()), i
    assert counts(state)["skipped_updates"] == 1
    assert counts(state)["failed_roots"] == 0
    assert distance() < 0.5 * before


def test_a_model_of_scalars_only_is_sgd():
    tx = optim.distributed_shampoo(0.1, beta1=0.9, nesterov=True)
    params = {"a": jnp.float32(2.0), "b": jnp.float32(-1.0)}
    updates, _ = tx.update({"a": jnp.float32(1.0), "b": jnp.float32(3.0)}, tx.init(params), params)
    np.testing.assert_allclose([updates["a"], updates["b"]], [-0.19, -0.57], rtol=1e-6)


def test_hyperparameters_out_of_range_are_refused():
    for field, value in [
        ("beta1", np.nan),
        ("beta2", -0.1),
        ("weight_decay", np.nan),
        ("weight_decay", -1.0),
        ("trust_coefficient", -1.0),
        ("diagonal_epsilon", -1.0),
        ("start_preconditioning_step", 2.5),
        ("start_preconditioning_step", -3),
        ("no_preconditioning_for_layers_with_dim_gt", -1),
        ("exponent_override", 2.5),
        ("exponent_override", -1),
        ("exponent_override", np.nan),
        ("exponent_override", np.inf),
        ("block_size", 0),
        ("block_size", 2.5),
        ("beta1", 1.0),
        ("beta1", np.float32(1.5)),
        ("matrix_epsilon", np.inf),
        ("preconditioning_compute_steps", 1.5),
        ("graft_type", "lamb"),
        ("statistics_compute_steps", 0),
    ]:
        with pytest.raises(ValueError, match=f"optimizer.{field}="):
            optim.distributed_shampoo(0.1, **{field: value})
