"""Connections that are kept, and what is tried again when one is lost."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import asyncpg
import asyncpg.pool

from pgq._errors import Error

T = TypeVar("T")
Call: TypeAlias = Callable[..., Awaitable[T]]  # a method of Queue; takes connection=

_TRANSIENT_CLASSES: Final = frozenset({"08", "40", "53", "57"})
_TRANSIENT_STATES: Final = frozenset({"25006", "55P03"})  # a standby; a lock_timeout

log = logging.getLogger("pgq")


class Link:
    """A connection kept out of the pool, so that its plans and hints last; one call at a time."""

    def __init__(self, pool: asyncpg.Pool[Any]) -> None:
        self._pool = pool
        self._lock = asyncio.Lock()
        self._connection: asyncpg.pool.PoolConnectionProxy[Any] | None = None

    async def open(self) -> asyncpg.pool.PoolConnectionProxy[Any]:
        """Return the connection, taken from the pool if there is none."""
        if self._connection is None:
            self._connection = await self._pool.acquire()
        return self._connection

    async def run(self, call: Call[T]) -> T:
        """Run a call on the connection; what may have broken it ends it."""
        async with self._lock:
            connection = await self.open()
            try:
                return await call(connection=connection)
            except BaseException as exc:
                if not isinstance(exc, Error) or is_transient(exc):
                    with suppress(asyncpg.InterfaceError):  # it is closed
                        connection.terminate()
                    await self.close()
                raise

    def may_recover(self, exc: Exception, pause: float) -> bool:
        """Tell whether to try again, after a pause of so many seconds, and log that."""
        if not is_transient(exc) or self._pool.is_closing():
            return False
        log.warning("the server cannot be reached, trying again in %.1f s: %r", pause, exc)
        return True

    async def close(self) -> None:
        """Give the connection back to the pool."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._pool.release(connection)


def is_transient(exc: BaseException) -> bool:
    """Tell whether the same call may succeed later."""
    if isinstance(exc, (Error, asyncpg.PostgresError)):
        state = exc.sqlstate or ""
        return state[:2] in _TRANSIENT_CLASSES or state in _TRANSIENT_STATES
    if isinstance(exc, asyncpg.InterfaceError):
        return not isinstance(exc, ValueError)
    # asyncpg raises InternalClientError, too, when a call begins as the server ends the connection.
    return isinstance(exc, (OSError, asyncio.TimeoutError, asyncpg.InternalClientError))


def backoff() -> Iterator[float]:
    """Yield pauses in seconds that grow from 0.1 to 10, less up to a half."""
    pause = 0.1
    while True:
        yield pause * random.uniform(0.5, 1)
        pause = min(pause * 2, 10.0)
