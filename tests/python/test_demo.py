"""The demo's last step: the dashboard that `make demo SERVE=1` serves."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from demo.__main__ import show

from .cli_session import variables
from .sessions import started, until, within

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
