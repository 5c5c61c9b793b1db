"""Follow-up work under concurrency: released once, never lost, whoever commits when."""

from __future__ import annotations

import asyncio
import random
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
    sessions,
    started,
    stop_clock,
    turning,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
AFTER = "select pgq_enqueue('0', priority => 5, after => $1, after_on_dead => $2)"
# How a session ends a job that it holds.
HOWS = {
    "one": "select pgq_complete($1, token) from pgq.job where id = $1",
    "array": "select pgq_complete(array[$1::bigint], array[token]) from pgq.job where id = $1",
    "fail": "select pgq_fail($1, token, retryable => false) from pgq.job where id = $1",
    "cancel": "select pgq_cancel($1, force => true)",
}


async def put(connection: Connection, after: list[int], on_dead: str = "die") -> int:
    """Enqueue a job that runs after others, and before all that are ready."""
    job_id: int = await connection.fetchval(AFTER, after, on_dead)
    return job_id


async def end(connection: Connection, job_id: int, how: str = "one") -> None:
    """End a job that is active."""
    assert await connection.fetchval(HOWS[how], job_id)


async def claimed(connection: Connection, batch: int = 100) -> list[int]:
    """Claim what there is, and return the ids."""
    return [job_id for job_id, _ in await dequeue(connection, batch)]


async def state(connection: Connection, job_id: int) -> str | None:
    """Return the state of a job; null if nothing is known of it."""
    answer: str | None = await connection.fetchval(
        "select state from pgq_jobs where id = $1", job_id
    )
    return answer


async def keep_completed(connection: Connection, keep: str) -> None:
    """Set how long completed jobs are kept; those that are not are completed on a shorter way."""
    call = "select pgq_configure_queue('default', keep_completed => $1::text::interval)"
    await connection.execute(call, keep)


async def settled(connection: Connection) -> None:
    """Run maintenance until no waiting job is left to the next tick."""

    async def done() -> bool:
        await maintain(connection)
        return not await connection.fetchval("select count(*) from pgq.hint")

    await until(done)


async def assert_no_traces(connection: Connection) -> None:
    """Neither dependencies nor hints are left, nor jobs."""
    for table in ("dependency", "hint", "job"):
        assert await connection.fetchval(f"select count(*) from pgq.{table}") == 0, table


@pytest.mark.parametrize("how", ["one", "array", "pop"])
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_the_last_of_two_open_transactions_releases_the_waiter_once(
    a: Connection, b: Connection, c: Connection, how: str, isolation: str
) -> None:
    async def finish(session: Connection, job_id: int) -> None:
        if how == "pop":
            assert await session.fetchval("select id from pgq_pop()") == job_id
        else:
            await end(session, job_id, how)

    await keep_completed(c, "0")
    for first, *endings in [
        (which, one, two)
        for which in ((0, 1) if isolation == "read committed" else (0,))
        for one in ("commit", "rollback", "prepare")
        for two in ("commit", "rollback", "prepare")
    ]:
        ids = await enqueue(c, 2)
        waiter = await put(c, ids)
        if how != "pop":
            assert await claimed(c) == ids
        open_ones = [(a, ids[0]), (b, ids[1])]
        for session, job_id in open_ones:
            await session.execute(f"begin isolation level {isolation}")
            await finish(session, job_id)
        assert await claimed(c) == []
        left: list[str] = []
        for (session, job_id), ending in zip(
            [open_ones[first], open_ones[1 - first]], endings, strict=True
        ):
            command = f"prepare transaction 'of job {job_id}'" if ending == "prepare" else ending
            try:
                await within(session.execute(command))
            except asyncpg.SerializationError:
                assert isolation == "serializable"
                command = "rollback"
                await session.execute(command)
            if command == "rollback":
                await settled(c)
                assert await state(c, waiter) == "waiting"
                await within(finish(session, job_id))
            elif ending == "prepare":
                left.append(f"commit prepared 'of job {job_id}'")
        for commit in left:
            await settled(c)
            assert await state(c, waiter) == "waiting"
            await c.execute(commit)
        await settled(c)
        assert await claimed(a) == [waiter]
        await end(a, waiter)
        await assert_no_traces(c)


