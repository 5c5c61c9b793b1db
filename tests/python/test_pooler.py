"""A worker behind PgBouncer: it notices what does not work there, and says what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import cache
from typing import Final

import asyncpg
import pgq
import pytest
from pgserver import Server

from tests.clients.pgbouncer import pgbouncer

from .cli_session import Cli, variables
from .conftest import TEMPLATE
from .sessions import Connection, Dsn, dsn_of, sessions, until, within
from .workers import FAST, Hook, ended, running

pytestmark = pytest.mark.once

CALL: Final = timedelta(seconds=2)
UNCACHED: Final[Dsn] = {"statement_cache_size": 0}
SLEEPERS: Final = """
    select count(*) from pg_locks
     where locktype = 'advisory' and classid = 1885826917 and mode = 'ShareLock'"""


@pytest.fixture(scope="module")
def poolers(server: Server) -> Iterator[Callable[..., int]]:
    """Return the port of a PgBouncer that has the given settings."""
    with ExitStack() as stack:

        @cache
        def start(**settings: str) -> int:
            return stack.enter_context(pgbouncer(server, prepares=False, **settings))

        yield start


@pytest.fixture
def pooled(poolers: Callable[..., int], dsn: Dsn) -> Callable[..., Dsn]:
    """Lead to the database through such a PgBouncer."""

    def lead(**settings: str) -> Dsn:
        return {**dsn, "host": "127.0.0.1", "port": poolers(**settings)}

    return lead


async def warned(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Return once the log has this text."""

    async def found() -> bool:
        return text in caplog.text

    await until(found)


@pytest.mark.parametrize("round_robin", ["0", "1"])
async def test_a_worker_polls_where_notifications_do_not_arrive_and_says_so(
    pooled: Callable[..., Dsn],
    connection: Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    round_robin: str,
) -> None:
    monkeypatch.setattr("pgq._worker.listen._DEAF_SECONDS", 0.01, raising=False)
    sleeping = Hook(monkeypatch, "before", "wait", lambda: None, nth=1)
    through = pooled(server_round_robin=round_robin)
    async with asyncpg.create_pool(**through, **UNCACHED, min_size=0) as pool:
        worker = pgq.Worker(pool, poll_interval=FAST, call_timeout=CALL)

        @worker.handler("default")
        async def handle(_: pgq.Job) -> None: ...

        async with running(worker):
            await warned(caplog, "cannot listen")
            job_id = await pgq.Queue(connection).enqueue(1)
            assert await ended(connection, 1) == [(job_id, "completed", 1)]
            assert await connection.fetchval(SLEEPERS) == 0
    assert not sleeping.done
    assert caplog.text.count("cannot listen") == 1
    assert "listen=False" in caplog.text


async def asleep(connection: Connection) -> None:
    """Return once a worker sleeps until it is notified."""

    async def found() -> bool:
        return bool(await connection.fetchval(SLEEPERS))

    await until(found)


async def test_a_worker_sleeps_where_each_client_has_a_session(
    pooled: Callable[..., Dsn], connection: Connection
) -> None:
    through = pooled(pool_mode="session")
    async with asyncpg.create_pool(**through, min_size=0) as pool:
        worker = pgq.Worker(pool, poll_interval=timedelta(hours=1))

        @worker.handler("default")
        async def handle(_: pgq.Job) -> None: ...

        async with running(worker):
            for number in (1, 2):
                await asleep(connection)
                await pgq.Queue(connection).enqueue(number)
                await ended(connection, number)


async def test_a_worker_asks_again_whether_it_is_notified_when_it_has_connected_again(
    pooled: Callable[..., Dsn],
    dsn: Dsn,
    connection: Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ways = [{**dsn, "server_settings": {"application_name": "ear"}}]

    async def connect() -> Connection:
        connection: Connection = await asyncpg.connect(**ways[-1], **UNCACHED)
        return connection

    async with asyncpg.create_pool(**dsn, min_size=0) as pool:
        worker = pgq.Worker(pool, poll_interval=FAST, call_timeout=CALL, connect=connect)

        @worker.handler("default")
        async def handle(_: pgq.Job) -> None: ...

        async with running(worker):
            await asleep(connection)
            ways.append(pooled(server_round_robin="0"))
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'ear'"
            )
            await warned(caplog, "a notification did not arrive")
            await pgq.Queue(connection).enqueue(1)
            await ended(connection, 1)
            assert await connection.fetchval(SLEEPERS) == 0


async def test_a_worker_that_listens_in_another_database_polls_and_says_so(
    server: Server, dsn: Dsn, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async def connect() -> Connection:
        connection: Connection = await asyncpg.connect(**dsn_of(server, TEMPLATE))
        return connection

    async with asyncpg.create_pool(**dsn, min_size=0) as pool:
        worker = pgq.Worker(pool, poll_interval=FAST, call_timeout=CALL, connect=connect)

        @worker.handler("default")
        async def handle(_: pgq.Job) -> None: ...

        async with running(worker):
            await warned(caplog, "a notification did not arrive")
            await pgq.Queue(connection).enqueue(1)
            await ended(connection, 1)


@pytest.mark.parametrize("round_robin", ["0", "1"])
async def test_a_worker_that_prepares_statements_in_shared_sessions_does_not_start(
    pooled: Callable[..., Dsn], round_robin: str
) -> None:
    through = pooled(server_round_robin=round_robin)
    async with asyncpg.create_pool(**through, min_size=0) as pool:
        worker = pgq.Worker(pool)

        @worker.handler("default")
        async def handle(_: pgq.Job) -> None: ...

        with pytest.raises(pgq.NotSupported, match="prepared statement") as caught:
            await within(worker.run(handle_signals=False))
    assert "statement_cache_size=0" in (caught.value.hint or "")


async def test_a_producer_that_prepares_statements_in_shared_sessions_is_told_what_to_set(
    pooled: Callable[..., Dsn],
) -> None:
    async def produce(connection: Connection) -> None:
        for _ in range(3):
            await pgq.Queue(connection).enqueue(1)

    async with sessions(pooled(server_round_robin="1"), 2) as (a, b):
        async with a.transaction(), b.transaction():
            await a.execute("select")
            await b.execute("select")
        with pytest.raises(pgq.NotSupported) as caught:
            await produce(a)
    assert "statement_cache_size=0" in (caught.value.hint or "")


@pytest.mark.parametrize(("pool_mode", "status"), [("session", "ok"), ("transaction", "warning")])
async def test_doctor_says_whether_notifications_arrive(
    pooled: Callable[..., Dsn], pool_mode: str, status: str
) -> None:
    cli = Cli(variables(pooled(pool_mode=pool_mode)))
    result = await asyncio.to_thread(cli.run, "doctor", "--json")
    [found] = [one for one in json.loads(result.stdout) if one["check"] == "notifications"]
    assert found["status"] == status
    assert ("listen=False" in (found["advice"] or "")) == (status == "warning")
