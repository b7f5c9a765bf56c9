"""The runs of a sweep, and the folder of each of them."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from configs import command_line
from errors import UserError
from run import files

MOST_SEEDS = 10_000


@dataclasses.dataclass(frozen=True)
class Run:
    """One recipe with one seed, and its folder.

    Attributes:
      folder: OUT/RECIPE/seed_0007, or OUT/RECIPE/GROUP/seed_0007.
      overrides: --config.FIELD=VALUE, including the seed: they determine the config.
      group: name of the runs of a recipe that differ only in the seed, such as steps_000034.
    """

    recipe: str
    seed: int
    folder: epath.Path
    overrides: tuple[str, ...] = ()
    group: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, [self.recipe, self.group, f"seed {self.seed}"]))

    def config(self) -> ConfigDict:
        return command_line.load(self.recipe, self.overrides)

    def record(self) -> Mapping[str, Any]:
        """Returns run.json, {} without one; UserError if it is damaged."""
        file = self.folder / "run.json"
        return files.read_json(file) if file.exists() else {}

    def status(self) -> str | None:
        """Returns the status in run.json, None without one; UserError if it is damaged."""
        return self.record().get("status")

    def is_complete(self) -> bool:
        """Returns whether nothing is left to do. A failed run is tried again."""
        return self.status() not in (None, "aborted")

    def check(self) -> ConfigDict:
        """Returns the config; UserError if the folder contains the run of another one."""
        config = self.config()
        difference = files.other_config(self.folder, config)
        if difference:
            raise UserError(
                f"out={self.folder}: contains the run of another config ({difference}); use "
                "another folder, or remove this one"
            )
        return config


def folder_name(recipe: str) -> str:
    """Returns a recipe's name in paths: lars:digits -> lars-digits."""
    return recipe.replace(":", "-")


def plan_runs(
    recipe: str,
    seeds: Sequence[int],
    out: epath.Path,
    overrides: Sequence[str] = (),
    group: str = "",
) -> list[Run]:
    """Returns the runs of one recipe that differ only in the seed."""
    folder = epath.Path(out) / folder_name(recipe)
    folder = folder / group if group else folder
    return [
        Run(recipe, s, folder / f"seed_{s:04d}", (*overrides, f"--config.seed={s}"), group)
        for s in seeds
    ]


def parse_out(text: str) -> epath.Path:
    """Returns the folder of a sweep; argparse.ArgumentTypeError for an empty name."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return epath.Path(text)


def parse_recipes(text: str) -> list[str]:
    """Parses 'lars:digits shampoo:digits', in that order.

    Raises:
      UserError: no recipe, or one that is named twice.
    """
    recipes = text.replace(",", " ").split()
    if not recipes:
        raise UserError("recipes: missing; give some, as 'lars:digits shampoo:digits'")
    if len(set(recipes)) < len(recipes):
        raise UserError(f"recipes={text}: names a recipe twice; leave one out")
    return recipes


def parse_seeds(text: str) -> list[int]:
    """Parses '0:10' (0 to 9) or '3,5'.

    Raises:
      UserError: not integers, no seed, too many, or one that is named twice.
    """
    try:
        first, colon, last = text.partition(":")
        seeds = (
            list(range(int(first), int(last))[: MOST_SEEDS + 1])
            if colon
            else [int(s) for s in text.split(",")]
        )
    except ValueError as e:
        raise UserError(f"seeds={text}: must be integers, as 0:10 (0 to 9) or 0,1,5") from e
    if not seeds:
        raise UserError(f"seeds={text}: contains no seed; 0:10 means 0 to 9")
    if len(seeds) > MOST_SEEDS:
        raise UserError(f"seeds={text}: must be at most {MOST_SEEDS} seeds")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds={text}: names a seed twice; leave one out")
    return seeds
