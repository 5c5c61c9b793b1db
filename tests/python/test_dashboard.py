"""The pages of the dashboard: what they show, without a browser."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import asyncpg
import pgq
import pytest
import pytest_asyncio
from fastapi import FastAPI
from pgq import dashboard
from pgq._operate import sql
from pgq._operate.client import Client
from pgq._operate.finding import Limits
from pgq._operate.search import Filter, Search
from pgq._operate.sql import quoted
from pgq.dashboard._live import History, Live
from pgserver import PATIENCE
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from .conftest import TEMPLATE
from .dashboard_site import LIVE, Page, Site, site_of, visit
from .pages import read
from .sessions import Connection, until

PAGES = ("/", "/queue?name=default", "/jobs", "/dead", "/workers", "/schedules", "/actions")
STATIC = Path(dashboard.__file__).parent / "static"
_DEEP = 20_000  # jobs
HOSTILE = "<xss-tag onload=1>'\"&amp;<script>alert(1)</script>\u202e</td>"


@pytest_asyncio.fixture
async def site(pool: asyncpg.Pool[Any]) -> AsyncIterator[Site]:
    """The dashboard for a user who may act."""
    async with site_of(pool) as site:
        yield site


async def die(queue: pgq.Queue, *, error: str = "no", **options: Any) -> int:
    """Let a new job die, and return its id."""
    worker = options.pop("worker", "the worker")
    job_id = await queue.enqueue(options.pop("payload", {}), **options)
    [job] = await queue.dequeue(1, worker=worker)
    assert job.id == job_id
    await queue.fail(job, error, retryable=False)
    return job_id


async def test_every_page_is_there_in_an_empty_database_and_says_what_to_do_next(
    site: Site,
) -> None:
    texts = {path: (await site.get(path)).text for path in PAGES}
    assert "pgq enqueue default" in texts["/"]
    assert "There is no job" in texts["/jobs"]
    assert "No job is dead." in texts["/dead"]
    assert "pgq worker MODULE:WORKER" in texts["/workers"]
    assert "pgq schedule add" in texts["/schedules"]
    assert "Nobody has changed anything" in texts["/actions"]


async def test_pages_run_nothing_but_their_own_files(site: Site, queue: pgq.Queue) -> None:
    job_id = await die(queue)
    for path in (*PAGES, f"/job/{job_id}", "/nothing", "/job/12345"):
        page = await site.get(path, status=404 if path in ("/nothing", "/job/12345") else 200)
        policy = site.answers[-1].headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert site.answers[-1].headers["cache-control"] == "no-store"
        for name, attributes in page.elements:
            assert name != "style"
            assert name != "script" or str(attributes["src"]).startswith("/static/")
            assert not [one for one in attributes if one.startswith("on") or one == "style"]
        assert not [url for url in page.values("link", "href") if not url.startswith("/static/")]


async def test_the_overview_shows_the_numbers_of_the_views(site: Site, queue: pgq.Queue) -> None:
    await die(queue)
    await queue.enqueue_many([1, 2, 3])
    await queue.enqueue(4, delay=timedelta(hours=1))
    await queue.dequeue(1)
    text = (await site.get("/")).text
    assert "2 ready 1 scheduled 0 waiting 1 active 1 dead" in _totals(text)
    assert "default: 1 dead job" in text


async def test_the_overview_has_rates_the_oldest_age_and_a_line_of_each_queue(
    site: Site,
    connection: Connection,
    pool: asyncpg.Pool[Any],
    queue: pgq.Queue,
    admin: pgq.Admin,
) -> None:
    await admin.create_queue("quiet", keep_completed=timedelta(0))
    quiet = pgq.Queue(pool, "quiet")
    await quiet.enqueue(1)
    await queue.enqueue_many([1, 2, 3, 4])
    done = await queue.dequeue(2)
    await site.get("/")
    await queue.complete_many(done)
    await die(queue, priority=9)
    await connection.execute("update pgq.job set enqueued_at = enqueued_at - interval '3 h'")
    rows = dict[str, Page]()

    async def are_drawn() -> bool:
        await site.get("/")
        shown = re.findall(r'<tr id="queue:\w+".*?</tr>', site.answers[-1].text, re.DOTALL)
        rows.update(zip(("default", "quiet"), map(Page, shown), strict=True))
        return all("title" in dict(row.elements) for row in rows.values()) and (
            "now 2" in rows["default"].text
        )

    await until(are_drawn)
    states = "2 0 0 0 1"  # ready, scheduled, waiting, active, dead
    line = "completed in a minute: now 2, at most 2"
    assert re.fullmatch(rf"default {line} {states} 3h \dm 2 1 0", rows["default"].text)
    assert re.fullmatch(
        r"quiet ready: now 1, at most 1 1 0 0 0 0 3h \dm - 0 0", rows["quiet"].text
    ), "without completed jobs the line shows those that are ready"
    names = ("oldest", "done/min", "failed/min")
    for row in rows.values():
        assert [one for one in row.values("td", "data-label") if one in names] == list(names)
        assert len(row.values("polyline", "points")) == 1


def _totals(text: str) -> str:
    """Return the totals as number and name."""
    words = text.split()
    names = ("ready", "scheduled", "waiting", "active", "dead")
    start = next(i for i in range(len(words)) if words[i : i + 9 : 2] == list(names))
    return " ".join(f"{words[start + 2 * i + 1]} {name}" for i, name in enumerate(names))


async def test_a_queue_shows_its_limits_settings_and_what_blocks_its_groups(
    site: Site, pool: asyncpg.Pool[Any], admin: pgq.Admin
) -> None:
    await admin.create_queue("mail/€ 1", max_active=3, max_ready=10, group_on_dead="block")
    mail = pgq.Queue(pool, "mail/€ 1")
    head = await die(mail, group_key="ada")
    behind = await mail.enqueue({}, group_key="ada")
    page = await site.get("/queue", name="mail/€ 1")
    assert "0 of 3" in page.text
    assert "0 of 10" in page.text
    assert "group_on_dead block default continue" in page.text
    assert "blocked group" in page.text
    assert "unblock" in page.buttons()
    page = await site.get(f"/job/{behind}")
    assert f"job {head}, dead" in page.text
    assert f"job {behind}, waiting" in page.text
    await mail.enqueue_many([1, 2])
    await mail.dequeue(1)
    site.app.state.live.change()
    page = await site.get("/queue", name="mail/€ 1")
    assert "1 of 3" in page.text
    assert "1 of 10" in page.text
    assert page.values("meter", "value") == ["1", "1"]
    page = await site.get(f"/job/{head}")
    assert "1 job of mail/€ 1" in page.text
    assert "unblock" in page.buttons()


async def test_blocked_groups_come_before_those_that_are_at_work(
    site: Site, pool: asyncpg.Pool[Any], admin: pgq.Admin
) -> None:
    await admin.create_queue("line", group_on_dead="block")
    line = pgq.Queue(pool, "line")
    for number in range(101):
        await line.enqueue_many([1, 2], group_keys=[f"busy {number}"] * 2)
    await line.dequeue(101)
    head = await die(line, group_key="blocked", priority=9)
    alone = (await site.get(f"/job/{head}")).buttons()
    assert "unblock" in alone, "also where nobody waits"
    await line.enqueue({}, group_key="blocked")
    site.app.state.live.change()
    page = await site.get("/queue", name="line")
    assert "unblock" in page.buttons()
    assert "What jobs wait for 102" in page.text
    assert "and 2 more; the view pgq_obstacles shows all" in page.text


async def test_a_job_that_blocks_nothing_has_no_unblock(site: Site, queue: pgq.Queue) -> None:
    job_id = await die(queue, group_key="ada")
    assert "unblock" not in (await site.get(f"/job/{job_id}")).buttons()


async def test_a_job_draws_what_it_waits_for_and_who_waits_for_it(
    site: Site, queue: pgq.Queue
) -> None:
    active, ready = await queue.enqueue(1), await queue.enqueue(2)
    await queue.dequeue(1)
    middle = await queue.enqueue({}, after=[active, ready])
    last = await queue.enqueue({}, after=[middle])
    expected: list[tuple[int, dict[int, str], dict[int, str]]] = [
        (active, {}, {middle: "waiting"}),
        (ready, {}, {middle: "waiting"}),
        (middle, {active: "active", ready: "ready"}, {last: "waiting"}),
        (last, {middle: "waiting"}, {}),
    ]
    for job_id, before, behind in expected:
        page = await site.get(f"/job/{job_id}")
        beside = {**before, **behind}
        assert drawn(page) == beside, job_id
        assert [url for url in page.values("a", "href") if "/job/" in url] == [
            f"/job/{one}" for one in beside
        ]
        for one, state in beside.items():
            assert f"job {one}, {state}" in page.text
        edges = [str(d) for d in page.values("path", "d") if d.startswith(("M194", "M456"))]
        assert [d[:4] for d in edges] == ["M194"] * len(before) + ["M456"] * len(behind)


def drawn(page: Page) -> dict[int, str]:
    """Return the jobs that are drawn beside the one of a page, with their states."""
    found = re.findall(r"job (\d+), (\w+)", page.text)
    [own] = re.findall(r"job (\d+) \w+", page.text)[:1]
    return {int(job_id): state for job_id, state in found if job_id != own}


async def test_of_many_jobs_beside_one_six_are_drawn_and_the_others_counted(
    site: Site, queue: pgq.Queue
) -> None:
    ids = await queue.enqueue_many(list(range(99)))
    job_id = await queue.enqueue({}, after=ids)
    page = await site.get(f"/job/{job_id}")
    assert list(drawn(page)) == ids[:6]
    assert "It waits for 93 more." in page.text
    for _ in range(100):
        await queue.enqueue({}, after=[job_id])
    site.app.state.live.change()
    page = await site.get(f"/job/{job_id}")
    assert "Besides, 94 or more others wait for it." in page.text


async def test_of_a_job_that_the_role_may_not_observe_the_id_is_drawn(
    dsn: dict[str, Any],
    connection: Connection,
    pool: asyncpg.Pool[Any],
    queue: pgq.Queue,
    admin: pgq.Admin,
) -> None:
    role = f"viewer_{dsn['database']}"
    await admin.create_queue("secret")
    hidden = await pgq.Queue(pool, "secret").enqueue({})
    job_id = await queue.enqueue({}, after=[hidden])
    async with site_of(pool) as site:
        assert f"job {hidden}, ready" in (await site.get(f"/job/{job_id}")).text
    await connection.execute(f"create role {role} login password 'x'")
    await admin.grant("default", role, ["observe"])
    try:
        arguments: dict[str, Any] = {**dsn, "user": role, "password": "x"}
        async with asyncpg.create_pool(**arguments, min_size=0) as own, site_of(own) as viewer:
            page = await viewer.get(f"/job/{job_id}")
            assert f"job {hidden} " in page.text
            assert f"job {hidden}, " not in page.text
            assert f"/job/{hidden}" not in page.values("a", "href")
    finally:
        await admin.revoke("default", role)
        await connection.execute(f"drop role {role}")


async def test_of_a_group_that_runs_several_jobs_nobody_waits_for_a_certain_one(
    site: Site, pool: asyncpg.Pool[Any], admin: pgq.Admin
) -> None:
    await admin.create_queue("pairs", group_concurrency=2)
    pairs = pgq.Queue(pool, "pairs")
    ids = [await pairs.enqueue({}, group_key="ada") for _ in range(3)]
    await pairs.dequeue(2)
    page = await site.get(f"/job/{ids[2]}")
    assert "It waits for its turn in the group" in page.text
    assert "svg" not in {name for name, _ in page.elements}
    page = await site.get(f"/job/{ids[0]}")
    assert "svg" not in {name for name, _ in page.elements}


async def test_a_job_shows_all_that_is_kept_of_it(site: Site, queue: pgq.Queue) -> None:
    job_id = await queue.enqueue(
        {"to": "ada"},
        headers={"task": "send", "trace": "abc"},
        group_key="g",
        dedupe_key="k",
        priority=7,
    )
    [job] = await queue.dequeue(1, worker="host:1")
    await queue.heartbeat(job, checkpoint={"page": 3})
    await queue.complete(job, result={"sent": True})
    page = await site.get(f"/job/{job_id}")
    for part in ('"to": "ada"', '"trace": "abc"', '"page": 3', '"sent": true', "host:1", "send"):
        assert part in page.text
    for name in ("enqueued", "claimed", "completed"):
        assert name in page.text
    assert "1 of 20" in page.text


async def test_a_job_shows_the_attempts_that_failed(site: Site, queue: pgq.Queue) -> None:
    job_id = await queue.enqueue({})
    for worker, error in (("host:1", "SMTP 451"), ("host:2", None), ("host:3", "x\nSMTP 550")):
        [job] = await queue.dequeue(1, worker=worker)
        await queue.fail(job, error, retry_in=timedelta(0))
    page = await site.get(f"/job/{job_id}")
    shown = page.text.partition("Attempts that failed")[2]
    assert page.values("details", "id") == ["error-3"], "the whole of what has several lines"
    whole = ("SMTP 550", "x SMTP 550")
    parts = ("3", "host:3", *whole, "2", "host:2", "no error", "1", "host:1", "SMTP 451")
    assert re.search(".*".join(parts), shown)


async def test_a_page_without_a_database_tries_again_by_itself() -> None:
    async with (
        asyncpg.create_pool(host="127.0.0.1", port=1, user="ada", min_size=0) as pool,
        site_of(pool) as site,
    ):
        page = await site.get("/", status=503)
        assert "The database does not answer" in page.text
        assert site.answers[-1].headers["refresh"] == "5"
        answer = await site.post("/do", status=503, form="any")
        assert "refresh" not in answer.headers, "it would send the form again"
        assert 'href="/"' in answer.text, "the form has no page"


def test_each_input_has_an_id_that_keeps_what_is_typed_when_a_page_is_renewed() -> None:
    for template in (Path(dashboard.__file__).parent / "templates").glob("*.html"):
        inputs = re.findall(r"<(?:input|select|textarea) [^>]*>", template.read_text("utf-8"))
        for tag in inputs if template.name != "login.html" else []:  # which is never renewed
            assert " id=" in tag or 'type="hidden"' in tag, (template.name, tag)


async def test_a_database_without_pgq_and_a_role_without_a_privilege_are_told_what_helps(
    dsn: dict[str, Any], connection: Connection
) -> None:
    role = f"nobody_{dsn['database']}"
    await connection.execute(f"create role {role} login password 'x'")
    try:
        refused: list[tuple[dict[str, Any], str]] = [
            ({**dsn, "database": "postgres"}, "Run 'pgq install'"),
            ({**dsn, "user": role, "password": "x"}, "grant the privilege to observe them"),
        ]
        for arguments, hint in refused:
            async with asyncpg.create_pool(**arguments, min_size=0) as pool, site_of(pool) as site:
                page = await site.get("/", status=503)
                assert "The queues cannot be shown: " in page.text
                assert hint in page.text
    finally:
        await connection.execute(f"drop role {role}")


async def test_a_page_that_is_not_there_leads_to_no_other_site(site: Site) -> None:
    page = Page((await site.client.get("http://pgq.test//evil.example/")).text)
    assert page.values("a", "href") == ["/"]


async def test_filters_find_the_jobs_that_match(
    site: Site, pool: asyncpg.Pool[Any], queue: pgq.Queue, admin: pgq.Admin
) -> None:
    await admin.create_queue("other")
    other = await pgq.Queue(pool, "other").enqueue({})
    dead = await die(queue, payload={"to": "Ada"}, error="SMTP 451", headers={"task": "send"})
    grouped = await queue.enqueue({}, group_key="g", dedupe_key="k")
    for given, ids in {
        "queue=other": [other],
        "state=dead": [dead],
        "state=dead&state=ready": [grouped, dead, other],
        "task=send": [dead],
        "text=aDa": [dead],
        "error=smtp": [dead],
        "key=k": [grouped],
        "group=g": [grouped],
        "worker=the+worker": [dead],
        "since=1h": [grouped, dead, other],
        "until=1h": [],
        "since=2001-01-01&until=2001-01-02": [],
        f"before={grouped}": [dead, other],
        "queue=no%00ne": [],
    }.items():
        assert (await site.get(f"/jobs?{given}")).jobs() == ids, given
    page = await site.get("/jobs?since=yesterday&queue=other")
    assert "is not a time" in page.text
    assert "other" in page.values("input", "value"), "what was typed is still there"


async def test_pages_of_jobs_are_stable_while_jobs_come_and_go(
    site: Site, connection: Connection, queue: pgq.Queue
) -> None:
    ids = await queue.enqueue_many(list(range(130)))
    page, seen = await site.get("/jobs"), list[int]()
    while True:
        seen += page.jobs()
        await queue.enqueue(0)
        await queue.pop(1)
        older = [url for url in page.values("a", "href") if "before=" in url]
        if not older:
            break
        page = await site.get(older[-1])
    assert seen == sorted(ids, reverse=True)[: len(seen)]
    assert len(seen) >= 127, "but those that have gone"


@pytest.mark.parametrize("ended", [0, 10_000], ids=["live", "half_completed"])
async def test_a_deep_page_of_jobs_reads_as_much_as_the_first(
    dsn: dict[str, Any], connection: Connection, queue: pgq.Queue, ended: int
) -> None:
    ids = await queue.enqueue_many([{"n": n} for n in range(_DEEP)])
    if ended:
        await queue.pop(ended)
    await connection.execute("vacuum analyze")

    async def tell(own: Any) -> None:
        await own.execute("select pg_stat_force_next_flush()")

    async def blocks_read() -> int:
        return int(
            await connection.fetchval(
                "select sum(pg_stat_get_blocks_fetched(c.oid)) from pg_class c"
                " where c.relnamespace = 'pgq'::regnamespace"
            )
        )

    async with (
        asyncpg.create_pool(**dsn, min_size=0, max_size=1, reset=tell) as pool,
        site_of(pool, interval=timedelta(hours=1)) as site,
    ):

        async def cost_of(before: int) -> int:
            began = await blocks_read()
            page = await site.get("/jobs", before=before)
            assert page.jobs() == list(range(before - 1, before - 51, -1))
            return await blocks_read() - began

        async def least_of(before: int) -> int:
            """Return the cost of a page, without what autovacuum may read meanwhile."""
            return min(await cost_of(before), await cost_of(before - 1))

        await cost_of(ids[-3])  # reads the catalog, too
        first = await least_of(ids[-1])
        deep = [await least_of(ids[_DEEP * part // 5]) for part in range(1, 5)]
        assert first > 0
        assert max(deep) <= 1.5 * first, (first, deep)


async def test_numbers_that_are_none_lead_nowhere(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq._operate.search._QUICK_SECONDS", 0)  # as on a machine that is slow
    largest = 2**63 - 1
    job_id = await queue.enqueue({})
    await site.get("/", done="9" * 5000)
    assert (await site.get("/jobs", before=largest)).jobs() == [job_id]
    for wrong in (largest, largest + 1, "9" * 5000, "\u00b2"):
        await site.get(f"/job/{wrong}", status=404)


async def test_a_state_that_is_none_is_told(site: Site, queue: pgq.Queue) -> None:
    await queue.enqueue({})
    page = await site.get("/jobs?state=redy")
    assert "'redy' is no state" in page.text
    assert page.jobs() == []
    await site.post("/runs", 400, verb="cancel:all", state="redy")


async def test_what_no_queue_keeps_is_not_counted(site: Site, admin: pgq.Admin) -> None:
    assert "done in a minute 0" in (await site.get("/")).text
    await admin.configure_queue("default", keep_completed=timedelta(0))
    site.app.state.live.change()
    assert "done in a minute -" in (await site.get("/")).text


def test_the_lines_show_the_last_hour() -> None:
    history = History()
    row = {"queue": "a", "ready": 1, "active": 0, "dead": 0}
    for at in (0.0, 1000.0, 3000.0, 4000.0):
        history.add(at, [{**row, "completed_last_minute": 0, "failed_last_minute": 0}])
    assert [at for at, _ in history.of("a")] == [1000.0, 3000.0, 4000.0]


async def test_a_search_leads_to_the_job_the_queue_or_a_text(site: Site) -> None:
    for text, place in {
        "17": "/job/17",
        "#17": "/job/17",
        "default": "/queue?name=default",
        "a b": "/jobs?text=a+b",
        "": "/jobs",
    }.items():
        await site.get("/search", status=303, q=text)
        assert site.answers[-1].headers["location"] == place


async def test_dead_jobs_of_a_task_that_differ_in_numbers_are_of_one_kind(
    site: Site, queue: pgq.Queue
) -> None:
    for number in range(3):
        await die(queue, error=f"Traceback\n  line 1\nError: user {number} of 9 is gone")
    await die(queue, error="Other")
    await die(queue, error="Other", headers={"task": "send"})
    page = await site.get("/dead")
    assert "5 jobs, in 3 kinds" in page.text
    assert "Error: user # of # is gone" in page.text


async def test_dead_jobs_are_looked_for_in_pages(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await die(queue)
    await queue.enqueue_many(list(range(1500)))
    monkeypatch.setattr("pgq.dashboard._pages._SECONDS", -1)
    page = await site.get("/dead")
    assert "No dead job was found here" in page.text
    assert "The ids from 502 have been looked at. One job is dead in all." in page.text
    [older] = [url for url in page.values("a", "href") if "before=" in url]
    page = await site.get(older)
    assert "1 job, with ids below 502, in 1 kind" in page.text
    assert f"dead-{job_id}" in page.values("tr", "id")
    assert "/dead?" in page.values("a", "href"), "back to the newest"


async def test_completed_jobs_below_many_newer_ones_are_not_said_to_be_none(
    site: Site, queue: pgq.Queue, admin: pgq.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.configure_queue("default", keep_completed=timedelta(days=1))
    await queue.enqueue({})
    [job] = await queue.dequeue(1)
    await queue.complete(job)
    await queue.enqueue_many(list(range(1500)))
    assert "Seconds of the last 1 completed jobs" in (await site.get("/queue?name=default")).text
    monkeypatch.setattr("pgq.dashboard._pages._SECONDS", -1)

    async def is_cut() -> bool:  # what was found before is kept for a while
        page = await site.get("/queue?name=default")
        assert "No completed job is kept" not in page.text
        return "Among the newest jobs none is completed" in page.text

    await until(is_cut)


async def test_more_dead_jobs_than_are_grouped_come_on_the_next_page(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await die(queue) for _ in range(3)]
    monkeypatch.setattr("pgq.dashboard._pages._DEAD", 2)
    page = await site.get("/dead")
    assert f"2 jobs of 3, with ids from {ids[1]}, in 1 kind" in page.text
    monkeypatch.setattr("pgq.dashboard._pages.MOST_DEAD", 3)
    page = await site.get("/dead", before=ids[1])
    assert f"1 job of 3 or more, with ids below {ids[1]}, in 1 kind" in page.text


async def test_a_search_takes_small_steps_where_a_large_one_would_be_slow(
    connection: Connection, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await queue.enqueue_many([1, 2, 3])
    # Below many ids that are not in use, a step to the jobs takes a second for 10,000 ids.
    slow = sql.IDS_BETWEEN.replace(
        "from @pgq_jobs m",
        "from @pgq_jobs m, pg_catalog.pg_sleep("
        "case when $1 < 1000 then ($2::bigint - $1::bigint) / 10000.0 else 0 end)",
    )
    assert slow != sql.IDS_BETWEEN
    monkeypatch.setattr("pgq._operate.search._MOST_MILLISECONDS", 100)
    client, found = Client(connection, None), list[int]()
    search = Search(client, Filter(), known=100_000_000)
    async with asyncio.timeout(PATIENCE):
        async for page in search.pages(slow, limit=10, before=search.known):
            found += [row["id"] for row in page]
    assert (found, search.low) == (sorted(ids, reverse=True), 0)
    with pytest.raises(asyncpg.QueryCanceledError):
        await client.fetch_by_index("select pg_sleep(3600)", milliseconds=1)


async def test_what_is_left_out_of_a_long_list_is_counted(
    site: Site, connection: Connection, queue: pgq.Queue
) -> None:
    await queue.enqueue_many(list(range(201)))
    await connection.execute("""
        select pgq_fail(id, token, repeat('x', id::integer), retryable => false)
          from pgq_dequeue(201);
        select pgq_schedule('s' || n, '@daily', '1', 'default') from generate_series(1, 101) n;
        select pgq_pause_schedule('s' || n) from generate_series(1, 101) n;
    """)
    assert "and 1 other kinds" in (await site.get("/dead")).text
    page = await site.get("/")
    assert "97 more" in page.text
    assert "and 2 more; pgq doctor shows all" in page.text
    # Otherwise the script would close what is open, each time that the page is renewed.
    [config] = [one["content"] for _, one in page.elements if one.get("name") == "htmx-config"]
    assert "open" in json.loads(str(config))["morphIgnore"]


async def test_commands_to_copy_quote_the_names_in_them(
    dsn: dict[str, Any], connection: Connection, pool: asyncpg.Pool[Any], admin: pgq.Admin
) -> None:
    await admin.create_queue("a; rm x", keep_completed=timedelta(0))
    async with site_of(pool) as site:
        text = (await site.get("/queue", name="a; rm x")).text
        assert "pgq queue configure 'a; rm x' --keep-completed 1d" in text
    role = f"o'{dsn['database']}"
    await connection.execute(f"create role \"{role}\" login password 'x'")
    await admin.grant("a; rm x", role, ["observe"])
    try:
        arguments: dict[str, Any] = {**dsn, "user": role, "password": "x"}
        async with asyncpg.create_pool(**arguments, min_size=0) as own, site_of(own) as site:
            quoted = role.replace("'", "''")
            assert f"pgq_grant('*', '{quoted}', '{{observe}}')" in (await site.get("/")).text
    finally:
        await admin.revoke("a; rm x", role)
        await connection.execute(f'drop role "{role}"')


@pytest_asyncio.fixture
async def hostile(connection: Connection, dsn: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Connection arguments of a database whose name is markup; so are role and application."""
    name = quoted(HOSTILE)
    await connection.execute(f"create role {name} superuser login")
    await connection.execute(f"create database {name} template {TEMPLATE}")
    settings = {"application_name": HOSTILE}
    yield {**dsn, "database": HOSTILE, "user": HOSTILE, "server_settings": settings}
    await connection.execute(f"drop database {name} with (force)")
    await connection.execute(f"drop role {name}")


