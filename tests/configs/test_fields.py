"""The table of config fields: complete, and its page up to date."""

import importlib
import pathlib

import pytest

from configs import base, command_line, fields

RECIPES = [
    f"{name}:{variant}"
    for name in ("lars", "nesterov", "shampoo", "shampoo_lars_scale", "sm3")
    for variant in importlib.import_module(f"configs.{name}").VARIANTS
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_field_of_a_recipe_is_in_the_table(recipe):
    config = base.flatten(command_line.load(recipe))
    assert set(config) <= set(fields.FIELDS)
    common = {name for name in fields.FIELDS if not name.startswith("optimizer.")}
    assert common <= set(config)


def test_every_field_of_the_table_is_in_a_recipe():
    names = set().union(*(base.flatten(command_line.load(recipe)) for recipe in RECIPES))
    assert names == set(fields.FIELDS)


def test_recipe_files_are_those_with_get_config():
    names = set(command_line.optimizers())  # your own recipes may be among them
    assert {recipe.partition(":")[0] for recipe in RECIPES} <= names
    assert not names & {"base", "command_line", "fields", "optimizers", "plan", "search"}


def test_fields_that_may_change_on_resume_share_a_row():
    assert fields.MAY_CHANGE_ON_RESUME < fields.SAME_ROW
    assert {"seed", "unverified", "assumed"} <= fields.SAME_ROW - fields.MAY_CHANGE_ON_RESUME


def test_the_page_is_up_to_date():
    page = pathlib.Path(fields.__file__).parents[1] / "docs" / "config.md"
    assert page.read_text("utf-8") == fields.page(), (
        "run: python -m configs.fields > docs/config.md"
    )
