"""Dumps, restores, upgrades of the cluster and clones keep every job in its state."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import asyncpg
import pgfind
import pytest
from pgserver import Server

from .catalog import describe, differences
from .conftest import TEMPLATE
from .pages import read, snippets
from .sessions import (
    Connection,
    Receipt,
    complete,
    dequeue,
    dsn_of,
    enqueue,
    files,
    maintain,
    sessions,
    settle,
    started,
    turning,
    until,
    within,
)

Rows: TypeAlias = "dict[str, list[str]]"
Run: TypeAlias = "Callable[..., str]"

pytestmark = [pytest.mark.extension, pytest.mark.server]

SOURCE: Final = "Source of dumps"
INSTALL: Final = "create extension pgq"
PAGE: Final = read("docs/dumps.md")
QUOTED_ROLE: Final = '"An ""odd"" role"'

# In this order: each line may build on those before it.
JOBS: Final = """
set pgq.slot_size = 8192;
select pgq_set_shard(5);
select pgq_configure_queue('default', max_attempts => 7, keep_completed => '1 hour');
select pgq_create_queue('kept', dedupe_for => '1 day');
select pgq_create_queue('blocking', group_on_dead => 'block');
select pgq_create_queue('limited', max_active => 1, rate_limit => 2, rate_interval => '1 hour');
select pgq_create_queue('Ünï "q"', priority_ageing => '1 minute', max_ready => 9);
select pgq_create_queue('gone'), pgq_drop_queue('gone');
create table watched (id integer primary key);
insert into watched values (1);
select pgq_watch('watched');

select pgq_enqueue_many(array(select to_jsonb(n) from generate_series(1, 500) n));
select count(pgq_complete(id, token)) from pgq_dequeue(500, '1 hour');
select pgq_maintain();
select pgq_maintain();
select pgq_maintain();

select pgq_enqueue('"ready"', priority => 5, headers => '{"h": "1"}');
select pgq_enqueue('"late"', run_at => now() + interval '1 day');
select pgq_enqueue('"head"', group_key => 'g'), pgq_enqueue('"follower"', group_key => 'g');
select pgq_enqueue('"after"', after => array[pgq_enqueue('"first"', priority => -1)]);
select pgq_enqueue('"once"', dedupe_key => 'k');
select pgq_enqueue('"expires"', expires_at => now() + interval '1 day');
select pgq_enqueue('"quota"', 'Ünï "q"');

select pgq_enqueue('"held"', 'kept', dedupe_key => 'held');
select pgq_complete(id, token, '{"result": 1}') from pgq_dequeue(1, '1 hour', 'kept');
select pgq_enqueue('"dies"', 'blocking', group_key => 'g'),
       pgq_enqueue('"blocked"', 'blocking', group_key => 'g');
select pgq_fail(id, token, 'broken', retryable => false) from pgq_dequeue(1, '1 hour', 'blocking');
select pgq_enqueue('"cancelled"', 'kept') as cancelled \\gset
select pgq_cancel(:cancelled);
select pgq_enqueue('"holds"', 'limited'), pgq_enqueue('"at the limit"', 'limited');
select pgq_heartbeat(id, token, '1 day') from pgq_dequeue(2, '1 day', 'limited', 'holder');
select pgq_enqueue('"leased"', priority => 9);
select pgq_heartbeat(array[id], array[token], checkpoints => '{"{\\"page\\": 3}"}')
  from pgq_dequeue(1, '1 day', worker => 'owner');
select pgq_enqueue('"retried"', priority => 9);
select pgq_fail(id, token, 'later', retry_in => '1 day') from pgq_dequeue(1, '1 day');

select pgq_schedule(
    'nightly',  -- not while the tests run
    to_char((now() + interval '12 hours') at time zone 'Europe/Berlin', 'MI HH24 * * *'),
    '{"kind": "daily"}', timezone => 'Europe/Berlin'
);
select pgq_schedule('paused', '* * * * *', queue => 'kept'), pgq_pause_schedule('paused');
select pgq_pause('Ünï "q"');
select pgq_enqueue('"turns"', 'kept', after => array[pgq_enqueue('"ends"', 'kept')]);
select id, token from pgq_dequeue(1, '1 day', 'kept') \\gset
begin isolation level repeatable read;
select pgq_enqueue('"new"', 'kept', group_key => 'new'), pgq_complete(:id, :token);
commit;
select pgq_grant('kept', 'An "odd" role', '{enqueue,observe}');
select pgq_grant('*', 'public', '{consume}');
-- The last call: ticks forget it.
select pgq_create_queue('forgotten'), pgq_drop_queue('forgotten');
"""

# Not claim positions, events, counts of the last hour, nor rows that are only locked.
_TABLES: Final = """
select c.oid::regclass::text
  from pg_class c
 where c.relnamespace = 'pgq'::regnamespace and c.relkind = 'r'
   and c.relname !~ '^(floor_|stat|note_|chore$|errand$|gate$|lane_gate$|bucket$|skipped$)'
 order by 1
