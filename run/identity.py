"""What a result depends on besides its config: code, versions, device, flags."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Mapping
from typing import Any

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "tensorflow-cpu",
    "tensorflow-datasets",
    "numpy",
)
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_ENABLE_X64")


@dataclasses.dataclass(frozen=True)
class Segment:
    """What one process of a run was, from `first_step` on. A resumed run has several segments.

    Attributes:
      config_hash: SHA-256 of the fields that may not change on resume, 16 digits.
      data_fingerprint: of the data set on disk; None if unknown.
      flags: environment variables that change numbers.
    """

    first_step: int
    config_hash: str
    seed: int
    data_fingerprint: str | None
    code: str
    versions: Mapping[str, str]
    device: Mapping[str, Any]
    processor: str
    flags: Mapping[str, str]


def segment(first_step: int, config: Mapping[str, Any], device: Mapping[str, Any]) -> Segment:
    """Returns the segment that this process begins.

    Args:
      config: JSON values, without the fields that may change on resume.
      device: as in run.json.
    """
    text = json.dumps(config, sort_keys=True)
    return Segment(
        first_step=first_step,
        config_hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        seed=config["seed"],
        data_fingerprint=None,
        code=git_commit(),
        versions=versions(),
        device=device,
        processor=platform.processor() or platform.machine(),
        flags={name: os.environ[name] for name in FLAGS if name in os.environ},
    )


def device(n_cores: int) -> dict[str, Any]:
    """Returns kind and count of the devices, hosts, and the cores of this host."""
    import jax  # imported late: sweeps set its environment first

    devices = jax.devices()
    return {
        "kind": devices[0].device_kind,
        "count": len(devices),
        "hosts": jax.process_count(),
        "cores": n_cores,
    }


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a result can depend on."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in PACKAGES
    }


@functools.cache
def git_commit() -> str:
    """Returns the commit of this code; "unknown" without git.

    If Python files differ from the commit, untracked ones included, `-dirty-` and a digest of the
    differences follow, so that two states of an unfinished optimizer are distinguished.
    """
    folder = pathlib.Path(__file__).parent.parent

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ("git", *arguments), cwd=folder, capture_output=True, check=True
        ).stdout

    try:
        commit = git("rev-parse", "HEAD").decode().strip()
        changes = git("diff", "HEAD", "--", "*.py")
        new = git("ls-files", "--others", "--exclude-standard", "-z", "--", "*.py").split(b"\0")
        for name in sorted(filter(None, new)):
            changes += name + (folder / os.fsdecode(name)).read_bytes()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else commit
