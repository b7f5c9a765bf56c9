"""Predictions computed by hand, the page, and the command line."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

import pod_plan
from pod import compile as pod_compile
from pod import page, predict

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import plans as examples


def test_every_run_is_anchored_on_the_published_time_of_lars():
    """LARS: 155 s estimated, 310 s published, so all others count twice."""
    predictions = {one.recipe: one for one in predict.predictions(examples.full())}
    assert predictions["lars:mlperf_v07"].run_seconds == pytest.approx(155)
    assert predictions["lars:mlperf_v07"].anchored_seconds == pytest.approx(310)
    assert predictions["shampoo:readme"].run_seconds == pytest.approx(500 * 0.157 + 1.0)
    assert predictions["shampoo:readme"].anchored_seconds == pytest.approx(2 * 79.5)
    assert predictions["shampoo:readme"].published_seconds == (267, 269)
    assert predictions["shampoo:mlperf_v1"].published_seconds is None


def test_the_overhead_is_the_difference_of_two_steps():
    assert predict.overhead_seconds(examples.full()) == pytest.approx(0.157 - 0.150)
    assert predict.published_overhead_seconds() == pytest.approx(267 / 1729 - 309 / 2512)


def test_the_optimizers_share_includes_its_gathers():
    step = examples.full()[2]["train_step"]
    assert predict.optimizer_seconds(step) == pytest.approx(0.005 + 0.002)


def test_every_part_of_the_optimizer_has_a_colour_and_counts_as_optimizer():
    from pod import cycles

    assert {*cycles.SCOPES, "optimizer"} == set(predict.OPTIMIZER_PARTS)
    assert set(predict.OPTIMIZER_PARTS) < set(page.COLOURS)


def test_without_the_anchor_there_is_no_prediction():
    with pytest.raises(ValueError, match="lars:mlperf_v07: has no plan"):
        predict.predictions(examples.full()[1:])


def test_the_page_shows_estimates_and_the_share_falling_with_the_batch():
    text = page.markdown(examples.full(), 164.0)
    assert "Estimated, not measured" in text
    assert "| `shampoo:readme` | 500 | 157.0 | 2.0 | 80 | 159 | 267-269 |" in text
    assert "7.0 ms longer" in text
    assert "| `shampoo:mlperf_v1` | 32,768 | 160.0 | 10.0 | 6.2% | 0.305 |" in text
    assert "| `shampoo:mlperf_v1_64k` | 65,536 | 310.0 | 10.0 | 3.2% | 0.153 |" in text


def test_a_step_that_does_not_fit_shows_by_how_much_and_which_batch_does():
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 18.50G of 15.75G hbm. Exceeded hbm capacity by 2.75G."
    )
    exceeding = {"fits": False, **pod_compile.parse_out_of_memory(message)}
    assert exceeding["exceeded_mib"] == pytest.approx(2.75 * 1024)
    plan = examples.plan("x:y", exceeding, largest_global_batch_size=16_384)
    text = page.summary(plan)
    assert "DOES NOT FIT: needs 18.50 GiB per device, 2.75 GiB too much" in text
    assert "16,384" in text
    other = "memory required for HLO temporaries (72.09G) exceeds available HBM (15.48G)."
    exceeded = pod_compile.parse_out_of_memory(other)["exceeded_mib"]
    assert exceeded == pytest.approx(1024 * (72.09 - 15.48))
    with pytest.raises(ValueError, match="does not say how much"):
        pod_compile.parse_out_of_memory("RESOURCE_EXHAUSTED: no figures")


def test_the_page_and_the_predictions_are_written_from_existing_plans(tmp_path, monkeypatch):
    monkeypatch.setattr(pod_plan, "PLANS", tmp_path)
    for plan in examples.full():
        path = tmp_path / f"{plan['recipe'].replace(':', '-')}.json"
        path.write_text(json.dumps(plan))
    assert pod_plan.main(["--page"]) == 0
    assert (tmp_path / "README.md").read_text() == page.markdown(examples.full(), 164.0)
    assert "</svg>" in (tmp_path / "steps.svg").read_text()
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    assert set(predictions) == {plan["recipe"] for plan in examples.full()}
    assert predictions["lars:mlperf_v07"] == {"anchored_seconds": pytest.approx(310)}


def test_the_committed_page_matches_the_committed_plans(tmp_path, monkeypatch):
    committed = {path.name: path.read_text() for path in pod_plan.PLANS.iterdir()}
    assert len(committed) == len(pod_plan.RECIPES) + 3
    for name, text in committed.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(pod_plan, "PLANS", tmp_path)
    assert pod_plan.main(["--page"]) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == committed


def test_all_recipes_are_planned_and_written(tmp_path, monkeypatch, capsys):
    by_recipe = {plan["recipe"]: plan for plan in examples.full()}

    def compile_steps(config, overrides, topology, hlo=""):
        recipe = pathlib.Path(config).name.replace(".py", "")
        return by_recipe.get(recipe) or examples.plan(recipe, examples.step(0.1))

    monkeypatch.setattr(pod_plan, "PLANS", tmp_path)
    monkeypatch.setattr(pod_plan, "compile_steps", compile_steps)
    assert pod_plan.main(["--all"]) == 0
    assert capsys.readouterr().out.count("fits: ") == 2 * len(pod_plan.RECIPES)
    assert len(list(tmp_path.glob("*-*.json"))) == len(pod_plan.RECIPES)
    assert json.loads((tmp_path / "shampoo-readme.json").read_text()) == by_recipe["shampoo:readme"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=v3"], "topology=v3: needs a generation"),
        (["--topology=v3:2x2", "--config.total_steps=0"], "total_steps=0: needs an integer"),
        (["--topology=v3:2x2", "--config.global_batch_size=100"], "not a multiple of the 8"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    if "multiple" in message and not importlib.util.find_spec("libtpu"):
        pytest.skip("needs libtpu: make setup EXTRA=tpu")
    assert pod_plan.main(["--config=configs/lars.py:smoke", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments --config --all --page is required"),
        (["--all", "--config=configs/lars.py:smoke"], "not allowed with argument --all"),
        (["--all", "--json=plan.json"], "--json, --hlo and overrides need --config"),
        (["--config=configs/lars.py:smoke", "--hl0=x"], "argument --hl0=x: unknown"),
    ],
)
def test_wrong_flags_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        pod_plan.main(arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_compilation_that_crashes_is_no_user_error(monkeypatch):
    def run(command, **_):
        return subprocess.CompletedProcess(command, 1, stderr="Traceback: a bug")

    monkeypatch.setattr(pod_plan.subprocess, "run", run)
    with pytest.raises(RuntimeError, match="a bug"):
        pod_plan.main(["--config=configs/lars.py:smoke"])


def test_without_libtpu_the_message_explains_how_to_install_it(capsys):
    if importlib.util.find_spec("libtpu"):
        pytest.skip("libtpu is installed")
    assert pod_plan.main(["--config=configs/lars.py:smoke", "--topology=v3:2x2"]) == 2
    assert "make setup EXTRA=tpu" in capsys.readouterr().err


def test_other_topologies_than_the_published_one_are_not_anchored():
    """Their times would be those of the published pod, and must not reach README."""
    elsewhere = [{**plan, "topology": "v4:4x4x8"} for plan in examples.full()]
    assert {one.anchored_seconds for one in predict.predictions(elsewhere)} == {None}
    assert {one.published_seconds for one in predict.predictions(elsewhere)} == {None}
    row = "| `lars:mlperf_v07` | 1000 | 154.0 | 0.0 | 155 | - | none |"
    assert row in page.markdown(elsewhere, 164.0)
    mixed = predict.predictions([*examples.full()[:2], elsewhere[2]])
    assert [one.anchored_seconds is None for one in mixed] == [False, False, True]


def test_plans_of_another_topology_have_their_own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(pod_plan, "PLANS", tmp_path)
    assert pod_plan.main(["--page", "--topology=v4:4x4x8"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["v4_4x4x8"]
    assert json.loads((tmp_path / "v4_4x4x8" / "predictions.json").read_text()) == {}
