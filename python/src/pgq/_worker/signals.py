"""SIGTERM and SIGINT, which stop the runs of a process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, Protocol


class Signalled(Protocol):
    """What a signal stops."""

    def signalled(self, number: int) -> None:
        """Stop, or abort what was stopped before."""
        ...


class Signals:
    """Lets SIGTERM and SIGINT stop the runs of the main thread, where signals can be handled.

    What the application has added to the loop is called, too: it could not be put back.
    """

    def __init__(self) -> None:
        self._runs: list[Signalled] = []
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def stop(self, run: Signalled) -> Generator[None, None, None]:
        """Let them stop a run while the block lasts."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if not self._runs:
            self._replace()
        self._runs.append(run)
        try:
            yield
        finally:
            self._runs.remove(run)
            if not self._runs:
                self._restore()

    def _replace(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not None:  # else it is not Python's, nor to be restored
                self._before[number] = signal.signal(number, self._signalled)
                signal.siginterrupt(number, False)

    def _restore(self) -> None:
        while self._before:
            number, action = self._before.popitem()
            if signal.getsignal(number) == self._signalled:
                signal.signal(number, action)

    def forget(self) -> None:
        """In a process that was forked: the runs are its parent's."""
        self._runs.clear()
        self._restore()

    def _signalled(self, number: int, _: object) -> None:
        for run in self._runs:
            run.signalled(number)


signals: Final = Signals()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=signals.forget)
