"""All stages on a miniature ImageNet, and every reason not to start."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import reproduce
from sweeps import runs

ROOT = pathlib.Path(reproduce.__file__).parent
sys.path[:0] = [str(ROOT / "tests" / "input_pipeline"), str(ROOT / "tests")]
import miniature  # noqa: E402
from processes import free_port, restore_sigint  # noqa: E402

SMALLER = {
    "global_batch_size": 16,
    "total_steps": 4,
    "eval_every_steps": 2,
    "device_eval_batch_size": 4,
    "log_every_steps": 2,
    "schedule.warmup_steps": 1,
    "schedule.decay_end_step": 0,
    "dataset.image_size": 32,
    "model.stage_sizes": "(1,1)",
    "model.width": 8,
    "model.bn_span": 8,
    "target_accuracy": 0.01,
}
OVERRIDES = [f"--config.{name}={value}" for name, value in SMALLER.items()]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    from input_pipeline import prepare

    tars = miniature.write_tars(tmp_path_factory.mktemp("tars"))
    directory = tmp_path_factory.mktemp("imagenet")
    prepare.ensure("imagenet2012", str(directory), str(tars), is_subset=True)
    return directory


def environment(n_devices, **more):
    flags = f"--xla_force_host_platform_device_count={n_devices}"
    return os.environ | {"XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3", **more}


def start(*arguments, n_devices=1, **more):
    return subprocess.Popen(
        [sys.executable, "reproduce.py", *arguments],
        cwd=ROOT,
        env=environment(n_devices, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def user_error(*processes):
    """Returns the error line of the processes, which all exit with 2 and the same line."""
    lines = set()
    for process in processes:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 2, error
        lines.add([line for line in error.splitlines() if line.startswith("error: ")][-1])
    assert len(lines) == 1, lines
    return lines.pop()


def test_a_dry_run_prints_every_command_and_the_predicted_hours(capsys):
    assert reproduce.main(["--data_dir=gs://data", "--dry_run", "--seeds=0:3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line for line in lines if line.startswith("python ")]
    assert [line.split()[1] for line in commands] == [
        "-m",
        *["main.py"] * 3,
        "sweep.py",
        "report.py",
    ]
    assert (
        sum(line.startswith(recipe) for line in lines for recipe in reproduce.RECIPES.split()) == 3
    )
    assert "3 x 310 s = 0.3 h" in "\n".join(lines)  # the anchor


def test_several_hosts_may_use_a_bucket_and_have_no_report_there(capsys):
    arguments = ["--data_dir=gs://data", "--out=gs://bucket/out", "--distributed", "--dry_run"]
    assert reproduce.main(arguments) == 0
    output = capsys.readouterr().out
    assert "--workdir=gs://bucket/out/.rehearsal/lars-mlperf_v07 --distributed" in output
    assert "--out=gs://bucket/out --distributed" in output
    assert "report.py" not in output


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([1], 70),  # the preflight crashed
        ([2], 2),
        ([0, 1], 70),  # the rehearsal crashed
        ([0, 75], 75),
        ([0, 0, 1, 0], 1),  # the sweep has failed runs, and then the report
        ([0, 0, 70], 70),
    ],
)
def test_the_exit_status_tells_a_crash_from_failed_runs(ends, status, monkeypatch):
    def call(command, cwd):
        for argument in command:
            if argument.startswith("--facts="):
                pathlib.Path(argument.partition("=")[2]).write_text('{"host": 0}')
        return ends.pop(0)

    monkeypatch.setattr(reproduce.process, "call", call)
    assert reproduce.main(["--data_dir=x", "--recipes=lars:smoke"]) == status
    assert not ends


STAGE = """
import signal, sys, time
def save(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_lets_the_current_stage_save(number):
    """Otherwise the job would end as crashed, and the sweep would continue without it."""
    code = f"import reproduce, sys; reproduce.preflight = lambda *_: ['-c', {STAGE!r}]; "
    code += "sys.exit(reproduce.main(['--data_dir=x', '--recipes=lars:smoke', '--seeds=0']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=restore_sigint,
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, error = process.communicate(timeout=60)
    assert output == "saved\n"
    if number != signal.SIGKILL:
        assert process.returncode == 75
        assert error == "stopped; the same command continues\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds=-1:2"], "seed=-1: "),
        (["--seeds=0:3", "--config.seed=2"], "--seeds sets this field"),
        (["--seeds=0,0"], "names a seed twice"),
        (
            ["--seeds=0", "--config.total_steps=7"],
            "the run of another config (total_steps",
        ),
        (["--out=gs://bucket/out"], "out=gs://bucket/out: must be a folder, unless several hosts"),
    ],
)
def test_mistakes_in_the_sweep_are_reported_before_anything_starts(
    arguments, message, tmp_path, capsys
):
    (run,) = runs.plan_runs("lars:smoke", [0], tmp_path, ["--config.dataset.data_dir=x"])
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text(run.config().to_json())
    fixed = ["--data_dir=x", "--recipes=lars:smoke", f"--out={tmp_path}", "--dry_run"]
    assert reproduce.main([*fixed, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_a_pod_the_message_names_the_devices_and_the_remedy(tmp_path, data_dir):
    line = user_error(start(f"--data_dir={data_dir}", f"--out={tmp_path / 'out'}", n_devices=8))
    assert line.startswith("error: devices=256: 8 (cpu) found on 1 host(s)")
    assert "python -m launch --help" in line
    assert not (tmp_path / "out").exists()


def test_without_data_the_message_explains_how_to_prepare_it(tmp_path):
    arguments = [f"--data_dir={tmp_path}", f"--out={tmp_path / 'out'}", "--devices=8", *OVERRIDES]
    line = user_error(start(*arguments, n_devices=8))
    assert "imagenet2012" in line
    assert "python -m input_pipeline" in line
    assert not (tmp_path / "out").exists()


def test_a_part_of_imagenet_is_a_user_error(tmp_path, data_dir):
    arguments = [f"--data_dir={data_dir}", f"--out={tmp_path / 'out'}", "--devices=8", *OVERRIDES]
    line = user_error(start(*arguments, n_devices=8))
    assert "the full set has 1,281,167" in line


@pytest.mark.slow
def test_another_jax_on_one_host_is_named_on_both(tmp_path, data_dir):
    (tmp_path / "other" / "jax-0.0.1.dist-info").mkdir(parents=True)
    metadata = tmp_path / "other" / "jax-0.0.1.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.0.1\n")
    port = free_port()
    arguments = [f"--data_dir={data_dir}", f"--out={tmp_path / 'out'}", "--devices=8", "--subset"]
    arguments += [f"--coordinator_address=localhost:{port}", "--num_processes=2", *OVERRIDES]
    first = start(*arguments, "--process_id=0", n_devices=4)
    second = start(*arguments, "--process_id=1", n_devices=4, PYTHONPATH=str(tmp_path / "other"))
    line = user_error(first, second)
    assert "jax" in line
    assert "0.0.1" in line


@pytest.mark.slow
def test_two_seeds_on_the_miniature_reach_the_report_and_repeat_at_once(tmp_path, data_dir):
    out = tmp_path / "out"
    arguments = [f"--data_dir={data_dir}", f"--out={out}", "--devices=8", "--subset"]
    arguments += ["--seeds=0:2", "--recipes=lars:mlperf_v07 shampoo:readme", *OVERRIDES]
    process = start(*arguments, n_devices=8)
    _, error = process.communicate(timeout=900)
    assert process.returncode == 0, error
    report = json.loads((out / "report.json").read_text())
    assert [(row["recipe"], row["n"]) for row in report["rows"]] == [
        ("lars:mlperf_v07", 2),
        ("shampoo:readme", 2),
    ]
    assert (out / "report.html").read_text().endswith("</html>\n")
    before = (out / "lars-mlperf_v07" / "seed_0000" / "run.json").stat().st_mtime_ns
    again = start(*arguments, n_devices=8)
    again.communicate(timeout=300)
    assert again.returncode == 0
    assert (out / "lars-mlperf_v07" / "seed_0000" / "run.json").stat().st_mtime_ns == before


def test_the_preflight_needs_space_for_the_remaining_runs_only(tmp_path, monkeypatch):
    """Otherwise an interrupted reproduction could not continue."""
    import collections

    from launch import preflight

    needed_gib = []
    options = collections.namedtuple("Options", "devices recipes seeds out subset")
    monkeypatch.setattr(preflight, "check_devices", lambda n_devices: None)
    monkeypatch.setattr(preflight, "check_data", lambda config, is_subset: None)
    monkeypatch.setattr(preflight, "run_gib", lambda config, spec: 2.5)
    monkeypatch.setattr(preflight, "check_disk", lambda out, needed: needed_gib.append(needed))
    for seed in (0, 1):
        folder = tmp_path / "lars-smoke" / f"seed_{seed:04d}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text('{"status": "done"}')
    preflight.check(options(1, "lars:smoke sm3:smoke", "0:3", str(tmp_path), True), [])
    assert needed_gib == [2.5 * (1 + 3)]
