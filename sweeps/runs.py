"""Which runs a sweep consists of, and where each of them lies."""

import dataclasses
import pathlib
from collections.abc import Sequence

from etils import epath

import workdir as files

MOST_SEEDS = 10_000


@dataclasses.dataclass(frozen=True)
class Run:
    """One recipe with one seed and the folder that is its own."""

    recipe: str
    seed: int
    folder: pathlib.Path

    @property
    def name(self) -> str:
        return f"{self.recipe} seed {self.seed}"

    def is_complete(self) -> bool:
        """ValueError: its run.json is damaged; the message names it."""
        file = epath.Path(self.folder / "run.json")
        return file.exists() and files.read_json(file).get("status") != "aborted"


def plan_runs(recipes: Sequence[str], seeds: Sequence[int], out: pathlib.Path) -> list[Run]:
    """All runs, recipe by recipe."""
    return [Run(r, s, out / r / f"seed_{s:04d}") for r in recipes for s in seeds]


def parse_recipes(text: str) -> list[str]:
    """'lars:digits shampoo:digits' -> both, in that order.

    Raises:
      ValueError: none at all, or one twice.
    """
    recipes = text.replace(",", " ").split()
    if not recipes:
        raise ValueError("recipes: names none; give some, as 'lars:digits shampoo:digits'")
    if len(set(recipes)) < len(recipes):
        raise ValueError(f"recipes={text}: names a recipe twice")
    return recipes


def parse_seeds(text: str) -> list[int]:
    """'0:10' -> 0..9, '3,5' -> [3, 5].

    Raises:
      ValueError: no integers, none at all, or one twice.
    """
    try:
        first, colon, last = text.partition(":")
        seeds = (
            list(range(int(first), int(last))[: MOST_SEEDS + 1])
            if colon
            else [int(s) for s in text.split(",")]
        )
    except ValueError as e:
        raise ValueError(f"seeds={text}: needs integers, as 0:10 (0 to 9) or 0,1,5") from e
    if not seeds:
        raise ValueError(f"seeds={text}: holds no seed; 0:10 means 0 to 9")
    if len(seeds) > MOST_SEEDS:
        raise ValueError(f"seeds={text}: more than {MOST_SEEDS} seeds")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={text}: names a seed twice")
    return seeds
