"""One run of a worker: claims jobs, has them handled, and writes what became of them."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Literal, TypeAlias

import asyncpg

from pgq import _sql
from pgq._call import InThread, Threads, is_coroutine_function
from pgq._errors import LeaseLost, NotPermitted, UnknownQueue, UnknownTask
from pgq._heartbeat import Connect, Heartbeat
from pgq._link import Link, Outage, answered, backoff, is_silent, is_transient, transaction
from pgq._listen import Listener
from pgq._log import about, about_worker, log, traced, trouble
from pgq._models import Job, JobId, Token, Unreadable, readable
from pgq._outcomes import Cancel, GiveUp, Outcome, Settled, Snooze
from pgq._oversized import claim_one, is_oversized
from pgq._processes import Processes
from pgq._queue import DEFAULT_TIMEOUT, Connection, Dumps, Queue
from pgq._rows import with_payload
from pgq._settle import Settler
from pgq._task import TASK_HEADER, Task
from pgq._unbegun import Unbegun, left
from pgq._version import check
from pgq._watch import Watch

Endpoint: TypeAlias = Callable[[Job[Any]], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Job[Any], Endpoint], Awaitable[Any]]
BeforeHook: TypeAlias = Callable[[Job[Any]], Any]
AfterHook: TypeAlias = Callable[[Job[Any], Any], Any]
ErrorHook: TypeAlias = Callable[[Job[Any], Exception], Any]
Reason: TypeAlias = Literal["lost", "cancel", "deadline", "abort"]

DEADLINE_PASSED: Final = "the deadline of the task has passed"

_LOOK_SECONDS: Final = 1.0  # between two looks whether the pool is closing, or a queue is back
_RELEASE_SECONDS: Final = 1.0  # until a job is given back whose transaction could not begin
_NO_ALARM: Final = nullcontext()
_CANCEL_SECONDS: Final = 5.0  # for a cancelled handler to end
_SETTLE_SECONDS: Final = 10.0  # for the last calls to be answered at the end
_FIND_SECONDS: Final = 0.2  # until lost claims are looked for once more; then twice as long
_FIND_AGAIN_SECONDS: Final = 5.0  # at most between two looks for them

# Around each attempt of every worker of the process, with what fails before the handler is called.
instrumentation: Final[list[Middleware]] = []


@dataclass(slots=True, kw_only=True)
class Consumer:
    """How a worker works off one queue, and with which tasks."""

    concurrency: int = 10
    timeout: timedelta = DEFAULT_TIMEOUT
    batch: int | None = None
    prefetch: int = 0
    tasks: dict[str, Task[Any, Any]] = field(default_factory=dict[str, Task[Any, Any]])
    handler: Task[Any, Any] | None = None  # of the jobs of no task

    def all_tasks(self) -> list[Task[Any, Any]]:
        """Return the tasks and the handler."""
        return [*self.tasks.values(), *([self.handler] if self.handler is not None else [])]

    def task_of(self, job: Job[Any]) -> Task[Any, Any]:
        """Return the task that handles a job; raises `UnknownTask` and `InvalidPayload`."""
        headers = job.headers
        if Unreadable in (type(job.payload), type(headers), type(job.checkpoint)):
            for part in ("payload", "headers", "checkpoint"):
                readable(part, getattr(job, part))
        name = headers.get(TASK_HEADER) if isinstance(headers, dict) else None
        if isinstance(name, str) and name in self.tasks:
            return self.tasks[name]
        if self.handler is not None:
            return self.handler
        if name is None and len(self.tasks) == 1:
            return next(iter(self.tasks.values()))
        raise UnknownTask(
            f"the worker has no task {name!r} for queue {job.queue!r}"
            if name is not None
            else f'a job of queue {job.queue!r} has no header "{TASK_HEADER}"',
            hint=f"Its tasks are: {', '.join(sorted(self.tasks))}. Who enqueues in SQL names one in"
            f' the headers, as in \'{{"{TASK_HEADER}": "{min(self.tasks, default="name")}"}}\'.',
        )


async def _whose(*, connection: Connection) -> str:
    """Return what tells a database and role from all others."""
    value: str = await connection.fetchval(_sql.WHOSE)
    return value


class RolledBack(LeaseLost):
    """The lease was lost before the transaction could complete the job."""


class NotBegun(Exception):  # noqa: N818 it is no error of the job
    """The server could not be reached to begin the transaction."""


# Set in a process that somebody else starts and aborts, and passes signals on to.
SUPERVISED: Final = threading.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a worker was made with, for its run."""

    name: str
    poll_seconds: float
    call_seconds: float
    grace_seconds: float
    listens: bool
    durable_claims: bool
    dumps: Dumps
    middleware: Sequence[Middleware]
    before: Sequence[BeforeHook]
    after: Sequence[AfterHook]
    error: Sequence[ErrorHook]


