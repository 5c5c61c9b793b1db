"""Consumers, backends and the server are killed: nothing is lost and no effect happens twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial

import asyncpg
import pgq
import pytest
import pytest_asyncio
from pgserver import Server

from .sessions import Connection, connect, dsn_of, until

pytestmark = pytest.mark.server

ROUNDS = 20
PER_ROUND = 150
GONE = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)  # the server, or its answer

WORKER = """
import asyncio, json, sys
import asyncpg

async def work(dsn):
    connection = await asyncpg.connect(**dsn)
    await connection.execute("set pgq.slot_size = 16384")
    while True:
        jobs = await connection.fetch("select * from pgq_dequeue(5, '300 ms')")
        for job in jobs:
            async with connection.transaction():
                await connection.execute("insert into effect values ($1)", job["id"])
                if not await connection.fetchval(
                    "select pgq_complete($1::bigint, $2::bigint)", job["id"], job["token"]
                ):
                    await connection.execute("delete from effect where ctid = any (array("
                        "select ctid from effect where job = $1 and xmin = "
                        "pg_current_xact_id()::xid limit 1))", job["id"])
        if not jobs:
            await asyncio.sleep(0.01)

async def main(dsn):
    while True:
        try:
            await work(dsn)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await asyncio.sleep(0.02)

