"""Eight simulated devices for every test; must run before jax is imported."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 "
    "--xla_backend_optimization_level=1"  # the suite compiles much and computes little
)
os.environ["NPROC"] = "16"  # XLA's thread pool: fewer threads than devices can deadlock
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # else TensorFlow speaks on its import, on some CPUs


def pytest_addoption(parser):
    parser.addoption(
        "--optimizer",
        action="append",
        default=[],
        help="package.module:factory of an optax optimizer to put through the contract test",
    )
