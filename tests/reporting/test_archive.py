"""The archive of a study gives the report of its run folders; the page that is written from it."""

import dataclasses
import json

import numpy as np
import pytest
from run_folders import write_run

import report
from reporting import archive, collect, output
from tests.mlperf import log_files


def folders(out):
    for seed in range(5):
        write_run(out / "ladder", "lars:digits", seed, (500, 900, 960 + seed))
        write_run(out / "ladder", "lars:digits", seed, (500, 900, 960, 970 + seed))
        write_run(out / "ladder", "shampoo:digits", seed, (700, 971, 980, 985 + seed))
    write_run(out / "ladder", "shampoo:digits", 9, (700,), status="diverged")
    write_run(out / "tuning", "shampoo:digits", 7, (700,))
    return out


def write_archive(results, out):
    archive.write(out, results)
    return results / archive.NAME


def test_the_archive_gives_the_report_of_the_folders(tmp_path):
    folders(tmp_path / "a")
    (tmp_path / "a" / "tuning" / "trials.json").write_text("{}")
    write_archive(tmp_path / "b", tmp_path / "a")
    from_folders, _ = collect.collect([tmp_path / "a" / "ladder"])
    from_archive, problems = collect.collect([tmp_path / "b"])
    assert not problems
    assert len(from_archive) == 16

    def order(run):
        return run.recipe, run.total_steps, run.seed

    for a, b in zip(sorted(from_folders, key=order), sorted(from_archive, key=order), strict=True):
        assert b.path == str(tmp_path / "b" / a.path.removeprefix(f"{tmp_path}/a/"))
        assert b == dataclasses.replace(a, path=b.path, record=a.record | {"reason": None})


def test_every_field_of_a_record_and_a_config_is_kept(tmp_path):
    segments = [{"first_step": step, "code": "abc", "flags": {}} for step in (0, 16)]
    record = {
        "reason": "crashed: \"killed\",\nsignal 9", "diverged": {"step": 3, "metric": "loss"},
        "device": {"kind": "TPU v3", "count": 8, "hosts": 2, "cores": 96, "mesh": "2x4"},
        "seconds": {"init": 1e-7, "train": 0.1 + 0.2, "eval": 3, "cpu": 7e9, "compile": 5.5},
        "git": "12345", "plan": {"eval_steps": [16, 32]}, "new": [1, None, "\u00fc"],
    }  # fmt: skip
    repeated = {"seed": 0, "config_hash": "0123"}
    for seed in range(2):
        segments_of_run = [segment | repeated | {"seed": seed} for segment in segments]
        write_run(tmp_path / "a", seed=seed, record=record | {"segments": segments_of_run})
    write_archive(tmp_path / "b", tmp_path / "a")
    first, second = collect.collect([tmp_path / "b"])[0]
    folder, _ = collect.collect([tmp_path / "a"])[0]
    assert first.record == folder.record | {"segments": segments}
    assert second.config == first.config | {"seed": 1}
    assert len(json.loads((tmp_path / "b" / "configs.json").read_text())) == 1


@pytest.mark.parametrize("missing", ["curve.csv", "config.json"])
def test_a_run_that_left_less_is_archived_with_what_it_left(missing, tmp_path):
    """A run that was given up before its first evaluation stays in n."""
    folder = write_run(tmp_path / "a", counts=(500, 600), status="aborted")
    (folder / missing).unlink()
    write_run(tmp_path / "a", seed=1, counts=(500, 600))
    write_archive(tmp_path / "b", tmp_path / "a")
    fields = []
    for place in ("a", "b"):
        runs, problems = collect.collect([tmp_path / place])
        assert not problems
        fields.append(sorted((run.seed, run.status, run.curve, run.flags) for run in runs))
    assert fields[0] == fields[1]
    assert fields[0][0][3] == (f"no {missing}",)


