"""Several databases share the jobs: ids that know their shard, a front of PL/Proxy, workers on all.

The front is set up as the documentation says. PGQ_SHARD_JOBS is for longer runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import pgq
import pgshards
import pytest
import pytest_asyncio
from pgq._log import name_of
from pgserver import Server, ServerError

from .cli_session import Cli, url_of, variables
from .cli_session import running as running_command
from .pages import read, snippets
from .proxy import Proxy
from .sessions import Connection, dsn_of, sessions, started, until, within
from .workers import running

pytestmark = [pytest.mark.once, pytest.mark.server]

JOBS: Final = int(os.environ.get("PGQ_SHARD_JOBS", "300"))
# For how long a shard is down when rates are compared, and what the others keep of theirs.
DOWN_SECONDS, KEPT = (20.0, 0.95) if JOBS >= 10_000 else (2.0, 0.6)
LONG: Final = timedelta(hours=1)  # a lease that outlives any restart
FRONT: Final = "pgq_proxy"
PAGE: Final = read("docs/scaling.md")
NEW: Final = """
    drop database pgq with (force);
    create database pgq template ready strategy file_copy;
"""
UNDRAIN: Final = """
    select format('alter server pgq options (set p%s %L)', shard,
                  replace(place, ' application_name=drained', ''))
      from pgq_proxy._shards() where is_drained
"""
SHOP: Final = """
import pgq

worker = pgq.Worker()


@worker.handler("default", concurrency=7, transaction=True)
async def work(job, connection):
    await connection.execute("insert into done values ($1)", job.id)
"""
FUNCTIONS: Final = """
    select p.proname || '(' || pg_get_function_arguments(p.oid) || ') '
           || pg_get_function_result(p.oid), obj_description(p.oid, 'pg_proc')
      from pg_proc p
     where p.pronamespace = (
               select v.pronamespace from pg_proc v where v.oid = 'pgq_version'::regproc
           )
       and p.proname like 'pgq\\_%' and p.prorettype <> 'trigger'::regtype
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    """A server for each shard, and one for a front of them, which has PL/Proxy."""
    with pgshards.serve({"fsync": "off"}) as servers:
        for shard in servers[:-1]:
            shard.psql("create database ready template pgq", database="postgres")
        yield servers


@pytest.fixture
def fresh(servers: list[Server]) -> list[Server]:
    """The same, and nothing in the shards."""
    for shard in servers[:-1]:
        if not shard.is_running:
            shard.start()
        shard.psql(NEW, database="postgres")
    for statement in servers[-1].psql(UNDRAIN).splitlines():
        servers[-1].psql(statement)
    return servers


@contextlib.asynccontextmanager
async def opened(servers: Sequence[Server]) -> AsyncGenerator[list[asyncpg.Pool[Any]]]:
    """Open a pool for each shard, whether or not it runs."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                asyncpg.create_pool(**dsn_of(server), min_size=0, max_size=8)
            )
            for server in servers
        ]


@pytest_asyncio.fixture
async def pools(fresh: list[Server]) -> AsyncIterator[list[asyncpg.Pool[Any]]]:
    """The pools of the shards."""
    async with opened(fresh[:-1]) as pools:
        yield pools


@pytest_asyncio.fixture
async def front(fresh: list[Server]) -> AsyncIterator[Connection]:
    """A connection to the front."""
    connection: Connection = await asyncpg.connect(
        **dsn_of(fresh[-1]),
        server_settings={"search_path": FRONT, "client_min_messages": "error"},
    )
    yield connection
    await connection.close()


class Work:
    """What handlers have done, on which shard, and whether two of a group met."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.shards: dict[str, set[int]] = {}
        self.at_work: set[str] = set()
        self.most: Counter[int] = Counter()
        self.collisions = 0

    async def handle(self, job: pgq.Job[Any]) -> None:
        self.runs[job.id] += 1
        group = job.group_key or ""
        self.collisions += group in self.at_work
        if group:
            self.at_work.add(group)
        for key in filter(None, (job.group_key, job.dedupe_key)):
            self.shards.setdefault(key, set()).add(job.id >> 48)
        await asyncio.sleep(0)
        self.at_work.discard(group)

    def on(self, shard: int) -> int:
        """Return how many jobs of a shard have run."""
        return sum(job_id >> 48 == shard for job_id in self.runs)


def worker_on(pools: Sequence[asyncpg.Pool[Any]], work: Any, concurrency: int = 12) -> pgq.Worker:
    worker = pgq.Worker(pools=pools, durable_claims=True, poll_interval=timedelta(milliseconds=20))
    worker.handler("default", concurrency=concurrency, timeout=LONG)(work)
    return worker


