"""One run of a worker: what takes part in it, and how it begins and ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import asyncpg

from pgq import _sql
from pgq._calls import Connection
from pgq._log import about_worker, log
from pgq._models import Job, Token
from pgq._queue import Queue
from pgq._version import check
from pgq._worker.attempt import Attempts
from pgq._worker.claim import Claimer
from pgq._worker.config import Consumers, Prefix, Settings, consumer_of
from pgq._worker.finder import Finder, Names
from pgq._worker.health import Health
from pgq._worker.heartbeat import Connect, Heartbeat
from pgq._worker.held import Reason
from pgq._worker.holding import Holding
from pgq._worker.intake import Intake
from pgq._worker.link import Link, Outage, pause
from pgq._worker.listen import Listener
from pgq._worker.lost import LostClaims
from pgq._worker.oversized import Blind
from pgq._worker.settle import Impatient, Settler
from pgq._worker.unbegun import keep
from pgq._worker.watch import Watch

QueueT = TypeVar("QueueT", bound=Queue)

_LOOK_SECONDS: Final = 1.0  # between two looks whether the pool is closing
_CANCEL_SECONDS: Final = 5.0  # for a cancelled handler to end
_SETTLE_SECONDS: Final = 10.0  # for the last calls to be answered at the end

# Set in a process that somebody else starts and aborts, and passes signals on to.
SUPERVISED: Final = threading.Event()


class NewQueue(Protocol):
    """What makes a queue of a kind."""

    def __call__(self, kind: type[QueueT], name: str = ..., /) -> QueueT: ...


class Run:
    """One run of a worker.

    Args:
        settings: of the worker.
        pool: where claims, outcomes and transactions get their connections.
        new_queue: makes a `Queue`, or what is derived from it, by its name.
        connect: opens connections beside the pool.
        consumers: by the names and prefixes of their queues.
        until_idle: stop when there is nothing to do.
    """

    def __init__(
        self,
        settings: Settings,
        pool: asyncpg.Pool[Any],
        new_queue: NewQueue,
        connect: Connect,
        consumers: Consumers,
        *,
        until_idle: bool,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._until_idle = until_idle
        self._queue = new_queue(Queue)  # for calls that name a job, not a queue
        self._new_queue = new_queue
        self._consumers = consumers
        self._intakes: list[Intake] = []
        self._listens = settings.listens and not until_idle
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._was_signalled = self._has_started = False
        self._watch = Watch(settings.name, self._on_loop)
        self._outage = Outage(settings.name, "the server answers again")
        self._deafness = Outage(settings.name, "the worker listens again")
        self._claims = Link(pool, settings.call_seconds, self._outage)
        self._settles = Link(pool, settings.call_seconds, self._outage)
        self._listener = Listener(
            connect,
            self._queue,
            self._notify,
            poll_seconds=settings.poll_seconds,
            call_seconds=settings.call_seconds,
            outage=self._deafness,
        )
        self._beats = Heartbeat(
            connect,
            self._queue,
            min(consumer.timeout for consumer in consumers.values()).total_seconds() / 3,
            partial(self._cancel_soon, "lost"),
            partial(self._cancel_soon, "cancel"),
            outage=self._outage,
        )
        self._settler = Settler(new_queue(Impatient), self._settles, self._settled, self._refused)
        self._holding = Holding(
            settings.name, self._beats, self._settler, self._stopping, self._ended
        )
        self._attempts = Attempts(
            settings,
            pool,
            queue=self._queue,
            link=self._claims,
            beats=self._beats,
            holding=self._holding,
            stopping=self._stopping,
            new_task=self._new_task,
        )
        self._lost = LostClaims(
            settings.name,
            self._queue,
            self._claims,
            holding=self._holding,
            listener=self._listener,
            stopping=self._stopping,
            new_task=self._new_task,
        )
        self._claimer = Claimer(
            settings,
            pool,
            link=self._claims,
            settles=self._settles,
            intakes=self._intakes,
            holding=self._holding,
            attempts=self._attempts,
            lost=self._lost,
            listener=self._listener,
            stopping=self._stopping,
            on_idle=self.stop if until_idle else None,
        )
        prefixes = [each for each in consumers if isinstance(each, Prefix)]
        self._finder = Finder(new_queue(Names), prefixes, self._claims, self._found, self._stopping)
        self._claiming: list[asyncio.Task[None]] = []
        self._claim_ended = asyncio.Event()
        for name in consumers:
            if isinstance(name, str):
                self._add(name)

    async def main(self) -> None:
        """Work until `stop`."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._settles.close)
            stack.push_async_callback(self._claims.close)
            stack.push_async_callback(self._beats.stop)
            await stack.enter_async_context(self._attempts.opened())
            await self._beats.start()
            stack.callback(self._watch.stop)
            self._watch.start()
            # What is wrong from the start is not to be retried, nor met by jobs that are at work.
            for link in (self._claims, self._settles):
                check(await link.run(self._queue.version))
            name = self._settings.name
            unbegun = await keep(name, self._queue, self._claims, self._stopping)
            stack.callback(unbegun.close)
            self._holding.unbegun = unbegun
            await self._prove_statements()
            for intake in self._intakes:
                await self._claims.run(intake.queue.channel)
            await self._finder.look()
            if self._until_idle and not self._intakes:
                return
            self._has_started = True
            log.info("worker %s has started", name, extra=about_worker(name))
            await self._work()

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
        listening = [asyncio.create_task(self._listener.run())] if self._listens else []
        for intake in self._intakes:
            self._claim(intake)
        finding = asyncio.create_task(self._finder.run())
        closing = asyncio.create_task(self._until_closing())
        ending = asyncio.create_task(self._until_claim_ended())
        tasks = [ending, settling, *listening, finding, closing]
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
                await self._finish(settling)
            except asyncio.CancelledError:
                self.abort()
                await self._finish(settling)
                raise
            finally:
                await self._end([*tasks, *self._claiming])
        for task in [*tasks, *self._claiming]:
            if not task.cancelled():
                task.result()

    def _add(self, name: str) -> None:
        """Take a queue for one of those to claim from."""
        consumer = consumer_of(self._consumers, name)
        assert consumer is not None
        queue, blind = self._new_queue(Queue, name), self._new_queue(Blind, name)
        self._intakes.append(Intake(queue, blind, consumer))
        self._listener.add(name)

    def _claim(self, intake: Intake) -> None:
        """Begin to claim from a queue; the run ends when that does, unless the queue is gone."""

        def ended(task: asyncio.Task[None]) -> None:
            if intake in self._intakes:
                self._claim_ended.set()
            else:
                self._claiming.remove(task)

        task = asyncio.create_task(self._claimer.run(intake))
        task.add_done_callback(ended)
        self._claiming.append(task)

    def _found(self, names: set[str]) -> None:
        """Claim from the queues that prefixes stand for, and forget those that are gone."""
        known = {intake.queue.name for intake in self._intakes}
        for name in sorted(names - known):
            self._add(name)
            if self._has_started:
                self._claim(self._intakes[-1])
        kept = names | self._consumers.keys()
        for intake in list(self._intakes):
            if intake.is_gone and not intake.held and intake.queue.name not in kept:
                self._intakes.remove(intake)  # its claim loop ends

    def reshared(self) -> None:
        """Use what the queues may do now, which has changed."""
        for intake in self._intakes:
            self._attempts.start_next(intake)
            intake.freed.set()

    async def _until_claim_ended(self) -> None:
        await self._claim_ended.wait()

    async def _until_closing(self) -> None:
        """Return when the pool is being closed, which waits for the connections of this run."""
        while not (self._pool.is_closing() or self._stopping.is_set()):
            await pause(self._stopping, _LOOK_SECONDS)
            self._outage.look()
            self._deafness.look()

    def _new_task(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Return a task that begins later, whatever tasks the loop makes, in a context of its own.

        It may be another job's task that starts this one: its context is not to be passed on.
        """
        return self._context.copy().run(asyncio.Task, coroutine, name=name)

    # What the parts tell each other

    def _cancel_soon(self, reason: Reason, token: Token | None) -> None:
        """Cancel the attempt at a job; called in the thread of heartbeats."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._holding.cancel, token, reason)

    def _settled(self, job: Job[Any], accepted: bool | None) -> None:
        self._holding.settled(job, accepted)

    def _refused(self, job: Job[Any], exc: Exception) -> None:
        self._attempts.refused(self._holding.of(job), exc)

    def _ended(self, intake: Intake) -> None:
        self._claimer.ended(intake)

    def health(self) -> Health:
        """Return how the run is; it may be called in any thread."""
        jobs = len(self._holding)
        if (seconds := self._watch.blocked_for()) is not None:
            return Health(status="loop blocked", seconds=seconds, jobs=jobs)
        if self._stopping.is_set():
            return Health(status="stopping", jobs=jobs)
        if not self._has_started:
            return Health(status="starting")
        if (seconds := self._outage.lost_for()) is not None:
            return Health(status="database lost", seconds=seconds, jobs=jobs)
        if self._intakes and all(intake.room() == 0 for intake in self._intakes):
            seconds = time.monotonic() - self._holding.changed_at
            return Health(status="full", seconds=seconds, jobs=jobs)
        return Health(status="ok", jobs=jobs)

    def _on_loop(self) -> list[str]:
        """Name the jobs whose handlers run on the loop; it may be called in any thread."""
        at_work = [held for held in self._holding if held.state == "running"]
        return [str(held) for held in at_work if held.handler and held.handler.run_in == "loop"]

    # End

    def stop(self, hint: str = "") -> None:
        """Claim no more, give back what has not begun, and end when handlers have ended.

        Args:
            hint: for the log, what whoever waits for that can do.
        """
        at_work = sum(held.state == "running" for held in self._holding)
        if at_work and not (self._stopping.is_set() or self._aborting.is_set()):
            log.info(
                "the worker stops; it waits for jobs at work (%d), %g s at most%s",
                at_work,
                self._settings.grace_seconds,
                hint,
                extra=about_worker(self._settings.name),
            )
        self._stopping.set()
        self._claimer.stop()
        self._listener.stop()
        for intake in self._intakes:
            while intake.backlog:
                self._holding.give_back(intake.backlog.popleft())

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
            for held in self._holding:
                held.cancel("abort")

    async def _finish(self, settling: asyncio.Task[None]) -> None:
        await _wait(self._claiming, _SETTLE_SECONDS)
        await _wait(self._lost.finding(), _SETTLE_SECONDS)
        running = self._running()
        await self._wait_gracefully(running)
        self.abort()
        await _wait(running, _CANCEL_SECONDS)
        for held in self._holding:
            # Cancelled like all tasks of the loop, before its first step.
            if held.state == "claimed" and held.task is not None and held.task.done():
                self._holding.give_back(held)
        self._settler.drain()
        if settling.cancelled():  # like all tasks of the loop
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settler.run(), _SETTLE_SECONDS)
        await _wait([settling], _SETTLE_SECONDS)
        await _wait(self._attempts.telling(), _CANCEL_SECONDS)

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
        return [held.task for held in self._holding if held.task is not None]

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Cancel what is left, and wait for all but the handlers."""
        self._attempts.abandon()
        self._settler.drain()  # a cancellation alone may be lost in `asyncio.wait_for`
        others = [*self._lost.finding(), *self._running(), *self._attempts.telling()]
        for task in [*tasks, *others]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._holding.report_left():
            # The next run takes these leases for its own lost claims if it gets their session.
            self._claims.drop()
        if self._holding.given_back:
            log.info(
                "the worker has stopped; jobs given back: %d",
                self._holding.given_back,
                extra=about_worker(self._settings.name),
            )


async def _wait(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
