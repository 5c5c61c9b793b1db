"""Serves the dashboard; Starlette, Jinja2 and uvicorn come with the extra "dashboard"."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import asyncpg
import click
import uvicorn
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Mount
from starlette.types import ASGIApp

from pgq import dashboard
from pgq._cli.base import Settings, databases, server_settings
from pgq._cli.errors import Failure, Misuse, explain
from pgq._operate.client import SERVER_ERRORS

_CONNECT_SECONDS: Final = 10.0
_CALL_SECONDS: Final = 30.0
_MOST_CONNECTIONS: Final = 4
_HERE: Final = ("localhost", "127.0.0.1", "[::1]")


class Access:
    """Who is let in.

    Args:
        token: who knows it; None makes one, unless another way is chosen.
        header: of a proxy, with the user's name.
        proxies: the addresses that the proxy's requests come from.
        is_open: everybody.
    """

    def __init__(
        self, token: str | None, header: str | None, proxies: tuple[str, ...], *, is_open: bool
    ) -> None:
        self.is_open = is_open
        self.path = "/"
        self.token = token
        self.authenticate: dashboard.Authenticate | None = None
        if is_open:
            self.authenticate = dashboard.anybody
        elif header is not None:
            self.authenticate = dashboard.by_header(header, proxies)
        elif token is None:
            self.token = secrets.token_urlsafe(24)
            self.path = f"/?token={self.token}"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, application: Starlette) -> None:
        super().__init__(config)
        self._application = application

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first: they would not end by themselves."""
        await self._application.state.close()
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What is served where.

    Args:
        listen: host and port.
        access: who is let in.
        root_path: where a proxy shows it.
        read_only: whether nothing may be changed.
        interval: between two looks at the server.
    """

    listen: tuple[str, int]
    access: Access
    root_path: str
    read_only: bool
    interval: timedelta

    async def serve(self, options: Settings) -> None:
        """Serve until a signal comes, and print the address before."""
        logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.WARNING)
        logging.getLogger("pgq.dashboard.audit").setLevel(logging.INFO)
        each = databases(options)
        with self._socket() as listening:
            async with AsyncExitStack() as stack:
                pools = [await stack.enter_async_context(self._pool(one)) for one in each.values()]
                applications = [
                    self._application(pool, options.schema, name or "pgq")
                    for name, pool in zip(each, pools, strict=True)
                ]
                if len(pools) == 1:
                    await _check(pools[0])
                application = _together(applications)
                served: ASGIApp = application
                if self.access.is_open:
                    # Another site could reach it by a name of its own that leads to this machine.
                    allowed = [*_HERE, self.listen[0]]
                    served = TrustedHostMiddleware(application, allowed_hosts=allowed)
                config = uvicorn.Config(
                    served,
                    root_path=self.root_path,
                    log_config=None,
                    log_level="warning",
                    access_log=False,  # it would show tokens
                    proxy_headers=False,
                    server_header=False,
                )
                port = listening.getsockname()[1]
                for number, name in enumerate(each):
                    click.echo(f"{self._address(port, _path(number, len(each)))} {name}".rstrip())
                await _Server(config, application).serve(sockets=[listening])

    def _pool(self, options: Settings) -> asyncpg.Pool[Any]:
        return asyncpg.create_pool(
            options.dsn,
            min_size=0,
            max_size=_MOST_CONNECTIONS,
            timeout=_CONNECT_SECONDS,
            command_timeout=_CALL_SECONDS,
            statement_cache_size=0,  # poolers that share sessions
            server_settings=server_settings(options, "pgq dashboard"),
        )

    def _application(self, pool: asyncpg.Pool[Any], schema: str | None, title: str) -> Starlette:
        try:
            return dashboard.app(
                pool,
                authenticate=self.access.authenticate,
                token=self.access.token,
                schema=schema,
                read_only=self.read_only,
                title=title,
                interval=self.interval,
            )
        except ValueError as exc:
            raise Misuse(str(exc)) from exc

    def _address(self, port: int, path: str) -> str:
        host = self.listen[0]
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}{self.root_path}{path}{self.access.path}"

    def _socket(self) -> socket.socket:
        host, port = self.listen
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server((str(address[0]), port), family=family)
        except OSError as exc:
            raise Failure(f"cannot listen on {host}:{port}: {exc.strerror}") from exc


def _path(number: int, count: int) -> str:
    """Return where the pages of one of several databases are."""
    return f"/{number}" if count > 1 else ""


def _together(applications: Sequence[Starlette]) -> Starlette:
    """Return one application of several, each for a database of its own."""
    if len(applications) == 1:
        return applications[0]

    async def close() -> None:
        await asyncio.gather(*(one.state.close() for one in applications))

    routes = [
        Mount(_path(number, len(applications)), one) for number, one in enumerate(applications)
    ]
    made = Starlette(routes=routes)
    made.state.close = close
    return made


async def _check(pool: asyncpg.Pool[Any]) -> None:
    """Raise an error if the database cannot be reached now; later it may go and come back."""
    try:
        async with pool.acquire() as connection:
            await connection.execute("select 1")
    except SERVER_ERRORS as exc:
        raise explain(exc) from exc
