"""What the studies consist of: optimizers tuned alike, then measured with fresh seeds."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping

OPTIMIZERS = ("lars", "nesterov", "sm3", "shampoo")
# Not the authors' method: tuned alike, a row apart.
ALL = (*OPTIMIZERS, "shampoo_lars_scale")
BATCH_TRIALS, BATCH_TUNING_SEEDS, BATCH_SEEDS = 6, "1000:1002", "0:8"


@dataclasses.dataclass(frozen=True)
class Study:
    """One data set's study.

    Attributes:
      task: the variant of the recipes, as `digits`.
      optimizers: that are tuned; at the batch sizes `OPTIMIZERS` are.
      trials: of each optimizer.
      tuning_seeds: of each trial, as sweep.py takes them; none is measured with.
      total_steps: of the trials.
      ladder: (optimizers, budgets, seeds) of each call, the latter two as sweep.py takes them.
      batches: {global batch size: its budgets in steps, the trials' last}, the same numbers of
        epochs for all.
      eval_every_examples: cadence of evaluations at every batch size; 0 without `batches`.
    """

    task: str
    optimizers: tuple[str, ...]
    trials: int
    tuning_seeds: str
    total_steps: int
    ladder: tuple[tuple[tuple[str, ...], str, str], ...]
    batches: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    eval_every_examples: int = 0


STUDIES = {
    # Two seeds a trial: one image is 0.3 points of 360.
    "digits": Study("digits", OPTIMIZERS, 24, "1000:1002", 60, ((OPTIMIZERS, "48,60,76", "0:10"),)),
    "fashion": Study(
        "fashion",
        ALL,
        24,
        "1000",
        58,
        ((ALL, "34,40,48,58,70,84", "0:10"), (OPTIMIZERS, "48,58,70", "10:20")),
        {768: (64, 128), 1536: (32, 64), 3072: (16, 32)},
        eval_every_examples=8 * 3072,
    ),
}


def commands(study: Study, out: pathlib.Path, workers: int) -> Iterator[list[str]]:
    """The arguments of sweep.py, call by call; each continues where it was interrupted."""

    def call(folder: pathlib.Path, optimizers: tuple[str, ...], *arguments: str) -> list[str]:
        recipes = " ".join(f"{optimizer}:{study.task}" for optimizer in optimizers)
        return [f"--recipes={recipes}", *arguments, f"--out={folder}", f"--workers={workers}"]

    tuning = out / "tuning"
    yield call(
        tuning,
        study.optimizers,
        f"--trials={study.trials}",
        f"--seeds={study.tuning_seeds}",
        f"--config.eval_every_steps={study.total_steps}",
    )
    tuned = f"--tuned={tuning / 'trials.json'}"
    for optimizers, budgets, seeds in study.ladder:
        yield call(out / "ladder", optimizers, tuned, f"--budgets={budgets}", f"--seeds={seeds}")
    for batch, steps in study.batches.items():
        folder = out / f"batch_{batch:06d}"
        same = [
            f"--config.global_batch_size={batch}",
            f"--config.model.bn_span={batch}",
            f"--config.eval_every_steps={study.eval_every_examples // batch}",
        ]
        yield call(
            folder / "tuning",
            OPTIMIZERS,
            tuned,
            "--search=schedule.peak_learning_rate",
            f"--trials={BATCH_TRIALS}",
            f"--budgets={steps[-1]}",
            f"--seeds={BATCH_TUNING_SEEDS}",
            *same,
        )
        yield call(
            folder,
            OPTIMIZERS,
            tuned,
            f"--tuned={folder / 'tuning' / 'trials.json'}",
            f"--budgets={','.join(map(str, steps))}",
            f"--seeds={BATCH_SEEDS}",
            *same,
        )
