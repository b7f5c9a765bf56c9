"""Errors that end a program with a message, and the exit statuses of all programs."""

import argparse
from typing import NoReturn

DONE, FAILED, USER_ERROR, DIVERGED, PREEMPTED, INTERRUPTED = 0, 1, 2, 3, 75, 130
CRASHED = 70  # of one of several hosts; a launcher restarts it


class UserError(ValueError):
    """A mistake in the user's input, as "field=value: the rule; the fix".

    Programs print it as one message and exit with `USER_ERROR`. Any other exception is a crash.
    """


class Preempted(Exception):  # noqa: N818
    """A run received SIGTERM and has saved its state after `step` updates."""

    def __init__(self, step: int):
        super().__init__(f"preempted after step {step}; the same command continues")
        self.step = step


class OneLineParser(argparse.ArgumentParser):
    """Reports a wrong flag in one line and exits with `USER_ERROR`."""

    def error(self, message: str) -> NoReturn:
        program = self.prog.removeprefix("python ")
        self.exit(USER_ERROR, f"error: {message}; see python {program} --help\n")
