"""The generated tables of README.md, from reports with known numbers."""

import pytest

from reporting import archive, readme
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
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    for name in ("one_budget", "study"):
        (tmp_path / "results" / name).mkdir(parents=True)
    return tmp_path / "results"


def make(folder, runs):
    archive.write(runs, folder)


def test_steps_needed_by_study(results, tmp_path):
    runs = tmp_path / "runs"
    ladder(runs, "lars:digits", {50: 0.92, 60: 0.94})
    ladder(runs, "nesterov:digits", {50: 0.90, 60: 0.91})
    ladder(runs, "shampoo:digits", {50: 0.93, 60: 0.95})
    make(results / "study", runs)
    ladder(tmp_path / "single", "sm3:digits", {50: 0.99})
    make(results / "one_budget", tmp_path / "single")
    assert readme.studies().splitlines() == [
        "| steps to a median of [95 %] | `lars` | `nesterov` | `shampoo` |",
        "|---|---|---|---|",
        "| [93 % on digits, n = 3](results/study/README.md) | 55.0 [55.0, 55.0] "
        "| over 60 | 50 or fewer |",
        "",
        "A difference is shown for 0 of 3 pairs on digits. The linked pages list them.",
    ]


def test_the_longest_ladder_is_shown_and_batch_verdicts_are_counted(results, tmp_path):
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
    _, _, row, _, shown, blank, *answer = readme.studies().splitlines()
    # LARS shares only one of its four budgets with Shampoo, so no ladders are compared.
    assert shown.startswith("A difference is shown for ")
    assert (
        row == "| [93 % on digits, n = 3 to 8](results/study/README.md) | 67.3 [67.1, 67.3] |"
    )  # 50, 60 and 70 steps
    assert not blank
    assert answer == [
        "Change of Shampoo's advantage in final accuracy from batch 640 to 1,280, at each number "
        "of examples ([accuracies and re-tuned hyperparameters](results/study/README.md)):",
        "",
        "| advantage over | grows |",
        "|---|---|",
        "| `lars` | 1 of 1 |",
    ]


def test_one_batch_size_is_shown_if_several_have_equally_long_ladders(results, tmp_path):
    """Otherwise a column would mix batch sizes."""
    for batch, accuracy in ((640, 0.0), (1280, 0.015)):
        for recipe in ("lars:digits", "sm3:digits"):
            ladder(tmp_path / "runs" / str(batch), recipe, {50: 0.92 + accuracy, 60: 0.94},
                   record={"global_batch_size": batch})  # fmt: skip
    make(results / "study", tmp_path / "runs")
    *_, row, _, _ = readme.studies().splitlines()
    cells = "55.0 [55.0, 55.0] | 55.0 [55.0, 55.0]"
    assert row == f"| [93 % on digits, n = 3](results/study/README.md) | {cells} |"


def test_differences_are_counted_among_the_ladders_that_are_shown(monkeypatch):
    ladders = [
        {"recipe": f"{name}:x", "dataset": "x", "global_batch_size": 64, "target_accuracy": 0.9,
         "budgets": [5, 6], "n": [3, 3], "smallest_budget": 5, "at_the_smallest": True}
        for name in ("a", "b", "c")
    ]  # fmt: skip
    verdicts = ["fewer steps", "more steps", "no difference shown with n = 5"]
    frame = {"dataset": "x", "measure": "ladder", "global_batch_size": 64}
    tests = [frame | {"verdict": verdict} for verdict in verdicts]
    tests += [tests[0] | {"global_batch_size": 128}, tests[0] | {"measure": "A"}]
    report = {"ladders": ladders, "comparisons": tests, "batches": []}
    monkeypatch.setattr(readme, "reports", lambda: {"study": report})
    assert "A difference is shown for 2 of 3 pairs on x." in readme.studies()


BEGIN, END = readme.markers("values")
PAGE = f"one\n{BEGIN}\nold\n{END}\ntwo\n"


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """One page with one table, whose content is "new"."""

    def values():
        return "new"

    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "TABLES", {"page.md": (values,)})
    return tmp_path


def test_a_page_keeps_all_text_around_its_markers(pages):
    (pages / "page.md").write_text(PAGE)
    assert readme.main() == 0
    assert (pages / "page.md").read_text() == PAGE.replace("old", "new")


@pytest.mark.parametrize(
    "damaged",
    [
        PAGE.replace(END, ""),
        PAGE.replace(BEGIN, ""),
        PAGE + END,
        PAGE + BEGIN,
        f"{END} {BEGIN}",
    ],
)
def test_a_page_with_damaged_markers_is_not_changed(damaged, pages, capsys):
    (pages / "page.md").write_text(damaged)
    assert readme.main() == 2
    assert (pages / "page.md").read_text() == damaged
    assert capsys.readouterr().err.startswith(f"error: page.md: needs {BEGIN} and")
