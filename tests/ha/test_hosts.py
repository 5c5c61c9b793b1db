"""A host that is silent, before the one that takes writes, in the ways to connect to several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import pgq
import pytest
from pgserver import Server

from tests.chaos.stage import find_version
from tests.python.pages import read, snippets
from tests.python.programs import run_program
from tests.python.proxy import Proxy
from tests.python.sessions import Dsn, dsn_of, until
from tests.python.workers import running

from .cluster import LOCAL

PAGE = read("docs/high-availability.md")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that takes writes."""
    with Server(find_version(), {"fsync": "off"}) as server:
        server.psql("create extension pgq")
        yield server


@pytest.fixture
def ports(server: Server) -> Iterator[list[int]]:
    """Ports of two hosts, of which the first one takes connections and never says a word."""
    with Proxy(dsn_of(server)) as silent, Proxy(dsn_of(server)) as host:
        silent.hold(up=True, down=True)
        yield [silent.dsn["port"], host.dsn["port"]]


def dsn_of_both(server: Server, ports: list[int]) -> Dsn:
    """Return connection arguments that name both hosts."""
    place = {"host": [LOCAL, LOCAL], "port": ports, "target_session_attrs": "read-write"}
    return {**dsn_of(server), **place}


async def test_one_timeout_of_asyncpg_is_for_all_hosts(server: Server, ports: list[int]) -> None:
    with pytest.raises(TimeoutError):
        await asyncpg.connect(**dsn_of_both(server, ports), timeout=3)


def test_libpq_has_a_timeout_for_each_host(server: Server, ports: list[int]) -> None:
    place = f"host={LOCAL},{LOCAL} port={ports[0]},{ports[1]} target_session_attrs=read-write"
    command = ["psql", f"{place} connect_timeout=3", "-XAtc", "select pgq_enqueue('1') > 0"]
    assert run_program(*command, env=server.environment()) == "t\n"


async def test_a_worker_passes_by_a_silent_host_as_the_page_shows(
    server: Server, ports: list[int]
) -> None:
    [program] = snippets(PAGE, "python")
    shown: dict[str, Any] = {}
    exec(program, shown)
    shown["HOSTS"] = [(LOCAL, port) for port in ports]
    arguments: Dsn = {"user": server.user, "password": server.password, "database": server.database}
    async with asyncpg.create_pool(**arguments, min_size=0, connect=shown["connect"]) as pool:
        worker = pgq.Worker(pool)
        done: list[int] = []

        @worker.handler("default")
        async def handle(job: pgq.Job[Any]) -> None:
            done.append(job.id)

        job_id = await pgq.Queue(pool).enqueue(1)

        async def is_done() -> bool:
            return job_id in done

        async with running(worker):
            await until(is_done)
