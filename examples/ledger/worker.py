"""Makes transfers: python -m examples.ledger.worker, as many processes as needed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pgq

from .tasks import make_transfer

worker = pgq.Worker(tasks=[make_transfer])
# A transfer takes milliseconds. The lease is for how long those of a dead worker wait.
worker.configure("transfers", concurrency=8, timeout=timedelta(seconds=5))


async def main() -> None:
    """Work until SIGTERM or SIGINT."""
    # Two connections for the worker, and one for each transaction.
    async with asyncpg.create_pool(max_size=10) as pool:
        await worker.run(pool)


if __name__ == "__main__":
    asyncio.run(main())
