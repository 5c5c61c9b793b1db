"""Results, and looking at one job: right while others work, cheap beside any number of jobs."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from .sessions import (
    Connection,
    Dsn,
    Receipt,
    age_ring,
    dequeue,
    enqueue,
    maintain,
    sessions,
    settle_all,
    started,
    turning,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
COMPLETE = "select pgq_complete($1::bigint[], $2::bigint[], $3::text[]::jsonb[])"
RESULTS = "select result from pgq.archive order by id"
GET = "select state from pgq_get($1)"
# Of a slot or an archive partition, or of what belongs to it; predicate locks are in nobody's way.
LOCKS = """
    select count(*) from pg_locks l join pg_class c on c.oid = l.relation
     where l.pid = pg_backend_pid() and l.mode <> 'SIReadLock' and c.relname ~ '^(job|archive)_\\d'
"""


async def buffers(connection: Connection, job_id: int) -> int:
    """Return how many pages a look at a job takes, when it is not the session's first."""
    explain = f"explain (analyze, buffers, timing off, format json) select * from pgq_get({job_id})"
    await connection.fetchval(explain)
    (explained,) = json.loads(await connection.fetchval(explain))
    plan = explained["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def test_of_two_sessions_with_the_same_receipts_the_first_ones_results_are_kept(
    a: Connection, b: Connection, c: Connection
) -> None:
    ids = await enqueue(a, 3)
    receipts = await dequeue(a, 3)
    tokens = [token for _, token in receipts]
    await a.execute("begin")
    await a.fetch(COMPLETE, ids[:2], tokens[:2], ["1", "2"])
    async with started(b.fetch(COMPLETE, ids, tokens, ["4", "5", "6"])) as late:
        await waiting(c, b, late)
        await a.execute("commit")
        assert [row[0] for row in await within(late)] == ids[2:]
    assert [row["result"] for row in await a.fetch(RESULTS)] == ["1", "2", "6"]


async def test_thousands_of_results_take_hardly_longer_than_none(a: Connection) -> None:
    jobs = 10_000
    fastest: dict[bool, float] = {}
    for _ in range(3):
        for given in (False, True):
            await enqueue(a, jobs)
            receipts = await dequeue(a, jobs)
            ids, tokens = [job_id for job_id, _ in receipts], [token for _, token in receipts]
            start = time.perf_counter()
            done = await a.fetch(COMPLETE, ids, tokens, ["1"] * jobs if given else None)
            taken = time.perf_counter() - start
            assert len(done) == jobs
            fastest[given] = min(taken, fastest.get(given, taken))
    assert fastest[True] < 4 * fastest[False], fastest


async def test_a_job_is_found_at_every_moment_while_it_moves(
    dsn: Dsn, a: Connection, b: Connection
) -> None:
    (job_id,) = await enqueue(a, 1)
    moved = asyncio.Event()
    states: set[str] = set()

    async def claim() -> list[Receipt]:
        return await dequeue(a)

    async def look() -> None:
        while not moved.is_set():
            rows = await b.fetch(GET, job_id)
            assert len(rows) == 1, states
            states.add(rows[0]["state"])

    with turning(dsn):
        async with started(look()) as looking:
            for _ in range(120):
                (receipt,) = await until(claim)
                await a.execute("select pgq_release($1, $2)", *receipt)
                (receipt,) = await until(claim)
                await a.execute("select pgq_fail($1, $2, retryable => false)", *receipt)
                await a.execute("select pgq_retry($1)", job_id)
            moved.set()
            await within(looking)
    assert states == {"ready", "active", "dead"}


async def test_a_look_at_a_job_leaves_no_lock(a: Connection) -> None:
    live, done = await enqueue(a, 2)
    (receipt,) = await a.fetch("select id, token from pgq_claim($1)", done)
    await a.execute("select pgq_complete($1::bigint, $2::bigint)", *receipt)
    for isolation in ("read committed", "repeatable read", "serializable"):
        await a.execute(f"begin isolation level {isolation}")
        for job_id, found in ((live, ["ready"]), (done, ["completed"]), (done + 1000, [])):
            assert [row["state"] for row in await a.fetch(GET, job_id)] == found
        assert await a.fetchval(LOCKS) == 0
        await a.fetch("select * from pgq_jobs")
        assert await a.fetchval(LOCKS) > 0
        await a.execute("commit")


async def test_an_old_snapshot_that_cannot_tell_where_a_job_is_says_so(
    dsn: Dsn, a: Connection, b: Connection
) -> None:
    await b.execute("begin isolation level repeatable read")
    await b.fetch("select 1")
    await enqueue(a, 1)
    async with sessions(dsn, 1, pgq__slot_size="1") as (turner,):
        await settle_all(a)
        for _ in range(4):
            await age_ring(a)
            await maintain(turner)
    with pytest.raises(Exception, match="moved by maintenance") as caught:
        await b.fetch(GET, 123456789)
    assert getattr(caught.value, "sqlstate", None) == "40001"
    await b.execute("rollback")


async def test_a_look_at_a_job_reads_no_more_beside_many_by_plans_made_when_there_were_none(
    a: Connection, b: Connection
) -> None:
    await a.execute("select pgq_create_queue('seen')")
    # A role that each server has.
    await a.execute("select pgq_grant('seen', 'pg_monitor', '{observe}')")
    await a.execute("vacuum analyze")
    await b.execute("set role pg_monitor")
    for session in (a, b):
        for _ in range(8):
            await session.fetch(GET, 1)
    fill = "select pgq_enqueue_many(array_fill(jsonb '0', array[$1::int]), $2, $3::int)"
    await a.execute(fill, 20_000, "seen", 0)
    done = await a.fetchval(
        "select max(c) from (select array_agg(d.id) as ids, array_agg(d.token) as tokens"
        " from pgq_dequeue(20000, '1 h', 'seen') d) d, pgq_complete(d.ids, d.tokens) c"
    )
    for queue in ("default", "seen"):
        for priority in (0, 1):
            await a.execute(fill, 75_000, queue, priority)
    live = await a.fetchval("select max(id) from pgq.job")
    for session in (a, b):
        for job_id, found in ((live, ["ready"]), (done, ["completed"]), (live + 1000, [])):
            assert [row["state"] for row in await session.fetch(GET, job_id)] == found
            assert await buffers(session, job_id) < 150
