"""Fixtures for pytest: a private database with pgq for each test.

Every run of pytest loads this where the package is installed. So it is not a part of `pgq`, and
imports nothing that costs time before a fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import asyncpg
    from pgq._databases import Databases


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the ini option that name the server."""
    parser.getgroup("pgq").addoption(
        "--pgq-dsn",
        metavar="DSN",
        help="server for the databases of tests; else PGQ_TEST_DSN, the ini option, or PG*",
    )
    parser.addini("pgq_dsn", "server for the databases of tests; else that of PG*")


def pytest_configure(config: pytest.Config) -> None:
    """Add the fixture for pytest-asyncio, where that is."""
    if config.pluginmanager.hasplugin("asyncio"):
        config.pluginmanager.import_plugin("pytest_pgq._asyncio")


@pytest.fixture(scope="session")
def pgq_schema() -> str | Callable[[str], object]:
    """The application's own schema, for projects to override.

    It is SQL text, or a function that gets the DSN of the template database and is called once
    (and awaited, if it is a coroutine function).
    """
    return ""


@pytest.fixture(scope="session")
def _pgq_databases(
    pytestconfig: pytest.Config, pgq_schema: str | Callable[[str], object]
) -> Iterator[Databases]:
    from pgq._databases import Databases, UnfitServer  # noqa: PLC0415 only where it is used

    dsn = pytestconfig.getoption("pgq_dsn") or os.environ.get("PGQ_TEST_DSN")
    try:
        databases = Databases(dsn or pytestconfig.getini("pgq_dsn"))
    except UnfitServer as exc:
        raise pytest.fail.Exception(str(exc), pytrace=False) from None
    try:
        databases.prepare(pgq_schema)
        yield databases
    except UnfitServer as exc:
        raise pytest.fail.Exception(str(exc), pytrace=False) from None
    finally:
        databases.close()


@pytest.fixture
def pgq_dsn(_pgq_databases: Databases) -> Iterator[str]:
    """The DSN of a database of the test's own, with pgq and the schema of `pgq_schema`."""
    dsn = _pgq_databases.create()
    yield dsn
    _pgq_databases.drop(dsn)


@pytest.fixture
def pgq_pool(request: pytest.FixtureRequest) -> asyncpg.Pool[Any]:
    """An asyncpg pool on the database of `pgq_dsn`, in the loop of the test."""
    if "anyio_backend" in request.fixturenames:
        pool: asyncpg.Pool[Any] = request.getfixturevalue("_pgq_pool_anyio")
    elif request.config.pluginmanager.hasplugin("asyncio"):
        pool = request.getfixturevalue("_pgq_pool_asyncio")
    else:
        pytest.fail("pgq_pool needs pytest-asyncio, or anyio and its mark", pytrace=False)
    return pool


@pytest.fixture
async def _pgq_pool_anyio(
    _pgq_databases: Databases, pgq_dsn: str
) -> AsyncIterator[asyncpg.Pool[Any]]:
    async with _pgq_databases.open_pool(pgq_dsn) as pool:
        yield pool
