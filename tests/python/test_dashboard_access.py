"""Who reaches the dashboard and may act: options of the command, proxies, a standby."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import asyncpg
import httpx
import pgq
import pytest
from pgserver import PATIENCE, Server
from starlette.applications import Starlette

from .cli_session import SCRIPT, Cli, variables
from .dashboard_site import Site, site_of
from .sessions import dsn_of, until, within
from .test_dashboard import die

TOKEN = "a token of the test"


class Proxy(httpx.AsyncHTTPTransport):
    """A proxy that shows a site below a path, and takes the path off."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path.encode()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path
        assert path.startswith(self._path + b"/"), path
        request.url = request.url.copy_with(raw_path=path.removeprefix(self._path))
        return await super().handle_async_request(request)


@contextlib.asynccontextmanager
async def served(
    dsn: dict[str, Any], *options: str, below: str = "", **more: str
) -> AsyncGenerator[tuple[str, Site]]:
    """Run the command, and yield the line that it prints and the site, through a proxy."""
    process = await asyncio.create_subprocess_exec(
        SCRIPT,
        *("dashboard", "--listen", "127.0.0.1:0", *options),
        env={**variables(dsn), **more},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout
        line = (await within(process.stdout.readline())).decode().strip()
        base = line.partition("?")[0].removesuffix("/").removesuffix(below)
        async with httpx.AsyncClient(
            transport=Proxy(below), base_url=base, timeout=PATIENCE
        ) as client:
            yield line, Site(Starlette(), client, below)
    finally:
        process.terminate()
        await within(process.communicate())


def test_it_listens_on_this_machine_unless_it_is_told_otherwise() -> None:
    assert "[default: 127.0.0.1:7432]" in " ".join(Cli({}).ok("dashboard", "--help").split())


async def test_the_token_may_come_from_the_environment(dsn: dict[str, Any]) -> None:
    async with served(dsn, PGQ_DASHBOARD_TOKEN=TOKEN) as (line, site):
        assert "token" not in line
        for given, status in ((TOKEN, 200), (TOKEN[:-1], 401)):
            site.client.headers["authorization"] = f"Bearer {given}"
            await site.get("/", status)


async def test_a_proxy_shows_it_below_a_path(dsn: dict[str, Any]) -> None:
    async with served(dsn, "--root-path", "/ops/pgq/", below="/ops/pgq") as (line, site):
        address = httpx.URL(line)
        assert address.path == "/ops/pgq/"
        answer = await site.client.get("/ops/pgq/jobs")
        assert answer.headers["location"] == "/ops/pgq/login?next=%2Fops%2Fpgq%2Fjobs"
        answer = await site.client.get(f"/ops/pgq/?{address.query.decode()}")
        assert answer.headers["location"] == "/ops/pgq/"
        assert "Path=/ops/pgq/;" in answer.headers["set-cookie"]
        page = await site.get("/")
        links = [url for url in page.values("a", "href") if not url.startswith("#")]
        assert links
        assert [url for url in links if not url.startswith("/ops/pgq/")] == []
        for url in (*page.values("link", "href"), *page.values("script", "src")):
            assert (await site.client.get(url)).status_code == 200, url
        assert "is paused" in await site.do("pause", queue="default")


async def test_a_proxy_names_the_user_and_nobody_else_does(dsn: dict[str, Any]) -> None:
    async with served(dsn, "--proxy-header", "X-Forwarded-User") as (_, site):
        await site.get("/", 401)
        site.client.headers["x-forwarded-user"] = "grace"
        assert "user grace" in (await site.get("/")).text
        await site.do("pause", queue="default")
        assert "grace pause queue default" in (await site.get("/actions")).text
    elsewhere = ("--proxy-header", "X-Forwarded-User", "--proxy", "10.0.0.9")
    async with served(dsn, *elsewhere) as (_, site):
        site.client.headers["x-forwarded-user"] = "grace"
        await site.get("/", 401)
    async with served(dsn, *elsewhere, "--proxy", "127.0.0.1") as (_, site):
        site.client.headers["x-forwarded-user"] = "grace"
        await site.get("/")


async def test_a_read_only_one_offers_and_changes_nothing(
    dsn: dict[str, Any], queue: pgq.Queue
) -> None:
    job_id = await die(queue)
    async with served(dsn, "--no-token", "--read-only") as (_, site):
        for path in ("/queue?name=default", "/jobs", "/dead", f"/job/{job_id}", "/schedules"):
            page = await site.get(path)
            assert page.buttons() == [], path
            assert "read-only" in page.text
        await refuses_to_retry(site, job_id)
    job = await queue.get(job_id)
    assert job
    assert job.state == "dead"


async def refuses_to_retry(site: Site, job_id: int) -> None:
    """Make sure that nothing can be changed, not even by genuine forms."""
    form = {"form": await site.token("/jobs"), "queue": "default", "id": str(job_id)}
    for path, asked in (("/do", {"action": "retry"}), ("/runs", {"verb": "retry"})):
        answer = await site.post(path, 403, **asked, **form)
        assert "You may look, and change nothing." in answer.text


async def test_a_standby_shows_and_changes_nothing(
    server: Server, dsn: dict[str, Any], queue: pgq.Queue
) -> None:
    job_id = await die(queue, error="no such address")
    with Server(primary=server) as standby:
        place = dsn_of(standby, dsn["database"])
        async with asyncpg.create_pool(**place, min_size=0) as pool, site_of(pool) as site:

            async def is_there() -> bool:
                return (await site.get("/jobs")).jobs() == [job_id]

            await until(is_there)
            for path in ("/", "/queue?name=default", "/dead", f"/job/{job_id}", "/schedules"):
                page = await site.get(path)
                assert page.buttons() == [], path
                assert "you may only look" in page.text
            assert "no such address" in (await site.get(f"/job/{job_id}")).text
            await refuses_to_retry(site, job_id)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_cookies_are_for_https_alone_where_the_browser_uses_it(
    pool: asyncpg.Pool[Any], scheme: str
) -> None:
    async with site_of(pool, token=TOKEN) as site:
        site.client.headers["x-forwarded-proto"] = scheme
        answer = await site.client.get("/", params={"token": TOKEN})
        session = answer.headers["set-cookie"]
        site.client.headers["authorization"] = f"Bearer {TOKEN}"
        await site.get("/")
        form = site.answers[-1].headers["set-cookie"]
        for cookie, name in ((session, "pgq_session"), (form, "pgq_form")):
            assert cookie.startswith(name)
            assert ("; Secure" in cookie) == (scheme == "https")
