"""Several processes through main.py, against one process that is fed their batches together."""

import csv
import json
import os
import resource
import signal

import numpy as np
import pytest
from processes import NETWORK, Hosts
from test_train import signal_at

import train
from configs import command_line
from errors import Preempted
from run import distributed

RECIPES = {
    "nesterov:smoke": (),
    "shampoo:smoke": ("--config.optimizer.start_preconditioning_step=1",),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Prepared here, so that no process has to."""
    folder = tmp_path_factory.mktemp("data")
    train.input_pipeline.batches.prepare.ensure("digits", str(folder))
    return f"--config.dataset.data_dir={folder}"


def arguments(recipe, data, *overrides):
    """Of main.py for several hosts."""
    path = command_line.recipe_path(recipe)
    return [f"--config={path}", *NETWORK, *RECIPES[recipe], data, *overrides]


def feed_like(monkeypatch, n_hosts):
    """Lets one process with all the devices train on the batches of hosts 0 ... n_hosts - 1."""
    original = train.input_pipeline.train_batches

    def concatenated(*args, **options):
        n_devices = options.pop("n_local_devices")
        del options["host_index"], options["n_hosts"]
        streams = [
            original(
                *args,
                **options,
                host_index=i,
                n_hosts=n_hosts,
                n_local_devices=n_devices // n_hosts,
            )
            for i in range(n_hosts)
        ]
        for batches in zip(*streams, strict=True):
            yield {key: np.concatenate([b[key] for b in batches]) for key in batches[0]}

    monkeypatch.setattr(train.input_pipeline, "train_batches", concatenated)


def run_alone(recipe, data, workdir, *overrides):
    config = command_line.load(recipe, [*NETWORK, *RECIPES[recipe], data, *overrides])
    return train.train_and_evaluate(config, str(workdir))


def column(file, name):
    with file.open() as f:
        return [float(row[name]) for row in csv.DictReader(f)]


def agree_with_one_process(recipe, n_hosts, n_devices, data, tmp_path, monkeypatch):
    several = tmp_path / "several"
    hosts = Hosts(n_hosts, n_devices, tmp_path, several, *arguments(recipe, data))
    assert hosts.end() == [0] * n_hosts, hosts.said()
    with monkeypatch.context() as patch:
        feed_like(patch, n_hosts)
        run_alone(recipe, data, tmp_path / "one")
    losses = [column(w / "metrics.csv", "loss") for w in (several, tmp_path / "one")]
    assert len(losses[0]) == 5
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)
    evaluations = [column(w / "curve.csv", "loss") for w in (several, tmp_path / "one")]
    np.testing.assert_allclose(*evaluations, rtol=0, atol=1e-5)
    run = json.loads((several / "run.json").read_text())
    assert run["device"] == {
        "kind": "cpu",
        "count": n_hosts * n_devices,
        "hosts": n_hosts,
        "cores": len(os.sched_getaffinity(0)),
    }
    assert len(list(several.glob("events.out.tfevents.*"))) == 1
    spoken = [line for line in hosts.logs[1].read_text().splitlines() if "[Gloo]" not in line]
    assert spoken == []


def test_two_hosts_of_four_devices_are_one_process(data, tmp_path, monkeypatch):
    agree_with_one_process("nesterov:smoke", 2, 4, data, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "n_hosts", "n_devices"),
    [("shampoo:smoke", 2, 4), ("shampoo:smoke", 4, 2), ("nesterov:smoke", 4, 2)],
)
def test_hosts_are_one_process(recipe, n_hosts, n_devices, data, tmp_path, monkeypatch):
    agree_with_one_process(recipe, n_hosts, n_devices, data, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_checkpoint_goes_from_one_process_to_two_and_back(recipe, data, tmp_path, monkeypatch):
    """One process saves before its evaluation at step 2; both then evaluate that very state."""
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        with monkeypatch.context() as patch:
            feed_like(patch, 2)
            signal_at(patch, "eval_batches", 1)
            with pytest.raises(Preempted):
                run_alone(recipe, data, folder)
    refused = Hosts(2, 4, tmp_path, two, *arguments(recipe, data))
    assert refused.end() == [2, 2], refused.said()
    for log in refused.logs:
        assert "hosts=2: the checkpoint of step 2 is from 1 hosts, which" in log.read_text()

    asked = ("--config.allow_host_count_change=True", "--config.checkpoint_every_steps=1")
    hosts = Hosts(2, 4, tmp_path, two, *arguments(recipe, data, *asked))
    hosts.wait_for("step     4/5")
    hosts.processes[1].send_signal(signal.SIGTERM)
    assert hosts.end() in ([75, 75], [0, 0]), hosts.said()
    assert "resumed     from the checkpoint of step 2" in hosts.logs[0].read_text()
    with monkeypatch.context() as patch:
        feed_like(patch, 2)
        run_alone(recipe, data, one)
        run_alone(recipe, data, two, *asked)
    for name in ("n_correct", "n_seen"):
        assert column(one / "curve.csv", name)[0] == column(two / "curve.csv", name)[0]
    losses = [column(w / "curve.csv", "loss") for w in (one, two)]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)


LONG = ("--config.total_steps=40", "--config.eval_every_steps=10")


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    hosts = Hosts(2, 2, folder, folder / "run", *arguments("nesterov:smoke", data, *LONG))
    assert hosts.end() == [0, 0], hosts.said()
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whom", "statuses", "again"),
    [
        (signal.SIGTERM, 1, [75, 75], [0, 0]),
        (signal.SIGINT, 0, [130, 130], [0, 0]),
        (signal.SIGKILL, 1, None, [0, 0]),
        (signal.SIGKILL, 0, None, [0, 0]),
    ],
)
def test_a_signal_to_one_host_ends_all_and_the_same_command_continues(
    number, whom, statuses, again, undisturbed, data, tmp_path
):
    options = (*LONG, "--config.checkpoint_every_steps=5")
    workdir = tmp_path / "run"
    hosts = Hosts(2, 2, tmp_path, workdir, *arguments("nesterov:smoke", data, *options))
    hosts.wait_for("step    12/40")
    hosts.processes[whom].send_signal(number)
    ended = hosts.end(seconds=150)
    if statuses is None:
        assert not {0, 2, 3, 75} & set(ended), hosts.said()
        # The other one ended by itself, it was not killed at the end of our patience.
        assert ended.count(-signal.SIGKILL) == 1, hosts.said()
    else:
        assert ended == statuses, hosts.said()
    hosts = Hosts(2, 2, tmp_path, workdir, *arguments("nesterov:smoke", data, *options))
    assert hosts.end() == again, hosts.said()
    assert "resumed     from the checkpoint of step" in hosts.logs[0].read_text()
    assert (workdir / "curve.csv").read_bytes() == (undisturbed / "curve.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("whom", [0, 1])
def test_a_full_disk_stops_the_host_that_writes_and_all_with_it(whom, undisturbed, data, tmp_path):
    options = (*LONG, "--config.checkpoint_every_steps=5")
    workdir = tmp_path / "run"
    hosts = Hosts(2, 2, tmp_path, workdir, *arguments("nesterov:smoke", data, *options))
    hosts.wait_for("step    12/40")
    most_bytes = (40, resource.RLIM_INFINITY)
    resource.prlimit(hosts.processes[whom].pid, resource.RLIMIT_FSIZE, most_bytes)
    ended = hosts.end(seconds=150)
    if whom == 1:
        assert ended == [0, 0], hosts.said()
    else:
        assert ended[0] == 70, hosts.said()
        assert ended[1] not in (0, 2, 3, 75, -signal.SIGKILL), hosts.said()
        hosts = Hosts(2, 2, tmp_path, workdir, *arguments("nesterov:smoke", data, *options))
        assert hosts.end() == [0, 0], hosts.said()
    assert (workdir / "curve.csv").read_bytes() == (undisturbed / "curve.csv").read_bytes()


@pytest.mark.slow
def test_what_only_one_host_can_know_ends_all_with_one_line(data, tmp_path):
    def end(each, workdir):
        hosts = Hosts(2, 1, tmp_path, workdir, *arguments("nesterov:smoke", data), each=each)
        assert hosts.end() == [2, 2], hosts.said()
        said = [log.read_text().splitlines() for log in hosts.logs]
        said = [[line for line in lines if "[Gloo]" not in line] for lines in said]
        assert [len(lines) for lines in said] == [1, 1], hosts.said()
        return said[0][0], said[1][0]

    seeds = end(lambda host: [f"--config.seed={host}"], tmp_path / "a")
    assert "config.seed=0 on host 0, 1 on host 1: must be equal on all hosts" in seeds[0]
    assert seeds[0] == seeds[1]
    assert not (tmp_path / "a").exists()

    (tmp_path / "thesis.tex").write_text("mine")
    foreign = end(lambda host: (), tmp_path)
    assert all("no run of this program" in line for line in foreign)
    assert "(host 0 of 2)" in foreign[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--num_processes=2"], "--coordinator_address: missing"),
        (["--distributed", "--num_processes=2"], "--distributed: finds the hosts by itself"),
        (["--coordinator_address=here", "--num_processes=2", "--process_id=0"], "HOST:PORT"),
        (["--coordinator_address=a:1", "--num_processes=2", "--process_id=2"], "--process_id=2"),
        (["--distributed"], "--distributed: found no cluster"),
    ],
)
def test_flags_that_do_not_join_anything_are_explained(given, words, monkeypatch):
    flag_values = distributed.flags.FlagValues()
    distributed.define_flags(flag_values)
    flag_values(["main.py", *given])

    def initialize(*args, **options):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr("jax.distributed.initialize", initialize)
    with pytest.raises(ValueError, match=words):
        distributed.join(flag_values)
