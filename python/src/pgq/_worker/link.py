"""Connections that are given up when the server does not answer, and what is tried again then.

After an outage work goes on within a second or so: pauses do not grow beyond that. The log has one
line as an outage begins and one as it ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import asyncpg

from pgq._calls import PooledConnection, acquire
from pgq._errors import Error, SerializationFailure
from pgq._log import about_worker, log, trouble

T = TypeVar("T")
Call: TypeAlias = Callable[..., Awaitable[T]]  # a method of Queue; takes connection=

_CLOSE_SECONDS: Final = 1.0  # for a connection that does not answer to cancel and say good-bye
_PATIENCE_SECONDS: Final = 0.1  # with an answer that may have come while the loop was blocked
_LONGEST_PAUSE_SECONDS: Final = 1.0
_CALM_SECONDS: Final = 2.0  # without a failure, and an outage is over
_REMINDER_SECONDS: Final = 60.0  # until an outage is told of again
_TRANSIENT_CLASSES: Final = frozenset({"08", "40", "53", "57"})
# A standby; a database that takes no connections; a lock_timeout.
_TRANSIENT_STATES: Final = frozenset({"25006", "55000", "55P03"})


class Closable(Protocol):
    """A connection."""

    async def close(self, *, timeout: float) -> None:
        """Close it; raises TimeoutError if the server does not answer in time."""
        ...


class Outage:
    """Tells the log when the server begins to fail, and when it answers again.

    Between the two it tells each kind of error once, and the last one each minute, at level
    WARNING; the rest at level DEBUG. What works in between only for a moment is one outage. Several
    threads may share it.

    Args:
        worker: the name of the worker.
        recovered: what it tells as it ends.
    """

    def __init__(self, worker: str, recovered: str) -> None:
        self._worker = worker
        self._recovered = recovered
        self._lock = threading.Lock()
        self._told: dict[object, float] = {}  # when, by the kind of error
        self._begun = self._failed = self._worked = 0.0  # the first, the last, the first after that
        self._attempts = 0

    def failed(self, text: str, exc: BaseException, pause: float) -> None:
        """Note that something has failed, and is tried again after a pause of so many seconds."""
        now = time.monotonic()
        root = exc
        while root.__cause__ is not None:
            root = root.__cause__
        # Of all that means that there is no connection, one.
        kind = "" if is_silent(root) or _state(root).startswith("57P") else type(root)
        with self._lock:
            if not self._attempts:
                self._begun = now
            self._attempts += 1
            self._failed, self._worked = now, 0.0
            is_new = kind not in self._told or now - max(self._told.values()) >= _REMINDER_SECONDS
            if is_new:
                self._told[kind] = now
        log.log(
            logging.WARNING if is_new else logging.DEBUG,
            "%s, trying again in %.1f s: %r",
            text,
            pause,
            exc,
            extra=trouble(exc, pause),
        )

    def worked(self) -> None:
        """Note that the server has answered."""
        if self._attempts and not self._worked:
            self._worked = time.monotonic()

    def lost_for(self) -> float | None:
        """Return for how many seconds nothing has worked, since something failed."""
        with self._lock:
            is_lost = self._attempts and not self._worked
            return time.monotonic() - self._begun if is_lost else None

    def look(self) -> None:
        """Tell if it has ended; to be called about once a second."""
        with self._lock:
            if not self._worked or time.monotonic() - self._failed < _CALM_SECONDS:
                return
            seconds, failed = self._worked - self._begun, self._attempts
            self._attempts, self._worked = 0, 0.0
            self._told.clear()
        log.info(
            "%s after %.1f s; failed attempts: %d",
            self._recovered,
            seconds,
            failed,
            extra=about_worker(self._worker),
        )


class _ShutError(ConnectionError):
    """Another call has just failed to connect."""


class Link:
    """A connection kept out of the pool, so that its plans and hints last; one call at a time.

    Args:
        pool: where it comes from.
        call_seconds: how long the server may take to answer.
        outage: is told what fails and works.
    """

    def __init__(self, pool: asyncpg.Pool[Any], call_seconds: float, outage: Outage) -> None:
        self._pool = pool
        self._call_seconds = call_seconds
        self._outage = outage
        self._pauses = backoff()
        self._opens_at = 0.0  # of time.monotonic(): not to connect again before
        self._lock = asyncio.Lock()
        self._connection: PooledConnection | None = None
        self._acquiring: asyncio.Task[PooledConnection] | None = None
        self._was_connected = False
        self.pid: int | None = None  # of the session of the last call; None: it got no connection

    async def run(self, call: Call[T], seconds: float = 0.0) -> T:
        """Run a call on the connection; what may have broken it ends it.

        Args:
            call: the call.
            seconds: how long the server may take to answer, if that is longer than for others.
        """
        async with self._lock:
            try:
                answer = await _within(self._run(call), max(seconds, self._call_seconds))
            except (TypeError, ValueError):
                raise  # of the arguments: nothing was sent
            except BaseException as exc:
                if not isinstance(exc, Error) or is_transient(exc):
                    connection, self._connection = self._connection, None
                    if connection is not None:
                        await end(connection)
                else:
                    self._outage.worked()
                raise
            self._outage.worked()
            return answer

    async def _run(self, call: Call[T]) -> T:
        self.pid = None
        if self._connection is None:
            self._connection = await self._acquired()
        self.pid = self._connection.get_server_pid()
        return await call(connection=self._connection)

    async def _acquired(self) -> PooledConnection:
        # A call that is given up keeps its place among those that wait for the pool.
        if self._acquiring is None or self._acquiring.cancelled():  # like all tasks of the loop
            if self.shut_for() > 0:
                raise _ShutError("there was no connection a moment ago")
            self._acquiring = asyncio.create_task(acquire(self._pool))
        try:
            connection = await asyncio.shield(self._acquiring)
        except Exception as exc:
            self._acquiring = None
            self._opens_at = time.monotonic() + next(self._pauses)
            if self._was_connected and not is_transient(exc):
                # It was possible before: a password changes, a hook of the pool fails.
                raise ConnectionError(f"cannot connect: {exc!r}") from exc
            raise
        self._acquiring = None
        self._pauses = backoff()
        self._was_connected = True
        return connection

    def shut_for(self) -> float:
        """Return for how many seconds there will be no other attempt to connect, whoever calls."""
        return self._opens_at - time.monotonic()

    def may_recover(self, exc: Exception, pause: float, *, anyway: bool = False) -> bool:
        """Tell whether to try again, after a pause of so many seconds, and log that.

        Args:
            exc: what a call has failed with.
            pause: the pause.
            anyway: the next call is another one, that may succeed.
        """
        if not (anyway or is_transient(exc)) or self._pool.is_closing():
            return False
        if not isinstance(exc, _ShutError):
            self._outage.failed("a call to the server failed", exc, pause)
        return True

    def drop(self) -> None:
        """Close the connection, unless a call is under way; the next one opens another."""
        if self._connection is not None and not self._lock.locked():
            with suppress(Exception):  # it is closed already
                self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Give the connection back to the pool."""
        acquiring, self._acquiring = self._acquiring, None
        if acquiring is not None:
            acquiring.cancel()
            with suppress(Exception, asyncio.CancelledError):
                await give_back(self._pool, await acquiring, self._call_seconds)
        connection, self._connection = self._connection, None
        if connection is not None:
            await give_back(self._pool, connection, self._call_seconds)


