"""The command: what it prints and writes, and what it says when it cannot."""

import json
import subprocess
import sys

import pytest
from run_folders import write_run

import report
from reporting import collect


def two_recipes(out, n=10):
    for seed in range(n):
        jitter = seed % 3
        write_run(out, "lars:digits", seed, (500, 900, 960 + jitter, 980 + jitter))
        write_run(out, "shampoo:digits", seed, (700, 971 + jitter, 980, 985 + jitter))
    return out


def test_the_command_prints_and_writes_the_table(tmp_path, capsys):
    two_recipes(tmp_path / "runs")
    json_path, html_path = tmp_path / "report.json", tmp_path / "report.html"
    flags = [f"--json={json_path}", f"--html={html_path}"]
    assert report.main([str(tmp_path / "runs"), *flags]) == 0
    printed = capsys.readouterr().out
    *shown, first, second = printed.splitlines()
    assert all(len(line) <= 100 for line in shown)
    assert (first, second) == (f"written: {json_path}", f"written: {html_path}")
    assert "shampoo:digits needs fewer steps than lars:digits" in " ".join(printed.split())
    assert "Not shown: anything about ImageNet" in " ".join(printed.split())
    assert "ours: not run" in printed
    written = json.loads(json_path.read_text())
    lars, shampoo = written["rows"]
    assert (lars["recipe"], shampoo["recipe"]) == ("lars:digits", "shampoo:digits")
    assert lars["steps_to_target"] == {"median": 64.0, "ci95": [64.0, 64.0]}
    assert shampoo["steps_to_target"]["median"] == 32.0
    # Of .980, .981, .982 the middle one occurs at places 5 and 6 of ten.
    assert lars["final_accuracy"]["median"] == pytest.approx(0.981)
    assert lars["n"] == lars["n_reached"] == 10
    page = html_path.read_text()
    assert page.count("<svg") >= 3
    assert "http-equiv" not in page


def test_the_same_runs_give_the_same_bytes(tmp_path):
    two_recipes(tmp_path / "runs", n=3)
    for name in ("a", "b"):
        flags = [f"--json={tmp_path / name}.json", f"--html={tmp_path / name}.html"]
        assert report.main([str(tmp_path / "runs"), *flags]) == 0
    for kind in ("json", "html"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_a_report_names_places_as_they_were_given_and_each_once(tmp_path, monkeypatch, capsys):
    two_recipes(tmp_path / "runs", n=3)
    write_run(tmp_path / "runs", "sm3:digits", 0, (100,), status="diverged")
    monkeypatch.chdir(tmp_path)
    assert report.main(["runs", "./runs/", str(tmp_path / "runs"), "--json=r.json"]) == 0
    text = (tmp_path / "r.json").read_text()
    assert [row["n"] for row in json.loads(text)["rows"]] == [3, 3, 1]
    assert not json.loads(text)["problems"]
    assert report.main(["runs", "--json=r.json", "--html=r.html"]) == 0
    capsys.readouterr()
    for name in ("r.json", "r.html"):
        assert str(tmp_path) not in (tmp_path / name).read_text()


def test_the_report_starts_without_jax_and_tensorflow():
    code = "import sys, report; print({'jax', 'tensorflow', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["no/such/folder"], "no such folder"),
        (["."], "no usable run.json"),
        ([".", "--html=no/such/place.html"], "folder must exist"),
    ],
)
def test_a_user_error_is_one_message_and_status_2(flags, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report.main(flags) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_flag_is_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit) as caught:
        report.main(["--colour", "."])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_row_says_that_its_runs_are_of_several_states_of_the_code(tmp_path):
    for seed in range(3):
        write_run(tmp_path / "runs", "lars:digits", seed, record={"git": f"abc-dirty-{seed // 2}"})
        write_run(tmp_path / "runs", "sm3:digits", seed)
    assert report.main([str(tmp_path / "runs"), f"--json={tmp_path / 'r.json'}"]) == 0
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    flags = {row["recipe"]: [f for f in row["flags"] if "commits" in f] for row in rows}
    assert flags["sm3:digits"] == []
    assert flags["lars:digits"] == ["runs of 2 commits, or states of the code"]


def test_the_inside_of_checkpoints_is_not_looked_through(tmp_path):
    folder = write_run(tmp_path, "lars:digits", 0)
    inside = folder / "checkpoints" / "5"
    inside.mkdir(parents=True)
    (inside / "run.json").write_text("not a run")
    runs, problems = collect.collect([tmp_path])
    assert (len(runs), problems) == (1, [])
