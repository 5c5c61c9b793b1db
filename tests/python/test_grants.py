"""Privileges of real logins: what they can do with a queue, and that they get no further."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pgq
import pytest
import pytest_asyncio
from pgserver import Server

from .sessions import (
    Connection,
    Dsn,
    age_ring,
    files,
    maintain,
    sessions,
    started,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {"pgq__slot_size": "8192"}, "b": {}, "c": {}}
# The database's name makes those of the roles unique on the server.
ROLES = ("ann", "bob", "keeper")
JOBS_OF_B = """
    select array_agg(
               row(
                   j.id, j.pos, j.token, j.lease_expires_at, j.attempt, j.due, j.place, j.is_head
               )::text
               order by j.id, j.pos
           )
      from pgq.job j join pgq.queue q on q.id = pgq._queue_of(j.lane) where q.name = 'b'
"""


@pytest.fixture
def logins(server: Server, dsn: Dsn) -> Iterator[dict[str, Dsn]]:
    """Roles that own nothing, by their connection arguments."""
    names = {role: f"{role}_{dsn['database']}" for role in ROLES}
    for name in names.values():
        server.psql(f"create role {name} login password 'secret'")
    yield {role: {**dsn, "user": name, "password": "secret"} for role, name in names.items()}
    for name in names.values():
        server.psql(f"drop owned by {name}", database=dsn["database"])
        server.psql(f"drop role {name}")


@pytest_asyncio.fixture
async def ann(a: Connection, logins: dict[str, Dsn]) -> AsyncIterator[Connection]:
    """A session of a role that may do everything with queue a; there also is a queue b."""
    await a.execute("select pgq_create_queue('a'), pgq_create_queue('b')")
    await grant(a, "a", logins["ann"]["user"], "enqueue", "consume", "observe", "manage")
    async with sessions(logins["ann"], 1) as (session,):
        yield session


@pytest.fixture
def kept(server: Server, logins: dict[str, Dsn]) -> Iterator[Dsn]:
    """Connection arguments of the keeper, in a database that is the keeper's."""
    keeper = logins["keeper"]["user"]
    database = f"of_{keeper}"
    server.psql(f"create database {database} owner {keeper}")
    yield {**logins["keeper"], "database": database}
    server.psql(f"drop database {database} with (force)")


async def grant(connection: Connection, queue: str, role: str, *privileges: str) -> None:
    """Grant privileges on a queue."""
    await connection.execute("select pgq_grant($1, $2, $3)", queue, role, privileges)


async def code(connection: Connection, call: str, *arguments: Any) -> str:
    """Return the SQLSTATE with which a call fails, or ok."""
    try:
        await connection.fetch(f"select {call}", *arguments)
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    return "ok"


async def test_roles_that_own_nothing_produce_and_consume(
    a: Connection, logins: dict[str, Dsn]
) -> None:
    await grant(a, "default", logins["ann"]["user"], "enqueue")
    await grant(a, "default", logins["bob"]["user"], "consume")
    async with sessions(logins["ann"], 1) as (producer,), sessions(logins["bob"], 1) as (worker,):
        for payload in range(5):
            await producer.fetchval("select pgq_enqueue(to_jsonb($1::integer))", payload)
        jobs = await worker.fetch("select id, token from pgq_dequeue(5, '1 minute')")
        receipts = [(row["id"], row["token"]) for row in jobs]
        assert len(receipts) == 5
        assert (
            await worker.fetchval("select pgq_heartbeat($1::bigint, $2::bigint)", *receipts[0])
            is not None
        )
        assert (
            await worker.fetchval("select pgq_complete($1::bigint, $2::bigint)", *receipts[0])
            is True
        )
        assert (
            await worker.fetchval("select pgq_release($1::bigint, $2::bigint)", *receipts[1])
            is True
        )
        assert (
            await worker.fetchval("select pgq_fail($1::bigint, $2::bigint)", *receipts[2])
            == "scheduled"
        )
        done = await worker.fetch(
            "select pgq_complete($1::bigint[], $2::bigint[])",
            [receipts[3][0], receipts[4][0]],
            [receipts[3][1], receipts[4][1]],
        )
        assert len(done) == 2
        assert await code(producer, "pgq_pop()") == "42501"
        assert await code(worker, "pgq_enqueue('1')") == "42501"
        assert await code(worker, "count(*) from pgq_jobs") == "42501"


