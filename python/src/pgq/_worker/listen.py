"""Wakes the idle claim loops of a worker, as `pgq_wait` and notifications tell."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import asyncpg

from pgq import _sql
from pgq._errors import NotInstalled, UnknownQueue
from pgq._log import log, trouble
from pgq._queue import DEFAULT_TIMEOUT, Queue
from pgq._worker.heartbeat import CONNECT_SECONDS, Connect
from pgq._worker.link import Outage, backoff

Notify: TypeAlias = Callable[[str], Awaitable[object]]  # sends a notification to a channel

_NAP_SECONDS: Final = 1.0  # a shorter sleep is one of many
_HEAD_START_SECONDS: Final = 0.002  # for the claims of who is woken: the jobs wait for them
_DEAF_SECONDS: Final = 60.0  # until LISTEN is tried again where it does not work

T = TypeVar("T")


class DeafError(ConnectionError):
    """A notification did not reach a connection that listens."""


async def prove(connection: asyncpg.Connection[Any], notify: Notify, seconds: float) -> None:
    """Make sure that notifications of other sessions reach a connection.

    Args:
        connection: the connection.
        notify: sends a notification in another session.
        seconds: how long each step may take.

    Raises:
        DeafError: none has come. A pooler gives each transaction another session, or the other
            session is in another database.
    """
    channel = f"pgq_proof_{secrets.token_hex(8)}"
    heard = asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    await asyncio.wait_for(connection.add_listener(channel, hear), seconds)
    await notify(channel)
    try:
        await asyncio.wait_for(heard.wait(), seconds)
    except TimeoutError:
        # If the connection is dead, this raises what says so.
        await asyncio.wait_for(connection.execute("select"), seconds)
        raise DeafError("a notification did not arrive") from None
    await asyncio.wait_for(connection.remove_listener(channel, hear), seconds)


class Listener:
    """One connection that listens for the queues of which a claim loop has nothing to do.

    Args:
        connect: opens the connection.
        queue: any queue; its pool is not used.
        notify: sends a notification on another connection.
        poll_seconds: how long a claim loop sleeps while there is no connection.
        call_seconds: how long the server may take to answer.
        outage: is told what fails and works.
    """

    def __init__(
        self,
        connect: Connect,
        queue: Queue,
        notify: Notify,
        *,
        poll_seconds: float,
        call_seconds: float,
        outage: Outage,
    ) -> None:
        self._connect = connect
        self._queue = queue
        self._notify = notify
        self._poll_seconds = poll_seconds
        self._call_seconds = call_seconds
        self._woken: dict[str, asyncio.Event] = {}
        self._idle: set[str] = set()
        self._channels: dict[str, str] = {}
        self._gone: set[str] = set()
        self._max_wait = DEFAULT_TIMEOUT
        self._changed = asyncio.Event()
        self._listening = False
        self._listened = False
        self._stopping = False
        self._outage = outage

    def add(self, name: str) -> None:
        """Listen for a queue, too."""
        self._woken[name] = asyncio.Event()

    def leave(self, name: str) -> None:
        """Listen no more for a queue that is gone, until `idle` is called with it."""
        self._gone.add(name)

    async def idle(self, name: str, jitter: float) -> None:
        """Sleep until there may be a job in the queue.

        Args:
            name: the queue.
            jitter: by what the time is multiplied that it sleeps while nobody listens.
        """
        woken = self._woken[name]
        woken.clear()
        self._gone.discard(name)
        self._idle.add(name)
        self._changed.set()
        if self._listening:  # it is told when that ends
            await woken.wait()
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), self._poll_seconds * jitter)
        self._idle.discard(name)

    def wake(self, names: Sequence[str] | None = None) -> None:
        """Let the claim loops of these queues, by default of all, look for jobs."""
        for name in list(self._woken) if names is None else names:
            self._idle.discard(name)
            self._woken[name].set()
        self._changed.set()

    def stop(self) -> None:
        """Have `run` return; a cancellation alone may be lost in `asyncio.wait_for`."""
        self._stopping = True
        self.wake()

    async def run(self) -> None:
        """Listen until `stop`; what fails is tried again."""
        pauses = backoff()
        was_deaf = False
        while not self._stopping:
            self._listened = False
            try:
                await self._listen()
            except NotInstalled:
                raise
            except DeafError as exc:
                pause = _DEAF_SECONDS
                log.log(
                    logging.DEBUG if was_deaf else logging.WARNING,
                    "cannot listen, polling every %g s: %s. With a pooler that gives each"
                    " transaction another session, set listen=False, or connect= to a function"
                    " that connects past the pooler",
                    self._poll_seconds,
                    exc,
                    extra=trouble(exc, pause),
                )
                was_deaf = True
            except Exception as exc:  # noqa: BLE001 the claim loops poll meanwhile
                if self._listened:
                    pauses = backoff()
                pause = next(pauses)
                self._outage.failed("cannot listen, polling", exc, pause)
            else:
                return
            if not self._stopping:
                await asyncio.sleep(pause)

    async def _listen(self) -> None:
        connection = await asyncio.wait_for(self._connect(), CONNECT_SECONDS)
        try:
            connection.add_termination_listener(self._terminated)
            # Before anything is left in a session that may be shared with others.
            await prove(connection, self._notify, self._call_seconds)
            prepares = await self._soon(connection.fetchval(_sql.PREPARES))
            # COMMIT PREPARED notifies nobody.
            self._max_wait = timedelta(seconds=1) if prepares else DEFAULT_TIMEOUT
            self._channels.clear()
            await self._subscribe(connection)
            self._listening = True
            self._outage.worked()
            self.wake()
            while not self._stopping and not connection.is_closed():
                await self._wait(connection)
                self._listened = True
            if not self._stopping:
                raise ConnectionResetError("the server closed the connection")
        finally:
            self._listening = False
            self.wake()
            connection.terminate()

    async def _wait(self, connection: asyncpg.Connection[Any]) -> None:
        self._changed.clear()
        seconds = None
        if self._idle:
            idle = sorted(self._idle)
            try:
                if not self._idle <= self._channels.keys():
                    await self._subscribe(connection)
                call = self._queue.wait(idle, max_wait=self._max_wait, connection=connection)
                wait = await self._soon(call)
            except UnknownQueue:
                wait = timedelta(0)  # the claim loop of the queue finds out
            seconds = wait.total_seconds()
            if seconds <= 0:
                self.wake(idle)
        if not self._idle:
            await asyncio.sleep(_HEAD_START_SECONDS)
            await self._soon(self._queue.wake(connection=connection))
            seconds = None
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            if seconds is not None and seconds >= _NAP_SECONDS:
                # A queue that was made again has another channel.
                await self._subscribe(connection)

    async def _subscribe(self, connection: asyncpg.Connection[Any]) -> None:
        for name in self._woken.keys() - self._gone:
            channel = await self._soon(self._queue.channel(name, connection=connection))
            if self._channels.get(name) != channel:
                await self._soon(connection.add_listener(channel, partial(self._notified, name)))
                self._channels[name] = channel

    def _notified(self, name: str, *_: object) -> None:
        self.wake([name])

    def _terminated(self, _: object) -> None:
        self._changed.set()

    async def _soon(self, call: Awaitable[T]) -> T:
        return await asyncio.wait_for(call, self._call_seconds)
