"""What the dashboard shows as time passes: lines, workers that go, searches and runs in steps."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pgq
import pytest
import pytest_asyncio
from pgq.dashboard._live import History, Live
from pgq.dashboard._render import spark

from .dashboard_site import Page, Site, site_of
from .sessions import Connection, connect, until
from .test_dashboard import die
from .test_dashboard_actions import state_of

HOUR, SPACING = 3600.0, 5.0


@pytest_asyncio.fixture
async def site(pool: asyncpg.Pool[Any]) -> AsyncIterator[Site]:
    """The dashboard for a user who may act."""
    async with site_of(pool) as site:
        yield site


# Lines


def looked(seconds: list[float], *, ready: list[int] | None = None) -> History:
    """Return what is kept of looks at a queue."""
    history = History()
    for number, at in enumerate(seconds):
        row = dict.fromkeys(("active", "dead", "completed_last_minute", "failed_last_minute"), 0)
        history.add(at, [{**row, "queue": "q", "ready": ready[number] if ready else number}])
    return history


@pytest.mark.parametrize("interval", [1, 2, 7, 15])
def test_a_line_goes_back_an_hour_and_ends_now(interval: int) -> None:
    looks = [float(at) for at in range(0, 4 * 3600, interval)]
    times = [at for at, _ in looked(looks).of("q")]
    assert times[-1] == looks[-1]
    assert times[0] <= looks[-1] - HOUR + 2 * SPACING
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) <= max(interval, 2 * SPACING)
    assert len(times) <= 2 * HOUR / SPACING


def test_a_line_has_what_its_queue_had_since_it_is_there() -> None:
    history = looked([0.0, 10.0])
    history.add(20.0, [])
    assert [sample.ready for _, sample in history.of("q")] == [0, 1]
    assert history.of("another") == []


def test_a_line_shows_a_short_burst_and_says_what_is_now() -> None:
    ready = [3] * 200
    ready[77] = 5000
    history = looked([10.0 * number for number in range(200)], ready=ready)
    drawn = Page(str(spark(history.of("q"), "ready", "ready")))
    assert drawn.text == "ready: now 3, at most 5,000"
    [points] = drawn.values("polyline", "points")
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert len(heights) <= 60, "200 looks are drawn by fewer points"
    assert heights.count(min(heights)) == 1
    assert min(heights) < max(heights) - 10
    lone = Page(str(spark(looked([0.0]).of("q"), "ready", "ready")))
    assert lone.values("svg", "aria-hidden") == ["true"]
    assert lone.text == ""


async def test_lines_are_kept_while_nobody_watches(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq.dashboard._live._VIEWED_SECONDS", 0)
    monkeypatch.setattr("pgq.dashboard._live._RESTING_SECONDS", 0.01)
    monkeypatch.setattr("pgq.dashboard._live._SPACING_SECONDS", 0)
    await site.get("/")
    live: Live = site.app.state.live
    assert live.snapshot
    seen = live.snapshot.revision
    await queue.enqueue_many([1, 2, 3])

    async def is_kept() -> bool:
        samples = [sample.ready for _, sample in live.history.of("default")]
        return samples[0] == 0 and samples[-1] == 3

    await until(is_kept)
    assert live.snapshot.revision == seen, "only the line was looked at"


# Workers


async def test_a_worker_whose_session_has_ended_is_gone(
    site: Site, dsn: dict[str, Any], connection: Connection, queue: pgq.Queue
) -> None:
    await queue.enqueue_many([1, 2, 3])
    lives, ends = await connect(dsn), await connect(dsn)
    await pgq.Queue(lives).dequeue(1, worker="ada")
    held = [job.id for job in await pgq.Queue(ends).dequeue(2, worker="bob")]
    await ends.close()
    await connection.execute(
        "update pgq.job set lease_expires_at = lease_expires_at - interval '1 h'"
        " where id = any ($1)",
        held,
    )

    async def is_shown() -> bool:
        text = (await site.get("/workers")).text
        return "bob gone default 2 2 " in text and "ada default 1 0 " in text

    await until(is_shown)
    assert "bob gone 2 2 " in (await site.get("/queue?name=default")).text
    await lives.close()


# Schedules and limits


async def test_a_schedule_shows_when_it_comes_next(site: Site, admin: pgq.Admin) -> None:
    await admin.schedule("yearly", "0 0 1 1 *", {}, "default", timezone="UTC")
    page = await site.get("/schedules")
    now = datetime.now(UTC)
    assert f"{now.year + 1}-01-01T00:00:00+00:00" in page.values("time", "datetime")
    assert "yearly 0 0 1 1 * UTC default in " in page.text


async def test_a_rate_limit_shows_when_the_next_job_may_start(
    site: Site, pool: asyncpg.Pool[Any], admin: pgq.Admin
) -> None:
    await admin.create_queue("slow", rate_limit=1, rate_interval=timedelta(hours=1))
    slow = pgq.Queue(pool, "slow")
    await slow.enqueue_many(list(range(9)))

    async def is_shown() -> bool:
        await slow.dequeue(1)  # in a new hour another one may start
        text = (await site.get("/queue?name=slow")).text
        return bool(re.search(r"starts 1 in 1h 0m, the next in \d", text))

    await until(is_shown)


# Searches


async def test_a_search_that_stops_goes_on_below(
    site: Site, connection: Connection, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq.dashboard._pages._SECONDS", 0)
    old = await queue.enqueue({"to": "ada"})
    await connection.execute("select setval('pgq.number', 100000)")
    new = await queue.enqueue({"to": "ada"})
    page, found, pages = await site.get("/jobs?text=ada"), list[int](), 1
    while links := [url for url in page.values("a", "href") if "before=" in url]:
        found += page.jobs()
        assert "Look below" in page.text
        page, pages = await site.get(links[-1]), pages + 1
    assert [*found, *page.jobs()] == [new, old]
    assert pages > 2


# Runs


async def test_a_purge_of_several_steps(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq.dashboard._actions._PURGE_STEP", 2)
    await queue.enqueue_many(list(range(5)))
    dead = await die(queue, priority=9)
    path, page = await site.look(verb="purge", queue="default", state="ready")
    assert "about 5 jobs" in page.text
    await site.post(f"{path}/start")
    assert "Done: 5 jobs are deleted." in (await site.settled(path)).text
    assert (await site.get("/jobs")).jobs() == [dead]


async def test_a_retry_passes_by_a_job_whose_key_is_taken(site: Site, queue: pgq.Queue) -> None:
    first = await die(queue, dedupe_key="k")
    live = await queue.enqueue({}, dedupe_key="k")
    other = await die(queue, priority=9)
    path, page = await site.look(verb="retry:all", queue="default")
    assert "Retry 2 jobs?" in page.text
    await site.post(f"{path}/start")
    told = "Done: 1 job is ready again; 1 job not: no longer dead, or a live job has the key."
    assert told in (await site.settled(path)).text
    states = [await state_of(queue, one) for one in (first, live, other)]
    assert states == ["dead", "ready", "ready"]


async def test_a_run_that_fails_in_the_middle_says_how_far_it_came(
    site: Site,
    queue: pgq.Queue,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pgq._operate.bulk.STEP", 1)
    caplog.set_level(logging.INFO, "pgq.dashboard.audit")
    ids = await queue.enqueue_many(list(range(3)))
    path, _ = await site.look(verb="cancel:all", queue="default")
    locked = connection.transaction()
    await locked.start()
    await connection.execute("select from pgq.job where id = $1 for update", ids[1])
    await site.post(f"{path}/start")
    pid = connection.get_server_pid()

    async def is_cut_off() -> bool:
        rows = await connection.fetch(
            "select pg_terminate_backend(pid) from pg_locks"
            " where not granted and $1 = any (pg_blocking_pids(pid))",
            pid,
        )
        return bool(rows)

    await until(is_cut_off)
    page = await site.settled(path)
    await locked.rollback()
    assert "Failed: " in page.text
    assert ": 1 job is cancelled." in page.text
    assert "1 of 3" in page.text
    assert [await state_of(queue, one) for one in ids] == ["cancelled", "ready", "ready"]
    assert "cancel many" in (await site.get("/actions")).text
    record = caplog.records[-1]
    assert record.levelno == logging.WARNING
    assert re.search("cancel many.*failed: .*1 job is cancelled", record.getMessage())
    path, page = await site.look(verb="cancel:all", queue="default")
    await site.post(f"{path}/start")
    assert "Done: 2 jobs are cancelled." in (await site.settled(path)).text