@pytest.mark.parametrize("how", ["one", "array"])
async def test_two_commits_at_one_moment_release_the_waiter_once(
    a: Connection, b: Connection, c: Connection, how: str
) -> None:
    ids = await enqueue(c, 2)
    waiter = await put(c, ids)
    assert await claimed(c) == ids
    for session, job_id in ((a, ids[0]), (b, ids[1])):
        await session.execute("begin")
        await end(session, job_id, how)
    # Who commits looks whether it is the last one when it has locked the bucket of the waiter.
    bucket = "select from pgq.bucket where id = pgq._bucket_of($1) for update"
    await c.execute("begin")
    await within(c.execute(bucket, waiter))
    async with started(a.execute("commit")) as first, started(b.execute("commit")) as second:
        await waiting(c, a, first)
        await waiting(c, b, second)
        await c.execute("commit")
        await within(asyncio.gather(first, second))
    assert await claimed(a) == [waiter]
    await end(a, waiter)
    await assert_no_traces(c)


# What becomes of the one that waits.
OUTCOMES = [
    ("one", "die", "ready"),
    ("array", "wait", "ready"),
    ("fail", "die", "dead"),
    ("fail", "wait", "waiting"),
    ("cancel", "die", "dead"),
    ("cancel", "wait", "waiting"),
    ("one", "run", "ready"),
    ("fail", "run", "ready"),
    ("cancel", "run", "ready"),
]
ENDINGS = [(*outcome, ending) for outcome in OUTCOMES for ending in ("commit", "rollback")]


@pytest.mark.parametrize("keep", ["0", "1 day"])
async def test_what_ends_while_a_job_is_added_to_wait_for_it(
    a: Connection, b: Connection, c: Connection, keep: str
) -> None:
    await keep_completed(c, keep)
    for how, on_dead, outcome, ending in ENDINGS:
        ids = await enqueue(c, 1)
        assert await claimed(c) == ids
        await a.execute("begin")
        waiter = await put(a, ids, on_dead)
        async with started(end(b, ids[0], how)) as call:
            await waiting(c, b, call)
            await a.execute(ending)
            await within(call)
        assert await state(c, waiter) == (outcome if ending == "commit" else None)
        await c.execute("select pgq_cancel($1)", waiter)
        await assert_no_traces(c)


@pytest.mark.parametrize("keep", ["0", "1 day"])
async def test_a_job_is_added_to_wait_for_one_that_is_about_to_end(
    a: Connection, b: Connection, c: Connection, keep: str
) -> None:
    await keep_completed(c, keep)
    for how, on_dead, outcome, ending in ENDINGS:
        ids = await enqueue(c, 1)
        assert await claimed(c) == ids
        await a.execute("begin")
        await end(a, ids[0], how)
        async with started(put(b, ids, on_dead)) as call:
            await waiting(c, b, call)
            await a.execute(ending)
            waiter = await within(call)
        if ending == "rollback":
            assert await state(c, waiter) == "waiting"
            await end(c, ids[0], how)
        assert await state(c, waiter) == outcome
        await c.execute("select pgq_cancel($1)", waiter)
        await assert_no_traces(c)


@pytest.mark.parametrize(("number", "was_dead"), [(2, False), (101, False), (2, True)])
async def test_jobs_that_others_wait_for_are_completed_in_the_order_of_their_ids(
    a: Connection, b: Connection, c: Connection, number: int, was_dead: bool
) -> None:
    await keep_completed(c, "0")
    ids = await enqueue(c, number)
    if was_dead:
        assert await claimed(c) == ids
        for job_id in ids:
            await end(c, job_id, "fail")
    waiters = [await put(c, ids[:1], "wait")]
    if was_dead:
        for job_id in ids:
            await c.execute("select pgq_retry($1)", job_id)
    receipts = await dequeue(c, number)
    assert [receipt[0] for receipt in receipts] == ids
    await a.execute("begin")
    waiters.append(await put(a, ids[:1]))
    async with started(complete(b, receipts)) as completing:
        await waiting(c, b, completing)
        # None of the others may be locked yet.
        waiters.append(await within(put(a, ids[1:2])))
        await a.execute("commit")
        assert sorted(await within(completing)) == ids
    assert await claimed(c) == waiters


