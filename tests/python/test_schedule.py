"""Schedules under concurrency: each time gives one job, whoever commits, fails or restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta

import asyncpg
import bootstrap
import pytest
from pgserver import Mode, Server

from .sessions import (
    Connection,
    Dsn,
    connect,
    dequeue,
    maintain,
    sessions,
    started,
    stop_clock,
    until,
    waiting,
    within,
)

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
TIMES = """
    select (headers ->> 'pgq_scheduled_at')::timestamptz from pgq.job
     where headers ->> 'pgq_schedule' = $1 order by id
"""


async def times(connection: Connection, name: str = "s") -> list[datetime]:
    """Return the times of the jobs that a schedule has added."""
    return [row[0] for row in await connection.fetch(TIMES, name)]


async def make_due(connection: Connection, minutes: int = 0, name: str = "s") -> datetime:
    """Let a schedule of every minute be due since some minutes, and return since when."""
    due: datetime = await connection.fetchval(
        "update pgq.schedule set next_at = date_trunc('minute', pgq._now())"
        " - $1 * interval '1 minute' where name = $2 returning next_at",
        minutes,
        name,
    )
    return due


async def test_many_who_tick_at_the_same_time_add_one_job(dsn: Dsn, a: Connection) -> None:
    await a.execute("select pgq_schedule('s', '* * * * *', missed => 'all')")
    expected = {await make_due(a, 30) + timedelta(minutes=n) for n in range(31)}

    async def tick(ticker: Connection) -> None:
        while len(await times(ticker)) < 31:
            await maintain(ticker)

    async with sessions(dsn, 5) as tickers:
        await within(asyncio.gather(*(tick(t) for t in tickers)))
        await asyncio.gather(*(maintain(t, 5) for t in tickers))
    found = await times(a)
    # The minute may have turned meanwhile.
    assert found == sorted(set(found))
    assert expected <= set(found)
    assert len(found) - 31 <= 1


async def test_a_tick_that_is_rolled_back_loses_no_job(a: Connection, b: Connection) -> None:
    await stop_clock(a)
    await a.execute("select pgq_schedule('s', '* * * * *', missed => 'skip')")
    due = await make_due(a)
    # The trigger comes after the tick, in the same transaction.
    await a.execute("begin; set constraints all immediate")
    await a.execute("select pgq._tick()")
    assert await times(a) == [due]
    await within(maintain(b))
    assert await times(b) == []
    await a.execute("rollback")
    await maintain(b)
    assert await times(b) == [due]


async def test_a_tick_whose_backend_ends_loses_no_job(
    a: Connection, b: Connection, c: Connection
) -> None:
    await a.execute("select pgq_schedule('s', '* * * * *')")
    due = await make_due(a)
    await c.execute("begin")
    await c.execute("select pgq._tick()")
    await a.execute("select pg_terminate_backend($1, 10000)", c.get_server_pid())
    await maintain(b)
    assert await times(b) == [due]


async def test_a_schedule_that_somebody_changes_does_not_hold_up_the_others(
    a: Connection, b: Connection
) -> None:
    await a.execute("select pgq_schedule('s', '* * * * *'), pgq_schedule('t', '* * * * *')")
    due = [await make_due(a, name=name) for name in "st"]
    await a.execute("begin")
    await a.execute("select pgq_schedule('s', '* * * * *', '\"new\"')")
    await within(maintain(b))
    assert (await times(b), await times(b, "t")) == ([], due[1:])
    await a.execute("commit")
    await maintain(b)
    assert await times(b) == due[:1]
    await a.execute("begin; select pgq_unschedule('t')")
    await make_due(b)
    await within(maintain(b))
    assert len(await times(b)) == 2
    await a.execute("rollback")
    assert await a.fetchval("select count(*) from pgq.schedule") == 2


async def test_two_who_make_the_same_schedule_make_one(
    a: Connection, b: Connection, c: Connection
) -> None:
    await a.execute("begin; select pgq_schedule('s', '0 * * * *', '1')")
    call = b.execute("select pgq_schedule('s', '30 * * * *', '2')")
    async with started(call) as second:
        await waiting(c, b, second)
        await a.execute("commit")
        await within(second)
    rows = await a.fetch("select cron, payload from pgq.schedule")
    assert [(row["cron"], row["payload"]) for row in rows] == [("30 * * * *", "2")]


async def test_ordinary_calls_fire_what_is_due(a: Connection) -> None:
    await a.execute("select pgq_schedule('s', '* * * * *')")
    due = await make_due(a)

    async def fired() -> bool:
        return bool(await dequeue(a) or await times(a))

    await until(fired)
    assert await times(a) == [due]


async def test_no_schedule_fails_the_commit_of_a_stranger(a: Connection, b: Connection) -> None:
    await a.execute("select pgq_schedule('s', '* * * * *', timezone => 'Europe/Berlin')")
    await a.execute("update pgq.schedule set timezone = 'US/Gone'")
    await make_due(a, 5)
    await b.execute("select pgq_maintain(); select pgq_enqueue('1')")
    assert await a.fetchval("select paused from pgq.schedule")
    assert len(await dequeue(b)) == 1
    assert await a.fetchval("select pgq_pause_schedule('s')")
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await a.execute("select pgq_resume_schedule('s')")
    assert await a.fetchval("select pgq_schedule('s', '* * * * *') > now()")
    assert await a.fetchval("select pgq_resume_schedule('s')")


async def test_a_paused_schedule_that_is_replaced_has_not_missed_anything(a: Connection) -> None:
    await a.execute("select pgq_schedule('s', '* * * * *'), pgq_pause_schedule('s')")
    await make_due(a, 5)
    assert await a.fetchval("select pgq_schedule('s', '* * * * *', '{}') > now()")


@pytest.mark.constant
async def test_headers_that_no_job_could_have_are_refused(a: Connection) -> None:
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        await a.execute("""
            select pgq_schedule(
                's', '* * * * *', headers => jsonb_build_object('x', repeat('a', 268435435))
            )
        """)


MODES: tuple[Mode, ...] = ("fast", "kill")
BEGIN = """
    create extension pgq;
    select pgq_schedule('s', '0 0 * * *', missed => 'all');
    update pgq.schedule set next_at = next_at - interval '3 days';
