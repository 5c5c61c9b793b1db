"""Who is shown as being in the way, by what others lock: pgq_obstacles, pgq_health, pgq_locks."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from .sessions import Connection, dequeue, enqueue, started, waiting, within

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
HELD = "select jobs, pid, transaction from pgq_obstacles where cause = 'transaction'"
CLAIM = "begin; select pgq_dequeue()"
# Its id is gone when the savepoint is: what is left is the claim.
CLAIM_WITHIN = "begin; savepoint s; select pgq_dequeue(); release s"
# What another session does that is not in the way of the job, for CLAIM_WITHIN.
BYSTANDERS = {
    "reads": "begin; select pg_current_xact_id(); select from pgq.job_0",
    "has no id yet": "begin; lock table pgq.job_0 in row exclusive mode",
}
VIEWS = ["pgq_queues", "pgq_workers", "pgq_obstacles", "pgq_health", "pgq_locks"]


async def held(connection: Connection) -> list[tuple[Any, ...]]:
    """Return how many jobs which open or prepared transaction holds."""
    return [tuple(row) for row in await connection.fetch(HELD)]


async def test_a_claim_in_a_subtransaction_is_of_the_only_one_that_writes(
    a: Connection, b: Connection
) -> None:
    await enqueue(b, 1)
    await a.execute(CLAIM_WITHIN)
    assert await held(b) == [(1, a.get_server_pid(), None)]


@pytest.mark.parametrize("bystander", BYSTANDERS)
async def test_who_does_not_write_does_not_hide_who_holds_a_job(
    a: Connection, b: Connection, c: Connection, bystander: str
) -> None:
    await enqueue(c, 1)
    await b.execute(BYSTANDERS[bystander])
    await a.execute(CLAIM_WITHIN)
    assert await held(c) == [(1, a.get_server_pid(), None)]


async def test_who_writes_other_jobs_does_not_hide_who_holds_a_job(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(c, 1)
    await a.execute(CLAIM)
    await b.execute("begin; select pgq_enqueue('1')")
    assert await held(c) == [(1, a.get_server_pid(), None)]


async def test_of_two_writers_none_is_blamed_for_a_claim_of_which_it_is_not_known(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(c, 1)
    await a.execute(CLAIM_WITHIN)
    await b.execute("begin; select pgq_enqueue('1')")
    assert await held(c) == [(1, None, None)]


async def test_who_waits_for_the_holder_of_a_job_does_not_hide_it(
    a: Connection, b: Connection, c: Connection
) -> None:
    (job_id,) = await enqueue(c, 1)
    await a.execute(CLAIM)
    await b.execute("begin; select pgq_enqueue('1')")
    async with started(b.fetchval("select pgq_cancel($1)", job_id)) as cancelling:
        await waiting(c, b, cancelling)
        assert await held(c) == [(1, a.get_server_pid(), None)]
        await a.execute("rollback")
        assert await within(cancelling) is True


async def test_of_two_prepared_transactions_the_one_that_holds_a_job_is_shown(
    a: Connection, b: Connection
) -> None:
    await enqueue(b, 1)
    await a.execute("begin; create table other (); prepare transaction 'other'")
    await a.execute("begin; select pgq_pop(); prepare transaction 'holds'")
    try:
        assert await held(b) == [(1, None, "holds")]
    finally:
        await a.execute("rollback prepared 'holds'")
        await a.execute("rollback prepared 'other'")


@pytest.mark.parametrize("table", ["job_0", "floor_0", "job_4", "floor_4"])
async def test_the_views_do_not_wait_for_who_has_locked_a_table_against_readers(
    a: Connection, b: Connection, table: str
) -> None:
    await enqueue(b, 2)
    await dequeue(b)
    await b.execute("select pgq_enqueue('1', run_at => now() + '1 day')")
    await a.execute(f"begin; lock table pgq.{table} in access exclusive mode")
    await b.execute("set lock_timeout = '10 s'")
    for view in VIEWS:
        await within(b.fetch(f"select * from {view}"))


async def in_use(connection: Connection) -> list[tuple[Any, ...]]:
    """Return which slots are in use by whom."""
    rows = await connection.fetch(
        "select pid, detail from pgq_health where subject = 'slot in use' order by pid, detail"
    )
    return [tuple(row) for row in rows]


async def test_health_shows_who_uses_slots_and_not_who_uses_other_tables(
    a: Connection, b: Connection
) -> None:
    await a.execute("begin; lock table pgq.floor_0, pgq.archive_0, pgq.note_4 in share mode")
    assert await in_use(b) == []
    await a.execute("lock table pgq.job_4 in share mode")
    assert await in_use(b) == [(a.get_server_pid(), "job_4: read, ShareLock")]


async def test_health_shows_once_who_waits_for_a_row_of_a_slot(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(c, 1)
    await a.execute("begin; select from pgq.job_0 for update")
    locked = (a.get_server_pid(), "job_0: read, RowShareLock")
    assert await in_use(c) == [locked]
    async with started(b.execute("delete from pgq.job_0")) as ending:
        await waiting(c, b, ending)
        written = (b.get_server_pid(), "job_0: written to")
        assert await in_use(c) == sorted([locked, written])
        await a.execute("rollback")
        await within(ending)


async def blocked(connection: Connection) -> list[tuple[Any, ...]]:
    """Return what pgq_locks shows."""
    rows = await connection.fetch(
        "select waiting_pid, lock_type, relation, blocking_pid from pgq_locks"
    )
    return [tuple(row) for row in rows]


async def test_locks_shows_a_waiter_once_to_those_who_may_observe(
    a: Connection, b: Connection, c: Connection
) -> None:
    (job_id,) = await enqueue(c, 1)
    await c.execute("create role guest; select pgq_create_queue('q')")
    await c.execute("select pgq_grant('q', 'guest', '{observe}')")
    await a.execute("begin")
    await a.fetch("select pgq_cancel($1)", job_id)
    await b.execute("begin; select count(*) from pgq_jobs; select pg_advisory_xact_lock(7)")
    async with started(b.fetchval("select pgq_cancel($1)", job_id)) as cancelling:
        await waiting(c, b, cancelling)
        expected = [(b.get_server_pid(), "transactionid", "pgq.job_0", a.get_server_pid())]
        assert await blocked(c) == expected
        await c.execute("set role guest")
        assert await blocked(c) == []
        await c.execute("reset role")
        await a.execute("rollback")
        assert await within(cancelling) is True
    await b.execute("rollback")
    await c.execute("drop owned by guest; drop role guest")


async def test_locks_does_not_show_who_waits_and_does_not_use_pgq(
    a: Connection, b: Connection, c: Connection
) -> None:
    await c.execute("create table aaa as select 1 as n")
    await a.execute("begin; select from aaa for update")
    async with started(b.execute("delete from aaa")) as deleting:
        await waiting(c, b, deleting)
        assert await blocked(c) == []
        await a.execute("rollback")
        await within(deleting)


async def test_locks_names_no_table_for_a_session_that_waits_for_a_unique_key(
    a: Connection, b: Connection, c: Connection
) -> None:
    await a.execute("begin; select pgq_create_queue('q')")
    async with started(b.execute("select pgq_create_queue('q')")) as creating:
        await waiting(c, b, creating)
        ((_, _, relation, _),) = await blocked(c)
        assert relation is None
        await a.execute("commit")
        with pytest.raises(asyncpg.DuplicateObjectError):
            await within(creating)
