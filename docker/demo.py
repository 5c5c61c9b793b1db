"""What `docker compose up` runs: a worker, and this file itself, which adds a job every second."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import asyncpg
import pgq


@dataclass
class Order:
    """What is sold."""

    number: int


@pgq.task("default")
async def ship(job: pgq.Job[Order]) -> None:
    """Ship an order; each fifth one fails at first."""
    if job.payload.number % 5 == 0 and job.attempt == 1:
        raise RuntimeError(f"no truck for order {job.payload.number}")
    print(f"shipped order {job.payload.number}, attempt {job.attempt}")


worker = pgq.Worker(tasks=[ship])


async def main() -> None:
    """Enqueue an order every second."""
    connection = await asyncpg.connect()
    for number in itertools.count(1):
        job = await ship.enqueue(Order(number), connection=connection)
        print(f"ordered {number}: job {job.id}")
        await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main())
