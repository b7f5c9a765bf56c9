"""Runs in one file: the report of the archive is that of the folders."""

import json

import log_files
import numpy as np
import pytest
from run_folders import write_run

import report
from reporting import archive, collect


def folders(out):
    for seed in range(5):
        write_run(out / "ladder", "lars:digits", seed, (500, 900, 960 + seed))
        write_run(out / "ladder", "lars:digits", seed, (500, 900, 960, 970 + seed))
        write_run(out / "ladder", "shampoo:digits", seed, (700, 971, 980, 985 + seed))
    write_run(out / "ladder", "shampoo:digits", 9, (700,), status="diverged")
    write_run(out / "tuning", "shampoo:digits", 7, (700,))
    return out


def test_the_archive_gives_the_report_of_the_folders(tmp_path):
    folders(tmp_path / "a")
    (tmp_path / "b").mkdir()
    archive.write(tmp_path / "b" / archive.NAME, tmp_path / "a", without="tuning")
    from_folders, _ = collect.collect([tmp_path / "a" / "ladder"])
    from_archive, problems = collect.collect([tmp_path / "b"])
    assert not problems
    assert len(from_archive) == 16

    def told(run):
        return run.recipe, run.seed, run.total_steps, run.status, run.curve, run.config, run.record

    def order(run):
        return run.recipe, run.total_steps, run.seed

    for a, b in zip(sorted(from_folders, key=order), sorted(from_archive, key=order), strict=True):
        assert told(a) == told(b)
        assert b.path == str(tmp_path / "b" / a.path.removeprefix(f"{tmp_path}/a/"))


@pytest.mark.parametrize("missing", ["curve.csv", "config.json"])
def test_a_run_that_left_less_is_archived_with_what_it_left(missing, tmp_path):
    """As one that was given up before its first evaluation: it stays in n."""
    folder = write_run(tmp_path / "a", counts=(500, 600), status="aborted")
    (folder / missing).unlink()
    write_run(tmp_path / "a", seed=1, counts=(500, 600))
    (tmp_path / "b").mkdir()
    archive.write(tmp_path / "b" / archive.NAME, tmp_path / "a", without="tuning")
    told = []
    for place in ("a", "b"):
        runs, problems = collect.collect([tmp_path / place])
        assert not problems
        told.append(sorted((run.seed, run.status, run.curve, run.flags) for run in runs))
    assert told[0] == told[1]
    assert told[0][0][3] == (f"no {missing}",)


def test_what_all_runs_share_stands_once(tmp_path):
    folders(tmp_path / "a")
    archive.write(tmp_path / "runs.json", tmp_path / "a", without="tuning")
    groups = json.loads((tmp_path / "runs.json").read_text())["groups"]
    (largest,) = [g for g in groups if "ladder/lars:digits/steps_0064/seed_0003" in g["runs"]]
    own = largest["runs"]["ladder/lars:digits/steps_0064/seed_0003"]
    assert own["config"] == {"seed": 3}
    assert set(own["record"]) == {"seed", "final_accuracy", "best_accuracy"}
    assert own["curve"][-1] == "64,973,1000,0.973,0.5"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a: a.pop("format"), "format=None, 1 is known"),
        (lambda a: a["groups"][0].pop("config"), "not an archive of runs (KeyError('config'))"),
        (lambda a: a.update(groups=3), "not an archive of runs"),
        (lambda a: a["groups"][0].update(runs=[1]), "not an archive of runs"),
    ],
)
def test_a_damaged_archive_is_told_as_one_problem(tmp_path, damage, said):
    folders(tmp_path / "a")
    archive.write(tmp_path / "runs.json", tmp_path / "a", without="tuning")
    content = json.loads((tmp_path / "runs.json").read_text())
    damage(content)
    (tmp_path / "runs.json").write_text(json.dumps(content))
    runs, problems = collect.collect([tmp_path / "runs.json"])
    assert not runs
    (problem,) = problems
    assert said in problem.message


def test_a_forged_curve_is_one_problem_and_the_other_runs_count(tmp_path, capsys):
    folders(tmp_path / "a")
    archive.write(tmp_path / "runs.json", tmp_path / "a", without="tuning")
    text = (tmp_path / "runs.json").read_text()
    forged = text.replace('"48,963,1000,0.963,0.5"', '"48,993,1000,0.993,0.5"')
    assert forged != text
    (tmp_path / "runs.json").write_text(forged)
    runs, problems = collect.collect([tmp_path / "runs.json"])
    assert len(runs) == 15
    assert "seed_0003" in problems[0].path
    assert "contradictory" in problems[0].message


def accuracies(out, recipe, batch, steps, values):
    for seed, value in enumerate(values):
        write_run(
            out / f"batch_{batch}", recipe, seed, (round(1000 * value),), eval_every_steps=steps,
            record={"global_batch_size": batch},
        )  # fmt: skip


