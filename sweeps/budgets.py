"""Budget ladders: a recipe at another number of steps, with its schedule scaled to it."""

from ml_collections import ConfigDict

from errors import UserError


def parse(text: str) -> list[int]:
    """Parses '34,40,48'; UserError for anything but distinct whole numbers of steps."""
    try:
        budgets = [int(word) for word in text.split(",")]
    except ValueError as e:
        raise UserError(f"budgets={text}: must be numbers of steps, as 34,40,48") from e
    if min(budgets) < 1:
        raise UserError(f"budgets={text}: must be at least 1 step")
    if len(set(budgets)) < len(budgets):
        raise UserError(f"budgets={text}: names a budget twice; leave one out")
    return budgets


def group(total_steps: int) -> str:
    """Returns the folder between recipe and seed, such as steps_000034."""
    return f"steps_{total_steps:06d}"


def stretched(config: ConfigDict, total_steps: int) -> list[str]:
    """Returns overrides that train for `total_steps` with a schedule of the same proportions.

    `schedule.warmup_steps` and `schedule.decay_end_step` are multiplied by total_steps /
    config.total_steps. The decay takes the remaining steps. Everything else keeps its value:
    learning rates, powers, the cadences of evaluation, log and checkpoint, and numbers of steps of
    the optimizer, such as Shampoo's `start_preconditioning_step`, because statistics settle after a
    number of steps and not after a share of the budget.
    """
    factor = total_steps / config.total_steps
    return [f"--config.total_steps={total_steps}"] + [
        f"--config.schedule.{field}={config.schedule[field] * factor}"
        for field in ("warmup_steps", "decay_end_step")
        if config.schedule[field]
    ]
