"""Huge values, settings and names of one tenant: the others do not notice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from pgserver import Server

from .sessions import Connection, Dsn, age_ring, files, sessions, stop_clock

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}}
# Values with 68 MB of text: of the longest numbers, 8 kB in memory, and 200 bytes when compressed.
NUMBERS = "(select jsonb_agg(1e131071) from generate_series(1, 520))"
LARGE = {
    "string": "to_jsonb(repeat('x', 67108865))",
    "numbers": NUMBERS,
    "compressed": "(select value from packed)",
}
PACKED = f"create temporary table packed as select {NUMBERS} as value"


@pytest.fixture
def tenants(server: Server, dsn: Dsn) -> Iterator[dict[str, Dsn]]:
    """Connection arguments of two roles, each with all rights on a queue of its name."""
    names = {queue: f"{queue}_{dsn['database']}" for queue in ("mean", "calm")}
    for queue, role in names.items():
        server.psql(
            f"create role {role} login password 'secret'; select pgq_create_queue('{queue}');"
            f"select pgq_grant('{queue}', '{role}', '{{enqueue,consume,observe,manage}}');"
            f"grant create on schema public to {role}",
            database=dsn["database"],
        )
    yield {queue: {**dsn, "user": role, "password": "secret"} for queue, role in names.items()}
    for role in names.values():
        server.psql(f"drop owned by {role} cascade", database=dsn["database"])
        server.psql(f"drop role {role}")


@pytest_asyncio.fixture
async def mean(tenants: dict[str, Dsn]) -> AsyncIterator[Connection]:
    """A session of the tenant that attacks."""
    async with sessions(tenants["mean"], 1) as (session,):
        yield session


@pytest_asyncio.fixture
async def calm(tenants: dict[str, Dsn]) -> AsyncIterator[Connection]:
    """A session of the tenant that must not notice."""
    async with sessions(tenants["calm"], 1) as (session,):
        yield session


async def refusal(session: Connection, call: str, *arguments: Any) -> str:
    """Return the SQLSTATE and message with which a call must fail."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await session.fetch(f"select from {call}", *arguments)
    return f"{caught.value.sqlstate} {caught.value.args[0]}"


@pytest.mark.parametrize(
    "call",
    [
        "pgq_dequeue(1, '1 minute', 'mean', {})",
        "pgq_dequeue(1, '1 minute', array['mean'], {})",
        "pgq_complete_and_dequeue('{{}}', '{{}}', 1, '1 minute', 'mean', {})",
        "pgq_claim($1, '1 minute', {})",
    ],
)
async def test_a_worker_has_200_characters(a: Connection, mean: Connection, call: str) -> None:
    """More than that is refused, so that nobody else's message grows; nothing is cut off."""
    job_id = await mean.fetchval("select pgq_enqueue('1', 'mean')")
    arguments = [job_id] if "$1" in call else []
    refused = await refusal(mean, call.format("repeat('x', 201)"), *arguments)
    assert refused == '22023 "worker" must have at most 200 characters, not 201'
    await mean.execute(call.format("repeat('🐢', 200)").join(["select ", ""]), *arguments)
    assert await a.fetchval("select worker from pgq.job") == "🐢" * 200


async def test_a_long_error_fails_its_job_and_is_shortened(mean: Connection) -> None:
    await mean.execute("select pgq_enqueue('1', 'mean', max_attempts => 1)")
    (job,) = await mean.fetch("select id, token from pgq_dequeue(1, '1 minute', 'mean')")
    error = "a" * 10_000 + "b" * 123_456 + "c" * 10_000
    await mean.execute("select pgq_fail($1, $2, $3)", job["id"], job["token"], error)
    (dead,) = await mean.fetch("select state, last_error from pgq_jobs")
    assert dead["state"] == "dead"
    assert dead["last_error"] == "a" * 10_000 + " [123456 characters] " + "c" * 10_000


