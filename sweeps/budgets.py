"""Budget ladders: a recipe at another number of steps, its schedule stretched to it."""

from ml_collections import ConfigDict

from errors import UserError


def parse(text: str) -> list[int]:
    """'34,40,48' -> [34, 40, 48]; UserError: no whole numbers of steps, or one twice."""
    try:
        budgets = [int(word) for word in text.split(",")]
    except ValueError as e:
        raise UserError(f"budgets={text}: needs numbers of steps, as 34,40,48") from e
    if min(budgets) < 1:
        raise UserError(f"budgets={text}: a run needs at least 1 step")
    if len(set(budgets)) < len(budgets):
        raise UserError(f"budgets={text}: names a budget twice")
    return budgets


def group(total_steps: int) -> str:
    """The folder between recipe and seed: steps_000034."""
    return f"steps_{total_steps:06d}"


def stretched(config: ConfigDict, total_steps: int) -> list[str]:
    """Overrides that run the config for `total_steps` with its schedule in the same proportions.

    Multiplied by total_steps / config.total_steps: `schedule.warmup_steps` and
    `schedule.decay_end_step`; the decay's length follows, being what is left of total_steps.
    All else stays as it is: learning rates, powers, the cadences of evaluation, log and checkpoint
    (every run is evaluated at its end, too), and counts of steps inside the optimizer, as Shampoo's
    `start_preconditioning_step`: statistics settle in steps, not in a share of the budget.
    """
    factor = total_steps / config.total_steps
    return [f"--config.total_steps={total_steps}"] + [
        f"--config.schedule.{field}={config.schedule[field] * factor}"
        for field in ("warmup_steps", "decay_end_step")
        if config.schedule[field]
    ]
