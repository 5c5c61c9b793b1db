"""The dashboard as a browser without scripts sees it, in this process."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any, Final
from unittest.mock import patch

import asyncpg
import httpx
from pgq import dashboard
from pgserver import PATIENCE
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from .sessions import until

LIVE: Final = "pgq.dashboard._live"
# What the user max may do, in which queue.
OF_MAX: Final = {
    ("retry", "default"),
    ("cancel", "mine"),
    ("move", "mine"),
    ("purge", "mine"),
}
VOID = {"input", "meta", "link", "br", "hr"}


class Page(HTMLParser):
    """What is on a page.

    Attributes:
        elements: the names of its elements, with their attributes.
        text: what is to be read.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def values(self, tag: str, attribute: str) -> list[str]:
        """Return an attribute of all elements of a kind that have it."""
        return [
            str(attributes[attribute])
            for name, attributes in self.elements
            if name == tag and attribute in attributes
        ]

    def jobs(self) -> list[int]:
        """Return the ids of the rows of jobs."""
        ids = [name.removeprefix("job-") for name in self.values("tr", "id") if "job-" in name]
        return [int(one) for one in ids]

    def buttons(self) -> list[str]:
        """Return what can be sent by its forms."""
        return [
            str(attributes["value"])
            for name, attributes in self.elements
            if attributes.get("name") in ("action", "verb") and name in ("input", "button")
        ]


@dataclass
class Site:
    """The pages, for one user."""

    app: Starlette
    client: httpx.AsyncClient
    base: str = ""
    answers: list[httpx.Response] = field(default_factory=list[httpx.Response])

    async def get(self, path: str, status: int = 200, **params: Any) -> Page:
        """Load a page."""
        answer = await self.client.get(self.base + path, params=params or None)
        self.answers.append(answer)
        assert answer.status_code == status, answer.text
        return Page(answer.text)

    async def token(self, path: str = "/queue?name=default") -> str:
        """Return what the forms of this user hold; a page has some only where they make sense."""
        page = await self.get(path)
        return next(
            str(attributes["value"])
            for _, attributes in page.elements
            if attributes.get("name") == "form"
        )

    async def post(self, path: str, status: int = 303, **fields: Any) -> httpx.Response:
        """Send a form."""
        if "form" not in fields:
            fields["form"] = await self.token()
        answer = await self.client.post(self.base + path, data=fields)
        assert answer.status_code == status, answer.text
        return answer

    async def do(self, action: str, **fields: Any) -> str:
        """Change one thing, and return what the page then tells."""
        answer = await self.post("/do", action=action, back=f"{self.base}/jobs", **fields)
        page = await self.client.get(answer.headers["location"])
        [told] = re.findall(r'<p class="flash \w+" role="alert">(.*)</p>', page.text)
        return str(told)

    async def look(self, **fields: Any) -> tuple[str, Page]:
        """Begin a run, and return its path and its page once it has looked."""
        answer = await self.post("/runs", **fields)
        path = answer.headers["location"].removeprefix(self.base)
        return path, await self.settled(path)

    async def settled(self, path: str) -> Page:
        """Return the page of a run once it is not at work."""
        pages: list[Page] = []

        async def is_settled() -> bool:
            pages.append(await self.get(path))
            triggers = pages[-1].values("div", "hx-trigger")
            return triggers == ["pgq:tick from:body"]

        await until(is_settled)
        return pages[-1]


async def by_test(connection: HTTPConnection) -> dashboard.User | None:
    """Take the user from a header of the test."""
    name = connection.headers.get("x-test-user", "ada")
    if name == "max":
        return dashboard.User(name=name, may=lambda action, queue: (action, queue) in OF_MAX)
    return dashboard.User(name=name, may_act=name != "eve") if name else None


@contextlib.asynccontextmanager
async def site_of(
    pool: asyncpg.Pool[Any], *, user: str = "ada", **options: Any
) -> AsyncGenerator[Site]:
    """Open the dashboard on a pool."""
    if "token" not in options:
        options.setdefault("authenticate", by_test)
    options.setdefault("interval", timedelta(milliseconds=50))
    app = dashboard.app(pool, **options)
    # A busy machine may take its time.
    with patch(f"{LIVE}.CALL_SECONDS", PATIENCE):
        async with visit(app, user) as site:
            yield site
        await app.state.close()


@contextlib.asynccontextmanager
async def visit(app: Any, user: str, base: str = "") -> AsyncGenerator[Site]:
    """Open an application for a user."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://pgq.test", headers={"x-test-user": user}
    ) as client:
        yield Site(app, client, base)
