"""docs/recipes.md's table of values: python -m reporting.recipes writes it anew from configs/."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import command_line
from reporting import claims, markdown_table

PAGE = claims.ROOT / "docs" / "recipes.md"
BEGIN, END = "<!-- values: python -m reporting.recipes -->", "<!-- end of values -->"
TASK = "imagenet2012"  # recipes on other data sets are proxies: nobody published them
# What a publication may state or leave open; everything of the optimizer and the schedule is added.
FIELDS = (
    "global_batch_size",
    "total_steps",
    "eval_every_steps",
    "target_accuracy",
    "mlperf_division",
    "label_smoothing",
    "dataset.image_size",
    "dataset.image_dtype",
    "dataset.crop_area_min",
    "dataset.shuffle_buffer_examples",
    "model.stage_sizes",
    "model.width",
    "model.bn_span",
    "model.bn_decay",
    "model.bn_epsilon",
    "model.compute_dtype",
    "model.logits_dtype",
)
MARKS = {"unverified": "(u)", "assumed": "(a)"}


def published() -> list[ConfigDict]:
    """The recipes of configs/ that are no proxies, by file and in the order of the file."""
    recipes = [
        f"{name}:{variant}"
        for name in command_line.optimizers()
        for variant in getattr(importlib.import_module(f"configs.{name}"), "VARIANTS", ())
    ]
    configs = [command_line.load(recipe) for recipe in recipes]
    return [config for config in configs if config.dataset.name == TASK]


def fields(configs: Sequence[ConfigDict]) -> list[str]:
    """Dotted names, each once: FIELDS, then the schedules' and the optimizers'."""
    found = dict.fromkeys(FIELDS)
    for section in ("schedule", "optimizer"):
        for config in configs:
            found |= dict.fromkeys(f"{section}.{name}" for name in config[section])
    return [field for field in found if field != "optimizer.name"]


def value(config: ConfigDict, field: str) -> Any:
    """The value at a dotted name; None where the recipe has no such field."""
    here: Any = config
    for part in field.split("."):
        if part not in here:
            return None
        here = here[part]
    return here


def cell(config: ConfigDict, field: str) -> str:
    """A value with the marks of its field; empty where the recipe has no such field."""
    here = value(config, field)
    marks = [mark for flag, mark in MARKS.items() if field in config[flag]]
    return " ".join(["" if here is None else str(here), *marks]).strip()


def table() -> str:
    """Markdown: a row for each field in which the recipes differ, then those in which none does."""
    configs = published()
    cells = {field: [cell(config, field) for config in configs] for field in fields(configs)}
    same = {field: row[0] for field, row in cells.items() if len(set(row)) == 1}
    lines = [
        *markdown_table.table(
            ("field", *(f"`{config.recipe}`" for config in configs)),
            [(f"`{field}`", *row) for field, row in cells.items() if field not in same],
        ),
        "",
        "The same in all of them:",
        ", ".join(f"`{field}` {text}" for field, text in same.items()) + ".",
    ]
    return "\n".join(lines)


def inserted(page: str) -> str:
    """The page with its table replaced by the present one."""
    return claims.replaced(page, BEGIN, END, table())


if __name__ == "__main__":
    sys.exit(claims.write(PAGE, inserted))