@pytest.mark.constant
@pytest.mark.parametrize(
    ("call", "value"),
    [
        *(("pgq_enqueue({}, 'mean')", value) for value in LARGE.values()),
        *(
            (call, NUMBERS)
            for call in (
                "pgq_enqueue({}, 'mean', group_key => 'g')",
                "pgq_enqueue({}, 'mean', dedupe_key => 'k', on_duplicate => 'replace')",
                "pgq_enqueue_many(array['1', {}], 'mean')",
                "pgq_enqueue_many(array[{}], 'mean', dedupe_keys => '{{k}}')",
                "pgq_enqueue('1', 'mean', headers => jsonb_build_object('h', {}))",
                "pgq_schedule('s', '@hourly', {}, 'mean')",
                "pgq_schedule('s', '@hourly', '1', 'mean', headers => jsonb_build_object('h', {}))",
                "pgq_heartbeat($1, $2, checkpoint => {})",
                "pgq_complete($1, $2, {})",
                "pgq_complete(array[$1::bigint], array[$2::bigint], array[{}])",
            )
        ),
    ],
)
async def test_what_a_job_holds_has_64_mb_at_most(mean: Connection, call: str, value: str) -> None:
    await mean.execute(PACKED)
    await mean.execute("select pgq_enqueue('1', 'mean', dedupe_key => 'k', priority => 9)")
    (job,) = await mean.fetch("select id, token from pgq_dequeue(1, '1 minute', 'mean')")
    receipt = [job["id"], job["token"]] if "$1" in call else []
    refused = await refusal(mean, call.format(value), *receipt)
    assert refused.startswith("54000 ")
    assert refused.endswith(" is too large")
    left = await mean.fetch("select payload, checkpoint, result, headers from pgq_jobs")
    assert [tuple(row) for row in left] == [("1", None, None, None)]


async def test_headers_have_1_mb_at_most(mean: Connection) -> None:
    headers = "jsonb_build_object('h', repeat('x', {}))"
    refused = await refusal(mean, f"pgq_enqueue('1', 'mean', headers => {headers.format(1048577)})")
    assert refused == '54000 "headers" is too large'
    await mean.execute(f"select pgq_enqueue('1', 'mean', headers => {headers.format(1048000)})")


async def test_the_key_of_a_watched_row_has_64_mb_at_most(mean: Connection) -> None:
    await mean.execute("create table watched (key jsonb primary key)")
    await mean.execute("select pgq_watch('watched', 'mean')")
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        await mean.execute(f"insert into watched values ({LARGE['numbers']})")
    await mean.execute("drop table watched")


async def test_the_description_of_a_queue_has_10000_characters_at_most(mean: Connection) -> None:
    call = "pgq_configure_queue('mean', description => repeat('x', 10001))"
    refused = await refusal(mean, call)
    assert refused == '22023 "description" must have at most 10000 characters, not 10001'


@pytest.mark.constant
async def test_the_largest_payload_can_be_read_as_text(mean: Connection) -> None:
    """With characters that are written as six each, of which the text of a row doubles one."""
    await mean.execute("select pgq_enqueue(to_jsonb(repeat(E'\\x01', 11184000)), 'mean')")
    length = await mean.fetchval(
        "select octet_length(j::text) from pgq_dequeue(1, '1 s', 'mean') j"
    )
    assert 67_000_000 < length < 2**28


async def test_the_size_of_slots_is_not_a_tenants_to_set(
    a: Connection, mean: Connection, dsn: Dsn
) -> None:
    """Small slots turn all the time, which costs everybody plans and locks."""
    await mean.execute("set pgq.slot_size = 8192")
    turned = "select max(gen) from pgq.ring"
    before = await a.fetchval(turned)
    many = "select pgq_enqueue_many(array_fill('1'::jsonb, array[500]), 'mean')"
    await mean.execute(many)
    await tick_in(mean, a)
    assert await a.fetchval(turned) == before
    # What is set for one role counts as little; other settings of the database are none of this.
    role, of_database = await mean.fetchval("select current_user"), f"database {dsn['database']}"
    await a.execute(f"alter role {role} in {of_database} set pgq.slot_size = 8192")
    await a.execute(f"alter {of_database} set work_mem = '5MB'")
    await tick_in(mean, a)
    assert await a.fetchval(turned) == before
    await a.execute(f"alter {of_database} set pgq.slot_size = 8192")
    await tick_in(mean, a)
    assert await a.fetchval(turned) > before


async def tick_in(session: Connection, owner: Connection) -> None:
    """Let maintenance run at the commit of a call of this session."""
    await owner.execute("select setval('pgq.next_tick', 1), setval('pgq.last_tick', 1)")
    await session.execute("select pgq_heartbeat('{}'::bigint[], '{}')")
    assert await owner.fetchval("select last_value > 1 from pgq.last_tick")


@pytest_asyncio.fixture
async def posing(mean: Connection) -> Connection:
    """A session that calls itself pg_dump and has read what that reads, in an open transaction."""
    await mean.execute("set application_name = pg_dump; begin isolation level repeatable read")
    await mean.execute("select from pg_extension, pg_foreign_table")
    return mean


