"""The command line of a sweep: each mistake gets one line; the whole way through workers."""

import fcntl
import json

import pytest

import sweep


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds=0:0"], ["seeds=0:0", "no seed"]),
        (["--seeds=a:b"], ["seeds=a:b", "integers"]),
        (["--seeds=1.5"], ["seeds=1.5"]),
        (["--seeds=1,1"], ["twice"]),
        (["--recipes= "], ["recipes: missing"]),
        (["--recipes=lars:smoke lars:smoke"], ["twice"]),
        (["--seeds=0:99999999999"], ["10000"]),
        (["--config.dataset.image_size=7"], ["image_size=7"]),
        (["--recipes=shampoo:smoke", "--config.optimizer.graft_type=NOPE"], ["NOPE"]),
        (["--recipes=lars:digitz"], ["digitz", "digits"]),
        (["--recipes=adam:digits"], ["adam", "sm3"]),
        (["--workers=0"], ["workers=0"]),
        (["--config.total_steps=0"], ["total_steps=0"]),
        (["--config.nope=0"], ["nope"]),
        (["--config.dataset.name=nope"], ["nope", "digits"]),
        (["--config.seed=5"], ["config.seed=5: --seeds sets this field"]),
        (["--trials=2", "--config.optimizer.momentum=0.5"], ["momentum=0.5: --trials sets this"]),
        (["--search=optimizer.momentum"], ["search=optimizer.momentum: is for trials"]),
        (["--slurm", "--distributed"], ["slurm: ", "omit"]),
        (["--recipes=lars:mlperf_v07", "--config.dataset.data_dir=/none"], ["imagenet2012"]),
    ],
)
def test_mistake_gets_one_line_and_nothing_is_written(arguments, words, tmp_path, capsys):
    out = tmp_path / "out"
    status = sweep.main(["--recipes=lars:smoke", "--seeds=0:2", f"--out={out}", *arguments])
    error = capsys.readouterr().err.strip()
    assert status == 2
    assert "\n" not in error
    for word in words:
        assert word in error
    assert not out.exists()


def test_dry_run_says_what_would_be_run_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--recipes=lars:smoke sm3:smoke", "--seeds=0:2", f"--out={out}", "--dry_run"]
    assert sweep.main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.count("seed_0001") == 2
    assert not out.exists()


def test_a_second_sweep_in_the_same_folder_is_refused(tmp_path, capsys):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        data = f"--config.dataset.data_dir={tmp_path / 'data'}"
        status = sweep.main(["--recipes=lars:smoke", "--seeds=0:1", f"--out={tmp_path}", data])
    assert status == 2
    assert "is used by another sweep" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["run", "out", "manifest"])
def test_damaged_folder_gets_one_line(damage, tmp_path, capsys):
    out = tmp_path / "out"
    if damage == "out":
        out.write_text("a file")
    elif damage == "manifest":
        (out / "manifest.jsonl").mkdir(parents=True)
    else:
        (out / "lars-smoke/seed_0000").mkdir(parents=True)
        (out / "lars-smoke/seed_0000/run.json").write_text("{")
    data = f"--config.dataset.data_dir={tmp_path / 'data'}"
    arguments = ["--recipes=lars:smoke", "--seeds=0:1", f"--out={out}", data]
    assert sweep.main(arguments + (["--dry_run"] if damage == "run" else [])) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert str(out) in error


def test_two_real_runs_and_their_report(tmp_path, monkeypatch):
    """The whole way: workers, training, report.json."""
    import report

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / "out"
    arguments = [
        "--recipes=nesterov:smoke",
        "--seeds=0:2",
        f"--out={out}",
        f"--config.dataset.data_dir={tmp_path / 'data'}",
        "--config.model.stage_sizes=(1,)",
        "--config.model.width=2",
        "--config.total_steps=2",
    ]
    assert sweep.main(arguments) == 0
    assert report.main([str(out), f"--json={tmp_path / 'report.json'}"]) == 0
    row = json.loads((tmp_path / "report.json").read_text())["rows"][0]
    assert (row["recipe"], row["n"], row["total_steps"]) == ("nesterov:smoke", 2, 2)
