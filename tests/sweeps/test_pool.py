"""The pool: order, crashes, resumption. Workers here are stand-ins that train nothing."""

import json
import os
import sys

import pytest
from etils import epath

from sweeps import pool, runs, worker
from sweeps.manifest import Manifest
from sweeps.queue import Queue, write_failed


def stand_in(connection, cores):
    """Notes each run in run.json; dies at seed 1's first attempt, always crashes at seed 2."""
    while (run := connection.recv()) is not None:
        mark = run.folder.parent / f"{run.folder.name}.died"
        if run.seed == 1 and not mark.exists():
            mark.touch()
            os._exit(9)
        if run.seed == 6 and not mark.exists():
            mark.touch()
            connection.send("preempted")
            sys.exit(75)
        if run.seed == 2:
            connection.send("crashed: ValueError: always")
            continue
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "run.json").write_text(json.dumps({"status": "done", "pid": os.getpid()}))
        connection.send("diverged" if run.seed == 3 else "done")


@pytest.fixture
def swept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(worker, "work", stand_in)

    def run(recipes, seeds, n_workers=2, attempts=2):
        manifest = Manifest(epath.Path(tmp_path))
        queue = Queue(
            [r for x in recipes for r in runs.plan_runs(x, seeds, tmp_path)], manifest, attempts
        )
        pool.run_all(queue, n_workers)
        lines = [json.loads(x) for x in manifest.path.read_text().splitlines()]
        ended = {(r.recipe, r.seed): s for r, s in queue.ended.items()}
        return ended, lines, capsys.readouterr().out

    return run


def test_every_run_ends_and_none_is_dropped(swept):
    ended, lines, out = swept(["lars:smoke", "sm3:smoke"], range(5))
    assert len(ended) == 10
    for recipe in ("lars:smoke", "sm3:smoke"):
        assert ended[recipe, 0] == ended[recipe, 4] == "done"
        assert ended[recipe, 1] == "done"  # its worker died once
        assert ended[recipe, 2] == "crashed: ValueError: always"
        assert ended[recipe, 3] == "diverged"
    assert out.count("worker ended with 9; trying again") == 2
    last = {(x["recipe"], x["seed"]): x for x in lines}
    assert last["lars:smoke", 1]["attempt"] == 2
    assert last["lars:smoke", 2]["status"].startswith("crashed")
    assert last["lars:smoke", 2]["attempt"] == 2


def test_a_divergence_ends_the_sweep_where_the_config_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(worker, "work", stand_in)
    overrides = ["--config.on_divergence=stop_sweep"]
    asked = runs.plan_runs("lars:smoke", [3, 4, 5], tmp_path, overrides)
    queue = Queue(asked, Manifest(epath.Path(tmp_path)), attempts=2)
    pool.run_all(queue, 1)
    assert queue.ended == {asked[0]: "diverged"}
    assert queue.is_stopped
    assert "2 runs were not started" in capsys.readouterr().out


def test_a_run_given_up_is_marked_aborted_and_counted_so(swept, tmp_path):
    import report  # here, because every worker imports this module

    swept(["lars:smoke"], [2])
    record = json.loads((tmp_path / "lars-smoke/seed_0002/run.json").read_text())
    assert (record["status"], record["seed"]) == ("aborted", 2)
    assert record["reason"] == "crashed: ValueError: always"
    assert record["total_steps"] == 12
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert (row["n"], row["n_aborted"]) == (1, 1)
    (run,) = runs.plan_runs("lars:smoke", [2], tmp_path)
    assert not run.is_complete()  # the next call tries it again


def test_the_marks_of_a_run_given_up_agree_with_its_curve(tmp_path):
    (run,) = runs.plan_runs("lars:smoke", [0], tmp_path, ["--config.target_accuracy=0.5"])
    run.folder.mkdir(parents=True)
    lines = ["step,n_correct,n_seen,accuracy,loss", "6,3,4,0.75,1", "12,1,4,0.25,1"]
    (run.folder / "config.json").write_text(run.config().to_json())
    (run.folder / "curve.csv").write_text("\n".join([*lines, "1"]))  # cut off in mid-line
    write_failed(run, "crashed: killed")
    record = json.loads((run.folder / "run.json").read_text())
    found = [record[k] for k in ("steps_to_target", "final_accuracy", "best_accuracy")]
    assert found == [6, 0.25, 0.75]


def test_a_folder_with_another_configs_run_is_left_alone(tmp_path):
    (run,) = runs.plan_runs("lars:smoke", [0], tmp_path)
    write_failed(run, "first")
    (other,) = runs.plan_runs("lars:smoke", [0], tmp_path, ["--config.total_steps=9"])
    write_failed(other, "second")
    assert json.loads((run.folder / "run.json").read_text())["reason"] == "first"
    with pytest.raises(ValueError, match="total_steps=12 there, 9 given"):
        other.check()


def test_a_folder_with_foreign_files_is_left_alone(tmp_path):
    (run,) = runs.plan_runs("lars:smoke", [0], tmp_path)
    run.folder.mkdir(parents=True)
    (run.folder / "thesis.tex").write_text("mine")
    write_failed(run, "failed: holds thesis.tex, but no run of ours")
    assert [f.name for f in run.folder.iterdir()] == ["thesis.tex"]


def test_a_preempted_run_is_continued_and_that_is_no_attempt(swept):
    ended, lines, _ = swept(["lars:smoke"], [6], n_workers=1, attempts=1)
    assert ended == {("lars:smoke", 6): "done"}
    assert [(x["status"], x["attempt"]) for x in lines] == [
        ("waiting", 0),
        ("started", 1),
        ("preempted", 1),
        ("started", 1),
        ("done", 1),
    ]


def test_a_second_call_runs_only_what_is_not_complete(swept, tmp_path):
    swept(["lars:smoke"], [0, 4])
    first = (tmp_path / "lars-smoke/seed_0000/run.json").read_text()
    ended, _, out = swept(["lars:smoke"], [0, 4, 5])
    assert set(ended) == {("lars:smoke", 5)}
    assert "2 of 3 runs are already complete" in out
    assert (tmp_path / "lars-smoke/seed_0000/run.json").read_text() == first


def test_a_worker_takes_run_after_run(swept, tmp_path):
    swept(["lars:smoke", "sm3:smoke"], [0, 4, 5, 7], n_workers=2)
    pids = [json.loads(file.read_text())["pid"] for file in tmp_path.glob("*/*/run.json")]
    assert len(pids) == 8
    assert len(set(pids)) <= 2


def test_next_run_prefers_the_workers_recipe_then_one_that_nobody_is_on(tmp_path):
    all_runs = [r for x in ("lars:smoke", "sm3:smoke") for r in runs.plan_runs(x, [0, 1], tmp_path)]
    queue = Queue(all_runs, Manifest(epath.Path(tmp_path)), attempts=1)
    assert pool.next_run(queue, "sm3:smoke", {"lars:smoke"}) == all_runs[2]
    queue.take(all_runs[2])
    assert list(queue.waiting) == [all_runs[0], all_runs[1], all_runs[3]]
    assert pool.next_run(queue, "", {"lars:smoke"}) == all_runs[3]
    queue.take(all_runs[3])
    assert pool.next_run(queue, "sm3:smoke", {"lars:smoke"}) == all_runs[0]  # rather help than idle
