"""The views: right beside millions of jobs, cheap, and in nobody's way."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from .conftest import TEMPLATE, serve
from .sessions import (
    Connection,
    Dsn,
    complete,
    dequeue,
    enqueue,
    maintain,
    sessions,
    started,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {"lock_timeout": "2s"}, "c": {}}
VIEWS = ("pgq_queues", "pgq_workers", "pgq_health", "pgq_locks", "pgq_obstacles")
STATES = ("ready", "scheduled", "waiting", "active")
FILL = "select pgq_enqueue_many(array_fill(jsonb '0', array[$1::int]), {})"
# Of a slot, or of what belongs to it. Predicate locks are in nobody's way.
SLOT_LOCKS = """
    select count(*) from pg_locks l join pg_class c on c.oid = l.relation
     where l.pid = pg_backend_pid() and l.mode <> 'SIReadLock'
       and c.relname ~ '^(job|floor|hold)_[0-5]'
"""
COUNTED = """
    select count(*) filter (where j.token is null and j.slot < 4) as ready,
           count(*) filter (where j.slot >= 4 and j.due is not null) as scheduled,
           count(*) filter (where j.slot >= 4 and j.due is null and j.is_head is null) as waiting,
           count(*) filter (where j.token is not null) as active
      from pgq.job j join pgq.lane l on l.id = j.lane join pgq.queue q on q.id = l.queue_id
     where q.name = $1
"""


async def shown(connection: Connection, queue: str = "default") -> dict[str, Any]:
    """Return what pgq_queues says of a queue."""
    rows = await connection.fetch("select * from pgq_queues where queue = $1", queue)
    return dict(rows[0])


async def fill(connection: Connection, number: int, settings: str = "queue => 'default'") -> None:
    """Enqueue many jobs."""
    await connection.execute(FILL.format(settings), number)


async def buffers(connection: Connection, view: str) -> int:
    """Return how many pages a look at a view takes, when it is not the session's first."""
    explain = f"explain (analyze, buffers, timing off, format json) select * from {view}"
    await connection.fetchval(explain)
    (explained,) = json.loads(await connection.fetchval(explain))
    return int(explained["Plan"]["Shared Hit Blocks"]) + int(
        explained["Plan"]["Shared Read Blocks"]
    )


async def assert_near(connection: Connection, queue: str = "default") -> dict[str, Any]:
    """Each number is within a factor of 1.5 of the count; return what is shown."""
    seen, counted = await shown(connection, queue), (await connection.fetch(COUNTED, queue))[0]
    for state in STATES:
        assert counted[state] / 1.5 <= seen[state] <= counted[state] * 1.5, (state, seen, counted)
    return seen


