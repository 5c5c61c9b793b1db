"""What a failover to a standby that lacks the last commits loses, and what it does not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

import pytest
from pgserver import Server

from tests.python.sessions import (
    Connection,
    Receipt,
    complete,
    connect,
    dequeue,
    dsn_of,
    enqueue,
    sessions,
    until,
)

from .cluster import Cluster

pytestmark = pytest.mark.long

REPLAYED = """
    select exists (select from pg_stat_replication where replay_lsn >= pg_current_wal_insert_lsn())
"""
STATES = "select id, state from pgq_jobs where id = any ($1)"
WAITS = "select wait_event = 'SyncRep' from pg_stat_activity where pid = $1"
LARGE = """
    select pgq_enqueue(to_jsonb(string_agg(md5(random()::text), ''))) from generate_series(1, 1000)
"""
DECLINED = "because i am not the healthiest node"
BOUND = 1 << 20  # bytes, as deploy/ has it
FAR = 16 << 20


def prepare(server: Server) -> None:
    """Install pgq."""
    server.psql("create extension pgq")


async def cut(cluster: Cluster, session: Connection) -> None:
    """Let the standby get what there is, and nothing after that."""
    await until(lambda: session.fetchval(REPLAYED))
    leader, _ = await asyncio.to_thread(cluster.roles)
    await asyncio.to_thread(leader.hold, etcd=False)


@contextlib.asynccontextmanager
async def failed_over(cluster: Cluster) -> AsyncGenerator[Connection]:
    """Kill the leader, and yield a session of the new one; the old one comes back at the end."""
    old, new = await asyncio.to_thread(cluster.roles)
    await asyncio.to_thread(old.kill)
    session = await connect(dsn_of(new.server))
    try:
        await until(lambda: session.fetchval("select not pg_is_in_recovery()"), pause=0.05)
        yield session
        await asyncio.to_thread(old.heal)
        old.start()
        await asyncio.to_thread(cluster.wait_until_whole)
    finally:
        session.terminate()


async def states(session: Connection, *ids: int) -> dict[int, str]:
    """Return the states of those jobs that are there."""
    return {row["id"]: row["state"] for row in await session.fetch(STATES, ids)}


async def test_what_an_asynchronous_failover_loses() -> None:
    with Cluster(prepare, synchronous_mode=False, maximum_lag_on_failover=FAR) as cluster:
        leader, _ = await asyncio.to_thread(cluster.roles)
        async with sessions(dsn_of(leader.server), 1) as (session,):
            first = await enqueue(session, 5)
            kept = await dequeue(session)
            await cut(cluster, session)
            # All of this is answered, and none of it reaches the standby.
            done = await dequeue(session)
            assert await complete(session, done) == [done[0][0]]
            lost = await enqueue(session, 100)
            refused = [*done, *await dequeue(session, 50)]
        async with failed_over(cluster) as session:
            assert await states(session, *lost) == {}, "acknowledged enqueues are lost"
            expected = dict.fromkeys(first, "ready") | {kept[0][0]: "active"}
            assert await states(session, *first) == expected, "claims and completions are undone"
            assert await complete(session, refused) == [], "no receipt is good without its claim"

            claims = await dequeue(session, 10)
            assert {job_id for job_id, _ in claims} == {*first} - {kept[0][0]}
            assert min(token for _, token in claims) > max(token for _, token in refused)
            assert await complete(session, refused) == [], "nor is it for the claim of another"
            assert await complete(session, kept) == [kept[0][0]], "what was replicated is good"
            assert sorted(await complete(session, claims)) == sorted(i for i, _ in claims)
            await check_ids(session, lost, refused)


async def check_ids(session: Connection, lost: list[int], refused: list[Receipt]) -> None:
    """Other jobs get the ids of lost jobs; the receipts of those do not fit them."""
    again = await enqueue(session, 200)
    assert {*again} & {*lost}, "ids of lost jobs are given again"
    claims = await dequeue(session, 200)
    assert {job_id for job_id, _ in claims} & {job_id for job_id, _ in refused}
    assert await complete(session, refused) == []
    assert len(await complete(session, claims)) == 200


async def test_a_standby_that_lacks_too_much_is_not_promoted() -> None:
    with Cluster(prepare, synchronous_mode=False) as cluster:
        leader, standby = await asyncio.to_thread(cluster.roles)
        async with sessions(dsn_of(leader.server), 1) as (session,):
            await cut(cluster, session)
            ids = [await session.fetchval(LARGE) for _ in range(100)]

        async def is_known() -> bool:
            """Tell whether the leader has told etcd how far it is."""
            return await asyncio.to_thread(cluster.lag) > BOUND

        async def has_declined() -> bool:
            return standby.logged("exceeds maximum replication lag") > 0

        await until(is_known, pause=0.2)
        await asyncio.to_thread(leader.kill)
        await asyncio.to_thread(leader.heal)
        await until(has_declined, pause=0.2)
        leader.start()
        assert (await asyncio.to_thread(cluster.roles))[0] is leader
        await asyncio.to_thread(cluster.wait_until_whole)
        async with sessions(dsn_of(leader.server), 1) as (session,):
            assert await states(session, *ids) == dict.fromkeys(ids, "ready")


async def test_a_standby_that_is_cut_off_delays_commits_once_and_is_not_promoted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Cluster(prepare) as cluster:
        leader, standby = await asyncio.to_thread(cluster.roles)
        async with sessions(dsn_of(leader.server), 2) as (session, other):
            pid = session.get_server_pid()
            await cut(cluster, session)
            begin = time.monotonic()
            call = asyncio.ensure_future(session.fetchval("select pgq_enqueue('1')"))
            await until(lambda: other.fetchval(WAITS, pid))
            job_id = await call
            with capsys.disabled():
                print(f"\na commit waited {time.monotonic() - begin:.1f} s")
            assert await session.fetchval("show synchronous_standby_names") == ""
            await session.fetchval("select pgq_enqueue('1')", timeout=1)
        await asyncio.to_thread(leader.kill)
        before = standby.logged(DECLINED)

        async def has_declined() -> bool:
            return standby.logged(DECLINED) > before

        await until(has_declined, pause=0.2)
        await asyncio.to_thread(leader.heal)
        leader.start()
        assert (await asyncio.to_thread(cluster.roles))[0] is leader
        await asyncio.to_thread(cluster.wait_until_whole)
        async with sessions(dsn_of(leader.server), 1) as (session,):
            assert await states(session, job_id) == {job_id: "ready"}


async def test_a_wait_for_the_standby_that_is_cancelled_is_answered_and_may_be_lost() -> None:
    with Cluster(prepare) as cluster:
        leader, _ = await asyncio.to_thread(cluster.roles)
        async with sessions(dsn_of(leader.server), 2) as (session, other):
            told: list[str] = []
            session.add_log_listener(lambda _, message: told.append(message.message))
            pid = session.get_server_pid()
            await cut(cluster, session)
            with pytest.raises(TimeoutError):
                await other.fetchval("select pgq_enqueue('1')", timeout=0.5)
            call = asyncio.ensure_future(session.fetchval("select pgq_enqueue('1')"))
            await until(lambda: other.fetchval(WAITS, pid))
            await other.execute("select pg_cancel_backend($1)", pid)
            job_id = await call
            assert told == ["canceling wait for synchronous replication due to user request"]
            assert await states(other, job_id) == {job_id: "ready"}
        async with failed_over(cluster) as session:
            assert await states(session, job_id) == {}
