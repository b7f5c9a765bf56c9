"""Which runs a sweep consists of, and where each of them lies."""

import argparse
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

import workdir as files
from configs import command_line
from errors import UserError

MOST_SEEDS = 10_000
STOPPED_EARLY = "stopped early"  # the beginning of the reason of a run that was hopeless


@dataclasses.dataclass(frozen=True)
class Run:
    """One recipe with one seed, and the folder that is its own.

    Attributes:
      folder: OUT/RECIPE/seed_0007, or OUT/RECIPE/GROUP/seed_0007.
      overrides: --config.FIELD=VALUE, the seed's among them: all that makes the config.
      group: what the runs of a recipe that share all but the seed are called, as steps_000034.
    """

    recipe: str
    seed: int
    folder: pathlib.Path
    overrides: tuple[str, ...] = ()
    group: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, [self.recipe, self.group, f"seed {self.seed}"]))

    def config(self) -> ConfigDict:
        return command_line.load(self.recipe, self.overrides)

    def record(self) -> Mapping[str, Any]:
        """Its run.json, {} without one; UserError: it is damaged, the message names it."""
        file = epath.Path(self.folder / "run.json")
        return files.read_json(file) if file.exists() else {}

    def status(self) -> str | None:
        """What its run.json says, None without one; UserError as `record`."""
        return self.record().get("status")

    def is_complete(self) -> bool:
        """Whether nothing is left to do; a run that was given up is tried again."""
        early = str(self.record().get("reason")).startswith(STOPPED_EARLY)
        return early or self.status() not in (None, "aborted")

    def check(self) -> ConfigDict:
        """Returns its config; UserError if its folder holds the run of another one."""
        config = self.config()
        different = files.other_config(epath.Path(self.folder), config)
        if different:
            raise UserError(
                f"out={self.folder}: holds the run of another config ({different}); "
                "give another folder, or remove this one"
            )
        return config


def plan_runs(
    recipe: str,
    seeds: Sequence[int],
    out: pathlib.Path,
    overrides: Sequence[str] = (),
    group: str = "",
) -> list[Run]:
    """The runs of one recipe that differ in nothing but the seed."""
    folder = out / recipe / group
    return [
        Run(recipe, s, folder / f"seed_{s:04d}", (*overrides, f"--config.seed={s}"), group)
        for s in seeds
    ]


def parse_out(text: str) -> pathlib.Path:
    """The folder of a sweep.

    Raises:
      argparse.ArgumentTypeError: a bucket, which has neither locks nor files that grow.
    """
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text}: must be a folder, for its lock and manifest; mount the bucket on every host"
        )
    return pathlib.Path(text)


def parse_recipes(text: str) -> list[str]:
    """'lars:digits shampoo:digits' -> both, in that order.

    Raises:
      UserError: none at all, or one twice.
    """
    recipes = text.replace(",", " ").split()
    if not recipes:
        raise UserError("recipes: names none; give some, as 'lars:digits shampoo:digits'")
    if len(set(recipes)) < len(recipes):
        raise UserError(f"recipes={text}: names a recipe twice")
    return recipes


def parse_seeds(text: str) -> list[int]:
    """'0:10' -> 0..9, '3,5' -> [3, 5].

    Raises:
      UserError: no integers, none at all, or one twice.
    """
    try:
        first, colon, last = text.partition(":")
        seeds = (
            list(range(int(first), int(last))[: MOST_SEEDS + 1])
            if colon
            else [int(s) for s in text.split(",")]
        )
    except ValueError as e:
        raise UserError(f"seeds={text}: needs integers, as 0:10 (0 to 9) or 0,1,5") from e
    if not seeds:
        raise UserError(f"seeds={text}: holds no seed; 0:10 means 0 to 9")
    if len(seeds) > MOST_SEEDS:
        raise UserError(f"seeds={text}: more than {MOST_SEEDS} seeds")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds={text}: names a seed twice")
    return seeds
