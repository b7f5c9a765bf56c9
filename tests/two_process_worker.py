"""One of two processes with four devices each: three Shampoo steps on its half of the batches.

python tests/two_process_worker.py INDEX PORT OUT
"""

import logging
import os
import pathlib
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["NPROC"] = "16"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=1"
)
here = pathlib.Path(__file__).parent
sys.path[:0] = [str(here), str(here.parent)]

import jax  # noqa: E402
import numpy as np  # noqa: E402
import test_step  # noqa: E402

import step as steps  # noqa: E402


class Compilations(logging.Handler):
    """Counts those of the train step."""

    n = 0

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self.n += "Finished XLA" in message and f"jit({test_step.TRACED_AS})" in message


def main(index: int, port: int, out: str) -> None:
    jax.distributed.initialize(
        f"localhost:{port}", num_processes=2, process_id=index, heartbeat_timeout_seconds=20
    )
    tx = test_step.make_optimizer("shampoo")
    state = steps.place(test_step.init(tx))
    train_step = steps.over_devices(test_step.make_step(tx))
    counter = Compilations()
    logging.getLogger("jax").addHandler(counter)
    with jax.log_compiles():
        for s in range(3):
            batch = test_step.make_batch(s, n_devices=8)
            mine = {k: v[4 * index : 4 * index + 4] for k, v in batch.items()}
            state, metrics = train_step(state, mine)
    params = jax.device_get(state.params)
    flat = np.concatenate([x.ravel() for x in jax.tree.leaves(params)])
    np.savez(out, params=flat, loss=metrics["loss"], compilations=counter.n)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
