"""The command line: each mistake gets one line, exit status 2, and nothing is written."""

import errno
import json
import pathlib
import subprocess
import sys
import types

import pytest

import main
from run import distributed

ROOT = pathlib.Path(main.__file__).parent
SMOKE = "--config=configs/lars.py:smoke"


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


BAD = {
    "unknown optimizer": ([SMOKE, "--config.optimizer.name=adamm"], ["adamm", "shampoo"]),
    "unknown recipe file": (["--config=configs/adam.py"], ["configs/adam.py", "configs/lars.py"]),
    "unknown variant": (["--config=configs/lars.py:smok"], ["variant=smok", "smoke"]),
    "unknown dataset": ([SMOKE, "--config.dataset.name=digitz"], ["digitz", "digits"]),
    "batch over the devices": ([SMOKE, "--config.global_batch_size=100"], ["100", "8 devices"]),
    "warm-up longer than the run": (
        [SMOKE, "--config.schedule.warmup_steps=13.0"],
        ["schedule.warmup_steps=13.0", "total_steps=12"],
    ),
    "negative learning rate": (
        [SMOKE, "--config.schedule.peak_learning_rate=-0.1"],
        ["peak_learning_rate=-0.1"],
    ),
    "target in percent": ([SMOKE, "--config.target_accuracy=75.9"], ["75.9", "0.759"]),
    "missing data": (
        ["--config=configs/lars.py:mlperf_v07", "--config.dataset.data_dir=/no/such/place"],
        ["/no/such/place", "imagenet2012", "python -m input_pipeline"],
    ),
    "seed that is no integer": ([SMOKE, "--config.seed=two"], ["seed=two"]),
    "seed beyond its range": ([SMOKE, "--config.seed=-1"], ["seed=-1"]),
    "misspelt field": ([SMOKE, "--config.total_step=3"], ["total_step", "total_steps"]),
    "misspelt flag": ([SMOKE, "--work=x"], ["work"]),
    "image size that does not divide": ([SMOKE, "--config.dataset.image_size=7"], ["7", "8x8"]),
    "no blocks": ([SMOKE, "--config.model.stage_sizes=(0,)"], ["stage_sizes=(0,)"]),
    "half a block": ([SMOKE, "--config.model.stage_sizes=(1.5,)"], ["stage_sizes=(1.5,)"]),
    "not a number": ([SMOKE, "--config.dataset.cache_limit_gib=nan"], ["cache_limit_gib=nan"]),
    "no Python in the file": (["--config=README.md"], ["--config"]),
    "no field name": ([SMOKE, "--config.=3"], ["--config"]),
    "space for '='": (
        ["--config", "configs/lars.py:smoke", "--config.nope=1"],
        ["--config.nope", "total_steps"],
    ),
    "unknown grafting": (
        ["--config=configs/shampoo.py:smoke", "--config.optimizer.graft_type=NOPE"],
        ["graft_type", "NOPE"],
    ),
    "missing config": ([], ["--config", "configs/shampoo.py:readme"]),
}


@pytest.mark.parametrize("mistake", BAD)
def test_one_clear_line_status_2_and_nothing_written(mistake, tmp_path, capsys):
    arguments, words = BAD[mistake]
    workdir = tmp_path / "run"
    status = main.main(["main.py", *arguments, f"--workdir={workdir}"])
    error = capsys.readouterr().err.strip()
    assert status == 2
    assert "\n" not in error
    assert error.startswith("error: ")
    for word in words:
        assert word in error
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_that_cannot_be_fetched_is_told_before_the_workdir_is_made(
    tmp_path, capsys, monkeypatch
):
    from input_pipeline import prepare

    monkeypatch.setattr(prepare, "_why_unreachable", lambda url: "no network")
    data = f"--config.dataset.data_dir={tmp_path / 'data'}"
    arguments = ["--config=configs/lars.py:fashion", data, f"--workdir={tmp_path / 'run'}"]
    assert main.main(["main.py", *arguments]) == 2
    error = capsys.readouterr().err
    assert "no network; connect this machine, or fetch the files elsewhere" in error
    assert "Debian's package dataset-fashion-mnist" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("below", ["file", "file/deeper"])
