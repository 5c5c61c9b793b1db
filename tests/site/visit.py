"""A visit to the playground: what the visitor does and sees, and what the browser reports."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from pgserver import PATIENCE
from playwright.sync_api import Browser, Locator, Request, expect

CLAIM = re.compile(r"^-- (\w+)\nSELECT [^;]* FROM pgq_dequeue\([^;]*;\n-- ({.*})$", re.MULTILINE)

expect.set_options(timeout=1000 * PATIENCE)


class Site(NamedTuple):
    """A site that is served, and the paths of its pages."""

    address: str
    paths: list[str]


class Visit:
    """A page of its own; `problems` are the errors, and the requests to elsewhere."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page = browser.new_page()
        self.status = self.page.get_by_role("status")
        self.statements = self.page.get_by_role("region", name="Statements")
        self.page.on("request", self._note)
        self.page.on("requestfailed", lambda request: self.problems.append(request.url))
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(address)

    def press(self, name: str, *, consumer: str | None = None) -> None:
        """Press a button of the page, or of one of the consumers."""
        place = self.consumer(consumer) if consumer else self.page
        place.get_by_role("button", name=name, exact=True).click()

    def enqueue(self, name: str = "Enqueue") -> int:
        """Press one of the buttons that add a job; return the job's id."""
        last = self.status.inner_text()
        self.press(name)
        expect(self.status).not_to_have_text(last)
        return self.enqueued()

    def enqueued(self) -> int:
        """Return the id of the job of which the page says that it was added just now."""
        pattern = re.compile(r"Job (\d+) is enqueued\.")
        expect(self.status).to_have_text(pattern)
        found = pattern.match(self.status.inner_text())
        assert found
        return int(found[1])

    def consumer(self, name: str) -> Locator:
        """Return what shows the consumer."""
        return self.page.get_by_role("group", name=f"Consumer {name}")

    def job(self, number: int) -> Locator:
        """Return the row of the job."""
        head = self.page.get_by_role("rowheader", name=str(number), exact=True)
        return self.page.get_by_role("row").filter(has=head)

    def worker_of(self, number: int) -> str:
        """Return the name of the consumer that works on the job, once there is one."""
        panel = self.page.get_by_role("group").filter(has_text=f"works on job {number},")
        expect(panel).to_be_visible()
        return next(name for name in ("ann", "bob") if name in panel.inner_text())

    def claims(self, since: str = "") -> list[tuple[str, dict[str, Any]]]:
        """Return the consumers and the jobs of all claims, or of those listed since a statement."""
        text = self.statements.inner_text()
        newer = text[: text.index(since)] if since else text
        return [(name, json.loads(job)) for name, job in reversed(CLAIM.findall(newer))]

    def _note(self, request: Request) -> None:
        self.requests.append(request.url)
        if not request.url.startswith((self.address, "data:")):
            self.problems.append(request.url)
