"""`pgq top`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Final

import click
from rich.live import Live
from rich.text import Text

from pgq._cli import output, params
from pgq._cli.base import Command, Settings, connect, connected, settings
from pgq._cli.errors import Failure, explain
from pgq._cli.screen import Frame, View
from pgq._operate import sql
from pgq._operate.client import SERVER_ERRORS, Client
from pgq._operate.finding import gather

_CALL_SECONDS: Final = 10.0
_END_KEYS: Final = frozenset("qQ\x1a")  # the last one is Ctrl-Z
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*.|.", re.DOTALL)


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
    """Watch queues, workers and what keeps them from moving, until q or Ctrl-C.

    Other keys scroll and sort: ? shows them. Where there is not room for all, columns and lines
    that matter less are left out. The rates are those of the last minute; "workers" is how many
    hold jobs. What blocks rotation, or holds the xmin horizon, is shown to roles that may observe
    all queues; pgq doctor tells more.
    """
    if once or settings().json:
        _print_frame()
        return
    if not sys.stdout.isatty():
        raise click.UsageError("This is not a terminal: --once prints one frame.")
    asyncio.run(_watch(settings(), max(interval.total_seconds(), 0.1)))


@connected
async def _print_frame(client: Client) -> None:
    frame = await _look(client)
    if settings().json:
        facts = frame.facts
        output.print_json(
            {
                "server": frame.server,
                "queues": facts.queues,
                "workers": facts.workers,
                "health": facts.health,
                "obstacles": facts.obstacles,
            }
        )
    else:
        console = output.console()
        output.show(frame.render(View(), console.width, None))


async def _look(client: Client) -> Frame:
    [server] = await client.fetch(sql.SERVER)
    return Frame(await gather(client), server)


async def _watch(options: Settings, seconds: float) -> None:
    """Show one frame after the other; connect again when the connection is lost."""
    console = output.console()
    view, ended, pressed = View(), asyncio.Event(), asyncio.Event()

    def press(keys: str) -> None:
        for key in _KEY.findall(keys):
            view.press(key)
        pressed.set()

    def show(frame: Frame) -> None:
        live.update(frame.render(view, console.width, console.height), refresh=True)

    with (
        _ends(ended, press),
        Live(Text("connecting"), console=console, screen=True, auto_refresh=False) as live,
    ):
        while not ended.is_set():
            try:
                async with connect(options, "pgq top", command_timeout=_CALL_SECONDS) as client:
                    while not ended.is_set():
                        frame = await _look(client)
                        show(frame)
                        until = time.monotonic() + seconds
                        while await _is_pressed(ended, pressed, until - time.monotonic()):
                            show(frame)
            except (Failure, *SERVER_ERRORS) as exc:
                live.update(Text(explain(exc).message, style="red"), refresh=True)
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), seconds)


async def _is_pressed(ended: asyncio.Event, pressed: asyncio.Event, seconds: float) -> bool:
    """Wait for a key, and tell whether one came that is not the last."""
    with suppress(TimeoutError):
        await asyncio.wait_for(pressed.wait(), max(seconds, 0))
        pressed.clear()
        return not ended.is_set()
    return False


@contextmanager
def _ends(ended: asyncio.Event, press: Callable[[str], None]) -> Generator[None]:
    """Let q, Ctrl-C and SIGTERM set an event while the block lasts; other keys are passed on."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        ended.set()
        press("")

    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        with _keys(end, press) if sys.stdin.isatty() else nullcontext():
            yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def _keys(end: Callable[[], None], press: Callable[[str], None]) -> Generator[None]:
    import termios  # noqa: PLC0415 -- not on Windows
    import tty  # noqa: PLC0415 -- as well

    loop = asyncio.get_running_loop()
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def read() -> None:
        typed = os.read(file, 100)
        keys = typed.decode(errors="replace")
        if not typed or set(keys) & _END_KEYS:
            end()
        else:
            press(keys)

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
