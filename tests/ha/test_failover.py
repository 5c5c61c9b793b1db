"""The leader of a cluster changes under load: nothing is lost or done twice, and work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from pgserver import Server

from tests.python.sessions import Dsn, dsn_of, sessions, until

from .cluster import Cluster
from .load import Act, Change, prepare, run

Check: TypeAlias = "Callable[[str, Cluster, Dsn, Act], Awaitable[None]]"

SECONDS = 15.0
"""Within these the workers have completed a job at the new leader, on a busy machine, too."""
WAITING = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"


async def kill(change: Change) -> None:
    """Kill the leader, and its Patroni; nobody starts them again before the work goes on."""
    await asyncio.to_thread(change.old.kill)
    await change.promoted()
    await change.works()
    change.old.start()
    await asyncio.to_thread(change.cluster.wait_until_whole)


async def kill_strictly(change: Change) -> None:
    """Do the same where no commit is answered without a standby: work waits for the old leader."""
    await asyncio.to_thread(change.old.kill)
    await change.promoted()
    async with sessions(dsn_of(change.new.server), 1) as (session,):
        await until(lambda: session.fetchval(WAITING), pause=0.05)
        change.old.start()
        await asyncio.to_thread(change.cluster.wait_until_whole)
    await change.works()


async def switch_over(change: Change) -> None:
    """Have the nodes change their roles."""
    switch = asyncio.create_task(asyncio.to_thread(change.cluster.switch_over))
    await change.promoted()
    await switch
    await change.works()
    await asyncio.to_thread(change.cluster.wait_until_whole)


async def isolate(change: Change) -> None:
    """Cut the leader off from etcd, from the other node, and from HAProxy."""
    await asyncio.to_thread(change.old.hold, etcd=True)
    await change.promoted()
    await change.works()
    await asyncio.to_thread(change.old.heal)
    await asyncio.to_thread(change.cluster.wait_until_whole)


@pytest.fixture
def check(spared: Server, capsys: pytest.CaptureFixture[str]) -> Check:
    """Let the leader change, judge, and print what it cost."""

    async def checked(name: str, cluster: Cluster, dsn: Dsn, act: Act) -> None:
        result = await run(name, cluster, dsn, act, spared)
        with capsys.disabled():
            print(f"\n{result}")
        assert result.figures.at_risk > 0
        assert result.figures.is_good, result.figures
        assert result.change.until_work < SECONDS or act is kill_strictly

    return checked


async def test_a_leader_that_is_killed_costs_nothing(check: Check) -> None:
    with Cluster(prepare) as cluster:
        await check("kill", cluster, cluster.dsn, kill)


@pytest.mark.long
async def test_in_strict_mode_work_waits_for_the_killed_node(check: Check) -> None:
    with Cluster(prepare, synchronous_mode_strict=True) as cluster, cluster.haproxy() as dsn:
        await check("kill_strict", cluster, dsn, kill_strictly)


@pytest.mark.long
async def test_a_switchover_costs_nothing(check: Check) -> None:
    with Cluster(prepare, synchronous_mode_strict=True) as cluster:
        await check("switchover", cluster, cluster.dsn, switch_over)


@pytest.mark.long
async def test_a_switchover_costs_nothing_behind_haproxy(check: Check) -> None:
    with Cluster(prepare) as cluster, cluster.haproxy() as dsn:
        await check("switchover_haproxy", cluster, dsn, switch_over)


@pytest.mark.long
async def test_a_leader_that_only_its_clients_reach_costs_nothing(check: Check) -> None:
    with Cluster(prepare) as cluster:
        await check("isolated", cluster, cluster.dsn, isolate)


@pytest.mark.long
async def test_a_leader_that_nobody_reaches_costs_nothing(check: Check) -> None:
    with Cluster(prepare) as cluster, cluster.haproxy() as dsn:
        await check("vanished", cluster, dsn, isolate)
