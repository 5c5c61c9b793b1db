"""ALTER EXTENSION pgq UPDATE from each release: what it makes, and what others notice of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pgq
import portable
import pytest
import release
from asyncpg import Record
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
# Whether the update changes tables; if not, it waits for nobody, and nobody for it.
LOCKS = "$lock$" in release.script(LAST, release.current()).read_text(encoding="utf-8")
# How calls fail that have waited for such an update: with the old text of their function, or
# because they have been given up.
OUTDATED = re.compile(
    r"ERROR:  (column|function|relation|type) .* does not exist|.* (lock timeout|user request)$"
    r"|ERROR:  could not open relation with OID \d+$"
    r"|ERROR:  structure of query does not match function result type$"
)
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
    if way == "extension" and updater == "postgres":  # as pg_upgrade leaves it
        run(updater, "update pg_extension set extowner = 10 where extname = 'pgq'")
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
            with suppress(pgq.SerializationFailure):
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
        await pgq.Admin(pool).create_queue(exact.name)
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
                check_calm(server, caplog)
                await transaction.commit()
                await within(update)
            await progress(200)
            stop.set()
            await within(asyncio.gather(producer, other))
            await until(lambda: is_empty(observer))
        assert await observer.fetchval("select pgq_version()") == release.current()
        jobs = await observer.fetch("select id, attempt, state, payload from pgq_jobs")
    assert {job["state"] for job in jobs} == {"completed"}
    assert done == Counter(job["id"] for job in jobs), "each was handled once"
    assert {job["id"] for job in jobs if job["payload"] != "5"} == set(ids), "none was lost"
    log = server.log.read_text(encoding="utf-8")
    assert [error for error in re.findall("ERROR: .*", log) if not OUTDATED.match(error)] == []
    assert {job["attempt"] for job in jobs} <= ({1, 2} if LOCKS else {1})


def check_calm(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Fail if anybody has noticed that the update tries to begin."""
    assert [record for record in caplog.records if record.levelname != "INFO"] == []
    log = server.log.read_text(encoding="utf-8")
    assert "still waiting for" not in log, "nobody has waited for the open transaction"
    assert "ERROR: " not in log


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


JOBS = """
    select id, token, queue, priority, state, attempt, max_attempts, payload, headers, group_key,
           dedupe_key, worker, enqueued_at, run_at, claimed_at, lease_expires_at, last_error,
           cancel_requested, checkpoint, finished_at, result
      from pgq_jobs order by id
"""
QUEUES = """
    select queue, ready, scheduled, waiting, active, dead, completed_last_hour, failed_last_hour,
           max_active, paused
      from pgq_queues order by queue
"""
SETTINGS = "keep_completed => '1 hour'"
WORK = f"""
    select pgq_create_queue('plain', {SETTINGS}, backoff_base => '0', backoff_max => '0');
    select pgq_create_queue('brief', keep_completed => '0'), pgq_create_queue('empty');
    select pgq_create_queue('groups', group_on_dead => 'block', keep_dead => '0');
    select pgq_create_queue('limited', max_active => 2), pgq_create_queue('paused');
    select pgq_create_queue('later'), pgq_pause('paused');
    select pgq_enqueue(to_jsonb(n), q, n % 3, headers => '{{"a": 1}}', max_attempts => 2 + n % 2)
      from generate_series(1, 12) n, unnest('{{plain,brief,limited,paused}}'::text[]) q;
    select pgq_enqueue(to_jsonb(n), 'plain', dedupe_key => 'key ' || n)
      from generate_series(1, 3) n;
    select pgq_enqueue(to_jsonb(n), 'later', run_at => now() + n * interval '1 hour',
                       expires_at => now() + interval '1 day') from generate_series(-2, 2) n;
    select pgq_enqueue('1', 'groups', group_key => 'g ' || n % 3) from generate_series(1, 9) n;
    select pgq_enqueue('1', 'groups', group_key => 'dead') from generate_series(1, 2) n;
    select pgq_enqueue('1', 'groups', group_key => 'due', run_at => now() + interval '1 hour');
    select pgq_enqueue('2', 'groups', group_key => 'due');
    select pgq_enqueue('1', 'empty', after => array[1, 5]);
    select pgq_schedule('daily', '0 0 * * *', '1', 'plain');
    select pgq_grant('plain', 'everyone', '{ALL}');
    select pgq_fail(id, token, 'again') from pgq_dequeue(2, '1 hour', 'plain');
    select pgq_fail(id, token, 'dead', retryable => false) from pgq_dequeue(2, '1 hour', 'brief');
    select pgq_complete(id, token, '"done"') from pgq_dequeue(2, '1 hour', 'plain');
    select pgq_release(id, token, '1 hour') from pgq_dequeue(1, '1 hour', 'plain');
    select pgq_cancel(min(id)) from pgq_jobs where queue = 'paused';
    select pgq_fail(id, token, retryable => false) from pgq_claim((
        select min(id) from pgq_jobs where group_key = 'dead'
    ));
"""


