"""A Cloud TPU pod: every worker gets this tree, sets itself up and runs the same command."""

import shlex
from collections.abc import Sequence

BUNDLE = "harness.bundle"


def script(name: str, zone: str, folder: str, command: Sequence[str]) -> str:
    """A shell script that copies the committed tree to all workers and runs `command` there.

    The tree goes as a git bundle, so that every run still knows its commit. The exit status is
    that of the command; 75 (preempted) may be run again as it is.
    """
    where = f"--zone={shlex.quote(zone)} --worker=all"
    there = shlex.quote(folder)
    remote = (
        f"git init --quiet {there} && cd {there} && git fetch --quiet ~/{BUNDLE} HEAD && "
        f"git checkout --quiet --force FETCH_HEAD && make setup EXTRA=tpu && {shlex.join(command)}"
    )
    tpu = "gcloud compute tpus tpu-vm"
    return f"""\
#!/bin/bash
# Runs on every worker of the TPU: {shlex.join(command)}
set -euo pipefail
bundle=$(mktemp -d)/{BUNDLE}
git bundle create --quiet "$bundle" HEAD
{tpu} scp "$bundle" {shlex.quote(name)}:{BUNDLE} {where}
{tpu} ssh {shlex.quote(name)} {where} --command={shlex.quote(remote)}
"""
