"""ALTER EXTENSION pgq UPDATE from each release: what it makes, and what others notice of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pgq
import portable
import pytest
import release
from pginstall import SCRIPTS
from pgq import _sql
from pgserver import Server

from . import catalog
from .conftest import serve
from .sessions import Connection, Dsn, dsn_of, sessions, started, until, within
from .workers import FAST, running

pytestmark = pytest.mark.server

RELEASED = release.path(release.current())[:-1]
LAST = RELEASED[-1]
# Whether the update changes tables; if not, it waits for nobody.
LOCKS = "$lock$" in release.script(LAST, release.current()).read_text(encoding="utf-8")
UPDATE = "alter extension pgq update"
ALL = "{enqueue,consume,observe,manage}"
STATEMENTS = Path(__file__).parent / "released"

OWNERS = """
    select distinct pg_get_userbyid(o) from (
        select relowner from pg_class
         where relnamespace = 'pgq'::regnamespace or relname like 'pgq\\_%'
        union all select proowner from pg_proc
         where pronamespace = 'pgq'::regnamespace or proname like 'pgq\\_%'
        union all select typowner from pg_type
         where typnamespace = 'pgq'::regnamespace or typname like 'pgq\\_%'
        union all select nspowner from pg_namespace where nspname = 'pgq'
    ) o (o)
"""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose log tells of each wait for a lock that lasts ten seconds."""
    with serve(deadlock_timeout="10s", log_lock_waits="on") as server:
        server.psql("create role everyone; create role viewer; create role keeper")
        server.psql("create role member; grant keeper to member")
        yield server


def database(server: Server, version: str | None = None) -> str:
    """Make a database that has a version of the extension, this one by default."""
    name = f"upgrade_{next(_numbers)}"
    server.psql(f"create database {name}")
    release = f" version '{version}'" if version else ""
    server.psql(f"create extension pgq{release}", database=name)
    return name


def released(version: str) -> dict[str, str]:
    """Return the statements of the Python package of a release, by module and name."""
    text = (STATEMENTS / f"{version}.json").read_text(encoding="utf-8")
    statements: dict[str, str] = json.loads(text)
    return statements


@pytest.fixture
def dsn(server: Server) -> Dsn:
    """Connection arguments of a database that has the last release."""
    return dsn_of(server, database(server, LAST))


@pytest.mark.parametrize("version", RELEASED)
def test_an_upgraded_installation_is_like_a_fresh_one(server: Server, version: str) -> None:
    fresh, upgraded = database(server), database(server, version)
    for name in (fresh, upgraded):
        server.psql(
            f"select pgq_grant('*', 'everyone', '{ALL}'); select pgq_create_queue('q');"
            "select pgq_grant('q', 'viewer', '{observe}'), pgq_grant('q', 'public', '{enqueue}')",
            database=name,
        )
    assert catalog.differences(catalog.describe(server, fresh), catalog.describe(server, upgraded))
    server.psql(UPDATE, database=upgraded)
    assert (
        catalog.differences(catalog.describe(server, fresh), catalog.describe(server, upgraded))
        == []
    )
    assert server.psql("select count(*) from pgq.chore", database=upgraded) == "0"


@pytest.mark.parametrize("updater", ["postgres", "member", "keeper"])
@pytest.mark.parametrize("way", ["extension", "script"])
def test_what_an_update_adds_belongs_to_the_owner_of_the_rest(
    server: Server, way: str, updater: str
) -> None:
    name = f"upgrade_{next(_numbers)}"
    server.psql(f"create database {name} owner keeper")

    def run(role: str, *scripts: str) -> str:
        text = ";\n".join([f"set session authorization {role}", *scripts])
        return server.psql(text, database=name)

    if way == "extension":
        run("keeper", f"create extension pgq version '{LAST}'")
        update = UPDATE
    else:
        run("keeper", portable.plain(release.script(LAST).read_text(encoding="utf-8"), LAST))
        script = SCRIPTS / f"pgq--{LAST}--{release.current()}.sql"
        update = script.read_text(encoding="utf-8")
    run("keeper", f"select pgq_grant('*', 'everyone', '{ALL}')")
    who = "select current_user, current_setting('role')"
    answer = run(updater, "set role postgres" * (updater == "postgres"), "begin", update, who)
    role = "postgres" if updater == "postgres" else "none"
    assert answer.splitlines()[-1] == f"{updater}|{role}"
    run(updater, "begin", update, "commit")
    assert run("keeper", OWNERS) == "keeper"
    work = "select count(pgq_complete(id, token)) from pgq_dequeue()"
    for worker in ("everyone", "keeper"):
        run(worker, "select pgq_enqueue('1')")
        assert run(worker, work) == "1"
        run(worker, "select pgq_maintain()")
        assert run(worker, "select count(*) from pgq_schedules") == "0"