async def test_who_completes_two_jobs_in_two_calls_may_deadlock_with_one_that_names_both(
    a: Connection, b: Connection, c: Connection
) -> None:
    first, second = ids = await enqueue(c, 2)
    assert await claimed(c) == ids
    await a.execute("set deadlock_timeout = '10 ms'")
    await b.execute("set deadlock_timeout = '10 min'")
    await a.execute("begin")
    await end(a, second)
    async with started(put(b, ids)) as adding:
        await waiting(c, b, adding)
        with pytest.raises(asyncpg.DeadlockDetectedError):
            await within(end(a, first))
        await a.execute("rollback")
        waiter = await within(adding)
    # It is run again, and nothing is lost.
    async with a.transaction():
        await end(a, second)
        await end(a, first)
    assert await claimed(a) == [waiter]


async def test_a_job_is_added_to_wait_for_one_that_is_about_to_be_claimed(
    a: Connection, b: Connection, c: Connection
) -> None:
    for ending in ("commit", "rollback"):
        ids = await enqueue(c, 1)
        await a.execute("begin")
        assert await claimed(a) == ids
        async with started(put(b, ids)) as call:
            await waiting(c, b, call)
            await a.execute(ending)
            waiter = await within(call)
        if ending == "rollback":
            assert await claimed(a) == ids
        assert await state(c, waiter) == "waiting"
        await end(a, ids[0])
        assert await claimed(a) == [waiter]
        await end(a, waiter)
        await assert_no_traces(c)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("first", ["the retry", "the waiter"])
async def test_a_job_is_added_to_wait_for_one_that_is_being_retried(
    a: Connection, b: Connection, c: Connection, isolation: str, first: str
) -> None:
    ids = await enqueue(c, 1)
    assert await claimed(c) == ids
    await end(c, ids[0], "fail")
    retry, add = a.fetchval("select pgq_retry($1)", ids[0]), put(b, ids, "wait")
    if first == "the retry":
        await a.execute(f"begin isolation level {isolation}")
        assert await retry
        async with started(add) as adding:
            await waiting(c, b, adding)
            await a.execute("commit")
            waiter = await within(adding)
    else:
        await a.execute(f"begin isolation level {isolation}; select 1 from pgq_jobs")
        await b.execute("begin")
        waiter = await add
        async with started(retry) as retrying:
            await waiting(c, a, retrying)
            await b.execute("commit")
            assert await within(retrying)
        await a.execute("commit")
    assert await claimed(c) == ids
    assert await state(c, waiter) == "waiting"
    await end(c, ids[0])
    assert await claimed(c) == [waiter]
    await end(c, waiter)
    await assert_no_traces(c)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_an_old_snapshot_does_not_hide_who_waits(
    a: Connection, b: Connection, c: Connection, isolation: str
) -> None:
    for how, on_dead, outcome in OUTCOMES:
        ids = await enqueue(c, 1)
        assert await claimed(c) == ids
        waiters = [await put(c, ids, on_dead)]
        await a.execute(f"begin isolation level {isolation}; select 1 from pgq_jobs")
        waiters.append(await put(b, ids, on_dead))
        await end(a, ids[0], how)
        await a.execute("commit")
        await settled(c)
        assert [await state(c, waiter) for waiter in waiters] == [outcome] * 2
        await c.execute("select pgq_cancel(w) from unnest($1::bigint[]) w", waiters)
        await assert_no_traces(c)


async def test_a_job_that_has_completed_under_an_old_snapshot_kills_nobody(
    a: Connection, b: Connection
) -> None:
    ids = await enqueue(a, 2)
    assert await claimed(a) == ids
    waiter = await put(a, ids)
    await a.execute("begin isolation level repeatable read")
    await end(a, ids[0])
    await a.execute("commit")
    await b.execute("begin")
    await end(b, ids[1], "fail")
    assert await b.fetchval("select pgq_retry($1)", ids[1])
    await b.execute("commit")
    assert await state(b, waiter) == "waiting"
    await settled(b)
    assert await state(b, waiter) == "waiting"
    assert await claimed(b) == ids[1:]
    await end(b, ids[1])
    assert await state(b, waiter) == "ready"


