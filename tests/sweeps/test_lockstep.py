"""Hosts that go from run to run together, whatever becomes of main.py on each of them."""

import contextlib
import json
import threading
import time

import pytest

from sweeps import attempt, lockstep, runs
from sweeps.manifest import Manifest
from sweeps.queue import Queue

# Notes its seed, then ends as the plan says for this host and this attempt of the run.
STAND_IN = """
import json, pathlib, sys, time
here = pathlib.Path(__file__).parent
values = dict(a.split("=", 1) for a in sys.argv[1:])
host, folder = values["--process_id"], pathlib.Path(values["--workdir"])
with (here / f"calls_{host}").open("a") as f:
    f.write(folder.name + chr(10))
tries = (here / f"calls_{host}").read_text().split().count(folder.name)
ends = json.loads((here / "plan.json").read_text())[folder.name][int(host)]
status = ends[tries - 1]
if status == "hang":
    time.sleep(60)
if status == 0:
    time.sleep(0.2)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "run.json").write_text(json.dumps({"status": "done"}))
print("the last words")
sys.exit(status)
"""


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Runs the plan {seed: (exit statuses on host 0, on host 1)}; returns (queue, calls, well)."""
    (tmp_path / "main.py").write_text(STAND_IN)
    monkeypatch.setattr(attempt, "MAIN", tmp_path / "main.py")
    monkeypatch.setattr(lockstep, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(runs.Run, "config", lambda run: None)
    monkeypatch.setattr("sweeps.abandoned.write", lambda run, reason: None)
    out = tmp_path / "out"
    out.mkdir()

    def go(plan, attempts=2, follower_waits=0.0):
        names = {f"seed_{seed:04d}": ends for seed, ends in plan.items()}
        (tmp_path / "plan.json").write_text(json.dumps(names))
        asked = runs.plan_runs("lars:smoke", list(plan), out)
        well = []

        def follow():
            time.sleep(follower_waits)
            well.append(lockstep.follow(asked, out, ["--process_id=1"], 1))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        queue = Queue(asked, Manifest(out / "manifest.jsonl"), attempts)
        lockstep.lead(queue, out, ["--process_id=0"], n_hosts=2)
        thread.join(20)
        assert not thread.is_alive()
        calls = [(tmp_path / f"calls_{i}").read_text().split() for i in range(2)]
        return queue, calls, well[0]

    return go


def test_hosts_whose_parts_end_differently_stay_at_the_same_run(hosts):
    """Were each to go by its own exit status, they would be at other runs after the first."""
    plan = {
        0: ([1, 0], [75, 0]),  # told to stop on host 1: no fault of the run
        1: ([134, 1], [1, 134]),  # given up after two attempts, which count on host 0 alone
        2: ([0], [1]),  # host 1 was lost after the last step
        3: ([0], [0]),
    }
    queue, calls, well = hosts(plan)
    assert calls[0] == calls[1]
    assert {run.seed: status for run, status in queue.ended.items()} == {
        0: "done", 1: "crashed: main.py ended with 1: the last words", 2: "done", 3: "done",
    }  # fmt: skip
    assert queue.tries == {run: 2 if run.seed == 1 else 1 for run in queue.tries}
    assert not well


@pytest.mark.parametrize(
    ("ends", "attempts"), [(([1, 0], ["hang", 0]), 2), ((["hang", 0], [75, 0]), 1)]
)
def test_a_host_that_hangs_on_an_attempt_that_is_over_is_ended(hosts, monkeypatch, ends, attempts):
    """As main.py does in joining a peer that was told to stop before it joined."""
    monkeypatch.setattr(lockstep, "GRACE_SECONDS", 0.5)
    began = time.monotonic()
    queue, calls, well = hosts({0: ends}, attempts)
    assert time.monotonic() - began < 30
    assert calls[0] == calls[1] == ["seed_0000"] * 2
    assert list(queue.ended.values()) == ["done"]
    assert well


def test_a_host_that_comes_late_begins_with_the_run_under_way(hosts):
    """The first attempt is over by then; host 1 says that it never began it: it does not count."""
    queue, calls, well = hosts({0: ([1, 0], [0])}, attempts=1, follower_waits=1.5)
    assert calls == [["seed_0000"] * 2, ["seed_0000"]]
    assert list(queue.ended.values()) == ["done"]
    assert well


def test_the_word_of_an_earlier_sweep_ends_nobody(hosts, tmp_path):
    """And its attempt's number goes on, so that an old answer is none to a new question."""
    old = {"attempt": 7, "run": "", "state": "over", "failed": True}
    lockstep.say(tmp_path / "out", "now.json", old)
    lockstep.say(tmp_path / "out", "host_001.json", {"attempt": 1, "status": "preempted"})
    _, calls, well = hosts({0: ([1, 0], [1, 0])})
    assert calls[0] == calls[1] == ["seed_0000"] * 2
    assert well
    assert lockstep.heard(tmp_path / "out")["attempt"] == 9


