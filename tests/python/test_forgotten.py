"""Dropped queues are forgotten once nobody is left who read lanes before the first tick."""

from __future__ import annotations

import asyncpg
import pytest

from .sessions import Connection, Dsn, maintain, sessions, started, until, waiting, within

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
READ = "begin; select from pgq.lane"
LEFT = """
    select (select count(*) from pgq.dropped where name = 'q')
           + (select count(*) from pgq.lane where queue = 'q')
"""
WAITS_FOR_ANOTHER = """
    select exists (
        select from pg_locks where pid = $1 and locktype = 'transactionid' and not granted
    )
"""


async def drop_a_queue(connection: Connection) -> None:
    """Leave a dropped queue with a lane, both to be forgotten."""
    await connection.execute("select pgq_create_queue('q')")
    await connection.execute("select pgq_cancel(pgq_enqueue('1', 'q'))")
    await connection.execute("select pgq_drop_queue('q')")
    assert await connection.fetchval(LEFT) == 2


async def test_one_tick_forgets_a_queue_whose_lanes_no_transaction_has_read(
    a: Connection, b: Connection
) -> None:
    await drop_a_queue(a)
    await b.execute("begin; select from pgq.queue")
    await maintain(a)
    assert await a.fetchval(LEFT) == 0


async def test_a_queue_is_not_kept_for_the_transaction_that_forgets_it(a: Connection) -> None:
    await drop_a_queue(a)
    await a.execute(f"{READ}; select pgq_maintain(); commit")
    assert await a.fetchval(LEFT) == 0


async def test_a_queue_is_kept_for_those_who_read_lanes_before_and_for_no_others(
    a: Connection, b: Connection, c: Connection
) -> None:
    await drop_a_queue(c)
    await a.execute(READ)
    await maintain(c)
    await b.execute(READ)
    await maintain(c, 2)
    assert await c.fetchval(LEFT) == 2
    await b.execute("rollback")
    await maintain(c)
    assert await c.fetchval(LEFT) == 2
    await b.execute(READ)
    await a.execute("rollback")
    await maintain(c)
    assert await c.fetchval(LEFT) == 0


async def test_who_waits_for_the_same_transaction_as_an_earlier_reader_is_another(
    dsn: Dsn, a: Connection, b: Connection, c: Connection
) -> None:
    await c.execute("create table t as select 1 as n")
    await drop_a_queue(c)
    async with sessions(dsn, 1) as (holder,):
        await holder.execute("begin; select from t for update")
        await a.execute(READ)
        async with started(a.execute("select from t for update")) as first:
            await waiting(c, a, first)
            await maintain(c)
            assert await c.fetchval(LEFT) == 2
            await b.execute(READ)
            async with started(b.execute("select from t for update")) as second:
                await waiting(c, b, second)
                await c.execute("select pg_cancel_backend($1)", a.get_server_pid())
                with pytest.raises(asyncpg.QueryCanceledError):
                    await within(first)
                await a.execute("rollback")
                # Until then it waited for its turn.
                await until(lambda: c.fetchval(WAITS_FOR_ANOTHER, b.get_server_pid()))
                await maintain(c)
                assert await c.fetchval(LEFT) == 0
                await holder.execute("rollback")
