"""Renews the leases of a worker from a thread of its own, whatever its event loop does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

import asyncpg

from pgq._errors import JobHeld
from pgq._log import log, name_of, trouble
from pgq._models import Job, Token
from pgq._queue import Queue
from pgq._version import check
from pgq._worker.call import call_aside
from pgq._worker.link import Outage

Connect: TypeAlias = Callable[[], Awaitable["asyncpg.Connection[Any]"]]

_RETRY_SECONDS: Final = 1.0  # at most: a short lease does not wait for so long
CONNECT_SECONDS: Final = 10.0
# What a call fails with when a row is locked by a transaction that settles its job and stays open,
# or when the network is gone.
STUCK: Final = (TimeoutError, JobHeld, asyncpg.QueryCanceledError)


# asyncpg has no public name for the arguments of a pool; nothing else here relies on these.
_connect_arguments = attrgetter(
    "_connect", "_connect_args", "_connect_kwargs", "_connection_class", "_record_class"
)


def connect_like(pool: asyncpg.Pool[Any]) -> Connect:
    """Return a function that connects as the pool does, but on whichever loop calls it."""

    async def connect() -> asyncpg.Connection[Any]:
        function, args, kwargs, connection_class, record_class = _connect_arguments(pool)
        connection: asyncpg.Connection[Any] = await function(
            *args,
            loop=asyncio.get_running_loop(),
            connection_class=connection_class,
            record_class=record_class,
            **kwargs,
        )
        return connection

    return connect


def name_of_pool(pool: asyncpg.Pool[Any]) -> str:
    """Return where the database of a pool is, as far as the pool's arguments say."""
    _, (dsn, *_), kwargs, *_ = _connect_arguments(pool)
    given = {name: value for name, value in kwargs.items() if value is not None}
    return name_of(dsn or "", **given)


@dataclass(slots=True, eq=False)
class _Lease:
    job: Job[Any]
    every: float  # seconds between two renewals
    due: float  # of time.monotonic()
    cancelled: bool = False  # which was told


class Heartbeat:
    """A table of held leases and the thread that renews them.

    Args:
        connect: opens the thread's own connection, on the thread's own loop.
        queue: any queue: heartbeats name the job only. Its pool is not used.
        tick: seconds between two looks, a third of the shortest lease.
        on_lost: called in the thread with the token of a lease that is lost.
        on_cancel: called in the thread with the token of a job that is to be cancelled, once.
        outage: is told what fails and works.
    """

    def __init__(
        self,
        connect: Connect,
        queue: Queue,
        tick: float,
        on_lost: Callable[[Token | None], None],
        on_cancel: Callable[[Token | None], None],
        *,
        outage: Outage,
    ) -> None:
        self._connect = connect
        self._queue = queue
        self._tick = tick
        # Seconds for one call: a lease is half gone at most when it is renewed, and there must be
        # time left to connect again and renew it then.
        self._patience = min(max(tick / 2, 0.5), 10.0)
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._outage = outage
        # Of two threads: only for what is atomic. The token of a claimed job is never None.
        self._leases: dict[Token | None, _Lease] = {}
        self._connection: asyncpg.Connection[Any] | None = None
        self._stopped = asyncio.Event()  # of the thread's loop
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="pgq-heartbeat", daemon=True)

    def hold(self, jobs: Iterable[Job[Any]], timeout: float, since: float) -> None:
        """Keep the leases of jobs, which last `timeout` seconds from `since` (monotonic) on."""
        every = timeout / 3
        due = since + every
        for job in jobs:
            self._leases[job.token] = _Lease(job, every, due)

    def drop(self, token: Token | None) -> None:
        """Let a lease go; a renewal under way may still happen."""
        self._leases.pop(token, None)

    async def start(self) -> None:
        """Start the thread and wait until it can renew leases; raises what prevents that."""
        self._thread.start()
        await asyncio.shield(asyncio.wrap_future(self._started))

    async def stop(self) -> None:
        """End the thread, if it was started."""
        if self._thread.ident is not None:
            await call_aside(self._end)

    def _end(self) -> None:
        if self._started.exception() is None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as exc:
            if self._started.done():
                raise
            self._started.set_exception(exc)  # there is no loop for it

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            connection = await self._open(CONNECT_SECONDS)
            # What connects it may lead to another database, or another search_path.
            version = self._queue.version(connection=connection)
            check(await asyncio.wait_for(version, CONNECT_SECONDS))
        except BaseException as exc:  # noqa: BLE001 it is raised in the other thread
            await self._disconnect()
            self._started.set_exception(exc)
            return
        self._started.set_result(None)
        wait = self._tick
        while not await self._stops_within(wait):
            try:
                if await self._beat():
                    self._outage.worked()
                wait = self._tick
            except Exception as exc:  # noqa: BLE001 every lease hangs on it
                wait = min(self._tick / 4, _RETRY_SECONDS)
                self._outage.failed("heartbeat failed", exc, wait)
                await self._disconnect()
        await self._disconnect()

    async def _stops_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def _beat(self) -> bool:
        """Renew what is due, also connect again; tell whether the server has answered."""
        before = self._connection
        connection = await self._open(self._patience)
        horizon = time.monotonic() + self._tick / 2
        due = [lease for lease in self._leases.copy().values() if lease.due <= horizon]
        if not due:
            return connection is not before
        try:
            await self._renew(connection, due, self._patience)
        except STUCK as exc:
            log.warning(
                "heartbeat failed; the worker renews each lease by itself: %r",
                exc,
                extra=trouble(exc),
            )
            await self._disconnect()
            renewed = [await self._renewed_alone(lease) for lease in due]
            if not any(renewed):
                raise
        return True

    async def _renewed_alone(self, lease: _Lease) -> bool:
        connection = await self._open(self._patience)
        try:
            await self._renew(connection, [lease], min(self._patience / 2, 1.0))
        except STUCK as exc:
            log.warning(
                "the heartbeat of job %d waits for a lock on the job: %r",
                lease.job.id,
                exc,
                extra=trouble(exc),
            )
            await self._disconnect()
            return False
        return True

    async def _renew(
        self, connection: asyncpg.Connection[Any], leases: Sequence[_Lease], patience: float
    ) -> None:
        now = time.monotonic()
        kept = await asyncio.wait_for(
            self._queue.heartbeat_many([lease.job for lease in leases], connection=connection),
            patience,
        )
        # A job that was lost and claimed again here is in the answer for its newest token.
        newest = dict(sorted(lease.job.receipt for lease in leases))
        renewed = {(lease.id, newest[lease.id]): lease.cancel_requested for lease in kept}
        for lease in leases:
            lease.due = now + lease.every
            if lease.job.receipt not in renewed:
                self.drop(lease.job.token)
                self._on_lost(lease.job.token)
            elif renewed[lease.job.receipt] and not lease.cancelled:
                lease.cancelled = True
                self._on_cancel(lease.job.token)

    async def _open(self, patience: float) -> asyncpg.Connection[Any]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncio.wait_for(self._connect(), patience)
        return self._connection

    async def _disconnect(self) -> None:
        """Close the connection, and have the server cancel what it may still be doing for it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is aborted then
                await connection.close(timeout=_RETRY_SECONDS)
