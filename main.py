"""Trains one recipe with one seed.

    python main.py --config=configs/shampoo.py:readme --config.seed=3 --workdir=DIR

Exit status: 0 done, 2 user error, 3 diverged.
"""

import sys

from absl import app, flags

from configs import command_line, plan

DONE, USER_ERROR, DIVERGED = 0, 2, 3

command_line.define_config_flag(flags.FLAGS)
flags.DEFINE_string("workdir", None, "Folder of this run; made if it does not exist.")


def main(argv: list[str]) -> int:
    """Returns the exit status; user errors are one line on standard error."""
    app.define_help_flags()
    try:
        config = command_line.parse(argv, flags.FLAGS)
        if not flags.FLAGS.workdir:
            raise ValueError("--workdir: missing; give the folder that is to hold this run")
        plan.validate(config)
        import train  # TensorFlow and the devices start only for a config that makes sense

        result = train.train_and_evaluate(config, flags.FLAGS.workdir)
    except ValueError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    print(
        f"{result.recipe} seed {result.seed}: {result.status}, "
        f"final accuracy {result.final_accuracy}, "
        f"steps to {result.target_accuracy:.4g}: {result.steps_to_target or 'not reached'}"
    )
    return DIVERGED if result.status == "diverged" else DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv))
