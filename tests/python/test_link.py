"""A call to the server that takes too long is given up; an answer that is there is not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import pytest
from pgq._worker.heartbeat import connect_like, name_of_pool
from pgq._worker.link import Link, Outage, answered

from .sessions import Connection, Dsn, within

pytestmark = pytest.mark.once

SOON = 0.05
PRIVATE = {"_connect", "_connect_args", "_connect_kwargs", "_connection_class", "_record_class"}


async def test_an_answer_counts_that_comes_while_the_loop_is_blocked(
    connection: Connection,
) -> None:
    call = connection.fetchval("select pg_sleep(0.01)::text || 'here'")
    asyncio.get_running_loop().call_soon(time.sleep, 4 * SOON)
    assert await answered(connection, call, SOON) == "here"


async def test_a_call_that_is_not_answered_is_cancelled_and_its_connection_closed(
    connection: Connection,
) -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(TimeoutError):
        await answered(connection, connection.execute("select pg_sleep(600)"), SOON)
    assert connection.is_closed()
    assert task.cancelling() == 0


async def test_who_is_cancelled_as_a_call_is_given_up_is_cancelled(connection: Connection) -> None:
    async def call() -> None:
        answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: waiting.cancel())
        await answer

    waiting = asyncio.create_task(answered(connection, call(), SOON))
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_call_that_is_given_up_keeps_its_place_in_the_pool(dsn: Dsn) -> None:
    async def call(*, connection: Connection) -> object:
        return await connection.fetchval("select 'here'")

    async with asyncpg.create_pool(**dsn, min_size=1, max_size=1) as pool:
        link = Link(pool, SOON, Outage("w", "it works"))
        async with pool.acquire():
            with pytest.raises(TimeoutError):
                await link.run(call)
            behind = asyncio.create_task(_fetched(pool))
            await asyncio.sleep(SOON)
        assert await link.run(call) == "here"
        assert not behind.done()
        await link.close()
        assert await within(behind) == "there"
        async with pool.acquire():
            with pytest.raises(TimeoutError):
                await link.run(call)
        await link.close()
        assert await within(_fetched(pool)) == "there", "nothing is kept"


async def _fetched(pool: asyncpg.Pool[Any]) -> object:
    return await pool.fetchval("select 'there'")


async def test_a_worker_connects_like_its_pool_by_attributes_that_asyncpg_still_has(
    dsn: dict[str, Any],
) -> None:
    """None of them is public: a release of asyncpg that renames one is to fail here first."""

    class Own(asyncpg.Connection): ...

    class Row(asyncpg.Record): ...

    calls: list[dict[str, Any]] = []

    async def connect(*args: Any, **arguments: Any) -> asyncpg.Connection[Any]:
        calls.append(arguments)
        made: asyncpg.Connection[Any] = await asyncpg.connect(*args, **arguments)
        return made

    settings = {"application_name": "like the pool"}
    options: Any = {"connection_class": Own, "record_class": Row, "server_settings": settings}
    async with asyncpg.create_pool(min_size=0, connect=connect, **dsn, **options) as pool:
        assert set(asyncpg.Pool.__slots__) >= PRIVATE
        assert name_of_pool(pool) == f"{dsn['host']}:{dsn['port']}/{dsn['database']}"
        own = await connect_like(pool)()
        assert (type(own), len(calls)) == (Own, 1)
        row = await own.fetchrow("select current_setting('application_name') as name")
        assert isinstance(row, Row)
        assert row["name"] == "like the pool"
        await own.close()