async def test_who_could_not_dump_the_jobs_is_not_waited_for_as_if_it_did(
    a: Connection, posing: Connection, calm: Connection, dsn: Dsn
) -> None:
    await a.execute(f"alter database {dsn['database']} set pgq.slot_size = 8192")
    before = await files(a)
    for _ in range(10):
        await calm.execute("select pgq_enqueue_many(array_fill('1'::jsonb, array[200]), 'calm')")
        await calm.execute("select pgq_pop(200, 'calm')")
        await age_ring(a)
        await tick_in(calm, a)
    assert await files(a) != before
    assert await a.fetch("select from pgq_health where subject = 'dump'") == []
    await posing.execute("rollback")


@pytest.mark.parametrize("right", ["select on pgq.job", "usage on schema pgq"])
async def test_who_has_half_of_what_a_dump_needs_is_not_waited_for(
    a: Connection, posing: Connection, right: str
) -> None:
    role = await posing.fetchval("select current_user")
    await a.execute(f"grant {right} to {role}")
    assert await a.fetchval("select pgq._is_dumped()") is False
    await posing.execute("rollback")
    await a.execute(f"revoke {right} from {role}")


@pytest.mark.parametrize("inherits", ["inherit", "noinherit"])
async def test_who_could_dump_the_jobs_is_waited_for_but_not_for_ever(
    a: Connection, posing: Connection, inherits: str
) -> None:
    role = await posing.fetchval("select current_user")
    assert await a.fetchval("select pgq._is_dumped()") is False
    await a.execute(f"alter role {role} {inherits}; grant pg_read_all_data to {role}")
    assert await a.fetchval("select pgq._is_dumped()") is True
    (row,) = await a.fetch("select * from pgq_health where subject = 'dump'")
    assert (row["status"], row["pid"]) == ("ok", posing.get_server_pid())
    assert row["detail"] == f'by "{role}": no slot is emptied until it ends, or for a day'
    assert await a.fetchval("select pgq._is_dumped(interval '0')") is False
    for hours, status in ((2, "warning"), (25, "warning")):
        await stop_clock(a, datetime.now(UTC) + timedelta(hours=hours))
        (row,) = await a.fetch("select * from pgq_health where subject = 'dump'")
        assert row["status"] == status
    assert row["detail"].endswith("for more than a day, it is not waited for any more")
    await posing.execute("rollback")


async def counts(session: Connection, query: str) -> list[tuple[str, int]]:
    """Return all numbers of rows that EXPLAIN ANALYZE tells of a query."""
    explain = "explain (analyze, costs off, timing off, summary off, buffers off, format json)"
    (plan,) = json.loads(await session.fetchval(f"{explain} {query}"))
    found: list[tuple[str, int]] = []

    def walk(node: dict[str, Any]) -> None:
        found.extend((key, value) for key, value in node.items() if "Rows" in key)
        for child in node.get("Plans", []):
            walk(child)

    walk(plan["Plan"])
    return found


# What is unlike for a value that another tenant has, and one that nobody has.
SECRETS: dict[str, dict[str, Any]] = {
    "pgq_queue_settings": {"name": "calm", "description": "secret", "max_attempts": 17},
    "pgq_schedules": {"name": "nightly", "queue": "calm", "cron": "1 2 3 4 5", "priority": 17},
    "pgq_privileges": {"queue": "calm", "role": "calm_{}"},
}


@pytest.mark.parametrize("view", SECRETS)
async def test_explain_does_not_tell_what_other_tenants_have_set(
    a: Connection, mean: Connection, calm: Connection, view: str, dsn: Dsn
) -> None:
    await calm.execute(
        "select pgq_configure_queue('calm', max_attempts => 17, description => 'secret'),"
        " pgq_schedule('nightly', '1 2 3 4 5', queue => 'calm', priority => 17)"
    )
    for settings in ("reset all", "set enable_seqscan = off", "set enable_hashjoin = off"):
        await mean.execute(settings)
        for column, secret in SECRETS[view].items():
            told = [
                await counts(mean, f"select from {view} where {column} = '{value}'")
                for value in (str(secret).format(dsn["database"]), "4711")
            ]
            assert told[0] == told[1], column


