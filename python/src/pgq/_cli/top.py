"""`pgq top`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from pgq._cli import output, params, sql
from pgq._cli.base import Client, Command, Settings, connect, connected, settings
from pgq._cli.errors import SERVER_ERRORS, Failure, explain
from pgq._cli.output import Column

_CALL_SECONDS: Final = 10.0
_QUEUES: Final = (
    Column("queue"),
    Column("ready", right=True),
    Column("scheduled", right=True),
    Column("waiting", right=True),
    Column("active", right=True),
    Column("dead", right=True),
    Column("done_per_second", "done/s", right=True),
    Column("failed_per_second", "failed/s", right=True),
    Column("oldest_ready_age", "oldest ready", right=True),
    Column("holding", right=True),
    Column("paused"),
)
_WORKERS: Final = (
    Column("worker"),
    Column("queue"),
    Column("jobs", right=True),
    Column("expired", right=True),
    Column("oldest_claim", right=True),
    Column("last_heartbeat", right=True),
    Column("pid", right=True),
    Column("backend_gone"),
)
_OBSTACLES: Final = (
    Column("subject"),
    Column("age", right=True),
    Column("pid", right=True),
    Column("detail"),
    Column("query"),
)


_END_KEYS: Final = b"qQ\x1a"  # the last one is Ctrl-Z


@dataclass(frozen=True, slots=True)
class Sample:
    """What a frame shows."""

    server: dict[str, Any]
    queues: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    health: list[dict[str, Any]]


@click.command(
    cls=Command,
    examples="""
        pgq top
        pgq top --interval 500ms
        pgq top --once
    """,
)
@click.option(
    "--interval", type=params.duration, default="2s", show_default=True, help="Between two looks."
)
@click.option("--once", is_flag=True, help="Print one frame and end.")
def top(interval: timedelta, *, once: bool) -> None:
    """Watch queues and workers, and what blocks rotation, until q or Ctrl-C.

    The rates are those of the last minute; "holding" is how many workers hold jobs. What blocks
    rotation, or holds the xmin horizon, is shown to roles that may observe all queues.
    """
    if once or settings().json:
        _print_frame()
        return
    if not sys.stdout.isatty():
        raise click.UsageError("This is not a terminal: --once prints one frame.")
    asyncio.run(_watch(settings(), max(interval.total_seconds(), 0.1)))


@connected
async def _print_frame(client: Client) -> None:
    sample = await _look(client)
    if settings().json:
        output.print_json(asdict(sample))
    else:
        output.show(_frame(sample, output.console()))


async def _look(client: Client) -> Sample:
    return Sample(
        (await client.fetch(sql.SERVER))[0],
        await client.fetch(sql.QUEUES),
        await client.fetch(sql.WORKERS),
        await client.fetch(sql.HEALTH),
    )


async def _watch(options: Settings, seconds: float) -> None:
    """Show one frame after the other; connect again when the connection is lost."""
    console = output.console()
    ended = asyncio.Event()
    with (
        _ends(ended),
        Live(Text("connecting"), console=console, screen=True, auto_refresh=False) as live,
    ):
        while not ended.is_set():
            try:
                async with connect(options, "pgq top", command_timeout=_CALL_SECONDS) as client:
                    while not ended.is_set():
                        live.update(_frame(await _look(client), console), refresh=True)
                        await _pause(ended, seconds)
            except (Failure, *SERVER_ERRORS) as exc:
                live.update(Text(explain(exc).message, style="red"), refresh=True)
                await _pause(ended, seconds)


async def _pause(ended: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), seconds)


@contextmanager
def _ends(ended: asyncio.Event) -> Generator[None]:
    """Let q, Ctrl-C and SIGTERM set an event while the block lasts."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, ended.set)
    try:
        with _keys(ended) if sys.stdin.isatty() else nullcontext():
            yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def _keys(ended: asyncio.Event) -> Generator[None]:
    import termios  # noqa: PLC0415 -- not on Windows
    import tty  # noqa: PLC0415 -- as well

    loop = asyncio.get_running_loop()
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def read() -> None:
        typed = os.read(file, 100)
        if not typed or set(typed) & set(_END_KEYS):
            ended.set()

    tty.setcbreak(file)
    changed = termios.tcgetattr(file)
    # Else Ctrl-Z would leave the shell on this screen, and come back to a terminal without keys.
    changed[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(file, termios.TCSADRAIN, changed)
    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _frame(sample: Sample, console: Console) -> RenderableType:
    """Return what fits on the screen: the queues first, then who is in the way, then workers."""
    server, now = sample.server, sample.server["now"]
    obstacles = [
        row
        for row in sample.health
        if row["status"] == "warning" or (row["subject"], row["status"]) == ("sessions", "unknown")
    ]
    parts: list[RenderableType] = [
        Text(f"{server['database']}, PostgreSQL {server['version']}, {output.text(now)}"),
        Text(),
        output.table((_queue(row, sample.workers) for row in sample.queues), _QUEUES),
        Text(),
    ]
    if obstacles:
        parts += [output.table(obstacles, _OBSTACLES), Text()]
    elif sample.health:
        parts += [Text("Nothing is in the way of rotation or vacuum.", style="green"), Text()]
    lines = len(sample.queues) + len(obstacles) + 8
    room = max(console.height - lines, 1) if console.is_terminal else None
    if sample.workers:
        parts.append(output.table((_worker(row, now) for row in sample.workers[:room]), _WORKERS))
    return Group(*parts)


def _queue(row: dict[str, Any], workers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **row,
        "done_per_second": _rate(row["completed_last_minute"]),
        "failed_per_second": _rate(row["failed_last_minute"]),
        "holding": len({other["worker"] for other in workers if other["queue"] == row["queue"]}),
    }


def _rate(per_minute: int | None) -> str:
    return "" if per_minute is None else f"{per_minute / 60:.1f}"


def _worker(row: dict[str, Any], now: datetime) -> dict[str, Any]:
    return {
        **row,
        "oldest_claim": now - row["oldest_claimed_at"],
        "last_heartbeat": now - row["last_heartbeat_at"],
    }
