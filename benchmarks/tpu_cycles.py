"""One optimizer alone, compiled for a pod without a pod: `python -m benchmarks.tpu_cycles shampoo`.

Prints JSON of what `pod.cycles` reads in the compiled program. `run` starts it in a process of its
own, in which libtpu finds what it needs.
"""

import importlib.util
import json
import subprocess
import sys
from typing import Any

from pod import compile as pod_compile
from pod import cycles, topologies

TOPOLOGY = topologies.parse("v3:16x8")  # 256 cores


def available() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def run(name: str) -> dict[str, Any]:
    """Returns the estimate for an optimizer on ResNet-50; CalledProcessError if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tpu_cycles", name],
        env=pod_compile.environment(TOPOLOGY),
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def estimate(name: str) -> dict[str, Any]:
    """Compiles the optimizer of a label of `update_cost.HYPERPARAMETERS`."""
    import jax
    import jax.numpy as jnp

    from benchmarks import shapes, update_cost
    from optim import sharding

    n = TOPOLOGY.n_devices
    tx = update_cost.optimizer(name, total_steps=1729)
    params = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, jnp.float32),
        shapes.resnet50(),
        is_leaf=update_cost.is_shape,
    )
    state, sharded = jax.eval_shape(lambda w: sharding.split(tx.init(w), n), params)
    step = update_cost.over_devices(tx, pod_compile.topology_devices(TOPOLOGY))
    lowered = step.lower(state, sharded, params, params, jax.ShapeDtypeStruct((n,), jnp.float32))
    return cycles.estimate(lowered.compile().as_text(), TOPOLOGY.generation)


if __name__ == "__main__":
    json.dump(estimate(sys.argv[1]), sys.stdout)
