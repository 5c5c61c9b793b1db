"""Claims whose answer was lost: what they may have leased is given back."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from pgq._calls import Connection
from pgq._log import about_worker, log, trouble
from pgq._queue import Queue
from pgq._worker.attempt import NewTask
from pgq._worker.holding import Holding
from pgq._worker.link import Link, is_transient, pause
from pgq._worker.listen import Listener

_FIND_SECONDS: Final = 0.2  # until lost claims are looked for once more; then twice as long
_FIND_AGAIN_SECONDS: Final = 5.0  # at most between two looks for them


class LostClaims:
    """Looks for the jobs of lost claims as long as these may be leased.

    Args:
        worker: its name.
        queue: any queue.
        link: the connection of claims: none is being answered while it is used here.
        holding: the jobs that are not to be given back.
        listener: is woken when there are some to be claimed again.
        stopping: is set when there is to be only one look more.
        new_task: makes a task.
    """

    def __init__(
        self,
        worker: str,
        queue: Queue,
        link: Link,
        *,
        holding: Holding,
        listener: Listener,
        stopping: asyncio.Event,
        new_task: NewTask,
    ) -> None:
        self._worker = worker
        self._queue = queue
        self._link = link
        self._holding = holding
        self._listener = listener
        self._stopping = stopping
        self._new_task = new_task
        self._until: dict[int, float] = {}  # by session: until when their leases last
        self._finding: asyncio.Task[None] | None = None

    def expect(self, seconds: float) -> None:
        """Look for what the last claim has leased for so many seconds, if it got a connection."""
        if (pid := self._link.pid) is not None:
            self._until[pid] = time.monotonic() + seconds
            if self._finding is None or self._finding.done():
                self._finding = self._new_task(self._find(), "pgq lost claims")

    def finding(self) -> list[asyncio.Task[None]]:
        """Return the task that looks, if there was one."""
        return [] if self._finding is None else [self._finding]

    async def _find(self) -> None:
        """Give back what lost claims have leased, as long as it is: they may be still under way."""
        seconds = _FIND_SECONDS
        while self._until:
            await pause(self._stopping, seconds)
            try:
                given_back = await self._link.run(self._release)
            except Exception as exc:  # noqa: BLE001 the leases run out
                if not is_transient(exc):
                    log.warning(
                        "jobs of lost claims cannot be given back: %r", exc, extra=trouble(exc)
                    )
                    return
            else:
                if given_back:
                    log.info(
                        "jobs of claims that were not answered are given back: %d",
                        given_back,
                        extra=about_worker(self._worker),
                    )
                    self._listener.wake()
            if self._stopping.is_set():
                return
            now = time.monotonic()
            self._until = {pid: until for pid, until in self._until.items() if until > now}
            seconds = min(2 * seconds, _FIND_AGAIN_SECONDS)

    async def _release(self, *, connection: Connection) -> int:
        release, held = self._queue.release_unheld, self._holding.tokens()
        return sum(
            [
                len(await release(self._worker, held, pid, connection=connection))
                for pid in list(self._until)
            ]
        )
