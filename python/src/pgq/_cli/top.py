"""`pgq top`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Final

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from pgq._cli import output, params
from pgq._cli.base import Command, Settings, connect, databases, settings
from pgq._cli.errors import Failure, ServerFailure, explain
from pgq._cli.screen import Frame, View, render
from pgq._operate import sql
from pgq._operate.client import SERVER_ERRORS, Client
from pgq._operate.finding import gather

_CALL_SECONDS: Final = 10.0
_END_KEYS: Final = frozenset("qQ\x1a")  # the last one is Ctrl-Z
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*.|.", re.DOTALL)


@click.command(
    cls=Command,
    many_dsns=True,
    examples="""
        pgq top
        pgq top --interval 500ms
        pgq top --once
        pgq top --dsn postgresql://a.internal/shop --dsn postgresql://b.internal/shop
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
    all queues; pgq doctor tells more. With several --dsn the lists have a column for the database;
    one that is down costs the others nothing.
    """
    if once or settings().json:
        asyncio.run(_print_frame(settings()))
        return
    if not sys.stdout.isatty():
        raise click.UsageError("This is not a terminal: --once prints one frame.")
    asyncio.run(_watch(settings(), max(interval.total_seconds(), 0.1)))


async def _print_frame(options: Settings) -> None:
    each = databases(options)
    looks = dict(zip(each, await asyncio.gather(*map(_look_once, each.items())), strict=True))
    frames, down = _apart(looks)
    if not frames:
        raise ServerFailure("; ".join(" ".join(item).strip() for item in down.items()))
    if settings().json:
        samples = [_sample(frame) for frame in frames]
        samples += [{"database": name, "down": problem} for name, problem in down.items()]
        output.print_json(samples[0] if len(each) == 1 else samples)
    else:
        console = output.console()
        output.show(render(frames, down, View(), console.width, None))


def _sample(frame: Frame) -> dict[str, Any]:
    facts = frame.facts
    return {
        **({"database": frame.name} if frame.name else {}),
        "server": frame.server,
        "queues": facts.queues,
        "workers": facts.workers,
        "health": facts.health,
        "obstacles": facts.obstacles,
    }


async def _look_once(database: tuple[str, Settings]) -> Frame | str:
    name, options = database
    try:
        async with connect(options, "pgq top", command_timeout=_CALL_SECONDS) as client:
            return await _look(client, name)
    except (Failure, *SERVER_ERRORS) as exc:
        return explain(exc).message


async def _look(client: Client, name: str) -> Frame:
    [server] = await client.fetch(sql.SERVER)
    return Frame(await gather(client), server, name)


def _apart(looks: Mapping[str, Frame | str]) -> tuple[list[Frame], dict[str, str]]:
    """Return the databases that answer, and what is wrong with the others."""
    frames = [look for look in looks.values() if isinstance(look, Frame)]
    return frames, {name: look for name, look in looks.items() if isinstance(look, str)}


async def _watch(options: Settings, seconds: float) -> None:
    """Show one frame after the other, as keys are pressed and databases answer."""
    console = output.console()
    view, ended, changed = View(), asyncio.Event(), asyncio.Event()
    looks: dict[str, Frame | str] = {}

    def press(keys: str) -> None:
        for key in _KEY.findall(keys):
            view.press(key)
        changed.set()

    async def keep_looking(name: str, options: Settings) -> None:
        """Look again and again; connect again when the connection is lost."""
        while True:
            try:
                async with connect(options, "pgq top", command_timeout=_CALL_SECONDS) as client:
                    while True:
                        looks[name] = await _look(client, name)
                        changed.set()
                        await asyncio.sleep(seconds)
            except (Failure, *SERVER_ERRORS) as exc:
                looks[name] = explain(exc).message
                changed.set()
                await asyncio.sleep(seconds)

    with (
        _ends(ended, press),
        Live(Text("connecting"), console=console, screen=True, auto_refresh=False) as live,
    ):
        tasks = [asyncio.create_task(keep_looking(*each)) for each in databases(options).items()]
        while await changed.wait() and not ended.is_set():
            changed.clear()
            frames, down = _apart(looks)
            if frames:
                live.update(render(frames, down, view, console.width, console.height), refresh=True)
            elif down:
                texts = [Text(" ".join(item).strip(), style="red") for item in down.items()]
                live.update(Group(*texts), refresh=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