@pytest.mark.parametrize("way", ["extension", "script"])
def test_an_update_calls_no_function_that_others_may_overload(server: Server, way: str) -> None:
    name = f"upgrade_{next(_numbers)}"
    server.psql(f"create database {name}")
    if way == "extension":
        server.psql(f"create extension pgq version '{LAST}'", database=name)
        update = UPDATE
    else:
        old = release.script(LAST).read_text(encoding="utf-8")
        server.psql(portable.plain(old, LAST), database=name)
        script = SCRIPTS / f"pgq--{LAST}--{release.current()}.sql"
        update = script.read_text(encoding="utf-8")
    planted = "function pgq_version(planted integer default 0)"
    server.psql(
        f"create {planted} returns text language sql as $$ select '9.9.9'::text $$", database=name
    )
    server.psql(update, database=name)
    server.psql("drop function pgq_version(integer)", database=name)
    assert server.psql("select pgq_version()", database=name) == release.current()


async def test_an_update_waits_for_an_open_transaction_without_stopping_the_queue(
    server: Server, dsn: Dsn, caplog: pytest.LogCaptureFixture
) -> None:
    done: Counter[int] = Counter()
    ids: list[int] = []
    stop = asyncio.Event()

    async def produce(queue: pgq.Queue) -> None:
        while not stop.is_set():
            ids.append(await queue.enqueue(1))
            ids.extend(await queue.enqueue_many([2, 3, 4]))

    async def progress(number: int) -> None:
        goal = len(done) + number

        async def reached() -> bool:
            return len(done) >= goal

        await until(reached)

    async with sessions(dsn, 3) as [old, new, observer], asyncpg.create_pool(**dsn) as pool:
        worker = pgq.Worker(pool, poll_interval=FAST)

        @worker.handler("default")
        async def handle(job: pgq.Job) -> None:
            done[job.id] += 1

        @worker.handler("exact", transaction=True)
        async def handle_exactly_once(job: pgq.Job, connection: Connection) -> None:
            await connection.execute("select pgq_enqueue('5')")
            done[job.id] += 1

        exact = pgq.Queue(pool, "exact")
        await exact.create()
        transaction = old.transaction()
        await transaction.start()
        await old.fetch("select * from pgq_queues")
        async with (
            running(worker),
            started(produce(exact)) as producer,
            started(produce(pgq.Queue(pool))) as other,
        ):
            await progress(100)
            async with started(new.execute(UPDATE)) as update:
                if LOCKS:
                    for _ in range(2):
                        await until(lambda: waits(observer, new))
                        await until(lambda: rests(observer, new))
                    await progress(200)
                    assert not update.done()
                    assert await observer.fetchval("select pgq_version()") == LAST
                await transaction.commit()
                await within(update)
            await progress(200)
            stop.set()
            await within(asyncio.gather(producer, other))
            await until(lambda: is_empty(observer))
        assert await observer.fetchval("select pgq_version()") == release.current()
        jobs = await observer.fetch("select id, attempt, state, payload from pgq_jobs")
    assert {tuple(job)[1:3] for job in jobs} == {(1, "completed")}
    assert done == Counter(job["id"] for job in jobs), "each was handled once"
    assert {job["id"] for job in jobs if job["payload"] != "5"} == set(ids), "none was lost"
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []
    log = server.log.read_text(encoding="utf-8")
    assert "still waiting for" not in log, "nobody has waited for the open transaction"
    assert re.findall("ERROR: .*", log) == []


