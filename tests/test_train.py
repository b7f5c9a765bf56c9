"""Whole runs on the embedded digits, small: files, determinism, divergence, refusal."""

import csv
import json
import os
import signal
from functools import partial

import jax
import numpy as np
import pytest
from etils import epath
from processes import NETWORK

import checkpoint
import evaluator
import train
from configs import command_line, optimizers
from configs import plan as plans
from errors import Preempted
from input_pipeline.batches import Again
from run import mllog
from run.logger import RunLogger, RunProgress

RUN_JSON = {
    "reason": type(None),
    "segments": list,  # the contract's keys
    "recipe": str,
    "optimizer": str,
    "dataset": str,
    "seed": int,
    "status": str,
    "diverged": (dict, type(None)),
    "target_accuracy": float,
    "steps_to_target": (int, type(None)),
    "seconds_to_target": (float, type(None)),
    "final_accuracy": float,
    "best_accuracy": float,
    "total_steps": int,
    "global_batch_size": int,
    "n_eval_examples": int,
    "plan": dict,
    "seconds": dict,
    "versions": dict,
    "git": str,
    "device": dict,
    "unverified": list,
    "assumed": list,
}
TINY = (*NETWORK, "--config.log_every_steps=2")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def config(data_dir):
    def load(*overrides):
        data = f"--config.dataset.data_dir={data_dir}"
        return command_line.load("nesterov:smoke", [*TINY, data, *overrides])

    return load


def build(loaded, spec):
    return train.build(loaded, spec, optimizers.from_recipe(loaded))


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def rows(path):
    with path.open() as f:
        return list(csv.DictReader(f))


def test_run_writes_its_files_with_the_contracts_keys(config, tmp_path):
    result = train.train_and_evaluate(config("--config.target_accuracy=0.01"), str(tmp_path))
    run = json.loads((tmp_path / "run.json").read_text())
    assert set(run) == set(RUN_JSON)
    for key, kind in RUN_JSON.items():
        assert isinstance(run[key], kind), (key, run[key])
    assert run["plan"]["eval_steps"] == [2, 4, 5]
    assert run["device"]["count"] == 8

    curve = rows(tmp_path / "curve.csv")
    assert [int(row["step"]) for row in curve] == [2, 4, 5]
    assert {int(row["n_seen"]) for row in curve} == {360}
    right = [int(row["n_correct"]) for row in curve]
    assert run["final_accuracy"] == right[-1] / 360
    assert run["best_accuracy"] == max(right) / 360
    assert run["steps_to_target"] == 2
    assert result.steps_to_target == 2
    seconds = run["seconds"]
    assert 0 < run["seconds_to_target"] < seconds["train"] + seconds["eval"]

    metrics = rows(tmp_path / "metrics.csv")
    assert [int(row["step"]) for row in metrics] == [2, 4, 5]
    # nesterov:smoke with peak 0.2, warm-up 2, total 5: schedule(1), schedule(3), schedule(4).
    expected = [0.1, 0.2 * (3 / 4) ** 2, 0.2 * (2 / 4) ** 2]
    assert [float(row["learning_rate"]) for row in metrics] == pytest.approx(expected, rel=1e-5)
    lines = (tmp_path / "result.txt").read_text().splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    accuracy = [e["value"] for e in events if e["key"] == "eval_accuracy"]
    assert accuracy == [n / 360 for n in right]
    stop = [e for e in events if e["key"] == "run_stop"]
    assert [e["metadata"]["status"] for e in stop] == ["success"]
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_same_seed_gives_the_same_bytes_and_another_seed_others(config, tmp_path):
    curves = {}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train.train_and_evaluate(config(f"--config.seed={seed}"), str(tmp_path / name))
        curves[name] = (tmp_path / name / "curve.csv").read_bytes()
    assert curves["a"] == curves["b"]
    assert curves["a"] != curves["c"]


def test_run_ends_at_the_target_if_told_so(config, tmp_path):
    overrides = ("--config.stop_at_target=True", "--config.target_accuracy=0.01")
    train.train_and_evaluate(config(*overrides), str(tmp_path))
    assert [int(row["step"]) for row in rows(tmp_path / "curve.csv")] == [2]


