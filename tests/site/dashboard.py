"""The dashboard in a browser: the command that serves it, and a window that looks at it."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pginstall import install
from pgserver import PATIENCE, Server
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

SCRIPT = Path(sys.executable).with_name("pgq")
TEMPLATE = "pgq_template"

_numbers = itertools.count(1)

# What a page counts, and whether it has counted enough.
_COUNT = "(event) => { window.seen = 0; document.addEventListener(event, () => window.seen++); }"
_IS_SEEN = "(times) => window.seen >= times"

# A role that may log in for each test that needs one; its password is its name.
_ROLE = """
    create role {role} login password '{role}';
    select pgq_grant('default', '{role}', '{{observe}}');
"""


@dataclass
class Dashboard:
    """A database, and `pgq dashboard` on it.

    Attributes:
        browser: opens windows.
        server: of the database.
        database: its name.
        address: of the pages.
        process: the command.
        problems: what browsers have complained about.
        contexts: of its windows.
    """

    browser: Browser
    server: Server
    database: str
    address: str
    process: subprocess.Popen[str]
    problems: list[str] = field(default_factory=list[str])
    contexts: list[BrowserContext] = field(default_factory=list[BrowserContext])

    def sql(self, text: str) -> str:
        """Run statements as the owner, and return what they return."""
        return self.server.psql(text, database=self.database)

    def dead(self, count: int) -> None:
        """Let new jobs of the default queue die."""
        self.sql(f"""
            select count(*) from pgq_enqueue_many(
                array(select to_jsonb(n) from generate_series(1, {count}) n),
                priority => 9, headers => '{{"task": "send"}}');
            select count(pgq_fail(id, token, 'SMTP 451 mailbox ' || id || ' is busy',
                retryable => false)) from pgq_dequeue({count}, worker => 'host-1:mail');
        """)

    def shows(self, path: str, text: str) -> None:
        """Wait until the dashboard has seen what statements have done, and a page shows it."""
        wait_for(self.address + path, text)

    def open(self, path: str = "/", **options: Any) -> Window:
        """Open a window of its own, on a queue once the dashboard has seen the queue."""
        if path.startswith("/queue?"):
            wait_for(self.address + path)
        context = self.browser.new_context(**options)
        self.contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE)
        window = Window(context.new_page(), self.address)
        page = window.page
        page.on("console", lambda message: self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        page.on("request", lambda request: self._note(request.url))
        window.go(path)
        return window

    def _note(self, url: str) -> None:
        if not url.startswith((self.address, "data:")):
            self.problems.append(url)


@dataclass
class Window:
    """A window of a browser."""

    page: Page
    address: str

    def go(self, path: str) -> None:
        """Load a page."""
        self.page.goto(self.address + path)

    def press(self, name: str, place: Locator | None = None) -> None:
        """Press a button."""
        (place or self.page).get_by_role("button", name=name, exact=True).click()

    def row(self, text: str) -> Locator:
        """Return the rows of a table that hold a text."""
        return self.page.locator("tbody tr").filter(has_text=text)

    def number(self, queue: str, name: str) -> Locator:
        """Return a number of a queue in the overview."""
        return self.row(queue).locator(f'[data-label="{name}"]')

    @property
    def told(self) -> Locator:
        """What the page says of the last action."""
        return self.page.get_by_role("alert")

    @property
    def pulse(self) -> Locator:
        """Whether the page renews itself."""
        return self.page.locator("#pulse")

    def is_live(self) -> None:
        """Wait until the page renews itself."""
        expect(self.pulse).to_have_text("live")

    def sees(self, event: str, times: int = 1) -> None:
        """Wait until the page has had an event of its script so many times."""
        self.page.evaluate(_COUNT, event)
        self.page.wait_for_function(_IS_SEEN, arg=times)

    def close(self) -> None:
        """Close the window."""
        self.page.context.close()


def wait_for(address: str, text: str = "") -> str:
    """Wait until a page is there and has a text: on a busy machine a look may take long."""
    ends_at = time.monotonic() + PATIENCE
    while True:
        is_there = True
        try:
            answer = urllib.request.urlopen(address, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            if error.code not in {404, 503}:
                raise
            answer, is_there = error, False
        with answer:
            found: str = answer.read().decode()
        if is_there and text in found:
            return found
        assert time.monotonic() < ends_at, f"no {text!r} at {address}: {found}"


@contextlib.contextmanager
def template_server() -> Generator[Server]:
    """A server with a template that has the extension."""
    with Server(settings={"fsync": "off"}) as server:
        server.psql(f"create database {TEMPLATE}")
        install(server, TEMPLATE)
        yield server


@contextlib.contextmanager
def serve(
    browser: Browser,
    server: Server,
    *options: str,
    role: str | None = None,
    is_ready: bool = True,
) -> Generator[Dashboard]:
    """Run `pgq dashboard` on a database of its own.

    Args:
        browser: opens windows.
        server: has the template.
        options: of the command.
        role: who may only observe the default queue, and is created for it; None: the owner.
        is_ready: whether its pages are to be there before anything is done.
    """
    database = f"dashboard_{next(_numbers)}"
    server.psql(f"create database {database} template {TEMPLATE}")
    if role is not None:
        server.psql(_ROLE.format(role=role), database=database)
    user = {"PGUSER": role, "PGPASSWORD": role} if role else {}
    process = subprocess.Popen(
        [SCRIPT, "dashboard", "--listen", "127.0.0.1:0", "--interval", "200ms", *options],
        env={**os.environ, **server.environment(), "PGDATABASE": database, **user},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        address = process.stdout.readline().strip().rstrip("/")
        assert address, "it has not begun"
        if is_ready:
            wait_for(address)
        dashboard = Dashboard(browser, server, database, address, process)
        yield dashboard
        for context in dashboard.contexts:
            context.close()
        assert not dashboard.problems, dashboard.problems
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
        server.psql(f"drop database {database} with (force)")
        if role is not None:
            server.psql(f"drop role {role}")
