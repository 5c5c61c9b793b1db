"""Sends the mails: python -m examples.fastapi_signup.worker, as many processes as needed."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import pgq

from .tasks import send_welcome

worker = pgq.Worker(tasks=[send_welcome])
worker.configure("emails", concurrency=20)


async def main() -> None:
    """Work until SIGTERM or SIGINT."""
    async with asyncpg.create_pool() as pool:
        await worker.run(pool)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())