def test_the_tables_are_read_by_pandas_and_a_config_is_written_once(tmp_path):
    pandas = pytest.importorskip("pandas")
    folders(tmp_path / "a")
    write_archive(tmp_path / "b", tmp_path / "a")
    runs = pandas.read_csv(tmp_path / "b" / "runs.csv")
    curves = pandas.read_csv(tmp_path / "b" / "curves.csv")
    configs = json.loads((tmp_path / "b" / "configs.json").read_text())
    assert len(runs) == 17
    assert set(runs.config) == set(configs)
    assert len(configs) == 4  # the run in tuning/ has the settings of another run
    path = "ladder/lars-digits/steps_0064/seed_0003"
    [run] = runs[runs.path == path].to_dict("records")
    assert (run["seed"], run["final_accuracy"], run["seconds.train"]) == (3, 0.973, 6.4)
    assert run["config"] == "ladder/lars-digits/steps_0064"
    assert "seed" not in configs[run["config"]]["config"]
    last = curves[curves.path == path].iloc[-1]
    assert [last.step, last.n_correct, last.n_seen, last.accuracy] == [64, 973, 1000, 0.973]


def test_runs_of_one_folder_with_other_settings_have_their_own_entries(tmp_path):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "a", seed=1, config={"label_smoothing": 0.3})
    write_archive(tmp_path / "b", tmp_path / "a")
    first, second = collect.collect([tmp_path / "b"])[0]
    assert "label_smoothing" not in first.config
    assert second.config["label_smoothing"] == 0.3


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "runs.csv",
            "path,recipe",
            "place,recipe",
            "not part of an archive of runs",
        ),
        ("runs.csv", "path,", "path;", "is not a CSV table"),
        ("runs.csv", "ladder/", '"ladder/', "is not a CSV table"),
        ("curves.csv", "n_seen", "n", "not part of an archive of runs; it lacks n_seen"),
        ("curves.csv", "/seed_0003", "/seed_0077", "seed_0077, which has a curve in curves.csv"),
        ("configs.json", "{", "[", "is not JSON"),
        ("configs.json", None, None, "no configs.json"),
        ("curves.csv", None, None, "no curves.csv"),
    ],
)
def test_a_damaged_archive_is_one_problem(file, old, new, message, tmp_path):
    path = write_archive(tmp_path / "b", folders(tmp_path / "a"))
    damaged = path.with_name(file)
    if old is None:
        damaged.unlink()
    else:
        damaged.write_text(damaged.read_text().replace(old, new, 1))
    runs, problems = collect.collect([path])
    assert not runs
    (problem,) = problems
    assert message in problem.message
    assert "\n" not in problem.message


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("curves.csv", "48,963,1000,0.963000", "48,993,1000,0.993000", "but curve.csv has 48"),
        ("curves.csv", "48,963,1000,0.963000", "48,xy,1000,0.963000", "curve.csv, line 4"),
        ("runs.csv", ",done,,abc1234,cpu,3,", ",done,,abc1234,cpu,three,", "seed='three': must be"),
        ("runs.csv", ",done,,abc1234,cpu,3,", ",odd,,abc1234,cpu,3,", "status='odd'"),
        ("runs.csv", ",ladder/lars-digits/steps_0048", ",nowhere", "config=nowhere: is no entry"),
    ],
)
def test_a_damaged_run_is_one_problem_and_the_other_runs_count(file, old, new, message, tmp_path):
    path = write_archive(tmp_path / "b", folders(tmp_path / "a"))
    damaged = path.with_name(file)
    text = damaged.read_text()
    assert old in text
    damaged.write_text(text.replace(old, new, 1))
    runs, problems = collect.collect([path])
    assert len(runs) == 16
    assert message in problems[0].message
    assert problems[0].recipe == "lars:digits"
    assert "ladder/lars-digits/steps_00" in problems[0].path


