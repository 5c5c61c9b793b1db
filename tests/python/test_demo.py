"""The demo's last step, the dashboard that `make demo SERVE=1` serves; and the demo of shards."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pgq
import pytest
from bootstrap import ROOT
from pgserver import PATIENCE

from demo.__main__ import show

from .cli_session import variables
from .dashboard_site import Page
from .programs import run_program
from .sessions import Connection, started, until, within

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def environment(dsn: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lead the demo to the database of the test."""
    for name, value in variables(dsn).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


async def test_a_demo_that_cannot_serve_has_failed(
    taken: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await within(show("--listen", f"127.0.0.1:{taken}")) == 1
    assert f"cannot listen on 127.0.0.1:{taken}" in capfd.readouterr().err


async def test_what_a_demo_serves_shows_what_has_happened(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    await pgq.Admin(connection).create_queue("documents")
    queue = pgq.Queue(connection, "documents")
    await queue.enqueue_many(list(range(5)))
    await queue.complete_many(await queue.dequeue(3))
    addresses = list[str]()

    async def is_served() -> bool:
        addresses.extend(re.findall(r"http://127\.0\.0\.1:\S+", capfd.readouterr().out))
        return bool(addresses)

    async with started(show("--listen", "127.0.0.1:0")) as shown:
        await until(is_served)
        async with httpx.AsyncClient(follow_redirects=True, timeout=PATIENCE) as client:
            page = Page((await client.get(addresses[0])).raise_for_status().text)
        os.kill(os.getpid(), signal.SIGINT)
        assert await within(shown) == 0
    assert re.search(r"documents \D*2 0 0 0 0 \S+ 3 0 0", page.text), page.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_demo_that_is_told_to_end_has_not_failed(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = ""

    async def is_served() -> bool:
        nonlocal printed
        printed += capfd.readouterr().out
        return "http://127.0.0.1:" in printed

    async with started(show("--listen", "127.0.0.1:0")) as shown:
        await until(is_served)
        os.kill(os.getpid(), number)
        assert await within(shown) == 0


@pytest.mark.server
def test_the_demo_of_shards_loses_nothing() -> None:
    variables = {**os.environ, "PYTHONPATH": "tools", "PGQ_DEMO_JOBS": "600"}
    printed = run_program(sys.executable, "-m", "demo.shards", cwd=ROOT, env=variables)

    for line in ("is killed (SIGKILL)", "it is back after", "shard 2 is drained", "it is empty"):
        assert line in printed
    for fault in ("lost", "done twice", "two of a group at a time", "keys on two shards"):
        assert re.search(rf"^{fault} +0$", printed, re.MULTILINE), printed
