"""The runs of a worker that works off several databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import asyncpg

from pgq._log import database
from pgq._worker.config import Consumers
from pgq._worker.health import Health, HealthStatus
from pgq._worker.heartbeat import name_of_pool
from pgq._worker.link import Outage, backoff, is_transient, pause
from pgq._worker.run import Run

NewRun: TypeAlias = "Callable[[asyncpg.Pool[Any], Consumers], Run]"

# A worker is as its best database; they share the loop.
_FIRST: Final[tuple[HealthStatus, ...]] = (
    "loop blocked",
    "ok",
    "full",
    "stopping",
    "starting",
    "database lost",
)


@dataclass(slots=True, eq=False)
class _Shard:
    """One of the databases.

    Args:
        pool: leads to it.
        consumers: how its queues are worked off: with a share of each.
        task: keeps a run of it, until it is `stopping`.
    """

    pool: asyncpg.Pool[Any]
    consumers: Consumers
    task: asyncio.Task[None] | None = None
    run: Run | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self.stopping.set()
        if self.run is not None:
            self.run.stop()


class Shards:
    """A run for each database; none waits for another, nor shares anything but the loop.

    A run goes on by itself when its database is away for a while. One that cannot begin, or ends
    because of that, begins again.

    Args:
        worker: the name of the worker.
        consumers: how it works off its queues; each database gets a fair share.
        pools: of the databases.
        new_run: makes a run for a database.
        until_idle: a database that is away is an error.
    """

    def __init__(
        self,
        worker: str,
        consumers: Consumers,
        pools: Sequence[asyncpg.Pool[Any]],
        new_run: NewRun,
        *,
        until_idle: bool,
    ) -> None:
        self._worker = worker
        self._consumers = consumers
        self._new_run = new_run
        self._until_idle = until_idle
        self._loop: Final = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._is_stopping = False
        self._shards = [self._new_shard(pool) for pool in pools]
        self._share()

    def _new_shard(self, pool: asyncpg.Pool[Any]) -> _Shard:
        return _Shard(pool, {name: replace(each) for name, each in self._consumers.items()})

    def _share(self) -> None:
        """Give each database its share of the concurrency and the prefetch of each queue."""
        shards = [shard for shard in self._shards if not shard.stopping.is_set()]

        def part(number: int, index: int) -> int:
            return number // len(shards) + (index < number % len(shards))

        for index, shard in enumerate(shards):
            for name, consumer in shard.consumers.items():
                consumer.concurrency = part(self._consumers[name].concurrency, index)
                consumer.prefetch = part(self._consumers[name].prefetch, index)
            if shard.run is not None:
                shard.run.reshared()

    async def main(self) -> None:
        """Work until `stop`, or until what is wrong with a database does not go away."""
        for shard in self._shards:
            self._start(shard)
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            for task in self._tasks():
                task.cancel()
            raise
        finally:
            self.stop()
            await asyncio.gather(*self._tasks(), return_exceptions=True)
        for task in self._tasks():
            task.result()

    def unknown(self, pools: Sequence[asyncpg.Pool[Any]]) -> list[asyncpg.Pool[Any]]:
        """Return those that it does not work on, or does not go on to work on."""
        known = [shard.pool for shard in self._shards if not shard.stopping.is_set()]
        return [pool for pool in pools if pool not in known]

    async def change(self, pools: Sequence[asyncpg.Pool[Any]]) -> None:
        """Take up the databases that are new, give up those that are gone and wait for their end.

        The others go on, with the share that is theirs now.
        """
        if self._is_stopping:
            return
        new = [self._new_shard(pool) for pool in self.unknown(pools)]
        gone = [shard for shard in self._shards if shard.pool not in pools]
        self._shards += new
        for shard in gone:
            shard.stop()
        self._share()
        for shard in new:
            self._start(shard)
        await asyncio.gather(
            *(shard.task for shard in gone if shard.task is not None), return_exceptions=True
        )

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [shard.task for shard in self._shards if shard.task is not None]

    def _start(self, shard: _Shard) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or task.exception() is not None:
                self._over.set()
                return
            self._shards.remove(shard)
            if not self._shards:
                self._over.set()

        shard.task = asyncio.create_task(self._keep(shard))
        shard.task.add_done_callback(ended)

    async def _keep(self, shard: _Shard) -> None:
        database.set(name_of_pool(shard.pool))  # in this task, and in what it starts
        pauses = backoff()
        outage = Outage(self._worker, "a database is taken up again")
        while not shard.stopping.is_set():
            run = shard.run = self._new_run(shard.pool, shard.consumers)
            try:
                await run.main()
            except Exception as exc:
                if self._until_idle or not is_transient(exc):
                    raise
                seconds = next(pauses)
                outage.failed("cannot work off a database", exc, seconds)
            else:
                return
            finally:
                shard.run = None
            await pause(shard.stopping, seconds)

    def stop(self) -> None:
        """Stop all runs, and begin none."""
        self._is_stopping = True
        for shard in self._shards:
            shard.stop()

    def abort(self) -> None:
        """Cancel the handlers of all runs."""
        for run in self._runs():
            run.abort()

    def health(self) -> Health:
        """Return how the best of the runs is, with the jobs of all; for any thread."""
        found = [run.health() for run in self._runs()]
        if not found:
            return Health(status="starting")
        best = min(found, key=lambda health: _FIRST.index(health.status))
        return replace(best, jobs=sum(health.jobs for health in found))

    def signalled(self, number: int) -> None:
        """Stop, or abort what was stopped before; for signal handlers."""
        for run in self._runs():
            run.signalled(number)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.stop)

    def _runs(self) -> list[Run]:
        return [run for shard in list(self._shards) if (run := shard.run) is not None]
