"""Runs one cell of each committed study again: its median is in the committed interval."""

import subprocess
import sys

import pytest

from configs import command_line
from reporting import collect, document
from tests.processes import ROOT


def cheapest(rows):
    """The row with the fewest steps at its recipe's own batch size, of one quick to compile."""
    quick = [row for row in rows if row["recipe"].startswith(("nesterov", "lars"))]
    own = {row["recipe"]: command_line.load(row["recipe"]).global_batch_size for row in quick}
    ladder = [row for row in quick if row["global_batch_size"] == own[row["recipe"]]]
    return min(ladder, key=lambda row: (row["total_steps"], row["n"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "fashion"])
def test_one_cell_run_again_is_in_the_committed_interval(name, tmp_path):
    committed = ROOT / "results" / name
    row = cheapest(document.build(*collect.collect([committed]))[0]["rows"])
    data = ROOT / "data" / row["dataset"]
    if row["dataset"] == "fashion_mnist" and not data.exists():
        pytest.skip(f"{row['dataset']} is not prepared: see docs/data.md")
    command = [
        sys.executable, "sweep.py", f"--recipes={row['recipe']}",
        f"--tuned={committed / 'trials.json'}", f"--budgets={row['total_steps']}",
        f"--seeds={','.join(map(str, row['seeds']))}", f"--out={tmp_path}", "--workers=2",
    ]  # fmt: skip
    subprocess.run(command, cwd=ROOT, check=True)
    [again] = document.build(*collect.collect([tmp_path]))[0]["rows"]
    assert again["seeds"] == row["seeds"]
    lo, hi = row["final_accuracy"]["ci95"]
    assert lo <= again["final_accuracy"]["median"] <= hi