async def test_what_is_undone_leaves_the_waiter_as_it_was(
    dsn: Dsn, a: Connection, b: Connection, c: Connection
) -> None:
    ids = await enqueue(c, 2)
    waiter = await put(c, ids)
    assert await claimed(c) == ids
    await a.execute("begin")
    await a.execute("savepoint s")
    await end(a, ids[0])
    await a.execute("rollback to s")
    await end(a, ids[1])
    await a.execute("commit")
    assert await state(c, waiter) == "waiting"
    async with sessions(dsn, 1) as (killed,):
        await killed.execute("begin")
        await end(killed, ids[0])
        await c.execute("select pg_terminate_backend($1, 5000)", killed.get_server_pid())
    await settled(c)
    assert await state(c, waiter) == "waiting"
    await end(b, ids[0], "array")
    assert await claimed(c) == [waiter]
    await end(b, waiter)
    await assert_no_traces(c)


async def test_who_has_the_waiter_locked_is_not_waited_for(
    a: Connection, b: Connection, c: Connection
) -> None:
    lock = "select from pgq.job where id = $1 for update"
    for how, on_dead, outcome in (
        ("one", "die", "ready"),
        ("fail", "die", "dead"),
        ("fail", "run", "ready"),
    ):
        ids = await enqueue(c, 1)
        waiter = await put(c, ids, on_dead)
        assert await claimed(c) == ids
        await a.execute("begin")
        await a.execute(lock, waiter)
        await within(end(b, ids[0], how))
        await within(maintain(b, 2))
        assert await state(c, waiter) == "waiting"
        await a.execute("commit")
        await settled(b)
        assert await state(c, waiter) == outcome
        await c.execute("select pgq_cancel($1)", waiter)
        await assert_no_traces(c)


async def test_a_waiter_is_cancelled_while_the_job_before_it_completes(
    a: Connection, b: Connection, c: Connection
) -> None:
    for ending in ("commit", "rollback"):
        ids = await enqueue(c, 1)
        waiter = await put(c, ids)
        assert await claimed(c) == ids
        await a.execute("begin")
        await a.execute("select pgq_cancel($1)", waiter)
        await within(end(b, ids[0]))
        await within(maintain(b, 2))
        await a.execute(ending)
        await settled(c)
        assert await claimed(c) == ([] if ending == "commit" else [waiter])
        if ending == "rollback":
            await end(c, waiter)
        await assert_no_traces(c)


async def test_a_death_leaves_dependencies_that_others_have_locked_to_the_ticks(
    a: Connection, b: Connection, c: Connection
) -> None:
    ids = await enqueue(c, 2)
    waiter = await put(c, ids, "run")
    assert await claimed(c) == ids
    await a.execute("begin")
    await a.execute("select from pgq.dependency for update")
    await within(end(b, ids[0], "fail"))
    await within(end(b, ids[1]))
    await within(maintain(b, 2))
    assert await state(c, waiter) == "waiting"
    assert await c.fetchval("select pgq_retry($1)", ids[0])
    await a.execute("commit")
    await settled(c)
    assert await claimed(c) == [waiter, ids[0]]
    for job_id in (waiter, ids[0]):
        await end(c, job_id)
    await assert_no_traces(c)


@pytest.mark.parametrize("first", ["one", "fail", "cancel"])
@pytest.mark.parametrize("second", ["one", "array", "fail", "cancel"])
async def test_of_ends_at_one_moment_the_last_one_lets_it_run(
    a: Connection, b: Connection, c: Connection, first: str, second: str
) -> None:
    ids = await enqueue(c, 2)
    waiter = await put(c, ids, "run")
    assert await claimed(c) == ids
    for session, job_id, how in ((a, ids[0], first), (b, ids[1], second)):
        await session.execute("begin")
        await end(session, job_id, how)
    await a.execute("commit")
    assert await state(c, waiter) == "waiting"
    await b.execute("commit")
    assert await claimed(a) == [waiter]
    await end(a, waiter)
    await assert_no_traces(c)


@pytest.mark.parametrize("how", ["fail", "cancel"])
async def test_a_death_does_not_wait_for_whoever_completes_another_one(
    a: Connection, b: Connection, c: Connection, how: str
) -> None:
    for ending in ("commit", "rollback"):
        ids = await enqueue(c, 2)
        waiter = await put(c, ids)
        assert await claimed(c) == ids
        await a.execute("begin")
        await end(a, ids[0])
        await within(end(b, ids[1], how))
        assert await state(c, waiter) == "dead"
        await a.execute(ending)
        if ending == "rollback":
            await end(a, ids[0])
        await settled(c)
        await assert_no_traces(c)


