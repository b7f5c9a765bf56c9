"""The words of the verdict for known cases, through the command's own path."""

import json

import numpy as np
import pytest
from run_folders import write_run

from reporting import collect, document
from reporting.verdict import claim_sentence

LATE, EARLY = (500, 700, 900, 972, 980), (500, 700, 971, 976, 985)


def report_on(tmp_path):
    runs, problems = collect.collect([tmp_path])
    return document.build(runs, problems)[0]


def comparison(tmp_path, measure="A"):
    (test,) = [t for t in report_on(tmp_path)["comparisons"] if t["measure"] == measure]
    return test


def write_pair(tmp_path, a, b, n, **settings):
    for seed in range(n):
        write_run(tmp_path, "lars:digits", seed, a, **settings)
        write_run(tmp_path, "shampoo:digits", seed, b)


@pytest.mark.parametrize("n", [5, 10])
def test_a_difference_in_every_seed_is_shown(n, tmp_path):
    write_pair(tmp_path, LATE, EARLY, n)
    test = comparison(tmp_path)
    assert test["verdict"] == "more steps"  # lars against shampoo: a is the first in the table
    assert test["ratio"] == pytest.approx(64 / 48)
    assert test["ci95"] == pytest.approx([64 / 48, 64 / 48])
    assert test["sentence"].startswith("shampoo:digits needs fewer steps than lars:digits")
    # All five late ones after all five early ones: 2 of the 252 splits; 2 of the 2^10 patterns.
    assert test["p_value"] == pytest.approx(2 / 252 if n == 5 else 2 / 1024)


def test_runs_without_curves_are_compared_by_what_run_json_says(tmp_path):
    write_pair(tmp_path, LATE, EARLY, 5)
    for path in tmp_path.rglob("curve.csv"):
        path.unlink()
    test = comparison(tmp_path)
    assert (test["verdict"], test["p_value"]) == ("more steps", pytest.approx(2 / 252))
    assert all("no curve.csv" in row["flags"] for row in report_on(tmp_path)["rows"])


def test_equal_runs_show_no_difference(tmp_path):
    write_pair(tmp_path, LATE, LATE, 10)
    test = comparison(tmp_path)
    assert test["verdict"] == "no difference shown with n = 10"
    assert test["p_value"] == 1.0
    assert comparison(tmp_path, "B")["verdict"] == "no difference shown with n = 10"


def test_three_seeds_can_show_nothing_and_the_verdict_says_so(tmp_path):
    write_pair(tmp_path, LATE, EARLY, 3)
    assert (
        comparison(tmp_path)["verdict"]
        == "no difference shown with n = 3: too few seeds to show any"
    )


def test_another_batch_size_is_not_compared(tmp_path):
    for seed in range(5):
        write_run(tmp_path, "lars:digits", seed, LATE, record={"global_batch_size": 320})
        write_run(tmp_path, "shampoo:digits", seed, EARLY)
    for measure in "AB":
        test = comparison(tmp_path, measure)
        assert test["verdict"] == "not comparable: other batch size (320 and 640)"
        assert test["ratio"] is test["p_value"] is None


def test_other_budgets_compare_by_a_and_not_by_b(tmp_path):
    """The published comparison itself: 2512 steps against 1729."""
    for seed in range(5):
        write_run(tmp_path, "lars:digits", seed, (*LATE[:4], 973, 980))
        write_run(tmp_path, "shampoo:digits", seed, EARLY)
    assert comparison(tmp_path)["verdict"] == "more steps"
    assert comparison(tmp_path, "B")["verdict"] == "not comparable: other budget (96, 80)"


def test_runs_beyond_the_shorter_budget_count_as_not_reached_there(tmp_path):
    """a reaches the target only after b's budget has ended; b never does: nothing is shown."""
    for seed in range(5):
        write_run(tmp_path, "lars:digits", seed, (500, 600, 700, 800, 960, 972))
        write_run(tmp_path, "shampoo:digits", seed, (500, 600, 700, 800, 960))
    test = comparison(tmp_path)
    assert test["verdict"] == "no difference shown with n = 5"
    assert test["ratio"] is None


