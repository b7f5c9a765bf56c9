"""Command lines of argparse whose mistakes are one line, like every other user error."""

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """A wrong flag is one message and exit status 2."""

    def error(self, message: str) -> NoReturn:
        program = self.prog.removeprefix("python ")
        self.exit(2, f"error: {message}; see python {program} --help\n")
