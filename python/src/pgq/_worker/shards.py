"""The runs of a worker that works off several databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeAlias

from pgq._log import database
from pgq._worker.config import Consumers
from pgq._worker.health import Health, HealthStatus
from pgq._worker.link import Outage, backoff, is_transient, pause
from pgq._worker.run import Run

NewRun: TypeAlias = Callable[[], Run]
NewRuns: TypeAlias = "Sequence[tuple[str, NewRun]]"  # by the names of their databases

# A worker is as its best database; they share the loop.
_FIRST: Final[tuple[HealthStatus, ...]] = (
    "loop blocked",
    "ok",
    "full",
    "stopping",
    "starting",
    "database lost",
)


def share(consumers: Consumers, shard: int, shards: int) -> Consumers:
    """Return how a worker works off the queues of one of its databases: a fair share of each."""
    if shards == 1:
        return consumers  # as they are, whatever is configured later

    def part(number: int) -> int:
        return number // shards + (shard < number % shards)

    return {
        name: replace(
            consumer, concurrency=part(consumer.concurrency), prefetch=part(consumer.prefetch)
        )
        for name, consumer in consumers.items()
    }


class Shards:
    """A run for each database; none waits for another, nor shares anything but the loop.

    A run goes on by itself when its database is away for a while. One that cannot begin, or ends
    because of that, begins again.

    Args:
        worker: the name of the worker.
        new_runs: make a run, one for each database, whose name stands before.
        until_idle: a database that is away is an error.
    """

    def __init__(self, worker: str, new_runs: NewRuns, *, until_idle: bool) -> None:
        self._worker = worker
        self._new_runs = new_runs
        self._until_idle = until_idle
        self._runs: dict[NewRun, Run] = {}
        self._loop: Final = asyncio.get_running_loop()
        self._stopping = asyncio.Event()

    async def main(self) -> None:
        """Work until `stop`, or until what is wrong with a database does not go away."""
        tasks = [asyncio.create_task(self._keep(*each)) for each in self._new_runs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        finally:
            self.stop()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            task.result()

    async def _keep(self, name: str, new_run: NewRun) -> None:
        database.set(name)  # in this task, and in what it starts
        pauses = backoff()
        outage = Outage(self._worker, "a database is taken up again")
        while not self._stopping.is_set():
            run = self._runs[new_run] = new_run()
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
                del self._runs[new_run]
            await pause(self._stopping, seconds)

    def stop(self) -> None:
        """Stop all runs, and begin none."""
        self._stopping.set()
        for run in self._runs.values():
            run.stop()

    def abort(self) -> None:
        """Cancel the handlers of all runs."""
        for run in self._runs.values():
            run.abort()

    def health(self) -> Health:
        """Return how the best of the runs is, with the jobs of all; for any thread."""
        found = [run.health() for run in list(self._runs.values())]
        if not found:
            return Health(status="starting")
        best = min(found, key=lambda health: _FIRST.index(health.status))
        return replace(best, jobs=sum(health.jobs for health in found))

    def signalled(self, number: int) -> None:
        """Stop, or abort what was stopped before; for signal handlers."""
        for run in list(self._runs.values()):
            run.signalled(number)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stopping.set)