def test_a_median_beyond_the_budget_bounds_the_ratio(tmp_path):
    write_pair(tmp_path, (500, 700, 900, 940, 960), EARLY, 5)
    test = comparison(tmp_path)
    assert test["verdict"] == "more steps"
    assert (test["ratio"], test["ratio_above"]) == (None, pytest.approx(80 / 48))
    assert "shampoo:digits needs fewer steps" in test["sentence"]
    assert "ratio of steps below 0.600" in test["sentence"]


def test_runs_that_were_never_evaluated_show_nothing(tmp_path):
    for seed in range(5):
        write_run(tmp_path, "lars:digits", seed, EARLY)
        folder = write_run(tmp_path, "shampoo:digits", seed, (500,) * 5, status="aborted")
        (folder / "curve.csv").write_text("step,n_correct,n_seen,accuracy,loss\n")
    test = comparison(tmp_path)
    assert test["verdict"] == "no difference shown with n = 5"
    assert (test["ratio"], test.get("ratio_below")) == (None, None)


def test_diverged_seeds_stay_in_n_and_count_against(tmp_path):
    for seed in range(10):
        diverged = seed < 6
        write_run(
            tmp_path, "lars:digits", seed, (100,) if diverged else LATE,
            status="diverged" if diverged else "done", record={"total_steps": 80},
            config={"total_steps": 80},
        )  # fmt: skip
        write_run(tmp_path, "shampoo:digits", seed, LATE)
    lars, _ = report_on(tmp_path)["rows"]
    assert (lars["n"], lars["n_reached"], lars["n_diverged"]) == (10, 4, 6)
    assert lars["steps_to_target"]["median"] is None  # 4 of 10 reached it
    assert lars["final_accuracy"]["median"] is None  # the median run diverged
    assert comparison(tmp_path, "B")["verdict"] == "lower final accuracy"
    assert comparison(tmp_path)["verdict"] == "more steps"


def test_no_difference_is_shown_where_ranks_and_medians_contradict_each_other(tmp_path):
    """54 % reach the target late, 46 % early: by ranks the early ones win, by the median not."""
    for seed in range(50):
        late = (971, 980) if seed < 27 else (900, 960)
        early = (971 if seed < 23 else 500, *[500] * 8, 900, 960)
        write_run(tmp_path, "lars:digits", seed, (*[500] * 9, *late))
        write_run(tmp_path, "shampoo:digits", seed, early)
    test = comparison(tmp_path)
    assert test["p_value"] < 0.05
    assert test["verdict"] == "no difference shown with n = 50"
    assert "ratio of steps below 0.909" in test["sentence"]  # 160 steps against more than 176


def test_no_accuracy_is_called_higher_whose_median_run_diverged(tmp_path):
    """24 seeds end high, 26 diverge, against 28 that end low: of the pairs the first win more."""
    for seed in range(50):
        for recipe, accuracy, n in (("lars", 500, 28), ("shampoo", 900, 24)):
            status = "done" if seed < n else "diverged"
            write_run(tmp_path, f"{recipe}:digits", seed, (accuracy,), status=status)
    test = comparison(tmp_path, "B")
    assert test["p_value"] < 0.05
    assert test["verdict"] == "no difference shown with n = 50"


@pytest.mark.parametrize(
    ("lars", "shampoo", "bound"),
    [
        (200, 80, 80 / 96),  # lars does not reach the target with the largest budget
        (40, 30, 32 / (32 + 16 * 13 / 24)),  # shampoo reaches it with the smallest already
    ],
)
def test_beyond_an_end_of_the_ladder_the_ratio_is_a_bound(lars, shampoo, bound, tmp_path):
    ladder(tmp_path, "lars:digits", lars, 10)
    ladder(tmp_path, "shampoo:digits", shampoo, 10)
    (test,) = report_on(tmp_path)["comparisons"]
    assert test["ratio_above"] == pytest.approx(1 / bound)
    assert f"by its budget ladder (ratio of steps below {bound:.3f}; n = 10, p" in test["sentence"]


