"""Three shards, of which one is a cluster whose leader changes under load.

The load is that of `make demo-shards`; PGQ_DEMO_JOBS says how many jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlencode

import pgshards
import pytest
from bootstrap import ROOT
from pgserver import Server

from demo import shards

from .cluster import Cluster
from .test_lagging import prepare

pytestmark = pytest.mark.long

SETTINGS = {"fsync": "off"}


def place_of(cluster: Cluster) -> dict[str, str]:
    """Return where the leader is found, by the sockets of both nodes."""
    servers = [node.server for node in cluster.nodes]
    return {
        "host": ",".join(server.host for server in servers),
        "port": ",".join(str(server.port) for server in servers),
        "target_session_attrs": "read-write",
    }


async def test_a_switchover_of_one_shard_of_three_costs_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tools"))  # of the workers
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(prepare))
        a, c = (stack.enter_context(Server(None, SETTINGS)) for _ in range(2))
        for server in (a, c):
            prepare(server)
        place = place_of(cluster)
        url = f"postgresql:///pgq?{urlencode({**place, 'user': 'postgres'})}"
        pair = " ".join(f"{name}={value}" for name, value in {**place, "dbname": "pgq"}.items())
        urls = [shards.url_of(a), url, shards.url_of(c)]
        places = [pgshards.place_of(a), pair, pgshards.place_of(c)]
        front = stack.enter_context(pgshards.serve_front(places, SETTINGS))

        async def switch_over(others: shards.Pools) -> int:
            """Have the nodes of the shard change their roles; return what the others do."""
            before = await shards.count_done(others)
            leader, other = await asyncio.to_thread(cluster.roles)
            await asyncio.to_thread(cluster.switch_over)
            assert (await asyncio.to_thread(cluster.roles)) == (other, leader)
            return await shards.count_done(others) - before

        with capsys.disabled():
            print()
            assert await shards.show(urls, front, switch_over) == 0