@contextlib.asynccontextmanager
async def in_the_way(dsn: dict[str, Any], queue: str) -> AsyncGenerator[None]:
    """Hold a job by a prepared transaction, and the slots by a session that stays in one."""
    gid = "'" + HOSTILE.replace("'", "''") + "'"
    connection: Connection = await asyncpg.connect(**dsn)
    await connection.execute("begin")
    await connection.execute("select pgq_pop(1, $1)", queue)
    await connection.execute(f"prepare transaction {gid}")
    await connection.execute("begin")
    await connection.execute(f"select from pgq.job /* {HOSTILE} */")
    with patch(f"{LIVE}.LIMITS", Limits(timedelta(0), timedelta(0))):
        yield
    await connection.execute("rollback")
    await connection.execute(f"rollback prepared {gid}")
    await connection.close()


async def test_markup_in_every_field_is_text(hostile: dict[str, Any]) -> None:
    name = HOSTILE

    def by_name(connection: HTTPConnection) -> dashboard.User:
        del connection
        return dashboard.User(name=name)

    async with (
        asyncpg.create_pool(**hostile, min_size=0) as pool,
        site_of(pool, title=HOSTILE, authenticate=by_name) as s,
    ):
        admin, queue = pgq.Admin(pool), pgq.Queue(pool, name)
        await admin.create_queue(name, description=HOSTILE, group_on_dead="block", max_active=9)
        done = await queue.enqueue({})
        [job] = await queue.dequeue(1)
        await queue.heartbeat(job, checkpoint={HOSTILE: "checkpoint"})
        await queue.complete(job, result={HOSTILE: "result"})
        dead = await die(
            queue,
            payload={HOSTILE: HOSTILE},
            headers={"task": HOSTILE},
            group_key=HOSTILE,
            dedupe_key=HOSTILE,
            error=HOSTILE,
            worker=HOSTILE,
        )
        waiting = await queue.enqueue({}, group_key=HOSTILE)
        await queue.enqueue_many([1, 2])
        await queue.dequeue(1, worker=HOSTILE)
        await admin.schedule(HOSTILE, "@daily", {HOSTILE: 1}, name)
        await admin.pause(name)
        await s.do("resume", queue=name)
        run, _ = await s.look(verb="retry:all", queue=name, signature=HOSTILE)
        pages: dict[str, dict[str, Any]] = {
            "/": {},
            "/queue": {"name": name},
            "/jobs": {"queue": name, "text": HOSTILE, "since": HOSTILE},
            "/jobs?": {"queue": name},
            f"/job/{done}": {},
            f"/job/{dead}": {},
            f"/job/{waiting}": {},
            "/dead": {},
            "/workers": {},
            "/schedules": {},
            "/actions": {},
            run: {},
        }
        texts = dict[str, str]()
        async with in_the_way(hostile, name):
            s.app.state.live.change()
            for path, params in pages.items():
                page = await s.get(path, **params)
                names = {name for name, _ in page.elements}
                assert "xss-tag" not in names, path
                assert len(page.values("script", "src")) == sum(
                    name == "script" for name, _ in page.elements
                )
                assert not [
                    one for _, attributes in page.elements for one in attributes if one == "onload"
                ]
                texts[path] = page.text
            await s.get("/")
            overview = s.answers[-1].text
        tag = "<xss-tag onload=1>"
        for path, text in texts.items():
            assert text.count(tag) >= 4, f"{path}: title, database, role and user"
        for field in (f'prepared transaction "{tag}', f"application {tag}", f"/* {tag}"):
            assert field in texts["/"]
        advice = re.findall(r'<p class="advice"><code>(.*?)</code>', overview)
        assert [one for one in advice if "ROLLBACK PREPARED" in one and "xss-tag" in one]
        assert [one for one in advice if re.search(r"SELECT pg_terminate_backend\(\d+\)", one)]
        assert f"application {tag}" in texts["/workers"]
        assert re.search(f"Checkpoint .*{tag}", texts[f"/job/{done}"])
        assert re.search(f"Result .*{tag}", texts[f"/job/{done}"])
        assert re.search(f"Attempts that failed .*{tag}", texts[f"/job/{dead}"])
        assert re.search(f"What jobs wait for .*transaction .*{tag}", texts["/queue"])