@asynccontextmanager
async def transaction(
    pool: asyncpg.Pool[Any], call_seconds: float
) -> AsyncGenerator[PooledConnection, None]:
    """Open a transaction on a connection of the pool; nothing that begins or ends it can hang."""
    connection = await acquire(pool)
    try:
        opened = connection.transaction()
        await answered(connection, opened.start(), call_seconds)
        try:
            yield connection
        except BaseException:
            with suppress(Exception):  # the server does it as the connection ends
                await answered(connection, opened.rollback(), call_seconds)
            raise
        await answered(connection, opened.commit(), call_seconds)
    finally:
        await give_back(pool, connection, call_seconds)


async def answered(connection: Closable, call: Awaitable[T], seconds: float) -> T:
    """Return what a call returns; end its connection if that takes longer."""
    try:
        return await _within(call, seconds)
    except TimeoutError:
        await end(connection)
        raise


async def _within(call: Awaitable[T], seconds: float) -> T:
    """Return what a call returns, also if its answer and the timeout come as a block ends.

    `asyncio.wait_for` would drop that answer from Python 3.12 on; before, it makes a task, and the
    call is sent later. The call is cancelled before its connection is closed: asyncpg may tell one
    that is still waiting then that it has succeeded.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    is_over = False
    error: BaseException | None = None

    def have_patience() -> None:
        timers.append(loop.call_later(_PATIENCE_SECONDS, give_up))

    def give_up() -> None:
        nonlocal is_over
        is_over = True
        task.cancel()

    timers = [loop.call_later(seconds, have_patience)]
    try:
        return await call
    except (Exception, asyncio.CancelledError) as exc:
        error = exc
        raise
    finally:
        for timer in timers:
            timer.cancel()
        if is_over:
            task.uncancel()
        # Others may have cancelled the task as well.
        if is_over and error is not None and task.cancelling() == before:
            raise TimeoutError from error


async def give_back(pool: asyncpg.Pool[Any], connection: PooledConnection, seconds: float) -> None:
    """Release a connection to its pool, also if it is closed or does not answer."""
    with suppress(Exception):  # it is terminated then, or was closed before
        await pool.release(connection, timeout=seconds)


async def end(connection: Closable) -> None:
    """Cancel what a connection is doing and close it, also if the server does not answer."""
    with suppress(Exception):  # it is aborted then, or is closed already
        await connection.close(timeout=_CLOSE_SECONDS)


def is_transient(exc: BaseException) -> bool:
    """Tell whether the same call may succeed later."""
    state = _state(exc)
    if is_silent(exc) or isinstance(exc, SerializationFailure):
        return True
    return state[:2] in _TRANSIENT_CLASSES or state in _TRANSIENT_STATES


def _state(exc: BaseException) -> str:
    """Return the SQLSTATE of an error, or an empty text."""
    return (exc.sqlstate or "") if isinstance(exc, (Error, asyncpg.PostgresError)) else ""


def is_silent(exc: BaseException) -> bool:
    """Tell whether the connection is gone without a word of the server."""
    if isinstance(exc, asyncpg.InterfaceError):
        return not isinstance(exc, ValueError)
    # asyncpg raises InternalClientError, too, when a call begins as the server ends the connection.
    return isinstance(
        exc,
        (
            OSError,  # a TimeoutError, too
            asyncpg.InternalClientError,
            asyncpg.PostgresConnectionError,
        ),
    )


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    """Sleep for so long, but not after a stop."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), seconds)


def backoff() -> Iterator[float]:
    """Yield pauses in seconds that grow from 0.1 to 1, less up to a half."""
    pause = 0.1
    while True:
        yield pause * random.uniform(0.5, 1)
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
