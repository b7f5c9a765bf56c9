"""MLCommons' checkers, on scripted accuracy curves through the writer that runs use."""

import subprocess
import sys

import pytest
from etils import epath

import evaluator
from configs import command_line
from configs import plan as plans
from mlperf import check as mlperf_check
from run.logger import RunLogger, RunProgress
from tests.mlperf.log_files import SHAMPOO, log_lines, write_shampoo


def write_scripted(folder, recipe, last_accuracy=0.76):
    """Lets the run's own logger write a log whose accuracy rises to `last_accuracy`."""
    folder.mkdir(parents=True)
    config = command_line.load(recipe, [])
    plan = plans.make_plan(
        config, n_train_examples=1_281_167, n_eval_examples=50_000, n_devices=256, n_hosts=1
    )
    logger = RunLogger(config, plan, epath.Path(folder), lambda step: 0.0, RunProgress())
    logger.start(init_seconds=1.0)
    for i, step in enumerate(plan.eval_steps, start=1):
        n_correct = round(50_000 * last_accuracy * i / len(plan.eval_steps))
        logger.record_evaluation(evaluator.Evaluation(step, n_correct, 50_000, 1.0))
    logger.close(plan.total_steps)
    return folder


@pytest.mark.parametrize(
    ("recipe", "division"),
    [("lars:mlperf_v07", "closed"), ("nesterov:nado", "open"), ("shampoo:readme", "open")],
)
def test_our_own_log_complies(recipe, division, tmp_path, capsys):
    write_scripted(tmp_path / recipe / "seed_0000", recipe)
    assert mlperf_check.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"{division} division, 1.0.0 SUCCESS, 4.0.0 SUCCESS" in printed
    assert "not a submission yet: 1 of 5 runs" in printed


def test_a_closed_run_below_the_target_does_not_comply(tmp_path, capsys):
    write_scripted(tmp_path / "seed_0000", "lars:mlperf_v07", last_accuracy=0.7589)
    assert mlperf_check.main([str(tmp_path)]) == 1
    assert "1.0.0 FAILED" in capsys.readouterr().out


def test_in_process_answers_are_those_of_the_command_line(tmp_path):
    folder = write_shampoo(tmp_path / "resnet")
    (folder / "result_5.txt").write_text("\n".join(log_lines(SHAMPOO, [0.5, 1.5], 9)))
    for name in ("result_0.txt", "result_5.txt"):
        command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--ruleset", "1.0.0"]
        command += ["--log_output", str(tmp_path / "log"), str(folder / name)]
        done = subprocess.run(command, capture_output=True, cwd=tmp_path)
        assert (done.returncode == 0) == (not mlperf_check.complies(folder / name, "1.0.0"))


def test_the_reference_convergence_of_the_published_shampoo_runs(tmp_path, capsys):
    """44 epochs are fewer than the 55.445 that MLPerf's references allow: open division only."""
    write_shampoo(tmp_path / "resnet")
    assert mlperf_check.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "reference convergence 1.0.0 FAILED: RCP found (open division" in printed


def test_a_proxy_is_not_a_submission(tmp_path, capsys):
    lines = log_lines(SHAMPOO | {"train_samples": 1280, "eval_samples": 517}, [0.98], 9)
    for i in range(5):
        (tmp_path / f"result_{i}.txt").write_text("\n".join(lines))
    mlperf_check.main([str(tmp_path)])
    assert "not a submission: a proxy data set" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_nothing_to_check_is_a_user_error(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mlperf_check.main([folder]) == 2
    assert "give a folder" in capsys.readouterr().err
