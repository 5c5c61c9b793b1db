"""A load in Python: producers with `pgq.Queue`, or a real `pgq.Worker`; both are recorded.

    PYTHONPATH=tools python -m tests.history.workers produce --history DIR --name p1 --jobs 1000
    PYTHONPATH=tools python -m tests.history.workers work --history DIR --name w1

The variables of libpq say where to, or --dsn. A worker ends with SIGTERM. Both stand losses of
the connection: a producer connects again and goes on with other jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import asyncpg
import pgq

from .asyncpg_client import recorded
from .record import Recorder, load_parser

QUEUE: Final = "work"
GROUPED: Final = "grouped"
GONE: Final = (pgq.Error, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class UndoError(Exception):
    """Rolls a transaction back."""


async def produce(pool: asyncpg.Pool[Any], name: str, seed: int, jobs: int, pause: float) -> None:
    """Enqueue jobs in calls and transactions of random size, some of which roll back."""
    chance = random.Random(seed)
    work, grouped = pgq.Queue(pool, QUEUE), pgq.Queue(pool, GROUPED)
    made = 0
    while made < jobs:
        number = chance.choice([1, 1, 1, 5, 20])
        payloads = [{"mark": f"{name}:{made + n}"} for n in range(number)]
        made += number
        with suppress(UndoError, *GONE):
            async with pool.acquire() as connection:
                if chance.random() < 0.3:
                    async with connection.transaction():
                        await _enqueue(work, grouped, payloads, chance, connection)
                        if chance.random() < 0.3:
                            raise UndoError
                else:
                    await _enqueue(work, grouped, payloads, chance, connection)
        await asyncio.sleep(chance.uniform(0, 2 * pause))


async def _enqueue(
    work: pgq.Queue, grouped: pgq.Queue, payloads: list[Any], chance: random.Random, to: Any
) -> None:
    if chance.random() < 0.3:
        groups = [f"g{chance.randrange(5)}" for _ in payloads]
        await grouped.enqueue_many(payloads, group_keys=groups, connection=to)
    else:
        delay = timedelta(seconds=0.3) if chance.random() < 0.1 else None
        priority = chance.choice([0, 0, 0, 5])
        await work.enqueue_many(payloads, priority=priority, delay=delay, connection=to)


async def work(pool: asyncpg.Pool[Any], name: str, seed: int, lease: float) -> None:
    """Run a worker whose handlers write an effect with the completion, or end otherwise."""
    chance = random.Random(seed)
    worker = pgq.Worker(pool, name=name, call_timeout=timedelta(seconds=5))
    timeout = timedelta(seconds=lease)

    @worker.handler(QUEUE, transaction=True, concurrency=8, timeout=timeout)
    async def _(job: pgq.Job[Any], connection: Any) -> None:
        await connection.execute("insert into effect (job) values ($1)", job.id)
        await _end(chance)

    @worker.handler(GROUPED, concurrency=4, timeout=timeout)
    async def _(job: pgq.Job[Any]) -> None:
        await _end(chance)

    await worker.run()


async def _end(chance: random.Random) -> None:
    fate = chance.random()
    if fate < 0.02:
        raise pgq.Snooze(timedelta(milliseconds=100))
    if fate < 0.05:
        raise ValueError("a failure of the handler")
    if fate < 0.5:
        await asyncio.sleep(chance.uniform(0, 0.02))


async def run(options: argparse.Namespace, recorder: Recorder) -> None:
    """Run one of the two, with connections of its own."""
    while True:
        try:
            pool = await asyncpg.create_pool(
                options.dsn or None,
                connection_class=recorded(recorder),
                min_size=0,
                max_size=12,
            )
            break
        except GONE:
            await asyncio.sleep(0.05)
    async with pool:
        if options.role == "produce":
            await produce(pool, options.name, options.seed, options.jobs, options.pause)
        else:
            await work(pool, options.name, options.seed, options.lease)


def main() -> None:
    """Run the load that the command line names."""
    parser = load_parser(__doc__, ["produce", "work"], lease=5.0)
    options = parser.parse_args()
    logging.getLogger("pgq").setLevel(logging.ERROR)  # failures of handlers are part of the load
    recorder = Recorder(options.history, options.name, program="workers", seed=options.seed)
    asyncio.run(run(options, recorder))
    recorder.note("end")
    recorder.close()


if __name__ == "__main__":
    main()