def test_a_folder_without_runs_and_an_unfinished_run_are_not_archived(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    arguments = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert archive.main(arguments) == 2
    assert "contains no runs" in capsys.readouterr().err
    (write_run(tmp_path / "a") / "run.json").unlink()
    assert archive.main(arguments) == 2
    assert "has no run.json; finish this run first" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


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


def test_an_advantage_is_below_its_own_batch_size(tmp_path):
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


def test_a_page_of_logs_with_few_lines(tmp_path):
    lines = log_files.log_lines({}, [0.5, 0.76], 100.0)
    (tmp_path / "result_0.txt").write_text("\n".join(lines))
    text = page(tmp_path)
    assert "| ? | 1 | 1/1 | 0 | not known | not measured | - |" in text
    assert "## Cost" not in text


def test_the_page_adds_up_what_its_runs_cost(tmp_path):
    for seed, cpu in enumerate((3600.0, 1800.0, None)):
        seconds = {"train": 5.0} | ({} if cpu is None else {"cpu": cpu})
        write_run(tmp_path, "lars:digits", seed, record={"seconds": seconds})
    sentence = "3 runs took 1.5 CPU-hours (2 of them recorded it), without tuning."
    assert sentence in page(tmp_path)


@pytest.mark.parametrize(
    ("seeds", "n_trials", "words"),
    [
        ("1000", 1, "the same number for every optimizer, with seeds not used above and"),
        ("0", 1, "the same number for every optimizer, with SEEDS THAT ARE ALSO USED ABOVE"),
        ("1000", 2, "NOT the same number for every optimizer, with seeds not used above and"),
    ],
)
def test_the_page_describes_the_tuning_in_its_file(seeds, n_trials, words, tmp_path):
    write_run(tmp_path / "runs", "lars:digits", 0)
    trial = {"values": {"optimizer.momentum": 0.5}, "final_accuracy": {seeds: None}, "median": None}
    of = {"chosen": None, "trials": [trial]}
    table = {"lars:digits": of, "sm3:digits": of | {"trials": [trial] * n_trials}}
    (tmp_path / "trials.json").write_text(json.dumps(table))
    text = page(tmp_path)
    assert words in text
    assert "| lars:digits | 1 | 1 | none | - |" in text


def test_a_page_that_cannot_be_written_leaves_all_files_as_they_were(tmp_path, capsys):
    """The page is rendered before anything is written. A name may also be invalid UTF-8."""
    study = tmp_path / "study"
    write_archive(study, folders(tmp_path / "a"))
    assert report.main([str(study)]) == 0
    assert "written: " in capsys.readouterr().out
    kept = "ladder/lars-digits/steps_0048"
    for name in ("runs.csv", "curves.csv"):
        lines = (study / name).read_text().splitlines(keepends=True)
        (study / name).write_text("".join(x for x in lines if x.startswith(("path", kept))))
    before = {file.name: file.read_bytes() for file in study.iterdir()}
    trial = {"values": {}, "final_accuracy": {"7": None}, "median": None}
    no_utf8 = json.dumps({"\ud800": {"chosen": None, "trials": [trial]}})
    for broken in (no_utf8, "{"):
        (study / "trials.json").write_text(broken)
        assert report.main([str(study)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        (study / "trials.json").unlink()
        assert {file.name: file.read_bytes() for file in study.iterdir()} == before


def test_a_readme_beside_a_runs_csv_of_somebody_else_is_left_alone(tmp_path):
    write_run(tmp_path, "lars:digits", 0)
    (tmp_path / "runs.csv").write_text("my,own\n")
    (tmp_path / "README.md").write_text("notes")
    assert report.main([str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text() == "notes"
    assert not (tmp_path / "report.json").exists()


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
        write_archive(out, tmp_path / "a")
        (out / "trials.json").write_text(json.dumps(trials))
        assert report.main([str(out)]) == 0
        pages.append({f.name: f.read_text() for f in out.iterdir()})
    written = {"README.md", "ladder_640.svg", "curves_640.svg"}
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


def test_without_flags_only_the_page_of_a_single_study_is_written(tmp_path):
    for seed in range(3):
        device = {"kind": "cpu", "count": 1, "hosts": 1, "cores": 2}
        write_run(tmp_path / "a", seed=seed, record={"device": device})
    study = tmp_path / "study"
    write_archive(study, tmp_path / "a")
    before = sorted(tmp_path.rglob("*"))
    assert report.main([str(tmp_path / "a")]) == 0
    assert report.main([str(study), str(study)]) == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert report.main([str(study), f"--json={tmp_path / 'r.json'}"]) == 0
    assert {f.name for f in study.iterdir()} == {"runs.csv", "curves.csv", "configs.json"}
    assert report.main([str(study)]) == 0
    assert "README.md" in {f.name for f in study.iterdir()}
    assert not (study / "report.json").exists()
    assert "* device: 1 x cpu on 1 host(s) of 2 core(s)\n" in (study / "README.md").read_text()


def test_the_verdicts_of_a_batch_size_are_below_its_title(tmp_path):
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


def test_a_batch_size_with_runs_that_did_not_end_is_left_out_and_named(tmp_path):
    """The others alone would be the survivors."""
    for batch, steps, gain in ((256, 64, 0.0), (512, 32, 0.1), (1024, 16, 0.3)):
        accuracies(tmp_path, "shampoo:digits", batch, steps, [0.6 + gain] * 8)
        accuracies(tmp_path, "lars:digits", batch, steps, [0.6] * 8)
    (file,) = tmp_path.glob("batch_1024/shampoo-digits/*/seed_0003/run.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"status": "aborted", "final_accuracy": None}))
    file.with_name("curve.csv").unlink()
    text = page(tmp_path)
    assert "from batch 256 to 512: grows (+10.00 points" in text
    assert "; without batch 1,024: not every run ended its budget)" in text


def test_settings_that_differ_at_one_batch_size_leave_it_out(tmp_path):
    for batch, steps, gain in ((256, 64, 0.0), (512, 32, 0.1), (1024, 16, 0.3)):
        accuracies(tmp_path, "shampoo:digits", batch, steps, [0.6 + gain] * 8)
        accuracies(tmp_path, "lars:digits", batch, steps, [0.6] * 8)
    write_run(tmp_path / "batch_1024", "lars:digits", 99, (600,), eval_every_steps=16,
              record={"global_batch_size": 1024}, config={"label_smoothing": 0.3})  # fmt: skip
    assert "; without batch 1,024: runs of several settings)" in page(tmp_path)


def test_too_few_seeds_to_show_any_growth_are_reported(tmp_path):
    """Five seeds: 2 / 2^5 = 6 % at best."""
    for batch, steps, gain in ((256, 64, 0.0), (1024, 16, 0.3)):
        accuracies(tmp_path, "shampoo:digits", batch, steps, [0.6 + gain] * 5)
        accuracies(tmp_path, "lars:digits", batch, steps, [0.6] * 5)
    assert "too few seeds to show any change (+30.00 points" in page(tmp_path)


def test_a_run_lost_from_an_archive_is_a_flag_of_its_row(tmp_path):
    folders(tmp_path / "a")
    path = write_archive(tmp_path / "b", tmp_path / "a").with_name("curves.csv")
    path.write_text(path.read_text().replace("16,500,1000,0.500000", "16,500,1000,0.900000", 1))
    text = page(path.parent)
    assert ": 1 run of this recipe is unfinished, lost or unreadable, not in n" in text


def test_recipes_that_were_not_tuned_are_named(tmp_path):
    for recipe in ("lars:digits", "sm3:digits"):
        write_run(tmp_path / "runs", recipe, 0)
    trial = {"values": {"optimizer.momentum": 0.5}, "final_accuracy": {"7": 0.5}, "median": 0.5}
    table = {"lars:digits": {"chosen": 0, "trials": [trial]}}
    (tmp_path / "trials.json").write_text(json.dumps(table))
    assert "NOT the same number for every optimizer; none for sm3:digits, with" in page(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "median"), [(1, 0.5), (-1, 0.5), ("0", 0.5), (0, float("nan")), (0, 1e9)]
)
def test_a_choice_that_is_not_the_best_trial_is_refused(chosen, median, tmp_path, capsys):
    write_run(tmp_path / "runs", "lars:digits", 0)
    trial = {"values": {"optimizer.momentum": 0.5}, "final_accuracy": {"7": 0.5}}
    trials = [trial | {"median": median}, trial | {"median": 0.4}]
    table = {"lars:digits": {"chosen": chosen, "trials": trials}}
    (tmp_path / "trials.json").write_text(json.dumps(table))
    page(tmp_path, status=2)
    assert "trials.json: not what sweep.py --trials writes" in capsys.readouterr().err


def test_no_file_is_written_if_one_of_them_cannot_be(tmp_path):
    (tmp_path / "old.json").write_text("old")
    with pytest.raises(FileNotFoundError):
        output.write({tmp_path / "old.json": "new", tmp_path / "nowhere" / "x.svg": "new"})
    assert [file.name for file in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "old"
