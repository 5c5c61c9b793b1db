"""Rows in the lines of groups that somebody has locked, or that change while others wait."""

from __future__ import annotations

from datetime import timedelta

import pytest

from .sessions import (
    Connection,
    complete,
    dequeue,
    enqueue,
    maintain,
    no_ticks,
    slot_of,
    started,
    stop_clock,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
MINUTE = timedelta(minutes=1)
PUT = "select pgq_enqueue('1', group_key => 'g')"
# The row in the line of a head whose copy is in the ring, as who replaces the job locks it.
LOCK_ROW = "begin; select from pgq.job where id = {} and slot in (4, 5) for update"
LOCK_BUCKET = """
    begin;
    select from pgq.bucket b
     where b.id in (select pgq._bucket_of(coalesce(j.group_id, j.id)) from pgq.job j
                     where j.id = {})
       for update
"""
LATER = "select pgq_enqueue('1', run_at => clock_timestamp() + '1 hour')"
MOVE_PARKED = "select pgq._move(4::smallint, 5::smallint, 1000)"
STATE = "select state from pgq_jobs where id = $1"


@pytest.mark.parametrize(("attempts", "outcome"), [(1, "dead"), (9, "scheduled"), (None, "dead")])
async def test_a_tick_leaves_a_head_whose_row_others_have_locked(
    a: Connection, b: Connection, attempts: int | None, outcome: str
) -> None:
    """Its lease has expired for the second time, or it has not started in time."""
    now = await stop_clock(a)
    put = "select pgq_enqueue('1', group_key => 'g', max_attempts => $1, expires_at => $2)"
    job_id = await a.fetchval(put, attempts, now + MINUTE if attempts is None else None)
    if attempts is not None:
        await dequeue(a, 1, "1 s")
        await a.execute("update pgq.job set lost = 1 where token is not null")
    await stop_clock(a, now + 2 * MINUTE)
    before = await a.fetchval(STATE, job_id)
    await b.execute(LOCK_ROW.format(job_id))
    await a.execute("set lock_timeout = '5 s'")
    await maintain(a)
    assert await a.fetchval(STATE, job_id) == before
    await b.execute("rollback")
    await maintain(a)
    assert await a.fetchval(STATE, job_id) == outcome


@pytest.mark.parametrize("which", ["a job of a group", "a job that waits for another one"])
async def test_a_job_of_which_somebody_decides_is_not_moved(
    a: Connection, b: Connection, which: str
) -> None:
    grouped = await a.fetchval(PUT)
    waiter = await a.fetchval("select pgq_enqueue('1', after => $1)", await enqueue(a, 1))
    scheduled = await a.fetchval(LATER)
    held, free = (grouped, waiter) if which == "a job of a group" else (waiter, grouped)
    await b.execute(LOCK_BUCKET.format(held))
    await a.execute("set lock_timeout = '5 s'")
    await a.execute(MOVE_PARKED)
    slots = "select slot, id from pgq.job where slot in (4, 5) order by 1, 2"
    assert [*map(tuple, await a.fetch(slots))] == [
        (4, held),
        *sorted((5, i) for i in (free, scheduled)),
    ]
    await b.execute("rollback")
    await a.execute(MOVE_PARKED)
    assert {slot for slot, _ in await a.fetch(slots)} == {5}


async def test_a_job_that_is_retried_while_others_unblock_its_group_keeps_its_place(
    a: Connection, b: Connection, c: Connection
) -> None:
    await c.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    dead, follower = [await c.fetchval(PUT) for _ in range(2)]
    assert (
        await c.fetchval("select pgq_fail(id, token, retryable => false) from pgq_dequeue()")
        == "dead"
    )
    await b.execute("begin")
    assert await b.fetchval("select pgq_retry($1)", dead)
    async with started(a.fetchval("select pgq_unblock('default', 'g')")) as unblocking:
        await waiting(c, a, unblocking)
        await b.execute("commit")
        assert await within(unblocking) is False
    for job_id in (dead, follower):
        receipts = await dequeue(c, 10)
        assert await complete(c, receipts) == [job_id]
    assert await c.fetchval("select count(*) from pgq.job") == 0


async def test_a_head_that_gets_its_copy_is_cancelled_in_the_ring(
    a: Connection, b: Connection, c: Connection
) -> None:
    put = "select pgq_enqueue('1', group_key => 'g', dedupe_key => 'k', on_duplicate => 'replace'"
    head = await c.fetchval(f"{put}, run_at => clock_timestamp() + '1 hour')")
    follower = await c.fetchval(PUT)
    await b.execute("begin")
    assert await b.fetchval(f"{put})") == head
    async with started(a.fetchval("select pgq_cancel($1)", head)) as cancelling:
        await waiting(c, a, cancelling)
        await b.execute("commit")
        assert await within(cancelling) is True
    assert await slot_of(c, head) is None
    assert await complete(c, await dequeue(c, 10)) == [follower]
    assert await c.fetchval("select count(*) from pgq.job") == 0


async def test_a_group_goes_on_whatever_a_setting_of_the_session_says(
    a: Connection, b: Connection
) -> None:
    """What a transaction has noted, and a setting that any role may set, says."""
    first, second = [await a.fetchval(PUT) for _ in range(2)]
    receipts = await dequeue(a, 9)
    assert [job_id for job_id, _ in receipts] == [first]
    await no_ticks(b)
    await a.execute("begin; select set_config('pgq.noted', pg_current_xact_id()::text, true)")
    await complete(a, receipts)
    await a.execute("commit")
    assert [job_id for job_id, _ in await dequeue(b, 9)] == [second]


async def test_a_prepared_transaction_locks_no_slot_that_it_has_not_written(
    a: Connection, b: Connection
) -> None:
    """Its locks stay, and a slot that is locked cannot be emptied."""
    _, second = [await a.fetchval(PUT) for _ in range(2)]
    receipts = await dequeue(a)
    await a.execute("begin")
    await complete(a, receipts)
    await a.execute(f"{PUT}; prepare transaction 'of a group'")
    locked = await b.fetch("""
        select distinct l.relation::regclass::text as name
          from pg_locks l join pg_class c on c.oid = l.relation
         where l.pid is null and c.relname ~ '^job_[0-3]$'
    """)
    assert [row["name"] for row in locked] == ["pgq.job_0"]
    await b.execute("commit prepared 'of a group'")
    await maintain(b)
    assert [job_id for job_id, _ in await dequeue(b, 9)] == [second]
