import contextlib
import gzip
import io
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from input_pipeline import __main__ as command
from input_pipeline import archives, prepare


def test_an_unreachable_host_is_reported_in_seconds_with_its_files(monkeypatch, tmp_path):
    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(prepare, "REACH_SECONDS", 0.2)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/train.gz"
        start = time.monotonic()
        with pytest.raises(
            ValueError, match=r"mnist: cannot be downloaded.*train.gz.*--manual_dir"
        ):
            prepare._check_reachable("mnist", [url], str(tmp_path))
        assert time.monotonic() - start < 2


def test_slow_name_resolution_does_not_hang(monkeypatch):
    def resolve_slowly(*_, **__):
        time.sleep(2)
        raise OSError("name resolution failed")

    monkeypatch.setattr(prepare, "REACH_SECONDS", 0.1)
    monkeypatch.setattr(urllib.request, "urlopen", resolve_slowly)
    start = time.monotonic()
    assert prepare._why_unreachable("http://example.invalid/file") == "no answer in 0.1 s"
    assert time.monotonic() - start < 1


def test_debians_files_get_upstreams_headers(tmp_path):
    """The expected files are written by gzip, with name and time in the header."""
    source, target = tmp_path / "debian", tmp_path / "upstream"
    source.mkdir()
    target.mkdir()
    expected = {}
    for name in archives.FASHION_MNIST_FILES:
        modified = {"train": 1504176606, "t10k": 1504176627}[name.split("-")[0]]
        packed = io.BytesIO()
        stem = name.removesuffix(".gz")
        with gzip.GzipFile(stem, "wb", fileobj=packed, mtime=modified) as file:
            file.write(name.encode() * 9)
        expected[name] = packed.getvalue()
        flags_off = bytes([expected[name][3] & ~8])
        start = 10 + len(stem) + 1
        stripped = expected[name][:3] + flags_off + bytes(4) + expected[name][8:10]
        (source / name).write_bytes(stripped + expected[name][start:])
    archives.restore_fashion_mnist(source, target)
    assert {name: (target / name).read_bytes() for name in expected} == expected
    (source / archives.FASHION_MNIST_FILES[0]).unlink()
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz missing.*apt-get install"):
        archives.restore_fashion_mnist(source, target)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name=imagenet2012", "--data_dir={tmp}"], "is not prepared there"),
        (["--name=imagenet2012", "--data_dir={tmp}", "--manual_dir={tmp}"], "is missing"),
        (["--name=nonsense", "--data_dir={tmp}"], "neither a known data set"),
        (["--data_dir=/proc/none"], "cannot be created"),
    ],
)
def test_the_command_ends_with_2_and_one_line(arguments, message, tmp_path, capsys):
    assert command.main([argument.format(tmp=tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.slow
def test_leftovers_of_a_killed_preparation_are_removed(tmp_path):
    """The first process is killed while tfds writes. The second one succeeds."""
    code = (
        "import os, signal\n"
        "from input_pipeline import prepare\n"
        "from input_pipeline.digits import Digits\n"
        "Digits._generate_examples = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"prepare.ensure('digits', {str(tmp_path)!r})"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    (leftover,) = tmp_path.glob("digits/*incomplete*")
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        assert prepare.ensure("digits", str(tmp_path)).n_examples("train") == 1437
    assert f"{leftover}: left by a preparation that was killed" in stderr.getvalue()
    assert f"digits: not in {tmp_path} yet" in stderr.getvalue()
    assert not list(tmp_path.glob("**/*incomplete*"))


@pytest.mark.slow
def test_processes_that_start_together_prepare_once(tmp_path):
    code = (
        "from input_pipeline import prepare\n"
        f"print(prepare.ensure('digits', {str(tmp_path)!r}).n_examples('train'))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert [out.strip() for out, _ in outputs] == ["1437", "1437"]
    assert sum("Downloading and preparing" in error for _, error in outputs) == 1
    assert not list(tmp_path.glob("**/*incomplete*"))
