from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
import threading
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

import asyncpg
import asyncpg.pool

from pgq._errors import Error, LeaseLost
from pgq._heartbeat import Connect, Heartbeat, connect_like
from pgq._listen import Listener
from pgq._models import Job, Token
from pgq._queue import DEFAULT_TIMEOUT, Dumps, Loads, Queue

T = TypeVar("T")
Handler: TypeAlias = Callable[[Job], Awaitable[Any]]
TransactionHandler: TypeAlias = Callable[[Job, Any], Awaitable[Any]]
HandlerT = TypeVar("HandlerT", bound=Handler)
TransactionHandlerT = TypeVar("TransactionHandlerT", bound=TransactionHandler)
_Call: TypeAlias = Callable[..., Awaitable[T]]  # a method of Queue; takes connection=

_ERROR_CHARACTERS: Final = 20_000
_CANCEL_SECONDS: Final = 5.0  # for a cancelled handler to end
_SETTLE_SECONDS: Final = 10.0  # for the last outcomes to be written at the end
_TRANSIENT_CLASSES: Final = frozenset({"08", "40", "53", "57"})
_TRANSIENT_STATES: Final = frozenset({"25006", "55P03"})  # a standby; a lock_timeout

log = logging.getLogger("pgq")


@dataclass(slots=True, eq=False)
class _Handler:
    queue: Queue
    call: Callable[..., Awaitable[Any]]
    concurrency: int
    timeout: timedelta
    transaction: bool
    held: int = 0
    freed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Held:
    """A claimed job, from the claim until its outcome is written or its lease is lost."""

    job: Job
    handler: _Handler
    task: asyncio.Task[None] | None = None
    started: bool = False
    settling: bool = False
    lost: bool = False


class _Link:
    """A connection kept out of the pool, so that its plans and hints last; one call at a time."""

    def __init__(self, pool: asyncpg.Pool[Any]) -> None:
        self._pool = pool
        self._lock = asyncio.Lock()
        self._connection: asyncpg.pool.PoolConnectionProxy[Any] | None = None

    async def open(self) -> asyncpg.pool.PoolConnectionProxy[Any]:
        if self._connection is None:
            self._connection = await self._pool.acquire()
        return self._connection

    async def run(self, call: _Call[T]) -> T:
        async with self._lock:
            connection = await self.open()
            try:
                return await call(connection=connection)
            except BaseException as exc:
                if not isinstance(exc, Error) or _is_transient(exc):
                    with suppress(asyncpg.InterfaceError):  # it is closed
                        connection.terminate()
                    await self.close()
                raise

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._pool.release(connection)


