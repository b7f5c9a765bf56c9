"""Trains one recipe with one seed.

    python main.py --config=configs/shampoo.py:readme --config.seed=3 --workdir=DIR

On several hosts, run the same command on each of them, with a workdir that all of them see:

    python main.py --config=... --workdir=DIR --distributed            (Cloud TPU, SLURM, ...)
    python main.py --config=... --workdir=DIR --coordinator_address=HOST:PORT --num_processes=2
        --process_id=0                                                 (and =1 on the other)

Exit status: 0 done, 2 user error, 3 diverged, 75 preempted (run it again), 130 interrupted.
Any other status is a crash, such as a full disk, a bug or a host that died (70 on several hosts).
The same command continues from the last checkpoint.
"""

import sys
from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict

from configs import command_line, plan
from errors import (
    DIVERGED,
    DONE,
    INTERRUPTED,
    PREEMPTED,
    USER_ERROR,
    Preempted,
    UserError,
)
from run import distributed


def warn_of_unscaled_schedule(argv: Sequence[str], config: ConfigDict) -> None:
    """Prints a warning if an override changes the length of a run but not that of its warm-up."""
    fields = {argument.partition("=")[0] for argument in argv}
    warmup_steps = config.schedule.warmup_steps
    scales_neither = "--config.schedule.warmup_steps" not in fields and warmup_steps > 0
    if "--config.total_steps" in fields and scales_neither:
        print(
            f"warning: total_steps={config.total_steps} does not scale schedule.warmup_steps="
            f"{warmup_steps:g}; set it too, or use sweep.py --budgets={config.total_steps}",
            file=sys.stderr,
        )


def main(argv: Sequence[str]) -> int:
    """Returns the exit status; user errors are one line on standard error."""
    argv = command_line.joined(argv)
    options = flags.FlagValues()
    command_line.define_config_flag(options, argv)
    flags.DEFINE_string(
        "workdir",
        None,
        "Folder of this run, created if it does not exist.",
        flag_values=options,
    )
    distributed.define_flags(options)
    if {"--help", "-h", "-help"} & set(argv[1:]):
        print(f"{__doc__}\nFlags:\n{options.get_help()}")
        return DONE
    try:
        config = command_line.parse(argv, options)
        if not options.workdir:
            raise UserError("--workdir: missing; give a folder for this run")
        plan.validate(config)
        distributed.join(options)
        if distributed.is_first():
            warn_of_unscaled_schedule(argv, config)
        import train  # starts TensorFlow and the devices, once the config makes sense

        result = train.train_and_evaluate(config, options.workdir)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    except Preempted as e:
        print(e, file=sys.stderr)
        return PREEMPTED
    except Exception as e:
        return distributed.crash(e, options.workdir)
    if distributed.is_first():
        print(
            f"{result.recipe} seed {result.seed}: {result.status}, "
            f"final accuracy {result.final_accuracy}, "
            f"steps to {result.target_accuracy:.4g}: {result.steps_to_target or 'not reached'}"
            + ("; the same command continues" if result.status == "aborted" else "")
        )
        if result.recipe.endswith(":smoke") and result.status == "done":
            print("the smoke test passed; it is too short to reach the target")
    return {"done": DONE, "diverged": DIVERGED, "aborted": INTERRUPTED}[result.status]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