def test_several_comparisons_are_corrected_for_their_number(tmp_path):
    """Four recipes of five seeds: p = 2/252 in six tests is 6 * 2/252 = 0.048; in ten, 0.079."""
    for seed in range(5):
        for recipe, counts in (("lars", LATE), ("nesterov", EARLY), ("sm3", EARLY), ("x", EARLY)):
            write_run(tmp_path, f"{recipe}:digits", seed, counts)
    shown = [t for t in report_on(tmp_path)["comparisons"] if t["verdict"] == "more steps"]
    assert len(shown) == 3
    assert all(t["p_adjusted"] == pytest.approx(12 / 252) for t in shown)
    for seed in range(5):
        write_run(tmp_path, "y:digits", seed, EARLY)
    told = {t["verdict"] for t in report_on(tmp_path)["comparisons"] if t["measure"] == "A"}
    assert told == {"no difference shown with n = 5: too few seeds to show any in 10 comparisons"}


def ladder(tmp_path, recipe, steps_needed, n, noise=0.0):
    """Final accuracies rise with log steps and pass 0.97 at `steps_needed`."""
    rng = np.random.default_rng(len(recipe))
    for budget in (32, 48, 64, 80, 96):
        for seed in range(n):
            final = min(
                970 + round(60 * np.log(budget / steps_needed) + noise * rng.normal()), 1000
            )
            write_run(tmp_path, recipe, seed, (300, final), eval_every_steps=budget // 2)


def test_ladders_drive_the_verdict_where_there_are_some(tmp_path):
    ladder(tmp_path, "lars:digits", 80, 10)
    ladder(tmp_path, "shampoo:digits", 56, 10)
    found = report_on(tmp_path)
    json.dumps(found, allow_nan=False)
    (test,) = found["comparisons"]
    assert (test["measure"], test["verdict"]) == ("ladder", "more steps")
    lars, shampoo = found["ladders"]
    assert (lars["smallest_budget"], shampoo["smallest_budget"]) == (80, 64)
    # Between 48 (961 of 1000) and 64 (978) the line passes 970 at 48 + 16 * 9 / 17.
    assert shampoo["interpolated"] == pytest.approx(48 + 16 * 9 / 17)
    assert test["ratio"] == pytest.approx(80 / (48 + 16 * 9 / 17))


def test_ladders_that_never_reach_the_target_say_so(tmp_path):
    ladder(tmp_path, "lars:digits", 200, 5)
    ladder(tmp_path, "shampoo:digits", 200, 5)
    found = report_on(tmp_path)
    assert [x["smallest_budget"] for x in found["ladders"]] == [None, None]
    assert found["comparisons"][0]["verdict"] == "no difference shown with n = 5"


def accuracies_50(above, at, below):
    counts = [972] * above + [970] * at + [968] * below
    return [(500, c) for c in counts]


@pytest.mark.parametrize(
    ("above", "at", "below", "reaches"),
    [
        (26, 0, 24, True),  # the 25th and 26th best are above: the median is
        (24, 0, 26, False),
        (25, 0, 25, True),  # .968 and .972 average to the target exactly: a tie is reached
        (24, 2, 24, True),  # both middle runs sit at the target
        (20, 6, 24, True),
        (24, 1, 25, False),  # .968 and .970 average below it
    ],
)
def test_the_claim_about_fifty_seeds_is_answered_ties_included(above, at, below, reaches, tmp_path):
    for seed, counts in enumerate(accuracies_50(above, at, below)):
        write_run(tmp_path, "shampoo:digits", seed, counts)
    (row,) = report_on(tmp_path)["rows"]
    assert row["n"] == 50
    assert row["claim"]["reaches_target"] is reaches


@pytest.mark.parametrize(
    ("low", "high", "reaches"),
    [
        (37949, 37951, True),  # average to 37,950 of 50,000: exactly 75.9 %
        (37948, 37951, False),
        (37950, 37950, True),
        (37949, 37950, False),
    ],
)
def test_the_published_claim_of_759_at_1729_steps(low, high, reaches, tmp_path):
    """Fifty seeds of 50,000 images each; the 25th and the 26th decide."""
    for seed in range(50):
        count = (low if seed < 25 else high) + (0 if 24 <= seed <= 25 else 40 * (seed - 25))
        write_run(
            tmp_path, "shampoo:readme", seed, (count,), eval_every_steps=1729, target=0.759,
            n_eval=50_000, record={"dataset": "imagenet2012", "global_batch_size": 32_768},
        )  # fmt: skip
    (row,) = report_on(tmp_path)["rows"]
    assert row["claim"]["reaches_target"] is reaches
    assert row["published"]["steps"] == row["total_steps"] == 1729


@pytest.mark.parametrize(
    "other", [{"dataset": "digits"}, {"global_batch_size": 65_536}, {"optimizer": "lars"}]
)
def test_a_published_value_stands_beside_its_own_task_alone(other, tmp_path):
    task = {"dataset": "imagenet2012", "global_batch_size": 32_768}
    write_run(tmp_path, "shampoo:readme", 0, (900,), record=task | other)
    found = report_on(tmp_path)
    assert found["rows"][0]["published"] is None
    assert all(entry["here"] == "not run" for entry in found["published"])


@pytest.mark.parametrize(("spread", "hedged"), [(1, False), (4, True)])
def test_a_claim_near_the_target_is_hedged_by_its_interval(spread, hedged, tmp_path):
    """Medians of .972, quartiles one or four examples away: only the second spans the target."""
    for seed in range(10):
        write_run(tmp_path, "shampoo:digits", seed, (500, 972 + spread * (seed % 3 - 1)))
    (row,) = report_on(tmp_path)["rows"]
    sentence = claim_sentence(row)
    assert sentence.startswith("shampoo:digits reaches 0.97 in 32 steps")
    assert ("its 95 % interval includes the target" in sentence) is hedged


def test_a_claim_is_hedged_where_the_interval_ends_at_diverged_runs(tmp_path):
    for seed in range(10):
        status = "done" if seed < 6 else "diverged"
        write_run(tmp_path, "shampoo:digits", seed, (500, 975), status=status)
    (row,) = report_on(tmp_path)["rows"]
    assert row["final_accuracy"]["ci95"] == [None, 0.975]
    assert claim_sentence(row).endswith("but its 95 % interval includes the target")


@pytest.mark.parametrize(
    ("above", "below", "aborted", "reaches"),
    [
        (6, 0, 4, True),  # whatever the aborted ones gave, six of ten are above
        (5, 0, 5, None),  # three of them below .965 would pull the median under .97
        (0, 6, 4, False),
        (3, 0, 7, None),
        (0, 0, 3, None),
    ],
)
def test_the_claim_holds_whatever_the_aborted_runs_would_have_given(
    above, below, aborted, reaches, tmp_path
):
    for seed, count in enumerate([975] * above + [960] * below + [500] * aborted):
        status = "done" if seed < above + below else "aborted"
        write_run(tmp_path, "shampoo:digits", seed, (400, count), status=status)
    (row,) = report_on(tmp_path)["rows"]
    assert row["claim"]["reaches_target"] is reaches


def test_a_budget_whose_good_runs_alone_ended_is_not_the_smallest_that_reaches(tmp_path):
    for budget, n_done in ((32, 4), (64, 10)):
        for seed in range(10):
            status = "done" if seed < n_done else "aborted"
            counts = (300, 975 if seed < n_done else 400)
            steps = budget // 2
            write_run(
                tmp_path, "shampoo:digits", seed, counts, eval_every_steps=steps, status=status
            )
    (ladder,) = report_on(tmp_path)["ladders"]
    assert (ladder["smallest_budget"], ladder["interpolated"]) == (64, 64.0)


def test_claims_of_one_recipe_with_other_settings_are_told_apart(tmp_path):
    for rate, count in ((1.0, 975), (2.0, 960)):
        config = {"schedule": {"peak_learning_rate": rate}}
        write_run(tmp_path / str(rate), "shampoo:digits", 0, (400, count), config=config)
    assert [claim_sentence(row).partition(" 0.97")[0] for row in report_on(tmp_path)["rows"]] == [
        "shampoo:digits [peak_learning_rate=1.0] reaches",
        "shampoo:digits [peak_learning_rate=2.0] does not reach",
    ]


def test_the_power_of_a_row_follows_from_its_spread(tmp_path):
    for seed in range(10):
        hit = 2 + seed % 3  # 48, 64, 80 steps
        counts = [500] * hit + [971] * (6 - hit)
        write_run(tmp_path, "lars:digits", seed, counts)
    (row,) = report_on(tmp_path)["rows"]
    steps = np.array([48, 64, 80] * 3 + [48.0])
    assert row["power"]["log_sd"] == pytest.approx(np.std(np.log(steps), ddof=1))
    assert list(row["power"]["seeds"]) == ["5 %", "10 %", "20 %", "31 %"]


def test_a_ladder_is_not_decided_among_the_runs_that_ended_alone(tmp_path):
    """The aborted one may have been the worst; measure B refuses it, too."""
    ladder(tmp_path, "lars:digits", 80, 10)
    ladder(tmp_path, "shampoo:digits", 56, 10)
    (test,) = report_on(tmp_path)["comparisons"]
    assert test["verdict"] == "more steps"
    (file,) = tmp_path.glob("shampoo-digits/steps_0032/seed_0009/run.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"status": "aborted", "final_accuracy": None}))
    curve = file.with_name("curve.csv")
    curve.write_text("\n".join([*curve.read_text().splitlines()[:2], ""]))
    (test,) = report_on(tmp_path)["comparisons"]
    assert test["measure"] == "ladder"
    assert test["verdict"] == "not comparable: not every run ended its budget"


def test_a_ladders_sizes_are_of_all_runs_and_its_test_of_the_seeds_run_at_every_budget(tmp_path):
    """As its own line: five more seeds at the middle budget move the median there."""
    for recipe, shift in (("lars:digits", 0), ("shampoo:digits", 40)):
        for budget, final in ((32, 920), (64, 950), (96, 990)):
            for seed in range(15 if budget == 64 else 5):
                more = 10 if seed >= 5 else 0
                write_run(tmp_path, recipe, seed, (300, min(final + shift + more, 1000)),
                          eval_every_steps=budget // 2)  # fmt: skip
    found = report_on(tmp_path)
    (test,) = found["comparisons"]
    lars, shampoo = found["ladders"]
    assert lars["interpolated"] == pytest.approx(64 + 32 * 10 / 30)  # .960 at 64, not .950
    assert shampoo["interpolated"] == pytest.approx(32 + 32 * 10 / 40)
    assert test["ratio"] == pytest.approx(lars["interpolated"] / shampoo["interpolated"])
    assert test["n"] == [5, 5]
    assert test["p_value"] == pytest.approx(2 / 252)  # of five against five
    assert "n = 5, p = 0.0079, the least that so few seeds can give)" in test["sentence"]


def test_budgets_that_were_run_with_other_settings_are_no_ladder(tmp_path):
    for recipe, momenta in (("lars:digits", (0.5, 0.9)), ("sm3:digits", (0.5, 0.5))):
        for budget, momentum in zip((32, 64), momenta, strict=True):
            for seed in range(5):
                settings = {"optimizer": {"momentum": momentum}}
                settings |= {"schedule": {"warmup_steps": budget / 10}}
                write_run(tmp_path, recipe, seed, (500, 980), eval_every_steps=budget // 2,
                          config=settings)  # fmt: skip
    found = report_on(tmp_path)
    assert [ladder["recipe"] for ladder in found["ladders"]] == ["sm3:digits"]
    (test,) = found["comparisons"]
    assert test["verdict"] == (
        "not comparable: lars:digits had other optimizer.momentum at other budgets"
    )


def test_a_p_that_could_be_smaller_is_not_called_the_least(tmp_path):
    for seed in range(10):
        late = seed == 9
        write_run(tmp_path, "lars:digits", seed, LATE)
        write_run(tmp_path, "sm3:digits", seed, (500, 600, 700, 800, 990) if late else EARLY)
    tests = {test["measure"]: test for test in report_on(tmp_path)["comparisons"]}
    assert tests["A"]["p_value"] > tests["A"]["smallest_p"]
    assert "least" not in tests["A"]["sentence"]


def test_an_end_that_the_runs_do_not_bound_is_open_and_no_ratio_of_zero(tmp_path):
    """Half of one recipe's runs never reach the target: its median may lie anywhere beyond."""
    for seed in range(10):
        write_run(tmp_path, "lars:digits", seed, LATE)
        write_run(tmp_path, "sm3:digits", seed, EARLY if seed < 5 else (500, 600, 700, 800, 900))
    tests = {test["measure"]: test for test in report_on(tmp_path)["comparisons"]}
    assert tests["A"]["ci95"][0] is None
    assert ", 95 % interval open to " in tests["A"]["sentence"]