async def test_many_jobs_are_estimated_and_small_queues_beside_them_counted(
    a: Connection, b: Connection
) -> None:
    await a.execute("select pgq_create_queue('small'), pgq_create_queue('other')")
    for queue in ("small", "default", "other"):
        number = 2 if queue == "small" else 60000 if queue == "default" else 900
        await fill(a, number, f"'{queue}'")
        await fill(a, number + 1, f"'{queue}', run_at => now() + '1 day'")
        first = await a.fetchval("select min(j.id) from pgq_jobs j where j.queue = $1", queue)
        await fill(a, number + 2, f"'{queue}', after => array[{first}::bigint]")
        await fill(a, number, f"'{queue}'")
        await a.execute("select count(*) from pgq_dequeue($1, '1 h', $2)", number // 2, queue)
    big = await assert_near(b)
    assert big["estimated"]
    assert big["ready"] + big["scheduled"] + big["waiting"] > 120000
    for queue in ("small", "other"):
        seen = await shown(b, queue)
        counted = (await b.fetch(COUNTED, queue))[0]
        assert {state: seen[state] for state in STATES} == dict(counted)
        assert not seen["estimated"]
    await b.execute("select pgq_cancel_all('small')")
    assert (await shown(b, "small"))["waiting"] == 0


async def test_large_payloads_do_not_make_a_small_table_a_large_one(
    a: Connection, b: Connection
) -> None:
    for slot in range(6):
        await a.execute(f"alter table pgq.job_{slot} alter payload set storage external")
    for _ in range(8):
        await a.execute(
            "select pgq_enqueue_many(array_fill(to_jsonb(repeat('x', 8000)), array[1000]))"
        )
    seen = await shown(b)
    assert (seen["ready"], seen["estimated"]) == (8000, False)


async def test_the_views_cost_the_same_with_a_million_jobs(a: Connection, b: Connection) -> None:
    await fill(a, 1_000_000)
    await fill(a, 100_000, "priority => 3, run_at => now() + '1 day'")
    await fill(a, 100_000, "priority => 4, after => array[1]")
    await dequeue(a, 20000)
    assert await buffers(b, "pgq_queues") < 20000
    assert await buffers(b, "pgq_workers") < 40000
    assert await buffers(b, "pgq_health") < 10000
    assert await buffers(b, "pgq_locks") < 2000
    await b.execute("begin")
    await dequeue(b, 1)  # looked for among the first of each slot
    assert await buffers(a, "pgq_obstacles") < 40000
    await b.execute("rollback")


async def test_no_lock_on_a_slot_outlives_a_look(a: Connection) -> None:
    await enqueue(a, 10)
    await dequeue(a, 3)
    for isolation in ("read committed", "repeatable read", "serializable"):
        await a.execute(f"begin isolation level {isolation}")
        for view in VIEWS:
            await a.fetch(f"select * from {view}")
            assert await a.fetchval(SLOT_LOCKS) == 0, view
        await a.fetch("select * from pgq_jobs")
        assert await a.fetchval(SLOT_LOCKS) > 0
        await a.execute("commit")


async def test_the_views_wait_for_nobody(a: Connection, b: Connection) -> None:
    await enqueue(b, 10)
    await dequeue(b, 3)
    await b.execute("select pgq_enqueue('1', run_at => now() + '1 day')")
    before = await shown(b)
    assert not before["estimated"]
    for lock in (
        "select from pgq.job for update",
        "select from pgq.queue for update; select from pgq.archive for update",
        "lock table pgq.job in exclusive mode",
    ):
        await a.execute(f"begin; {lock}")
        for view in VIEWS:
            assert await within(b.fetch(f"select * from {view}")) or view in (
                "pgq_locks",
                "pgq_obstacles",
            )
        seen = await shown(b)
        assert {state: seen[state] for state in STATES} == {s: before[s] for s in STATES}
        assert not seen["estimated"]
        await a.execute("rollback")


async def test_a_slot_that_is_locked_against_readers_is_left_out(
    a: Connection, b: Connection
) -> None:
    await enqueue(b, 10)
    await dequeue(b, 3)
    await b.execute("select pgq_enqueue('1', run_at => now() + '1 day')")
    for slot, expected in ((0, (0, 1, 0)), (4, (7, 0, 3)), (1, (7, 1, 3))):
        await a.execute(f"begin; lock table pgq.job_{slot} in access exclusive mode")
        rows = {view: await within(b.fetch(f"select * from {view}")) for view in VIEWS}
        assert len(rows["pgq_workers"]) == (slot != 0)
        assert rows["pgq_health"]
        seen = await shown(b)
        assert (seen["ready"], seen["scheduled"], seen["active"]) == expected
        # A slot that holds no jobs is not looked at.
        assert seen["estimated"] == (slot != 1)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await b.fetch("select * from pgq_jobs")
        await a.execute("rollback")
    assert not (await shown(b))["estimated"]


async def test_workers_that_are_gone_are_told_from_those_that_work(dsn: Dsn, a: Connection) -> None:
    call = "select id from pgq_dequeue($1, $2::text::interval, worker => $3)"

    async def holders() -> list[tuple[Any, ...]]:
        rows = await a.fetch(
            "select worker, jobs, expired, pid, backend_gone from pgq_workers order by worker"
        )
        return [tuple(row) for row in rows]

    async def bob_has_none() -> bool:
        await maintain(a)
        return [row[0] for row in await holders()] == ["ann"]

    await enqueue(a, 10)
    async with sessions(dsn, 2) as (ann, bob):
        pids = [ann.get_server_pid(), bob.get_server_pid()]
        await ann.fetch(call, 2, "1 hour", "ann")
        await bob.fetch(call, 1, "1 ms", "bob")
        await until(bob_has_none)
        await bob.fetch(call, 3, "1 hour", "bob")
        assert await holders() == [("ann", 2, 0, pids[0], False), ("bob", 3, 0, pids[1], False)]
        await a.execute("select pg_terminate_backend($1, 5000)", pids[1])
        assert await holders() == [("ann", 2, 0, pids[0], False), ("bob", 3, 0, pids[1], True)]
    await a.execute("update pgq.job set lease_expires_at = now() where worker = 'bob'")
    assert (await holders())[1][1:3] == (3, 3)


async def test_health_shows_who_is_in_the_way(dsn: Dsn, a: Connection, b: Connection) -> None:
    async def rows(subject: str) -> list[asyncpg.Record]:
        return await b.fetch("select * from pgq_health where subject = $1", subject)

    await maintain(a)
    assert [row["status"] for row in await rows("maintenance")] == ["ok"]
    assert await rows("slot in use") == []
    pid = a.get_server_pid()
    await a.execute("begin")
    await enqueue(a, 1)
    (used,) = await rows("slot in use")
    assert (used["pid"], used["detail"], used["status"]) == (pid, "job_0: written to", "ok")
    assert "pgq_enqueue_many" in used["query"]
    assert pid in [row["pid"] for row in await rows("xmin held")]
    await a.execute("commit")
    assert await rows("slot in use") == []
    assert pid not in [row["pid"] for row in await rows("xmin held")]
    await a.execute("begin isolation level repeatable read")
    await a.fetch("select 1 from pgq_queues")
    (held,) = [row for row in await rows("xmin held") if row["pid"] == pid]
    assert "session" in held["detail"]
    assert held["age"].total_seconds() >= 0
    await a.execute("rollback")
    await a.execute("begin; lock table pgq.job_2 in access exclusive mode")
    assert "job_2: read, AccessExclusiveLock" in [r["detail"] for r in await rows("slot in use")]
    assert "locked" in next(r["detail"] for r in await rows("slot") if "job_2" in r["detail"])
    await a.execute("rollback")


async def test_health_warns_of_transactions_that_have_been_open_for_minutes(
    a: Connection, b: Connection, c: Connection
) -> None:
    async def warned(minutes: int) -> set[tuple[str, int | None]]:
        await c.execute(f"""
            create or replace function pgq._now() returns timestamptz language sql volatile as $$
            select pg_catalog.clock_timestamp() + pg_catalog.make_interval(mins => {minutes})
            $$
        """)
        rows = await c.fetch(
            "select subject, pid from pgq_health"
            " where status = 'warning' and (pid = $1 or detail ~ 'prepared')",
            a.get_server_pid(),
        )
        return {(row["subject"], row["pid"]) for row in rows}

    pid = a.get_server_pid()
    await a.execute("begin")
    await enqueue(a, 1)
    await b.execute("begin; create table late (); prepare transaction 'late'")
    try:
        assert await warned(0) == set()
        assert await warned(2) == {("slot in use", pid)}
        assert await warned(6) == {("slot in use", pid), ("xmin held", pid), ("xmin held", None)}
    finally:
        await b.execute("rollback prepared 'late'")
        await a.execute("rollback")


def test_health_warns_of_a_replication_slot_that_nobody_reads() -> None:
    query = """
        select status from pgq_health
         where subject = 'xmin held' and detail ~ 'replication slot "left"'
    """
    create = "select pg_create_logical_replication_slot('left', 'pgoutput')"
    with serve(wal_level="logical") as server:
        server.psql(create, database=TEMPLATE)
        assert server.psql(query, database=TEMPLATE) == "warning"


async def test_locks_shows_who_waits_for_whom(a: Connection, b: Connection, c: Connection) -> None:
    (job_id,) = await enqueue(a, 1)
    await b.execute("set lock_timeout = 0")
    assert await c.fetch("select * from pgq_locks") == []
    await a.execute("begin")
    await a.execute("select pgq_cancel($1)", job_id)
    async with started(b.fetchval("select pgq_cancel($1)", job_id)) as call:
        await waiting(c, b, call)
        (row,) = await c.fetch("select * from pgq_locks")
        assert (row["waiting_pid"], row["blocking_pid"]) == (
            b.get_server_pid(),
            a.get_server_pid(),
        )
        assert row["relation"] == "pgq.job_0"
        assert row["lock_type"] == "transactionid"
        assert "pgq_cancel" in row["waiting_query"]
        assert "pgq_cancel" in row["blocking_query"]
        assert row["blocking_state"] == "idle in transaction"
        await a.execute("commit")
        assert await within(call) is False

    async def none() -> bool:
        return await c.fetch("select * from pgq_locks") == []

    await until(none)


async def test_obstacles_shows_who_has_only_locked_a_job(a: Connection, b: Connection) -> None:
    (job_id,) = await enqueue(a, 1)
    await a.execute("select pgq_enqueue('1', after => array[$1::bigint])", job_id)
    query = "select cause, jobs, job_id, pid from pgq_obstacles where cause = 'transaction'"
    assert await a.fetch(query) == []
    await b.execute("begin")
    await b.execute("select pgq_enqueue('2', after => array[$1::bigint])", job_id)
    assert await a.fetch("select from pgq_dequeue(9)") == []
    (row,) = await a.fetch(query)
    assert tuple(row) == ("transaction", 1, job_id, b.get_server_pid())
    await b.execute("commit")
    assert await a.fetch(query) == []
    assert await a.fetchval("select id from pgq_dequeue(9)") == job_id


async def test_obstacles_costs_the_same_when_the_archive_has_grown(
    a: Connection, b: Connection
) -> None:
    (job_id,) = await enqueue(a, 1)
    await a.execute("select pgq_enqueue('1', after => array[$1::bigint])", job_id)
    for _ in range(3):
        assert len(await a.fetch("select * from pgq_obstacles")) == 0
    before = await buffers(a, "pgq_obstacles")
    await b.execute("""
        insert into pgq.archive (
            id, enqueued_at, finished_at, expires_at, bucket, priority, attempt, state, queue,
            payload
        )
        select n, now(), now(), now() + '1 day', 18, 0, 1, 'completed', 'default', '1'
          from generate_series(1000, 30000) n
    """)
    assert await buffers(a, "pgq_obstacles") < before + 50


async def test_health_shows_no_session_that_holds_up_nothing_here(
    dsn: Dsn, a: Connection, b: Connection
) -> None:
    async def held() -> list[int | None]:
        return [
            row["pid"]
            for row in await b.fetch("select pid from pgq_health where subject = 'xmin held'")
        ]

    async with sessions({**dsn, "database": "postgres"}, 1) as (other,):
        await other.execute("begin isolation level repeatable read; select 1")
        assert other.get_server_pid() not in await held()
        await other.execute("rollback; begin; select pg_current_xact_id()")
        assert other.get_server_pid() in await held()
    await a.execute("create table big as select generate_series(1, 10000) as n; delete from big")
    await a.execute("set vacuum_cost_delay = 100; set vacuum_cost_limit = 1")
    async with started(a.execute("vacuum big")) as cleaning:

        async def is_cleaning() -> bool:
            return bool(await b.fetchval("select count(*) from pg_stat_progress_vacuum"))

        await until(is_cleaning)
        snapshot = "select backend_xmin is not null from pg_stat_activity where pid = $1"
        assert await b.fetchval(snapshot, a.get_server_pid())
        assert a.get_server_pid() not in await held()
        await b.execute("select pg_cancel_backend($1)", a.get_server_pid())
        with pytest.raises(asyncpg.QueryCanceledError):
            await within(cleaning)


async def test_ends_from_before_a_clock_was_set_back_do_not_count(a: Connection) -> None:
    await enqueue(a, 1)
    await complete(a, await dequeue(a))
    count = "select completed_last_minute, completed_last_hour from pgq_queues"
    assert tuple(await a.fetchrow(count) or ()) == (1, 1)
    for slot in range(3):
        await a.execute(f"update pgq.stat_{slot} set at = at + interval '10 minutes'")
    assert tuple(await a.fetchrow(count) or ()) == (0, 0)