async def test_a_death_runs_down_a_chain_and_a_tree(a: Connection) -> None:
    (root,) = await enqueue(a, 1)
    chain = [root]
    for _ in range(30):
        chain.append(await put(a, chain[-1:]))
    leaves = [await put(a, chain[3:4]) for _ in range(20)]
    spared = await put(a, chain[-1:], "wait")
    assert await claimed(a) == [root]
    await end(a, root, "fail")
    await settled(a)
    rows = await a.fetch("select id, last_error from pgq_jobs where state = 'dead' order by id")
    assert [row["id"] for row in rows] == sorted(chain + leaves)
    assert {row["last_error"] for row in rows[1:]} == {"a job that it was to run after is dead"}
    assert await state(a, spared) == "waiting"
    await a.execute("select pgq_cancel($1)", spared)
    await assert_no_traces(a)


async def test_many_before_one_and_one_before_many(a: Connection) -> None:
    await keep_completed(a, "0")
    number = 10000
    ids = await enqueue(a, number)
    waiter = await put(a, ids)
    receipts = await dequeue(a, number)
    for receipt in receipts[:1000]:
        await a.execute("select pgq_complete($1::bigint, $2::bigint)", *receipt)
    await complete(a, receipts[1000:-1])
    assert await claimed(a) == []
    await complete(a, receipts[-1:])
    call = "select pgq_enqueue_many(array_fill(jsonb '0', array[$1::int]), after => $2::bigint[])"
    many = [row[0] for row in await a.fetch(call, number, [waiter])]
    assert await claimed(a) == [waiter]
    await end(a, waiter)
    receipts = await dequeue(a, 2 * number)
    assert [job_id for job_id, _ in receipts] == many
    await complete(a, receipts)
    await assert_no_traces(a)


async def test_who_waits_for_a_job_that_was_moved_meanwhile_lets_the_others_go(
    dsn: Dsn, a: Connection, b: Connection, c: Connection
) -> None:
    """Jobs are locked by slot and id, and this one is not where it was looked up."""

    async def release(job_id: int) -> None:
        call = "select pgq_release(id, token, '1 hour') from pgq_claim($1)"
        assert await c.fetchval(call, job_id)

    async def a_waits_for_b() -> bool:
        call = "select pg_blocking_pids($1) = array[$2::integer]"
        return bool(await c.fetchval(call, a.get_server_pid(), b.get_server_pid()))

    early, middle, first, moved = ids = await enqueue(c, 4)
    await release(early)
    await release(middle)
    async with sessions(dsn, 2) as holders:
        for holder, job_id in zip(holders, [first, middle], strict=True):
            await holder.execute("begin")
            await holder.execute("select from pgq.job where id = $1 for update", job_id)
        async with started(put(a, [early, first, moved])) as one:
            await waiting(c, a, one)
            await release(moved)
            async with started(put(b, [early, middle, moved])) as other:
                await waiting(c, b, other)
                await holders[0].execute("rollback")
                await until(a_waits_for_b)
                await holders[1].execute("rollback")
                waiters = [await within(other), await within(one)]
    await stop_clock(c, await c.fetchval("select clock_timestamp() + interval '2 hours'"))
    await maintain(c)
    assert sorted(await claimed(c)) == ids
    for job_id in ids:
        await end(c, job_id)
    assert await claimed(c) == waiters
    for job_id in waiters:
        await end(c, job_id)
    await assert_no_traces(c)


async def test_who_begins_anew_keeps_nobody_waiting_for_what_was_locked_before(
    dsn: Dsn, a: Connection, b: Connection, c: Connection
) -> None:
    """A row that a nested subtransaction has locked would be waited for until the commit."""
    parked, late, dead = ids = await enqueue(c, 3)
    for job_id in (parked, late):
        call = "select pgq_release(id, token, '1 hour') from pgq_claim($1)"
        assert await c.fetchval(call, job_id)
    assert await claimed(c) == [dead]
    await end(c, dead, "fail")
    # So its row is only locked from now on, and not marked as awaited as well.
    first = await put(c, [parked], "wait")
    async with sessions(dsn, 1) as (holder,):
        await holder.execute("begin")
        await holder.execute("select from pgq.job where id = $1 for update", late)
        async with started(put(a, ids, "wait")) as one:
            await waiting(c, a, one)
            # It was looked up last, as a dead one. Now its place is the first.
            assert await c.fetchval("select pgq_retry($1)", dead) is True
            async with started(put(b, [dead, parked])) as other:
                await waiting(c, b, other)
                await holder.execute("rollback")
                waiters = [await within(other), await within(one)]
    for job_id in (*ids, first, *waiters):
        await c.execute("select pgq_cancel($1)", job_id)
    await settled(c)
    await assert_no_traces(c)


