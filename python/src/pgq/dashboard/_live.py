"""The looks at the server, which all viewers share.

One task looks at the views every other second while there are viewers, and samples `pgq_queues`
now and then while there are none. A page about jobs asks for more by `Live.once`: those who ask
the same get the same answer. A look that took long is repeated less often, so that each costs the
server a tenth of one connection at most, however large the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

import asyncpg

from pgq._log import log, trouble
from pgq._operate import obstacles, sql
from pgq._operate.client import SERVER_ERRORS, Client
from pgq._operate.finding import Facts, Finding, Limits, Row, gather

T = TypeVar("T")
Key: TypeAlias = Hashable

CALL_SECONDS: Final = 10.0
MOST_DEAD: Final = 10_000  # that pgq_queues counts
LIMITS: Final = Limits(timedelta(minutes=1), timedelta(minutes=10))
_SHARE: Final = 10.0  # a look that takes a second is repeated after so many
_RESTING_SECONDS: Final = 15.0  # between samples while there are no viewers
_LOST_SECONDS: Final = 15.0  # at most, between looks that fail
_VIEWED_SECONDS: Final = 10.0  # after the last request
_STREAM_SECONDS: Final = 300.0  # until a viewer has to connect again
_HISTORY_SECONDS: Final = 3600.0  # that are kept
_SPACING_SECONDS: Final = 5.0  # between two samples that are kept
_CONNECTIONS: Final = 3  # of the pool, at a time
_ANSWERS: Final = 200  # that are kept
_INSTALL_HINT: Final = (
    "Run 'pgq install', or 'pgq upgrade' if pgq is of an older version, or name its schema"
)
_HINTS: Final = {
    "3F000": _INSTALL_HINT,
    "42501": "A role that manages queues can grant the privilege to observe them with pgq_grant",
    "42703": _INSTALL_HINT,
    "42883": _INSTALL_HINT,
    "42P01": _INSTALL_HINT,
}


class Sample(NamedTuple):
    """What is drawn of a queue at one time."""

    ready: int
    active: int
    dead: int
    completed: int | None
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One look.

    Args:
        revision: its number.
        facts: what the views show.
        server: which one it is.
        findings: what keeps something from moving.
        permitted: what the role of the pool may do, by queue; "*" for all queues.
    """

    revision: int
    facts: Facts
    server: Row
    findings: list[Finding]
    permitted: dict[str, frozenset[str]]

    def may(self, privilege: str, queue: str) -> bool:
        """Tell whether the role of the pool has a privilege on a queue."""
        return any(privilege in self.permitted.get(name, ()) for name in ("*", queue))

    def queue(self, name: str) -> Row | None:
        """Return a row of pgq_queues."""
        return next((row for row in self.facts.queues if row["queue"] == name), None)


@dataclass(slots=True)
class History:
    """The last hour of all queues, as far as it was seen."""

    times: deque[float] = field(default_factory=deque[float])
    samples: deque[dict[str, Sample]] = field(default_factory=deque[dict[str, Sample]])

    def add(self, at: float, queues: Iterable[Row]) -> None:
        """Add a sample; the newest one replaces the one before if that was soon after another."""
        if len(self.times) > 1 and self.times[-1] - self.times[-2] < _SPACING_SECONDS:
            self.times.pop()
            self.samples.pop()
        while self.times and self.times[0] < at - _HISTORY_SECONDS:
            self.times.popleft()
            self.samples.popleft()
        self.times.append(at)
        self.samples.append(
            {
                row["queue"]: Sample(
                    row["ready"],
                    row["active"],
                    row["dead"],
                    row["completed_last_minute"],
                    row["failed_last_minute"],
                )
                for row in queues
            }
        )

    def of(self, queue: str) -> list[tuple[float, Sample]]:
        """Return the times and samples of a queue, the oldest first."""
        return [
            (at, found[queue])
            for at, found in zip(self.times, self.samples, strict=True)
            if queue in found
        ]


@dataclass(slots=True)
class _Answer:
    task: asyncio.Task[Any] | None = None
    until: float = float("inf")


