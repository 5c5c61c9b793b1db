"""The caller's transaction: what it undoes, and that nobody waits for it however long it is."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from .sessions import (
    Connection,
    Dsn,
    complete,
    dequeue,
    enqueue,
    files,
    maintain,
    no_ticks,
    ring,
    sessions,
    settle_all,
    started,
    stop_clock,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

HURRY = {"lock_timeout": "500ms", "pgq__slot_size": "8192"}
POP = "select id from pgq_pop($1)"
# As in a restored database: tokens of claims may be lost.
LOSE = "select setval('pgq.home', 1), setval('pgq.next_tick', 1)"
# b stands for everybody else, who must not be made to wait.
SESSIONS = {"a": {"pgq__slot_size": "8192"}, "b": HURRY}


async def nobody_waits(connection: Connection, times: int = 3) -> None:
    """Use the queue in every way with a short lock_timeout, until slots were truncated often."""
    before = await files(connection)
    truncated = 0
    now: datetime = await connection.fetchval("select clock_timestamp()")
    for n in range(30):
        # A slot that was written a moment ago is not truncated.
        await stop_clock(connection, now + n * timedelta(seconds=3))
        ids = await enqueue(connection, 200)
        receipts = await dequeue(connection, 400)
        await connection.fetch(
            "select * from pgq_heartbeat($1::bigint[], $2::bigint[])",
            [job_id for job_id, _ in receipts],
            [token for _, token in receipts],
        )
        assert len(await complete(connection, receipts)) == len(receipts) >= len(ids)
        await maintain(connection)
        assert await connection.fetchval("select count(*) from pgq.job") >= 0
        after = await files(connection)
        truncated += len(after - before)
        before = after
        if truncated >= times:
            return
    raise AssertionError("the ring does not turn")


OPEN_AFTER = {
    "dequeue": "select * from pgq_dequeue(10, '1 hour')",
    "complete": "select pgq_complete(id, token) from pgq_dequeue(10, '1 hour')",
    "pop": "select * from pgq_pop(10)",
    "maintain": "select pgq_maintain()",
    "enqueue": "select pgq_enqueue('1')",
    "reclaim": "select pgq_reclaim()",
}


@pytest.mark.parametrize("protocol", ["simple", "extended"])
@pytest.mark.parametrize("call", OPEN_AFTER)
async def test_nobody_waits_for_a_transaction_left_open(
    a: Connection, b: Connection, call: str, protocol: str
) -> None:
    await enqueue(b, 500)
    await b.execute("select setval('pgq.next_tick', 1)")
    await a.execute("begin")
    if protocol == "simple":
        await a.execute(OPEN_AFTER[call])
    else:
        await a.fetch(OPEN_AFTER[call])
    await nobody_waits(b)
    await a.execute("commit")
    await settle_all(b)


async def test_an_open_transaction_hides_only_the_jobs_it_was_given(
    a: Connection, b: Connection
) -> None:
    ids = await enqueue(b, 500)
    await b.execute("select setval('pgq.next_tick', 1)")
    await a.execute("begin")
    given = [row["id"] for row in await a.fetch("select id from pgq_dequeue(10)")]
    assert await settle_all(b) == [i for i in ids if i not in given]


async def test_an_open_enqueue_hides_the_jobs_that_it_names_or_replaces(
    a: Connection, b: Connection
) -> None:
    ready, active, *others = await enqueue(b, 10)
    replaced = await b.fetchval("select pgq_enqueue('1', dedupe_key => 'k')")
    token = await b.fetchval("select token from pgq_claim($1)", active)
    await a.execute("begin")
    after = await a.fetchval("select pgq_enqueue('1', after => $1)", [ready, active])
    await a.execute("select pgq_enqueue('2', dedupe_key => 'k', on_duplicate => 'replace')")
    assert await settle_all(b) == others
    with pytest.raises(asyncpg.LockNotAvailableError, match="held"):
        await b.execute("select pgq_claim($1)", ready)
    with pytest.raises(asyncpg.LockNotAvailableError, match="lock timeout"):
        await b.execute("select pgq_complete($1::bigint, $2::bigint)", active, token)
    await a.execute("commit")
    assert await complete(b, [(active, token)]) == [active]
    assert await settle_all(b) == [ready, replaced, after]


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def stalled(dsn: Dsn, sql: str, extended: bool) -> socket.socket:
    """Send a query by hand and read nothing of its answer."""
    client = socket.socket(socket.AF_UNIX)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(f"{dsn['host']}/.s.PGSQL.{dsn['port']}")
    start = f"user\0{dsn['user']}\0database\0{dsn['database']}\0\0".encode()
    client.sendall(struct.pack("!ii", len(start) + 8, 196608) + start)
    answer = b""
    while not answer.endswith(b"Z\0\0\0\5I"):
        answer += client.recv(4096)
    text = sql.encode() + b"\0"
    if extended:
        client.sendall(
            message(b"P", b"\0" + text + b"\0\0")
            + message(b"B", b"\0\0\0\0\0\0\0\0")
            + message(b"E", b"\0\0\0\0\0")
            + message(b"S", b"")
        )
    else:
        client.sendall(message(b"Q", text))
    return client


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
async def test_nobody_waits_for_a_client_that_stopped_reading(
    dsn: Dsn, b: Connection, extended: bool
) -> None:
    await b.execute("select pgq_enqueue(to_jsonb(repeat('x', 20000))) from generate_series(1, 300)")
    await b.execute("select setval('pgq.next_tick', 1)")
    with stalled(dsn, "select * from pgq_dequeue(300, '1 hour')", extended):

        async def stuck() -> bool:
            found: bool = await b.fetchval(
                "select exists (select from pg_stat_activity where wait_event = 'ClientWrite'"
                " and datname = current_database())"
            )
            return found

        await until(stuck)
        await nobody_waits(b)


async def test_maintenance_runs_once_and_behind_all_deferred_triggers(
    a: Connection, b: Connection, dsn: Dsn
) -> None:
    await a.execute("""
        create table slow (x integer);
        create function wait_for_it() returns trigger language plpgsql as $$
        begin perform pg_advisory_xact_lock(77); return null; end $$;
        create constraint trigger slow after insert on slow deferrable initially deferred
            for each row execute function wait_for_it();
    """)
    await b.execute("select pg_advisory_lock(77)")
    await enqueue(b, 500)
    await settle_all(b)
    await maintain(b, 2)
    before = await ring(b)
    await a.execute("begin")
    for _ in range(1000):
        await a.execute("select pgq_maintain()")
    await a.execute("insert into slow values (1)")
    async with sessions(dsn, 1) as (observer,), started(a.execute("commit")) as task:
        await waiting(observer, a, task)
        assert not await observer.fetch(
            "select from pg_locks where mode = 'AccessExclusiveLock' and granted"
            " and relation is not null and pid = $1",
            a.get_server_pid(),
        )
        assert await observer.fetch("select from pgq.gate for update skip locked")
        await nobody_waits(b)
        between = await ring(b)
        await b.execute("select pg_advisory_unlock(77)")
        await within(task)
    assert before["gen"] <= between["gen"]
    assert (await ring(b))["gen"] - between["gen"] <= 1
    assert await b.fetchval("select count(*) from pgq.chore") <= 1


CONSTRAINTS = {
    "before": ["set constraints all immediate", "select pgq_maintain()"],
    "after": ["select pgq_maintain()", "set constraints all immediate"],
    "in a function": ["do $$ begin perform pgq_maintain(); set constraints all immediate; end $$"],
    "before, in a function": [
        "do $$ begin set constraints all immediate; perform pgq_maintain(); end $$"
    ],
    "by name": ["select pgq_maintain()", "set constraints pgq.chore_at_commit immediate"],
    "and deferred again": [
        "select pgq_maintain()",
        "set constraints all immediate",
        "set constraints all deferred",
        "select pgq_maintain()",
    ],
}


@pytest.mark.parametrize("order", CONSTRAINTS)
@pytest.mark.parametrize("protocol", ["simple", "extended"])
async def test_set_constraints_does_not_make_a_transaction_keep_locks_of_maintenance(
    a: Connection, b: Connection, order: str, protocol: str
) -> None:
    await enqueue(b, 500)
    await settle_all(b)
    await maintain(b)
    await a.execute("begin")
    for sql in CONSTRAINTS[order]:
        await (a.execute(sql) if protocol == "simple" else a.fetch(sql))
    assert await b.fetch("select from pgq.gate for update skip locked")
    await nobody_waits(b)
    await a.execute("commit")
    await nobody_waits(b)


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_a_queue_is_not_dropped_by_an_old_snapshot(
    a: Connection, b: Connection, level: Any
) -> None:
    await b.execute("select pgq_create_queue('other')")
    async with a.transaction(isolation=level):
        await a.execute("select 1")
        await b.execute("select pgq_enqueue('1', 'other')")
        with pytest.raises(asyncpg.ActiveSQLTransactionError):
            async with a.transaction():
                await a.execute("select pgq_drop_queue('other', true)")
    assert len(await b.fetch("select * from pgq_dequeue(1, '1 s', 'other')")) == 1


@pytest.mark.parametrize("call", ["pgq_release({})", "pgq_fail({}, retry_in => '0')"])
async def test_a_forced_drop_leaves_no_row_of_a_job_that_was_being_given_back(
    a: Connection, b: Connection, call: str
) -> None:
    await b.execute("select pgq_create_queue('other')")
    await b.execute("select pgq_enqueue('1', 'other')")
    (job,) = await b.fetch("select id, token from pgq_dequeue(1, '1 h', 'other')")
    await a.execute("begin")
    await a.fetchval(f"select {call.format('$1, $2')}", job["id"], job["token"])
    await within(b.execute("select pgq_drop_queue('other', true)"))
    await a.execute("commit")
    await maintain(b, 2)
    assert await b.fetchval("select count(*) from pgq.job") == 0


async def test_a_job_that_a_forced_drop_could_not_lock_is_neither_moved_nor_claimed(
    a: Connection, b: Connection
) -> None:
    await b.execute("select pgq_create_queue('other')")
    job_id = await b.fetchval("select pgq_enqueue('1', 'other')")
    await a.execute(f"begin; select from pgq_claim({job_id})")
    await within(b.execute("select pgq_drop_queue('other', true)"))
    assert await b.fetchval("select pgq_move($1, priority => 5)", job_id) is False
    await a.execute("rollback")
    with pytest.raises(asyncpg.NoDataFoundError, match=f"no live job {job_id}"):
        await b.fetch("select * from pgq_claim($1)", job_id)
    assert await b.fetchval("select pgq_move($1, 'default')", job_id) is False


@pytest.mark.parametrize("held", ["p", "q"])
@pytest.mark.parametrize("late", ["leases", "starts", "leases, in a call"])
async def test_many_jobs_that_stay_locked_do_not_stand_before_those_of_another_queue(
    a: Connection, b: Connection, late: str, held: str
) -> None:
    now = await b.fetchval("select clock_timestamp()")
    await no_ticks(b, now)
    for queue in "pq":
        await b.execute("select pgq_create_queue($1)", queue)
        await b.execute(
            "select pgq_enqueue_many(array_fill(jsonb '1', '{999}'), $1, expires_at => $2)",
            queue,
            now + timedelta(seconds=1) if late == "starts" else None,
        )
        if late != "starts":
            await b.execute("select pgq_dequeue(1000, '1 s', $1)", queue)
    await a.execute("begin")
    await a.execute(f"select pgq_dequeue(1000, '1 h', '{held}')")
    await a.execute(f"""
        select pgq_complete(j.id, j.token)
          from pgq.job j join pgq.lane l on l.id = j.lane where l.queue = '{held}'
    """)
    await stop_clock(b, now + timedelta(seconds=2))
    if late == "leases, in a call":
        assert len(await b.fetch("select pgq_reclaim()")) == 999
        return
    await maintain(b, 20)
    done = "select count(*) from pgq_jobs where queue <> $1 and state = $2"
    assert await b.fetchval(done, held, "dead" if late == "starts" else "ready") == 999


async def test_enqueue_complete_fail_and_pop_are_undone_by_rollback(
    a: Connection, b: Connection
) -> None:
    ids = await enqueue(b, 4)
    receipts = await dequeue(b, 3)
    await a.execute("begin")
    await enqueue(a, 5)
    assert await complete(a, receipts[:1]) == ids[:1]
    await a.fetchval("select pgq_fail($1, $2)", *receipts[1])
    await a.fetchval("select pgq_release($1, $2)", *receipts[2])
    assert [row[0] for row in await a.fetch(POP, 10)][-1] > ids[3]
    await a.execute("rollback")
    assert await settle_all(b) == ids[3:]
    assert await complete(b, receipts) == ids[:3]


async def test_a_savepoint_undoes_a_pop(a: Connection, b: Connection) -> None:
    ids = await enqueue(b, 2)
    async with a.transaction():
        savepoint = a.transaction()
        await savepoint.start()
        assert len(await a.fetch(POP, 2)) == 2
        assert await dequeue(b) == []
        await savepoint.rollback()
        assert await settle_all(b) == ids


async def test_a_popped_job_is_back_at_once_on_rollback_and_gone_on_commit(
    a: Connection, b: Connection
) -> None:
    (job_id,) = await enqueue(b, 1)
    await a.execute("begin")
    assert await a.fetchval(POP, 1) == job_id
    assert await dequeue(b) == []
    await a.execute("rollback")
    await a.execute("begin")
    assert await a.fetchval(POP, 1) == job_id
    await a.execute("rollback")
    assert await b.fetchval("select attempt from pgq_dequeue(1, '1 ms')") == 1


async def test_a_popped_job_is_back_when_the_backend_is_terminated(
    a: Connection, b: Connection
) -> None:
    (job_id,) = await enqueue(b, 1)
    await a.execute("begin")
    assert await a.fetchval(POP, 1) == job_id
    await b.fetchval("select pg_terminate_backend($1)", a.get_server_pid())

    async def came() -> bool:
        return [i for i, _ in await dequeue(b)] == [job_id]

    await until(came)


async def test_a_popped_job_is_back_when_its_client_is_killed(dsn: Dsn, b: Connection) -> None:
    (job_id,) = await enqueue(b, 1)
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import asyncio, asyncpg, json, sys\n"
        "async def main():\n"
        "    c = await asyncpg.connect(**json.loads(sys.argv[1]))\n"
        "    await c.execute('begin')\n"
        "    print(await c.fetchval('select id from pgq_pop()'), flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())",
        json.dumps(dsn),
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert int(await within(client.stdout.readline())) == job_id
    assert await dequeue(b) == []
    client.send_signal(signal.SIGKILL)
    await client.wait()

    async def came() -> bool:
        return [i for i, _ in await dequeue(b)] == [job_id]

    await until(came)


async def test_pop_survives_prepare_transaction(dsn: Dsn) -> None:
    async with sessions(dsn, 2, **HURRY) as (a, b):
        first, second = await enqueue(b, 2)
        for job_id, end in ((first, "rollback"), (first, "commit"), (second, "commit")):
            await b.execute("select setval('pgq.next_tick', 1)")
            await a.execute("begin")
            assert await a.fetchval(POP, 1) == job_id
            await a.execute("prepare transaction 'pop'")
            try:
                await b.execute("begin")
                assert [i for i, _ in await dequeue(b, 10)] == [second] * (job_id == first)
                await b.execute("rollback")
                with pytest.raises(asyncpg.LockNotAvailableError):
                    await b.execute("select pgq_claim($1)", job_id)
                await maintain(b, 3)
            finally:
                await a.execute(f"{end} prepared 'pop'")
        assert await settle_all(b) == []


async def test_a_session_that_has_listened_can_prepare(dsn: Dsn) -> None:
    async with sessions(dsn, 2, **HURRY) as (a, b):
        (job_id,) = await enqueue(b, 1)
        await a.execute("listen something")
        await a.execute("begin")
        assert await a.fetchval(POP, 1) == job_id
        await a.execute("prepare transaction 'listener'")
        await a.execute("commit prepared 'listener'")
        assert await settle_all(b) == []


@pytest.mark.parametrize("call", ["dequeue", "complete", "enqueue", "maintain"])
async def test_a_prepared_transaction_does_not_stop_the_queue(dsn: Dsn, call: str) -> None:
    async with sessions(dsn, 2, **HURRY) as (a, b):
        await enqueue(b, 20)
        await b.execute("select setval('pgq.next_tick', 1)")
        await a.execute("begin")
        await a.execute(OPEN_AFTER[call])
        await a.execute("prepare transaction 'other'")
        try:
            await nobody_waits(b)
        finally:
            await a.execute("commit prepared 'other'")
        await settle_all(b)


async def test_prepared_transactions_turn_their_groups_when_they_commit(dsn: Dsn) -> None:
    put = "select pgq_enqueue('1', group_key => 'g')"
    async with sessions(dsn, 2, **HURRY) as (a, b):
        await a.execute("begin")
        first, second = await a.fetchval(put), await a.fetchval(put)
        await a.execute("prepare transaction 'group'")
        third = await b.fetchval(put)
        assert [i for i, _ in await dequeue(b, 10)] == [third]
        await b.execute("commit prepared 'group'")
        await maintain(b)
        assert await dequeue(b, 10) == []
        await a.execute("begin")
        await a.execute("select pgq_complete(id, token) from pgq_jobs where id = $1", third)
        await a.execute("prepare /* it */ transaction $$group$$")
        await maintain(b)
        assert await dequeue(b, 10) == []
        await b.execute("commit prepared 'group'")
        await maintain(b)
        assert await settle_all(b) == [first, second]


async def test_no_time_zone_or_date_style_makes_a_database_another_one(dsn: Dsn) -> None:
    homes = set[int]()
    for zone, style in (("UTC", "ISO"), ("Asia/Tokyo", "German"), ("America/Lima", "SQL")):
        async with sessions(dsn, 1, TimeZone=zone, DateStyle=style) as (session,):
            homes.add(await session.fetchval("select pgq._home()"))
    assert len(homes) == 1


async def test_a_claim_that_skips_tokens_waits_for_no_open_transaction(
    a: Connection, b: Connection
) -> None:
    await enqueue(a, 2)
    await a.execute(LOSE)
    async with b.transaction():
        ((_, token),) = await dequeue(b)
        await a.execute(LOSE)
        ((_, later),) = await within(dequeue(a))
    assert later >> 20 > (token >> 20) + 16_000_000


async def test_lost_tokens_are_skipped_once_by_all_who_find_them_lost(dsn: Dsn) -> None:
    async with sessions(dsn, 3) as (a, b, c):
        await enqueue(c, 2)
        # Stops when it has skipped them, and before it says so.
        await c.execute(f"""
            {LOSE};
            alter function pgq._home() rename to _asked;
            create function pgq._home() returns bigint
            language plpgsql set search_path = pg_catalog, pg_temp as $$
            begin
                perform pg_advisory_lock(7), pg_advisory_unlock(7)
                  where current_setting('application_name') = 'stops'
                    and pg_sequence_last_value('pgq.token') >= 1 << 24;
                return pgq._asked();
            end $$;
            select pg_advisory_lock(7);
        """)
        await a.execute("set application_name = 'stops'")
        async with started(dequeue(a)) as first:
            await waiting(c, a, first)
            async with started(dequeue(b)) as second:
                await waiting(c, b, second)
                await c.execute("select pg_advisory_unlock(7)")
                tokens = [(await within(claim))[0][1] >> 20 for claim in (first, second)]
    # From 0 to 32 million. Who skips them again draws one above 64 million.
    assert sorted(tokens) == [(2 << 24) + 1, (2 << 24) + 2]


@pytest.mark.parametrize(
    ("wanted", "becomes"), [("off", "local"), ("on", "on"), ("remote_apply", "remote_apply")]
)
async def test_a_claim_that_skips_tokens_is_no_less_durable_than_its_caller_wants(
    a: Connection, wanted: str, becomes: str
) -> None:
    await enqueue(a, 1)
    await a.execute(LOSE)
    async with a.transaction():
        await a.execute(f"set local synchronous_commit = {wanted}")
        assert len(await dequeue(a)) == 1
        assert await a.fetchval("show synchronous_commit") == becomes


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
async def test_lost_tokens_are_skipped_only_once(dsn: Dsn, level: str) -> None:
    async with sessions(dsn, 1, default_transaction_isolation=level) as (a,):
        await enqueue(a, 5)
        numbers = [(await dequeue(a))[0][1] >> 20 for _ in range(5)]
        assert numbers == list(range(numbers[0], numbers[0] + 5))
