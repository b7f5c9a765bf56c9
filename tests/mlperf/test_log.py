"""MLPerf logs: published figures, and everything that submitters do differently."""

import json

import pytest

import report
from mlperf.log import read_log
from tests.mlperf.log_files import SHAMPOO, SHAMPOO_PATH, line, log_lines, write_shampoo

PATH = [*SHAMPOO_PATH, 0.76]


def write(tmp_path, lines, encoding="utf-8"):
    path = tmp_path / "result_0.txt"
    path.write_bytes("\n".join(lines).encode(encoding))
    return path


def test_the_published_shampoo_submission_gives_its_published_figures(tmp_path, capsys):
    """5 of 5, 1727 steps, olympic mean 199.094 s: mlcommons/training_results_v1.0."""
    write_shampoo(tmp_path / "resnet")
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert (row["optimizer"], row["global_batch_size"], row["n_reached"]) == ("shampoo", 32768, 5)
    assert row["steps_to_target"]["median"] == 1727
    assert row["seconds_to_target"]["median"] == pytest.approx(199.201, abs=1e-9)
    assert row["seconds_to_target"]["olympic_mean"] == pytest.approx(199.0943, abs=1e-3)
    assert row["mlperf"]["valid"]
    assert row["published"]["olympic_mean_seconds"] == 199.094
    assert row["final_accuracy"]["median"] == 0.76022
    assert "199.1" in capsys.readouterr().out


# Published schedules whose lengths are known from their command lines:
# (batch, warm-up epochs, logged decay steps, epochs a block, evaluations) -> steps at the end, plan
SCHEDULES = [
    ((32768, 18, 1653, [4] * 15), (2355, 2355)),  # TPU, TensorFlow: loops rounded up
    ((55296, 29, 1190, [4] * 19), (1767, 1860)),  # the same, stopped before its plan's end
    ((8192, 5, 6095, [4] * 11), (6875, 6875)),  # the same code, loops rounded down
    ((65536, 33, 1166.25, [4] * 22), (1738, 1817)),  # TPU, JAX: fractional warm-up
    ((32768, 18, 1806.5, [4] * 16), (2512, 2512)),  # the same at 64 epochs
    ((4096, 2, 12169, [3] + [4] * 9), (12168, 12792)),  # first block of three epochs
    ((32768, 16, 2028, [4] * 16), (2496, 2652)),  # MindSpore: 39 steps an epoch
    ((32768, 7.6, 639.5999999999999, [4] * 6), (936, 936)),  # fractional warm-up epochs
]


@pytest.mark.parametrize(("schedule", "expected"), SCHEDULES)
def test_steps_follow_from_the_schedule(schedule, expected, tmp_path):
    batch, warmup, decay, blocks = schedule
    header = {"submission_benchmark": "resnet", "opt_name": "lars", "global_batch_size": batch,
              "lars_opt_learning_rate_warmup_epochs": warmup,
              "lars_opt_learning_rate_decay_steps": decay}  # fmt: skip
    accuracies = [0.5] * (len(blocks) - 1) + [0.7601]
    path = write(tmp_path, log_lines(header, accuracies, 100.0, block_epochs=blocks))
    (run,) = read_log(path)
    assert (run.steps_to_target, run.total_steps) == expected


def test_a_schedule_that_fits_no_rounding_gives_no_steps(tmp_path):
    header = {k: v for k, v in SHAMPOO.items() if "train_steps" not in k}
    header["shampoo_opt_learning_rate_decay_steps"] = 1500
    (run,) = read_log(write(tmp_path, log_lines(header, PATH, 200.0)))
    assert run.reached
    assert run.steps_to_target is None
    assert any("epochs only" in flag for flag in run.flags)


@pytest.mark.parametrize("offset", [1, 2])
def test_a_first_block_that_contradicts_the_epoch_number_gives_no_steps(offset, tmp_path):
    """Logs with an offset say "4 epochs" of a first block that had one (epoch 1, 5, 9, ...)."""
    epochs = [offset + 4 * i for i in range(11)]
    (run,) = read_log(write(tmp_path, log_lines(SHAMPOO, PATH, 200.0, epochs=epochs)))
    assert run.steps_to_target is None


