"""`pgq dashboard`."""

from __future__ import annotations

import asyncio
import ipaddress
from datetime import timedelta
from typing import Final

import click

from pgq._cli import params
from pgq._cli.base import Command, settings
from pgq._cli.errors import Failure, Misuse

_EXTRAS: Final = ("jinja2", "markupsafe", "starlette", "uvicorn")


@click.command(
    cls=Command,
    has_json=False,
    many_dsns=True,
    examples="""
        pgq dashboard
        pgq dashboard --listen 127.0.0.1:8000 --read-only
        pgq dashboard --listen 0.0.0.0:7432
        pgq dashboard --dsn postgresql://a.internal/shop --dsn postgresql://b.internal/shop
        pgq dashboard --proxy-header X-Forwarded-User --root-path /pgq
    """,
)
@click.option(
    "--listen",
    type=params.address,
    metavar="HOST:PORT",
    default="127.0.0.1:7432",
    show_default=True,
    help="Where the pages are served; port 0 takes a free one.",
)
@click.option(
    "--token",
    envvar="PGQ_DASHBOARD_TOKEN",
    show_envvar=True,
    help="Who knows it may look and act; by default one is made, and printed in the address.",
)
@click.option("--no-token", is_flag=True, help="Let in all users of this machine.")
@click.option(
    "--proxy-header",
    metavar="NAME",
    help="Take the user's name from this header of a proxy; whoever reaches the dashboard from a "
    "--proxy address can send it.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    default=("127.0.0.1", "::1"),
    show_default=True,
    metavar="ADDRESS",
    help="Where the proxy's requests come from; may be repeated.",
)
@click.option("--root-path", default="", metavar="PATH", help="Where the proxy shows it.")
@click.option("--read-only", is_flag=True, help="Show, and change nothing.")
@click.option(
    "--interval", type=params.duration, default="2s", show_default=True, help="Between two looks."
)
def dashboard(
    *,
    listen: tuple[str, int],
    token: str | None,
    no_token: bool,
    proxy_header: str | None,
    proxies: tuple[str, ...],
    root_path: str,
    read_only: bool,
    interval: timedelta,
) -> None:
    """Serve the queues to browsers, until SIGTERM or Ctrl-C.

    Prints the address, or one for each --dsn. Shows and offers what the privileges of the role
    allow; what is changed there is logged to stderr with its user. Needs the extra "dashboard".
    """
    if sum((token is not None, no_token, proxy_header is not None)) > 1:
        raise Misuse("choose one of --token, --no-token and --proxy-header")
    if no_token and not _is_loopback(listen[0]):
        raise Misuse(f"--no-token lets in everybody who reaches {listen[0]}: set a token")
    try:
        from pgq._cli import pages  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in _EXTRAS:
            raise
        message = "the dashboard is an extra: pip install 'pgq-asyncpg[cli,dashboard]'"
        raise Failure(message) from exc
    access = pages.Access(token, proxy_header, proxies, is_open=no_token)
    service = pages.Service(
        listen=listen,
        access=access,
        root_path=root_path.rstrip("/"),
        read_only=read_only,
        interval=max(interval, timedelta(milliseconds=100)),
    )
    asyncio.run(service.serve(settings()))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
