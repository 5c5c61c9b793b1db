"""Changes of many jobs, some in each transaction."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import asyncpg

from pgq._errors import DuplicateKey, NotClaimable, NotSupported, PayloadTooLong, QueueFull
from pgq._operate import sql
from pgq._operate.client import Client

STEP: Final = 100  # jobs that are changed in one transaction
# Why one job cannot be moved, while others can: see pgq_move.
NOT_MOVED: Final = (NotSupported, DuplicateKey, QueueFull, PayloadTooLong, NotClaimable)


async def retry(client: Client, ids: list[int]) -> list[int]:
    """Make dead jobs ready again, and return the ids of those that are."""
    try:
        return await _done(client, sql.RETRY_MANY, ids)
    except asyncpg.UniqueViolationError:  # of one of them
        return [job_id for job_id in ids if await _retried(client, job_id)]


async def run_now(client: Client, ids: list[int]) -> list[int]:
    """Make scheduled jobs ready, and return the ids of those that are."""
    return await _done(client, sql.RUN_MANY, ids)


async def move(
    client: Client, ids: list[int], queue: str | None, priority: int | None
) -> list[int]:
    """Give jobs another queue or priority, and return the ids of those that have it."""
    try:
        return await _done(client, sql.MOVE_MANY, ids, queue, priority)
    except asyncpg.PostgresError:  # of one of them; what is not about a job is raised again
        return [job_id for job_id in ids if await _moved(client, job_id, queue, priority)]


async def cancel(client: Client, ids: list[int], *, force: bool) -> list[int]:
    """Cancel live jobs, and return the ids of those that are."""
    return await _done(client, sql.CANCEL_MANY, ids, force)


async def _retried(client: Client, job_id: int) -> bool:
    with suppress(DuplicateKey):
        return await client.queue().retry(job_id)
    return False


async def _moved(client: Client, job_id: int, queue: str | None, priority: int | None) -> bool:
    with suppress(*NOT_MOVED):
        return await client.queue().move(job_id, queue=queue, priority=priority)
    return False


async def _done(client: Client, statement: str, ids: list[int], *args: object) -> list[int]:
    return [row["id"] for row in await client.fetch(statement, ids, *args) if row["done"]]