def test_a_short_last_block_may_round_to_the_epoch_before(tmp_path):
    """1729 steps evaluated every 157: the last look comes two steps after epoch 44."""
    accuracies, blocks = [*PATH[:-1], 0.7588, 0.76], [4] * 11 + [1]
    epochs = [4 * i for i in range(1, 12)] + [44]
    lines = log_lines(SHAMPOO, accuracies, 200.0, epochs=epochs, block_epochs=blocks)
    (run,) = read_log(write(tmp_path, lines))
    assert (run.reached, run.last_accuracy, run.steps_to_target) == (True, 0.76, None)


def test_floored_epoch_numbers_do_not_matter(tmp_path):
    epochs = [3.0, 6.0, *(4.0 * i - 2 for i in range(3, 12))]
    (run,) = read_log(write(tmp_path, log_lines(SHAMPOO, PATH, 200.0, epochs=epochs)))
    assert run.steps_to_target == 1727
    assert run.record["epochs_to_target"] == 42.0


def test_noise_prefixes_dicts_texts_and_missing_namespaces_are_read(tmp_path):
    lines = log_lines(SHAMPOO, PATH, 200.0)
    lines[-3] = line("eval_accuracy", {"accuracy": "0.76", "epoch_num": 44})
    noisy = [text for good in lines for text in ("x" * 10_000, f"12: [rank 0] {good} trailing")]
    (run,) = read_log(write(tmp_path, noisy))
    assert (run.steps_to_target, run.seconds_to_target, run.last_accuracy) == (1727, 200.0, 0.76)


@pytest.mark.parametrize("n_in_a_line", [2, 1000])
def test_records_that_share_a_line_all_count(n_in_a_line, tmp_path):
    lines = log_lines(SHAMPOO | {"note": "a value may say :::MLLOG, too"}, PATH, 200.0)
    joined = ["".join(lines[i : i + n_in_a_line]) for i in range(0, len(lines), n_in_a_line)]
    (run,) = read_log(write(tmp_path, joined))
    assert (run.steps_to_target, run.seconds_to_target, run.flags) == (
        1727, 200.0, ("steps derived from the logged epochs and schedule",)
    )  # fmt: skip


def test_a_torn_record_before_another_is_told(tmp_path):
    lines = log_lines(SHAMPOO, PATH, 200.0)
    lines[2] = lines[2][:30] + lines[3]
    lines[4] = f":::MLLOG {lines[4]}"  # the token twice is no loss
    (run,) = read_log(write(tmp_path, lines))
    assert run.steps_to_target == 1727
    assert "1 broken :::MLLOG lines: something may be missing" in run.flags


@pytest.mark.parametrize(
    "data",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r").encode(),
        lambda text: text.replace('"epoch_num": 44', '"epoch_num": "44.0"').encode(),
        lambda text: text.replace("32768", '"32768"').encode(),
    ],
)
def test_what_other_systems_write_gives_the_same_numbers(data, tmp_path):
    (tmp_path / "result_0.txt").write_bytes(data("\n".join(log_lines(SHAMPOO, PATH, 200.0))))
    (run,) = read_log(tmp_path / "result_0.txt")
    assert (run.steps_to_target, run.total_steps, run.seconds_to_target) == (1727, 1727, 200.0)
    assert (run.global_batch_size, run.last_accuracy) == (32768, 0.76)


@pytest.mark.parametrize("accuracy", [76.0, "76.0%", True, [0.76], 1.0001, None])
def test_an_accuracy_that_is_no_fraction_is_refused(accuracy, tmp_path):
    lines = log_lines(SHAMPOO, [*SHAMPOO_PATH, accuracy], 200.0)
    with pytest.raises(ValueError, match="is not a fraction"):
        read_log(write(tmp_path, lines))


def test_seconds_instead_of_milliseconds_and_repeated_lines_are_read(tmp_path):
    """v0.7: every one of many workers logs init_start, and times are in seconds."""
    lines = []
    for text in log_lines(SHAMPOO, PATH, 200.0):
        record = json.loads(text.removeprefix(":::MLLOG "))
        record["time_s"] = record.pop("time_ms") / 1000
        lines += [f":::MLLOG {json.dumps(record)}"] * (7 if "block" not in record["key"] else 1)
    (run,) = read_log(write(tmp_path, lines))
    assert (run.steps_to_target, run.seconds_to_target) == (1727, pytest.approx(200.0))


