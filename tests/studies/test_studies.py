"""The studies' commands: what they ask of sweep.py is what the sweep takes."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

import report
import sweep
from configs import command_line
from reporting import archive
from reporting.runs import flatten
from run import files
from studies import __main__ as studies
from studies import plan
from sweeps import process, runs, trials
from tests.processes import restore_sigint


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
    lengths = [(c.total_steps, c.eval_every_steps) for c in (run.config() for run in tuning)]
    assert set(lengths) == {(study.total_steps, study.total_steps)}  # the end alone is judged
    ladder = rest[: len(study.ladder)]
    for some, (optimizers, budgets, seeds) in zip(ladder, study.ladder, strict=True):
        first, last = map(int, seeds.split(":"))
        assert len(some) == len(optimizers) * (last - first) * len(budgets.split(","))
        assert {run.config().optimizer.weight_decay for run in some} == {0.25}
        assert not tuning_seeds & {run.seed for run in some}
    folders = [run.folder for some in (tuning, *rest) for run in some]
    assert len(set(folders)) == len(folders)
    for some in rest[len(ladder) :: 2]:  # the rate again, with all else as it was tuned
        assert {run.config().optimizer.weight_decay for run in some} == {0.25}
        assert len({run.config().schedule.peak_learning_rate for run in some}) >= plan.BATCH_TRIALS
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
    mixed = command_line.load("shampoo_lars_scale:digits")
    lars, shampoo = (command_line.load(f"{name}:digits") for name in ("lars", "shampoo"))
    assert mixed.schedule == lars.schedule
    assert mixed.optimizer.beta1 == lars.optimizer.momentum
    assert mixed.optimizer.trust_coefficient == lars.optimizer.trust_coefficient
    own = {"graft_type", "trust_coefficient", "beta1", "weight_decay"}
    for field in set(shampoo.optimizer) - own:
        assert mixed.optimizer[field] == shampoo.optimizer[field], field
    assert command_line.load("shampoo_lars_scale:fashion").optimizer.graft_type == "LARS"


@pytest.mark.parametrize("name", plan.STUDIES)
def test_the_proxies_values_are_those_that_the_committed_study_chose(name):
    table = json.loads((studies.ROOT / "results" / name / "trials.json").read_text())
    for recipe, of in table.items():
        config = command_line.load(recipe)
        for field, value in of["trials"][of["chosen"]]["values"].items():
            section, key = field.split(".")
            assert config[section][key] == value, (recipe, field)


def test_the_dry_run_prints_every_command_and_starts_none(tmp_path):
    command = [sys.executable, "-m", "studies", "fashion", f"--out={tmp_path / 'x'}", "--dry_run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("python sweep.py") == 9
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", plan.STUDIES)
def test_the_committed_page_is_that_of_the_committed_runs(name, tmp_path, monkeypatch):
    committed = studies.ROOT / "results" / name
    here = pathlib.Path("results", name)
    monkeypatch.chdir(tmp_path)
    here.mkdir(parents=True)
    sources = [file for file in committed.iterdir() if file.name.startswith(("runs.", "trials"))]
    for file in sources:
        shutil.copy(file, here)
    assert report.main([str(here)]) == 0
    made = {file.name: file.read_text() for file in here.iterdir()}
    assert made == {file.name: file.read_text() for file in committed.iterdir()}


@pytest.mark.parametrize("name", plan.STUDIES)
def test_the_committed_runs_and_trials_are_those_that_the_plan_asks_for(name, tmp_path):
    """Every field of every run's config, and every trial's point."""
    committed, study = studies.ROOT / "results" / name, plan.STUDIES[name]
    for batch in ("", *(f"batch_{batch:06d}" for batch in study.batches)):
        (tmp_path / batch / "tuning").mkdir(parents=True)
        file = committed / f"{'_'.join(filter(None, ['trials', batch]))}.json"
        shutil.copy(file, tmp_path / batch / "tuning" / "trials.json")
    found = {run.path: run.config for run in archive.read(committed / "runs.json")}
    for call in plan.commands(study, tmp_path, 2):
        options, _ = sweep.arguments(call)
        if not options.trials:
            for run in planned(call):
                config = found.pop(str(committed / run.folder.relative_to(tmp_path)))
                asked = flatten(files.config_as_json(run.config()))
                assert flatten(config).items() <= asked.items()
            continue
        table = json.loads((options.out / "trials.json").read_text())
        assert set(table) == set(options.recipes.split())
        for recipe, of in table.items():
            points = trials.points(trials.ranges(recipe, options.search), options.trials)
            assert [trial["values"] for trial in of["trials"]] == points
            for trial in of["trials"]:
                seeds = list(map(int, trial["status"]))
                assert seeds == list(runs.parse_seeds(options.seeds))
    assert not found


SMALL = plan.Study(
    "digits", ("lars",), 1, "1000", 60, ((("lars",), "48,60", "3:5"),), {1280: (30,)}, 1280 * 6
)


def made_by_hand(out, monkeypatch):
    """A small study whose sweeps are done, and leftovers of an older plan beside its runs."""
    monkeypatch.setitem(plan.STUDIES, "digits", SMALL)
    monkeypatch.setattr(process, "call", lambda command: 0)
    recipes = [f"{optimizer}:digits" for optimizer in plan.OPTIMIZERS]
    for batch in ("", "batch_001280", "batch_000512"):
        field = "schedule.peak_learning_rate" if batch else "optimizer.weight_decay"
        choose_first(out / batch / "tuning" / "trials.json", recipes, [field])
    calls = [planned(call) for call in plan.commands(SMALL, out, 2)]
    old = out / "ladder" / "lars-digits" / "steps_000010" / "seed_0003"
    for folder in [run.folder for call in calls for run in call] + [old]:
        recipe, seed = folder.relative_to(out).parts[-3], int(folder.name[-4:])
        record = {"recipe": recipe, "optimizer": "x", "dataset": "digits", "seed": seed}
        record |= {"status": "done", "target_accuracy": 0.9, "final_accuracy": 0.5}
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(record | {"total_steps": 60}))
    return calls


def test_what_is_kept_of_a_study_is_what_its_plan_asks_for(tmp_path, monkeypatch):
    out, results = tmp_path / "out", tmp_path / "results"
    _, ladder, _, at_another_batch = made_by_hand(out, monkeypatch)
    results.mkdir()
    (results / "trials_batch_000999.json").write_text("{}")
    (results / "ladder_999.svg").write_text("of an older page")
    assert studies.main(["digits", f"--out={out}", f"--results={results}"]) == 0
    kept = {file.name: file for file in results.iterdir()}
    assert set(kept) == {
        "runs.json", "trials.json", "trials_batch_001280.json", "README.md", "report.json",
    }  # fmt: skip
    found = [pathlib.Path(run.path) for run in archive.read(kept["runs.json"])]
    wanted = [run.folder for run in (*ladder, *at_another_batch)]
    assert sorted(p.relative_to(results) for p in found) == sorted(
        p.relative_to(out) for p in wanted
    )


@pytest.mark.parametrize(
    ("ends", "status", "n_calls"),
    [([0, 75], 75, 2), ([2], 2, 1), ([0, 1, 0, 0], 1, 4), ([0, 0, -9], -9, 3)],
)
def test_failed_runs_are_reported_and_a_sweep_that_stopped_stops_the_study(
    ends, status, n_calls, tmp_path, monkeypatch
):
    out, results = tmp_path / "out", tmp_path / "results"
    made_by_hand(out, monkeypatch)
    calls = []
    monkeypatch.setattr(process, "call", lambda call: calls.append(call) or ends[len(calls) - 1])
    assert studies.main(["digits", f"--out={out}", f"--results={results}"]) == status
    assert len(calls) == n_calls
    assert results.exists() == (status == 1)
    assert all("--workers=2" in call for call in calls)


@pytest.mark.parametrize("damage", ["results", "trials.json", "run.json"])
def test_what_cannot_be_kept_is_one_line(damage, tmp_path, monkeypatch, capsys):
    out, results = tmp_path / "out", tmp_path / "results"
    _, (run, *_), *_ = made_by_hand(out, monkeypatch)
    if damage == "results":
        results.write_text("in the way")
        with pytest.raises(SystemExit, match="2"):
            studies.main(["digits", f"--out={out}", f"--results={results}"])
    else:
        where = run.folder if damage == "run.json" else out / "tuning"
        (where / damage).write_bytes(b"\xff\xfe")
        assert studies.main(["digits", f"--out={out}", f"--results={results}"]) == 2
        assert not results.exists()
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


SWEEP = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), print("saved", flush=True), sys.exit(75)))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_sweep_under_way_save(number, tmp_path):
    """Else it would train on without the study, or be killed while it saves."""
    (tmp_path / "sweep.py").write_text(SWEEP)
    code = "import pathlib, sys; from studies import __main__ as studies; "
    code += f"studies.ROOT = pathlib.Path({str(tmp_path)!r}); "
    code += f"sys.exit(studies.main(['digits', '--out={tmp_path / 'out'}']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=studies.ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=restore_sigint,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("[1 of 2] python sweep.py ")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    said, error = process.communicate(timeout=60)
    assert said == "saved\n"
    assert process.returncode == 75
    assert error == "stopped; the same command continues\n"