class Live:
    """What the dashboard knows of the server.

    Args:
        pool: of asyncpg.
        schema: where the pgq functions are.
        interval: seconds between two looks.
    """

    def __init__(self, pool: asyncpg.Pool[Any], schema: str | None, interval: float) -> None:
        self.pool = pool
        self.schema = schema
        self.interval = interval
        self.snapshot: Snapshot | None = None
        self.problem: str | None = None
        self.history = History()
        self.viewers = 0
        self.known_id = 0
        self._revision = 0
        self._begun = 0
        self._wanted = 0
        self._viewed_at = 0.0
        self._looked_at = 0.0
        self._pause = 0.0
        self._changed: asyncio.Future[None] | None = None
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._answers: dict[Key, _Answer] = {}
        self._connections = asyncio.Semaphore(_CONNECTIONS)
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncGenerator[Client]:
        """Lend a connection of the pool."""
        async with self._connections, self.pool.acquire() as connection:
            yield Client(cast("asyncpg.Connection[Any]", connection), self.schema)

    @contextlib.asynccontextmanager
    async def call(self) -> AsyncGenerator[Client]:
        """Lend a connection for a call that must not take long.

        Raises:
            TimeoutError: it took longer, or no connection was free.
        """
        async with asyncio.timeout(CALL_SECONDS), self.connect() as client:
            yield client

    async def fresh(self) -> Snapshot | None:
        """Return what the last look saw; a new look, if that is old or something was changed.

        None: there was no look that succeeded.
        """
        loop = asyncio.get_running_loop()
        self._viewed_at = loop.time()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        if self._is_old(loop.time()):
            self._wanted = max(self._wanted, self._begun + 1)
            self._woken.set()
        wanted = self._wanted
        while self._revision < wanted and not self._is_closed:
            await self._change()
        return self.snapshot

    def _is_old(self, now: float) -> bool:
        return self._revision == 0 or now - self._looked_at > max(2 * self.interval, self._pause)

    def change(self) -> None:
        """Note that something was changed: what was seen before is old."""
        self._answers.clear()
        self._wanted = self._begun + 1
        self._woken.set()

    async def once(self, key: Key, make: Callable[[], Awaitable[T]]) -> T:
        """Return what `make` does, or has done not long ago for the same key."""
        loop = asyncio.get_running_loop()
        answer = self._answers.get(key)
        if answer is None or loop.time() > answer.until:
            self._forget(loop.time())
            answer = self._answers[key] = _Answer()
            answer.task = loop.create_task(self._timed(answer, make))
        result: T = await asyncio.shield(cast("asyncio.Task[T]", answer.task))
        return result

    async def _timed(self, answer: _Answer, make: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            result = await make()
        except BaseException:
            answer.until = 0.0
            raise
        took = loop.time() - began
        answer.until = loop.time() + max(0.9 * self.interval, _SHARE * took)
        return result

    def _forget(self, now: float) -> None:
        """Drop answers that are old, and the oldest if there are many."""
        for key in [key for key, answer in self._answers.items() if now > answer.until]:
            del self._answers[key]
        while len(self._answers) >= _ANSWERS:
            del self._answers[next(iter(self._answers))]

    async def events(self) -> AsyncGenerator[str]:
        """Yield a server-sent event after each look, for some minutes."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _STREAM_SECONDS
        self.viewers += 1
        self._woken.set()
        try:
            yield "retry: 1000\n\n"
            if self._task is None or self._task.done():
                self._task = loop.create_task(self._run())
            while not self._is_closed and loop.time() < ends_at:
                name = "tick" if self.problem is None else "lost"
                yield f"event: {name}\ndata: {self._revision}\n\n"
                await self._change()
        finally:
            self.viewers -= 1

    async def _change(self) -> None:
        """Wait for the end of the next look."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _tell(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def close(self) -> None:
        """End all streams, and the looks."""
        self._is_closed = True
        self._tell()
        for task in (self._task, *(answer.task for answer in self._answers.values())):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, *SERVER_ERRORS):
                    await task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            self._woken.clear()
            began = loop.time()
            rests = not self._is_viewed(began)
            self._begun += 1
            try:
                async with self.call() as client:
                    await (self._sample(client) if rests else self._look(client))
            except SERVER_ERRORS as exc:
                self.problem = problem_of(exc)
            except Exception as exc:
                # Whoever waits for the look is told, as well.
                log.exception("the queues could not be read for the dashboard", extra=trouble(exc))
                self.problem = f"The look at the queues has failed: {exc!r}."
            else:
                self.problem = None
            ended = loop.time()
            if not rests:
                self._looked_at = ended
            self._revision = self._begun
            pause = _SHARE * (ended - began)
            # A database that is lost is looked for, even if that takes long.
            pause = pause if self.problem is None else min(pause, _LOST_SECONDS)
            self._pause = max(self.interval, pause)
            self._tell()
            await self._sleep(max(self._pause, _RESTING_SECONDS) if rests else self._pause)

    def _is_viewed(self, now: float) -> bool:
        return (
            self.viewers > 0
            or self._wanted > self._begun
            or now - self._viewed_at < _VIEWED_SECONDS
        )

    async def _sleep(self, seconds: float) -> None:
        """Sleep until the next look is due, or wanted, or the first viewer comes."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        while loop.time() < due and self._wanted <= self._begun:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), max(due - loop.time(), 0))
            if self._woken.is_set() and seconds > self._pause:
                return
            self._woken.clear()

    async def _sample(self, client: Client) -> None:
        [server] = await client.fetch(sql.SERVER)
        self.history.add(server["now"].timestamp(), await client.fetch(sql.QUEUES))

    async def _look(self, client: Client) -> None:
        [server] = await client.fetch(sql.SERVER)
        facts = await gather(client)
        permitted: dict[str, frozenset[str]] = {}
        for row in await client.fetch(sql.PERMITTED):
            given = permitted.get(row["queue"], frozenset[str]())
            permitted[row["queue"]] = given | frozenset(row["privileges"])
        self.history.add(server["now"].timestamp(), facts.queues)
        self.snapshot = Snapshot(
            revision=self._begun,
            facts=facts,
            server=server,
            findings=[one for one in obstacles.diagnose(facts, LIMITS) if one.status != "ok"],
            permitted=permitted,
        )


def reason(exc: Exception) -> str:
    """Return why a call failed and what helps, on one line."""
    if isinstance(exc, TimeoutError):
        return "the server did not answer in time"
    text = str(exc.args[0]) if exc.args and isinstance(exc.args[0], str) else str(exc)
    hint = getattr(exc, "hint", None) or _HINTS.get(_sqlstate(exc))
    parts = [text or type(exc).__name__, getattr(exc, "detail", None), hint]
    return ". ".join(str(part).rstrip(".") for part in parts if part)


def problem_of(exc: Exception) -> str:
    """Return why there was no look."""
    is_refused = _sqlstate(exc) in _HINTS
    what = "The queues cannot be shown" if is_refused else "The database does not answer"
    return f"{what}: {reason(exc)}."


def _sqlstate(exc: Exception) -> str:
    return getattr(exc, "sqlstate", None) or ""