async def produce(front: Connection, number: int) -> set[int]:
    """Enqueue jobs in all ways: in groups, with keys (each twice), in batches and alone."""
    ids: set[int] = set()
    queue = pgq.Queue(front, schema=FRONT)
    await front.execute("select pgq_configure_queue('default', dedupe_for => '1 hour')")
    for n in range(0, number, 10):
        ids.update(
            await queue.enqueue_many([n] * 4, group_keys=[f"g{(n + i) % 19}" for i in range(4)])
        )
        keys = [f"k{n + i}" for i in range(4)]
        first = await queue.enqueue_many([n] * 4, dedupe_keys=keys)
        assert [await queue.enqueue(n, dedupe_key=key) for key in keys] == first
        ids.update(first)
        ids.update([await queue.enqueue(n), await queue.enqueue(n)])
    return ids


@contextlib.asynccontextmanager
async def producing(front: Server) -> AsyncGenerator[set[int]]:
    """Enqueue jobs in groups, with keys and alone while the block lasts; see their ids."""
    ids: set[int] = set()
    is_over = asyncio.Event()

    async def enqueue() -> None:
        async with sessions(dsn_of(front), 1, search_path=FRONT) as (connection,):
            queue = pgq.Queue(connection, schema=FRONT)
            n = 0
            while not is_over.is_set():
                groups, keys = [[f"{kind}{n + i}" for i in range(4)] for kind in "gk"]
                ids.update(await queue.enqueue_many([n] * 4, group_keys=groups))
                ids.update(await queue.enqueue_many([n] * 4, dedupe_keys=keys))
                ids.add(await queue.enqueue(n))
                n += 4

    async with started(enqueue()) as call:
        yield ids
        is_over.set()
        await within(call)


async def more(ids: set[int], number: int = 40) -> None:
    """Wait until so many more jobs have been enqueued."""
    goal = len(ids) + number

    async def are_there() -> bool:
        return len(ids) >= goal

    await until(are_there)


@contextlib.contextmanager
def without_the_last(front: Server) -> Generator[Callable[[], None]]:
    """Take the last shard out of the front for a block; what is yielded puts it back."""
    is_there = f"select place from {FRONT}._shards() where shard = {pgshards.NUMBER - 1}"
    place = front.psql(is_there).strip()
    front.psql("alter server pgq options (drop p2)")

    def add() -> None:
        front.psql(f"alter server pgq options (add p2 '{place}')")

    try:
        yield add
    finally:
        if not front.psql(is_there).strip():
            add()


async def all_done(pools: Sequence[asyncpg.Pool[Any]], number: int) -> None:
    """Wait until so many jobs have completed."""

    async def completed() -> bool:
        query = "select count(*) from pgq_jobs where state = 'completed'"
        return bool(sum([await pool.fetchval(query) for pool in pools]) >= number)

    await until(completed, pause=0.05)


async def test_workers_on_all_shards_run_each_job_once(
    front: Connection, pools: list[asyncpg.Pool[Any]]
) -> None:
    work = Work()
    async with running(worker_on(pools, work.handle)), running(worker_on(pools, work.handle)):
        ids = await produce(front, JOBS)
        await all_done(pools, JOBS)

    assert len(ids) == JOBS
    assert work.runs == Counter(ids)
    assert work.collisions == 0
    assert {len(shards) for shards in work.shards.values()} == {1}
    assert {job_id >> 48 for job_id in ids} == {0, 1, 2}
    assert all(work.on(shard) > JOBS / 6 for shard in range(pgshards.NUMBER))