# How a job with the payload "bad" comes to be due for maintenance, and one that is good.
DUE = {
    "lease": """
        select pgq_enqueue('"bad"', 'mean', max_attempts => 1);
        select pgq_enqueue('"good"', 'mean', max_attempts => 1);
        select pgq_dequeue(2, '1 second', 'mean')
    """,
    "first lease": """
        select pgq_enqueue('"bad"', 'mean');
        select pgq_enqueue('"good"', 'mean');
        select pgq_dequeue(2, '1 second', 'mean')
    """,
    "start": """
        select pgq_enqueue('"bad"', 'mean', expires_at => pgq._now() + interval '1 second');
        select pgq_enqueue('"good"', 'mean', expires_at => pgq._now() + interval '1 second')
    """,
    "waiter": """
        begin isolation level repeatable read;
        select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1, '1 h', 'mean') d;
        commit
    """,
    "schedule": """
        select pgq_schedule('a', '* * * * *', '"bad"', 'mean');
        select pgq_schedule('b', '* * * * *', '"good"', 'mean')
    """,
    "group": """
        begin isolation level repeatable read;
        select pgq_enqueue('"bad"', 'mean', group_key => 'a');
        select pgq_enqueue('"good"', 'mean', group_key => 'b');
        commit
    """,
}
# Where each of them ends when all goes well.
ENDS = {
    "lease": "dead",
    "first lease": "ready",
    "start": "dead",
    "waiter": "dead",
    "schedule": "ready",
    "group": "ready",
}

STATES = "select state from pgq_jobs where payload = '\"{}\"' and state not in ('active')"


async def make_due(session: Connection, kind: str) -> str:
    """Leave two jobs to maintenance, and return the table into which it will write them."""
    if kind == "waiter":
        await session.execute("""
            select pgq_enqueue('0', 'mean', priority => 1);
            select pgq_enqueue(p, 'mean', after => array(select min(id) from pgq.job))
              from unnest('{"\\"bad\\"","\\"good\\""}'::jsonb[]) p
        """)
    await session.execute(DUE[kind])
    return "archive" if ENDS[kind] == "dead" else "job"


@pytest.mark.parametrize("kind", DUE)
async def test_a_job_with_which_maintenance_fails_is_skipped(
    a: Connection, calm: Connection, kind: str
) -> None:
    """In a tick that runs in the commit of somebody else, and does the rest."""
    now, table = await stop_clock(a), await make_due(a, kind)
    await a.execute(
        f"alter table pgq.{table} add constraint fit check (payload <> '\"bad\"') not valid"
    )
    health = "select * from pgq_health where subject = 'skipped'"
    for minutes in (2, 3, 13):
        await stop_clock(a, now + timedelta(minutes=minutes))
        before = await a.fetchval("select max(at) from pgq.skipped")
        await tick_in(calm, a)
        await tick_in(calm, a)  # a waiter whose job has died is noted in the first
        (row,) = await a.fetch(health)
        assert row["status"] == "warning"
        assert "fails in maintenance" in row["detail"]
        assert 'violates check constraint "fit"' in row["detail"]
        tried = await a.fetchval("select max(at) from pgq.skipped")
        assert (tried == before) is (minutes == 3)
        assert await a.fetchval(STATES.format("good")) == ENDS[kind]
    await a.execute(f"alter table pgq.{table} drop constraint fit")
    await stop_clock(a, now + timedelta(minutes=24))
    await tick_in(calm, a)
    assert await a.fetchval(STATES.format("bad")) == ENDS[kind]
    assert await a.fetch(health) == []


@pytest.mark.parametrize("kind", DUE)
async def test_a_job_that_meets_a_full_disk_is_tried_again_at_the_next_tick(
    a: Connection, calm: Connection, kind: str
) -> None:
    now, table = await stop_clock(a), await make_due(a, kind)
    await a.execute(f"""
        create function fill() returns trigger language plpgsql as $$
        begin raise 'no space left' using errcode = 'disk_full'; end $$;
        create trigger full_disk before insert or update on pgq.{table} for each row
            when (new.payload = '"bad"') execute function fill()
    """)
    await stop_clock(a, now + timedelta(minutes=2))
    await tick_in(calm, a)
    await tick_in(calm, a)
    assert await a.fetchval(STATES.format("good")) == ENDS[kind]
    assert await a.fetch("select from pgq.skipped") == []
    await a.execute(f"drop trigger full_disk on pgq.{table}")
    await tick_in(calm, a)
    assert await a.fetchval(STATES.format("bad")) == ENDS[kind]


