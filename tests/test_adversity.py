"""Full and read-only disks, clocks that jump, folders that are not ours."""

import contextlib
import errno
import json
import os
import resource
import signal
import time
import types

import jax.numpy as jnp
import pytest
from absl import logging
from etils import epath
from test_train import TINY, rows

import checkpoint
import main
import train
from configs import command_line
from run import files, mllog
from step import TrainState

RECIPE = "nesterov:smoke"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return f"--config.dataset.data_dir={tmp_path_factory.mktemp('data')}"


@pytest.fixture(scope="module")
def reference(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    train.train_and_evaluate(command_line.load(RECIPE, [*TINY, data]), str(folder))
    return folder


@pytest.fixture
def before_batch(monkeypatch):
    """Calls a function before the n-th training batch of the next run."""
    original = train.input_pipeline.train_batches

    def install(n, function):
        def watched(*args, **options):
            for s, batch in enumerate(original(*args, **options), start=1):
                if s == n:
                    function()
                yield batch

        monkeypatch.setattr(train.input_pipeline, "train_batches", watched)

    return install


def run(data, workdir, *overrides):
    path = command_line.recipe_path(RECIPE)
    return main.main(
        ["main.py", f"--config={path}", *TINY, data, *overrides, f"--workdir={workdir}"]
    )


@contextlib.contextmanager
def files_end_at(n_bytes):
    """No file of this process grows beyond that: what a quota or a full disk does to it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("overrides", "kept"),
    [
        pytest.param((), [], marks=pytest.mark.slow),  # the curve cannot be written
        (("--config.eval_every_steps=5", "--config.checkpoint_every_steps=1"), [1]),
    ],
)
def test_full_disk_is_a_crash_of_one_line_and_the_same_command_continues(
    data, reference, tmp_path, capsys, before_batch, overrides, kept
):
    with files_end_at(40) as now:
        before_batch(3 if kept else 2, now)
        assert run(data, tmp_path, *overrides) == 1
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert "cannot be written (" in error
    assert "then run the command again" in error
    assert not (tmp_path / "run.json").exists()
    there = checkpoint.Checkpoints(epath.Path(tmp_path), keep=3)
    assert there.steps()[: len(kept)] == kept
    there.close()
    before_batch(0, None)
    assert run(data, tmp_path, *overrides) == 0
    assert rows(tmp_path / "curve.csv")[-1] == rows(reference / "curve.csv")[-1]
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "done"


@pytest.mark.slow
def test_read_only_disk_in_mid_run(data, reference, tmp_path, capsys, before_batch, monkeypatch):
    def fail(path, text):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        before_batch(2, lambda: patch.setattr(files, "write_text", fail))
        assert run(data, tmp_path) == 1
    assert "(Read-only file system)" in capsys.readouterr().err
    before_batch(0, None)
    assert run(data, tmp_path) == 0
    assert (tmp_path / "curve.csv").read_bytes() == (reference / "curve.csv").read_bytes()


def test_result_txt_that_cannot_be_written_ends_the_run(tmp_path):
    """The logging module would print such an error and go on."""
    log = mllog.open_log(epath.Path(tmp_path / "result.txt"), [])
    log.event(key="epoch_num", value=1, time_ms=1)
    with files_end_at(40) as now:
        now()
        with pytest.raises(OSError, match="File too large"):
            log.event(key="epoch_num", value=2, time_ms=2)


@pytest.mark.parametrize("left", [None, "", "one\ntwo\nthr", "\0" * 9])
def test_result_txt_that_lost_lines_is_written_again(tmp_path, left):
    file = epath.Path(tmp_path / "result.txt")
    if left is not None:
        file.write_text(left)
    lines = ["one", "two", "three"]
    log = mllog.open_log(file, lines)
    log.event(key="epoch_num", value=4, time_ms=4)
    mllog.close_log(log)
    assert file.read_text().splitlines() == lines
    assert lines[:3] == ["one", "two", "three"]
    assert json.loads(lines[3].removeprefix(":::MLLOG "))["value"] == 4


def test_the_wall_clock_may_jump(data, reference, tmp_path, before_batch, monkeypatch):
    now, now_ns = time.time, time.time_ns

    def jump():
        monkeypatch.setattr(time, "time", lambda: now() - 7200)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 7200 * 10**9)

    before_batch(3, jump)
    assert run(data, tmp_path, "--config.checkpoint_every_steps=2") == 0
    lines = (tmp_path / "result.txt").read_text().splitlines()
    times = [json.loads(line.removeprefix(":::MLLOG "))["time_ms"] for line in lines]
    assert times == sorted(times)
    assert times[-1] - times[0] < 600_000
    seconds = json.loads((tmp_path / "run.json").read_text())["seconds"]
    assert all(0 <= value < 600 for value in seconds.values())
    assert (tmp_path / "curve.csv").read_bytes() == (reference / "curve.csv").read_bytes()


def test_checkpoints_by_the_clock_are_due_where_metrics_are_logged(tmp_path, monkeypatch):
    clock = types.SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(checkpoint, "time", clock)
    checkpoints = checkpoint.Checkpoints(
        epath.Path(tmp_path), keep=3, every_minutes=1.0, look_every_steps=10
    )

    def due_at(step, now):
        clock.now = now
        return checkpoints.is_due(step)

    assert not due_at(0, 61.0)  # what the seed gives needs no checkpoint
    assert not due_at(10, 59.0)
    assert not due_at(11, 61.0)
    assert due_at(20, 61.0)
    assert list(tmp_path.iterdir()) == []
    checkpoints.save(20, TrainState(jnp.int32(20), {}, {}, {}, {}), {})
    assert not due_at(30, 120.0)
    assert due_at(40, 121.0)
    checkpoints.close()


def saved(folder, *steps):
    checkpoints = checkpoint.Checkpoints(epath.Path(folder), keep=3)
    for s in steps:
        checkpoints.save(s, TrainState(jnp.int32(s), {"w": jnp.ones(2)}, {}, {}, {}), {"at": s})
    checkpoints.close()


def restored(folder, weights="w"):
    """The record of the latest checkpoint that can be read, and the steps that then remain."""
    checkpoints = checkpoint.Checkpoints(epath.Path(folder), keep=3)
    template = TrainState(jnp.int32(0), {weights: jnp.ones(2)}, {}, {}, {})
    try:
        _, record = checkpoints.restore_latest(template)
        return record, checkpoints.steps()
    finally:
        checkpoints.close()


def test_checkpoints_of_another_version_are_refused_in_a_sentence_and_kept(tmp_path, capsys):
    """As after an update of the code; without them a second call would begin anew in silence."""
    saved(tmp_path, 1, 2)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"its checkpoints are of another version of the code"):
            restored(tmp_path, weights="other")
    assert capsys.readouterr().out == ""
    assert restored(tmp_path) == ({"at": 2}, [1, 2])


def test_without_a_readable_checkpoint_the_run_is_refused_and_nothing_is_removed(tmp_path, capsys):
    saved(tmp_path, 1, 2)
    for file in (tmp_path / "checkpoints").rglob("state/d/*"):
        file.write_bytes(b"damaged")
    before = sorted((tmp_path / "checkpoints").rglob("*"))
    for _ in range(2):
        with pytest.raises(
            ValueError,
            match=r"checkpoints can be read \(step 2: .*step 1: .*remove the",
        ):
            restored(tmp_path)
    assert capsys.readouterr().out == ""
    assert sorted((tmp_path / "checkpoints").rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "content", "at"),
    [
        ("notes.txt", "mine", 2),
        ("9", "a file", 2),
        ("9/empty/file", "", 2),
        ("9.orbax-checkpoint-tmp/state/half", "", 2),
        ("2/notes.txt", "mine", 2),
        ("2/record/metadata", '{"at"', 1),
    ],
)
def test_foreign_and_half_written_things_among_the_checkpoints(name, content, at, tmp_path):
    saved(tmp_path, 1, 2)
    path = tmp_path / "checkpoints" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    record, steps = restored(tmp_path)
    assert (record, steps) == ({"at": at}, list(range(1, at + 1)))


def test_an_error_without_words_is_a_checkpoint_that_cannot_be_read(tmp_path, monkeypatch, capsys):
    saved(tmp_path, 1, 2)
    restore = checkpoint.Checkpoints._restore

    def fail(self, step, arrays):
        if step == 2:
            raise AssertionError
        return restore(self, step, arrays)

    monkeypatch.setattr(checkpoint.Checkpoints, "_restore", fail)
    assert restored(tmp_path) == ({"at": 1}, [1])
    assert "be read: step 2: AssertionError: \n" in capsys.readouterr().out


def test_folder_that_is_not_ours_is_refused_and_left_alone(data, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    assert run(data, tmp_path) == 2
    assert "contains thesis.tex, but no run of this program" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_what_a_killed_claim_leaves_is_ours(data, reference, tmp_path):
    (tmp_path / ".config.json.tmp").write_text("{")
    assert run(data, tmp_path) == 0
    assert (tmp_path / "curve.csv").read_bytes() == (reference / "curve.csv").read_bytes()


def test_a_run_is_taken_up_by_another_path_with_cut_files_and_without_checkpoints(
    data, reference, tmp_path, before_batch, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wörk dir").mkdir()
    (tmp_path / "link").symlink_to("wörk dir")
    before_batch(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(data, "link", "--config.checkpoint_every_steps=1") == 75
    for name in ("curve.csv", "metrics.csv"):
        (tmp_path / "link" / name).write_text((tmp_path / "link" / name).read_text()[:-5])
    (tmp_path / "link" / "timing.csv").unlink()
    (tmp_path / "link" / "run.json").write_text('{"status": "aborted", "reason": "crashed"}')
    before_batch(0, None)
    assert run(data, tmp_path / "wörk dir", "--config.checkpoint_every_steps=0") == 0
    assert (tmp_path / "link" / "curve.csv").read_bytes() == (reference / "curve.csv").read_bytes()
    for name in ("metrics.csv", "timing.csv"):  # a save takes down the steps before it
        assert [row["step"] for row in rows(tmp_path / "link" / name)] == list("12345")


def test_folder_that_another_process_works_in_is_refused(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.2)
    with files.locked(epath.Path(tmp_path / ".lock"), "in use"):
        assert run(data, tmp_path) == 2
    assert "is used by another process" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_unused_checkpoints_leave_no_folder(reference):
    assert not (reference / "checkpoints").exists()


def test_a_runs_keeping_may_change_when_it_is_taken_up_again(data, reference, capsys):
    assert run(data, reference, "--config.checkpoint_every_steps=2") == 0
    assert "already complete" in capsys.readouterr().out


def test_another_number_of_hosts_is_refused_in_mid_run_unless_asked_for(
    data, reference, tmp_path, capsys, before_batch, monkeypatch
):
    """In the place of two hosts: a record that says it is from two."""
    as_record = train.RunLogger.as_record
    with monkeypatch.context() as patch:
        before_batch(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        patch.setattr(
            train.RunLogger, "as_record", lambda self, step: as_record(self, step) | {"n_hosts": 2}
        )
        assert run(data, tmp_path) == 75
    before_batch(0, None)
    assert run(data, tmp_path) == 2
    error = capsys.readouterr().err
    assert "hosts=1: the checkpoint of step 3 is from 2 hosts, which saw other batches" in error
    assert run(data, tmp_path, "--config.allow_host_count_change=True") == 0
    assert (tmp_path / "curve.csv").read_bytes() == (reference / "curve.csv").read_bytes()


def test_a_save_silences_orbax_and_nobody_else(tmp_path, caplog):
    checkpoints = checkpoint.Checkpoints(epath.Path(tmp_path), keep=1)
    checkpoints.save(0, TrainState(jnp.zeros((), jnp.int32), {"w": jnp.ones(2)}, {}, {}, {}), {})
    checkpoints.close()
    logging.warning("a corrupt example")
    assert [record.message for record in caplog.records] == ["a corrupt example"]
