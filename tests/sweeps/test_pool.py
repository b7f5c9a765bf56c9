"""The pool: order, crashes, resumption. Workers here are stand-ins that train nothing."""

import json
import os
import sys

import pytest

from sweeps import pool, runs, worker
from sweeps.manifest import Manifest
from sweeps.queue import Queue


def stand_in(connection, cores, overrides):
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
        (run.folder / "run.json").write_text(json.dumps({"pid": os.getpid()}))
        connection.send("diverged" if run.seed == 3 else "done")


@pytest.fixture
def swept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(worker, "work", stand_in)

    def run(recipes, seeds, n_workers=2, attempts=2):
        manifest = Manifest(tmp_path / "manifest.jsonl")
        queue = Queue(runs.plan_runs(recipes, seeds, tmp_path), manifest, attempts)
        pool.run_all(queue, n_workers, [])
        lines = [json.loads(x) for x in manifest.path.read_text().splitlines()]
        ended = {(r.recipe, r.seed): s for r, s in queue.ended.items()}
        return ended, lines, capsys.readouterr().out

    return run


def test_every_run_ends_and_none_is_dropped(swept):
    ended, lines, out = swept(["a:x", "b:x"], range(5))
    assert len(ended) == 10
    for recipe in ("a:x", "b:x"):
        assert ended[recipe, 0] == ended[recipe, 4] == "done"
        assert ended[recipe, 1] == "done"  # its worker died once
        assert ended[recipe, 2] == "crashed: ValueError: always"
        assert ended[recipe, 3] == "diverged"
    assert out.count("worker ended with 9; trying again") == 2
    last = {(x["recipe"], x["seed"]): x for x in lines}
    assert last["a:x", 1]["attempt"] == 2
    assert last["a:x", 2]["status"].startswith("crashed")
    assert last["a:x", 2]["attempt"] == 2


def test_a_preempted_run_is_continued_and_that_is_no_attempt(swept):
    ended, lines, _ = swept(["a:x"], [6], n_workers=1, attempts=1)
    assert ended == {("a:x", 6): "done"}
    assert [(x["status"], x["attempt"]) for x in lines] == [
        ("started", 1),
        ("preempted", 1),
        ("started", 1),
        ("done", 1),
    ]


def test_a_second_call_runs_only_what_is_not_complete(swept, tmp_path):
    swept(["a:x"], [0, 4])
    first = (tmp_path / "a:x/seed_0000/run.json").read_text()
    ended, _, out = swept(["a:x"], [0, 4, 5])
    assert set(ended) == {("a:x", 5)}
    assert "2 of 3 runs are complete already" in out
    assert (tmp_path / "a:x/seed_0000/run.json").read_text() == first


def test_a_worker_stays_with_its_recipe(swept, tmp_path):
    swept(["a:x", "b:x"], [0, 4, 5, 7], n_workers=2)
    pids = [
        {json.loads(p.read_text())["pid"] for p in (tmp_path / r).glob("*/run.json")}
        for r in ("a:x", "b:x")
    ]
    assert all(len(p) <= 2 for p in pids)
    assert len(pids[0] | pids[1]) <= 2


def test_next_run_prefers_the_workers_recipe_then_one_that_nobody_is_on(tmp_path):
    all_runs = runs.plan_runs(["a:x", "b:x"], [0, 1], tmp_path)
    queue = Queue(all_runs, Manifest(tmp_path / "manifest.jsonl"), attempts=1)
    assert pool.next_run(queue, "b:x", {"a:x"}) == all_runs[2]
    queue.take(all_runs[2])
    assert list(queue.waiting) == [all_runs[0], all_runs[1], all_runs[3]]
    assert pool.next_run(queue, "", {"a:x"}) == all_runs[3]
    queue.take(all_runs[3])
    assert pool.next_run(queue, "b:x", {"a:x"}) == all_runs[0]  # rather help than idle