@pytest.mark.parametrize("first", ["the waiter", "the retry"])
async def test_a_dead_job_is_retried_while_one_waits_for_it_and_for_one_that_has_just_died(
    a: Connection, b: Connection, c: Connection, first: str
) -> None:
    """The other one was looked up in the ring, so it was locked first."""

    async def a_waits_for(session: Connection) -> bool:
        call = "select pg_blocking_pids($1) = array[$2::integer]"
        return bool(await b.fetchval(call, a.get_server_pid(), session.get_server_pid()))

    retry = "select pgq_retry($1)"
    dead, dying = ids = await enqueue(c, 2)
    assert await claimed(c) == ids
    await end(c, dead, "fail")
    await a.execute("begin")
    await b.execute("begin")
    await end(b, dying, "fail")
    async with started(put(a, ids, "wait")) as adding:
        await waiting(c, a, adding)
        if first == "the retry":
            await c.execute("begin")
            assert await c.fetchval(retry, dead)
        await b.execute("commit")
        if first == "the retry":
            # It has let go of the other one, which would be a deadlock.
            await until(lambda: a_waits_for(c))
            assert await within(c.fetchval(retry, dying))
            await c.execute("commit")
        waiter = await within(adding)
    if first == "the waiter":
        async with started(c.fetchval(retry, dead)) as retrying:
            await waiting(b, c, retrying)
            await a.execute("commit")
            assert await within(retrying)
        assert await c.fetchval(retry, dying)
    await a.execute("rollback" if first == "the waiter" else "commit")
    assert sorted(await claimed(c)) == ids
    for job_id in ids:
        assert await state(c, waiter) == "waiting"
        await end(c, job_id)
    assert await claimed(c) == [waiter]
    await end(c, waiter)
    await assert_no_traces(c)


@pytest.mark.parametrize("what", ["replace", "late"])
async def test_jobs_to_wait_for_and_a_job_to_replace_are_locked_in_one_order(
    dsn: Dsn, a: Connection, b: Connection, c: Connection, what: str
) -> None:
    now = await stop_clock(c)
    expires_at = now + timedelta(seconds=1) if what == "late" else None
    call = "select pgq_enqueue('1', dedupe_key => 'k', expires_at => $1)"
    keyed = await c.fetchval(call, expires_at)
    (other,) = await enqueue(c, 1)
    await no_ticks(c, now + timedelta(seconds=2))
    again = """
        select pgq_enqueue('2', priority => 5, dedupe_key => 'k', on_duplicate => $2,
                           after => array[$1::bigint])
    """
    async with sessions(dsn, 1) as (holder,):
        await holder.execute("begin")
        await holder.execute("select from pgq.job where id = $1 for update", keyed)
        async with started(put(b, [keyed, other], "run")) as waits:
            await waiting(c, b, waits)
            on_duplicate = "keep" if what == "late" else "replace"
            async with started(a.fetchval(again, other, on_duplicate)) as changes:
                await waiting(c, a, changes)
                await holder.execute("rollback")
                waiter, changed = [await within(waits), await within(changes)]
    assert (changed == keyed) == (what == "replace")
    assert await state(c, keyed) == ("ready" if what == "replace" else "dead")
    assert await state(c, waiter) == "waiting"


async def test_a_duplicate_that_changes_nothing_does_not_wait_for_the_job_that_has_the_key(
    a: Connection, b: Connection
) -> None:
    keyed = await a.fetchval("select pgq_enqueue('1', dedupe_key => 'k')")
    (other,) = await enqueue(a, 1)
    await b.execute("begin")
    await b.execute("select from pgq.job where id = $1 for update", keyed)
    call = "select pgq_enqueue('2', dedupe_key => 'k', after => array[$1::bigint])"
    assert await within(a.fetchval(call, other)) == keyed