async def test_a_shard_that_is_killed_costs_the_others_nothing_and_comes_back(
    front: Connection,
    fresh: list[Server],
    pools: list[asyncpg.Pool[Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Work()
    is_back = asyncio.Event()
    ids = await produce(front, JOBS)
    expected = Counter(job_id >> 48 for job_id in ids)

    async def handle(job: pgq.Job[Any]) -> None:
        if job.id >> 48 == 1:
            await is_back.wait()
        await work.handle(job)

    async def is_held() -> bool:
        query = "select count(*) from pgq_jobs where state = 'active'"
        return bool(await pools[1].fetchval(query) == 4)

    async def others_are_done() -> bool:
        return all(work.on(shard) == expected[shard] for shard in (0, 2))

    async with running(worker_on(pools, handle)):
        await until(is_held)
        fresh[1].stop("kill")
        # Down as it begins: it is taken up like one that went down.
        other = worker_on(pools, handle)
        async with running(other):
            await until(others_are_done)
            assert other.health().is_ready, "it works off two databases"
            await all_done([pools[0], pools[2]], expected[0] + expected[2])
            assert work.on(1) == 0
            fresh[1].start()
            is_back.set()
            await all_done(pools, JOBS)

    assert work.runs == Counter(ids)
    assert work.collisions == 0
    names = [name_of("", **dsn_of(server)) for server in fresh]
    troubles = [vars(record) for record in caplog.records if record.levelname == "WARNING"]
    assert {record["pgq_database"] for record in troubles} == {names[1]}


async def test_each_shard_has_its_share_of_the_concurrency(
    front: Connection, pools: list[asyncpg.Pool[Any]]
) -> None:
    at_work: list[int] = []
    is_over = asyncio.Event()

    async def handle(job: pgq.Job[Any]) -> None:
        at_work.append(job.id >> 48)
        await is_over.wait()

    async def share_is_full() -> bool:
        return len(at_work) == 7

    for _ in range(30):
        await pgq.Queue(front, schema=FRONT).enqueue(None)
    async with running(worker_on(pools, handle, concurrency=7)):
        await until(share_is_full)
        for pool in pools:
            await pool.fetch("select pgq_enqueue('1')")
        assert Counter(at_work) == {0: 3, 1: 2, 2: 2}
        is_over.set()
        await all_done(pools, 33)


async def test_what_a_worker_of_several_databases_refuses(pools: list[asyncpg.Pool[Any]]) -> None:
    with pytest.raises(ValueError, match="either pool or pools"):
        pgq.Worker(pools[0], pools=pools)
    with pytest.raises(ValueError, match="for one database"):
        await pgq.Worker(connect=asyncpg.connect).run(pools=pools)
    with pytest.raises(TypeError, match="pools must be Sequence"):
        pgq.Worker(pools=pools[0])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="less than one per database"):
        await worker_on(pools, Work().handle, concurrency=2).run(handle_signals=False)
    # What does not go away ends the run, whichever database it is of.
    await pools[2].execute("select pgq_drop_queue('default')")
    with pytest.raises(pgq.UnknownQueue):
        await worker_on(pools, Work().handle).run(handle_signals=False)


async def test_the_front_has_the_functions_of_the_shards(
    front: Connection, pools: list[asyncpg.Pool[Any]]
) -> None:
    theirs = {tuple(row) for row in await pools[0].fetch(FUNCTIONS)}

    assert {tuple(row) for row in await front.fetch(FUNCTIONS)} == theirs


async def test_the_front_keeps_the_order_of_a_batch(
    front: Connection, pools: list[asyncpg.Pool[Any]]
) -> None:
    queue = pgq.Queue(front, schema=FRONT)
    keys = [*map(str, range(20)), None, "3"]
    payloads = list(range(22))

    ids = await queue.enqueue_many(payloads, dedupe_keys=keys)

    found = {row["id"]: row["payload"] for pool in pools for row in await jobs(pool)}
    assert [found[job_id] for job_id in ids] == [*map(str, range(21)), "3"]
    assert await front.fetchval("select ready from pgq_queues where queue = 'default'") == 21


async def jobs(pool: asyncpg.Pool[Any]) -> list[asyncpg.Record]:
    """Return the jobs of a shard."""
    return await pool.fetch("select id, payload from pgq_jobs")


async def test_receipts_go_to_the_shards_of_their_jobs(front: Connection) -> None:
    queue = pgq.Queue(front, schema=FRONT)
    ids = [await queue.enqueue(n) for n in range(9)]
    taken: list[pgq.Job[Any]] = []
    while claimed := await queue.dequeue(2):
        assert len({job.id >> 48 for job in claimed}) == 1
        taken += claimed

    assert sorted(job.id for job in taken) == sorted(ids)
    assert len(await queue.heartbeat_many(taken)) == 9
    assert sorted(await queue.complete_many(taken[:6])) == sorted(job.id for job in taken[:6])
    assert await queue.complete(taken[6], {"result": 1})
    assert await queue.fail(taken[7], "error", retryable=False) == "dead"
    assert await queue.release(taken[8])
    assert not await queue.complete(taken[0])
    states = {
        row["id"]: row["state"] for row in await front.fetch("select id, state from pgq_jobs")
    }
    assert [states[job.id] for job in taken] == ["completed"] * 7 + ["dead", "ready"]
    assert await front.fetchval("select state from pgq_get($1)", taken[7].id) == "dead"


async def test_what_the_front_refuses_says_where_it_is_possible(front: Connection) -> None:
    keys = await keys_of_each_shard(front)
    first, second, third = [
        await front.fetchval("select pgq_enqueue('1', dedupe_key => $1)", key) for key in keys
    ]

    follower = await front.fetchval("select pgq_enqueue('1', after => array[$1::bigint])", third)
    assert follower >> 48 == third >> 48 == 2
    for call in (
        f"pgq_enqueue('1', after => array[{first}, {second}])",
        f"pgq_enqueue('1', dedupe_key => '{keys[0]}', after => array[{second}])",
        "pgq_pop()",
        "pgq_wait('{default}')",
        "pgq_set_shard(1)",
    ):
        with pytest.raises(asyncpg.FeatureNotSupportedError) as caught:
            await front.fetchval(f"select {call}")
        assert caught.value.hint


async def test_a_job_of_another_shard_is_an_error_of_its_own(
    front: Connection, pools: list[asyncpg.Pool[Any]]
) -> None:
    first, second = [pgq.Queue(pool) for pool in pools[:2]]
    await first.enqueue(1)
    [job] = await first.dequeue()

    for call in (
        partial(second.complete, job),
        partial(second.fail, job, "error"),
        partial(second.get, job.id),
    ):
        with pytest.raises(pgq.WrongShard) as caught:
            await call()
        assert (caught.value.sqlstate, caught.value.hint) == ("PQ002", "Ask shard 0.")
    # The front asks the shard that there is.
    with pytest.raises(pgq.WrongShard) as stray:
        await pgq.Queue(front, schema=FRONT).cancel((7 << 48) + 1)
    assert stray.value.hint == "Remote hint: Ask shard 7."
    assert await first.complete(job)


async def keys_of_each_shard(front: Connection) -> list[str]:
    """Return a key for each shard."""
    query = """
        select min(k) from generate_series(1, 99) n, lateral (select 'key' || n) k (k)
         group by _shard_of_key(k) order by _shard_of_key(k)"""
    return [row[0] for row in await front.fetch(query)]


async def test_a_drained_shard_gets_no_new_jobs_and_is_worked_off(
    front: Connection, fresh: list[Server], pools: list[asyncpg.Pool[Any]]
) -> None:
    keys = await keys_of_each_shard(front)
    queue = pgq.Queue(front, schema=FRONT)
    ids = await queue.enqueue_many([None] * 3, dedupe_keys=keys)
    for _ in range(6):
        ids.append(await queue.enqueue(None))
    expected = Counter(job_id >> 48 for job_id in ids)
    told: list[str] = []
    work = Work()
    async with sessions(dsn_of(fresh[-1]), 3, search_path=FRONT) as (older, killed, drainer):
        # It may have chosen the shard, and has sent nothing yet.
        await older.execute("begin; select 1")
        killed.add_log_listener(lambda _, message: told.append(message.message))

        async def has_told() -> bool:
            return bool(told)

        async with started(killed.execute("call drain(1)")) as call:
            await until(has_told)
            assert told == ["shard 1: 3 jobs left, 1 older transactions of the front"]
            killed.terminate()
            with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError):
                await call
        moved = await queue.enqueue_many([None] * 3, dedupe_keys=[f"{key} " for key in keys])
        again = await queue.enqueue_many([None] * 3, group_keys=keys)
        ids += [*moved, *again, *[await queue.enqueue(None) for _ in range(6)]]
        assert 1 not in {job_id >> 48 for job_id in ids[9:]}
        assert [again[0] >> 48, again[2] >> 48] == [0, 2], "no other key moves"
        # What waits for a job is where the job is.
        [first, *_] = [job_id for job_id in ids if job_id >> 48 == 1]
        ids.append(await queue.enqueue(None, after=[first]))
        expected[1] += 1
        async with (
            started(drainer.execute("call drain(1)")) as call,
            running(worker_on(pools, work.handle)),
        ):
            await all_done(pools, len(ids))
            assert not call.done(), "an older transaction may still enqueue there"
            await older.execute("commit")
            await within(call)

    assert work.runs == Counter(ids)
    assert work.on(1) == expected[1]


async def test_what_cannot_be_drained(front: Connection) -> None:
    await front.execute("select pgq_schedule('nightly', '0 3 * * *', '1')")
    shard = await front.fetchval("select _shard_of_key('nightly')")
    with pytest.raises(asyncpg.ObjectInUseError, match="has schedules"):
        await front.execute(f"call drain({shard})")
    await front.execute("select pgq_unschedule('nightly')")
    with pytest.raises(asyncpg.UndefinedObjectError, match="no shard 3"):
        await front.execute("call drain(3)")
    await front.execute("call drain(0)")
    await front.execute("call drain(1)")
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="no other shard"):
        await front.execute("call drain(2)")


