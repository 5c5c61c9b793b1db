"""A network between clients and a server that can be told to fail, for the tests of faults."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final, final

from pgserver import PATIENCE

from .sessions import Dsn

_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST


class _Link:
    """One client's connection, with a gate in each direction; what waits at a gate is kept."""

    def __init__(self, up: bool, down: bool) -> None:
        self.up, self.down = asyncio.Event(), asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []
        self.is_reset = False
        if up:
            self.up.set()
        if down:
            self.down.set()

    def reset(self) -> None:
        self.is_reset = True
        for writer in self.writers:
            with contextlib.suppress(OSError):  # it is closed
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _RESET
                )
            writer.transport.abort()


@final
class Proxy:
    """A TCP port that leads to a server, for as long as a `with` block lasts.

    The server listens on a socket of PostgreSQL, if the host is a directory, or on a TCP port.
    `up` is the way to the server, `down` the way back. It runs in a thread of its own; its
    methods may be called from any thread.
    """

    def __init__(self, target: Dsn) -> None:
        self._target = target
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._up = self._down = True
        self.latency = 0.0  # seconds, for each packet
        self.held = 0  # packets that came to a closed gate
        # While nobody listens there, a bound socket keeps the port from being given to others.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self._port: int = self._place.getsockname()[1]
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._ended.set)
        self._thread.join(PATIENCE)
        self._place.close()

    @property
    def dsn(self) -> Dsn:
        """Connection arguments that lead through the proxy."""
        return {**self._target, "host": "127.0.0.1", "port": self._port}

    def hold(self, *, up: bool = False, down: bool = False) -> None:
        """Let nothing pass in these directions, on no connection, and tell nobody."""
        self._call(lambda: self._set_gates(not up, not down))

    def forget(self, *, up: bool = False, down: bool = False) -> None:
        """Let nothing pass in these directions on the connections there are; new ones work."""

        def close() -> None:
            self._set_gates(not up, not down)
            self._up = self._down = True

        self._call(close)

    def heal(self) -> None:
        """Let everything pass, what was held first."""
        self._call(lambda: self._set_gates(up=True, down=True))

    def cut(self) -> None:
        """Reset all connections."""

        def reset() -> None:
            for link in self._links:
                link.reset()

        self._call(reset)

    def refuse(self) -> None:
        """Reset all connections and take no new ones."""
        self._call(self._close)
        self.cut()

    def accept(self) -> None:
        """Take connections again."""
        self._call(self._listen)

    def _call(self, function: Callable[[], object]) -> None:
        async def call() -> None:
            function()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE)

    def _set_gates(self, up: bool, down: bool) -> None:
        self._up, self._down = up, down
        for link in self._links:
            for gate, opened in ((link.up, up), (link.down, down)):
                (gate.set if opened else gate.clear)()

    def _listen(self) -> None:
        # A server of asyncio loses what it has accepted when it is closed.
        self._server = socket.create_server(("127.0.0.1", self._port))
        self._server.setblocking(False)
        self._loop.add_reader(self._server, self._accept)

    def _close(self) -> None:
        self._loop.remove_reader(self._server)
        self._server.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._server.accept()
        except OSError:  # the client has gone
            return
        link = _Link(self._up, self._down)
        self._links.add(link)
        task = self._loop.create_task(self._serve(accepted, link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, accepted: socket.socket, link: _Link) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=accepted)
            link.writers.append(writer)
            there, back = await self._connect()
            link.writers.append(back)
            if not link.is_reset:
                await asyncio.gather(
                    self._pump(reader, back, link.up), self._pump(there, writer, link.down)
                )
        except OSError:
            pass
        finally:
            link.reset()
            self._links.discard(link)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._target["host"], self._target["port"]
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        while data := await source.read(65536):
            await asyncio.sleep(self.latency)
            self.held += not gate.is_set()
            await gate.wait()
            sink.write(data)
            await sink.drain()
        await gate.wait()
        sink.write_eof()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._listen()
        self._started.set()
        await self._ended.wait()
        if self._server.fileno() >= 0:
            self._close()
        # No task is cancelled: one that has not begun would leave its connection open.
        self._set_gates(up=True, down=True)
        for link in self._links:
            link.reset()
        await asyncio.gather(*self._tasks)