def test_divergence_is_a_result(config, tmp_path):
    overrides = (
        "--config.schedule.peak_learning_rate=1e38",
        "--config.max_consecutive_skips=2",
        "--config.total_steps=20",
        "--config.checkpoint_every_steps=1",
    )
    result = train.train_and_evaluate(config(*overrides), str(tmp_path))
    assert result.status == "diverged"
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["status"] == "diverged"
    # The first update has rate 0; the second one, of 5e37, is the last with a finite gradient.
    assert run["diverged"] == {"step": 4, "metric": "skipped", "last_checkpoint": 2}
    assert run["steps_to_target"] is None
    assert float(rows(tmp_path / "metrics.csv")[-1]["skipped"]) > 0


def test_metrics_are_means_of_the_steps_own_and_the_last_of_the_optimizers(config, tmp_path):
    """Its counters count from step 0: a mean over an interval would lag, and be no count."""
    loaded = config("--config.total_steps=4", "--config.log_every_steps=2")
    sizes = {"n_train_examples": 1437, "n_eval_examples": 360, "n_devices": 1, "n_hosts": 1}
    plan = plans.make_plan(loaded, **sizes)
    logger = RunLogger(loaded, plan, epath.Path(tmp_path), lambda step: 0.5, RunProgress())
    logger.start(init_seconds=1.0)
    for step, (loss, count) in enumerate([(4.0, 1), (2.0, 3), (1.0, 3), (0.5, 8)], start=1):
        own = {"loss": loss, "accuracy": 0.5, "skipped": step % 2}
        logger.record_step(step, {**own, "shampoo_failed_roots": np.int32(count)})
    logger.close(4)
    written = [{k: float(v) for k, v in row.items()} for row in rows(tmp_path / "metrics.csv")]
    assert [row["shampoo_failed_roots"] for row in written] == [3, 8]
    assert [row["loss"] for row in written] == [3.0, 0.75]
    assert [row["skipped"] for row in written] == [0.5, 0.5]


def test_the_host_is_at_most_two_steps_ahead_of_the_devices(config, tmp_path, monkeypatch):
    lengths = {"total_steps": 20, "eval_every_steps": 20, "log_every_steps": 5}
    loaded = config(*(f"--config.{name}={steps}" for name, steps in lengths.items()))
    sizes = {"n_train_examples": 1437, "n_eval_examples": 360, "n_devices": 1, "n_hosts": 1}
    logger = RunLogger(
        loaded,
        plans.make_plan(loaded, **sizes),
        epath.Path(tmp_path),
        lambda step: 0.5,
        RunProgress(),
    )
    logger.start(init_seconds=1.0)
    waited: list[int] = []
    monkeypatch.setattr(jax, "block_until_ready", lambda metrics: waited.append(metrics["step"]))
    own = {"loss": 1.0, "accuracy": 0.5, "skipped": 0}
    for step in range(1, 9):
        logger.record_step(step, own | {"step": step})
    assert waited == [1, 2, 3, 6]  # at 5 all are fetched, which waits for all


def test_complete_run_is_not_run_again(config, tmp_path, monkeypatch):
    first = train.train_and_evaluate(config(), str(tmp_path))
    before = contents(tmp_path)
    monkeypatch.setattr(evaluator, "count", None)  # were anything run, this would fail
    again = train.train_and_evaluate(config(), str(tmp_path))
    assert again.final_accuracy == first.final_accuracy
    assert contents(tmp_path) == before


def test_workdir_of_another_config_is_refused(config, tmp_path):
    train.train_and_evaluate(config(), str(tmp_path))
    before = contents(tmp_path)
    with pytest.raises(
        ValueError, match=r"another config \(optimizer.momentum=0.9 there, 0.5 given\)"
    ):
        train.train_and_evaluate(config("--config.optimizer.momentum=0.5"), str(tmp_path))
    assert contents(tmp_path) == before


def test_seeds_and_trials_of_a_recipe_share_one_compiled_step(config, tmp_path, monkeypatch):
    spec = train.input_pipeline.describe(**config().dataset.to_dict())

    def step_of(*overrides):
        return build(config(*overrides), spec).train_step

    one = step_of()
    assert step_of("--config.seed=2") is one
    assert step_of("--config.optimizer.momentum=0.5") is one
    assert step_of("--config.schedule.peak_learning_rate=0.7") is one
    assert step_of("--config.optimizer.weight_decay=0.0") is not one  # the term is left out
    assert step_of("--config.schedule.warmup_steps=1.0") is not one