async def test_a_job_with_a_key_can_wait_for_one_of_a_shard_that_is_drained(
    front: Connection, fresh: list[Server]
) -> None:
    keys = await keys_of_each_shard(front)
    queue = pgq.Queue(front, schema=FRONT)
    first = await queue.enqueue(None, dedupe_key=keys[1])
    other = await front.fetchval("""
        select max(k) from generate_series(1, 99) n, lateral (select 'other' || n) k (k)
         where _shard_of_key(k) = 1""")
    fresh[-1].psql(
        fresh[-1].psql(f"""
            select format('alter server pgq options (set p1 %L)',
                          place || ' application_name=drained')
              from {FRONT}._shards() where shard = 1""")
    )

    # The same key: the job is there already.
    assert await queue.enqueue(None, dedupe_key=keys[1], after=[first]) == first
    assert await queue.enqueue_many([None], dedupe_keys=[keys[1]], after=[first]) == [first]
    assert await queue.enqueue(None, dedupe_key=other, after=[first]) >> 48 == 1
    assert await queue.enqueue(None, after=[first]) >> 48 == 1
    assert await queue.enqueue(None, dedupe_key=keys[1]) >> 48 != 1
    # This one's key never was there.
    with pytest.raises(pgq.Error, match="cannot wait for jobs of other shards"):
        await queue.enqueue(None, dedupe_key=keys[0], after=[first])