def test_workers_with_seeds_of_their_own_have_no_seed_in_common(tmp_path):
    lines = log_lines(SHAMPOO, PATH, 200.0)
    lines[5:5] = [line("seed", seed) for seed in (27299, 6742, 36011)]
    (run,) = read_log(write(tmp_path, lines))
    assert run.seed is None
    assert not any("different values" in flag for flag in run.flags)


def test_two_batch_sizes_in_one_log_are_marked(tmp_path):
    lines = [line("global_batch_size", 4096), *log_lines(SHAMPOO, PATH, 200.0)]
    (run,) = read_log(write(tmp_path, lines))
    assert "logged with different values: global_batch_size" in run.flags


def test_concatenated_files_are_several_runs(tmp_path):
    aborted = log_lines(SHAMPOO, PATH[:6], 90.0)[:-1]  # killed: no run_stop
    lines = log_lines(SHAMPOO, PATH, 200.0) + aborted + log_lines(SHAMPOO, PATH, 210.0)
    runs = read_log(write(tmp_path, lines))
    assert [run.status for run in runs] == ["done", "aborted", "done"]
    assert [run.seconds_to_target for run in runs] == [200.0, None, 210.0]
    assert [run.steps_to_target for run in runs] == [1727, None, 1727]
    assert runs[1].last_accuracy == PATH[5]


def test_an_aborted_run_is_not_reached_and_counts_as_the_slowest(tmp_path):
    folder = write_shampoo(tmp_path / "resnet")
    lines = log_lines(SHAMPOO | {"seed": 1}, [*SHAMPOO_PATH, 0.7584], 300.0, status="aborted")
    (folder / "result_3.txt").write_text("\n".join(lines))
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert (row["n"], row["n_reached"], row["n_aborted"]) == (5, 4, 1)
    # 196.340 is gone, infinity is dropped with the fastest: the mean of the middle three.
    expected = (199.201 + 199.836 + 209.315) / 3
    assert row["mlperf"]["score_seconds"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "result_4.txt").unlink(), "MLPerf asks for 5 runs, here are 4"),
        (
            lambda f: [
                (f / f"result_{i}.txt").write_text(
                    "\n".join(log_lines(SHAMPOO | {"seed": i}, SHAMPOO_PATH, 300.0 + i))
                )
                for i in range(2)
            ],
            "2 runs did not reach the target",
        ),
        (
            lambda f: (f / "result_4.txt").write_text(
                "\n".join(log_lines(SHAMPOO | {"seed": 1621398787}, PATH, 321.0))
            ),
            "a seed occurs twice",
        ),
    ],
)
def test_a_set_of_runs_against_the_rules_has_no_score(change, words, tmp_path):
    folder = write_shampoo(tmp_path / "resnet")
    change(folder)
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert any(words in problem for row in rows for problem in row["mlperf"]["problems"])
    assert all(row["mlperf"]["score_seconds"] is None for row in rows)


def test_of_seven_runs_the_five_consecutive_ones_with_the_median_score_count(tmp_path):
    (tmp_path / "resnet").mkdir()
    seconds = (200.0, 210.0, 190.0, 205.0, 195.0, 150.0, 160.0)
    for i, s in enumerate(seconds):
        text = "\n".join(log_lines(SHAMPOO | {"seed": i}, PATH, s))
        later = text.replace('"time_ms": 16213', f'"time_ms": {i + 1}16213')
        (tmp_path / "resnet" / f"result_{i}.txt").write_text(later)
    assert report.main([str(tmp_path), f"--json={tmp_path / 'report.json'}"]) == 0
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    # Windows: 190-210 -> 200; 150-210 without ends: (190 + 195 + 205) / 3; then 181.67: the median
    # of 200, 196.67 and 181.67.
    assert row["mlperf"]["score_seconds"] == pytest.approx((190 + 195 + 205) / 3)
    assert any("7 runs" in flag for flag in row["flags"])


def test_a_copied_log_is_counted_once(tmp_path, capsys):
    folder = write_shampoo(tmp_path / "resnet")
    (folder / "result_5.txt").write_bytes((folder / "result_0.txt").read_bytes())
    assert report.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "5/5" in printed
    assert "is already counted" in " ".join(printed.split())
