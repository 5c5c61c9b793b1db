"""Every client does every step in the life of jobs: directly, and through PgBouncer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pgq
import pytest
from pgserver import PATIENCE

from .conftest import HOST
from .pgbouncer import can_prepare
from .programs import BUILDERS, run

STEPS = [
    "enqueue commits with its transaction",
    "two consumers claim side by side",
    "a heartbeat renews the lease",
    "a stale receipt changes nothing",
    "complete keeps the result",
    "fail ends dead, retry brings back",
    "pop ends with its transaction",
    "a held job is refused with 55P03",
    "an unknown queue is refused with 42704",
    "a sleeping consumer is woken",
]
MAPPED_STEPS = [
    "enqueue commits with its transaction",
    "complete commits with its transaction",
    "pop ends with its transaction",
]
MAPPERS = ["django", "sqlalchemy"]
CLIENTS = [name for name in BUILDERS if name not in MAPPERS]
PREPARES = [False, True] if can_prepare() else [False]
# PgBouncer keeps statements that have a name (not Go's) and are not dropped with SQL (as older
# drivers of Perl and PHP do).
POOLED = [
    (prepares, name)
    for prepares in PREPARES
    for name in CLIENTS
    if name != "psql" and not (prepares and name in ("perl", "php", "go"))
]


def tap(steps: list[str]) -> list[str]:
    """Return what a client prints that does these steps."""
    lines = [f"ok {number} - {step}" for number, step in enumerate(steps, 1)]
    return [*lines, f"1..{len(steps)}"]


@pytest.mark.parametrize("program", CLIENTS, indirect=True)
def test_a_client_does_every_step(program: list[str], environment: dict[str, str]) -> None:
    assert run(program, environment) == tap(STEPS)


@pytest.mark.parametrize(("pooler", "program"), POOLED, indirect=True)
def test_a_client_does_every_step_but_listen_behind_pgbouncer(
    pooler: dict[str, str], program: list[str], environment: dict[str, str]
) -> None:
    assert run(program, environment | pooler) == tap(STEPS[:-1])


@pytest.mark.parametrize("program", MAPPERS, indirect=True)
def test_a_mapper_does_its_steps(program: list[str], environment: dict[str, str]) -> None:
    assert run(program, environment) == tap(MAPPED_STEPS)


@pytest.mark.parametrize(("pooler", "program"), [(False, name) for name in MAPPERS], indirect=True)
def test_a_mapper_does_its_steps_behind_pgbouncer(
    pooler: dict[str, str], program: list[str], environment: dict[str, str]
) -> None:
    assert run(program, environment | pooler) == tap(MAPPED_STEPS)


@pytest.mark.parametrize("pooler", PREPARES, indirect=True)
async def test_the_package_works_behind_pgbouncer(
    pooler: dict[str, str], dsn: dict[str, Any]
) -> None:
    dsn |= {"host": HOST, "port": int(pooler["PGPORT"])}
    if "PGQ_PREPARE" in pooler:
        dsn["statement_cache_size"] = 0
    done: list[int] = []
    async with asyncpg.create_pool(**dsn, min_size=0, max_size=4) as pool:
        queue = pgq.Queue(pool, "pooled")
        await pgq.Admin(pool).create_queue(queue.name)
        async with pool.acquire() as connection, connection.transaction():
            kept = await queue.enqueue({"n": 1}, connection=connection)
        [job] = await queue.dequeue(10)
        assert (job.id, job.payload) == (kept, {"n": 1})
        assert await queue.heartbeat(job)
        assert await queue.complete(job)
        assert not await queue.complete(job)

        worker = pgq.Worker(pool, listen=False, poll_interval=timedelta(milliseconds=10))

        @worker.handler("pooled", concurrency=3)
        async def handle(job: pgq.Job) -> None:
            done.append(job.payload)
            if len(done) == 10:
                worker.stop()

        ids = await queue.enqueue_many(range(10))
        await asyncio.wait_for(worker.run(handle_signals=False), PATIENCE)
        states = await pool.fetch("select state from pgq_jobs where id = any($1)", ids)
        assert [row["state"] for row in states] == ["completed"] * 10
    assert sorted(done) == list(range(10))