async def test_draining_under_load_loses_nothing_whenever_it_is_killed(
    front: Connection, fresh: list[Server], pools: list[asyncpg.Pool[Any]]
) -> None:
    work = Work()
    told: list[str] = []
    gate = f"alter server pgq options (set p0 '{await place_of_the_first(front)}')"
    dsn = dsn_of(fresh[-1])
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(worker_on(pools, work.handle)))
        older, *drainers, last = await stack.enter_async_context(
            sessions(dsn, 5, search_path=FRONT)
        )
        load = await stack.enter_async_context(contextlib.AsyncExitStack())
        ids = await load.enter_async_context(producing(fresh[-1]))
        for drainer in drainers:
            drainer.add_log_listener(lambda _, message: told.append(message.message))

        async def killed(drainer: Connection, when: str) -> None:
            async def is_due() -> bool:
                return bool(
                    any(when in line for line in told)
                    or await older.fetchval(
                        "select wait_event_type = $2 from pg_stat_activity where pid = $1",
                        drainer.get_server_pid(),
                        when,
                    )
                )

            async with started(drainer.execute("call drain(1)")) as call:
                await until(is_due)
                await front.execute(
                    "select pg_terminate_backend($1, 60000)", drainer.get_server_pid()
                )
                with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError):
                    await call

        await more(ids)
        # Before the mark is there; then with jobs left, then with none but somebody at work.
        await older.execute(f"begin; {gate}")
        await killed(drainers[0], "Lock")
        await older.execute("rollback; begin; select 1")
        assert not await front.fetchval("select bool_or(is_drained) from _shards()")
        await more(ids)
        held = await pools[1].fetchval("select pgq_enqueue('1', run_at => now() + '1 day')")
        await killed(drainers[1], "shard 1: 1 jobs left, ")
        await pools[1].fetchval("select pgq_cancel($1)", held)
        await killed(drainers[2], "shard 1: 0 jobs left, ")
        await older.execute("rollback")
        await within(last.execute("call drain(1)"))
        before = set(ids)
        await more(ids)
        after = ids - before
        await load.aclose()
        await all_done(pools, len(ids))

    assert 1 in {job_id >> 48 for job_id in before}
    assert 1 not in {job_id >> 48 for job_id in after}
    assert work.runs == Counter(ids)


async def place_of_the_first(front: Connection) -> str:
    """Return where shard 0 is."""
    return str(await front.fetchval("select place from _shards() where shard = 0"))


async def test_a_schedule_stays_where_it_is_when_a_shard_comes(
    front: Connection, fresh: list[Server], pools: list[asyncpg.Pool[Any]]
) -> None:
    [*_, name] = await keys_of_each_shard(front)
    admin = pgq.Admin(front, schema=FRONT)
    query = "select cron, paused from pgq_schedules"
    with without_the_last(fresh[-1]) as add:
        await admin.schedule(name, "@daily")
        add()
        assert await front.fetchval("select _shard_of_key($1)", name) == 2

        assert await admin.pause_schedule(name)
        await admin.schedule(name, "@hourly")
        assert sorted([len(await pool.fetch(query)) for pool in pools]) == [0, 0, 1]
        assert [tuple(row) for row in await front.fetch(query)] == [("@hourly", True)]
        job_id = await admin.run_schedule(name)
        assert job_id is not None
        assert job_id >> 48 < 2
        assert await admin.resume_schedule(name)
        assert await admin.unschedule(name)
        assert not await admin.unschedule(name)
        assert await admin.run_schedule(name) is None
        await admin.schedule(name, "@daily")
        assert [len(await pool.fetch(query)) for pool in pools] == [0, 0, 1]
        with pytest.raises(asyncpg.NullValueNotAllowedError):
            await front.execute("select pgq_schedule(null, '@daily')")