@pytest.mark.slow
def test_a_trial_is_the_very_run_that_it_is_alone(config, tmp_path):
    """Whatever ran before it in the process; and its numbers are its own."""
    numbers = ["--config.optimizer.momentum=0.5", "--config.schedule.peak_learning_rate=0.05"]
    train._programs.clear()
    train.train_and_evaluate(config(*numbers), str(tmp_path / "alone"))
    train._programs.clear()
    train.train_and_evaluate(config(), str(tmp_path / "first"))
    train.train_and_evaluate(config(*numbers), str(tmp_path / "after"))
    alone, first, after = (
        (tmp_path / name / "curve.csv").read_bytes() for name in ("alone", "first", "after")
    )
    assert alone == after != first


@pytest.mark.slow
def test_accumulation_and_pooling_reach_the_step_and_the_log(config):
    """One update either way: the same parameters, a larger running variance, and a loop."""
    spec = train.input_pipeline.describe(**config().dataset.to_dict())
    batches = train.input_pipeline.train_batches(
        config().dataset.to_dict(),
        seed=0,
        global_batch_size=64,
        first_step=0,
        host_index=0,
        n_hosts=1,
        n_local_devices=8,
    )
    batch = next(batches)
    span = "--config.model.bn_span=4"  # 8 a device

    def update(*overrides):
        chosen = config(span, *overrides)
        program = build(chosen, spec)
        initial = train.steps.init_state(program.model, program.tx, spec.image_shape, 0)
        loops = program.train_step.lower(train.steps.place(initial), batch).as_text()
        state, _ = program.train_step(train.steps.place(initial), batch)
        plan = train.plans.make_plan(chosen, 1437, 360, n_devices=8, n_hosts=1)
        logged = mllog.hyperparameters(chosen, plan)["gradient_accumulation_steps"]
        return jax.device_get(state), "stablehlo.while" in loops, logged

    plain, has_loop, logged = update()
    assert (has_loop, logged) == (False, 1)
    other, has_loop, logged = update(
        "--config.gradient_accumulation_steps=2", "--config.model.bn_running_variance=pooled"
    )
    assert (has_loop, logged) == (True, 2)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), other.params, plain.params)
    stem, plain_stem = other.batch_stats["bn_stem"], plain.batch_stats["bn_stem"]
    np.testing.assert_allclose(stem["mean"], plain_stem["mean"], atol=1e-6)
    assert (stem["var"] > plain_stem["var"] + 1e-6).all()


# ------------------------------------------------------------- interruption and resumption


def signal_at(monkeypatch, name, n, number=signal.SIGTERM):
    """Sends this process a signal before the n-th batch of train_batches or eval_batches."""
    original = getattr(train.input_pipeline, name)
    seen = iter(range(1, 10**6))

    def watched(batches):
        for batch in batches:
            if next(seen) == n:
                os.kill(os.getpid(), number)
            yield batch

    def found(*args, **options):
        batches = original(*args, **options)
        return watched(batches) if batches is iter(batches) else Again(partial(watched, batches))

    monkeypatch.setattr(train.input_pipeline, name, found)


OPTIMIZERS = {
    "nesterov:smoke": (),
    "shampoo:smoke": ("--config.optimizer.start_preconditioning_step=1",),
}


@pytest.fixture(scope="module", params=OPTIMIZERS)
def undisturbed(request, data_dir, tmp_path_factory):
    def load(*overrides):
        more = (f"--config.dataset.data_dir={data_dir}", *OPTIMIZERS[request.param])
        checkpoints = "--config.checkpoint_every_steps=2"
        return command_line.load(request.param, [*TINY, *more, checkpoints, *overrides])

    folder = tmp_path_factory.mktemp("undisturbed")
    train.train_and_evaluate(load(), str(folder))
    return load, folder


