"""Hyperparameter trials: where they look, what they note, what is chosen."""

import json
import math

import numpy as np
import pytest

import sweep
from configs import command_line
from configs.search import Range
from sweeps import runs, trials

OPTIMIZERS = ("lars", "nesterov", "shampoo", "shampoo_lars_scale", "sm3")


def test_points_lie_in_their_ranges_and_are_spread_evenly():
    search = {
        "a": Range(1e-3, 10.0),
        "b": Range(0.01, 0.3, "complement"),
        "c": Range(1e-6, 1e-1, "decades"),
    }
    found = trials.points(search, 240)
    a = np.array([math.log10(p["a"]) for p in found])
    b = np.array([math.log10(1 - p["b"]) for p in found])
    assert -3 <= a.min() < a.max() <= 1
    assert math.log10(0.01) - 1e-9 <= b.min() < b.max() <= math.log10(0.3) + 1e-9
    for logs, low, high in ((a, -3, 1), (b, -2, math.log10(0.3))):
        counts, _ = np.histogram(logs, bins=8, range=(low - 1e-9, high + 1e-9))
        assert counts.min() > 24  # 30 each were it perfect; at random it would be 19 to 41
        assert counts.max() < 36
    values, counts = np.unique([p["c"] for p in found], return_counts=True)
    np.testing.assert_allclose(values, 10.0 ** np.arange(-6, 0), rtol=1e-12)
    assert counts.min() > 30