async def test_a_schedule_enqueues_to_all_shards_as_the_documentation_shows(
    front: Connection, fresh: list[Server], pools: list[asyncpg.Pool[Any]]
) -> None:
    [command] = [text for text in snippets(PAGE, "sql") if "pgq_schedule(" in text]
    [program] = [text for text in snippets(PAGE, "python") if "pgq_scheduled_at" in text]
    shop: dict[str, Any] = {"asyncpg": asyncpg, "pgq": pgq}
    exec(program.replace("postgresql://front.internal/front", url_of(dsn_of(fresh[-1]))), shop)
    await front.execute(command)
    await front.execute("select pgq_configure_queue('nightly', backoff_base => '0.1 seconds')")
    job_id = await pgq.Admin(front, schema=FRONT).run_schedule("invoices")
    assert job_id is not None
    home = pools[job_id >> 48]
    # The last one: the others have their jobs already when it refuses.
    down = fresh[max({0, 1, 2} - {job_id >> 48})]
    shard_of = {
        name: await front.fetchval("select _shard_of_key($1)", name) for name in shop["CUSTOMERS"]
    }

    async def was_retried() -> bool:
        return bool(await home.fetchval("select attempt > 1 from pgq_get($1)", job_id))

    async def is_done() -> bool:
        return bool(await home.fetchval("select state = 'completed' from pgq_get($1)", job_id))

    down.stop("kill")
    task = asyncio.create_task(shop["worker"].run(pools=pools, handle_signals=False))
    await until(was_retried)
    await asyncio.to_thread(down.start)
    await until(is_done)
    shop["worker"].stop()
    await within(task)

    # Not by the front, whose connection to the shard that was killed is broken once more.
    query = "select id, payload from pgq_jobs where queue = 'invoices'"
    rows = [row for pool in pools for row in await pool.fetch(query)]
    assert sorted(shard_of.values()) == [0, 1, 2]
    assert sorted((json.loads(row["payload"])["customer"], row["id"] >> 48) for row in rows) == (
        sorted(shard_of.items())
    )


async def test_the_views_of_the_front_gather(
    front: Connection, pools: list[asyncpg.Pool[Any]]
) -> None:
    keys = await keys_of_each_shard(front)
    admin = pgq.Admin(front, schema=FRONT)
    await admin.configure_queue("default", description="what there is", max_attempts=3)
    await front.execute("select pgq_grant('default', 'public', '{observe}')")
    for key in keys:
        await admin.schedule(key, "@daily")
    for pool in pools:
        await pool.execute("select pgq_enqueue('1') from generate_series(1, 2)")
    is_over = asyncio.Event()

    async def handle(_: pgq.Job[Any]) -> None:
        await is_over.wait()

    async with running(worker_on(pools, handle, concurrency=3)):

        async def are_held() -> bool:
            return bool(await front.fetchval("select sum(jobs) from pgq_workers") == 3)

        await until(are_held)
        workers = await front.fetch("select * from pgq_workers")
        assert len(workers) == 3
        assert len({row["worker"] for row in workers}) == 1
        theirs = [await pool.fetchrow("select * from pgq_queues") for pool in pools]
        [ours] = await front.fetch("select * from pgq_queues")
        for name in ("ready", "active", "completed_last_hour"):
            assert ours[name] == sum(row[name] for row in theirs if row)
        assert ours["active"] == 3
        assert ours["oldest_ready_age"] >= max(row["oldest_ready_age"] for row in theirs if row)
        is_over.set()
    assert [row["name"] for row in await front.fetch("select * from pgq_schedules")] == keys
    [settings] = await front.fetch("select * from pgq_queue_settings")
    assert (settings["description"], settings["max_attempts"]) == ("what there is", 3)
    granted = [tuple(row) for row in await pools[0].fetch("select * from pgq_privileges")]
    assert [tuple(row) for row in await front.fetch("select * from pgq_privileges")] == granted
    assert granted


async def test_the_front_tells_that_limits_are_for_each_shard(fresh: list[Server]) -> None:
    told: list[str] = []
    async with sessions(dsn_of(fresh[-1]), 1, search_path=FRONT) as (front,):
        front.add_log_listener(lambda _, message: told.append(message.message))
        await front.execute("select pgq_configure_queue('default', max_attempts => 2)")
        await front.execute("select pgq_create_queue('other')")
        assert not told
        await front.execute("select pgq_configure_queue('default', max_active => 10)")
        await front.execute("select pgq_create_queue('more', rate_limit => 10)")

    assert told == ["max_active, rate_limit and max_ready are for each of 3 shards"] * 2


