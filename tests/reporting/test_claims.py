"""README's table of the studies, from reports whose numbers are known."""

from functools import partial

import pytest

from reporting import archive, claims
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
    archive.write(runs, folder)


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
        "",
        "Differences shown, of all pairs: 0 of 3 on digits; the pages name them.",
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
    *_, row, _, shown, blank, answer = claims.studies().splitlines()
    # LARS's four budgets share but one with Shampoo's: no ladder is compared.
    assert shown.startswith("Differences shown, of all pairs: ")
    assert row == "| [93 % on digits](results/study/README.md) | 67.3 |"  # of 50, 60 and 70 steps
    assert not blank
    assert answer == (
        "Does Shampoo's advantage grow with the batch, from 640 to 1,280? Over `lars` it grows in "
        "1 of 1 ([all accuracies, and what was tuned again](results/study/README.md))."
    )


def test_of_batch_sizes_with_ladders_as_long_one_is_shown(results, tmp_path):
    """Else a column would mix them."""
    for batch, accuracy in ((640, 0.0), (1280, 0.015)):
        for recipe in ("lars:digits", "sm3:digits"):
            ladder(tmp_path / "runs" / str(batch), recipe, {50: 0.92 + accuracy, 60: 0.94},
                   record={"global_batch_size": batch})  # fmt: skip
    make(results / "study", tmp_path / "runs")
    *_, row, _, _ = claims.studies().splitlines()
    assert row == "| [93 % on digits](results/study/README.md) | 55.0 | 55.0 |"


def test_differences_are_counted_among_the_ladders_that_are_shown(monkeypatch):
    ladders = [
        {"recipe": f"{name}:x", "dataset": "x", "global_batch_size": 64, "target_accuracy": 0.9,
         "budgets": [5, 6], "smallest_budget": 5, "at_the_smallest": True}
        for name in ("a", "b", "c")
    ]  # fmt: skip
    verdicts = ["fewer steps", "more steps", "no difference shown with n = 5"]
    frame = {"dataset": "x", "measure": "ladder", "global_batch_size": 64}
    tests = [frame | {"verdict": verdict} for verdict in verdicts]
    tests += [tests[0] | {"global_batch_size": 128}, tests[0] | {"measure": "A"}]
    report_made = {"ladders": ladders, "comparisons": tests, "batches": []}
    monkeypatch.setattr(claims, "reports", lambda: {"study": report_made})
    assert "of all pairs: 2 of 3 on x; the pages name them." in claims.studies()


PAGE = f"one\n{claims.BEGIN}\nold\n{claims.END}\ntwo\n"


def test_a_page_keeps_all_around_its_markers():
    found = claims.replaced(PAGE, claims.BEGIN, claims.END, "new")
    assert found == PAGE.replace("old", "new")


@pytest.mark.parametrize(
    "damaged",
    [
        PAGE.replace(claims.END, ""),
        PAGE.replace(claims.BEGIN, ""),
        PAGE + claims.END,
        PAGE + claims.BEGIN,
        f"{claims.END} {claims.BEGIN}",
    ],
)
def test_a_page_whose_markers_are_damaged_is_left_as_it_is(damaged, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(damaged)
    inserted = partial(claims.replaced, begin=claims.BEGIN, end=claims.END, content="new")
    assert claims.write(page, inserted) == 2
    assert page.read_text() == damaged
    assert capsys.readouterr().err.startswith(f"error: page.md: needs {claims.BEGIN} and")