"""
AGES = """
    select (date_trunc('day', now() at time zone 'UTC')
            - (headers ->> 'pgq_scheduled_at')::timestamptz at time zone 'UTC') / 24
      from pgq.job order by id
"""


@pytest.mark.parametrize("mode", MODES)
async def test_a_restart_neither_loses_a_job_nor_adds_one_twice(mode: Mode) -> None:
    version = os.environ.get("PGQ_TEST_VERSION")
    with Server(int(version) if version else None, {"fsync": "off"}) as server:
        server.psql(BEGIN)
        for _ in range(2):
            server.psql("select pgq_maintain()")
            server.restart(mode)
        for _ in range(5):
            server.psql("select pgq_maintain()")
        assert server.psql(AGES).split() == ["02:00:00", "01:00:00", "00:00:00"]


async def test_the_first_time_is_returned_as_a_moment(a: Connection) -> None:
    first: datetime = await a.fetchval(
        "select pgq_schedule('s', '0 12 1 1 *', timezone => 'Asia/Tokyo')"
    )
    assert (first.month, first.day, first.hour, first.tzinfo) == (1, 1, 3, UTC)


# pg_cron


@contextlib.contextmanager
def cron_server() -> Generator[Server]:
    """Run a server that has pg_cron in its database."""
    settings = {
        "fsync": "off",
        "shared_preload_libraries": "pg_cron",
        "cron.database_name": Server.database,
        "cron.use_background_workers": "on",
    }
    with Server(bootstrap.plpgsql_check_major(), settings, ["pg_cron"]) as server:
        server.psql("create extension pg_cron")
        yield server


@pytest.fixture(scope="module")
def with_pg_cron() -> Iterator[Server]:
    """A server that runs pg_cron and pgq."""
    with cron_server() as server:
        server.psql("create extension pgq")
        yield server


JOBS = "select jobname || '|' || schedule || '|' || command from cron.job order by 1"
PGQ_JOB = "pgq|* * * * *|insert into pgq.chore default values"


async def test_pg_cron_ticks_while_there_are_schedules(with_pg_cron: Server) -> None:
    def run(sql: str) -> list[str]:
        return with_pg_cron.psql(sql).splitlines()

    with_pg_cron.psql("select cron.schedule('other', '0 0 * * *', 'select 1')")
    with_pg_cron.psql("select pgq_schedule('s', '0 9 * * *'), pgq_schedule('s', '0 8 * * *')")
    assert run(JOBS)[1:] == [PGQ_JOB]
    with_pg_cron.psql("select pgq_schedule('t', '0 8 * * *')")
    assert run(JOBS)[1:] == [PGQ_JOB]
    with_pg_cron.psql("select pgq_unschedule('s')")
    assert run(JOBS)[1:] == [PGQ_JOB]
    with_pg_cron.psql("select pgq_pause_schedule('t')")
    assert run(JOBS) == ["other|0 0 * * *|select 1"]
    with_pg_cron.psql("select pgq_resume_schedule('t')")
    assert run(JOBS)[1:] == [PGQ_JOB]
    with_pg_cron.psql("begin; select pgq_unschedule('t'); rollback")
    assert run(JOBS)[1:] == [PGQ_JOB]
    with_pg_cron.psql("select pgq_unschedule('t')")
    assert run(JOBS) == ["other|0 0 * * *|select 1"]
    with_pg_cron.psql("select pgq_create_queue('q'), pgq_schedule('t', '0 8 * * *', queue => 'q')")
    assert run(JOBS)[1:] == [PGQ_JOB]
    with_pg_cron.psql("select pgq_drop_queue('q')")
    assert run(JOBS) == ["other|0 0 * * *|select 1"]


async def test_what_pg_cron_runs_fires_schedules(with_pg_cron: Server) -> None:
    connection = await connect(
        {
            "host": with_pg_cron.host,
            "port": with_pg_cron.port,
            "user": with_pg_cron.user,
            "password": with_pg_cron.password,
            "database": with_pg_cron.database,
        }
    )
    try:
        # In one transaction, and rarely due: pg_cron itself, each minute, must find nothing to do.
        async with connection.transaction():
            await connection.execute("select pgq_schedule('s', '0 0 29 2 *')")
            due = await make_due(connection)
            command = await connection.fetchval(
                "select command from cron.job where jobname = 'pgq'"
            )
            await connection.execute(command)

        async def fired() -> list[datetime]:
            if not (of_schedule := await times(connection)):
                # A tick of pg_cron was under way, and this one left the work to it.
                await connection.execute(command)
            return of_schedule

        assert await until(fired) == [due]
        await connection.execute("select pgq_unschedule('s')")
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def beside_pg_cron() -> Iterator[Server]:
    """A server that runs pg_cron, and pgq on behalf of an ordinary role."""
    with cron_server() as server:
        server.psql(
            f"create role keeper login; alter database {server.database} owner to keeper;"
            " set session authorization keeper; create extension pgq"
        )
        yield server


SCHEDULE = "function cron.schedule(text, text, text)"
ALL_OF_IT = """
    set session authorization keeper;
    select pgq_create_queue('q'), pgq_schedule('s', '0 9 * * *'),
           pgq_schedule('t', '0 9 * * *', queue => 'q');
    select pgq_pause_schedule('s'), pgq_resume_schedule('s'), pgq_unschedule('s'),
           pgq_unschedule('t'), pgq_drop_queue('q');
    reset session authorization;