async def test_in_a_crowd_every_job_runs_once_and_after_those_it_waits_for(
    dsn: Dsn, a: Connection
) -> None:
    needs: dict[int, set[int]] = {}
    waited: list[int] = []
    done: list[int] = []
    ended = asyncio.Event()

    async def produce(producer: Connection, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(80):
            after = chance.sample(sorted(needs), min(len(needs), chance.choice([0, 1, 2, 5])))
            [(job_id, state)] = await producer.fetch(
                "select j.id, j.state"
                " from pgq_enqueue('0', after => $1, after_on_dead => 'wait') e, pgq_get(e) j",
                after,
            )
            needs[job_id] = set(after)
            if state == "waiting":
                waited.append(job_id)

    async def consume(consumer: Connection, seed: int) -> None:
        chance = random.Random(seed)
        while not (ended.is_set() and len(done) == len(needs)):
            receipts = await dequeue(consumer, chance.choice([1, 5]))
            for job_id, token in receipts:
                # A consumer may be faster than the producer's answer.
                assert needs.get(job_id, set()) <= set(done)
                fate = chance.random()
                if fate < 0.2:
                    await consumer.execute("select pgq_release($1, $2)", job_id, token)
                elif fate < 0.4:
                    call = "select pgq_fail($1, $2, retryable => false)"
                    assert await consumer.fetchval(call, job_id, token) == "dead"
                    assert await consumer.fetchval("select pgq_retry($1)", job_id)
                else:
                    done.append(job_id)
                    assert await complete(consumer, [(job_id, token)]) == [job_id]
            if not receipts:
                await asyncio.sleep(0.002)

    async with sessions(dsn, 10) as them:
        with turning(dsn):
            consumers = [asyncio.create_task(consume(c, n)) for n, c in enumerate(them[:5])]
            await asyncio.gather(*(produce(p, n) for n, p in enumerate(them[5:])))
            ended.set()
            await within(asyncio.gather(*consumers))
    assert sorted(done) == sorted(needs)
    rows = await a.fetch("select id, claimed_at, finished_at from pgq_jobs")
    times = {row["id"]: row for row in rows}
    # A claim has the time at which its call began, and may take a job that is new since then, for
    # which nothing is left to wait for. A job that has waited is not 4 ms newer: see _due.
    for job_id in waited:
        for other in needs[job_id]:
            early = times[other]["finished_at"] - times[job_id]["claimed_at"]
            assert early <= timedelta(microseconds=4095)
    await assert_no_traces(a)


async def test_a_job_that_is_retried_and_dies_again_is_not_taken_for_completed(
    a: Connection, b: Connection, c: Connection
) -> None:
    (first,) = await enqueue(a, 1)
    await a.execute("select pgq_fail(id, token, retryable => false) from pgq_dequeue()")
    # Stops after the second look for it, and before the third one.
    await c.execute("""
        alter function pgq._find(bigint) rename to _looked;
        create sequence looks;
        create function pgq._find(p_id bigint, out job pgq.job)
        language plpgsql set search_path = pg_catalog, pg_temp as $$
        declare
            v_look bigint := 0;
        begin
            if current_setting('application_name') = 'stops' then
                v_look := nextval('public.looks');
            end if;
            perform pg_advisory_lock(8), pg_advisory_unlock(8) where v_look = 3;
            job := pgq._looked(p_id);
            perform pg_advisory_lock(7), pg_advisory_unlock(7) where v_look = 2;
        end $$;
        select pg_advisory_lock(7), pg_advisory_lock(8);
    """)
    await b.execute("set application_name = 'stops'")
    call = "select pgq_enqueue('2', after => array[$1::bigint])"
    async with started(b.fetchval(call, first)) as task:
        await waiting(c, b, task)
        assert await a.fetchval("select pgq_retry($1)", first) is True
        await c.execute("select pg_advisory_unlock(7)")
        await waiting(c, b, task)
        fail = "select pgq_fail(id, token, retryable => false) from pgq_dequeue()"
        assert await a.fetchval(fail) == "dead"
        await c.execute("select pg_advisory_unlock(8)")
        follower = await within(task)
    assert await state(a, follower) == "dead"


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_job_that_completes_between_two_looks_for_a_dead_one_is_not_waited_for(
    a: Connection, b: Connection, c: Connection, is_first: bool
) -> None:
    """As the first job, or behind one that has died meanwhile and is locked already."""
    dead, other = await enqueue(c, 2)
    [receipt] = await dequeue(a, 1)
    assert await a.fetchval("select pgq_fail($1, $2, retryable => false)", *receipt) == "dead"
    # Stops before the third look for a live job, and at the last look for a dead one.
    await c.execute("""
        alter function pgq._find(bigint) rename to _looked;
        alter function pgq._now() rename to _told;
        create sequence finds;
        create sequence looks;
        create function pgq._find(p_id bigint, out job pgq.job)
        language plpgsql set search_path = pg_catalog, pg_temp as $$
        begin
            if current_setting('application_name') = 'stops'
                and nextval('public.finds') = 3
            then
                perform pg_advisory_lock(8), pg_advisory_unlock(8);
            end if;
            job := pgq._looked(p_id);
        end $$;
        create function pgq._now() returns timestamptz language plpgsql as $$
        declare
            v_stack text;
        begin
            get diagnostics v_stack = pg_context;
            if current_setting('application_name') = 'stops'
                and v_stack ~ '_find_for_waiter' and v_stack !~ '_is_over'
                and nextval('public.looks') = current_setting('pgq_test.look')::integer
            then
                perform pg_advisory_lock(7), pg_advisory_unlock(7);
            end if;
            return pgq._told();
        end $$;
        select pg_advisory_lock(7), pg_advisory_lock(8);
    """)
    await b.execute(f"set application_name = 'stops'; set pgq_test.look = {1 if is_first else 2}")
    fail = "select pgq_fail(id, token, retryable => false) from pgq_dequeue()"
    after = [dead] if is_first else [other, dead]
    async with started(put(b, after, "die" if is_first else "wait")) as task:
        if not is_first:
            await waiting(c, b, task)
            assert await a.fetchval(fail) == "dead"
        await c.execute("select pg_advisory_unlock(8)")
        await waiting(c, b, task)
        assert await a.fetchval("select pgq_retry($1)", dead) is True
        receipts = await dequeue(a, 9)
        assert dead in await complete(a, receipts)
        await c.execute("select pg_advisory_unlock(7)")
        follower = await within(task)
    if not is_first:
        # It waits for the other one alone.
        assert await state(a, follower) == "waiting"
        assert await a.fetchval("select pgq_retry($1)", other) is True
        await complete(a, await dequeue(a, 9))
    assert await state(a, follower) == "ready"


async def test_a_job_is_not_killed_by_a_tick_after_what_it_waits_for_has_completed(
    a: Connection, b: Connection, c: Connection
) -> None:
    (first,) = await enqueue(a, 1)
    follower = await a.fetchval("select pgq_enqueue('2', after => array[$1::bigint])", first)
    receipts = await dequeue(a)
    await no_ticks(c)
    # The follower is locked while the first one dies, which is left to a tick therefore.
    await c.execute("begin")
    await c.execute("select from pgq.job where id = $1 for update", follower)
    await a.execute("select pgq_fail($1, $2, retryable => false)", *receipts[0])
    await c.execute("rollback")
    assert await a.fetchval("select pgq_retry($1)", first) is True
    receipts = await dequeue(a)
    assert receipts[0][0] == first
    await c.execute(f"""
        alter function pgq._find(bigint) rename to _looked;
        create function pgq._find(p_id bigint, out job pgq.job)
        language plpgsql set search_path = pg_catalog, pg_temp as $$
        begin
            perform pg_advisory_lock(7), pg_advisory_unlock(7)
              where p_id = {first} and current_setting('application_name') = 'stops';
            job := pgq._looked(p_id);
        end $$;
        select pg_advisory_lock(7);
    """)
    await b.execute("set application_name = 'stops'")
    async with started(b.execute("select pgq_maintain()")) as task:
        await waiting(c, b, task)
        await a.execute("begin isolation level repeatable read")
        assert await complete(a, receipts) == [first]
        await a.execute("commit")
        await c.execute("select pg_advisory_unlock(7)")
        await within(task)
    await maintain(c, 2)
    assert await state(a, follower) == "ready"