async def waits(observer: Connection, session: Connection) -> bool:
    """Tell whether a session waits for a lock."""
    query = "select exists (select from pg_locks where pid = $1 and not granted)"
    return bool(await observer.fetchval(query, session.get_server_pid()))


async def rests(observer: Connection, session: Connection) -> bool:
    """Tell whether a session neither waits for a lock nor keeps others from their queues."""
    query = """
        select not exists (
            select from pg_locks
             where pid = $1 and relation = 'pgq.queue'::regclass and mode = 'AccessExclusiveLock'
        )"""
    return bool(await observer.fetchval(query, session.get_server_pid()))


async def is_empty(observer: Connection) -> bool:
    return not await observer.fetchval("select exists (select from pgq.job)")


@pytest.mark.parametrize("version", RELEASED)
async def test_an_update_locks_no_jobs(server: Server, version: str) -> None:
    dsn = dsn_of(server, database(server, version))
    query = """
        select array_agg(distinct c.relname::text)
          from pg_locks l join pg_class c on c.oid = l.relation
         where l.pid = pg_backend_pid() and l.mode = 'AccessExclusiveLock'
           and c.relname ~ '^(job|floor|archive|lane)'
    """
    async with sessions(dsn, 1) as [session]:
        await session.execute("begin")
        await session.execute(UPDATE)
        assert await session.fetchval(query) is None


@pytest.mark.parametrize("version", RELEASED)
async def test_statements_that_were_prepared_before_run_afterwards(
    server: Server, version: str
) -> None:
    dsn = dsn_of(server, database(server, version))
    statements = {name: text.replace("@", "") for name, text in released(version).items()}
    async with sessions(dsn, 2) as [before, after]:
        columns = {name: await described(before, text) for name, text in statements.items()}
        for number, text in enumerate(statements.values()):
            await before.execute(f"prepare s{number} as {text}")
        await before.fetch("select * from pgq_queues")
        await after.execute(UPDATE)
        for number, (name, text) in enumerate(statements.items()):
            now = await described(after, text)
            assert now[: len(columns[name])] == columns[name], name
            if name.startswith("pgq."):  # workers and producers
                arguments = len((await after.prepare(text)).get_parameters())
                nulls = f"({', '.join(['null'] * arguments)})" if arguments else ""
                await before.execute(f"explain execute s{number}{nulls}")
        # asyncpg prepares anew what has another result.
        assert "description" in (await before.fetch("select * from pgq_queues"))[0]


async def described(connection: Connection, statement: str) -> list[tuple[str, str]]:
    """Return names and types of the columns of a statement's result."""
    prepared = await connection.prepare(statement)
    return [(column.name, column.type.name) for column in prepared.get_attributes()]


@pytest.mark.parametrize(
    ("package", "hint"), [("0.99.1", "ALTER EXTENSION pgq UPDATE"), ("0.0.9", "pip install")]
)
async def test_a_worker_refuses_an_extension_that_it_is_not_for(
    dsn: Dsn, monkeypatch: pytest.MonkeyPatch, package: str, hint: str
) -> None:
    async with sessions(dsn, 1) as [session], asyncpg.create_pool(**dsn) as pool:
        worker = pgq.Worker(pool)

        @worker.handler("default")
        async def handle(job: pgq.Job) -> None:
            del job

        job_id = await pgq.Queue(session).enqueue(1)
        if package == "0.0.9":
            await session.execute(UPDATE)
        with monkeypatch.context() as patch:
            patch.setattr("pgq._version.PACKAGE", package)
            with pytest.raises(pgq.NotSupported, match=hint):
                await worker.run_until_idle()
        assert await session.fetchval("select state from pgq_get($1)", job_id) == "ready"
        await worker.run_until_idle()
        assert await session.fetchval("select state from pgq_get($1)", job_id) == "completed"


async def test_the_package_works_with_the_release_before(dsn: Dsn) -> None:
    async with sessions(dsn, 1) as [session]:
        for name in released(LAST):
            if name.startswith("pgq."):  # what has come since is for what is new
                statement: str = getattr(_sql, name.removeprefix("pgq."))
                await session.prepare(statement.replace("@", ""))
        queue = pgq.Queue(session, "old")
        await queue.create(max_attempts=3)
        await queue.configure(max_attempts=4)
