"""The pool: order, crashes, resumption, messages. Workers here are stand-ins that train nothing."""

import json
import os
import pathlib
import sys

import pytest

import sweep


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
    monkeypatch.setattr(sweep, "work", stand_in)

    def run(recipes, seeds, n_workers=2, attempts=2):
        runs = sweep.plan_runs(recipes, seeds, tmp_path)
        manifest = sweep.Manifest(tmp_path / "manifest.jsonl")
        ended = sweep.sweep(runs, manifest, n_workers, attempts, [])
        lines = [json.loads(x) for x in manifest.path.read_text().splitlines()]
        return {(r.recipe, r.seed): s for r, s in ended.items()}, lines, capsys.readouterr().out

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


def test_next_run_prefers_the_workers_recipe_then_one_that_nobody_is_on():
    runs = sweep.plan_runs(["a:x", "b:x"], [0, 1], pathlib.Path("out"))
    waiting = sweep.deque(runs)
    on_b, fresh = sweep.Worker(None, None, last_recipe="b:x"), sweep.Worker(None, None)
    assert sweep.next_run(waiting, on_b, {"a:x"}) == runs[2]
    assert list(waiting) == [runs[0], runs[1], runs[3]]
    assert sweep.next_run(waiting, fresh, {"a:x"}) == runs[3]
    assert sweep.next_run(waiting, on_b, {"a:x"}) == runs[0]  # rather help than idle


@pytest.mark.parametrize(
    ("text", "seeds"), [("0:3", [0, 1, 2]), ("5:6", [5]), ("3", [3]), ("4,1", [4, 1])]
)
def test_seeds(text, seeds):
    assert sweep.parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds=0:0"], ["seeds=0:0", "no seed"]),
        (["--seeds=a:b"], ["seeds=a:b", "integers"]),
        (["--seeds=1.5"], ["seeds=1.5"]),
        (["--seeds=1,1"], ["twice"]),
        (["--recipes= "], ["names none"]),
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
        sweep.fcntl.flock(lock, sweep.fcntl.LOCK_EX)
        data = f"--config.dataset.data_dir={tmp_path / 'data'}"
        status = sweep.main(["--recipes=lars:smoke", "--seeds=0:1", f"--out={tmp_path}", data])
    assert status == 2
    assert "another sweep is at work" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["run", "out", "manifest"])
def test_damaged_folder_gets_one_line(damage, tmp_path, capsys):
    out = tmp_path / "out"
    if damage == "out":
        out.write_text("a file")
    elif damage == "manifest":
        (out / "manifest.jsonl").mkdir(parents=True)
    else:
        (out / "lars:smoke/seed_0000").mkdir(parents=True)
        (out / "lars:smoke/seed_0000/run.json").write_text("{")
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