asyncio.run(main(json.loads(sys.argv[1])))
"""


@pytest_asyncio.fixture
async def faulty() -> AsyncIterator[Server]:
    """A server that may be killed: with fsync on."""
    version = os.environ.get("PGQ_TEST_VERSION")
    with Server(int(version) if version else None) as server:
        server.psql("create extension pgq; create table effect (job bigint)")
        yield server


async def reconnect(server: Server) -> Connection:
    """Connect as soon as the server takes connections again."""

    async def attempt() -> Connection | None:
        with contextlib.suppress(*GONE):
            return await connect(dsn_of(server), pgq__slot_size="16384")
        return None

    found = await until(attempt)
    assert found is not None
    return found


async def produce(server: Server, committed: set[int]) -> None:
    """Enqueue in a transaction; count only what has certainly committed."""
    connection = await reconnect(server)
    # Without an answer nobody knows; such jobs may run, but need not.
    with contextlib.suppress(*GONE):
        rows = await connection.fetch(
            "select pgq_enqueue_many(array_fill(jsonb '1', array[$1::int]))", PER_ROUND
        )
        committed.update(row[0] for row in rows)
        # Such a producer dies with its jobs.
        await connection.execute("begin")
        await connection.execute("select pgq_enqueue('\"never\"')")
    connection.terminate()


def start_worker(server: Server) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, json.dumps(dsn_of(server))])


async def kill_a_backend(server: Server, chance: random.Random) -> None:
    """SIGKILL a backend of a worker, and wait until the server has begun to restart them all.

    Until it has noticed, it takes connections that it is about to end.
    """
    connection = await reconnect(server)
    with contextlib.suppress(*GONE):
        while victims := await backends(connection):
            victim = chance.choice(victims)
            # One whose client is gone may be ending by itself, which nobody restarts for.
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            await until(partial(has_ended, connection, victim))
    connection.terminate()


async def backends(connection: Connection) -> list[int]:
    """Return the process ids of all other backends that serve clients of this database."""
    rows = await connection.fetch(
        "select pid from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'"
    )
    return [row[0] for row in rows]


async def has_ended(connection: Connection, pid: int) -> bool:
    """Tell whether a backend has ended by itself; one that was killed stays on the list."""
    return pid not in await backends(connection)


async def test_nothing_is_lost_and_no_effect_is_doubled_by_twenty_crashes(
    faulty: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("PGQ_FAULT_SEED", "0")) or random.randrange(1, 10**9)
    chance = random.Random(seed)
    committed: set[int] = set()
    workers = [start_worker(faulty) for _ in range(3)]
    faults = (["client", "backend", "immediate"] * ROUNDS)[:ROUNDS]
    chance.shuffle(faults)
    try:
        for fault in faults:
            await produce(faulty, committed)
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            if fault == "client":
                victim = workers.pop(0)
                victim.kill()
                victim.wait()
                workers.append(start_worker(faulty))
            elif fault == "backend":
                await kill_a_backend(faulty, chance)
            else:
                await asyncio.to_thread(faulty.restart, "immediate")
        connection = await reconnect(faulty)

        left: int = await connection.fetchval("select count(*) from pgq.job")

        async def fewer() -> bool:
            nonlocal left
            before, left = left, await connection.fetchval("select count(*) from pgq.job")
            return left < before

        while left:
            await until(fewer)
        effects = [row[0] for row in await connection.fetch("select job from effect")]
        dead = await connection.fetchval(
            "select count(*) from pgq.archive where state <> 'completed'"
        )
        turned = await connection.fetchval("select max(gen) from pgq.ring")
        connection.terminate()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    with capsys.disabled():
        print(f"\n{ROUNDS} crashes (PGQ_FAULT_SEED={seed}), {turned} turns of the ring")
    assert len(effects) == len(set(effects)), f"done twice, PGQ_FAULT_SEED={seed}"
    assert committed <= set(effects), f"lost, PGQ_FAULT_SEED={seed}"
    assert len(committed) > ROUNDS * PER_ROUND / 2
    assert dead == 0
    assert turned > 5


async def test_a_claim_that_a_crash_has_lost_leaves_no_good_receipt(faulty: Server) -> None:
    """A sequence falls back with the transactions that committed asynchronously."""
    faulty.psql("alter system set wal_writer_delay = '10s'; select pg_reload_conf()")
    for _ in range(3):
        connection = await reconnect(faulty)
        await connection.execute("select pgq_purge('default'), pgq_enqueue('0'), pgq_enqueue('1')")
        assert await connection.fetchval("select id from pgq_dequeue(1, '1 hour')")
        (stale,) = await pgq.Queue(connection).dequeue(
            timeout=timedelta(milliseconds=1), durable=False
        )
        await asyncio.to_thread(faulty.restart, "immediate")
        connection.terminate()
        connection = await reconnect(faulty)

        async def again(session: Connection = connection) -> asyncpg.Record | None:
            return await session.fetchrow("select * from pgq_dequeue(1, '1 minute')")

        good = await until(again)
        assert good is not None
        assert (good["id"], good["token"] > stale.receipt.token) == (stale.id, True)
        complete = "select pgq_complete($1::bigint, $2::bigint)"
        assert not await connection.fetchval(complete, *stale.receipt)
        assert await connection.fetchval(complete, good["id"], good["token"])
        asynchronous = connection.get_server_version().major >= 15
        assert good["attempt"] == (1 if asynchronous else 2), "the claim must have been lost"
        connection.terminate()


async def test_the_first_claim_after_a_start_is_durable(faulty: Server) -> None:
    """It has skipped the tokens that may have been lost: a crash must not undo that."""
    faulty.psql("alter system set wal_writer_delay = '10s'; select pg_reload_conf()")
    connection = await reconnect(faulty)
    await connection.execute("select pgq_enqueue('1')")
    (first,) = await pgq.Queue(connection).dequeue(durable=False)
    await asyncio.to_thread(faulty.restart, "immediate")
    connection.terminate()
    connection = await reconnect(faulty)
    assert await connection.fetchval("select id from pgq.job where token is not null") == first.id
    connection.terminate()


async def test_a_prepared_transaction_that_came_later_keeps_no_dropped_queue(
    faulty: Server,
) -> None:
    """After a start, a prepared transaction has no other name than its id."""
    faulty.psql("alter system set max_prepared_transactions = 2")
    await asyncio.to_thread(faulty.restart)
    knows, later = await reconnect(faulty), await reconnect(faulty)
    await knows.execute("select pgq_create_queue('q')")
    await knows.execute("begin; select pgq_enqueue('1', 'q'); prepare transaction 'knows'")
    await later.execute("select pgq_drop_queue('q')")
    await later.execute("select pgq_maintain()")
    await later.execute("begin; select pgq_enqueue('1'); prepare transaction 'later'")
    await asyncio.to_thread(faulty.restart)
    for connection in (knows, later):
        connection.terminate()
    connection = await reconnect(faulty)
    left = "select count(*) from pgq.dropped"
    await connection.execute("select pgq_maintain()")
    assert await connection.fetchval(left) == 1
    await connection.execute("commit prepared 'knows'")
    for _ in range(3):
        await connection.execute("select pgq_maintain()")
    assert await connection.fetchval(left) == 0
    await connection.execute("commit prepared 'later'")
    connection.terminate()