"""


@pytest.mark.parametrize(
    "change",
    [
        "revoke usage on schema cron from keeper",
        "revoke execute on all functions in schema cron from public",
        "revoke select on cron.job from public",
        f"alter extension pg_cron drop {SCHEDULE}; drop {SCHEDULE}",
    ],
)
def test_a_pg_cron_that_the_owner_may_not_use_is_left_alone(
    beside_pg_cron: Server, change: str
) -> None:
    answer = beside_pg_cron.psql(f"""
        begin; grant usage on schema cron to keeper;
        {change}; {ALL_OF_IT} {JOBS}; rollback
    """)
    assert "pgq.chore" not in answer


def test_a_pg_cron_that_the_owner_may_use_is_used(beside_pg_cron: Server) -> None:
    answer = beside_pg_cron.psql(f"""
        begin; grant usage on schema cron to keeper; {ALL_OF_IT} {JOBS};
        set session authorization keeper; select pgq_schedule('s', '0 9 * * *');
        reset session authorization; {JOBS}; select username from cron.job; rollback
    """)
    assert answer.splitlines()[-2:] == [PGQ_JOB, "keeper"]
    assert answer.count("pgq.chore") == 1


def test_a_pg_cron_that_is_not_loaded_fails_nothing(beside_pg_cron: Server) -> None:
    # As it does where shared_preload_libraries does not name it any more.
    broken = "begin raise exception 'only by shared_preload_libraries' using errcode = 'XX000'; end"
    beside_pg_cron.psql(f"""
        begin; grant usage on schema cron to keeper;
        create or replace function cron.schedule(job_name text, schedule text, command text)
            returns bigint language plpgsql as $$ {broken} $$;
        {ALL_OF_IT} rollback
    """)
