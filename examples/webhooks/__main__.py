"""Publishes an event: python -m examples.webhooks invoice.paid '{"invoice": 7}'."""

from __future__ import annotations

import asyncio
import json
import sys

import asyncpg

from .tasks import publish


async def main(event: str, data: str) -> None:
    """Publish the event of the command line."""
    connection = await asyncpg.connect()
    deliveries = await publish(connection, event, json.loads(data))
    print(f"{len(deliveries)} deliveries")
    await connection.close()


asyncio.run(main(*sys.argv[1:]))
