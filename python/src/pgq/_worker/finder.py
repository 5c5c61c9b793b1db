"""Finds the queues of a prefix: those that are there, and those that are created later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from pgq import _sql
from pgq._calls import Connection
from pgq._errors import NotPermitted
from pgq._queue import Queue
from pgq._worker.config import Prefix
from pgq._worker.link import Link, backoff, pause

_FIND_SECONDS: Final = 5.0


class Names(Queue):
    """Knows the names of queues."""

    async def beginning_with(
        self, prefixes: Sequence[Prefix], *, connection: Connection
    ) -> set[str]:
        """Return the queues that the caller may observe, and whose names begin with one."""
        texts = [prefix.text for prefix in prefixes]
        rows = await self._fetch(connection, _sql.QUEUES_OF_PREFIXES, texts)
        return {row["name"] for row in rows}


class Finder:
    """Looks for queues again and again, until the worker stops.

    Args:
        names: of queues.
        prefixes: of the queues; without any it looks for nothing.
        link: the connection.
        found: called with the names of all queues that are there, after each look.
        stopping: is set when the worker stops.
    """

    def __init__(
        self,
        names: Names,
        prefixes: Sequence[Prefix],
        link: Link,
        found: Callable[[set[str]], None],
        stopping: asyncio.Event,
    ) -> None:
        self._names = names
        self._prefixes = prefixes
        self._link = link
        self._found = found
        self._stopping = stopping

    async def look(self) -> None:
        """Look once; raises NotPermitted without the privilege "observe" on some queue."""
        if self._prefixes:
            look = partial(self._names.beginning_with, self._prefixes)
            self._found(await self._link.run(look))

    async def run(self) -> None:
        """Look until the worker stops; what fails is tried again."""
        pauses = backoff()
        while not self._stopping.is_set():
            await pause(self._stopping, _FIND_SECONDS)
            try:
                await self.look()
            except NotPermitted:
                self._found(set())  # the privilege went with the last queue; it may come back
            except Exception as exc:
                seconds = max(next(pauses), self._link.shut_for())
                if not self._link.may_recover(exc, seconds):
                    raise
                await pause(self._stopping, seconds)
