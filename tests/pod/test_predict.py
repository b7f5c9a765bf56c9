"""Predictions by hand, and the page that shows them."""

import importlib.util
import json
import pathlib
import sys

import pytest

import pod_plan
from pod import __main__ as pod_main
from pod import compile as pod_compile
from pod import document, predict, summary

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import plans as made


def test_every_run_is_anchored_on_the_published_time_of_lars():
    """LARS: 155 s estimated, 310 s published, so all others count twice."""
    found = {one.recipe: one for one in predict.predictions(made.full())}
    assert found["lars:mlperf_v07"].run_seconds == pytest.approx(155)
    assert found["lars:mlperf_v07"].anchored_seconds == pytest.approx(310)
    assert found["shampoo:readme"].run_seconds == pytest.approx(500 * 0.157 + 1.0)
    assert found["shampoo:readme"].anchored_seconds == pytest.approx(2 * 79.5)
    assert found["shampoo:readme"].published_seconds == (267, 269)
    assert found["shampoo:mlperf_v1"].published_seconds is None


def test_the_overhead_is_the_difference_of_two_steps():
    assert predict.overhead_seconds(made.full()) == pytest.approx(0.157 - 0.150)
    assert predict.published_overhead_seconds() == pytest.approx(267 / 1729 - 309 / 2512)


def test_the_optimizers_share_holds_its_gathers():
    step = made.full()[2]["train_step"]
    assert predict.optimizer_seconds(step) == pytest.approx(0.005 + 0.002)


def test_without_the_anchor_there_is_no_prediction():
    with pytest.raises(ValueError, match="lars:mlperf_v07: has no plan here"):
        predict.predictions(made.full()[1:])


def test_the_page_says_estimate_and_shows_the_share_falling_with_the_batch():
    text = document.page(made.full(), 164.0)
    assert "Estimated, not measured" in text
    assert "| `shampoo:readme` | 500 | 157.0 | 2.0 | 80 | 159 | 267-269 |" in text
    assert "7.0 ms longer" in text
    assert "| `shampoo:mlperf_v1` | 32,768 | 160.0 | 10.0 | 6.2% | 0.305 |" in text
    assert "| `shampoo:mlperf_v1_64k` | 65,536 | 310.0 | 10.0 | 3.2% | 0.153 |" in text


def test_a_step_that_does_not_fit_says_by_how_much_and_what_does():
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 18.50G of 15.75G hbm. Exceeded hbm capacity by 2.75G."
    )
    exceeding = {"fits": False, **pod_compile.exceeded(message)}
    assert exceeding["exceeded_mib"] == pytest.approx(2.75 * 1024)
    plan = made.plan("x:y", exceeding, largest_global_batch_size=16_384)
    text = summary.text(plan)
    assert "DOES NOT FIT: 18.50 GiB needed, 2.75 GiB too much" in text
    assert "16,384" in text
    other = "memory required for HLO temporaries (72.09G) exceeds available HBM (15.48G)."
    assert pod_compile.exceeded(other)["exceeded_mib"] == pytest.approx(1024 * (72.09 - 15.48))
    with pytest.raises(ValueError, match="does not say how much"):
        pod_compile.exceeded("RESOURCE_EXHAUSTED: no figures")


def test_the_page_is_written_from_the_plans_there(tmp_path):
    for plan in made.full():
        (tmp_path / f"{plan['recipe'].replace(':', '-')}.json").write_text(json.dumps(plan))
    assert pod_main.main(["--page", f"--out={tmp_path}"]) == 0
    assert (tmp_path / "README.md").read_text() == document.page(made.full(), 164.0)
    assert "</svg>" in (tmp_path / "steps.svg").read_text()


def test_the_committed_page_is_the_one_of_the_committed_plans(tmp_path):
    folder = pathlib.Path(pod_plan.__file__).parent / "results" / "pod_plan"
    found = [folder / f"{recipe.replace(':', '-')}.json" for recipe in pod_main.RECIPES]
    plans = [json.loads(file.read_text()) for file in found]
    assert (folder / "README.md").read_text() == document.page(plans, 164.0)
    assert (folder / "steps.svg").read_text() == document.figure(plans)


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


def test_without_libtpu_the_message_says_how_to_install_it(capsys):
    if importlib.util.find_spec("libtpu"):
        pytest.skip("libtpu is installed")
    assert pod_plan.main(["--config=configs/lars.py:smoke", "--topology=v3:2x2"]) == 2
    assert "make setup EXTRA=tpu" in capsys.readouterr().err


def test_another_slice_than_the_published_one_is_not_anchored():
    """Its seconds would be those of the published pod; and they must not become README's."""
    elsewhere = [{**plan, "topology": "v4:4x4x8"} for plan in made.full()]
    assert {one.anchored_seconds for one in predict.predictions(elsewhere)} == {None}
    assert {one.published_seconds for one in predict.predictions(elsewhere)} == {None}
    assert "| `lars:mlperf_v07` | 1000 | 154.0 | 0.0 | 155 | - | none |" in document.page(
        elsewhere, 164.0
    )
    mixed = predict.predictions([*made.full()[:2], elsewhere[2]])
    assert [one.anchored_seconds is None for one in mixed] == [False, False, True]


def test_plans_of_another_slice_have_a_folder_of_their_own():
    assert pod_main.folder("v3:16x8") == pathlib.Path("results/pod_plan")
    assert pod_main.folder("v4:4x4x8") == pathlib.Path("results/pod_plan/v4_4x4x8")
