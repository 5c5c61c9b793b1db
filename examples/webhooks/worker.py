"""Delivers webhooks: python -m examples.webhooks.worker, as many processes as needed."""

from __future__ import annotations

import asyncio

import asyncpg
import httpx
import pgq

from .tasks import client, deliver

worker = pgq.Worker(tasks=[deliver])
worker.configure("webhooks", concurrency=100)


async def main() -> None:
    """Work until SIGTERM or SIGINT."""
    async with httpx.AsyncClient(timeout=10) as shared, asyncpg.create_pool() as pool:
        client.set(shared)  # handlers run in the context in which the worker does
        await worker.run(pool)


if __name__ == "__main__":
    asyncio.run(main())
