"""SIGTERM and SIGINT: noted at once, acted upon between two steps."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any


class Signals:
    """Notes the first SIGTERM or SIGINT; a second one ends the process at once.

    On several hosts SIGTERM is jax.distributed's to catch: all hosts then learn of it at the same
    poll, so that all save the same step. Hence every host must poll equally often. SIGINT is handed
    on to it as a SIGTERM, and only a second SIGINT (or SIGKILL) ends such a process at once.
    """

    def __init__(self) -> None:
        self.noted: int | None = None
        self.polls = 0

    def __enter__(self) -> "Signals":
        import hosts  # late: main.py knows Preempted before it may start any device

        self.hosts = hosts
        self.several = hosts.count() > 1
        self.interrupted = False
        self.previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT,) if self.several else (signal.SIGTERM, signal.SIGINT):
                self.previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        for other in self.previous:
            signal.signal(other, signal.SIG_DFL)
        if self.several:
            self.interrupted = True
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.noted = number

    @property
    def by_user(self) -> bool:
        return self.noted == signal.SIGINT

    def received(self) -> bool:
        """Whether to stop now; the same answer on all hosts at the same poll."""
        self.polls += 1
        if self.several and not self.noted and self.hosts.told_to_stop(self.polls):
            by_user = any(self.hosts.gather(self.interrupted))
            self.noted = signal.SIGINT if by_user else signal.SIGTERM
        return self.noted is not None

    def while_quiet(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, up to the first poll that finds a signal."""
        for item in items:
            if self.received():
                return
            yield item
