"""Trains one recipe with one seed.

    python main.py --config=configs/shampoo.py:readme --config.seed=3 --workdir=DIR

On several hosts, the same on each of them, with a workdir that all of them see:

    python main.py --config=... --workdir=DIR --distributed            (Cloud TPU, SLURM, ...)
    python main.py --config=... --workdir=DIR --coordinator_address=HOST:PORT --num_processes=2
        --process_id=0                                                 (and =1 on the other)

Exit status: 0 done, 2 user error, 3 diverged, 75 preempted (run it again), 130 interrupted;
anything else is a crash (a full disk, a bug, a host that died): the same command continues.
"""

import contextlib
import errno
import os
import pathlib
import sys
import traceback
from collections.abc import Sequence

from absl import flags

import joining
from configs import command_line, plan
from errors import DIVERGED, DONE, FAILED, INTERRUPTED, PREEMPTED, USER_ERROR, Preempted, UserError

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM)


def crashed(error: Exception, workdir: str | None) -> int:
    """Says why and returns the exit status; on several hosts this process ends here.

    A regular end would first take leave of the other hosts, which are waiting for this one. They
    notice its death by a broken connection, or by the missing heartbeat. Where the disk is full,
    there may be no place for the words, either.
    """
    several = "hosts" in sys.modules and sys.modules["hosts"].count() > 1
    is_of_disk = isinstance(error, OSError) and error.errno in DISK
    if not (several or is_of_disk):
        raise error
    with contextlib.suppress(OSError):
        if isinstance(error, OSError) and is_of_disk:
            folder = pathlib.Path(workdir or "").absolute()
            file = pathlib.Path(error.filename or folder).absolute()
            inside = file == folder or folder in file.parents
            place = f"workdir={workdir}: cannot be written any more" if inside else f"{file}: fails"
            print(
                f"error: {place} ({error.strerror}); mend that, then the same command continues",
                file=sys.stderr,
                flush=True,
            )
        else:
            traceback.print_exception(error)
        if several:
            print(
                "this host ends, and with it the others; the same command continues from the last "
                "checkpoint",
                file=sys.stderr,
                flush=True,
            )
    if several:
        os._exit(FAILED)
    return FAILED


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
    joining.define_flags(flag_values)
    if {"--help", "-h", "-help"} & set(argv[1:]):
        print(f"{__doc__}\nFlags:\n{flag_values.get_help()}")
        return DONE
    try:
        config = command_line.parse(argv, flag_values)
        if not flag_values.workdir:
            raise UserError("--workdir: missing; give the folder that is to hold this run")
        plan.validate(config)
        joining.join(flag_values)
        import hosts
        from configs import optimizers

        optimizers.from_recipe(
            config.optimizer.to_dict(), config.schedule.to_dict(), config.total_steps
        )
        import train  # TensorFlow and the devices start only for a config that makes sense

        result = train.train_and_evaluate(config, flag_values.workdir)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_ERROR
    except Preempted as e:
        print(e, file=sys.stderr)
        return PREEMPTED
    except Exception as e:
        return crashed(e, flag_values.workdir)
    if hosts.is_first():
        print(
            f"{result.recipe} seed {result.seed}: {result.status}, "
            f"final accuracy {result.final_accuracy}, "
            f"steps to {result.target_accuracy:.4g}: {result.steps_to_target or 'not reached'}"
            + ("; the same command continues" if result.status == "aborted" else "")
        )
    return {"done": DONE, "diverged": DIVERGED, "aborted": INTERRUPTED}[result.status]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
