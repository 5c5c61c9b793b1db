"""A small web server in threads of its own, which answers whatever the event loop does."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

from pgq._cli.errors import Failure

_SILENT_SECONDS: Final = 10.0  # then a client is given up
_MOST_REQUESTS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a page is at the moment."""

    body: bytes
    content_type: str
    status: HTTPStatus = HTTPStatus.OK


Pages: TypeAlias = Mapping[str, Callable[[], Answer]]


@contextmanager
def serving(pages: Pages, host: str, port: int) -> Generator[str, None, None]:
    """Serve pages while the block lasts; yields the address of the server.

    Args:
        pages: by their paths; they are called in threads.
        host: the address or name to listen on.
        port: 0 for a free one.
    """
    try:
        family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = _server(pages, family, str(found[0]), port)
    except OSError as exc:
        raise Failure(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    with server:
        threading.Thread(target=server.serve_forever, name="pgq-web", daemon=True).start()
        bound, number = server.server_address[:2]
        shown = f"[{bound!s}]" if family == socket.AF_INET6 else str(bound)
        try:
            yield f"http://{shown}:{number}"
        finally:
            server.shutdown()


def _server(
    pages: Pages, family: socket.AddressFamily, host: str, port: int
) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SILENT_SECONDS

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                self.send_error(HTTPStatus.NOT_FOUND, explain=f"There are {', '.join(pages)}.")
                return
            answer = page()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Requests are not logged."""

    requests = threading.Semaphore(_MOST_REQUESTS)

    class Server(ThreadingHTTPServer):
        address_family = family

        def process_request(self, request: Any, client_address: Any) -> None:
            if not requests.acquire(blocking=False):
                self.shutdown_request(request)
                return
            try:
                super().process_request(request, client_address)
            except BaseException:  # there is no thread that would release it
                requests.release()
                raise

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                requests.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], ConnectionError):  # the client's own affair
                super().handle_error(request, client_address)

    return Server((host, port), Handler)