def in_starlette(path: str, app: Starlette) -> Starlette:
    return Starlette(routes=[Mount(path, app)])


def in_fastapi(path: str, app: Starlette) -> FastAPI:
    made = FastAPI()
    made.mount(path, app)
    return made


@pytest.mark.parametrize("mounted", [in_starlette, in_fastapi])
async def test_an_application_mounts_it_below_a_path(
    pool: asyncpg.Pool[Any], mounted: Callable[[str, Starlette], Starlette]
) -> None:
    app = dashboard.app(pool, authenticate=dashboard.anybody)
    async with visit(mounted("/ops/pgq", app), "ada", "/ops/pgq") as site:
        page = await site.get("/")
        paths = [url for url in page.values("a", "href") if not url.startswith("#")]
        assert paths
        assert [url for url in paths if not url.startswith("/ops/pgq/")] == []
        assert page.values("div", "hx-get") == ["/ops/pgq/"]
        [style] = [url for url in page.values("link", "href") if "app.css" in url]
        assert "color-scheme" in (await site.client.get(style)).text
        assert "is paused" in await site.do("pause", queue="default")
    await app.state.close()


async def test_the_example_of_the_documentation_runs(pool: asyncpg.Pool[Any]) -> None:
    found = re.search(r'```python title="ops.py"\n(.*?)```', read("docs/dashboard.md"), re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(found[1], names)
    example, session = names["make"](pool), dict[str, str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await example({**scope, "session": session}, receive, send)

    async with visit(app, "", "/pgq") as site:
        await site.get("/", status=401)
        session["name"] = "ada"
        assert "pause" in (await site.get("/queue?name=default")).buttons()
        session["name"] = "bob"
        assert (await site.get("/queue?name=default")).buttons() == []
    await example.routes[0].app.state.close()


async def test_the_series_of_a_queue_are_columns_of_numbers(site: Site, queue: pgq.Queue) -> None:
    await queue.enqueue_many([1, 2, 3])
    for job in await queue.dequeue(2):
        await queue.complete(job)
    await site.get("/queue?name=default")
    series = (await site.client.get("/series?name=default")).json()
    assert series["backlog"][1][-1] == 1
    assert series["flow"][1][-1] == 2
    assert len({len(column) for column in series["times"]}) == 1
    assert series["times"][0]
    await site.get("/series?name=none", status=404)


@pytest.mark.once
def test_the_files_of_others_are_those_of_their_releases() -> None:
    sources = json.loads((STATIC / "vendor" / "SOURCES.json").read_text(encoding="utf-8"))
    for one in sources:
        content = (STATIC / "vendor" / one["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == one["sha256"], one["file"]
    kept = {path.name for path in (STATIC / "vendor").iterdir()}
    assert kept == {one["file"] for one in sources} | {"SOURCES.json"}


async def test_ten_viewers_cost_the_server_as_much_as_one(
    dsn: dict[str, Any], queue: pgq.Queue
) -> None:
    statements: list[str] = []

    async def count(connection: Connection) -> None:
        connection.add_query_logger(lambda record: statements.append(record.query))

    await queue.enqueue_many([1, 2, 3])
    async with asyncpg.create_pool(**dsn, min_size=0, max_size=5, init=count) as pool:

        async def statements_of(viewers: int) -> float:
            """Return how many statements there are in a look while pages are renewed."""
            async with site_of(pool) as site:
                live: Live = site.app.state.live
                streams = [live.events() for _ in range(viewers)]
                for stream in streams:
                    await anext(stream)
                    await anext(stream)
                await site.get("/")
                assert live.snapshot is not None
                first, before = live.snapshot.revision, len(statements)
                for _ in range(3):
                    await asyncio.gather(*(anext(stream) for stream in streams))
                    await asyncio.gather(*(site.get("/") for _ in streams))
                looks: int = live.snapshot.revision - first
                for stream in streams:
                    await stream.aclose()
                assert live.viewers == 0
                return (len(statements) - before) / looks

        one, ten = await statements_of(1), await statements_of(10)
        assert one > 1
        assert ten < 1.5 * one


async def test_viewers_of_the_same_jobs_share_a_search_and_others_have_their_own(
    site: Site,
) -> None:
    live: Live = site.app.state.live
    asked: list[str] = []

    async def answer(name: str) -> str:
        asked.append(name)
        await asyncio.sleep(0)
        return name

    both = await asyncio.gather(
        live.once("a", lambda: answer("a")),
        live.once("a", lambda: answer("a")),
        live.once("b", lambda: answer("b")),
    )
    assert list(both) == ["a", "a", "b"]
    assert asked == ["a", "b"]
    live.change()
    await live.once("a", lambda: answer("a"))
    assert asked == ["a", "b", "a"], "after a change nothing old is shown"


async def test_a_change_as_a_search_begins_does_not_break_it(site: Site) -> None:
    live: Live = site.app.state.live

    async def answer() -> str:
        return "now"

    asked = asyncio.create_task(live.once("a", answer))
    await asyncio.sleep(0)
    live.change()
    assert await asked == "now"


async def test_a_fault_of_the_dashboard_in_a_look_is_told_and_the_next_look_goes_on(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.get("/")
    with monkeypatch.context() as patch:
        patch.setattr("pgq.dashboard._live.gather", None)
        site.app.state.live.change()
        assert "The look at the queues has failed: TypeError" in (await site.get("/")).text
    assert "the queues could not be read for the dashboard" in caplog.text
    site.app.state.live.change()
    assert "has failed" not in (await site.get("/")).text


async def test_an_answer_that_has_failed_is_not_kept(site: Site) -> None:
    live: Live = site.app.state.live

    async def fail() -> str:
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        await live.once("a", fail)

    async def answer() -> str:
        return "now"

    assert await live.once("a", answer) == "now"


def test_pages_are_parsed_as_browsers_do() -> None:
    assert Page("<p>&lt;b&gt; <i>x</i></p>").elements == [("p", {}), ("i", {})]