async def test_jobs_that_cannot_be_reclaimed_do_not_keep_others_from_it(
    a: Connection, calm: Connection
) -> None:
    """By a tick or by pgq_reclaim, which returns each job once, however many fail."""
    now = await stop_clock(a)
    await a.execute("select pgq_enqueue(to_jsonb(n), 'mean') from generate_series(1, 60) n")
    await a.execute("select pgq_dequeue(60, '1 second', 'mean')")
    await a.execute("""
        alter function pgq._loss rename to _loss_first;
        create function pgq._loss(p_job pgq.job) returns text language plpgsql as $$
        begin
            if (p_job.payload #>> '{}')::integer % 3 = 0 then
                raise division_by_zero;
            end if;
            return pgq._loss_first(p_job);
        end $$
    """)
    await stop_clock(a, now + timedelta(minutes=2))
    assert await a.fetchval("select count(*) from pgq_reclaim('mean', 30)") == 20
    assert await a.fetchval("select count(*) from pgq.skipped where kind = 'job'") == 10
    await tick_in(calm, a)
    assert await a.fetchval("select count(*) from pgq_jobs where state = 'ready'") == 40
    assert await a.fetchval("select count(*) from pgq_health where subject = 'skipped'") == 20


async def test_a_look_for_jobs_that_fails_is_blamed_on_none_of_them(
    a: Connection, calm: Connection
) -> None:
    now, _ = await stop_clock(a), await make_due(a, "lease")
    await a.execute("""
        alter function pgq._skips rename to _skips_first;
        create function pgq._skips(text) returns text[] language plpgsql as $$
        begin
            raise division_by_zero;
        end $$
    """)
    await stop_clock(a, now + timedelta(minutes=2))
    with pytest.raises(asyncpg.DivisionByZeroError):
        await tick_in(calm, a)
    assert await a.fetch("select from pgq.skipped") == []


@pytest.mark.parametrize("is_parked", [False, True])
async def test_a_job_that_cannot_be_moved_does_not_keep_the_others_where_they_are(
    a: Connection, mean: Connection, is_parked: bool
) -> None:
    old, new = ("4", "5") if is_parked else ("0", "1")
    await mean.execute(
        "select pgq_enqueue(to_jsonb(n), 'mean', run_at => $1) from generate_series(1, 30) n",
        datetime.now(UTC) + timedelta(days=1) if is_parked else None,
    )
    await a.execute("alter table pgq.job add constraint fit check (payload <> '17') not valid")
    await a.execute(f"select pgq._move({old}::smallint, {new}::smallint, 1000)")
    left = await a.fetch(f"select id, payload from pgq.job where slot = {old}")
    assert [job["payload"] for job in left] == ["17"]
    assert await a.fetchval(f"select count(*) from pgq.job where slot = {new}") == 29
    (skipped,) = await a.fetch("select kind, key from pgq.skipped")
    assert tuple(skipped) == ("job", str(left[0]["id"]))
    assert await a.fetchval(f"select pgq._move({old}::smallint, {new}::smallint, 1000)") == 0


async def test_what_is_skipped_is_no_strangers_to_know(a: Connection, calm: Connection) -> None:
    told: list[object] = []
    calm.add_log_listener(lambda _, message: told.append(message))
    await a.execute(DUE["schedule"])
    await a.execute("alter table pgq.job add constraint fit check (payload <> '\"bad\"') not valid")
    await stop_clock(a, datetime.now(UTC) + timedelta(minutes=2))
    await calm.execute("set client_min_messages = debug1")
    await tick_in(calm, a)
    assert await a.fetchval("select count(*) from pgq.skipped") == 1
    assert [m for m in told if "skips" in str(m)] == []


async def test_the_worker_that_an_older_version_stored_does_not_grow_errors(
    a: Connection, calm: Connection
) -> None:
    await a.execute(DUE["lease"])
    await a.execute("update pgq.job set worker = repeat('x', 100000)")
    await stop_clock(a, datetime.now(UTC) + timedelta(minutes=2))
    await tick_in(calm, a)
    assert await a.fetchval("select max(length(last_error)) from pgq.archive") < 300


async def test_a_payload_that_an_older_version_stored_and_nobody_can_read_is_failed(
    a: Connection, mean: Connection
) -> None:
    """As docs/operations.md says: its text would have more than 1 GB."""
    first, second = [row[0] for row in await mean.fetch("select pgq_enqueue_many('{1,2}', 'mean')")]
    huge = "(select jsonb_agg(1e131071) from generate_series(1, 9000))"
    await a.execute(f"update pgq.job set payload = {huge} where id = $1", first)
    await mean.execute(
        "select pgq_fail(id, token, 'unreadable', retryable => false)"
        " from pgq_dequeue(1, queue => 'mean')"
    )
    assert await mean.fetchval("select state from pgq_jobs where id = $1", first) == "dead"
    assert await mean.fetchval("select id from pgq_dequeue(1, queue => 'mean')") == second
