"""Takes the payments: python -m examples.fastapi_orders.worker, as many processes as needed."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import pgq

from .models import sessions
from .tasks import take_payment

worker = pgq.Worker(tasks=[take_payment], sessions=sessions)


async def main() -> None:
    """Work until SIGTERM or SIGINT."""
    async with asyncpg.create_pool() as pool:
        await worker.run(pool)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
