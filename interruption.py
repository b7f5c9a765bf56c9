"""SIGTERM and SIGINT: noted at once, acted upon between two steps."""

import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any


class Preempted(Exception):  # noqa: N818
    """SIGTERM ended a run, which has saved what it had; the same command continues it."""

    def __init__(self, step: int):
        super().__init__(f"preempted after step {step}; the same command continues")
        self.step = step


class Signals:
    """Notes the first SIGTERM or SIGINT; a second one ends the process at once.

    On several hosts SIGTERM is jax.distributed's to catch: all hosts then learn of it at the same
    poll, so that all save the same step. Hence every host must poll equally often.
    """

    def __init__(self) -> None:
        self.noted: int | None = None
        self.polls = 0

    def __enter__(self) -> "Signals":
        import jax  # late: main.py knows Preempted before it may start any device

        self.n_hosts = jax.process_count()
        self.previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread() and self.n_hosts == 1:
            for number in (signal.SIGTERM, signal.SIGINT):
                self.previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        self.noted = number
        for other in self.previous:
            signal.signal(other, signal.SIG_DFL)

    @property
    def by_user(self) -> bool:
        return self.noted == signal.SIGINT

    def received(self) -> bool:
        """Whether to stop now; the same answer on all hosts at the same poll."""
        self.polls += 1
        if self.n_hosts > 1:
            from jax.experimental import multihost_utils

            if multihost_utils.reached_preemption_sync_point(self.polls):
                self.noted = signal.SIGTERM
        return self.noted is not None

    def while_quiet(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, up to the first poll that finds a signal."""
        for item in items:
            if self.received():
                return
            yield item
