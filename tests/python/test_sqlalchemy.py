"""Jobs in the transactions of SQLAlchemy's sessions, which begin with their first statement."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import asyncpg
import pgq
import pytest
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

pytestmark = pytest.mark.once

# Loaded only while a test of this file runs: other tests use connections that belong to no pool.
DIALECT: Final = "sqlalchemy.dialects.postgresql.asyncpg"
MODULE: Final = importlib.import_module(DIALECT)
del sys.modules[DIALECT]


@pgq.task("default")
async def send(_: pgq.Job[str]) -> None: ...


async def enqueue_by_task(connection: asyncpg.Connection[Any]) -> object:
    return await send.enqueue("ada@example.org", connection=connection)


CALLS: dict[str, Callable[[pgq.Queue, asyncpg.Connection[Any]], Awaitable[object]]] = {
    "enqueue": lambda queue, own: queue.enqueue(1, connection=own),
    "enqueue_many": lambda queue, own: queue.enqueue_many([1], connection=own),
    "task": lambda _, own: enqueue_by_task(own),
    "queue of the connection": lambda _, own: pgq.Queue(own).enqueue(1),
    "complete": lambda queue, own: queue.complete((1, 1), connection=own),
    "complete_many": lambda queue, own: queue.complete_many([(1, 1)], connection=own),
    "complete_and_dequeue": lambda queue, own: queue.complete_and_dequeue([], connection=own),
    "fail": lambda queue, own: queue.fail((1, 1), connection=own),
    "release": lambda queue, own: queue.release((1, 1), connection=own),
    "pop": lambda queue, own: queue.pop(connection=own),
}


@pytest.fixture(autouse=True)
def dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, DIALECT, MODULE)


@pytest.fixture
async def session(dsn: dict[str, Any]) -> AsyncGenerator[AsyncSession]:
    url = URL.create("postgresql+asyncpg", username=dsn["user"], database=dsn["database"])
    where = {"host": dsn["host"], "port": dsn["port"]}
    engine = create_async_engine(url, connect_args=where)
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


async def driver(session: AsyncSession) -> asyncpg.Connection[Any]:
    """Return the connection of asyncpg that a session uses."""
    connection = await session.connection()
    raw: Any = (await connection.get_raw_connection()).driver_connection
    assert type(raw) is asyncpg.Connection
    own: asyncpg.Connection[Any] = raw
    return own


@pytest.mark.parametrize("call", CALLS)
async def test_a_session_that_has_not_begun_is_refused(
    session: AsyncSession, queue: pgq.Queue, call: str
) -> None:
    job_id = await queue.enqueue("before")
    with pytest.raises(pgq.WrongTransaction, match="SQLAlchemy may own it") as caught:
        await CALLS[call](queue, await driver(session))
    assert "session.execute" in str(caught.value.hint)
    await session.rollback()
    assert [job.id for job in await queue.dequeue(10)] == [job_id]


async def test_a_job_ends_with_the_session_that_has_begun(
    session: AsyncSession, queue: pgq.Queue
) -> None:
    await session.execute(text("select 1"))
    await send.enqueue("rolled back", connection=await driver(session))
    await session.rollback()
    await session.execute(text("select 1"))
    await send.enqueue("committed", connection=await driver(session))
    await session.commit()
    assert [job.payload for job in await queue.dequeue(10)] == ["committed"]


async def test_a_session_enqueues_by_a_statement_of_its_own(
    session: AsyncSession, queue: pgq.Queue
) -> None:
    enqueue = text("select pgq_enqueue(cast(:payload as jsonb))")
    await session.execute(enqueue, {"payload": json.dumps("rolled back")})
    await session.rollback()
    await session.execute(enqueue, {"payload": json.dumps("committed")})
    await session.commit()
    assert [job.payload for job in await queue.dequeue(10)] == ["committed"]


async def test_what_wraps_a_connection_is_refused_by_its_type(
    session: AsyncSession, queue: pgq.Queue
) -> None:
    connection = await session.connection()
    raw = await connection.get_raw_connection()
    for wrapper in (session, connection, raw, raw.dbapi_connection):
        wrong: Any = wrapper
        with pytest.raises(TypeError, match=f"Connection, not {type(wrapper).__name__}$"):
            await queue.enqueue(1, connection=wrong)
    assert await queue.dequeue() == []


async def test_other_connections_commit_by_themselves_where_there_is_no_sqlalchemy(
    dsn: dict[str, Any], queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await asyncpg.connect(**dsn)
    monkeypatch.delitem(sys.modules, DIALECT)
    await queue.enqueue("own", connection=own)
    await own.close()
    assert [job.payload for job in await queue.dequeue(10)] == ["own"]


async def test_connections_of_a_pool_may_commit_by_themselves(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    async with pool.acquire() as own:
        await queue.enqueue("pool", connection=own)
    assert [job.payload for job in await queue.dequeue(10)] == ["pool"]