async def dequeued(session: Connection, queue: str, batch: int = 1) -> list[Record]:
    return await session.fetch("select * from pgq_dequeue($1, '1 hour', $2, 'w')", batch, queue)


async def check_receipts(session: Connection, held: list[list[Record]]) -> None:
    """Fail unless the receipts of the release before are good."""
    [plain, brief, groups, limited] = held
    [beat, again, cancelled] = ([job["id"], job["token"]] for job in plain)
    assert await session.fetchval("select pgq_heartbeat($1::bigint, $2::bigint)", *beat)
    assert await session.fetchval("select pgq_complete($1::bigint, $2, '1'::jsonb)", *beat)
    assert await session.fetchval("select pgq_fail($1, $2)", *again) == "scheduled"
    assert await session.fetchval("select pgq_fail($1, $2)", *cancelled) == "cancelled"
    assert not await session.fetchval("select pgq_complete($1::bigint, $2::bigint)", *beat)
    for jobs in (brief, limited, groups):
        receipts = [[job[name] for job in jobs] for name in ("id", "token")]
        done = await session.fetch("select pgq_complete($1::bigint[], $2::bigint[])", *receipts)
        assert sorted(job[0] for job in done) == sorted(receipts[0])
    assert len(await dequeued(session, "limited", 12)) == 2
    assert await dequeued(session, "empty") == []


async def check_groups(session: Connection, groups: list[Record], late: list[int]) -> None:
    """Fail unless each group goes on in its order; that of a dead job stands still."""
    order: dict[str, list[int]] = {}
    for job in groups:
        order.setdefault(job["group_key"], []).append(job["id"])
    while jobs := await dequeued(session, "groups", 100):
        assert len({job["group_key"] for job in jobs}) == len(jobs), "one of each at a time"
        for job in jobs:
            order.setdefault(job["group_key"], []).append(job["id"])
        receipts = [[job[name] for job in jobs] for name in ("id", "token")]
        await session.execute("select pgq_complete($1::bigint[], $2::bigint[])", *receipts)
        await session.execute("select pgq_maintain()")
    assert order.pop("late") == late
    assert len(order.pop("hinted")) == 1
    assert {key: len(ids) for key, ids in order.items()} == {f"g {n}": 3 for n in range(3)}
    assert all(ids == sorted(ids) for ids in order.values())
    assert await session.fetchval("select pgq_unblock('groups', 'dead')")
    [job] = await dequeued(session, "groups")
    assert job["group_key"] == "dead"


@pytest.mark.parametrize("version", RELEASED)
async def test_an_update_keeps_all_jobs_and_receipts(server: Server, version: str) -> None:
    name = database(server, version)
    server.psql(WORK, database=name)
    async with sessions(dsn_of(server, name), 2) as [session, other]:
        add = "select pgq_enqueue('1', 'groups', group_key => $1)"
        async with other.transaction():
            late = await other.fetchval(add, "late")
            early = await session.fetchval(add, "late")
        async with other.transaction(isolation="repeatable_read"):
            await other.fetchval(add, "hinted")
        held = [await dequeued(session, queue, 3) for queue in ("plain", "brief", "groups")]
        held += [await dequeued(session, "limited", 2)]
        await session.execute("select pgq_cancel($1)", held[0][2]["id"])
        jobs = await session.fetch(JOBS)
        queues = await session.fetch(QUEUES)
        workers = await session.fetch("select * from pgq_workers order by 1")
        schedules = await session.fetch("select name, next_at from pgq.schedule")
        assert {job["state"] for job in jobs} == {
            *("ready", "scheduled", "waiting", "active", "completed", "dead", "cancelled")
        }
        await session.execute(UPDATE)
        assert await session.fetch(JOBS) == jobs
        assert await session.fetch(QUEUES) == queues
        assert await session.fetch("select * from pgq_workers order by 1") == workers
        assert await session.fetch("select name, next_at from pgq.schedule") == schedules
        assert await dequeued(session, "limited") == [], "its permits are in use"

        await check_receipts(session, held)
        await check_groups(session, held[2], [early, late])
        assert await session.fetchval(
            "select pgq_enqueue('1', 'plain', dedupe_key => 'key 3') = max(id) from pgq_jobs"
            " where dedupe_key = 'key 3' and state in ('ready', 'active')"
        )
        last = await session.fetchval("select max(id) from pgq_jobs")
        assert await session.fetchval("select pgq_enqueue('1', 'empty')") > last
        [job] = await dequeued(session, "empty")
        assert job["token"] > max(job["token"] for jobs in held for job in jobs)


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
        await pgq.Admin(session).create_queue(queue.name, max_attempts=3)
        await pgq.Admin(session).configure_queue(queue.name, max_attempts=4)
