"""Imports files: python -m examples.bulk_import.worker, as many processes as needed."""

from __future__ import annotations

import asyncio

import asyncpg
import pgq

from .tasks import finish, load, split, worker_pool

worker = pgq.Worker(tasks=[split, load, finish])
worker.configure("imports", concurrency=4)


async def main() -> None:
    """Work until SIGTERM or SIGINT."""
    async with asyncpg.create_pool() as pool:
        worker_pool.set(pool)  # handlers run in the context in which the worker does
        await worker.run(pool)


if __name__ == "__main__":
    asyncio.run(main())
