"""Real processes of one run on this machine, each with some simulated devices."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parent.parent
NETWORK = (  # the least that trains
    "--config.model.stage_sizes=(1,)",
    "--config.model.width=2",
    "--config.global_batch_size=64",
    "--config.model.bn_span=64",
    "--config.total_steps=5",
    "--config.schedule.warmup_steps=2",
    "--config.eval_every_steps=2",
    "--config.log_every_steps=1",
)


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


class Hosts:
    """The processes of one run, their standard output and error in FOLDER/host_I.log."""

    def __init__(self, n_hosts, n_devices, folder, workdir, *arguments, each=lambda host: ()):
        port = free_port()
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "NPROC": "16",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={n_devices} "
            "--xla_backend_optimization_level=1",
        }
        self.logs = [pathlib.Path(folder) / f"host_{i}.log" for i in range(n_hosts)]
        self.processes = []
        for i, log in enumerate(self.logs):
            joining = (
                f"--coordinator_address=localhost:{port}",
                f"--num_processes={n_hosts}",
                f"--process_id={i}",
                "--heartbeat_seconds=60",  # a busy machine starves shorter ones
            )
            command = [sys.executable, "main.py", f"--workdir={workdir}", *arguments, *joining]
            with log.open("w") as out:
                self.processes.append(
                    subprocess.Popen(
                        [*command, *each(i)],
                        cwd=ROOT,
                        env=environment,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        preexec_fn=restore_sigint,
                    )
                )

    def wait_for(self, words, seconds=300):
        """Until the first host's log has the words."""
        until = time.monotonic() + seconds
        while words not in self.logs[0].read_text():
            assert time.monotonic() < until, self.said()
            assert any(p.poll() is None for p in self.processes), self.said()
            time.sleep(0.05)

    def end(self, seconds=300):
        """The exit statuses; after jax.distributed.initialize only SIGKILL ends what hangs."""
        until = time.monotonic() + seconds
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))
        for process in self.processes:
            process.kill()
            process.wait()
        return [process.returncode for process in self.processes]

    def said(self):
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.logs)


def restore_sigint():
    """A shell without job control starts its background jobs deaf to it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
