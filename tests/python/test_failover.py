"""A worker whose primary dies goes on at the standby, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Final, TypeAlias

import asyncpg
import pgq
import pytest
from pgserver import Server

from .sessions import Connection, Dsn, connect, dsn_of, sessions, until, within
from .workers import FAST, running

pytestmark = pytest.mark.once

Pair: TypeAlias = "tuple[Server, Server]"

JOBS: Final = 600
LEASE: Final = timedelta(seconds=6)
NAME: Final = "pgq worker"
COMPLETED: Final = "select count(*) from pgq_jobs where state = 'completed' and id = any ($1)"
OWN: Final = """
    select count(*) filter (where query ~ 'pgq_heartbeat') > 0
           and count(*) filter (where query ~ 'pgq_wait') > 0
      from pg_stat_activity where application_name = $1
"""


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary whose commits wait for its standby, and that standby."""
    version = os.environ.get("PGQ_TEST_VERSION")
    with Server(int(version) if version else None, {"fsync": "off"}) as primary:
        primary.psql("create extension pgq; create table effect (job bigint)")
        with Server(primary=primary) as standby:
            primary.psql("alter system set synchronous_standby_names = '*'")
            primary.psql("select pg_reload_conf()")
            yield primary, standby


def dsn_of_both(pair: Pair) -> Dsn:
    """Return connection arguments that lead to the one that takes writes."""
    return {
        **dsn_of(pair[0]),
        "host": [server.host for server in pair],
        "port": [server.port for server in pair],
        "target_session_attrs": "read-write",
    }


async def produce(dsn: Dsn, acknowledged: set[int]) -> None:
    """Enqueue one job after the other; count only what was acknowledged."""
    while len(acknowledged) < JOBS:
        with contextlib.suppress(
            asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError
        ):
            connection = await connect(dsn)
            try:
                while len(acknowledged) < JOBS:
                    acknowledged.add(await pgq.Queue(connection).enqueue(1))
            finally:
                connection.terminate()


async def test_a_worker_follows_the_primary_and_nothing_acknowledged_is_lost(pair: Pair) -> None:
    primary, standby = pair
    dsn = dsn_of_both(pair)
    begun, gate = asyncio.Event(), asyncio.Event()
    acknowledged: set[int] = set()
    async with asyncpg.create_pool(
        **dsn, min_size=0, server_settings={"application_name": NAME}
    ) as pool:
        worker = pgq.Worker(pool, poll_interval=FAST, call_timeout=timedelta(seconds=2))
        held = pgq.Queue(pool, "held")
        await within(pgq.Admin(pool).create_queue(held.name))
        held_id = await held.enqueue(1)

        @worker.handler("default", concurrency=5, timeout=LEASE, transaction=True)
        async def handle(job: pgq.Job, connection: Connection) -> None:
            await connection.execute("insert into effect values ($1)", job.id)

        @worker.handler("held", timeout=LEASE)
        async def hold(_: pgq.Job) -> None:
            begun.set()
            await gate.wait()

        async with running(worker):
            await within(begun.wait())
            producer = asyncio.create_task(produce(dsn, acknowledged))

            async def under_way() -> bool:
                return len(acknowledged) >= JOBS // 3

            await until(under_way)
            async with sessions(dsn_of(standby), 1) as (reader,):

                async def shows_leases() -> bool:
                    return bool(await reader.fetchval("select exists (select from pgq_workers)"))

                await until(shows_leases)
                gone = "select bool_and(backend_gone is null) from pgq_workers"
                assert await reader.fetchval(gone), "a standby does not know"
            await asyncio.to_thread(primary.stop, "kill")
            await asyncio.to_thread(standby.promote)
            await within(producer)
            async with sessions(dsn_of(standby), 1) as (observer,):

                async def completed(*ids: int) -> bool:
                    return bool(await observer.fetchval(COMPLETED, ids) == len(ids))

                async def owns_connections() -> bool:
                    return bool(await observer.fetchval(OWN, NAME))

                await until(lambda: completed(*acknowledged), pause=0.05)
                await until(owns_connections, pause=0.05)
                gate.set()
                await until(lambda: completed(held_id))
                effects = [row[0] for row in await observer.fetch("select job from effect")]
    assert len(effects) == len(set(effects))
    assert acknowledged <= set(effects)
