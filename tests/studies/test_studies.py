"""The studies' scripts: sweep.py takes their commands, and the committed runs come from them."""

import collections
import json
import os
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
from run import files
from run.record import flatten
from sweeps import runs, trials
from tests.processes import ROOT, restore_sigint
from tests.reporting.run_folders import write_run

STUDIES = ("digits", "fashion")
OPTIMIZERS = ("lars", "nesterov", "sm3", "shampoo")
N_SWEEPS = {"digits": 2, "fashion": 9}
PYTHON = """#!{python}
import json, os, sys
calls = "{calls}"
with open(calls, "a") as f:
    f.write(json.dumps(sys.argv[1:]) + "\\n")
n = sum(1 for _ in open(calls))
statuses = {statuses}
if n <= len(statuses):
    os.kill(os.getpid(), -statuses[n - 1]) if statuses[n - 1] < 0 else sys.exit(statuses[n - 1])
if {real_end}:
    os.execv("{python}", ["{python}", *sys.argv[1:]])
"""


def start(name, folder, python, **options):
    """Starts a study's script whose PYTHON is a program with this text."""
    stub = folder / "python"
    stub.write_text(python)
    stub.chmod(0o755)
    variables = {"PYTHON": stub, "OUT": folder / "out", "RESULTS": folder / "results"}
    return subprocess.Popen(
        ["bash", f"studies/{name}.sh"], cwd=ROOT, text=True, preexec_fn=restore_sigint,
        env=os.environ | {key: str(value) for key, value in (variables | options).items()},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run(name, folder, statuses=(), real_end=False, **options):
    """Returns (exit status, standard error, arguments of each call of PYTHON).

    The first calls of PYTHON end with `statuses`. Later ones succeed, or with `real_end` are real.
    """
    calls = folder / "calls"
    texts = {"python": sys.executable, "calls": calls, "statuses": list(statuses)}
    process = start(name, folder, PYTHON.format(**texts, real_end=real_end), **options)
    _, error = process.communicate(timeout=120)
    lines = calls.read_text().splitlines() if calls.exists() else []
    return process.returncode, error, [json.loads(line) for line in lines]


def sweeps(name, folder):
    """Returns the arguments of every sweep of a study with OUT=`folder`."""
    (folder / "script").mkdir()
    status, _, calls = run(name, folder / "script", OUT=folder)
    assert status == 0
    *calls, archived, reported = calls
    assert archived == ["-m", "reporting.archive", str(folder), f"{folder}/script/results"]
    assert reported == ["report.py", f"{folder}/script/results"]
    assert [call[0] for call in calls] == ["sweep.py"] * N_SWEEPS[name]
    return [call[1:] for call in calls]


def planned(arguments):
    options, overrides = sweep.arguments([*arguments, "--dry_run"])
    return sweep.planned(options, overrides)


def choose_first(path, recipes, fields):
    """Writes a trials.json as tuning does; its one trial has distinct values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = dict.fromkeys(fields, 0.25)
    trial = {"trial": 0, "values": values, "final_accuracy": {"1000": 0.5}, "median": 0.5}
    table = {r: {"chosen": 0, "trials": [trial]} for r in recipes}
    path.write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("name", "all_optimizers", "n_trials", "total_steps", "ladder_sizes", "batches"),
    [
        ("digits", OPTIMIZERS, 24 * 2, 60, [4 * 3 * 10], ()),
        (
            "fashion", (*OPTIMIZERS, "shampoo_lars_scale"), 24, 58, [5 * 6 * 10, 4 * 3 * 10],
            (768, 1536, 3072),
        ),
    ],
)  # fmt: skip
def test_every_call_is_one_that_the_sweep_takes(
    name, all_optimizers, n_trials, total_steps, ladder_sizes, batches, tmp_path
):
    recipes = [f"{optimizer}:{name}" for optimizer in all_optimizers]
    choose_first(tmp_path / "tuning" / "trials.json", recipes, ["optimizer.weight_decay"])
    for batch in batches:
        path = tmp_path / f"batch_{batch:06d}" / "tuning" / "trials.json"
        choose_first(path, recipes, ["schedule.peak_learning_rate"])
    tuning, *rest = [planned(call) for call in sweeps(name, tmp_path)]
    tuning_seeds = {run.seed for run in tuning}
    assert collections.Counter(run.recipe for run in tuning) == dict.fromkeys(recipes, n_trials)
    lengths = {(c.total_steps, c.eval_every_steps) for c in (run.config() for run in tuning)}
    assert lengths == {(total_steps, total_steps)}  # only the end is judged
    ladder = rest[: len(ladder_sizes)]
    assert [len(some) for some in ladder] == ladder_sizes
    for some in ladder:
        assert {run.config().optimizer.weight_decay for run in some} == {0.25}
        assert not tuning_seeds & {run.seed for run in some}
    folders = [run.folder for some in (tuning, *rest) for run in some]
    assert len(set(folders)) == len(folders)
    for some in rest[len(ladder) :: 2]:  # the rate again, all else as tuned
        assert {run.config().optimizer.weight_decay for run in some} == {0.25}
        assert len({run.config().schedule.peak_learning_rate for run in some}) >= 6
    for batch, some in zip(batches, rest[len(ladder) + 1 :: 2], strict=True):
        configs = [run.config() for run in some]
        assert len(configs) == 4 * 2 * 8
        assert {c.global_batch_size for c in configs} == {batch}
        assert {c.schedule.peak_learning_rate for c in configs} == {0.25}
        assert not tuning_seeds & {run.seed for run in some}
        # Every batch size sees the same examples, and is evaluated equally often.
        assert {batch * c.total_steps for c in configs} == {49152, 98304}
        assert {batch * c.eval_every_steps for c in configs} == {24576}


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


@pytest.mark.parametrize("name", STUDIES)
def test_the_proxies_values_are_those_that_the_committed_study_chose(name):
    table = json.loads((ROOT / "results" / name / "trials.json").read_text())
    for recipe, entry in table.items():
        config = command_line.load(recipe)
        for field, value in entry["trials"][entry["chosen"]]["values"].items():
            section, key = field.split(".")
            assert config[section][key] == value, (recipe, field)


def test_without_a_program_to_run_the_commands_are_printed(tmp_path):
    variables = os.environ | {"PYTHON": "true", "OUT": str(tmp_path / "x")}
    command = ["bash", "studies/fashion.sh"]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.count("python sweep.py") == 9
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", STUDIES)
def test_the_committed_page_is_that_of_the_committed_runs(name, tmp_path, monkeypatch):
    committed = ROOT / "results" / name
    folder = pathlib.Path("results", name)
    monkeypatch.chdir(tmp_path)
    folder.mkdir(parents=True)
    for file in committed.iterdir():
        if file.suffix in (".csv", ".json"):
            shutil.copy(file, folder)
    assert report.main([str(folder)]) == 0
    written = {file.name: file.read_text() for file in folder.iterdir()}
    assert written == {
        file.name: file.read_text() for file in committed.iterdir() if file.name != "report.json"
    }


@pytest.mark.parametrize("name", STUDIES)
def test_the_committed_runs_and_trials_are_those_that_the_script_asks_for(name, tmp_path):
    """Every field of every run's config, and every trial's point."""
    committed = ROOT / "results" / name
    for file in committed.glob("trials*.json"):
        folder = tmp_path / file.stem.removeprefix("trials").removeprefix("_") / "tuning"
        folder.mkdir(parents=True)
        shutil.copy(file, folder / "trials.json")
    configs = {path: load().config for path, _, load in archive.read(committed / archive.NAME)}
    for call in sweeps(name, tmp_path):
        options, _ = sweep.arguments(call)
        if not options.trials:
            for run in planned(call):
                config = configs.pop(str(committed / run.folder.relative_to(tmp_path)))
                asked = flatten(files.config_as_json(run.config()))
                assert flatten(config).items() <= asked.items()
            continue
        table = json.loads((options.out / "trials.json").read_text())
        assert set(table) == set(options.recipes.split())
        for recipe, entry in table.items():
            points = trials.points(trials.ranges(recipe, options.search), options.trials)
            assert [trial["values"] for trial in entry["trials"]] == points
            for trial in entry["trials"]:
                seeds = list(map(int, trial["status"]))
                assert seeds == list(runs.parse_seeds(options.seeds))
    assert not configs


def finished(out):
    """Writes the runs that a study's sweeps leave: trials, and a run at two batch sizes."""
    for folder in (out, out / "batch_001280"):
        path = folder / "tuning" / "trials.json"
        choose_first(path, ["lars:digits"], ["schedule.peak_learning_rate"])
        write_run(folder / "tuning", "lars:digits", 1000)
    return write_run(out / "ladder"), write_run(
        out / "batch_001280", record={"global_batch_size": 1280}
    )


def test_the_page_and_the_files_to_commit_are_written_at_the_end(tmp_path):
    out, results = tmp_path / "out", tmp_path / "results"
    measured = finished(out)
    results.mkdir()
    (results / "trials_batch_000999.json").write_text("{}")
    (results / "ladder_999.svg").write_text("of an older page")
    status, error, _ = run("digits", tmp_path, [0, 0], real_end=True)
    assert (status, error) == (0, "")
    assert {file.name for file in results.iterdir() if file.suffix != ".svg"} == {
        "runs.csv", "curves.csv", "configs.json", "trials.json", "trials_batch_001280.json",
        "README.md",
    }  # fmt: skip
    assert not (results / "ladder_999.svg").exists()
    paths = [
        pathlib.Path(path).relative_to(results) for path, *_ in archive.read(results / "runs.csv")
    ]
    assert sorted(paths) == sorted(folder.relative_to(out) for folder in measured)


@pytest.mark.parametrize(
    ("ends", "status", "n_calls"),
    [([0, 75], 75, 2), ([2], 2, 1), ([0, 1], 1, 4), ([1, -9], 137, 2), ([0, 0, 2], 2, 3)],
)
def test_failed_runs_are_reported_and_a_sweep_that_stopped_stops_the_study(
    ends, status, n_calls, tmp_path
):
    finished(tmp_path / "out")
    returned, _, calls = run("digits", tmp_path, ends, real_end=True)
    assert returned == status
    assert len(calls) == n_calls
    assert (tmp_path / "results").exists() == (status == 1)
    assert all("--workers=2" in call for call in calls if call[0] == "sweep.py")


@pytest.mark.parametrize("damage", ["results", "trials.json", "run.json"])
def test_what_cannot_be_kept_is_one_line(damage, tmp_path):
    out, results = tmp_path / "out", tmp_path / "results"
    folder, _ = finished(out)
    if damage == "results":
        results.write_text("in the way")
    else:
        folder = folder if damage == "run.json" else out / "tuning"
        (folder / damage).write_bytes(b"\xff\xfe")
    status, error, calls = run("digits", tmp_path, [0, 0], real_end=True)
    assert status == 2
    assert len(calls) == (0 if damage == "results" else 3)
    assert results.is_file() or not results.exists()
    assert error.startswith("error: ")
    assert error.count("\n") == 1


SWEEP = f"""#!{sys.executable}
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), print("saved", flush=True), sys.exit(75)))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_sweep_under_way_save(number, tmp_path):
    """Else it would train on without the study, or be killed while it saves."""
    process = start("digits", tmp_path, SWEEP)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("python sweep.py ")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, error = process.communicate(timeout=60)
    assert output == "saved\n"
    assert process.returncode == 75
    assert error == "stopped; the same command continues\n"