def test_whether_the_advantage_grows_with_the_batch(tmp_path, capsys):
    """Two others: over the first it grows by 5 points in every seed, over the second by none."""
    rng = np.random.default_rng(0)
    for batch, steps, gain in ((256, 64, 0.01), (1024, 16, 0.06)):
        base = np.round(0.7 + 0.02 * rng.random(8), 3)
        accuracies(tmp_path, "nesterov:digits", batch, steps, base)
        accuracies(tmp_path, "shampoo:digits", batch, steps, base + gain)
        accuracies(tmp_path, "lars:digits", batch, steps, base + gain - 0.02)
    assert report.main([str(tmp_path), f"--json={tmp_path}/r.json"]) == 0
    tests = {t["other"]: t for t in json.loads((tmp_path / "r.json").read_text())["batches"]}
    grown = tests["nesterov:digits"]
    assert grown["n_examples"] == 16_384
    assert grown["batches"] == [256, 1024]
    assert [a["median"] for a in grown["advantages"]] == pytest.approx([0.01, 0.06])
    assert grown["growth"]["median"] == pytest.approx(0.05)
    assert grown["p_value"] == pytest.approx(2 / 2**8)  # all eight signs alike
    assert grown["p_adjusted"] == pytest.approx(2 * 2 / 2**8)  # Holm, of two
    assert "16,384 examples, from batch 256 to 1,024: grows (+5.00 points" in grown["sentence"]
    same = tests["lars:digits"]
    assert same["growth"]["median"] == pytest.approx(0.0, abs=1e-12)
    assert "no change shown" in same["sentence"]
    assert "Does the advantage grow with the batch?" in capsys.readouterr().out


def page(tmp_path, status=0):
    assert report.main([str(tmp_path), f"--markdown={tmp_path / 'README.md'}"]) == status
    return (tmp_path / "README.md").read_text() if not status else ""


def test_an_advantage_stands_below_its_own_batch_size(tmp_path):
    for batch, steps in ((256, 64), (512, 32), (1024, 16)):
        accuracies(tmp_path, "shampoo:digits", batch, steps, [0.8] * 3)
        accuracies(tmp_path, "lars:digits", batch, steps, [0.7] * 3)
        if batch != 512:
            accuracies(tmp_path, "sm3:digits", batch, steps, [0.8 - batch / 10_240] * 3)
    text = page(tmp_path)
    assert "| examples | over | batch 256 | batch 512 | batch 1,024 |" in text
    assert "| sm3:digits | +2.50 [+2.50, +2.50] points | - | +10.00 [" in text


def test_mean_and_median_of_a_growth_must_agree(tmp_path):
    """Six seeds lose ten points, seven gain a tenth: the mean falls (p = 2/64), not the median."""
    accuracies(tmp_path, "shampoo:digits", 256, 64, [0.8] * 13)
    accuracies(tmp_path, "shampoo:digits", 1024, 16, [0.7] * 6 + [0.801] * 7)
    for batch, steps in ((256, 64), (1024, 16)):
        accuracies(tmp_path, "lars:digits", batch, steps, [0.6] * 13)
    assert report.main([str(tmp_path), f"--json={tmp_path}/r.json"]) == 0
    (test,) = json.loads((tmp_path / "r.json").read_text())["batches"]
    assert test["p_value"] == pytest.approx(2 / 64)
    assert "no change shown" in test["sentence"]


def test_tasks_of_one_batch_size_have_figures_of_their_own(tmp_path):
    for dataset in ("digits", "other"):
        write_run(tmp_path / dataset, "lars:digits", 0, record={"dataset": dataset})
    text = page(tmp_path)
    assert {p.name for p in tmp_path.glob("*.svg")} == {"curves_640_0.svg", "curves_640_1.svg"}
    assert all(f"![curves_640_{i}](curves_640_{i}.svg)" in text for i in range(2))


def test_a_page_of_logs_that_tell_little(tmp_path):
    lines = log_files.log_lines({}, [0.5, 0.76], 100.0)
    (tmp_path / "result_0.txt").write_text("\n".join(lines))
    text = page(tmp_path)
    assert "| ? | 1 | 1/1 | 0 | not known | not measured | - |" in text
    assert "## Cost" not in text


def test_the_page_adds_up_what_its_runs_cost(tmp_path):
    for seed, cpu in enumerate((3600.0, 1800.0, None)):
        seconds = {"train": 5.0} | ({} if cpu is None else {"cpu": cpu})
        write_run(tmp_path, "lars:digits", seed, record={"seconds": seconds})
    assert "3 runs, 1.5 CPU-hours together, tuning not counted." in page(tmp_path)


