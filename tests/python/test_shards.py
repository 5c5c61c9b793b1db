"""Several databases share the jobs: ids that know their shard, a front of PL/Proxy, workers on all.

The front is set up as the documentation says. PGQ_SHARD_JOBS is for longer runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import asyncpg
import pgq
import pgshards
import pytest
import pytest_asyncio
from pgq._log import name_of
from pgserver import Server, ServerError

from .pages import read, snippets
from .sessions import Connection, dsn_of, sessions, started, until, within
from .workers import running

pytestmark = [pytest.mark.once, pytest.mark.server]

JOBS: Final = int(os.environ.get("PGQ_SHARD_JOBS", "300"))
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
    with pytest.raises(asyncpg.PostgresError) as stray:
        await front.fetchval("select pgq_cancel($1)", (7 << 48) + 1)
    assert (stray.value.sqlstate, stray.value.hint) == ("PQ002", "Remote hint: Ask shard 7.")


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
