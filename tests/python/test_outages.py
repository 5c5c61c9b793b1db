"""A worker whose server crashes, refuses it or throws it out: it goes on, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import asyncpg
import pgq
import pytest
import pytest_asyncio
from pgserver import Mode, Server

from .proxy import Proxy
from .sessions import Connection, Dsn, connect, dsn_of, sessions, until, within
from .workers import FAST, SHORT, ended, running

pytestmark = pytest.mark.once

NAME: Final = "pgq worker"
TERMINATE: Final = (
    f"select pg_terminate_backend(pid) from pg_stat_activity where application_name = '{NAME}'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A worker with sessions that can be told from all others, and who looks on beside it."""

    server: Server
    worker: pgq.Worker
    queue: pgq.Queue
    observer: Connection

    async def terminate(self) -> None:
        """End all sessions of the worker."""
        await self.observer.execute(TERMINATE)


@contextlib.asynccontextmanager
async def worker_at(dsn: Dsn) -> AsyncGenerator[pgq.Worker]:
    """Make a worker with a pool of its own."""
    settings = {"application_name": NAME}
    async with asyncpg.create_pool(**dsn, min_size=0, server_settings=settings) as pool:
        yield pgq.Worker(pool, poll_interval=FAST, call_timeout=timedelta(seconds=2))


@pytest_asyncio.fixture
async def site(
    server: Server, dsn: Dsn, queue: pgq.Queue, connection: Connection
) -> AsyncIterator[Site]:
    async with worker_at(dsn) as worker:
        yield Site(server=server, worker=worker, queue=queue, observer=connection)


async def logged(caplog: pytest.LogCaptureFixture, *texts: str) -> None:
    """Return once the log has all these texts."""

    async def found() -> bool:
        return all(text in caplog.text for text in texts)

    await until(found)


@pytest.mark.parametrize("mode", ["immediate", "kill"])
async def test_a_server_that_crashes_costs_and_doubles_nothing(
    site: Site, pool: asyncpg.Pool[Any], mode: Mode
) -> None:
    await pool.execute("create table effect (job bigint)")
    ids = await site.queue.enqueue_many(range(300))

    @site.worker.handler("default", concurrency=7, timeout=SHORT, transaction=True)
    async def handle(job: pgq.Job, connection: Connection) -> None:
        await connection.execute("insert into effect values ($1)", job.id)

    async def progressed(number: int) -> None:
        async def enough() -> bool:
            return bool(await pool.fetchval("select count(*) from effect") >= number)

        await until(enough)

    async with running(site.worker):
        for number in (50, 150):
            await progressed(number)
            await asyncio.to_thread(site.server.restart, mode)
            await pool.expire_connections()
        await progressed(300)
        rows = await ended(pool, 300)
    assert [row[:2] for row in rows] == [(job_id, "completed") for job_id in ids]
    effects = await pool.fetch("select job from effect order by job")
    assert [effect["job"] for effect in effects] == ids


async def test_sessions_that_are_ended_again_and_again_cost_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgq")
    ids = await site.queue.enqueue_many(range(500))

    @site.worker.handler("default", concurrency=5, timeout=SHORT)
    async def handle(_: pgq.Job) -> None: ...

    async with running(site.worker):
        for number in range(1, 21):
            await ended(site.observer, 20 * number)
            await site.terminate()
        rows = await ended(site.observer, 500)
        await logged(caplog, "the server answers again after")
    assert [row[:2] for row in rows] == [(job_id, "completed") for job_id in ids]
    archived = await site.observer.fetch("select id from pgq.archive order by id")
    assert [row["id"] for row in archived] == ids
    told = [record for record in caplog.records if not hasattr(record, "pgq_job_id")]
    # Started; the server, and listening: failed, and works again; has stopped.
    assert len(told) <= 6, caplog.text


