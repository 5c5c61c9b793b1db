"""Claims: a loop for each queue, which takes as many jobs as there is room for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import asyncpg

from pgq._calls import Connection
from pgq._errors import NotPermitted, UnknownQueue
from pgq._log import about_worker, log, trouble
from pgq._models import Job
from pgq._worker.attempt import Attempts
from pgq._worker.config import Settings
from pgq._worker.holding import Holding
from pgq._worker.intake import Intake
from pgq._worker.link import Link, backoff, is_silent, pause
from pgq._worker.listen import Listener
from pgq._worker.lost import LostClaims
from pgq._worker.oversized import claim_one, is_oversized

_LOOK_SECONDS: Final = 1.0  # between two looks whether a queue is back


class Claimer:
    """Claims jobs for the queues of a worker, until it stops.

    Args:
        settings: of the worker.
        pool: no claim begins while it is closing.
        link: the connection of claims.
        settles: the one of outcomes, on the same network.
        intakes: the queues.
        holding: gets the jobs.
        attempts: starts them.
        lost: is told of claims that were not answered.
        listener: tells when there may be something to claim.
        stopping: is set when nothing is to be claimed any more.
        on_idle: called when there is nothing to do; None for a worker that waits then.
    """

    def __init__(
        self,
        settings: Settings,
        pool: asyncpg.Pool[Any],
        *,
        link: Link,
        settles: Link,
        intakes: Sequence[Intake],
        holding: Holding,
        attempts: Attempts,
        lost: LostClaims,
        listener: Listener,
        stopping: asyncio.Event,
        on_idle: Callable[[], None] | None,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._link = link
        self._settles = settles
        self._intakes = intakes
        self._holding = holding
        self._attempts = attempts
        self._lost = lost
        self._listener = listener
        self._stopping = stopping
        self._on_idle = on_idle
        self._one_ended = asyncio.Event()

    def ended(self, intake: Intake) -> None:
        """Note that a job of a queue is not held any more."""
        if intake.is_resting:
            self._listener.wake([intake.queue.name])
        self._one_ended.set()

    def stop(self) -> None:
        """Let the loops find that the worker stops."""
        self._one_ended.set()
        for intake in self._intakes:
            intake.freed.set()

    async def run(self, intake: Intake) -> None:
        """Claim jobs of one queue until the worker stops."""
        pauses = backoff()
        while not (self._stopping.is_set() or self._pool.is_closing()):
            room = intake.room()
            if room == 0:
                intake.freed.clear()
                await intake.freed.wait()
                continue
            ended, ended_here = self._ended, intake.ended
            try:
                begun, jobs = await self._claim_some(intake, room)
            except (UnknownQueue, NotPermitted) as exc:
                if self._on_idle is not None:
                    raise
                self._leave(intake, exc)
                await pause(self._stopping, _LOOK_SECONDS)
                if intake not in self._intakes:  # of a prefix, and not found any more
                    return
                continue
            except Exception as exc:
                seconds = max(next(pauses), self._link.shut_for())
                if not self._may_recover(intake, room, exc, seconds):
                    raise
                await pause(self._stopping, seconds)
                continue
            pauses = backoff()
            self._take(intake, room, jobs, begun)
            if len(jobs) == room or self._stopping.is_set():
                continue
            # At a limit the next job can be claimed when an outcome is written; nobody is told.
            if intake.ended == ended_here:
                intake.is_resting = True
                await self._rest(intake, ended)
                intake.is_resting = False

    async def _claim_some(self, intake: Intake, room: int) -> tuple[float, list[Job[Any]]]:
        timeout = intake.consumer.timeout
        if intake.most == 0:
            return await claim_one(
                self._link, intake.queue, intake.blind, timeout, self._settings.name
            )
        # One that is large gets the time that its lease lasts.
        seconds = timeout.total_seconds() if intake.most == 1 else 0.0
        return await self._link.run(partial(self._claim, intake, room), seconds)

    async def _claim(
        self, intake: Intake, room: int, *, connection: Connection
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

    def _may_recover(self, intake: Intake, room: int, exc: Exception, seconds: float) -> bool:
        """Tell whether to claim again after a pause, and prepare that."""
        # Without a connection nothing was claimed, and no job was too large.
        was_sent = self._link.pid is not None
        if not self._link.may_recover(exc, seconds, anyway=is_oversized(exc)):
            return False
        if was_sent and is_oversized(exc):
            intake.most = room // 2
        if is_silent(exc):
            self._settles.drop()  # of the same network
        self._lost.expect(intake.consumer.timeout.total_seconds())
        return True

    def _take(self, intake: Intake, room: int, jobs: list[Job[Any]], begun: float) -> None:
        if intake.is_gone:
            intake.is_gone = False
            log.info(
                "queue %r is back",
                intake.queue.name,
                extra=about_worker(self._settings.name),
            )
        intake.claimed(len(jobs), room)
        self._holding.take(intake, jobs, begun)
        self._attempts.start_next(intake)

    def _leave(self, intake: Intake, exc: Exception) -> None:
        """Note that a queue is gone; it may come back."""
        name = intake.queue.name
        self._listener.leave(name)
        if not intake.is_gone:
            intake.is_gone = True
            log.warning(
                "queue %r is gone; the worker looks for it every %g s: %r",
                name,
                _LOOK_SECONDS,
                exc,
                extra=trouble(exc, _LOOK_SECONDS),
            )

    async def _rest(self, intake: Intake, ended: int) -> None:
        """Wait until there may be something to claim."""
        if self._on_idle is None:
            await self._listener.idle(intake.queue.name, random.uniform(0.75, 1.25))
            return
        intake.idle_at = ended
        if not self._holding and all(other.idle_at == self._ended for other in self._intakes):
            self._on_idle()
        elif ended == self._ended:
            # A handler that is at work may wait for a job that it has added.
            self._one_ended.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._one_ended.wait(), self._settings.poll_seconds)

    @property
    def _ended(self) -> int:
        return sum(intake.ended for intake in self._intakes)