async def test_a_worker_listens_to_all_shards(
    pools: list[asyncpg.Pool[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pgq")
    work = Work()
    worker = pgq.Worker(pools=pools, poll_interval=timedelta(minutes=5))
    worker.handler("default", concurrency=3)(work.handle)

    async def have_started() -> bool:
        return sum("has started" in record.getMessage() for record in caplog.records) == 3

    async with running(worker):
        await until(have_started)
        for number in range(1, 4):
            ids = [await pool.fetchval("select pgq_enqueue('1')") for pool in pools]

            async def are_done(goal: int = 3 * number) -> bool:
                return work.runs.total() == goal

            await until(are_done, patience=20)
            assert {job_id >> 48 for job_id in ids} == {0, 1, 2}


async def test_a_slow_shard_costs_the_others_nothing(
    front: Connection, fresh: list[Server]
) -> None:
    work = Work()
    ids = await produce(front, JOBS)
    expected = Counter(job_id >> 48 for job_id in ids)
    with Proxy(dsn_of(fresh[1])) as proxy:
        async with opened(fresh[:-1]) as pools, through(proxy) as slow:
            worker = worker_on([pools[0], slow, pools[2]], work.handle)

            async def some_are_done() -> bool:
                return all(work.on(shard) for shard in range(3))

            async def others_are_done() -> bool:
                return all(work.on(shard) == expected[shard] for shard in (0, 2))

            async with running(worker):
                await until(some_are_done)
                proxy.hold(up=True, down=True)
                await until(others_are_done)
                late = [
                    await pool.fetchval("select pgq_enqueue('1')") for pool in (pools[0], pools[2])
                ]

                async def late_are_done() -> bool:
                    return all(work.runs[job_id] for job_id in late)

                await until(late_are_done, patience=5)
                proxy.heal()
                await all_done(pools, JOBS + 2)


@contextlib.asynccontextmanager
async def through(proxy: Proxy) -> AsyncGenerator[asyncpg.Pool[Any]]:
    """Open a pool whose connections go through a proxy."""
    pool: asyncpg.Pool[Any] = asyncpg.create_pool(**proxy.dsn, min_size=0, max_size=8)
    await pool
    yield pool
    pool.terminate()


async def test_the_others_keep_their_rate_while_a_shard_is_down(
    fresh: list[Server], pools: list[asyncpg.Pool[Any]]
) -> None:
    done: Counter[int] = Counter()

    async def handle(job: pgq.Job[Any]) -> None:
        done[job.id >> 48] += 1
        await asyncio.sleep(0.01)  # the work, not the machine, is the limit

    async def rate() -> float:
        before, began = done[0] + done[2], time.monotonic()

        async def is_over() -> bool:
            return time.monotonic() - began > DOWN_SECONDS

        await until(is_over, pause=0.05)
        return (done[0] + done[2] - before) / (time.monotonic() - began)

    jobs = int(DOWN_SECONDS * 2000)
    for pool in pools:
        await pool.execute("select pgq_enqueue_many(array_fill('1'::jsonb, array[$1::int]))", jobs)
    worker = worker_on(pools, handle)

    async def all_work() -> bool:
        return all(done[shard] for shard in range(3))

    async with running(worker):
        await until(all_work)
        before = await rate()
        fresh[1].stop("kill")
        during = await rate()
        fresh[1].start()
        of_killed = done[1]

        async def is_back() -> bool:
            return done[1] > of_killed

        await until(is_back)
    print(f"jobs per second of the others: {before:.0f}, {during:.0f}")
    assert during >= KEPT * before


async def test_databases_come_and_go_while_a_worker_runs(
    fresh: list[Server], pools: list[asyncpg.Pool[Any]]
) -> None:
    work = Work()
    at_work: Counter[int] = Counter()
    is_over = asyncio.Event()
    worker = pgq.Worker(pools=pools[:2])

    async def handle(job: pgq.Job[Any]) -> None:
        at_work[job.id >> 48] += 1
        await is_over.wait()
        await work.handle(job)

    worker.handler("default", concurrency=6)(handle)
    ids = [await pgq.Queue(pool).enqueue(n) for pool in pools for n in range(9)]
    with pytest.raises(RuntimeError, match="does not run with pools"):
        await worker.change_pools(pools)

    def are_at_work(*numbers: int) -> Callable[[], Any]:
        async def condition() -> bool:
            return [at_work[shard] for shard in range(3)] == [*numbers]

        return condition

    async with running(worker):
        await until(are_at_work(3, 3, 0))
        with pytest.raises(ValueError, match="no pool"):
            await worker.change_pools([])
        async with asyncpg.create_pool(**dsn_of(fresh[2], "postgres"), min_size=0) as wrong:
            with pytest.raises(pgq.NotInstalled):
                await worker.change_pools([*pools, wrong])
        await worker.change_pools(pools)
        await until(are_at_work(3, 3, 2))
        async with started(worker.change_pools(pools[:1])) as change:
            # It has all of the concurrency now; the others end what they have begun.
            await until(are_at_work(6, 3, 2))
            assert not change.done()
            is_over.set()
            await within(change)
        await all_done(pools[:1], 9)
    assert set(work.runs) == {*ids[:9], *ids[9:12], *ids[18:20]}
    assert max(work.runs.values()) == 1


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_shard_more_is_a_reload(
    front: Connection,
    fresh: list[Server],
    pools: list[asyncpg.Pool[Any]],
    tmp_path: Path,
    processes: int,
) -> None:
    for pool in pools:
        await pool.execute("create table done (id bigint)")
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    file = tmp_path / "shards"
    urls = [url_of(dsn_of(server)) for server in fresh[:-1]]
    options = ["--dsn-file", str(file), "--processes", str(processes), "--log-json"]

    async def have_done(ids: set[int], shards: range) -> bool:
        rows = [await pools[shard].fetch("select id from done") for shard in shards]
        return {row[0] for of_one in rows for row in of_one} >= ids

    file.write_text("\n".join(["# The shards.", "", *urls[:2]]), encoding="utf-8")
    with without_the_last(fresh[-1]) as add:
        async with running_command(
            dsn_of(fresh[0]), "worker", "shop:worker", *options, cwd=tmp_path
        ) as worker:

            async def change(*lines: str, logged: str) -> None:
                file.write_text("\n".join(lines), encoding="utf-8")
                worker.process.send_signal(signal.SIGHUP)
                for _ in range(processes):
                    await worker.logged(logged)

            for _ in range(2 * processes):
                await worker.logged("has started")
            async with producing(fresh[-1]) as ids:
                await more(ids)
                await change(logged="names no database")
                await change(*urls, url_of(dsn_of(fresh[0]), database="x"), logged="does not exist")
                await more(ids)
                assert {job_id >> 48 for job_id in ids} == {0, 1}
                await change(*urls, logged="databases of the worker: 3")
                add()
                await more(ids, 80)
            assert {job_id >> 48 for job_id in ids} == {0, 1, 2}
            await until(partial(have_done, ids, range(3)))
            await change(*urls[:2], logged="databases of the worker: 2")
            late = {await pool.fetchval("select pgq_enqueue('1')") for pool in pools[:2]}
            left = await pools[2].fetchval("select pgq_enqueue('1')")
            await until(partial(have_done, late, range(2)))
            assert not await have_done({left}, range(2, 3))
            assert await worker.terminated() == 0
    rows = [row[0] for pool in pools for row in await pool.fetch("select id from done")]
    assert Counter(rows) == Counter(ids | late)


async def test_the_command_makes_the_front_and_drains(
    front: Connection, fresh: list[Server], pools: list[asyncpg.Pool[Any]]
) -> None:
    del front
    at_front = Cli(variables(dsn_of(fresh[-1])))
    at_shard = Cli(variables(dsn_of(fresh[0])))

    def run() -> None:
        fresh[-1].psql("drop schema pgq_proxy cascade")
        assert "no front. Hint: pgq shard install" in at_front.fails(3, "shard", "drain", "1")
        assert "no server pgq" in at_shard.fails(3, "shard", "install")
        assert at_front.json("shard", "install") == {"shards": 3}
        assert "front of 3 shards" in at_front.ok("shard", "install")
        assert "there is no shard 3" in at_front.fails(1, "shard", "drain", "3")

    await asyncio.to_thread(run)
    job_id = await pools[1].fetchval("select pgq_enqueue('1')")
    command = ("shard", "drain", "1")
    async with running_command(dsn_of(fresh[-1]), *command) as drain:
        await drain.until(lambda line: "shard 1: 1 jobs left" in line)
        assert await pools[1].fetchval("select pgq_cancel($1)", job_id)
        assert await drain.ended() == 0


async def test_the_front_passes_by_a_shard_that_is_down(
    front: Connection, fresh: list[Server]
) -> None:
    await front.execute("select pgq_enqueue('1') from generate_series(1, 9)")
    fresh[2].stop("kill")
    claimed: list[int] = []
    while rows := await front.fetch("select id from pgq_dequeue()"):
        claimed += [row["id"] for row in rows]
    fresh[2].start()

    assert Counter(job_id >> 48 for job_id in claimed) == {0: 3, 1: 3}
    assert len(await front.fetch("select id from pgq_dequeue(9)")) == 3


def test_an_id_tells_its_shard_as_the_documentation_shows(servers: list[Server]) -> None:
    servers[2].psql("create database shown template ready", database="postgres")

    assert servers[2].psql(snippets(PAGE, "sql")[0], database="shown").split() == ["2"]


def test_the_front_can_be_made_again_and_refuses_shards_in_another_order(
    fresh: list[Server],
) -> None:
    front = fresh[-1]
    script = pgshards.SCRIPT.read_text(encoding="utf-8")
    first, second = front.psql("""
        select o.option_value from pg_foreign_server s, pg_options_to_table(s.srvoptions) o
         where o.option_name in ('p0', 'p1') order by o.option_name""").splitlines()
    swap = "alter server pgq options (set p0 '{}', set p1 '{}')"
    front.psql(script)
    front.psql(swap.format(second, first))
    with pytest.raises(ServerError, match="this database is shard 1 already"):
        front.psql(script)
    front.psql(swap.format(first, second))

    assert front.psql(f"select {FRONT}.pgq_enqueue('1')")