def test_more_trials_keep_those_made_before():
    search = trials.ranges("lars:digits")
    assert trials.points(search, 24)[:5] == trials.points(search, 5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizers_points_are_fields_of_its_recipe(optimizer):
    for point in trials.points(trials.ranges(f"{optimizer}:digits"), 3):
        config = command_line.load(f"{optimizer}:digits", trials.overrides(point))
        for field, value in point.items():
            section, name = field.split(".")
            assert config[section][name] == value


def test_shampoo_searches_the_ridges_of_the_readme():
    found = trials.ranges("shampoo:digits")["optimizer.matrix_epsilon"]
    assert found == Range(1e-6, 1e-1, "decades")


def test_mistakes(tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match=r"^trials=0: "):
        trials.points(trials.ranges("lars:digits"), 0)
    with pytest.raises(ValueError, match="0 < low < high"):
        Range(1.0, 0.1)
    with pytest.raises(ValueError, match="scales log, complement"):
        Range(0.1, 1.0, "linear")
    (tmp_path / "trials.json").write_text('{"lars:smoke": {"chosen": null, "trials": []}}')
    for recipe in ("lars:smoke", "sm3:smoke"):
        with pytest.raises(ValueError, match=f"no chosen trial for {recipe}"):
            trials.chosen(tmp_path / "trials.json", recipe)
    arguments = ["--recipes=lars:smoke", "--trials=2", "--budgets=8,12", f"--out={tmp_path}"]
    assert sweep.main(arguments) == 2
    assert "budgets=8,12: trials have one budget" in capsys.readouterr().err


def finish(run, correct):
    """What a run of two evaluations of 100 examples leaves; None: it diverged."""
    run.folder.mkdir(parents=True)
    status = "diverged" if correct is None else "done"
    lines = ["step,n_correct,n_seen,accuracy,loss"]
    if correct is not None:
        lines += ["6,9,100,0.09,1", f"12,{correct},100,{correct / 100},1"]
    (run.folder / "curve.csv").write_text("\n".join([*lines, ""]))
    final = None if correct is None else correct / 100
    record = {"recipe": run.recipe, "optimizer": "lars", "dataset": "digits", "seed": run.seed}
    record |= {"status": status, "target_accuracy": 0.99, "total_steps": 12}
    (run.folder / "run.json").write_text(json.dumps(record | {"final_accuracy": final}))


def test_the_best_median_is_chosen_and_everything_is_published(tmp_path):
    results = [[50, 60, 98], [70, 71, 20], [90, None, None], [95, 30, 40]]
    points = trials.points(trials.ranges("lars:smoke"), 4)
    made = []
    for i, (point, row) in enumerate(zip(points, results, strict=True)):
        overrides = trials.overrides(point)
        some = runs.plan_runs("lars:smoke", [3, 4, 5], tmp_path, overrides, trials.group(i))
        for run, correct in zip(some, row, strict=True):
            finish(run, correct)
        made += some
    written = trials.write(tmp_path / "trials.json", made, 4)
    table = json.loads((tmp_path / "trials.json").read_text())["lars:smoke"]
    assert [t["median"] for t in table["trials"]] == [0.6, 0.7, None, 0.4]
    assert [t["values"] for t in table["trials"]] == points
    assert table["trials"][2]["status"] == {"3": "done", "4": "diverged", "5": "diverged"}
    assert table["chosen"] == 1
    assert table["ranges"]["optimizer.momentum"] == {
        "low": 0.01,
        "high": 0.3,
        "scale": "complement",
    }
    chosen = trials.chosen(tmp_path / "trials.json", "lars:smoke")
    assert sorted(chosen) == sorted(trials.overrides(points[1]))
    [line] = trials.lines(written)
    assert line.startswith("lars:smoke: trial 1 chosen, median accuracy 0.7000: --config.")
    assert sorted(line.split()[7:]) == sorted(chosen)


def test_where_no_trial_was_finished_none_is_chosen_and_that_is_said(tmp_path):
    made = runs.plan_runs("lars:smoke", [3], tmp_path, [], trials.group(0))
    [line] = trials.lines(trials.write(tmp_path / "trials.json", made, 1))
    assert line == "lars:smoke: none of 1 trials has finished, none is chosen"


def test_trials_then_a_ladder_with_what_they_chose(tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--recipes=lars:smoke", f"--out={out}", "--dry_run"]
    assert sweep.main([*arguments, "--trials=3", "--seeds=0:2", "--budgets=24"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("lars-smoke/trial_002/seed_0001") == 1
    assert printed.count("\n") == 6
    table = {"lars:smoke": {"chosen": 0, "trials": [{"values": {"optimizer.momentum": 0.5}}]}}
    (tmp_path / "trials.json").write_text(json.dumps(table))
    arguments += [f"--tuned={tmp_path / 'trials.json'}", "--budgets=8,16", "--seeds=9"]
    options, overrides = sweep.arguments(arguments)
    planned = sweep.planned(options, overrides)
    assert [str(run.folder.relative_to(out)) for run in planned] == [
        "lars-smoke/steps_000008/seed_0009",
        "lars-smoke/steps_000016/seed_0009",
    ]
    for run, steps in zip(planned, (8, 16), strict=True):
        config = run.config()
        assert (config.optimizer.momentum, config.total_steps, config.seed) == (0.5, steps, 9)
        assert config.schedule.warmup_steps == pytest.approx(2 * steps / 12)
    options, overrides = sweep.arguments([*arguments, "--config.optimizer.momentum=0.7"])
    assert {run.config().optimizer.momentum for run in sweep.planned(options, overrides)} == {0.7}


def test_a_budget_stretches_the_warm_up_that_was_tuned(tmp_path):
    values = {"schedule.warmup_steps": 6.0}
    table = {"lars:smoke": {"chosen": 0, "trials": [{"values": values}]}}
    (tmp_path / "trials.json").write_text(json.dumps(table))
    options, overrides = sweep.arguments([
        "--recipes=lars:smoke", f"--out={tmp_path / 'out'}", "--seeds=0", "--budgets=6,24",
        f"--tuned={tmp_path / 'trials.json'}",
    ])  # fmt: skip
    planned = sweep.planned(options, overrides)
    assert [run.config().schedule.warmup_steps for run in planned] == [3.0, 12.0]  # of 6 in 12


def test_a_search_varies_the_named_fields_alone():
    assert set(trials.ranges("lars:digits", "schedule.peak_learning_rate")) == {
        "schedule.peak_learning_rate"
    }
    with pytest.raises(ValueError, match=r"^search=optimizer.beta2: lars:digits has ranges for"):
        trials.ranges("lars:digits", "optimizer.beta2")