@pytest.mark.parametrize(
    ("name", "n", "resumed_from"),
    [
        ("train_batches", 1, 1),  # in the first step
        ("train_batches", 4, 4),
        ("eval_batches", 1, 2),  # in the first evaluation
        ("eval_batches", 3, 5),  # in the last one
    ],
)
def test_preempted_and_resumed_is_undisturbed(
    undisturbed, tmp_path, monkeypatch, capsys, name, n, resumed_from
):
    load, reference = undisturbed
    with monkeypatch.context() as patch:
        signal_at(patch, name, n)
        with pytest.raises(Preempted) as caught:
            train.train_and_evaluate(load(), str(tmp_path))
    assert caught.value.step == resumed_from
    assert not (tmp_path / "run.json").exists()
    result = train.train_and_evaluate(load(), str(tmp_path))
    assert f"from the checkpoint of step {resumed_from}" in capsys.readouterr().out
    assert result.status == "done"
    assert (tmp_path / "curve.csv").read_bytes() == (reference / "curve.csv").read_bytes()
    assert state_of(tmp_path) == state_of(reference)

    def keys(folder):
        lines = (folder / "result.txt").read_text().splitlines()
        events = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
        times = [e["time_ms"] for e in events]
        assert times == sorted(times)
        return [(e["key"], e["value"]) for e in events]

    assert keys(tmp_path) == keys(reference)


def state_of(folder):
    """The bytes of the last checkpoint's arrays."""
    checkpoints = checkpoint.Checkpoints(epath.Path(folder), keep=3)
    step = checkpoints.steps()[-1]
    restored = checkpoints.manager.restore(
        step, args=checkpoint.ocp.args.Composite(state=checkpoint.ocp.args.StandardRestore())
    )
    checkpoints.close()
    leaves = jax.tree_util.tree_leaves_with_path(restored["state"])
    return step, {jax.tree_util.keystr(path): np.asarray(x).tobytes() for path, x in leaves}


def test_corrupted_checkpoint_falls_back_to_the_one_before(
    undisturbed, tmp_path, monkeypatch, capsys
):
    load, reference = undisturbed
    with monkeypatch.context() as patch:
        signal_at(patch, "train_batches", 5)
        with pytest.raises(Preempted):
            train.train_and_evaluate(load(), str(tmp_path))
    for file in (tmp_path / "checkpoints" / "5" / "state").rglob("d/*"):
        file.write_bytes(b"damaged")
    train.train_and_evaluate(load(), str(tmp_path))
    out = capsys.readouterr().out
    assert "skipping a checkpoint that cannot be read: step 5" in out
    assert "from the checkpoint of step 4" in out
    assert (tmp_path / "curve.csv").read_bytes() == (reference / "curve.csv").read_bytes()


def test_the_users_interruption_is_a_result_and_can_be_continued(
    undisturbed, tmp_path, monkeypatch
):
    load, reference = undisturbed
    with monkeypatch.context() as patch:
        signal_at(patch, "train_batches", 3, signal.SIGINT)
        assert train.train_and_evaluate(load(), str(tmp_path)).status == "aborted"
    assert train.train_and_evaluate(load(), str(tmp_path)).status == "done"
    assert (tmp_path / "curve.csv").read_bytes() == (reference / "curve.csv").read_bytes()


def test_checkpoint_of_another_version_of_the_code_is_one_line(undisturbed, tmp_path, monkeypatch):
    load, _ = undisturbed
    as_record = RunLogger.as_record
    with monkeypatch.context() as patch:
        signal_at(patch, "train_batches", 3)
        patch.setattr(
            RunLogger, "as_record", lambda self, step: as_record(self, step) | {"more": 1}
        )
        with pytest.raises(Preempted):
            train.train_and_evaluate(load(), str(tmp_path))
    with pytest.raises(ValueError, match=r"checkpoints are of another version of the code; use"):
        train.train_and_evaluate(load(), str(tmp_path))


def test_checkpoint_of_another_dtype_is_refused(undisturbed):
    load, reference = undisturbed
    config = load()
    spec = train.input_pipeline.describe(**config.dataset.to_dict())
    program = build(config, spec)
    template = train.steps.init_state(program.model, program.tx, spec.image_shape, 0)
    half = jax.tree.map(lambda x: x.astype("bfloat16"), template.batch_stats)
    other = train.steps.replace(template, batch_stats=half)
    checkpoints = checkpoint.Checkpoints(epath.Path(reference), keep=3)
    with pytest.raises(TypeError, match=r"batch_stats.* is float32, not bfloat16"):
        checkpoints.restore_latest(other)
    checkpoints.close()