async def test_an_idle_worker_is_not_ready_until_the_server_answers(
    dsn: Dsn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pgq")
    seen: list[str] = []

    async def becomes(status: str) -> None:
        async def has_become() -> bool:
            return worker.health().status == status

        await until(has_become)

    async def tried() -> bool:
        seen.append(worker.health().status)
        return sum(hasattr(record, "pgq_pause") for record in caplog.records) >= 20

    with Proxy(dsn) as proxy:
        async with worker_at(proxy.dsn) as worker:

            @worker.handler("default", timeout=SHORT)
            async def handle(_: pgq.Job) -> None: ...

            async with running(worker):
                await becomes("ok")
                proxy.refuse()
                await becomes("database lost")
                await until(tried)
                proxy.accept()
                await becomes("ok")
    assert set(seen) == {"database lost"}


async def test_a_server_that_is_away_costs_two_lines_and_is_tried_once_a_second(
    dsn: Dsn, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pgq")
    tries: dict[str, list[float]] = {"server": [], "listen": []}

    async def many() -> bool:
        for name, pauses in tries.items():
            pauses[:] = [
                record.__dict__["pgq_pause"]
                for record in caplog.records
                if hasattr(record, "pgq_pause") and name in record.getMessage()
            ]
        return all(len(pauses) >= 7 for pauses in tries.values())

    with Proxy(dsn) as proxy:
        async with worker_at(proxy.dsn) as worker:

            @worker.handler("default")
            async def handle(_: pgq.Job) -> None: ...

            async with running(worker):
                await pgq.Queue(connection).enqueue(1)
                await ended(connection, 1)
                proxy.refuse()
                await until(many)
                proxy.accept()
                await pgq.Queue(connection).enqueue(2)
                await ended(connection, 2)
                await logged(caplog, "the server answers again after", "the worker listens again")
            proxy.cut()
    assert max(pause for pauses in tries.values() for pause in pauses) <= 1
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 2, caplog.text


async def sleeps(connection: Connection) -> bool:
    """Tell whether a worker sleeps until it is notified."""
    query = "select exists (select from pg_locks where locktype = 'advisory' and objsubid = 2)"
    return bool(await connection.fetchval(query))


async def test_a_worker_of_many_queues_connects_no_more_often_than_one_of_one(
    dsn: Dsn, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pgq")
    with Proxy(dsn) as proxy:
        async with worker_at(proxy.dsn) as worker:
            for number in range(20):
                await pgq.Admin(connection).create_queue(f"q{number}")

                @worker.handler(f"q{number}")
                async def handle(_: pgq.Job) -> None: ...

            async with running(worker):
                await until(partial(sleeps, connection))
                proxy.refuse()

                def tries(text: str) -> int:
                    return sum(text in record.getMessage() for record in caplog.records)

                async def many() -> bool:
                    return tries("cannot listen") >= 7

                await until(many)
                # Those that were at work as it began, and no more than twice as many as of one.
                assert tries("a call to the server failed") <= 20 + 2 * tries("cannot listen")
                proxy.accept()
                await logged(caplog, "the server answers again after", "the worker listens again")
            proxy.cut()


@pytest.mark.parametrize(
    ("begin", "end", "error"),
    [
        ("allow_connections false", "allow_connections true", "not currently accepting"),
        (
            "set default_transaction_read_only = on",
            "reset default_transaction_read_only",
            "read-only",
        ),
    ],
    ids=["closed", "read-only"],
)
async def test_a_database_that_is_shut_for_a_while_costs_nothing(
    site: Site, caplog: pytest.LogCaptureFixture, begin: str, end: str, error: str
) -> None:
    database = await site.observer.fetchval("select current_database()")
    ids = await site.queue.enqueue_many([1, 2])
    begun, gate = asyncio.Event(), asyncio.Event()

    @site.worker.handler("default", concurrency=2)
    async def handle(job: pgq.Job) -> None:
        if job.payload == 2:
            begun.set()
            await gate.wait()

    async with running(site.worker):
        await within(begun.wait())
        site.server.psql(f"alter database {database} {begin}", database="postgres")
        await site.terminate()
        await logged(caplog, "trying again", error)
        caplog.clear()
        caplog.set_level(logging.DEBUG, "pgq")  # it goes on, and tells no more
        gate.set()
        await site.queue.enqueue(3, connection=site.observer)
        await logged(caplog, "trying again", error)
        site.server.psql(f"alter database {database} {end}", database="postgres")
        rows = await ended(site.observer, 3)
    assert rows == [(job_id, "completed", 1) for job_id in [*ids, ids[-1] + 1]]


async def test_a_server_without_a_free_connection_costs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    version = os.environ.get("PGQ_TEST_VERSION")
    settings = {"max_connections": "12", "superuser_reserved_connections": "0", "fsync": "off"}
    with Server(int(version) if version else None, settings) as server:
        server.psql("create extension pgq")
        observer = await connect(dsn_of(server))
        hogs: list[Connection] = []
        await pgq.Queue(observer).enqueue(1)
        begun, gate = asyncio.Event(), asyncio.Event()
        async with worker_at(dsn_of(server)) as worker:

            @worker.handler("default", concurrency=2)
            async def handle(job: pgq.Job) -> None:
                if job.payload == 1:
                    begun.set()
                    await gate.wait()

            async def shut_out() -> bool:
                """Take the connections away from the worker."""
                await observer.execute(TERMINATE)
                with contextlib.suppress(asyncpg.TooManyConnectionsError):
                    while True:
                        hogs.append(await connect(dsn_of(server)))
                left = "select count(*) from pg_stat_activity where application_name = $1"
                return not await observer.fetchval(left, NAME)

            async with running(worker):
                await within(begun.wait())
                await until(shut_out)
                await pgq.Queue(observer).enqueue(2)
                gate.set()
                await logged(caplog, "trying again", "TooManyConnectionsError")
                for hog in hogs:
                    hog.terminate()
                assert await ended(observer, 2) == [(1, "completed", 1), (2, "completed", 1)]
        await observer.close()


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_a_locked_row_costs_no_other_lease_where_the_server_has_a_timeout(
    dsn: Dsn, site: Site, setting: str
) -> None:
    await site.queue.enqueue_many([1, 2])
    await site.observer.execute(f"alter database {dsn['database']} set {setting} = '200ms'")
    locked, gate = asyncio.Event(), asyncio.Event()

    @site.worker.handler("default", concurrency=2, timeout=SHORT)
    async def handle(job: pgq.Job) -> None:
        if job.payload == 1:
            async with site.observer.transaction():
                assert await site.queue.complete(job, connection=site.observer)
                locked.set()
                await gate.wait()
        else:
            await gate.wait()

    async with running(site.worker), sessions(dsn, 1, **{setting: "0"}) as (connection,):
        await within(locked.wait())

        async def renewed() -> bool:
            query = "select max(lease_expires_at - claimed_at) > $1 from pgq_jobs"
            return bool(await connection.fetchval(query, SHORT + timedelta(seconds=2)))

        await until(renewed)
        gate.set()
        assert await ended(connection, 2) == [(1, "completed", 1), (2, "completed", 1)]


@pytest.mark.parametrize("timeout", ["200ms", "0"], ids=["of the server", "of the worker"])
async def test_a_locked_row_holds_up_no_other_outcome(dsn: Dsn, site: Site, timeout: str) -> None:
    await site.observer.execute(f"alter database {dsn['database']} set lock_timeout = '{timeout}'")
    ids = await site.queue.enqueue_many(range(1, 6))
    begun: list[pgq.Job] = []
    full, gate = asyncio.Event(), asyncio.Event()

    @site.worker.handler("default", concurrency=5, timeout=timedelta(seconds=10))
    async def handle(job: pgq.Job) -> None:
        begun.append(job)
        if len(begun) == 5:
            full.set()
        await gate.wait()

    async with running(site.worker), sessions(dsn, 1) as (connection,):
        await within(full.wait())
        async with connection.transaction():
            await connection.execute("select from pgq.job where id = $1 for update", ids[2])
            gate.set()
            rows = await ended(site.observer, 4)
            assert [row[0] for row in rows if row[1] != "completed"] == [ids[2]]
        assert await ended(site.observer, 5) == [(job_id, "completed", 1) for job_id in ids]


@pytest.mark.parametrize("stops", [False, True], ids=["at work", "at a stop"])
async def test_no_other_outcome_waits_for_as_long_as_a_call_may_take(
    dsn: Dsn, pool: asyncpg.Pool[Any], site: Site, stops: bool
) -> None:
    worker = pgq.Worker(pool, call_timeout=timedelta(hours=1))
    ids = await site.queue.enqueue_many(range(1, 6))
    begun: list[pgq.Job] = []
    full, gate = asyncio.Event(), asyncio.Event()

    @worker.handler("default", concurrency=5)
    async def handle(job: pgq.Job) -> None:
        begun.append(job)
        if len(begun) == 5:
            full.set()
        await gate.wait()

    async with sessions(dsn, 1) as (operator,), running(worker):
        await within(full.wait())
        async with operator.transaction():
            assert not await site.queue.cancel(ids[2], connection=operator)
            if stops:
                worker.stop()
            gate.set()
            rows = await ended(site.observer, 4)
            assert [row[0] for row in rows if row[1] != "completed"] == [ids[2]]
        assert await ended(site.observer, 5) == [(job_id, "completed", 1) for job_id in ids]
