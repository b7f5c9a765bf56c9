"""README's table of the studies, from reports whose numbers are known."""

import pytest

import report
from reporting import claims
from tests.reporting.run_folders import write_run


def ladder(out, recipe, accuracies, **options):
    for budget, accuracy in accuracies.items():
        for seed in range(3):
            write_run(
                out, recipe, seed, (round(1000 * accuracy),), eval_every_steps=budget,
                target=0.93, **options,
            )  # fmt: skip


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    for name in ("one_budget", "study"):
        (tmp_path / "results" / name).mkdir(parents=True)
    return tmp_path / "results"


def make(folder, runs):
    report.make_report([runs], folder / "report.json")


def test_what_the_studies_found(results, tmp_path):
    runs = tmp_path / "runs"
    ladder(runs, "lars:digits", {50: 0.92, 60: 0.94})
    ladder(runs, "nesterov:digits", {50: 0.90, 60: 0.91})
    ladder(runs, "shampoo:digits", {50: 0.93, 60: 0.95})
    make(results / "study", runs)
    ladder(tmp_path / "single", "sm3:digits", {50: 0.99})
    make(results / "one_budget", tmp_path / "single")
    assert claims.studies().splitlines() == [
        "| steps to a median of | `lars` | `nesterov` | `shampoo` |",
        "|---|---|---|---|",
        "| [93 % on digits](results/study/README.md) | 55.0 | over 60 | 50 or fewer |",
    ]


def test_the_ladder_is_the_longest_and_the_batches_are_counted(results, tmp_path):
    runs = tmp_path / "runs"
    for batch, gain in ((640, 0.0), (1280, 0.04)):
        for recipe, base in (("shampoo:digits", 0.92), ("lars:digits", 0.9)):
            for seed in range(8):
                accuracy = base + 0.001 * seed + (gain if recipe[0] == "s" else 0.0)
                steps = 60 * 640 // batch
                write_run(
                    runs / str(batch), recipe, seed, (round(1000 * accuracy),), target=0.93,
                    eval_every_steps=steps, record={"global_batch_size": batch},
                )  # fmt: skip
    ladder(runs, "lars:digits", {50: 0.92, 70: 0.94})
    ladder(runs / "1280", "lars:digits", {35: 0.95}, record={"global_batch_size": 1280})
    make(results / "study", runs)
    *_, row, blank, answer = claims.studies().splitlines()
    assert row == "| [93 % on digits](results/study/README.md) | 67.3 |"  # of 50, 60 and 70 steps
    assert not blank
    assert answer == (
        "Does Shampoo's advantage grow with the batch? From 640 to 1,280, over 1 comparisons: "
        "grows in 1 ([all of them](results/study/README.md))."
    )