def test_unwritable_workdir(below, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    data = f"--config.dataset.data_dir={tmp_path / 'data'}"
    status = main.main(["main.py", SMOKE, data, f"--workdir={tmp_path / below}"])
    assert status == 2
    assert "cannot be written" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", b"\x80"),
        ("run.json", "{"),
        ("run.json", "{}"),
        ("run.json", '{"status": "done"}'),
    ],
)
def test_damaged_run_folder(name, content, tmp_path, capsys):
    data = f"--config.dataset.data_dir={tmp_path / 'data'}"
    config = main.command_line.load("lars:smoke", [data])
    (tmp_path / "config.json").write_text(config.to_json())
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(raw)
    assert main.main(["main.py", SMOKE, data, f"--workdir={tmp_path}"]) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert len(error) < 300
    assert name in error
    assert (tmp_path / name).read_bytes() == raw


def test_missing_workdir(capsys):
    assert main.main(["main.py", SMOKE]) == 2
    assert "--workdir: missing" in capsys.readouterr().err


def test_a_bug_is_not_called_a_user_error(monkeypatch, tmp_path):
    import train

    def in_a_library(config, workdir):
        json.loads("not json")

    monkeypatch.setattr(train, "train_and_evaluate", in_a_library)
    with pytest.raises(ValueError, match="Expecting value"):
        main.main(["main.py", SMOKE, f"--workdir={tmp_path}"])


def test_an_error_of_a_library_ends_one_of_several_hosts_like_any_crash(tmp_path, monkeypatch):
    """A regular end would wait for the others, who wait for this host."""
    import train

    def in_a_library(config, workdir):
        json.loads("not json")

    ended = []
    monkeypatch.setattr(train, "train_and_evaluate", in_a_library)
    monkeypatch.setattr(distributed, "crash", lambda error, workdir: ended.append(error) or 1)
    assert main.main(["main.py", SMOKE, f"--workdir={tmp_path}"]) == 1
    assert [type(error) for error in ended] == [json.JSONDecodeError]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("run/curve.csv", "error: workdir=run: cannot be written (Permission denied); "),
        (None, "error: workdir=run: cannot be written (Permission denied); "),
        ("/data/features.json", "error: /data/features.json: failed (Permission denied); "),
        ("run_2/curve.csv", "error: {here}/run_2/curve.csv: failed (Permission denied); "),
    ],
)
def test_an_error_of_the_disk_names_the_workdir_or_the_file_elsewhere(file, words, capsys):
    error = PermissionError(errno.EACCES, "Permission denied", file)
    assert distributed.crash(error, "run") == 1
    said = words.format(here=pathlib.Path.cwd()) + "fix this, then run the command again\n"
    assert capsys.readouterr().err == said


def test_an_interrupted_run_says_that_it_continues(tmp_path, monkeypatch, capsys):
    import train

    result = types.SimpleNamespace(
        recipe="lars:smoke", seed=3, status="aborted", final_accuracy=0.275,
        target_accuracy=0.93, steps_to_target=None,
    )  # fmt: skip
    monkeypatch.setattr(train, "train_and_evaluate", lambda *_: result)
    assert main.main(["main.py", SMOKE, f"--workdir={tmp_path}"]) == main.INTERRUPTED
    said = "lars:smoke seed 3: aborted, final accuracy 0.275, steps to 0.93: not reached"
    assert capsys.readouterr().out == f"{said}; the same command continues\n"


@pytest.mark.parametrize("script", ["main.py", "report.py", "sweep.py"])
def test_help_starts_without_tensorflow_or_jax(script):
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['{script}', '--help']\n"
        "try:\n"
        f"    runpy.run_path('{script}', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "heavy = {'tensorflow', 'jax', 'tensorflow_datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower() or "Flags" in done.stdout
