"""Warns when the event loop of a worker does not answer, and ends a process that cannot stop."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from pgq._log import about_worker, log

_PAUSE_SECONDS: Final = 1.0
_BLOCKED_SECONDS: Final = 5.0
_MAX_NAMED: Final = 5


class Watch:
    """A thread that asks the running loop again and again whether it answers.

    Args:
        name: of the worker.
        at_work: called in the thread, names the jobs whose handlers may block the loop.
    """

    def __init__(self, name: str, at_work: Callable[[], list[str]]) -> None:
        self._name = name
        self._at_work = at_work
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._asked_at = math.inf  # of time.monotonic(), until it is answered
        self._ends_at = math.inf  # of time.monotonic()
        self._status = 0
        self._thread = threading.Thread(target=self._watch, name="pgq-watch", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; the thread ends by itself."""
        self._stopped.set()

    def end_within(self, seconds: float, status: int) -> None:
        """End the process then, with this exit status, if the loop does not answer.

        A signal handler may call it: the loop would not hear of the signal.
        """
        self._ends_at = min(self._ends_at, time.monotonic() + seconds)
        self._status = status

    def blocked_for(self) -> float | None:
        """Return for how many seconds the loop has not answered, if that is long; in any thread."""
        seconds = time.monotonic() - self._asked_at
        return None if seconds < _BLOCKED_SECONDS or self._stopped.is_set() else seconds

    def _watch(self) -> None:
        while not self._stopped.wait(_PAUSE_SECONDS):
            answered = threading.Event()
            self._asked_at = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # it was closed without a stop
                return
            if not answered.wait(_BLOCKED_SECONDS) and not self._stopped.is_set():
                log.warning(
                    "the event loop has not answered for %g s, and its handlers wait: move code"
                    " that blocks into a plain function, which runs in a thread; at work: %s",
                    _BLOCKED_SECONDS,
                    self._named(),
                    extra=about_worker(self._name),
                )
            while not (answered.wait(_PAUSE_SECONDS) or self._stopped.is_set()):
                if time.monotonic() > self._ends_at:
                    log.error(
                        "the event loop does not answer, and the worker has to stop: the process"
                        " ends, and its leases will run out; at work: %s",
                        self._named(),
                        extra=about_worker(self._name),
                    )
                    os._exit(self._status)
            self._asked_at = math.inf

    def _named(self) -> str:
        jobs = self._at_work()
        more = f" and {len(jobs) - _MAX_NAMED} more" if len(jobs) > _MAX_NAMED else ""
        return (", ".join(jobs[:_MAX_NAMED]) or "none") + more