@pytest.mark.parametrize(
    ("seeds", "n_trials", "words"),
    [
        ("1000", 1, "the same number for every optimizer, on seeds not used above."),
        ("0", 1, "the same number for every optimizer, on SEEDS THAT ARE ALSO ABOVE."),
        ("1000", 2, "NOT the same number for every optimizer, on seeds not used above."),
    ],
)
def test_the_page_says_of_the_tuning_what_its_file_shows(seeds, n_trials, words, tmp_path):
    write_run(tmp_path / "runs", "lars:digits", 0)
    trial = {"values": {"optimizer.momentum": 0.5}, "final_accuracy": {seeds: None}, "median": None}
    of = {"chosen": None, "trials": [trial]}
    table = {"lars:digits": of, "sm3:digits": of | {"trials": [trial] * n_trials}}
    (tmp_path / "trials.json").write_text(json.dumps(table))
    text = page(tmp_path)
    assert words in text
    assert "| lars:digits | 1 | 1 | none | - |" in text


def test_foreign_trials_are_one_message(tmp_path, capsys):
    write_run(tmp_path / "runs", "lars:digits", 0)
    (tmp_path / "trials_old.json").write_text('{"lars:digits": {"trials": []}}')
    page(tmp_path, status=2)
    assert "trials_old.json: not what sweep.py --trials writes" in capsys.readouterr().err


def test_other_numbers_of_examples_are_not_put_together(tmp_path):
    for batch, steps in ((256, 64), (1024, 17)):
        accuracies(tmp_path, "nesterov:digits", batch, steps, [0.7] * 4)
        accuracies(tmp_path, "shampoo:digits", batch, steps, [0.8] * 4)
    assert report.main([str(tmp_path), f"--json={tmp_path}/r.json"]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["batches"] == []


def test_the_page_and_its_figures_are_written_anew_from_the_archive(tmp_path):
    folders(tmp_path / "a")
    trials = {
        "lars:digits": {
            "ranges": {},
            "chosen": 1,
            "trials": [
                {"trial": i, "values": {"optimizer.momentum": 0.5 + i / 4},
                 "final_accuracy": {"1000": 0.5 + i / 8}, "median": 0.5 + i / 8}
                for i in range(2)
            ],
        }
    }  # fmt: skip
    pages = []
    for name in ("b", "c"):
        out = tmp_path / name
        out.mkdir()
        archive.write(out / archive.NAME, tmp_path / "a", without="tuning")
        (out / "trials.json").write_text(json.dumps(trials))
        assert report.main([str(out)]) == 0
        pages.append({f.name: f.read_text() for f in out.iterdir()})
    written = {"README.md", "report.json", "ladder_640.svg", "curves_640.svg"}
    assert written < set(pages[0])
    first, again = (p["README.md"] for p in pages)
    assert first.replace(f"{tmp_path}/b", "") == again.replace(f"{tmp_path}/c", "")
    assert {k: v for k, v in pages[0].items() if k.endswith("svg")} == {
        k: v for k, v in pages[1].items() if k.endswith("svg")
    }
    assert "| lars:digits | 2 | 1 | momentum 0.75 | .6250 |" in first
    assert "| shampoo:digits | 64 | 5 | 5/5 | 0 |" in first
    assert "Proxy data: digits" in first
    assert "diverged" in first


def test_without_a_file_asked_for_only_a_study_alone_is_written(tmp_path):
    for seed in range(3):
        device = {"kind": "cpu", "count": 1, "hosts": 1, "cores": 2}
        write_run(tmp_path / "a", seed=seed, record={"device": device})
    study = tmp_path / "study"
    study.mkdir()
    archive.write(study / archive.NAME, tmp_path / "a", without="tuning")
    before = sorted(tmp_path.rglob("*"))
    assert report.main([str(tmp_path / "a")]) == 0
    assert report.main([str(study), str(study)]) == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert report.main([str(study), f"--json={tmp_path / 'r.json'}"]) == 0
    assert [f.name for f in study.iterdir()] == [archive.NAME]
    assert report.main([str(study)]) == 0
    assert {"README.md", "report.json"} < {f.name for f in study.iterdir()}
    assert "* device: 1 x cpu on 1 host(s) of 2 core(s)\n" in (study / "README.md").read_text()


def test_the_verdicts_of_a_batch_size_stand_below_its_title(tmp_path):
    for batch, steps, gain in ((256, 64, 0.2), (1024, 16, -0.2)):
        accuracies(tmp_path, "shampoo:digits", batch, steps, [0.7 + gain] * 10)
        accuracies(tmp_path, "lars:digits", batch, steps, [0.7] * 10)
    verdicts = page(tmp_path).partition("## Verdict\n")[2].partition("\n## ")[0]
    _, small, large = verdicts.split("digits, batch ")
    assert small.startswith("256\n")
    assert large.startswith("1,024\n")
    shampoo, lars = "shampoo:digits ends with higher", "lars:digits ends with higher"
    assert (small.count(shampoo), small.count(lars)) == (1, 0)
    assert (large.count(shampoo), large.count(lars)) == (0, 1)
    assert "other batch" not in verdicts
