"""Whole runs on the embedded digits, small: files, determinism, divergence, refusal."""

import csv
import json

import pytest

import evaluator
import train
from configs import command_line

RUN_JSON = {  # the contract's keys
    "recipe": str,
    "optimizer": str,
    "dataset": str,
    "seed": int,
    "status": str,
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
TINY = (
    "--config.model.stage_sizes=(1,)",
    "--config.model.width=2",
    "--config.global_batch_size=64",
    "--config.model.bn_span=64",
    "--config.total_steps=5",
    "--config.eval_every_steps=2",
    "--config.log_every_steps=2",
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def config(data_dir):
    def load(*overrides):
        data = f"--config.dataset.data_dir={data_dir}"
        return command_line.load("nesterov:smoke", [*TINY, data, *overrides])

    return load


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
    )
    result = train.train_and_evaluate(config(*overrides), str(tmp_path))
    assert result.status == "diverged"
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["status"] == "diverged"
    assert run["steps_to_target"] is None
    assert float(rows(tmp_path / "metrics.csv")[-1]["skipped"]) > 0


def test_complete_run_is_not_run_again(config, tmp_path, monkeypatch):
    first = train.train_and_evaluate(config(), str(tmp_path))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.setattr(evaluator, "evaluate", None)  # were anything run, this would fail
    again = train.train_and_evaluate(config(), str(tmp_path))
    assert again.final_accuracy == first.final_accuracy
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_workdir_of_another_config_is_refused(config, tmp_path):
    train.train_and_evaluate(config(), str(tmp_path))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(
        ValueError, match=r"another config \(optimizer.momentum=0.9 there, 0.5 now\)"
    ):
        train.train_and_evaluate(config("--config.optimizer.momentum=0.5"), str(tmp_path))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_seeds_of_a_recipe_share_one_program(config):
    spec = train.input_pipeline.describe(**config().dataset.to_dict())
    one, other = (train.build(config(f"--config.seed={s}"), spec) for s in (1, 2))
    assert one is other
    assert train.build(config("--config.optimizer.momentum=0.5"), spec) is not one