async def test_a_worker_needs_no_more_than_consume(
    pool: asyncpg.Pool[Any], logins: dict[str, Dsn]
) -> None:
    owner = pgq.Admin(pool)
    await owner.grant("default", logins["ann"]["user"], ["consume"])
    await owner.grant("default", logins["bob"]["user"], ["enqueue"])
    done: asyncio.Queue[int] = asyncio.Queue()
    async with (
        asyncpg.create_pool(**logins["ann"], min_size=0) as consuming,
        asyncpg.create_pool(**logins["bob"], min_size=0) as producing,
    ):
        worker = pgq.Worker(consuming)

        @worker.handler("default")
        async def handle(job: pgq.Job) -> None:
            if job.payload == 0 and job.attempt == 1:
                raise ValueError("once more")
            await done.put(job.payload)

        await owner.configure_queue("default", backoff_base=timedelta(0))
        run = asyncio.create_task(worker.run())
        for payload in range(3):
            await pgq.Queue(producing).enqueue(payload)
        assert {await within(done.get()) for _ in range(3)} == {0, 1, 2}
        worker.stop()
        await within(run)
        with pytest.raises(pgq.NotPermitted):
            await pgq.Queue(producing).pop()
        with pytest.raises(pgq.NotPermitted):
            await pgq.Queue(consuming, "hidden").pop()
        await owner.revoke("default", logins["bob"]["user"])
        with pytest.raises(pgq.NotPermitted):
            await pgq.Queue(producing).enqueue(3)


