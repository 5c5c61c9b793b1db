"""A private server that listens on TCP, as JDBC needs it, a PgBouncer, and the programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pgserver import Server

from tests.python.conftest import dsn, serve

from .pgbouncer import pgbouncer
from .programs import BUILDERS

__all__ = ["dsn"]

HOST = "127.0.0.1"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server on TCP."""
    with serve(listen_addresses=HOST) as server:
        yield server


@pytest.fixture(scope="session")
def pooler(server: Server, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """What leads a client to PgBouncer; the parameter: whether it keeps prepared statements."""
    prepares: bool = request.param
    with pgbouncer(server, prepares=prepares) as port:
        variables = {"PGPORT": str(port), "PGQ_LISTEN": "off"}
        yield variables if prepares else {**variables, "PGQ_PREPARE": "off"}


@pytest.fixture
def environment(server: Server, dsn: dict[str, Any]) -> dict[str, str]:
    """What leads a client to a fresh database with the extension."""
    variables = {"PGHOST": HOST, "PGDATABASE": dsn["database"], "PGSSLMODE": "disable"}
    return {**server.environment(), **variables}


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the client which the parameter names."""
    return BUILDERS[request.param](tmp_path_factory.mktemp(request.param))