"""
RETRY: Final = "select pgq_fail($1::bigint, $2::bigint, retry_in => '1 day')"
_SEQUENCES: Final = """
select jsonb_object_agg(s, pg_sequence_last_value(s))
  from unnest('{pgq.number,pgq.token,pgq.queue_id_seq,pgq.group_seed}'::regclass[]) s
"""


def rows(server: Server, database: str) -> Rows:
    """Return what is in each of the tables that a dump must carry along."""
    tables = server.psql(_TABLES, database=database).splitlines()
    # The installation makes the first.
    newest = "where t.gen > 1 and t.gen = (select max(r.gen) from pgq.ring r)"
    queries = (
        f"select '{table}', t from {table} t {newest if table == 'pgq.ring' else ''};"
        for table in tables
    )
    found: Rows = {table: [] for table in tables}
    for line in server.psql("".join(queries), database=database).splitlines():
        table, _, row = line.partition("|")
        found[table].append(row)
    return {table: sorted(lines) for table, lines in found.items()}


def sequences(server: Server, database: str) -> dict[str, int]:
    """Return the last ids and tokens, and the seed of the numbers of groups."""
    values: dict[str, int] = json.loads(server.psql(_SEQUENCES, database=database))
    return values


@pytest.fixture(scope="module")
def run(server: Server) -> Run:
    """Run a client program of PostgreSQL that fits the server, and return what it prints."""
    # Newer ones write settings that an older server does not know.
    programs = pgfind.find(16 if server.major <= 16 else max(18, server.major)).bin

    def run(program: str, *arguments: str | Path, **variables: str) -> str:
        done = subprocess.run(
            [programs / program, *arguments],
            env={**server.environment(), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture(scope="module")
def source(server: Server) -> Iterator[str]:
    """A database with jobs in all states, and whatever else the extension can store."""
    server.psql(f"create role {QUOTED_ROLE}")
    server.psql(f'create database "{SOURCE}" template {TEMPLATE}')
    server.psql(JOBS, database=SOURCE)
    yield SOURCE
    server.psql(f'drop database "{SOURCE}"')
    server.psql(f"drop role {QUOTED_ROLE}")


@pytest.fixture
def target(server: Server) -> Iterator[str]:
    """An empty database."""
    server.psql("create database target template template0")
    yield "target"
    server.psql("drop database target with (force)")


def check_same(server: Server, source: str, target: str) -> None:
    """Fail unless two databases hold the same jobs, settings, privileges and objects."""
    found = rows(server, source)
    assert rows(server, target) == found
    assert differences(describe(server, source), describe(server, target)) == []
    before, after = sequences(server, source), sequences(server, target)
    assert all(after[name] >= before[name] for name in before)


def test_the_source_has_what_a_dump_could_lose(server: Server, source: str) -> None:
    found = rows(server, source)
    empty = {table for table, lines in found.items() if not lines}
    states = server.psql("select distinct state from pgq_jobs order by 1", database=source)

    # Of these some are used.
    assert all(name.startswith(("pgq.job_", "pgq.hold_", "pgq.archive_")) for name in empty)
    assert not {"pgq.job_0", "pgq.job_1", "pgq.job_2", "pgq.job_3"} <= empty - {"pgq.job_0"}
    assert states.split() == [
        "active", "cancelled", "completed", "dead", "ready", "scheduled", "waiting",
    ]  # fmt: skip
    assert int(found["pgq.ring"][0].strip("(").split(",")[0]) > 1


def restore_script(server: Server, run: Run, target: str, _: Path) -> None:
    server.psql(run("pg_dump", SOURCE), database=target)


def restore_inserts(server: Server, run: Run, target: str, _: Path) -> None:
    server.psql(run("pg_dump", "--column-inserts", SOURCE), database=target)


def restore_archive(_: Server, run: Run, target: str, place: Path) -> None:
    run("pg_dump", "--format=custom", "--file", place, SOURCE)
    run("pg_restore", "--dbname", target, place)


def restore_over(server: Server, run: Run, target: str, place: Path) -> None:
    server.psql(f"{INSTALL}; select pgq_enqueue('0'); select from pgq_dequeue()", database=target)
    run("pg_dump", "--format=custom", "--file", place, SOURCE)
    run("pg_restore", "--clean", "--if-exists", "--dbname", target, place)


def restore_directory(_: Server, run: Run, target: str, place: Path) -> None:
    run("pg_dump", "--format=directory", "--jobs=2", "--file", place, SOURCE)
    run("pg_restore", "--jobs=2", "--dbname", target, place)


def restore_parts(server: Server, run: Run, target: str, _: Path) -> None:
    server.psql(run("pg_dump", "--schema-only", SOURCE), database=target)
    # Each row would add a job again.
    data = run("pg_dump", "--data-only", "--exclude-table-data=watched", SOURCE)
    server.psql(data, database=target)


def restore_without_triggers(server: Server, run: Run, target: str, _: Path) -> None:
    server.psql(run("pg_dump", "--schema-only", SOURCE), database=target)
    server.psql("select pgq_drop_queue('default')", database=target)
    server.psql("select pgq_maintain()", database=target)
    server.psql(run("pg_dump", "--data-only", "--disable-triggers", SOURCE), database=target)


@pytest.mark.parametrize(
    "restore",
    [
        restore_script,
        restore_inserts,
        restore_archive,
        restore_over,
        restore_directory,
        restore_parts,
        restore_without_triggers,
    ],
)
@pytest.mark.usefixtures("source")
def test_a_restored_database_is_the_same(
    server: Server,
    run: Run,
    target: str,
    tmp_path: Path,
    restore: Callable[[Server, Run, str, Path], None],
) -> None:
    restore(server, run, target, tmp_path / "dump")

    check_same(server, SOURCE, target)


def example(part: str) -> str:
    """Return the SQL of docs/dumps.md in which something occurs."""
    [found] = [sql for sql in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) if part in sql]
    return textwrap.dedent(found)


async def check_life(
    session: Connection, receipts: list[Receipt], last: dict[str, int], skipped: int = 0
) -> None:
    """Fail unless the jobs of the source go on: with its leases, its limits, its next numbers."""

    async def claim(queue: str) -> list[str]:
        query = "select payload #>> '{}' from pgq_dequeue(100, '1 hour', $1) order by id"
        return [row[0] for row in await session.fetch(query, queue)]

    by_key = "select id from pgq_jobs where dedupe_key = $1"
    again = "select pgq_enqueue('0', $1, dedupe_key => $2)"
    for queue, key in (("kept", "held"), ("default", "k")):
        known = await session.fetchval(by_key, key)
        assert await session.fetchval(again, queue, key) == known
    for queue in ("limited", "blocking", 'Ünï "q"'):
        assert await claim(queue) == []

    jobs = await session.fetch("select id, token, payload #>> '{}' from pgq_dequeue(100, '1 hour')")
    assert [row[2] for row in jobs] == ["ready", "head", "once", "expires", "first"]
    assert min(row["token"] >> 20 for row in jobs) > last["pgq.token"] + skipped
    assert len(await complete(session, [(row[0], row[1]) for row in jobs])) == len(jobs)
    assert await claim("default") == ["follower", "after"]

    assert len(await complete(session, receipts)) == len(receipts) == 2
    assert await claim("limited") == ["at the limit"]
    assert await session.fetchval("select pgq_unblock('blocking', 'g')")
    assert await claim("blocking") == ["blocked"]
    await maintain(session)
    assert await claim("kept") == ["turns", "new"]
    assert await session.fetchval("select pgq_enqueue('0')") > last["pgq.number"]

    await session.execute(f"set role {QUOTED_ROLE}")
    assert await session.fetchval("select pgq_enqueue('0', 'kept')")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await session.execute("select pgq_enqueue('0')")


def leased(server: Server, database: str) -> list[Receipt]:
    """Return the receipts of all jobs that are active."""
    query = "select id, token from pgq_jobs where state = 'active'"
    lines = server.psql(query, database=database).splitlines()
    return [(int(line.split("|")[0]), int(line.split("|")[1])) for line in lines]


async def test_jobs_go_on_where_they_were(
    server: Server, run: Run, source: str, target: str, tmp_path: Path
) -> None:
    receipts, last = leased(server, source), sequences(server, source)
    restore_archive(server, run, target, tmp_path / "dump")

    async with sessions(dsn_of(server, target), 1) as (session,):
        await check_life(session, receipts, last, skipped=16_000_000)


@pytest.mark.constant
async def test_jobs_go_on_after_pg_upgrade() -> None:
    with Server(16, {"fsync": "off"}) as old, Server(18, {"fsync": "off"}) as new:
        old.psql(f"create role {QUOTED_ROLE}; {INSTALL}")
        old.psql(JOBS)
        before, receipts = rows(old, old.database), leased(old, old.database)
        last = sequences(old, old.database)

        new.upgrade(old)

        assert rows(new, new.database) == before
        assert sequences(new, new.database) == last
        new.psql("create database fresh")
        new.psql(f"{INSTALL};{JOBS}", database="fresh")
        assert differences(describe(new, "fresh"), describe(new, new.database)) == []
        async with sessions(dsn_of(new), 1) as (session,):
            await check_life(session, receipts, last)


def test_the_extension_may_belong_to_somebody_else(
    server: Server, run: Run, target: str, source: str
) -> None:
    server.psql("create role heir; grant create on database target to heir")
    server.psql("grant create on schema public to heir", database=target)
    server.psql(f"set role heir; {INSTALL}", database=target)

    restore_script(server, run, target, Path())

    check_same(server, source, target)
    owner = "select extowner::regrole from pg_extension where extname = 'pgq'"
    assert server.psql(owner, database=target) == "heir"
    server.psql("drop owned by heir cascade", database=target)
    server.psql("drop owned by heir; drop role heir")


def test_the_extension_may_be_in_another_schema(
    server: Server, run: Run, target: str, source: str, tmp_path: Path
) -> None:
    server.psql(f"create schema jobs; {INSTALL} schema jobs", database=target)

    skip = "--exclude-table=watched"  # whose trigger names the old schema
    run("pg_dump", "--format=custom", skip, "--file", tmp_path / "dump", source)
    run("pg_restore", "--no-privileges", "--dbname", target, tmp_path / "dump")

    assert rows(server, target) == rows(server, source)
    use = f"set role {QUOTED_ROLE}; select jobs.pgq_enqueue('0', 'kept')"
    with pytest.raises(pgfind.ServerError, match="permission denied for schema jobs"):
        server.psql(use, database=target)
    server.psql(example("jobs.pgq_grant"), database=target)
    server.psql(use, database=target)
    with pytest.raises(pgfind.ServerError, match='permission denied for queue "default"'):
        server.psql(use.replace(", 'kept'", ""), database=target)


def test_grants_go_to_the_same_roles_or_to_nobody(server: Server, run: Run, target: str) -> None:
    server.psql(f"create database granted template {TEMPLATE}")
    grant = "create role leaver; select pgq_grant('*', 'leaver', '{observe}')"
    server.psql(grant, database="granted")
    before = run("pg_dump", "granted")
    server.psql("drop owned by leaver; drop role leaver", database="granted")
    after = run("pg_dump", "granted")

    with pytest.raises(pgfind.ServerError, match='role "leaver" does not exist'):
        server.psql(f"begin; {before}; commit", database=target)
    server.psql(after, database=target)

    count = "select count(*) from pgq.privilege"
    assert server.psql(count, database="granted") == "1"
    assert server.psql(count, database=target) == "0"
    server.psql("drop database granted")


@pytest.mark.usefixtures("source")
def test_a_queue_that_was_in_use_is_not_replaced(server: Server, run: Run, target: str) -> None:
    server.psql(f"{INSTALL}; select pgq_enqueue('0'); select from pgq_dequeue()", database=target)

    before = rows(server, target)
    script = run("pg_dump", "--data-only", SOURCE)

    with pytest.raises(pgfind.ServerError, match="duplicate key value"):
        server.psql(f"begin; {script}; commit", database=target)

    assert rows(server, target) == before


async def test_a_clone_is_a_queue_of_its_own(server: Server, source: str) -> None:
    server.psql(f'create database clone template "{source}"')
    check_same(server, source, "clone")

    receipts, last = leased(server, source), sequences(server, source)
    server.psql("create database other template clone")
    async with (
        sessions(dsn_of(server, "other"), 1) as (session,),
        sessions(dsn_of(server, "clone"), 2) as (sleeper, producer),
    ):
        woken: asyncio.Queue[str] = asyncio.Queue()

        def wake(_: object, __: int, channel: str, ___: object) -> None:
            woken.put_nowait(channel)

        channel = await sleeper.fetchval("select pgq_channel('default')")
        await sleeper.add_listener(channel, wake)
        await sleeper.fetchval("select pgq_wait('{default}')")
        asleep = sequences(server, "clone")  # the tick of pgq_wait has drawn numbers
        await check_life(session, receipts, last)
        await sleeper.fetchval("select 1")  # what has been sent by now comes before the answer
        assert woken.empty()
        assert sequences(server, "clone") == asleep
        await producer.fetchval("select pgq_enqueue('0')")
        assert await within(woken.get()) == channel
    server.psql("drop database clone with (force)")
    server.psql("drop database other with (force)")


@pytest.mark.parametrize(
    "form",
    [("pg_dump", "--format=directory", "--jobs=2"), ("another name", "--format=custom")],
)
async def test_a_dump_that_takes_long_is_one_moment(
    server: Server, run: Run, target: str, tmp_path: Path, form: tuple[str, ...]
) -> None:
    """It has its snapshot, and no lock on a table of pgq yet, while slots are emptied."""
    name, *options = form
    server.psql("create database busy")
    server.psql(f"create table locked (); {INSTALL}", database="busy")
    dsn = dsn_of(server, "busy")
    place = tmp_path / "dump"
    waits = "select wait_event_type = 'Lock' from pg_stat_activity where application_name = $1"
    async with sessions(dsn, 2, pgq__slot_size="8192") as (session, other):
        await enqueue(session, 200)
        receipts = await dequeue(session, 100)
        await complete(session, receipts[:50])
        before = rows(server, "busy")
        slots = await files(session)
        await other.execute("begin; lock table locked")

        dump = asyncio.to_thread(run, "pg_dump", *options, "--file", place, "busy", PGAPPNAME=name)
        async with started(dump) as dumping:
            await until(lambda: session.fetchval(waits, name))
            with turning(dsn):
                for receipt in receipts[50:]:
                    await session.execute(RETRY, *receipt)
                await settle(session, 100)
                await maintain(session, 5)
                await enqueue(session, 100)
                await settle(session, 100)
                await maintain(session, 5)

                await other.execute("rollback")
                await within(dumping)

        async def has_turned() -> bool:
            await maintain(session)
            return await files(session) != slots

        await until(has_turned)  # its backend may outlive the program
    run("pg_restore", "--dbname", target, place)
    assert rows(server, target) == before
    server.psql("drop database busy with (force)")


@pytest.mark.usefixtures("source")
def test_the_jobs_can_be_left_out(server: Server, run: Run, target: str) -> None:
    dump = run("pg_dump", "--exclude-table-data=pgq.*", "--exclude-table-data=watched", SOURCE)
    server.psql(dump, database=target)
    assert server.psql("select queue from pgq_queues", database=target) == "default"
    assert server.psql("select count(*) from pgq_jobs", database=target) == "0"
    assert server.psql("select pgq_enqueue('0') > 0", database=target) == "t"
    assert server.psql("select payload from pgq_dequeue()", database=target) == "0"


@pytest.mark.constant
def test_the_examples_of_the_documentation(server: Server, tmp_path: Path) -> None:
    server.psql(f"create database shop template {TEMPLATE}")
    server.psql("select pgq_enqueue('0'); select pgq_schedule('s', '* * * * *')", database="shop")
    [script] = snippets(PAGE, "sh")
    environment = {**server.environment(), "PGDATABASE": "postgres"}
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, env=environment, check=True)
    assert rows(server, "restored") == rows(server, "shop")

    server.psql(example("pgq_pause_schedule"), database="restored")
    assert server.psql("select * from pgq_dequeue()", database="restored") == ""
    assert server.psql("select paused from pgq.schedule", database="restored") == "t"

    server.psql(example("CREATE DATABASE"))
    assert rows(server, "clone") == rows(server, "shop")

    logged = "alter sequence pgq.next_tick set logged"
    server.psql(logged, database="clone")
    assert differences(describe(server, "shop"), describe(server, "clone")) != []
    server.psql(example("UNLOGGED"), database="clone")
    assert differences(describe(server, "shop"), describe(server, "clone")) == []
    for database in ("shop", "restored", "clone"):
        server.psql(f"drop database {database}")
