"""Trains one recipe with one seed.

    python main.py --config=configs/shampoo.py:readme --config.seed=3 --workdir=DIR

Exit status: 0 done, 2 user error, 3 diverged, 75 preempted (run it again), 130 interrupted.
"""

import pathlib
import sys
import traceback
from collections.abc import Sequence

from absl import flags

from configs import command_line, plan
from interruption import Preempted

DONE, USER_ERROR, DIVERGED, PREEMPTED, INTERRUPTED = 0, 2, 3, 75, 130


def is_ours(error: ValueError) -> bool:
    """Whether this project's own code raised it: a user error, not a bug in a library's use."""
    raised_in = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    root = pathlib.Path(__file__).parent.resolve()
    return root in raised_in.resolve().parents and "site-packages" not in raised_in.parts


def main(argv: Sequence[str]) -> int:
    """Returns the exit status; user errors are one line on standard error."""
    argv = command_line.joined(argv)
    flag_values = flags.FlagValues()
    command_line.define_config_flag(flag_values, argv)
    flags.DEFINE_string(
        "workdir",
        None,
        "Folder of this run; made if it does not exist.",
        flag_values=flag_values,
    )
    if {"--help", "-h", "-help"} & set(argv[1:]):
        print(f"{__doc__}\nFlags:\n{flag_values.get_help()}")
        return DONE
    try:
        config = command_line.parse(argv, flag_values)
        if not flag_values.workdir:
            raise ValueError("--workdir: missing; give the folder that is to hold this run")
        plan.validate(config)
        import optim

        optim.from_recipe(config.optimizer.to_dict(), config.schedule.to_dict(), config.total_steps)
        import train  # TensorFlow and the devices start only for a config that makes sense

        result = train.train_and_evaluate(config, flag_values.workdir)
    except ValueError as e:
        if not is_ours(e):
            raise
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    except Preempted as e:
        print(e, file=sys.stderr)
        return PREEMPTED
    print(
        f"{result.recipe} seed {result.seed}: {result.status}, "
        f"final accuracy {result.final_accuracy}, "
        f"steps to {result.target_accuracy:.4g}: {result.steps_to_target or 'not reached'}"
    )
    return {"done": DONE, "diverged": DIVERGED, "aborted": INTERRUPTED}[result.status]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
