"""Budget ladders: what is stretched with the run, and what is not."""

import pytest

from configs import command_line, plan
from sweeps import budgets


def at(recipe, total_steps, *overrides):
    config = command_line.load(recipe, overrides)
    changed = budgets.stretched(config, total_steps)
    stretched = command_line.load(recipe, [*overrides, *changed])
    plan.validate(stretched)
    return config.to_dict(), stretched.to_dict()


def test_schedule_keeps_its_proportions_and_all_else_stays():
    config, stretched = at("nesterov:nado", 1256)  # half of 2512
    assert stretched["total_steps"] == 1256
    assert stretched["schedule"]["warmup_steps"] == 319.0
    assert stretched["schedule"]["decay_end_step"] == 1248.5
    for changed in (config, stretched):
        del changed["total_steps"]
        del changed["schedule"]["warmup_steps"], changed["schedule"]["decay_end_step"]
    assert stretched == config


def test_own_budget_changes_nothing():
    for recipe in ("lars:fashion", "shampoo:readme", "nesterov:nado"):
        config = command_line.load(recipe)
        assert at(recipe, config.total_steps)[1] == config.to_dict()


@pytest.mark.parametrize("steps", [34, 40, 48, 58, 70, 84])
def test_the_rate_is_the_same_function_of_the_share_done(steps):
    from optim import schedules

    def rate(config, share):
        total = config["total_steps"]
        return float(schedules.polynomial(total_steps=total, **config["schedule"])(share * total))

    config, stretched = at("lars:fashion", steps)
    assert rate(stretched, 0.1) == pytest.approx(6.16, rel=1e-6)  # the end of warm-up: the peak
    assert rate(stretched, 0.05) == pytest.approx(rate(config, 0.05), rel=1e-6)
    # After it, the published decay with its "+ 1": warm-up a tenth of the budget as at 58 steps.
    decayed = 6.16 * (1 - 0.4 * steps / (0.9 * steps + 1)) ** 2
    assert rate(stretched, 0.5) == pytest.approx(decayed, rel=1e-5)


@pytest.mark.parametrize("text", ["", "a", "34,34", "0", "34.5", "-3"])
def test_mistake_names_what_was_given(text):
    with pytest.raises(ValueError, match=f"^budgets={text}:"):
        budgets.parse(text)


def test_list():
    assert budgets.parse("34,40, 48") == [34, 40, 48]
