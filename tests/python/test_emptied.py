"""Whom a slot is not emptied for, who is waited for, and who keeps positions from rising."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from .sessions import Connection, Dsn, enqueue, sessions, started, waiting, within

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {
    "a": {},
    "b": {"statement_timeout": "20 s"},
    "c": {"application_name": "pg_dump"},
}
OLD = "begin isolation level repeatable read; select 1"
TRUNCATE = "select pgq._truncate(0::smallint)"
TRUNCATE_PARKED = "select pgq._truncate_parked(4::smallint, $1)"


async def leave_garbage(connection: Connection) -> None:
    """Leave dead rows in slots 0 and 4."""
    await connection.execute("begin")
    await enqueue(connection, 10)
    await connection.execute("select pgq_enqueue('1', run_at => now() + '1 day'); rollback")
    # A tick waits for 10 ms only: too short for a test to see it.
    await connection.execute("""
        alter function pgq._truncate_parked(smallint, timestamptz) set lock_timeout = 0
    """)


async def began(connection: Connection) -> datetime:
    """Return when the transaction of a session began."""
    at: datetime = await connection.fetchval("select now()")
    return at


async def test_a_tick_waits_for_a_short_user_of_a_parked_slot(a: Connection, b: Connection) -> None:
    await leave_garbage(b)
    for table in ("job_4", "note_4"):
        await a.execute(f"begin; lock table pgq.{table} in access share mode")
        async with started(b.fetchval(TRUNCATE_PARKED, await began(a))) as truncating:
            await waiting(a, b, truncating)
            await a.execute("rollback")
            assert await within(truncating) is True


async def test_a_tick_does_not_wait_for_a_long_user_of_a_parked_slot(
    a: Connection, b: Connection
) -> None:
    await leave_garbage(b)
    for table in ("job_4", "note_4"):
        await a.execute(f"begin; lock table pgq.{table} in access share mode")
        later = await began(a) + timedelta(seconds=1)
        assert await within(b.fetchval(TRUNCATE_PARKED, later)) is False
        await a.execute("rollback")
    assert await within(b.fetchval(TRUNCATE_PARKED, later)) is True


async def test_a_tick_is_not_kept_off_a_parked_slot_by_its_own_long_transaction(
    b: Connection,
) -> None:
    await leave_garbage(b)
    await b.execute("begin; select from pgq.job_4")
    later = await began(b) + timedelta(seconds=1)
    assert await b.fetchval(TRUNCATE_PARKED, later) is True
    await b.execute("commit")


async def test_a_tick_does_not_wait_for_a_dump_that_reads_a_parked_slot(
    b: Connection, c: Connection
) -> None:
    await leave_garbage(b)
    await c.execute(f"{OLD}; lock table pgq.job_4 in access share mode")
    assert await within(b.fetchval(TRUNCATE_PARKED, await began(c))) is False


async def test_a_slot_is_not_locked_while_a_dump_is_at_work(b: Connection, c: Connection) -> None:
    await leave_garbage(b)
    await c.execute(OLD)
    await b.execute("begin")
    assert await b.fetchval(TRUNCATE) is False
    # As the workers of a parallel dump do.
    await c.execute("lock table pgq.job_0 in access share mode nowait; rollback")
    assert await b.fetchval(TRUNCATE) is True
    await b.execute("commit")


async def test_a_slot_is_not_emptied_under_a_dump_that_begins_before_it_is_locked(
    a: Connection, b: Connection, c: Connection
) -> None:
    await leave_garbage(b)
    await a.execute("""
        alter function pgq._is_dumped(interval) rename to _looked;
        create function pgq._is_dumped() returns boolean language plpgsql as $$
        declare
            v_is_dumped constant boolean := pgq._looked();
        begin
            perform pg_advisory_lock(7), pg_advisory_unlock(7);
            return v_is_dumped;
        end $$;
        select pg_advisory_lock(7);
    """)
    async with started(b.fetchval(TRUNCATE)) as truncating:
        await waiting(a, b, truncating)
        await c.execute(OLD)
        await a.execute("select pg_advisory_unlock(7)")
        assert await within(truncating) is False


async def test_who_reads_what_a_dump_reads_first_is_one_and_nobody_else(
    a: Connection, b: Connection
) -> None:
    await leave_garbage(b)
    both = "select from pg_extension; select from pg_foreign_table"
    for others in (
        "select from pg_extension",
        "lock table pgq.queue, pgq.schedule in access share mode",
        "lock table pg_extension, pg_foreign_table in row exclusive mode",
    ):
        await a.execute(f"{OLD}; {others}")
        assert await b.fetchval("select pgq._is_dumped()") is False, others
        await a.execute("rollback")
    # Nor is whoever asks.
    await b.execute(f"begin; {both}")
    assert await b.fetchval("select pgq._is_dumped()") is False
    await b.execute("rollback")
    await a.execute(f"{OLD}; {both}")
    assert await b.fetchval("select pgq._is_dumped()") is True
    assert await b.fetchval(TRUNCATE) is False
    # After a day it is not waited for any more.
    assert await b.fetchval("select pgq._is_dumped('0')") is False


async def writers(connection: Connection) -> list[int | None]:
    """Return per slot the oldest other transaction that writes to it."""
    found: list[int | None] = await connection.fetchval("select pgq._oldest_writers()")
    return found


async def xid(connection: Connection) -> int:
    """Return the id of the transaction of a session."""
    return int(await connection.fetchval("select pg_current_xact_id()::text"))


async def test_positions_rise_beside_who_only_reads_a_slot(a: Connection, b: Connection) -> None:
    await enqueue(b, 1)
    await a.execute("begin; select pg_current_xact_id(); select from pgq.job_0")
    assert await writers(b) == [None] * 6


async def test_positions_do_not_rise_beside_the_oldest_of_those_who_write_to_a_slot(
    dsn: Dsn, a: Connection, b: Connection
) -> None:
    async with sessions(dsn, 1) as (other,):
        for session in (a, other, b):
            await session.execute("begin; select pg_current_xact_id()")
            await enqueue(session, 1)
        await other.execute("select pgq_enqueue('1', run_at => now() + '1 day')")
        oldest, parked = await xid(a), await xid(other)
        assert oldest < parked < await xid(b)
        expected = [oldest, None, None, None, parked, None]
        assert await writers(b) == expected
        await a.execute("rollback")
        assert await writers(b) == [parked, *expected[1:]]
        await other.execute("rollback")
        # Its own transaction does not count.
        assert await writers(b) == [None] * 6


async def test_a_writer_counts_by_its_own_id_and_not_by_that_of_whom_it_waits_for(
    dsn: Dsn, a: Connection, b: Connection
) -> None:
    await b.execute("create table t as select 1 as n")
    async with sessions(dsn, 1) as (holder,):
        await holder.execute("begin; select from t for update")
        await a.execute("begin")
        await enqueue(a, 1)
        expected = [await xid(a), None, None, None, None, None]
        async with started(a.execute("delete from t")) as deleting:
            await waiting(b, a, deleting)
            assert await writers(b) == expected
            await holder.execute("rollback")
            await within(deleting)