def test_an_old_answer_is_none_even_where_the_old_word_is_lost(hosts, tmp_path):
    lockstep.say(tmp_path / "out", "host_001.json", {"attempt": 1, "status": "preempted"})
    queue, calls, well = hosts({0: ([1, 0], [1, 0])}, attempts=1)
    assert list(queue.ended.values()) == ["crashed: main.py ended with 1: the last words"]
    assert calls == [["seed_0000"]] * 2
    assert not well


def test_where_the_first_host_stops_the_others_do(tmp_path):
    (run,) = runs.plan_runs("lars:smoke", [0], tmp_path)
    ended = []

    def follow():
        with contextlib.suppress(KeyboardInterrupt):
            lockstep.follow([run], tmp_path, [], 1)
        ended.append(True)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    time.sleep(0.3)
    assert not ended
    lockstep.say(tmp_path, "now.json", {"attempt": 3, "state": "stopped"})
    thread.join(5)
    assert ended


def test_where_the_first_host_stops_a_main_py_that_waits_for_it_is_ended(tmp_path, monkeypatch):
    """As in joining the first host's, which was told to stop before it joined."""
    (tmp_path / "main.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(attempt, "MAIN", tmp_path / "main.py")
    monkeypatch.setattr(lockstep, "GRACE_SECONDS", 0.5)
    (run,) = runs.plan_runs("lars:smoke", [0], tmp_path)
    run.folder.parent.mkdir()
    word = {"attempt": 3, "run": run.name, "state": "running"}
    lockstep.say(tmp_path, "now.json", word)
    stop = threading.Timer(1, lockstep.say, (tmp_path, "now.json", word | {"state": "stopped"}))
    stop.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        lockstep.follow([run], tmp_path, [], 1)
    assert time.monotonic() - began < 30


def test_a_host_that_waits_for_the_first_one_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lockstep, "TELL_AFTER_SECONDS", 0.1)
    (run,) = runs.plan_runs("lars:smoke", [0], tmp_path)
    done = threading.Timer(1, lockstep.say, (tmp_path, "now.json", {"state": "over", "failed": 0}))
    done.start()
    assert lockstep.follow([run], tmp_path, [], 1)
    assert capsys.readouterr().out == "waiting for the first host: start the same command there\n"


def test_hosts_with_other_runs_are_a_user_error(tmp_path):
    lockstep.say(tmp_path, "now.json", {"attempt": 3, "run": "sm3:digits seed 9", "state": "ended"})
    (run,) = runs.plan_runs("lars:smoke", [0], tmp_path)
    with pytest.raises(ValueError, match="the first host is at sm3:digits seed 9: start all"):
        lockstep.follow([run], tmp_path, [], 1)


def test_a_sweep_that_is_complete_needs_no_first_host(tmp_path):
    (run,) = runs.plan_runs("lars:smoke", [0], tmp_path)
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_text('{"status": "done"}')
    assert lockstep.follow([run], tmp_path, [], 1)
