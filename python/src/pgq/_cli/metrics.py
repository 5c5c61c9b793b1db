"""`pgq metrics`."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import click

from pgq._cli import params
from pgq._cli.base import Command, settings
from pgq._cli.errors import Failure
from pgq._cli.web import serving


@click.command(
    cls=Command,
    has_json=False,
    many_dsns=True,
    examples="""
        pgq metrics --listen 0.0.0.0:9187
        pgq metrics --once
        pgq metrics --dsn postgresql://a.internal/shop --dsn postgresql://b.internal/shop
    """,
)
@click.option(
    "--listen",
    type=params.address,
    metavar="HOST:PORT",
    default="127.0.0.1:9187",
    show_default=True,
    help="Where /metrics and /health are served; port 0 takes a free one.",
)
@click.option("--once", is_flag=True, help="Print the metrics and end.")
def metrics(listen: tuple[str, int], *, once: bool) -> None:
    """Serve metrics for Prometheus, until SIGTERM or Ctrl-C.

    Reads the views when it is asked, at most once a second, with one connection at a time. While
    the server cannot be reached /metrics has "pgq_up 0", and /health answers 503. With several
    --dsn each metric has the label "database", and /health answers 503 when none can be reached.
    Needs the extra "metrics".
    """
    try:
        from pgq._cli import exporter  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as exc:
        if exc.name != "prometheus_client":
            raise
        message = "metrics need prometheus_client: pip install 'pgq-asyncpg[cli,metrics]'"
        raise Failure(message) from exc
    if once:
        click.echo(exporter.exposition(settings()), nl=False)
        return
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    with serving(exporter.pages(settings()), *listen) as where:
        click.echo(f"serving {where}/metrics", err=True)
        ended.wait()
