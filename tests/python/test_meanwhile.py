"""What another session does to a job, or to a queue, between two looks of one call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from .sessions import (
    Connection,
    Dsn,
    complete,
    dequeue,
    enqueue,
    maintain,
    no_ticks,
    raise_floors,
    sessions,
    settle_all,
    started,
    stop_clock,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
# Their ends are a DELETE and no more.
KEEP_NONE = "select pgq_configure_queue('default', keep_completed => '0')"
COMPLETE = "select array(select pgq_complete($1::bigint[], $2::bigint[]))"
# With one priority, from the start, that makes 999.
FILL_LANES = """
    set session_replication_role = replica;
    insert into pgq.lane (id, queue_id, priority, queue)
    select pgq._lane_of(q.id, p), q.id, p, q.name
      from pgq.queue q, generate_series(1001, 1998) p where q.name = 'default';
    reset session_replication_role;
"""


async def put(connection: Connection, after: list[int]) -> int:
    """Enqueue a job that runs after others."""
    job_id: int = await connection.fetchval("select pgq_enqueue('0', after => $1)", after)
    return job_id


async def test_a_claim_of_a_job_that_is_locked_does_not_take_the_next_one(
    a: Connection, b: Connection
) -> None:
    first, _ = await enqueue(b, 2)
    await b.execute("begin")
    await b.fetch("select from pgq.job where id = $1 for update", first)
    with pytest.raises(asyncpg.LockNotAvailableError):
        await within(a.fetch("select pgq_claim($1)", first))
    await b.execute("rollback")
    assert await a.fetchval("select (pgq_claim($1)).id", first) == first


async def test_a_job_that_is_put_off_while_it_is_claimed_is_not_claimed(
    a: Connection, b: Connection, c: Connection
) -> None:
    enqueue_at = """
        select pgq_enqueue('1', run_at => $1, dedupe_key => 'k', on_duplicate => 'replace')
    """
    now = await stop_clock(c)
    due = now + timedelta(hours=1)
    job_id = await c.fetchval(enqueue_at, due)
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError):
        await a.fetch("select pgq_claim($1)", job_id)  # later calls know the type of the queue
    await no_ticks(c, due + timedelta(seconds=1))
    await c.execute("begin; lock table pgq.queue in access exclusive mode")
    async with started(a.fetch("select pgq_claim($1)", job_id)) as claiming:
        await waiting(b, a, claiming)
        assert await c.fetchval(enqueue_at, due + timedelta(hours=1)) == job_id
        await c.execute("commit")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await within(claiming)
    assert await c.fetchval("select state from pgq_get($1)", job_id) == "scheduled"


async def test_a_job_that_others_come_to_wait_for_while_it_is_completed_lets_them_go(
    a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute(KEEP_NONE)
    await enqueue(b, 1)
    ((job_id, token),) = await dequeue(b)
    await a.execute("begin")
    waiter = await put(a, [job_id])
    async with started(b.fetchval(COMPLETE, [job_id], [token])) as completing:
        await waiting(c, b, completing)
        await a.execute("commit")
        assert await within(completing) == [job_id]
    assert [found for found, _ in await dequeue(c)] == [waiter]


async def test_jobs_some_of_which_others_wait_for_are_completed_in_the_lock_order(
    dsn: Dsn, a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute(KEEP_NONE)
    await enqueue(b, 2)
    (awaited, _), (last, _) = receipts = await dequeue(b, 2)
    waiters = [await put(b, [awaited])]
    async with sessions(dsn, 1) as (holder,):
        await holder.execute("begin")
        await holder.fetch("select from pgq.job where id = $1 for update", last)
        async with started(complete(a, receipts)) as completing:
            await waiting(c, a, completing)
            async with started(put(b, [awaited, last])) as waits:
                await waiting(c, b, waits)
                await holder.execute("rollback")
                assert sorted(await within(completing)) == [awaited, last]
                waiters.append(await within(waits))
    assert sorted(job_id for job_id, _ in await dequeue(c, 9)) == waiters


async def test_a_retry_of_a_job_that_was_retried_and_died_again_meanwhile_does_nothing(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(b, 1)
    ((job_id, token),) = await dequeue(b)
    await b.execute("select pgq_fail($1, $2, retryable => false)", job_id, token)
    await b.execute("begin")
    assert await b.fetchval("select pgq_retry($1)", job_id) is True
    async with started(a.fetchval("select pgq_retry($1)", job_id)) as retrying:
        await waiting(c, a, retrying)
        again = await b.fetchval("select token from pgq_claim($1)", job_id)
        await b.execute("select pgq_fail($1, $2, retryable => false)", job_id, again)
        await b.execute("commit")
        assert await within(retrying) is False
    assert await c.fetchval("select state from pgq_get($1)", job_id) == "dead"


@pytest.mark.parametrize(
    "call", ["pgq_enqueue('1')", "pgq_enqueue_many('{1}')", "pgq_enqueue('1', priority => 0::int)"]
)
async def test_a_job_whose_number_is_drawn_stays_above_the_floor_until_it_is_there(
    a: Connection, b: Connection, c: Connection, call: str
) -> None:
    await stop_clock(b)  # a transaction that is open for seconds is not waited for
    await enqueue(b, 50)
    await b.execute(f"""
        create function stop() returns trigger language plpgsql as $$
        begin
            perform pg_advisory_lock(7), pg_advisory_unlock(7)
              where pg_backend_pid() = {a.get_server_pid()};
            return new;
        end $$;
        create trigger stop before insert on pgq.job_0 for each row execute function stop();
    """)
    await c.execute("select pg_advisory_lock(7)")
    async with started(a.fetchval(f"select {call}")) as enqueueing:
        await waiting(c, a, enqueueing)
        for _ in range(4):
            await settle_all(b, 50)
            await raise_floors(b)
            await enqueue(b, 50)
        await settle_all(b, 50)
        await c.execute("select pg_advisory_unlock(7)")
        late = await within(enqueueing)
    assert await settle_all(b, 50) == [late]


@pytest.mark.parametrize("raised", [maintain, raise_floors])
async def test_a_job_whose_number_was_drawn_after_the_last_position_stays_above_the_next_one(
    a: Connection, b: Connection, raised: Callable[[Connection], Awaitable[None]]
) -> None:
    await stop_clock(b)
    await enqueue(b, 1)
    await settle_all(b)
    await maintain(b, 3)
    await a.execute("begin")
    ids = await enqueue(a, 1)
    ids += await enqueue(b, 1)
    for _ in range(3):
        await raised(b)
    await a.execute("commit")
    assert [job_id for job_id, _ in await dequeue(b, 9)] == ids


async def test_a_job_whose_time_comes_while_its_slot_is_locked_is_found(
    a: Connection, b: Connection, c: Connection
) -> None:
    now = await stop_clock(b)
    later = "select pgq_enqueue('1', run_at => $1)"
    await b.execute(later, now + timedelta(days=1))
    for second in range(5):
        await stop_clock(b, now + timedelta(seconds=second))
        await maintain(b)
    # The clock is set back, and the tick that found it so has been rolled back.
    await stop_clock(b, now - timedelta(seconds=9))
    await b.execute("begin; select pgq._tick(); rollback")
    await c.execute("begin; lock table pgq.job_4 in share mode")
    async with started(a.fetchval(later, now - timedelta(seconds=8))) as enqueueing:
        await waiting(b, a, enqueueing)
        await stop_clock(b, now + timedelta(seconds=9))
        await c.execute("rollback")
        job_id = await within(enqueueing)
    await stop_clock(b, now + timedelta(seconds=10))
    await maintain(b)
    assert [found for found, _ in await dequeue(b)] == [job_id]


async def test_who_has_an_old_snapshot_raises_no_floor_past_a_job_that_was_given_back(
    a: Connection, b: Connection
) -> None:
    await stop_clock(b)
    ids = await enqueue(b, 2)
    (receipt,) = await dequeue(b)
    await maintain(b, 3)
    await no_ticks(b)
    async with a.transaction(isolation="repeatable_read"):
        await a.execute("select 1")
        assert await b.fetchval("select pgq_release($1, $2)", *receipt)
        await raise_floors(a)
    assert [job_id for job_id, _ in await dequeue(b, 9)] == ids


@pytest.mark.parametrize("call", ["cancel", "await"])
async def test_a_job_that_becomes_head_while_it_is_looked_for_is_found_in_the_ring(
    a: Connection, b: Connection, c: Connection, call: str
) -> None:
    await no_ticks(c)
    put_in_group = "select pgq_enqueue('0', group_key => 'g')"
    first, second = [await c.fetchval(put_in_group) for _ in range(2)]
    receipts = await dequeue(c)
    assert [job_id for job_id, _ in receipts] == [first]
    # What such a commit cannot decide it leaves to the next tick.
    await c.execute("begin; set constraints all immediate")
    await complete(c, receipts)
    await c.execute("commit")
    assert await dequeue(c) == []
    await b.execute("begin; select pgq._tick()")
    if call == "cancel":
        async with started(a.fetchval("select pgq_cancel($1)", second)) as cancelling:
            await waiting(c, a, cancelling)
            await b.execute("commit")
            assert await within(cancelling) is True
        assert await dequeue(c) == []
        assert await c.fetchval("select count(*) from pgq.job") == 0
        return
    async with started(put(a, [second])) as adding:
        await waiting(c, a, adding)
        await b.execute("commit")
        waiter = await within(adding)
    receipts = await dequeue(c, 9)
    assert [job_id for job_id, _ in receipts] == [second]
    await complete(c, receipts)
    assert [job_id for job_id, _ in await dequeue(c)] == [waiter]


async def test_two_sessions_do_not_both_add_the_last_priority(
    a: Connection, b: Connection, c: Connection
) -> None:
    await c.execute(FILL_LANES)
    for session, priority in ((a, 1), (b, 2)):
        await session.execute("begin")
        await session.fetch("select pgq_enqueue('1', priority => $1)", priority)
    await a.execute("commit")
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        await b.execute("commit")
    assert await c.fetchval("select count(distinct id) from pgq.lane") == 1000


async def test_a_commit_that_adds_a_priority_waits_for_one_that_is_adding_another(
    a: Connection, b: Connection, c: Connection
) -> None:
    await c.execute(FILL_LANES)
    await c.execute("""
        create function stop() returns trigger language plpgsql as $$
        begin
            perform pg_advisory_lock(7), pg_advisory_unlock(7);
            return null;
        end $$;
        create table late ();
        create constraint trigger stop after insert on late deferrable initially deferred
            for each row execute function stop();
        select pg_advisory_lock(7);
    """)
    for session, priority in ((a, 1), (b, 2)):
        await session.execute("begin")
        await session.fetch("select pgq_enqueue('1', priority => $1)", priority)
    await a.execute("insert into late default values")
    async with started(a.execute("commit")) as first:
        await waiting(c, a, first)
        async with started(b.execute("commit")) as second:
            await waiting(c, b, second)
            await c.execute("select pg_advisory_unlock(7)")
            await within(first)
            with pytest.raises(asyncpg.ProgramLimitExceededError):
                await within(second)
    assert await c.fetchval("select count(distinct id) from pgq.lane") == 1000


async def test_a_prepared_transaction_that_adds_a_priority_keeps_no_other_waiting(
    a: Connection, b: Connection
) -> None:
    await a.execute("begin; select pgq_enqueue('1', priority => 1)")
    await a.execute("prepare transaction 'priority'")
    await b.execute("set lock_timeout = '10 s'")
    try:
        assert await within(b.fetchval("select pgq_enqueue('1', priority => 2)"))
    finally:
        await a.execute("rollback prepared 'priority'")


async def test_cancel_all_does_not_wait_for_jobs_of_other_queues(
    a: Connection, b: Connection
) -> None:
    await a.execute("select pgq_create_queue('other')")
    await enqueue(a, 2)
    other = await a.fetchval("select pgq_enqueue('1', 'other')")
    await b.execute("begin")
    await b.fetch("select from pgq.job where id = $1 for update", other)
    assert await within(a.fetchval("select pgq_cancel_all('default')")) == 2
    await b.execute("rollback")
    assert await a.fetchval("select state from pgq_jobs where id = $1", other) == "ready"