class Worker:
    """Runs handlers for the jobs of one or more queues, until it is told to stop.

    A handler that returns completes its job, one that raises fails it, and the job is tried
    again as its queue is configured. Each handler claims as many jobs as it has free slots,
    never more. Outcomes that arrive while others are being written go together in one call.

    Leases are renewed by a thread with its own event loop and connection, so a handler may
    block the worker's loop for as long as it likes. What holds up the thread too still loses
    leases: a C call that keeps the GIL, a stopped process, a lost network. When a lease is lost
    the handler is cancelled, and what it returns changes nothing.

    A worker takes two connections of the pool, one more for each `transaction` handler at work,
    and opens two of its own: for heartbeats, and to LISTEN. It logs to "pgq".

    Args:
        pool: an asyncpg pool; it needs no codec.
        schema: where the pgq functions are; None (the default) leaves it to search_path.
        name: what operators see; host name and process id by default.
        poll_interval: the wait after a claim that found too few jobs, give or take a quarter,
            while it cannot LISTEN; 250 milliseconds by default.
        grace: how long handlers may go on after a stop; 20 seconds by default.
        listen: False only polls, for example behind a pooler that shares sessions.
        durable_claims: True waits until each claim is on disk before its handlers start. By
            default a crash of the server may undo claims of the last second: those jobs run
            again, and the attempt is not counted. All else that a worker writes is durable.
        connect: opens the worker's own connections, one of them on another loop than the pool's.
            By default it connects with the pool's arguments, without its `init` and `setup`.
        dumps: makes JSON text of results; `json.dumps` by default.
        loads: reads the JSON text of payloads and headers; `json.loads` by default.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any],
        *,
        schema: str | None = None,
        name: str | None = None,
        poll_interval: timedelta = timedelta(milliseconds=250),
        grace: timedelta = timedelta(seconds=20),
        listen: bool = True,
        durable_claims: bool = False,
        connect: Connect | None = None,
        dumps: Dumps = json.dumps,
        loads: Loads = json.loads,
    ) -> None:
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._pool = pool
        self._new_queue = partial(Queue, pool, schema=schema, dumps=dumps, loads=loads)
        self._queue = self._new_queue()  # for calls that name a job, not a queue
        self._poll_seconds = poll_interval.total_seconds()
        self._grace_seconds = grace.total_seconds()
        self._listens = listen
        self._durable_claims = durable_claims
        self._connect = connect or connect_like(pool)
        self._listener = Listener(self._connect, self._queue, self._poll_seconds)
        self._handlers: dict[str, _Handler] = {}
        self._held: dict[Token, _Held] = {}
        self._claims = _Link(pool)
        self._settles = _Link(pool)
        self._completed: list[_Held] = []
        self._outcomes: list[tuple[_Held, _Call[object]]] = []
        self._unsettled = asyncio.Event()
        self._stopping = asyncio.Event()
        self._aborting = False
        self._drained = False

    @overload
    def handler(
        self,
        queue: str,
        *,
        concurrency: int = ...,
        timeout: timedelta = ...,
        transaction: Literal[False] = ...,
    ) -> Callable[[HandlerT], HandlerT]: ...

    @overload
    def handler(
        self,
        queue: str,
        *,
        concurrency: int = ...,
        timeout: timedelta = ...,
        transaction: Literal[True],
    ) -> Callable[[TransactionHandlerT], TransactionHandlerT]: ...

    def handler(
        self,
        queue: str,
        *,
        concurrency: int = 10,
        timeout: timedelta = DEFAULT_TIMEOUT,
        transaction: bool = False,
    ) -> Callable[[Any], Any]:
        """Make the decorated coroutine function the handler of a queue.

        What it returns, unless None, is kept as the job's result.

        Args:
            queue: the queue.
            concurrency: the most jobs at work at the same time; 10 by default.
            timeout: the lease, renewed every third of it; 30 seconds by default.
            transaction: call it as `handler(job, connection)` in a transaction in which the job
                is then completed: what it does on that connection happens exactly once. It must
                not settle the job itself. When the lease is lost all of it is rolled back.

        Raises:
            ValueError: the queue has a handler, or an argument is not positive.
        """
        if queue in self._handlers:
            raise ValueError(f"queue {queue!r} has a handler already")
        if concurrency < 1 or timeout <= timedelta(0):
            raise ValueError("concurrency and timeout must be positive")

        def register(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            self._handlers[queue] = _Handler(
                self._new_queue(queue), call, concurrency, timeout, transaction
            )
            self._listener.add(queue)
            return call

        return register

    async def run(self, *, handle_signals: bool = True) -> None:
        """Work until `stop`, SIGTERM or SIGINT. A worker runs once.

        On a stop it claims no more, lets handlers finish for `grace` (a second signal ends that
        at once), then cancels them, and gives back what did not finish without counting the
        attempt. A handler that does not end when cancelled keeps its lease until it runs out.
        After a lost connection it connects again, with growing pauses.

        Args:
            handle_signals: False leaves SIGTERM and SIGINT to the caller.

        Raises:
            ValueError: there is no handler, or the pool is too small.
            Error: a claim is not possible: the queue is unknown, or pgq not installed.
        """
        if not self._handlers:
            raise ValueError("the worker has no handler")
        handlers = self._handlers.values()
        needed = 3 if any(handler.transaction for handler in handlers) else 2
        if self._pool.get_max_size() < needed:
            raise ValueError(f"the worker needs a pool of at least {needed} connections")
        loop = asyncio.get_running_loop()

        def on_lost(token: Token) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._lost, token)

        tick = min(handler.timeout for handler in handlers).total_seconds() / 3
        self._beats = Heartbeat(self._connect, self._queue, tick, on_lost)
        with self._signals(loop) if handle_signals else nullcontext():
            try:
                await self._beats.start()
                await self._claims.open()  # what is wrong from the start is not to be retried
                await self._work()
            finally:
                await self._beats.stop()
                await self._claims.close()
                await self._settles.close()

    async def _work(self) -> None:
        settling = asyncio.create_task(self._settle_all())
        listening = [asyncio.create_task(self._listener.run())] if self._listens else []
        claiming = [
            asyncio.create_task(self._claim_all(handler)) for handler in self._handlers.values()
        ]
        tasks = [*claiming, settling, *listening]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._abort()
            raise
        finally:
            self.stop()
            for task in listening:
                task.cancel()
            await self._finish(claiming, settling)
            await asyncio.gather(*listening, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()

    def stop(self) -> None:
        """Begin a graceful stop; `run` returns when it is done."""
        self._stopping.set()
        self._listener.stop()
        for handler in self._handlers.values():
            handler.freed.set()

    @contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number, action in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, action)

    def _signalled(self) -> None:
        if self._stopping.is_set():
            self._abort()
        self.stop()

    def _abort(self) -> None:
        self._aborting = True
        for held in self._held.values():
            self._cancel(held)

    def _lost(self, token: Token) -> None:
        held = self._held.get(token)
        if held is not None and not held.settling:
            held.lost = True
            self._cancel(held)

    @staticmethod
    def _cancel(held: _Held) -> None:
        # A task that is cancelled before its first step would never run its own clean-up.
        if held.task is not None and held.started and not held.settling:
            held.task.cancel()

    # Claim

    async def _claim_all(self, handler: _Handler) -> None:
        pauses = _backoff()
        while not self._stopping.is_set():
            free = handler.concurrency - handler.held
            if free == 0:
                handler.freed.clear()
                await handler.freed.wait()
                continue
            claim = partial(
                handler.queue.dequeue,
                free,
                handler.timeout,
                worker=self.name,
                durable=self._durable_claims,
            )
            try:
                jobs = await self._claims.run(claim)
            except Exception as exc:
                if not self._may_recover(exc):
                    raise
                await self._pause(self._report(exc, next(pauses)))
                continue
            pauses = _backoff()
            for job in jobs:
                self._start(handler, job)
            if len(jobs) < free and not self._stopping.is_set():
                await self._listener.idle(handler.queue.name, random.uniform(0.75, 1.25))

    async def _pause(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _start(self, handler: _Handler, job: Job) -> None:
        held = self._held[job.receipt.token] = _Held(job, handler)
        handler.held += 1
        self._beats.hold(job, handler.timeout.total_seconds())
        held.task = asyncio.create_task(self._execute(held), name=f"pgq job {job.id}")

    def _forget(self, held: _Held) -> None:
        if self._held.pop(held.job.receipt.token, None) is not None:
            self._beats.drop(held.job.receipt.token)
            held.handler.held -= 1
            held.handler.freed.set()

    # Execute

    async def _execute(self, held: _Held) -> None:
        job, handler = held.job, held.handler
        held.started = True
        if held.lost or self._stopping.is_set():
            self._settle(held, partial(self._queue.release, job))
            return
        try:
            if handler.transaction:
                await self._execute_in_transaction(held)
                self._forget(held)
            else:
                result = await handler.call(job)
                self._settle(held, None if result is None else partial(self._complete, job, result))
        except LeaseLost as exc:
            self._report_lost(held, str(exc))
        except (Exception, asyncio.CancelledError) as exc:
            cancelled = isinstance(exc, asyncio.CancelledError)
            if cancelled and held.lost:
                self._report_lost(held, "the handler was cancelled")
            elif cancelled and self._aborting:
                self._settle(held, partial(self._queue.release, job))
            else:
                log.warning("job %d of queue %r failed", job.id, job.queue, exc_info=True)
                self._settle(held, partial(self._queue.fail, job, _error_text(exc)))

    async def _execute_in_transaction(self, held: _Held) -> None:
        job, handler = held.job, held.handler
        async with self._pool.acquire() as connection, connection.transaction():
            result = await handler.call(job, connection)
            # From here the transaction itself keeps the job from others: a heartbeat would only
            # wait for it.
            held.settling = True
            self._beats.drop(job.receipt.token)
            if not await self._queue.complete(job, result, connection=connection):
                raise LeaseLost("what the handler wrote was rolled back")

    # Settle

    def _settle(self, held: _Held, outcome: _Call[object] | None) -> None:
        """Have the outcome written; None is completion without a result."""
        held.settling = True
        if outcome is None:
            self._completed.append(held)
        else:
            self._outcomes.append((held, outcome))
        self._unsettled.set()

    async def _settle_all(self) -> None:
        while not (self._drained and not self._completed and not self._outcomes):
            await self._unsettled.wait()
            self._unsettled.clear()
            completed, self._completed = self._completed, []
            outcomes, self._outcomes = self._outcomes, []
            if completed:
                receipts = [held.job for held in completed]
                ids = await self._persist(partial(self._queue.complete_many, receipts)) or ()
                for held in completed:
                    self._settled(held, accepted=held.job.id in ids)
            for held, outcome in outcomes:
                self._settled(held, accepted=bool(await self._persist(outcome)))

    def _settled(self, held: _Held, *, accepted: bool) -> None:
        if accepted:
            self._forget(held)
        else:
            self._report_lost(held, "its outcome was refused")

    async def _persist(self, call: _Call[T]) -> T | None:
        """Run a call until the server has answered it."""
        for pause in _backoff():
            try:
                return await self._settles.run(call)
            except Exception as exc:  # noqa: PERF203 this is a retry
                if not self._may_recover(exc):
                    log.exception("an outcome could not be written; its lease will run out")
                    return None
                await asyncio.sleep(self._report(exc, pause))
        raise AssertionError("unreachable")

    async def _complete(self, job: Job, result: Any, *, connection: Any) -> object:
        """Complete with a result, or fail if it cannot be stored."""
        try:
            return await self._queue.complete(job, result, connection=connection)
        except Exception as exc:
            if _is_transient(exc):
                raise
            log.warning("the result of job %d cannot be stored", job.id, exc_info=True)
            return await self._queue.fail(job, _error_text(exc), connection=connection)

    # End

    async def _finish(
        self, claiming: list[asyncio.Task[None]], settling: asyncio.Task[None]
    ) -> None:
        await self._ended(claiming, _SETTLE_SECONDS)
        running = [held.task for held in self._held.values() if held.task is not None]
        await self._ended(running, 0 if self._aborting else self._grace_seconds)
        self._abort()
        await self._ended(running, _CANCEL_SECONDS)
        self._drained = True
        self._unsettled.set()
        await self._ended([settling], _SETTLE_SECONDS)
        for task in [*claiming, settling]:
            task.cancel()
        await asyncio.gather(*claiming, settling, return_exceptions=True)
        for held in self._held.values():
            log.warning("job %d was not given back: its lease will run out", held.job.id)

    @staticmethod
    async def _ended(tasks: list[asyncio.Task[None]], seconds: float) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _report_lost(self, held: _Held, consequence: str) -> None:
        log.warning(
            "lost the lease of job %d of queue %r: %s", held.job.id, held.job.queue, consequence
        )
        self._forget(held)

    def _report(self, exc: Exception, pause: float) -> float:
        log.warning("the server cannot be reached, trying again in %.1f s: %r", pause, exc)
        return pause

    def _may_recover(self, exc: Exception) -> bool:
        return _is_transient(exc) and not self._pool.is_closing()


def _is_transient(exc: BaseException) -> bool:
    if isinstance(exc, (Error, asyncpg.PostgresError)):
        state = exc.sqlstate or ""
        return state[:2] in _TRANSIENT_CLASSES or state in _TRANSIENT_STATES
    if isinstance(exc, asyncpg.InterfaceError):
        return not isinstance(exc, ValueError)
    # asyncpg raises InternalClientError, too, when a call begins as the server ends the connection.
    return isinstance(exc, (OSError, asyncio.TimeoutError, asyncpg.InternalClientError))


def _backoff() -> Iterator[float]:
    pause = 0.1
    while True:
        yield pause * random.uniform(0.5, 1)
        pause = min(pause * 2, 10.0)


def _error_text(exc: BaseException) -> str:
    """Return the end of the traceback in characters that the server can store."""
    text = "".join(traceback.format_exception(exc))[-_ERROR_CHARACTERS:]
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()