async def test_a_worker_finds_those_queues_of_a_prefix_that_it_may_observe(
    a: Connection, logins: dict[str, Dsn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq._worker.finder._FIND_SECONDS", 0.02)
    done: asyncio.Queue[str] = asyncio.Queue()
    role = logins["ann"]["user"]
    queues = ["mail.hidden", "mail.seen"]
    for queue in queues:
        await a.execute("select pgq_create_queue($1)", queue)
        await a.execute("select pgq_enqueue('1', $1)", queue)
    async with asyncpg.create_pool(**logins["ann"], min_size=0) as own:
        worker = pgq.Worker(own)

        @worker.handler(pgq.Prefix("mail."))
        async def handle(job: pgq.Job) -> None:
            await done.put(job.queue)

        await grant(a, "mail.seen", role, "consume")
        with pytest.raises(pgq.NotPermitted):
            await within(worker.run(handle_signals=False))
        await grant(a, "mail.seen", role, "observe")
        async with started(worker.run(handle_signals=False)) as run:
            assert await within(done.get()) == "mail.seen"
            await grant(a, "mail.hidden", role, "consume", "observe")
            assert await within(done.get()) == "mail.hidden"
            worker.stop()
            await within(run)


async def test_a_worker_waits_until_it_may_consume_again(
    a: Connection, ann: Connection, logins: dict[str, Dsn], caplog: pytest.LogCaptureFixture
) -> None:
    done: asyncio.Queue[int] = asyncio.Queue()
    role = logins["ann"]["user"]

    async def gone() -> bool:
        return "queue 'a' is gone" in caplog.text

    async with asyncpg.create_pool(**logins["ann"], min_size=0) as consuming:
        worker = pgq.Worker(consuming, poll_interval=timedelta(hours=1))

        @worker.handler("a")
        async def handle(job: pgq.Job) -> None:
            await done.put(job.payload)

        async with started(worker.run(handle_signals=False)) as run:
            for number in range(3):
                await a.execute("select pgq_enqueue(to_jsonb($1::integer), 'a')", number)
                assert await within(done.get()) == number
                caplog.clear()
                if number == 0:
                    # What was granted on a queue goes with it.
                    await a.execute("select pgq_drop_queue('a', true)")
                    await until(gone)
                    await a.execute("select pgq_create_queue('a')")
                    await grant(a, "a", role, "consume")
                elif number == 1:
                    await a.execute("select pgq_revoke('a', $1)", role)
                    await a.execute("select pgq_enqueue('9', 'a')")
                    await until(gone)
                    await grant(a, "a", role, "consume")
                    assert await within(done.get()) == 9
            worker.stop()
            await within(run)


async def test_a_worker_outlives_a_queue_that_is_dropped_before_it_listens(
    a: Connection,
    ann: Connection,
    logins: dict[str, Dsn],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_listen = asyncio.Event()
    done: asyncio.Queue[int] = asyncio.Queue()

    async def late(*_: object) -> None:
        await may_listen.wait()

    async def deaf() -> bool:
        return "cannot listen" in caplog.text

    monkeypatch.setattr("pgq._worker.listen.prove", late)
    async with asyncpg.create_pool(**logins["ann"], min_size=0) as consuming:
        worker = pgq.Worker(consuming)

        @worker.handler("a")
        async def handle(job: pgq.Job) -> None:
            await done.put(job.payload)

        async with started(worker.run(handle_signals=False)) as run:
            await a.execute("select pgq_enqueue('1', 'a')")
            assert await within(done.get()) == 1
            await a.execute("select pgq_drop_queue('a', true)")
            may_listen.set()
            await until(deaf)
            await a.execute("select pgq_create_queue('a')")
            await grant(a, "a", logins["ann"]["user"], "consume")
            await a.execute("select pgq_enqueue('2', 'a')")
            assert await within(done.get()) == 2
            worker.stop()
            await within(run)


async def test_maintenance_runs_in_the_calls_of_roles_that_own_nothing(
    a: Connection, ann: Connection, dsn: Dsn
) -> None:
    await a.execute(f"alter database {dsn['database']} set pgq.slot_size = 8192")
    before = await files(a)
    for _ in range(10):
        await ann.execute(
            "select pgq_enqueue_many(array(select to_jsonb(n) from generate_series(1, 200) n), 'a')"
        )
        await ann.execute("select pgq_pop(200, 'a')")
        await a.execute("select setval('pgq.next_tick', 1)")
        await age_ring(a)
        if await files(a) != before:
            return
    raise AssertionError("no slot was emptied")


async def test_a_worker_sleeps_and_is_woken(a: Connection, ann: Connection) -> None:
    woken = asyncio.Event()
    channel = await ann.fetchval("select pgq_channel('a')")

    def wake(*_: object) -> None:
        woken.set()

    await ann.add_listener(channel, wake)
    await until(lambda: sleeps(ann))
    await a.execute("select pgq_enqueue('1', 'a')")
    await within(woken.wait())
    await ann.execute("select pgq_wake()")
    assert await ann.fetchval("select count(*) from pgq_pop(9, 'a')") == 1


async def sleeps(connection: Connection) -> bool:
    """Ask whether the session may sleep for long."""
    seconds: float = await connection.fetchval(
        "select extract(epoch from pgq_wait('{a}', '30 seconds'))::float8"
    )
    return seconds > 5


@pytest.mark.parametrize("setting", ["noted", "decided", "ticking"])
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("ending", ["commit", "set constraints all immediate; commit"])
async def test_a_forged_note_changes_nothing_for_any_job(
    a: Connection, ann: Connection, setting: str, isolation: str, ending: str
) -> None:
    first = await a.fetchval("select pgq_enqueue('1', 'b')")
    await a.execute("select pgq_enqueue('2', 'b')")
    await a.execute("select pgq_enqueue('3', 'b', group_key => 'g')")
    await a.execute("select pgq_enqueue('4', 'b', group_key => 'g')")
    await a.execute("select pgq_enqueue('5', 'b', after => array[$1::bigint])", first)
    await a.execute("select pgq_dequeue(2, '1 hour', 'b')")
    before = await a.fetchval(JOBS_OF_B)
    for note in ("$", "$ ", "0", "-9223372036854775808", "x", ""):
        await ann.execute(f"begin isolation level {isolation}")
        first = await ann.fetchval("select pgq_enqueue('1', 'a', group_key => 'x')")
        xid = await ann.fetchval("select pg_current_xact_id()::text")
        forged = note.replace("$", xid)
        await ann.execute("select set_config($1, $2, true)", f"pgq.{setting}", forged)
        await ann.execute("select pgq_enqueue('1', 'a', group_key => 'x')")
        await ann.execute(ending)
        await maintain(a)
        assert await ann.fetch("select id from pgq_dequeue(9, '1 hour', 'a')") == [(first,)]
        await ann.execute("select pgq_cancel_all('a', force => true)")
    assert await a.fetchval(JOBS_OF_B) == before


async def test_what_a_transaction_has_noted_is_for_nobody_to_read(
    a: Connection, ann: Connection
) -> None:
    async with ann.transaction():
        job_id = await ann.fetchval("select pgq_enqueue('1', 'a', group_key => 'x')")
        noted = await ann.fetch(
            "select current_setting('pgq.' || s, true) from unnest($1::text[]) s",
            ["noted", "decided", "ticking"],
        )
        for table in ("hint", "note", *(f"note_{n}" for n in range(6))):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with ann.transaction():
                    await ann.fetch(f"select from pgq.{table}")
    group_id = await a.fetchval("select group_id from pgq.job where id = $1", job_id)
    assert not [value for (value,) in noted if str(group_id) in (value or "")]


async def test_a_job_after_a_hidden_one_does_not_wait_for_whoever_has_it_locked(
    a: Connection, ann: Connection
) -> None:
    hidden = await a.fetchval("select pgq_enqueue('1', 'b')")
    await a.execute("begin")
    assert await a.fetchval("select pgq_cancel($1)", hidden) is True
    job = await within(
        ann.fetchval("select pgq_enqueue('2', 'a', after => array[$1::bigint])", hidden)
    )
    assert await ann.fetchval("select state from pgq_jobs where id = $1", job) == "ready"
    await a.execute("commit")


async def test_a_job_after_a_hidden_one_that_is_being_retried_does_not_wait_for_it(
    a: Connection, ann: Connection, c: Connection
) -> None:
    hidden = await a.fetchval("select pgq_enqueue('1', 'b')")
    await a.execute("select pgq_cancel($1)", hidden)
    (place,) = await a.fetch("select tableoid::regclass::text from pgq.archive")
    await a.execute(f"begin; lock table {place[0]} in access exclusive mode")
    await a.execute("update pgq.archive set state = 'dead'; select pgq_retry(id) from pgq.archive")
    call = "select pgq_enqueue('2', 'a', after => array[$1::bigint])"
    async with started(ann.fetchval(call, hidden)) as adding:
        await waiting(c, ann, adding)
        await a.execute("commit")
        job = await within(adding)
    assert await ann.fetchval("select state from pgq_jobs where id = $1", job) == "ready"


async def test_an_old_snapshot_does_not_tell_hidden_jobs_from_unknown_ones(
    a: Connection, ann: Connection
) -> None:
    hidden = await a.fetchval("select pgq_enqueue('1', 'b', run_at => now() + interval '1 hour')")
    await a.execute("select pgq_enqueue_many(array_fill('1'::jsonb, array[200]), 'a')")
    await a.execute("select pgq_pop(200, 'a')")
    for call in ("pgq_claim($1)", "pgq_cancel($1)"):
        await ann.execute("begin isolation level repeatable read")
        await ann.execute("select count(*) from pg_class")
        before = await files(a)
        while await files(a) == before:
            await a.execute("select pgq_enqueue_many(array_fill('1'::jsonb, array[200]), 'a')")
            await a.execute("select pgq_pop(200, 'a')")
            await maintain(a)
        await ann.execute("savepoint start")
        answers: list[str] = []
        for job_id in (hidden, hidden + 1_000_000):
            answers.append(await code(ann, call, job_id))
            await ann.execute("rollback to start")
        assert answers == ["40001", "40001"]
        await ann.execute("rollback")


async def test_a_schedule_is_not_replaced_by_whoever_waits_for_its_name(
    a: Connection, b: Connection, ann: Connection
) -> None:
    await a.execute("begin")
    await a.execute("select pgq_schedule('mine', '@hourly', queue => 'b')")
    call = code(ann, "pgq_schedule('mine', '@daily', queue => 'a')")
    async with started(call) as task:
        await waiting(b, ann, task)
        await a.execute("commit")
        assert await within(task) == "42501"
    assert await a.fetchval("select cron from pgq.schedule") == "@hourly"


async def test_sixteen_sessions_grant_and_revoke_at_once(
    a: Connection, dsn: Dsn, logins: dict[str, Dsn]
) -> None:
    role = logins["ann"]["user"]
    await a.execute("select pgq_create_queue('q' || n) from generate_series(1, 16) n")

    async def work(session: Connection, number: int) -> None:
        for _ in range(2):
            await grant(session, f"q{number}", role, "enqueue")
            await session.execute("select pgq_revoke($1, $2)", f"q{number}", role)
        if number % 2:
            await grant(session, f"q{number}", role, "enqueue")

    async with sessions(dsn, 16) as granters:
        await asyncio.gather(*(work(s, n) for n, s in enumerate(granters, 1)))
    async with sessions(logins["ann"], 1) as (session,):
        answers = [await code(session, "pgq_enqueue('1', $1)", f"q{n}") for n in range(1, 17)]
    assert answers == ["ok", "42501"] * 8


async def test_a_revocation_that_waited_for_a_grant_leaves_it(
    a: Connection, b: Connection, c: Connection, ann: Connection, logins: dict[str, Dsn]
) -> None:
    role = logins["ann"]["user"]
    await a.execute("alter function pgq._run_errands set lock_timeout = 0")  # not only for 100 ms
    await a.execute("begin")
    await grant(a, "b", role, "enqueue")
    async with started(code(b, "pgq_revoke('a', $1)", role)) as task:
        await waiting(c, b, task)
        await a.execute("commit")
        assert await within(task) == "ok"
    assert await code(ann, "pgq_enqueue('1', 'b')") == "ok"
    assert await code(ann, "pgq_enqueue('1', 'a')") == "42501"


async def test_a_grant_beside_an_open_one_does_not_wait_for_its_end(
    a: Connection, b: Connection, ann: Connection, logins: dict[str, Dsn]
) -> None:
    role = logins["ann"]["user"]
    await a.execute("begin")
    await grant(a, "a", role, "manage")
    await within(grant(b, "b", role, "enqueue"))
    await a.execute("commit")
    await maintain(b)
    assert await code(ann, "pgq_enqueue('1', 'b')") == "ok"


async def test_a_revocation_with_an_old_snapshot_leaves_what_was_granted_since(
    a: Connection, b: Connection, ann: Connection, logins: dict[str, Dsn]
) -> None:
    role = logins["ann"]["user"]
    await a.execute("begin isolation level repeatable read")
    await a.execute("select from pg_class limit 1")
    await grant(b, "b", role, "enqueue")
    await a.execute("select pgq_revoke('a', $1)", role)
    await a.execute("commit")
    await maintain(b)
    assert await code(ann, "pgq_enqueue('1', 'b')") == "ok"
    assert await code(ann, "pgq_enqueue('1', 'a')") == "42501"


async def test_a_grant_that_is_rolled_back_gives_nothing(
    a: Connection, ann: Connection, logins: dict[str, Dsn]
) -> None:
    await a.execute("begin")
    await grant(a, "b", logins["ann"]["user"], "enqueue")
    assert await within(code(ann, "pgq_enqueue('1', 'b')")) == "42501"
    await a.execute("rollback")
    assert await code(ann, "pgq_enqueue('1', 'b')") == "42501"


async def test_a_revocation_counts_for_leases_that_are_held(
    a: Connection, ann: Connection, logins: dict[str, Dsn]
) -> None:
    await a.execute("select pgq_enqueue('1', 'a')")
    job = await ann.fetchrow("select id, token from pgq_dequeue(1, '1 hour', 'a')")
    assert job is not None
    await grant(a, "b", logins["ann"]["user"], "consume")
    await a.execute("select pgq_revoke('a', $1)", logins["ann"]["user"])
    assert (
        await ann.fetchval("select pgq_complete($1::bigint, $2::bigint)", job["id"], job["token"])
        is False
    )
    await grant(a, "a", logins["ann"]["user"], "consume")
    assert (
        await ann.fetchval("select pgq_complete($1::bigint, $2::bigint)", job["id"], job["token"])
        is True
    )


async def test_who_holds_no_lock_on_queues_is_not_held_up_by_a_refused_drop(
    a: Connection, ann: Connection
) -> None:
    await a.execute("begin")
    await a.execute("select pgq_enqueue('1', 'a')")
    assert await within(code(ann, "pgq_drop_queue('b')")) == "42501"
    await ann.execute("begin")
    assert await within(code(ann, "pgq_drop_queue('a')")) == "ok", "nor is the drop"
    await a.execute("commit")
    await ann.execute("rollback")


async def test_a_login_role_acts_as_the_roles_that_it_sets(
    a: Connection, ann: Connection, logins: dict[str, Dsn]
) -> None:
    ann_role, bob, door = (logins[role]["user"] for role in ROLES)
    await grant(a, "b", bob, "enqueue")
    await a.execute(f"alter role {door} noinherit; grant {ann_role}, {bob} to {door}")
    async with sessions(logins["keeper"], 1) as (session,):
        assert await code(session, "pgq_enqueue('1', 'a')") == "42501"
        await session.execute(f"set role {ann_role}")
        assert await code(session, "pgq_enqueue('1', 'a')") == "ok"
        assert await code(session, "pgq_enqueue('1', 'b')") == "42501"
        await session.execute(f"set role {bob}")
        assert await code(session, "pgq_enqueue('1', 'a')") == "42501"
        assert await code(session, "pgq_enqueue('1', 'b')") == "ok"
        await session.execute("reset role")
        assert await code(session, "pgq_enqueue('1', 'b')") == "42501"


async def test_the_owner_of_a_database_installs_and_grants(
    kept: Dsn, logins: dict[str, Dsn]
) -> None:
    worker = logins["ann"]["user"]
    async with sessions(kept, 1) as (owner,):
        await owner.execute("create extension pgq")
        await owner.execute("select pgq_create_queue('a')")
        await grant(owner, "a", worker, "enqueue", "consume", "manage")
        async with sessions({**logins["ann"], "database": kept["database"]}, 1) as (session,):
            assert await session.fetchval("select pgq_enqueue('1', 'a')") is not None
            assert await session.fetchval("select count(*) from pgq_pop(1, 'a')") == 1
            assert await code(session, "pgq_enqueue('1')") == "42501"
            assert await code(session, "pgq_revoke('a', $1)", kept["user"]) == "ok"
        await owner.execute("select pgq_enqueue('1', 'a')")
        await owner.execute("select pgq_revoke('a', $1)", worker)
        assert await owner.fetchval("select count(*) from pgq.privilege") == 0


async def test_health_of_sessions_that_the_owner_may_not_see_is_unknown(
    server: Server, dsn: Dsn, kept: Dsn
) -> None:
    async with (
        sessions(kept, 1) as (owner,),
        sessions({**dsn, "database": kept["database"]}, 1) as (other,),
    ):
        await owner.execute("create extension pgq")
        await other.execute("begin")
        await other.execute("select pgq_enqueue('1')")
        query = """
            select subject, status from pgq_health
             where subject = 'sessions' or pid = $1 order by subject
        """
        for status in ("unknown", "ok"):
            rows = await owner.fetch(query, other.get_server_pid())
            assert [tuple(row) for row in rows] == [
                ("sessions", status),
                ("slot in use", status),
                ("xmin held", status),
            ]
            server.psql(f"grant pg_read_all_stats to {kept['user']}")
        await other.execute("rollback")


async def test_who_has_listened_can_prepare_a_transaction(connection: Connection) -> None:
    await connection.execute("listen something")
    await connection.execute("begin; select pgq_enqueue('1'); prepare transaction 'job'")
    await connection.execute("commit prepared 'job'")
    assert await connection.fetchval("select count(*) from pgq_pop(9)") == 1
    await connection.execute("create table bait (n integer)")
    await connection.execute("""
        create function mean(integer) returns integer language plpgsql immutable as $$
        begin
            perform public.pgq_enqueue('1');
            return $1;
        end
        $$;
        create index on bait (mean(n))
    """)
    await connection.execute("insert into bait values (1)")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("reindex table bait")


CONTENTS = (
    "payload", "headers", "dedupe_key", "group_key", "worker", "last_error", "checkpoint", "result",
)  # fmt: skip
TEXTS = ("dedupe_key", "group_key", "worker", "last_error")
HASH_JOINS = "set enable_nestloop = off; set join_collapse_limit = 1; set enable_material = off"


@pytest_asyncio.fixture
async def crowd(a: Connection, ann: Connection) -> int:
    """Jobs of queue b, live and dead, each with a text everywhere, and the id of one of queue a."""
    for number in range(40):
        await a.execute(
            "select pgq_enqueue('\"x\"', 'b', dedupe_key => 'x' || $1, group_key => 'x' || $1,"
            " headers => '{\"x\": 1}')",
            str(number),
        )
    dead = await a.fetch("select id, token from pgq_dequeue(20, '1 h', 'b', 'x')")
    for job in dead:
        await a.execute("select pgq_heartbeat($1, $2, checkpoint => '\"x\"')", *job)
        await a.execute("select pgq_fail($1, $2, 'x', retryable => false)", *job)
    await a.fetch("select pgq_fail(id, token, 'x') from pgq_dequeue(10, '1 h', 'b', 'x')")
    await a.fetch("select id from pgq_dequeue(5, '1 h', 'b', 'x')")
    await a.execute("analyze")
    job_id: int = await ann.fetchval("select pgq_enqueue('1', 'a')")
    return job_id


async def test_no_condition_meets_jobs_of_other_queues(ann: Connection, crowd: int) -> None:
    notices: list[str] = []
    ann.add_log_listener(lambda _, message: notices.append(message.message))
    await ann.execute("""
        create function pg_temp.meet(queue text, payload jsonb, error text) returns boolean
        language plpgsql cost 0.0000001
        as $$ begin raise notice '%', queue; return true; end $$
    """)
    for settings in ("reset all", HASH_JOINS):
        await ann.execute(settings)
        for column in CONTENTS:
            await ann.fetch(f"select * from pgq_jobs where {column}::text::integer = 0")
        met = await ann.fetch(
            "select id from pgq_jobs where pg_temp.meet(queue, payload, last_error)"
        )
        assert [row["id"] for row in met] == [crowd]
    assert set(notices) == {"a"}


async def counts(connection: Connection, condition: str) -> list[tuple[str, float, float]]:
    """What EXPLAIN ANALYZE tells of the rows of tables."""
    (plan,) = json.loads(
        await connection.fetchval(
            "explain (analyze, costs off, timing off, summary off, buffers off, format json)"
            f" select * from pgq_jobs where {condition}"
        )
    )
    found: list[tuple[str, float, float]] = []

    def walk(node: dict[str, Any]) -> None:
        if "Relation Name" in node:
            removed = sum(value for key, value in node.items() if key.startswith("Rows Removed"))
            found.append((node["Relation Name"], node["Actual Rows"], removed))
        for child in node.get("Plans", []):
            walk(child)

    walk(plan["Plan"])
    return found


async def test_explain_does_not_tell_what_is_in_jobs_of_other_queues(
    ann: Connection, crowd: int
) -> None:
    for settings in ("reset all", HASH_JOINS):
        await ann.execute(settings)
        for column in TEXTS:
            told = [
                await counts(ann, f"queue = 'b' and {column} collate \"C\" >= '{value}'")
                for value in ("a", "x1", "y")
            ]
            assert any(rows for _, rows, _ in told[0])
            assert told[0] == told[1] == told[2], (column, settings)


async def test_a_job_after_one_of_a_queue_that_is_not_the_callers_locks_nothing_there(
    ann: Connection, a: Connection, b: Connection
) -> None:
    id_ = await a.fetchval("select pgq_enqueue('1', 'b')")
    after = "select pgq_enqueue('2', 'a', after => array[$1::bigint])"
    async with a.transaction():
        await a.fetchval(after, id_)
        assert await code(b, "pgq_claim($1)", id_) == "55P03"
    second = await a.fetchval("select pgq_enqueue('1', 'b')")
    async with ann.transaction():
        await ann.fetchval(after, second)
        assert await code(b, "pgq_claim($1)", second) == "ok"
