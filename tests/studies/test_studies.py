"""The studies' commands: what they ask of sweep.py is what the sweep takes."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import report
import sweep
from configs import command_line
from reporting import archive
from studies import __main__ as studies
from studies import plan
from tests.reporting.run_folders import write_run


def planned(arguments):
    options, overrides = sweep.arguments([*arguments, "--dry_run"])
    return sweep.planned(options, overrides)


def choose_first(path, recipes, fields):
    """A trials.json as the tuning would leave it; its one trial has distinct values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = dict.fromkeys(fields, 0.25)
    trial = {"trial": 0, "values": values, "final_accuracy": {"1000": 0.5}, "median": 0.5}
    table = {r: {"chosen": 0, "trials": [trial]} for r in recipes}
    path.write_text(json.dumps(table))


@pytest.mark.parametrize("name", plan.STUDIES)
def test_every_call_is_one_that_the_sweep_takes(name, tmp_path):
    study = plan.STUDIES[name]
    recipes = [f"{optimizer}:{name}" for optimizer in study.optimizers]
    choose_first(tmp_path / "tuning" / "trials.json", recipes, ["optimizer.weight_decay"])
    for batch in study.batches:
        path = tmp_path / f"batch_{batch:06d}" / "tuning" / "trials.json"
        choose_first(path, recipes, ["schedule.peak_learning_rate"])
    tuning, *rest = [planned(call) for call in plan.commands(study, tmp_path, 2)]
    tuning_seeds = {run.seed for run in tuning}
    assert len(tuning) == len(recipes) * study.trials * len(tuning_seeds)
    assert {run.config().total_steps for run in tuning} == {study.total_steps}
    ladder = rest[: len(study.ladder)]
    for some, (optimizers, budgets, seeds) in zip(ladder, study.ladder, strict=True):
        first, last = map(int, seeds.split(":"))
        assert len(some) == len(optimizers) * (last - first) * len(budgets.split(","))
        assert {run.config().optimizer.weight_decay for run in some} == {0.25}
        assert not tuning_seeds & {run.seed for run in some}
    folders = [run.folder for some in (tuning, *rest) for run in some]
    assert len(set(folders)) == len(folders)
    for batch, some in zip(study.batches, rest[len(ladder) + 1 :: 2], strict=True):
        configs = [run.config() for run in some]
        assert len(configs) == 4 * 2 * 8
        assert {c.global_batch_size for c in configs} == {batch}
        assert {c.schedule.peak_learning_rate for c in configs} == {0.25}
        assert not tuning_seeds & {run.seed for run in some}


def test_every_batch_size_sees_the_same_examples_and_is_evaluated_as_often():
    study = plan.STUDIES["fashion"]
    examples = [[batch * steps for steps in budgets] for batch, budgets in study.batches.items()]
    assert len(examples) == 3
    assert examples[0] == examples[1] == examples[2]
    for batch, budgets in study.batches.items():
        assert study.eval_every_examples % batch == 0
        assert all(steps * batch % study.eval_every_examples == 0 for steps in budgets)


def test_lars_scale_is_shampoo_with_the_scale_of_lars():
    for task in ("digits", "fashion"):
        mixed = command_line.load(f"shampoo_lars_scale:{task}")
        lars, shampoo = (command_line.load(f"{name}:{task}") for name in ("lars", "shampoo"))
        assert mixed.schedule == lars.schedule
        assert mixed.optimizer.beta1 == lars.optimizer.momentum
        assert mixed.optimizer.trust_coefficient == lars.optimizer.trust_coefficient
        own = {"graft_type", "trust_coefficient", "beta1", "weight_decay"}
        for field in set(shampoo.optimizer) - own:
            assert mixed.optimizer[field] == shampoo.optimizer[field], field


def test_the_dry_run_prints_every_command_and_starts_none(tmp_path):
    command = [sys.executable, "-m", "studies", "fashion", f"--out={tmp_path / 'x'}", "--dry_run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("python sweep.py") == 9
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", plan.STUDIES)
def test_the_committed_page_is_that_of_the_committed_runs(name, tmp_path, monkeypatch):
    committed = studies.ROOT / "results" / name
    if not committed.exists():
        pytest.skip(f"make study-{name} has not been run and committed")
    here = pathlib.Path("results", name)
    monkeypatch.chdir(tmp_path)
    here.mkdir(parents=True)
    sources = [file for file in committed.iterdir() if file.name.startswith(("runs.", "trials"))]
    for file in sources:
        shutil.copy(file, here)
    assert report.main([str(here)]) == 0
    made = {file.name: file.read_text() for file in here.iterdir()}
    assert made == {file.name: file.read_text() for file in committed.iterdir()}


def test_a_study_keeps_all_trials_its_page_and_its_runs_but_for_those_of_the_tuning(
    tmp_path, monkeypatch
):
    out, results = tmp_path / "out", tmp_path / "results"
    for batch in ("", "batch_000768"):
        write_run(out / batch / "tuning", "lars:digits", 1000)
        choose_first(out / batch / "tuning" / "trials.json", [f"lars:{batch}"], [])
    write_run(out / "ladder", "lars:digits", 3)
    done = subprocess.CompletedProcess((), 0)
    monkeypatch.setattr(subprocess, "run", lambda command, check: done)
    assert studies.main(["digits", f"--out={out}", f"--results={results}"]) == 0
    kept = {file.name: file for file in results.iterdir()}
    assert list(json.loads(kept["trials_batch_000768.json"].read_text())) == ["lars:batch_000768"]
    assert [run.seed for run in archive.read(kept["runs.json"])] == [3]
    assert {"trials.json", "README.md", "report.json", "curves_640.svg"} < set(kept)


def test_a_sweep_that_is_stopped_stops_the_study(tmp_path, monkeypatch):
    calls = []

    def run(command, check):
        calls.append(command)
        return subprocess.CompletedProcess(command, 75 if len(calls) == 2 else 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert studies.main(["digits", f"--out={tmp_path}", f"--results={tmp_path / 'r'}"]) == 75
    assert len(calls) == 2
    assert not (tmp_path / "r").exists()
