"""The median-stopping rule, and what becomes of a run that it ends."""

import json
import multiprocessing
import os
import signal
import sys
import time

import pytest

from reporting.curves import Point
from sweeps import hopeless, pool, runs, worker
from sweeps.manifest import Manifest
from sweeps.queue import Queue

# Means up to step 8: .1 .2 .3 .4 .5; the median is .3.
FINISHED = [
    [Point(4, m - 0.05), Point(8, m + 0.05), Point(12, 0.99)] for m in (0.1, 0.2, 0.3, 0.4, 0.5)
]


@pytest.mark.parametrize(
    ("accuracies", "stops"),
    [((0.1, 0.29), True), ((0.1, 0.31), False), ((0.4, 0.1), False), ((0.2, 0.1), True)],
)
def test_best_so_far_against_the_median_of_means(accuracies, stops):
    curve = [Point(4 * (i + 1), a) for i, a in enumerate(accuracies)]
    found = hopeless.reason(curve, FINISHED)
    assert bool(found) == stops
    if found:
        assert found.startswith("stopped early at step 8: its best accuracy")
        assert "below 0.3000, the median of 5 finished runs'" in found


def test_nobody_is_judged_by_fewer_than_five_or_before_an_evaluation():
    assert hopeless.reason([Point(8, 0.0)], FINISHED[1:]) is None
    assert hopeless.reason([], FINISHED) is None


def test_why_a_worker_was_told_to_stop_is_not_said_of_its_next_run(tmp_path):
    """The run may have ended by itself before the signal came."""
    queue = Queue(
        runs.plan_runs("lars:smoke", [0], tmp_path), Manifest(tmp_path / "manifest.jsonl"), 2
    )
    ours, theirs = multiprocessing.Pipe()
    told = worker.Worker(multiprocessing.Process(), ours, stopped_because="stopped early")
    pool.give(queue, told, set())
    assert theirs.recv() == told.run
    assert told.stopped_because is None


def curve_of(*accuracies):
    rows = [f"{4 * (i + 1)},{round(100 * a)},100,{a},1" for i, a in enumerate(accuracies)]
    return "\n".join(["step,n_correct,n_seen,accuracy,loss", *rows, ""])


def stand_in(connection, cores):
    """Seed 5 is slow and bad, until it is told to save; the others are good and quick."""
    while (run := connection.recv()) is not None:
        run.folder.mkdir(parents=True)
        (run.folder / "config.json").write_text(run.config().to_json())
        bad = run.seed == 5
        (run.folder / "curve.csv").write_text(curve_of(*([0.1] if bad else [0.5, 0.9])))
        if bad:
            signal.signal(signal.SIGTERM, lambda *_: (connection.send("preempted"), os._exit(75)))
            time.sleep(60)
            sys.exit(1)
        (run.folder / "run.json").write_text('{"status": "done"}')
        connection.send("done")


def test_a_hopeless_run_is_ended_marked_and_not_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "work", stand_in)
    asked = runs.plan_runs("lars:smoke", range(6), tmp_path)
    queue = Queue(asked, Manifest(tmp_path / "manifest.jsonl"), attempts=2)
    pool.run_all(queue, 1, stop_hopeless=True)
    assert queue.ended[asked[5]].startswith("stopped early at step 4")
    assert not queue.has_failures
    record = json.loads((asked[5].folder / "run.json").read_text())
    assert record["status"] == "aborted"
    assert record["reason"].startswith("stopped early at step 4: its best accuracy 0.1000")
    assert Queue(asked, Manifest(tmp_path / "manifest.jsonl"), attempts=2).total == 0
    assert (tmp_path / "manifest.jsonl").read_text().count("preempted") == 0


def test_runs_are_compared_with_those_that_ran_their_whole_budget_alone(tmp_path):
    """Whether these ended in this call of the sweep or in one before."""
    asked = runs.plan_runs("lars:smoke", range(4), tmp_path)
    records = [{"status": "done"}, {"status": "diverged"},
               {"status": "aborted", "reason": "stopped early at step 4"}]  # fmt: skip
    for run, record in zip(asked, records, strict=False):
        run.folder.mkdir(parents=True)
        (run.folder / "run.json").write_text(json.dumps(record))
    queue = Queue(asked, Manifest(tmp_path / "manifest.jsonl"), attempts=2)
    assert queue.complete == asked[:3]
    assert queue.finished == asked[:1]
