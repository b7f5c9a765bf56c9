"""Broken run folders and logs: a clear message or a marked row, never a wrong number."""

import json
import math
from pathlib import Path

import pytest

import report
from configs.fields import SAME_ROW
from reporting import collect, document, screen
from tests.mlperf.log_files import SHAMPOO, SHAMPOO_PATH, line, log_lines
from tests.reporting.run_folders import write_run

GOOD = (500, 900, 975)


def edit(folder, **changes):
    path = folder / "run.json"
    record = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in record.items() if v != "REMOVE"}))


def curve(folder, *rows):
    (folder / "curve.csv").write_text("\n".join(["step,n_correct,n_seen,accuracy,loss", *rows]))


# What is done to a good run, and what the report must say of it. Such a run is counted nowhere.
BROKEN = {
    "run.json cut off": (lambda f: (f / "run.json").write_text('{"recipe": "la'), "is not JSON"),
    "run.json empty": (lambda f: (f / "run.json").write_text(""), "is not JSON"),
    "run.json not UTF-8": (lambda f: (f / "run.json").write_bytes(b"\xff\xfe{\x00"), "not UTF-8"),
    "run.json a list": (lambda f: (f / "run.json").write_text("[1]"), "must hold a JSON object"),
    "run.json nested deep": (lambda f: (f / "run.json").write_text("[" * 99999), "is not JSON"),
    "config.json cut off": (lambda f: (f / "config.json").write_text("{"), "/config.json: is"),
    "no recipe": (lambda f: edit(f, recipe="REMOVE"), "lacks recipe"),
    "optimizer a number": (lambda f: edit(f, optimizer=3), "must be a name"),
    "unknown status": (lambda f: edit(f, status="fine"), "must be done, diverged, aborted"),
    "seed negative": (lambda f: edit(f, seed=-1), "seed=-1"),
    "seed a fraction": (lambda f: edit(f, seed=0.5), "seed=0.5"),
    "target in percent": (lambda f: edit(f, target_accuracy=97), "must be a number in [0, 1]"),
    "final accuracy NaN": (lambda f: edit(f, final_accuracy=math.nan), "final_accuracy=nan"),
    "final accuracy infinite": (lambda f: edit(f, final_accuracy=math.inf), "final_accuracy=inf"),
    "final accuracy contradicts": (lambda f: edit(f, final_accuracy=0.99), "curve.csv has 0.975"),
    "hit contradicts": (lambda f: edit(f, steps_to_target=16), "has steps_to_target=16, but"),
    "hit after the end": (lambda f: edit(f, steps_to_target=64), "is after the 48 steps"),
    "budget contradicts": (lambda f: edit(f, total_steps=64), "config.json has 48"),
    "curve too short": (lambda f: curve(f, "32,975,1000,0.975,1"), "but curve.csv has 32"),
    "another run's config": (lambda f: edit(f, seed=4), "files of two runs?"),
    "another recipe's config": (lambda f: edit(f, recipe="sm3:digits"), "files of two runs?"),
    "batch size a text": (lambda f: edit(f, global_batch_size="big"), "global_batch_size='big'"),
    "flags a number": (lambda f: edit(f, assumed=3), "must be a list of field names"),
    "two runs in one folder": (
        lambda f: curve(f, "16,500,1000,0.5,1", "48,975,1000,0.975,1", "16,500,1000,0.5,1"),
        "two runs in one folder?",
    ),
    "accuracy NaN in the curve": (
        lambda f: curve(f, "16,500,1000,nan,1", "48,975,1000,0.975,1"),
        "accuracy nan is not 500/1000",
    ),
    "more right than seen": (lambda f: curve(f, "48,1975,1000,1.975,1"), "impossible counts"),
    "curve with another header": (
        lambda f: (f / "curve.csv").write_text("step,accuracy\n48,0.975\n"),
        "the header is",
    ),
    "curve cut off": (lambda f: curve(f, "16,500,1000,0.5,1", "48,97"), "has 2 cells, must have 5"),
    "curve not UTF-8": (lambda f: (f / "curve.csv").write_bytes(b"\xff\xfe\xfa"), ".csv: is not"),
    "no run.json": (lambda f: (f / "run.json").unlink(), "no run.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_named_and_counted_nowhere(name, tmp_path, capsys):
    change, words = BROKEN[name]
    for seed in range(3):
        write_run(tmp_path, seed=seed, counts=GOOD)
    change(write_run(tmp_path, seed=3, counts=GOOD))
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert words in printed
    assert "seed_0003" in printed
    written = json.loads((tmp_path / "report.json").read_text())
    (row,) = written["rows"]
    assert (row["n"], row["seeds"]) == (3, [0, 1, 2])
    assert row["steps_to_target"]["median"] == 48
    assert len(written["problems"]) == 1


def test_runs_that_a_sweep_lost_are_named(tmp_path, capsys):
    write_run(tmp_path, counts=GOOD)
    statuses = ("started", "crashed: killed")
    lines = [{"recipe": "lars:digits", "seed": 7, "status": status} for status in statuses]
    (tmp_path / "manifest.jsonl").write_text("\n".join([*map(json.dumps, lines), '{"cut']))
    assert report.main([str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "seed_0007: the sweep's manifest says crashed: killed" in printed
    assert "1 run of this recipe is unfinished, lost or unreadable, not in n" in printed


def test_hidden_folders_hold_no_results(tmp_path):
    write_run(tmp_path, seed=1)
    write_run(tmp_path / ".trial", seed=2)
    runs, problems = collect.collect([tmp_path])
    assert [run.seed for run in runs] == [1]
    assert not problems


def test_unknown_keys_do_no_harm(tmp_path):
    edit(write_run(tmp_path, counts=GOOD), colour="blue", notes={"a": [1, None]})
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["rows"][0]["n"] == 1


def test_a_negative_time_is_left_out_and_the_run_is_marked(tmp_path, capsys):
    for seed in range(3):
        edit(write_run(tmp_path, seed=seed, counts=GOOD), seconds_to_target=-4.0 if seed else 4.0)
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert row["seconds_to_target"] == {"median": None, "olympic_mean": None}
    assert row["steps_to_target"]["median"] == 48
    assert "time ignored" in capsys.readouterr().out


def test_a_seed_that_occurs_twice_is_counted_once(tmp_path, capsys):
    write_run(tmp_path / "first", seed=5, counts=GOOD)
    write_run(tmp_path / "second", seed=5, counts=(500, 900, 990))
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert (row["n"], row["final_accuracy"]["median"]) == (1, 0.975)
    assert "ANOTHER result" in " ".join(capsys.readouterr().out.split())


def test_runs_of_one_name_with_other_settings_stand_in_other_rows(tmp_path, capsys):
    for seed in range(4):
        rate = {"schedule": {"peak_learning_rate": 1.0 + (seed >= 2)}}
        write_run(tmp_path, seed=seed, counts=GOOD, config=rate)
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == ["peak_learning_rate=1.0", "peak_learning_rate=2.0"]
    assert [row["seeds"] for row in rows] == [[0, 1], [2, 3]]


def rows_of(*places):
    runs, problems = collect.collect(places)
    return document.build(runs, problems)[0]["rows"], problems


@pytest.mark.parametrize(
    ("names", "variants"),
    [
        (("v0.7/tpu/resnet", "v1.0/tpu/resnet"), ["v0.7/tpu", "v1.0/tpu"]),
        (("resnet", "again"), ["again", "resnet"]),
        (("a/x", "b/y"), ["x", "y"]),
    ],
)
def test_logs_of_one_name_in_two_folders_are_told_apart(names, variants, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, place in enumerate(map(Path, names)):
        place.mkdir(parents=True)
        lines = log_lines(SHAMPOO | {"seed": seed}, SHAMPOO_PATH, 200.0)
        (place / "result_0.txt").write_text("\n".join(lines))
    assert [row["variant"] for row in rows_of(*map(Path, names))[0]] == variants


def test_rows_that_differ_in_a_fourth_field_have_names_of_their_own(tmp_path):
    for i, last in enumerate((1, 2, 1)):
        config = {"optimizer": {"a": i // 2, "b": i // 2, "c": i // 2, "d": last}}
        write_run(tmp_path / str(i), config=config)
    assert [row["variant"] for row in rows_of(tmp_path)[0]] == [
        "a=0, b=0, c=0, d=1", "a=0, b=0, c=0, d=2", "a=1, b=1, c=1, d=1"
    ]  # fmt: skip


@pytest.mark.parametrize("field", sorted(SAME_ROW - {"seed", "dataset.data_dir"}))
def test_a_seed_that_was_only_kept_otherwise_is_the_same_run(field, tmp_path):
    for value in (1, 2):
        config = {field: value, "dataset": {"data_dir": f"disk{value}"}}
        write_run(tmp_path / str(value), config=config)
    (row,), (problem,) = rows_of(tmp_path)
    assert row["n"] == 1
    assert "is already counted" in problem.message


def test_a_median_lies_beyond_what_was_run_and_not_beyond_what_was_planned(tmp_path):
    planned = {"total_steps": 1000}
    for seed in range(3):
        write_run(tmp_path, seed=seed, counts=(500, 600), status="aborted", record=planned,
                  config=planned)  # fmt: skip
    (row,), _ = rows_of(tmp_path)
    assert screen.steps_cell(row) == ">32 [>32, >32]"


def test_a_run_that_stopped_at_the_target_has_no_accuracy_at_the_budget(tmp_path, capsys):
    stopped = {"stop_at_target": True, "total_steps": 96}
    write_run(tmp_path, counts=GOOD, record={"total_steps": 96}, config=stopped)
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert row["steps_to_target"]["median"] == 48
    assert row["final_accuracy"]["median"] is None
    assert row["claim"]["reaches_target"] is None


def test_an_interrupted_run_with_a_cut_curve_is_censored_where_it_ended(tmp_path):
    folder = write_run(tmp_path, counts=(500, 900), status="aborted", record={"total_steps": 96})
    with (folder / "curve.csv").open("a") as file:
        file.write("48,97")
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert (row["n"], row["n_aborted"], row["n_reached"]) == (1, 1, 0)


BROKEN_LOGS = {
    "empty": ("", "no readable :::MLLOG line"),
    "no MLLOG line": ("hello\n" * 5, "no readable :::MLLOG line"),
    "only broken lines": (":::MLLOG {oops\n:::MLLOG 7\n:::MLLOG []\n", "no readable"),
    "another benchmark": (log_lines(SHAMPOO | {"submission_benchmark": "bert"}, [0.7], 9), "bert"),
    "another data set": (log_lines(SHAMPOO | {"train_samples": 50000}, [0.7], 9), "not ImageNet"),
    "accuracy in percent": (log_lines(SHAMPOO, [75.9], 9), "is not a fraction"),
    "accuracy NaN": (log_lines(SHAMPOO, [math.nan], 9), "is not a fraction"),
    "accuracy a list": (log_lines(SHAMPOO, [[0.7]], 9), "is not a fraction"),
    "two accuracies at one epoch": (
        log_lines(SHAMPOO, [0.7, 0.76], 9, epochs=[4, 4], n_blocks=1),
        "two different accuracies at epoch 4",
    ),
    "batch size zero": (log_lines(SHAMPOO | {"global_batch_size": 0}, [0.7], 9), "not a batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_LOGS)
def test_a_broken_log_is_named_and_counted_nowhere(name, tmp_path, capsys):
    content, words = BROKEN_LOGS[name]
    text = content if isinstance(content, str) else "\n".join(content)
    good = log_lines(SHAMPOO, [*SHAMPOO_PATH, 0.76], 200.0)
    (tmp_path / "result_0.txt").write_text("\n".join(good))
    (tmp_path / "result_1.txt").write_text(text)
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    assert words in " ".join(capsys.readouterr().out.split())
    written = json.loads((tmp_path / "report.json").read_text())
    assert [row["n"] for row in written["rows"]] == [1]
    assert written["rows"][0]["steps_to_target"]["median"] == 1727


def marked_row(tmp_path, lines, encoding="utf-8"):
    (tmp_path / "result_0.txt").write_bytes("\n".join(lines).encode(encoding))
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    return row


def test_a_log_with_a_negative_time_has_no_time(tmp_path):
    row = marked_row(tmp_path, log_lines(SHAMPOO, [*SHAMPOO_PATH, 0.76], -20.0))
    assert row["seconds_to_target"]["median"] is None
    assert row["steps_to_target"]["median"] == 1727
    assert any("before run_start" in flag for flag in row["flags"])


def test_a_log_that_claims_success_below_the_target_is_not_reached(tmp_path):
    row = marked_row(tmp_path, log_lines(SHAMPOO, [*SHAMPOO_PATH, 0.7589], 200.0))
    assert (row["n_reached"], row["seconds_to_target"]["median"]) == (0, None)
    assert any("says success" in flag for flag in row["flags"])


def test_a_log_in_another_encoding_with_broken_lines_is_read_and_marked(tmp_path):
    lines = log_lines(SHAMPOO, [*SHAMPOO_PATH, 0.76], 200.0)
    row = marked_row(tmp_path, ["Grüße", *lines, ":::MLLOG {cut", "naïve"], "latin-1")
    assert row["steps_to_target"]["median"] == 1727
    assert any("1 broken" in flag for flag in row["flags"])


def test_a_log_without_evaluations_is_a_marked_row(tmp_path):
    row = marked_row(tmp_path, [*log_lines(SHAMPOO, [], 1.0)[:-1], line("cache_clear")])
    assert (row["n"], row["n_reached"], row["n_aborted"]) == (1, 0, 1)
    assert "no evaluation logged" in row["flags"]


def test_nothing_usable_is_a_user_error_that_says_what_was_found(tmp_path, capsys):
    (tmp_path / "result_0.txt").write_text("")
    assert report.main([str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "no readable :::MLLOG line" in captured.out
    assert "no usable run.json" in captured.err
