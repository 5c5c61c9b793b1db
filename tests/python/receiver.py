"""An HTTP server for the tests of webhooks, which answers as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Answer: TypeAlias = "tuple[int, dict[str, str]]"  # status and headers
HANG: Answer = (0, {})
HANG_UP: Answer = (-1, {})


@dataclass(frozen=True)
class Request:
    """What was posted, and when."""

    path: str
    headers: dict[str, str]
    body: Any
    at: float  # of time.monotonic()


@dataclass
class Receiver:
    """Keeps what it gets; a path gives its answers one after the other, then 204."""

    answers: dict[str, list[Answer]] = field(default_factory=dict[str, "list[Answer]"])
    requests: list[Request] = field(default_factory=list[Request])
    port: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str, *answers: Answer) -> str:
        """Return the URL of a path, and set what it answers."""
        self.answers[path] = list(answers)
        return f"http://127.0.0.1:{self.port}{path}"

    def got(self, path: str) -> list[Any]:
        """Return what was posted to a path."""
        return [request.body for request in self.requests if request.path == path]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close."""
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            path = first.split()[1]
            self.requests.append(Request(path, headers, body, time.monotonic()))
            left = self.answers.get(path)
            status, more = left.pop(0) if left else (204, {})
            if (status, more) == HANG:
                await self.closed.wait()
            elif (status, more) != HANG_UP:
                told = {"content-length": "0", "connection": "close", **more}
                head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
                writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode())
                await writer.drain()


@contextlib.asynccontextmanager
async def receiving() -> AsyncGenerator[Receiver, None]:
    """Run a receiver on a free port of 127.0.0.1 for as long as the block lasts."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.answer, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield receiver
        finally:
            receiver.closed.set()