@dataclass(slots=True, eq=False)
class _Held:
    """A claimed job, from the claim until its outcome is written or its lease is lost."""

    job: Job[Any]
    intake: _Intake
    task: asyncio.Task[None] | None = None
    started: bool = False
    settling: bool = False
    committed: bool = False  # with its transaction
    given_back: bool = False
    handler: Task[Any, Any] | None = None
    reason: Reason | None = None  # why it was cancelled
    deferred: Reason | None = None  # why it is to be, if its transaction cannot be committed
    failure: BaseException | None = None  # of which the hooks for errors are told
    outcome: Outcome | None = None  # with which its handler has ended

    def __str__(self) -> str:
        task = "" if self.handler is None else f" ({self.handler.name})"
        return f"job {self.job.id}{task} of queue {self.job.queue!r}"


@dataclass(slots=True, eq=False)
class _Intake:
    """The jobs of one queue that the worker holds."""

    queue: Queue
    consumer: Consumer
    backlog: deque[_Held] = field(default_factory=deque[_Held])
    held: int = 0
    running: int = 0
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: int = 0  # how many jobs it does not hold any more
    is_resting: bool = False  # until the next one ends, or until it is woken
    idle_at: int = -1  # how many jobs of the worker had ended when it last found nothing
    is_gone: bool = False  # the queue was dropped, or the privilege to consume from it revoked
    most: int | None = None  # to claim at once after a claim that was too large; 0: see claim_one

    def room(self) -> int:
        """Return how many jobs to claim now; with a prefetch, not before half of it is gone.

        Jobs whose outcome is still to be written do not count, until it holds twice as many as may
        be at hand.
        """
        most = self.consumer.concurrency + self.consumer.prefetch
        free = min(most - len(self.backlog) - self.running, 2 * most - self.held)
        if free < max(self.consumer.prefetch // 2, 1):
            return 0
        return min(free, self.consumer.batch or free, free if self.most is None else self.most or 1)

    def claimed(self, number: int, room: int) -> None:
        """After a claim that was too large, claim more again when one of fewer has succeeded."""
        if self.most is not None:
            self.most = 2 * self.most or 1
            all_was_read = number < room
            if all_was_read or self.most >= self.consumer.concurrency + self.consumer.prefetch:
                self.most = None


class Run:
    """One run of a worker.

    Args:
        settings: of the worker.
        pool: where claims, outcomes and transactions get their connections.
        new_queue: makes a `Queue` by its name.
        connect: opens connections beside the pool.
        consumers: by the name of their queue.
        until_idle: stop when there is nothing to do.
    """

    def __init__(
        self,
        settings: Settings,
        pool: asyncpg.Pool[Any],
        new_queue: Callable[..., Queue],
        connect: Connect,
        consumers: dict[str, Consumer],
        *,
        until_idle: bool,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._queue = new_queue()  # for calls that name a job, not a queue
        self._intakes = [_Intake(new_queue(name), consumer) for name, consumer in consumers.items()]
        self._until_idle = until_idle
        self._outage = Outage(settings.name, "the server answers again")
        self._deafness = Outage(settings.name, "the worker listens again")
        self._listener = Listener(
            connect,
            self._queue,
            self._notify,
            poll_seconds=settings.poll_seconds,
            call_seconds=settings.call_seconds,
            outage=self._deafness,
        )
        for name in consumers:
            self._listener.add(name)
        tick = min(consumer.timeout for consumer in consumers.values()).total_seconds() / 3
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(settings.name, self._on_loop)
        self._was_signalled = False

        def tell(reason: Reason, token: Token | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel_held, token, reason)

        self._beats = Heartbeat(
            connect,
            self._queue,
            tick,
            partial(tell, "lost"),
            partial(tell, "cancel"),
            outage=self._outage,
        )
        self._held: dict[Token | None, _Held] = {}  # the token of a claimed job is never None
        self._one_ended = asyncio.Event()
        # Of jobs that it has begun, or may have: until when their leases may last.
        self._lost_tokens: deque[tuple[float, Token | None]] = deque()
        self._lost_claims: dict[int, float] = {}  # by session: until when their leases last
        self._finding: asyncio.Task[None] | None = None
        self._unbegun: Unbegun | None = None
        self._claims = Link(pool, settings.call_seconds, self._outage)
        self._settles = Link(pool, settings.call_seconds, self._outage)
        self._settler = Settler(self._queue, self._settles, self._settled, self._refused)
        self._processes = Processes()
        self._threads = Threads()
        self._telling: set[asyncio.Task[None]] = set()
        self._context = copy_context()
        self._stopping = asyncio.Event()
        self._given_back = 0
        self._aborting = asyncio.Event()
        self._over = False  # nobody waits for handlers any more

    async def main(self) -> None:
        """Work until `stop`."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._settles.close)
            stack.push_async_callback(self._claims.close)
            stack.push_async_callback(self._beats.stop)
            stack.callback(self._threads.close)
            await stack.enter_async_context(self._processes)
            await self._beats.start()
            stack.callback(self._watch.stop)
            self._watch.start()
            # What is wrong from the start is not to be retried, nor met by jobs that are at work.
            for link in (self._claims, self._settles):
                check(await link.run(self._queue.version))
            await self._keep_unbegun(stack)
            await self._prove_statements()
            for intake in self._intakes:
                await self._claims.run(intake.queue.channel)
            name = self._settings.name
            log.info("worker %s has started", name, extra=about_worker(name))
            await self._work()

    async def _keep_unbegun(self, stack: AsyncExitStack) -> None:
        """Give back what killed workers had claimed and not begun; leave the same to the next."""
        if sys.platform == "win32":
            return
        try:
            whose = await self._claims.run(_whose)
            for path, receipts in left(whose):
                if await self._release_left(receipts):
                    path.unlink(missing_ok=True)
            self._unbegun = Unbegun(whose)
            stack.callback(self._unbegun.close)
        except Exception as exc:  # noqa: BLE001 the worker does its work without
            log.warning(
                "jobs that are claimed and not begun are counted if the worker is killed: %r",
                exc,
                extra=trouble(exc),
            )

    async def _release_left(self, receipts: list[tuple[JobId, Token]]) -> bool:
        given_back = 0
        try:
            for receipt in receipts:
                if self._stopping.is_set():
                    return False
                given_back += await self._claims.run(partial(self._queue.release, receipt))
        except Exception as exc:  # noqa: BLE001 the leases run out
            log.warning(
                "jobs that were not begun cannot be given back: %r", exc, extra=trouble(exc)
            )
            return False
        finally:
            if given_back:
                log.info(
                    "jobs that a killed worker had not begun are given back: %d",
                    given_back,
                    extra=about_worker(self._settings.name),
                )
        return True

    async def _prove_statements(self) -> None:
        """Run a prepared statement in another session than before, if a pooler shares sessions.

        Poolers take the idle session that was used last, or first: while another transaction is
        open, and when that has ended, one of these calls gets another one.
        """

        async def meanwhile(*, connection: Connection) -> None:
            async with connection.transaction():
                await self._queue.version(connection=connection)
                await self._claims.run(self._queue.version)

        await self._settles.run(meanwhile)
        for _ in range(2):
            await self._claims.run(self._queue.version)

    async def _notify(self, channel: str) -> None:
        async def notify(*, connection: Connection) -> None:
            await connection.execute(_sql.NOTIFY, channel)

        await self._claims.run(notify)

    async def _work(self) -> None:
        settling = asyncio.create_task(self._settler.run())
        listens = self._settings.listens and not self._until_idle
        listening = [asyncio.create_task(self._listener.run())] if listens else []
        claiming = [asyncio.create_task(self._claim_all(intake)) for intake in self._intakes]
        closing = asyncio.create_task(self._until_closing())
        tasks = [*claiming, settling, *listening, closing]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self.stop()
            for task in listening:
                task.cancel()
            try:
                await self._finish(claiming, settling)
            except asyncio.CancelledError:
                self.abort()
                await self._finish(claiming, settling)
                raise
            finally:
                await self._end(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _until_closing(self) -> None:
        """Return when the pool is being closed, which waits for the connections of this run."""
        while not (self._pool.is_closing() or self._stopping.is_set()):
            await self._pause(_LOOK_SECONDS)
            self._outage.look()
            self._deafness.look()

    def _on_loop(self) -> list[str]:
        """Name the jobs whose handlers run on the loop; it may be called in any thread."""
        at_work = [held for held in list(self._held.values()) if not held.settling]
        return [str(held) for held in at_work if held.handler and held.handler.run_in == "loop"]

    def stop(self, hint: str = "") -> None:
        """Claim no more, give back what has not begun, and end when handlers have ended.

        Args:
            hint: for the log, what whoever waits for that can do.
        """
        at_work = sum(held.started and not held.settling for held in self._held.values())
        if at_work and not (self._stopping.is_set() or self._aborting.is_set()):
            log.info(
                "the worker stops; it waits for jobs at work (%d), %g s at most%s",
                at_work,
                self._settings.grace_seconds,
                hint,
                extra=about_worker(self._settings.name),
            )
        self._stopping.set()
        self._one_ended.set()
        self._listener.stop()
        for intake in self._intakes:
            intake.freed.set()
            while intake.backlog:
                self._give_back(intake.backlog.popleft())

    def signalled(self, number: int) -> None:
        """Stop, or abort what was stopped before; for signal handlers.

        A process whose loop does not answer is ended when it would have stopped.
        """
        if self._was_signalled and SUPERVISED.is_set():
            return  # the supervisor passes on what this process may have got as well
        seconds = _CANCEL_SECONDS
        if not self._was_signalled:
            seconds += self._settings.grace_seconds + 2 * _SETTLE_SECONDS
        self._was_signalled = True
        self._watch.end_within(seconds, 128 + number)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop_or_abort)

    def _stop_or_abort(self) -> None:
        if self._stopping.is_set():
            self.abort()
        self.stop("; a second signal ends them at once")

    def abort(self) -> None:
        """Cancel the handlers, once; what they do not finish is given back."""
        if not self._aborting.is_set():
            self._aborting.set()
            for token in list(self._held):
                self._cancel_held(token, "abort")

    def _cancel_held(self, token: Token | None, reason: Reason) -> None:
        held = self._held.get(token)
        if held is None or held.reason == "lost":
            return
        if held.settling:
            held.deferred = held.deferred or reason
            return
        if held.reason is None or reason == "lost":
            held.reason = reason
        # A task that is cancelled before its first step would never run its own clean-up.
        if held.task is not None and held.started:
            held.task.cancel(held.reason)  # the message is for instrumentation

    # Claim

    async def _claim(
        self, intake: _Intake, room: int, *, connection: Connection
    ) -> tuple[float, list[Job[Any]]]:
        """Return the jobs, and since when they may be leased."""
        begun = time.monotonic()
        jobs = await intake.queue.dequeue(
            room,
            intake.consumer.timeout,
            worker=self._settings.name,
            durable=self._settings.durable_claims,
            connection=connection,
        )
        return begun, jobs

    async def _claim_some(self, intake: _Intake, room: int) -> tuple[float, list[Job[Any]]]:
        timeout = intake.consumer.timeout
        if intake.most == 0:
            return await claim_one(self._claims, intake.queue, timeout, self._settings.name)
        # One that is large gets the time that its lease lasts.
        seconds = timeout.total_seconds() if intake.most == 1 else 0.0
        return await self._claims.run(partial(self._claim, intake, room), seconds)

    async def _claim_all(self, intake: _Intake) -> None:
        pauses = backoff()
        while not (self._stopping.is_set() or self._pool.is_closing()):
            room = intake.room()
            if room == 0:
                intake.freed.clear()
                await intake.freed.wait()
                continue
            ended = self._ended
            ended_here = intake.ended
            try:
                begun, jobs = await self._claim_some(intake, room)
            except (UnknownQueue, NotPermitted) as exc:
                if self._until_idle:
                    raise
                self._leave(intake, exc)
                await self._pause(_LOOK_SECONDS)
                continue
            except Exception as exc:
                pause = max(next(pauses), self._claims.shut_for())
                # Without a connection nothing was claimed, and no job was too large.
                was_sent = self._claims.pid is not None
                if not self._claims.may_recover(exc, pause, anyway=is_oversized(exc)):
                    raise
                if was_sent and is_oversized(exc):
                    intake.most = room // 2
                if is_silent(exc):
                    self._settles.drop()  # of the same network
                self._expect_lost_jobs(intake)
                await self._pause(pause)
                continue
            pauses = backoff()
            if intake.is_gone:
                intake.is_gone = False
                log.info(
                    "queue %r is back",
                    intake.queue.name,
                    extra=about_worker(self._settings.name),
                )
            intake.claimed(len(jobs), room)
            self._take(intake, jobs, begun)
            if len(jobs) == room or self._stopping.is_set():
                continue
            # At a limit the next job can be claimed when an outcome is written; nobody is told.
            if intake.ended == ended_here:
                intake.is_resting = True
                await self._rest(intake, ended)
                intake.is_resting = False

    def _leave(self, intake: _Intake, exc: Exception) -> None:
        """Note that a queue is gone; it may come back."""
        name = intake.queue.name
        self._listener.leave(name)
        if not intake.is_gone:
            intake.is_gone = True
            log.warning(
                "queue %r is gone, looking for it every %g s: %r",
                name,
                _LOOK_SECONDS,
                exc,
                extra=trouble(exc, _LOOK_SECONDS),
            )

    def _expect_lost_jobs(self, intake: _Intake) -> None:
        """Look for what a claim has leased that was not answered."""
        if (pid := self._claims.pid) is not None:
            seconds = intake.consumer.timeout.total_seconds()
            self._lost_claims[pid] = time.monotonic() + seconds
            if self._finding is None or self._finding.done():
                self._finding = self._new_task(self._find_lost_jobs(), "pgq lost claims")

    async def _find_lost_jobs(self) -> None:
        """Give back what lost claims have leased, as long as it is: they may be still under way."""
        pause = _FIND_SECONDS
        while self._lost_claims:
            await self._pause(pause)
            try:
                given_back = await self._claims.run(self._release_unheld)
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
                        extra=about_worker(self._settings.name),
                    )
                    self._listener.wake()
            if self._stopping.is_set():
                return
            now = time.monotonic()
            self._lost_claims = {
                pid: until for pid, until in self._lost_claims.items() if until > now
            }
            pause = min(2 * pause, _FIND_AGAIN_SECONDS)

    async def _release_unheld(self, *, connection: Connection) -> int:
        # No claim is being answered meanwhile: they use the same connection.
        lost = (token for _, token in self._lost_tokens)
        held = [token for token in (*self._held, *lost) if token is not None]
        name = self._settings.name
        return sum(
            [
                len(await self._queue.release_unheld(name, held, pid, connection=connection))
                for pid in list(self._lost_claims)
            ]
        )

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _rest(self, intake: _Intake, ended: int) -> None:
        """Wait until there may be something to claim."""
        if not self._until_idle:
            await self._listener.idle(intake.queue.name, random.uniform(0.75, 1.25))
            return
        intake.idle_at = ended
        if not self._held and all(other.idle_at == self._ended for other in self._intakes):
            self.stop()
        elif ended == self._ended:
            # A handler that is at work may wait for a job that it has added.
            self._one_ended.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._one_ended.wait(), self._settings.poll_seconds)

    @property
    def _ended(self) -> int:
        return sum(intake.ended for intake in self._intakes)

    def _take(self, intake: _Intake, jobs: list[Job[Any]], begun: float) -> None:
        seconds = intake.consumer.timeout.total_seconds()
        self._beats.hold(jobs, seconds, begun)
        is_late = time.monotonic() - begun >= seconds
        if is_late and jobs:
            log.warning(
                "the leases of %d jobs were over before their claim was read: they are given back",
                len(jobs),
                extra=about_worker(self._settings.name),
            )
        intake.held += len(jobs)
        if self._unbegun is not None:
            self._unbegun.add(jobs)
        for job in jobs:
            held = self._held[job.token] = _Held(job, intake)
            if is_late or self._stopping.is_set():
                self._give_back(held)
            else:
                intake.backlog.append(held)
        self._start_next(intake)

    def _start_next(self, intake: _Intake) -> None:
        while intake.backlog and intake.running < intake.consumer.concurrency:
            held = intake.backlog.popleft()
            intake.running += 1
            held.task = self._new_task(self._execute(held), f"pgq job {held.job.id}")

    def _new_task(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Return a task that begins later, whatever tasks the loop makes, in a context of its own.

        It may be another job's task that starts this one: its context is not to be passed on.
        """
        return self._context.copy().run(asyncio.Task, coroutine, name=name)

    def _give_back(self, held: _Held) -> None:
        if held.reason == "lost":
            self._report_lost(held, "it was not begun")
        else:
            held.settling = held.given_back = True
            self._settler.release(held.job)

    def _forget(self, held: _Held) -> None:
        if self._held.pop(held.job.token, None) is not None:
            self._beats.drop(held.job.token)
            if self._unbegun is not None:
                self._unbegun.discard(held.job.token)
            held.intake.held -= 1
            held.intake.freed.set()
            held.intake.ended += 1
            if held.intake.is_resting:
                self._listener.wake([held.intake.queue.name])
            self._one_ended.set()

    # Execute

    async def _execute(self, held: _Held) -> None:
        held.started = True
        try:
            if self._stopping.is_set() or held.reason is not None:
                self._give_back(held)
                return
            if self._unbegun is not None:
                self._unbegun.discard(held.job.token)
            if log.isEnabledFor(logging.DEBUG):
                await self._handle_timed(held)
            else:
                await self._handle(held)
        finally:
            held.intake.running -= 1
            self._start_next(held.intake)
            held.intake.freed.set()

    async def _handle_timed(self, held: _Held) -> None:
        job = held.job
        begun = time.monotonic()
        try:
            await self._handle(held)
        finally:
            log.debug(
                "%s, attempt %d of %d, took %.3f s",
                held,
                job.attempt,
                job.max_attempts,
                time.monotonic() - begun,
                extra=about(job),
            )

    async def _handle(self, held: _Held) -> None:
        job = held.job
        try:
            if instrumentation:
                kept = await instrumented(partial(self._attempt, held), job)
            else:
                kept = await self._attempt(held, job)
        except RolledBack:
            self._report_lost(held, "what the handler wrote was rolled back")
        except NotBegun:
            with suppress(asyncio.CancelledError):
                await self._pause(_RELEASE_SECONDS)
            self._give_back(held)
        except Outcome as outcome:
            if held.committed:
                self._settle_failed(held, outcome)
                return
            if isinstance(outcome, Settled):
                self._forget(held)
                return
            held.settling = True
            held.outcome = outcome
            self._settler.end(job, outcome)
        except BaseException as exc:
            self._settle_failed(held, exc)
            if isinstance(exc, KeyboardInterrupt):
                raise
        else:
            if held.committed:
                self._forget(held)
            else:
                held.settling = True
                self._settler.complete(job, kept)

    async def _attempt(self, held: _Held, job: Job[Any]) -> Any:
        with ExitStack() as stack:
            thread: InThread | None = None
            try:
                task = held.intake.consumer.task_of(job)
                held.handler = task
                thread = self._thread(stack, held)
                job = decoded(task, job)
                call = self._endpoint(held, task, thread)
                with _NO_ALARM if task.deadline is None else self._alarm(held, task.deadline):
                    result = returned(await call(job))
                return None if held.committed else text_of(self._settings, task, result)
            except (Outcome, RolledBack, NotBegun):
                raise
            except BaseException as exc:  # noqa: BLE001 it is raised, or what it means
                raise await self._failed(held, job, exc, thread)  # noqa: B904 it has its own cause

    def _thread(self, stack: ExitStack, held: _Held) -> InThread | None:
        """Return where the plain functions of an attempt run, unless that is the loop."""
        if held.handler is None or held.handler.run_in != "thread":
            return None
        name = f"pgq job {held.job.id}"
        return stack.enter_context(self._threads.attempt(name, is_over=lambda: self._over))

    def _endpoint(self, held: _Held, task: Task[Any, Any], thread: InThread | None) -> Endpoint:
        settings = self._settings
        around = settings.before or settings.after or settings.middleware
        if task.run_in == "loop" and not (task.transaction or around):  # in less time
            return task.function
        in_transaction = partial(self._call_in_transaction, held, task)
        return endpoint(settings, task, in_transaction, self._processes, thread)

    @contextmanager
    def _alarm(self, held: _Held, deadline: timedelta) -> Generator[None, None, None]:
        alarm = asyncio.get_running_loop().call_later(
            deadline.total_seconds(), self._cancel_held, held.job.token, "deadline"
        )
        try:
            yield
        finally:
            alarm.cancel()

    async def _failed(
        self, held: _Held, job: Job[Any], exc: BaseException, thread: InThread | None
    ) -> BaseException:
        """Return what an attempt ended with, and tell the hooks if that is a failure."""
        is_cancelled = isinstance(exc, asyncio.CancelledError)
        if held.deferred is not None or (is_cancelled and held.reason is None):
            # Whoever cancels all tasks cancels the run, too. And what was deferred cancels this
            # task, which is no reason to break off the hooks.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        if self._over or held.committed or (held.settling and is_silent(exc)):
            return exc
        if held.reason == "deadline":
            late = TimeoutError(DEADLINE_PASSED)
            late.__cause__ = None if is_cancelled else exc
            exc = late.with_traceback(exc.__traceback__) if is_cancelled else late
        elif held.reason is not None:
            if is_cancelled:
                return exc
            log.warning(
                "%s failed as it was cancelled", held, exc_info=traced(exc), extra=about(job)
            )
            return asyncio.CancelledError(held.reason)
        held.failure = exc
        with suppress(asyncio.CancelledError):  # it has failed, whatever happens meanwhile
            await tell(self._settings, job, exc, thread)
        return exc

    async def _call_in_transaction(self, held: _Held, task: Task[Any, Any], job: Job[Any]) -> Any:
        try:
            result = await self._complete_in_transaction(held, task, job)
        except Exception as exc:
            if held.settling and not (isinstance(exc, RolledBack) or is_silent(exc)):
                # It was not completed: middleware may call the handler again.
                held.settling = False
                timeout = held.intake.consumer.timeout.total_seconds()
                self._beats.hold([held.job], timeout, time.monotonic())
                if held.deferred is not None:
                    self._cancel_held(held.job.token, held.deferred)
            raise
        held.committed = True
        return result

    async def _complete_in_transaction(
        self, held: _Held, task: Task[Any, Any], job: Job[Any]
    ) -> Any:
        seconds = self._settings.call_seconds
        async with AsyncExitStack() as stack:
            try:
                opened = transaction(self._pool, seconds)
                connection = await stack.enter_async_context(opened)
            except Exception as exc:
                if self._claims.may_recover(exc, _RELEASE_SECONDS) or self._pool.is_closing():
                    raise NotBegun from exc
                raise
            if held.reason is not None:  # what waits for a connection may swallow a cancellation
                raise asyncio.CancelledError(held.reason)

            async def complete(result: str | None) -> bool:
                # From here the transaction itself keeps the job from others: a heartbeat would
                # only wait for it.
                held.settling = True
                self._beats.drop(held.job.token)
                call = self._queue.complete(job, result, connection=connection)
                return await answered(connection, call, seconds)

            return await call_and_complete(self._settings, task, job, connection, complete)

    def _settle_failed(self, held: _Held, exc: BaseException) -> None:
        job = held.job
        if held.committed:
            log.warning("%s was completed, but then", held, exc_info=traced(exc), extra=about(job))
            self._forget(held)
        elif held.reason == "lost":
            self._report_lost(held, "the handler was cancelled")
        elif held.failure is None and held.settling and is_silent(exc):
            # The server may still have the transaction, and whoever touches the job waits.
            self._report_lost(held, f"nobody knows whether it was completed: {exc!r}")
        elif held.failure is None and held.reason == "abort":
            if not self._over:  # else nobody writes that any more
                log.info("%s is given back: its handler was cancelled", held, extra=about(job))
            self._give_back(held)
        elif held.failure is None and held.reason == "cancel":
            log.info("%s was cancelled on request", held, extra=about(job))
            held.settling = True
            self._settler.end(job, Cancel("cancelled on request"))
        else:
            failure = exc if held.failure is None else held.failure
            _log_end(held, failure)
            held.settling = True
            self._settler.end(job, failure)

    def _refused(self, job: Job[Any], exc: Exception) -> None:
        held = self._held[job.token]
        if held.failure is None:
            held.failure = exc
            task = self._new_task(self._tell(held, exc), f"pgq hooks of job {job.id}")
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, held: _Held, exc: Exception) -> None:
        with ExitStack() as stack:
            await tell(self._settings, held.job, exc, self._thread(stack, held))

    def _settled(self, job: Job[Any], accepted: bool | None) -> None:
        held = self._held[job.token]
        if accepted is None:
            log.info(
                "the answer to the outcome of %s was lost, and it was refused when it was sent "
                "again: the first call may have written it, or the lease was lost before",
                held,
                extra=about(job),
            )
            self._lose(held)
            return
        if not accepted:
            self._report_lost(held, "its outcome was refused")
            return
        if held.given_back and self._stopping.is_set():
            self._given_back += 1
        if held.outcome is not None and held.failure is None:
            _log_end(held, held.outcome)
        self._forget(held)

    def _report_lost(self, held: _Held, consequence: str) -> None:
        log.warning("lost the lease of %s: %s", held, consequence, extra=about(held.job))
        self._lose(held)

    def _lose(self, held: _Held) -> None:
        """Forget a job; while its lease may last, no search for lost claims gives the job back."""
        now = time.monotonic()
        while self._lost_tokens and self._lost_tokens[0][0] <= now:
            self._lost_tokens.popleft()
        until = now + held.intake.consumer.timeout.total_seconds()
        self._lost_tokens.append((until, held.job.token))
        self._forget(held)

    # End

    async def _finish(
        self, claiming: list[asyncio.Task[None]], settling: asyncio.Task[None]
    ) -> None:
        await _wait(claiming, _SETTLE_SECONDS)
        if self._finding is not None:
            await _wait([self._finding], _SETTLE_SECONDS)
        running = self._running()
        await self._wait_gracefully(running)
        self.abort()
        await _wait(running, _CANCEL_SECONDS)
        for held in list(self._held.values()):
            # Cancelled like all tasks of the loop, before its first step.
            if held.task is not None and held.task.done() and not held.started:
                self._give_back(held)
        self._settler.drain()
        if settling.cancelled():  # like all tasks of the loop
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settler.run(), _SETTLE_SECONDS)
        await _wait([settling], _SETTLE_SECONDS)
        await _wait(list(self._telling), _CANCEL_SECONDS)

    async def _wait_gracefully(self, running: list[asyncio.Task[None]]) -> None:
        """Wait for handlers as long as they may go on: not after an abort, heeded or not."""
        ends = asyncio.create_task(_wait(running, self._settings.grace_seconds))
        aborts = asyncio.create_task(self._aborting.wait())
        try:
            await asyncio.wait([ends, aborts], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ends.cancel()
            aborts.cancel()

    def _running(self) -> list[asyncio.Task[None]]:
        return [held.task for held in self._held.values() if held.task is not None]

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Cancel what is left, and wait for all but the handlers."""
        self._over = True
        self._settler.drain()  # a cancellation alone may be lost in `asyncio.wait_for`
        finding = [] if self._finding is None else [self._finding]
        for task in [*tasks, *finding, *self._running(), *self._telling]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._held.values():
            log.warning(
                "%s was not given back: its lease will run out",
                held,
                extra=about(held.job),
            )
        if self._held or self._lost_tokens:
            # The next run takes these leases for its own lost claims if it gets their session.
            self._claims.drop()
        if self._given_back:
            log.info(
                "the worker has stopped; jobs given back: %d",
                self._given_back,
                extra=about_worker(self._settings.name),
            )


def _log_end(held: _Held, error: BaseException) -> None:
    """Log an attempt that has not completed its job, and what that means for the job."""
    job = held.job
    if isinstance(error, Cancel) or held.reason == "cancel":
        fate = "cancelled"
    elif isinstance(error, Snooze):
        fate = f"given back for {error.for_}"
    elif isinstance(error, GiveUp) or job.attempt >= job.max_attempts:
        fate = "dead"
    else:
        fate = "to be tried again"
    is_outcome = isinstance(error, Outcome)
    reason = getattr(error, "reason", None) if is_outcome else None
    log.log(
        logging.INFO if is_outcome and fate != "dead" else logging.WARNING,
        "%s %s, attempt %d of %d: it is %s%s",
        held,
        f"ended with {type(error).__name__}" if is_outcome else "failed",
        job.attempt,
        job.max_attempts,
        fate,
        "" if reason is None else f": {reason}",
        exc_info=None if is_outcome else traced(error),
        extra=about(job),
    )


def instrumented(attempt: Endpoint, job: Job[Any]) -> Awaitable[Any]:
    """Make an attempt at a job, with what instruments the process around it."""
    for call in instrumentation:
        attempt = partial(_call_around, call, attempt)
    return attempt(job)


def decoded(task: Task[Any, Any], job: Job[Any]) -> Job[Any]:
    """Return a job with the payload that the handler of its task takes; raises `InvalidPayload`."""
    if not task.payloads.is_typed:
        return job
    return with_payload(job, task.payloads.decode(job.payload))


async def tell(
    settings: Settings, job: Job[Any], error: BaseException, thread: InThread | None
) -> None:
    """Call the hooks for errors with what an attempt has failed with; plain ones in its thread."""
    if not isinstance(error, Exception):
        error, cause = RuntimeError(repr(error)), error  # an exit would be the whole process's
        error.__cause__ = cause
    for hook in settings.error:
        await _logged(thread, hook, job, error)


def endpoint(
    settings: Settings,
    task: Task[Any, Any],
    in_transaction: Endpoint,
    processes: Processes,
    thread: InThread | None,
) -> Endpoint:
    """Return what calls the handler of a task, with hooks and middleware around it.

    It takes a job as `decoded` returns it.

    Args:
        settings: of the worker.
        task: the job's.
        in_transaction: calls the handler and completes the job, for a task with `transaction`.
        processes: where it is called that is to run in one.
        thread: where a plain one is called, and plain hooks around it.
    """
    call: Endpoint
    if task.transaction:
        call = in_transaction
    elif thread is not None:
        call = partial(thread.call, task.function)
    elif task.run_in == "process":
        call = partial(processes.call, task.function)
    else:
        call = task.function
    if settings.before or settings.after:
        call = partial(_call_with_hooks, settings, thread, call)
    for middleware in reversed(settings.middleware):
        call = partial(_call_around, middleware, call)
    return call


def returned(result: Any) -> Any:
    """Return what a handler has returned; raises it if it is an `Outcome`."""
    if isinstance(result, Outcome):
        raise result
    return result


def text_of(settings: Settings, task: Task[Any, Any], result: Any) -> str | None:
    """Return a result as JSON text; what is raised is the attempt's, not the connection's."""
    return None if result is None else settings.dumps(task.results.encode(result))


async def call_and_complete(
    settings: Settings,
    task: Task[Any, Any],
    job: Job[Any],
    connection: Connection,
    complete: Callable[[str | None], Awaitable[bool]],
) -> Any:
    """Call a handler, and complete its job, in the transaction that is open on a connection.

    Args:
        settings: of the worker.
        task: the job's.
        job: the handler's.
        connection: the handler's; its transaction has to roll back if this raises.
        complete: called with the result as JSON text; tells whether the lease was good.

    Raises:
        RolledBack: it was not.
        Outcome: the handler returned or raised one.
    """
    try:
        result = returned(await task.function(job, connection))
    except Settled as exc:
        raise TypeError("the worker completes the job of a handler with transaction=True") from exc
    if not await complete(text_of(settings, task, result)):
        raise RolledBack(f"what the handler of job {job.id} wrote is rolled back")
    return result


async def _call_with_hooks(
    settings: Settings, thread: InThread | None, endpoint: Endpoint, job: Job[Any]
) -> Any:
    for before in settings.before:
        await _answer(thread, before, job)
    result = await endpoint(job)
    if not isinstance(result, Outcome):
        for after in settings.after:
            await _logged(thread, after, job, result)
    return result


async def _call_around(middleware: Middleware, endpoint: Endpoint, job: Job[Any]) -> Any:
    return await middleware(job, endpoint)


async def _answer(thread: InThread | None, hook: Callable[..., Any], *args: Any) -> None:
    if thread is not None and not is_coroutine_function(hook):
        await thread.call(hook, *args)
    elif isawaitable(answer := hook(*args)):
        await answer


async def _logged(
    thread: InThread | None, hook: Callable[..., Any], job: Job[Any], end: object
) -> None:
    try:
        await _answer(thread, hook, job, end)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException:  # an exit would be the whole process's
        log.exception("a hook failed", extra=about(job))


async def _wait(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
