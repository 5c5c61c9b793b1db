"""What the dashboard changes, who may, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pgq
import pytest
import pytest_asyncio
from pgq import dashboard
from pgq._log import name_of
from pgserver import PATIENCE, Server
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse

from .cli_session import SCRIPT, Cli, url_of, variables
from .dashboard_site import LIVE, Site, site_of
from .sessions import Connection, until
from .test_dashboard import die

TOKEN = "a token of the test"


@pytest_asyncio.fixture
async def site(pool: asyncpg.Pool[Any]) -> AsyncIterator[Site]:
    """The dashboard for a user who may act."""
    async with site_of(pool) as site:
        yield site


async def state_of(queue: pgq.Queue, job_id: int) -> str:
    job = await queue.get(job_id)
    assert job
    return job.state


async def place_of(queue: pgq.Queue, job_id: int) -> tuple[str, int]:
    job = await queue.get(job_id)
    assert job
    return job.queue, job.priority


async def test_single_actions_do_what_their_functions_do(
    site: Site, pool: asyncpg.Pool[Any], queue: pgq.Queue, admin: pgq.Admin
) -> None:
    assert "paused" in await site.do("pause", queue="default")
    assert "resume" in (await site.get("/queue?name=default")).buttons()
    assert "resumed" in await site.do("resume", queue="default")
    dead = await die(queue)
    assert await site.do("retry", queue="default", id=dead) == f"Job {dead} is ready again."
    assert await state_of(queue, dead) == "ready"
    assert "cancelled" in await site.do("cancel", queue="default", id=dead)
    assert await state_of(queue, dead) == "cancelled"
    later = await queue.enqueue({}, run_at=datetime.now(UTC) + timedelta(hours=1))
    assert "run" in (await site.get(f"/job/{later}")).buttons()
    assert await site.do("run", queue="default", id=later) == f"Job {later} is ready."
    assert await state_of(queue, later) == "ready"
    await admin.create_queue("line", group_on_dead="block")
    line = pgq.Queue(pool, "line")
    await die(line, group_key=" g ")
    behind = await line.enqueue({}, group_key=" g ")
    assert "goes on" in await site.do("unblock", queue="line", group=" g ")
    assert await state_of(line, behind) == "ready"
    await admin.schedule("daily", "@daily", {"kind": 1}, "line", headers={"task": "report"})
    assert "paused" in await site.do("pause-schedule", queue="line", schedule="daily")
    assert "resume-schedule" in (await site.get("/schedules")).buttons()
    assert "resumed" in await site.do("resume-schedule", queue="line", schedule="daily")
    told = await site.do("run-schedule", queue="line", schedule="daily")
    [found] = re.findall(r"job (\d+) is enqueued", told)
    job = await line.get(int(found))
    assert job
    assert job.payload == {"kind": 1}
    assert job.headers
    assert set(job.headers) == {"task", "pgq_schedule", "pgq_scheduled_at"}


async def test_a_group_goes_on_past_the_job_that_was_seen_and_no_other(
    site: Site, queue: pgq.Queue, admin: pgq.Admin
) -> None:
    await admin.configure_queue("default", group_on_dead="block")
    first = await die(queue, group_key="g")
    behind = await queue.enqueue({}, group_key="g")
    assert "goes on" in await site.do("unblock", queue="default", group="g", id=first)
    [job] = await queue.dequeue(1)
    await queue.fail(job, "no", retryable=False)
    last = await queue.enqueue({}, group_key="g")
    told = await site.do("unblock", queue="default", group="g", id=first)
    assert told == f"Now job {behind} blocks the group g."
    assert await state_of(queue, last) == "waiting"
    assert "goes on" in await site.do("unblock", queue="default", group="g", id=behind)
    assert await state_of(queue, last) == "ready"


async def test_what_begins_a_run_comes_after_what_stops_it(site: Site, queue: pgq.Queue) -> None:
    await queue.enqueue({})
    _, page = await site.look(verb="cancel:all")
    assert [one for one in page.values("form", "id") if one in {"start", "stop"}] == [
        "stop",
        "start",
    ]


async def test_an_action_that_is_refused_says_why(site: Site, queue: pgq.Queue) -> None:
    job_id = await queue.enqueue({})
    assert "no dead job" in await site.do("retry", queue="default", id=job_id)
    assert "no job 99" in await site.do("cancel", queue="default", id=99)
    assert "no job 99" in await site.do("run", queue="default", id=99)
    ended = await die(queue, priority=9)
    assert "no live job" in await site.do("cancel", queue="default", id=ended)
    assert "active or has ended" in await site.do("run", queue="default", id=ended)
    assert "is no id" in await site.do("cancel", queue="default", id="x")
    assert "does not exist" in await site.do("pause", queue="none")
    assert "not blocked" in await site.do("unblock", queue="default", group="g")
    assert "no schedule" in await site.do("pause-schedule", queue="default", schedule="s")
    [job] = await queue.dequeue(1)
    assert "its worker is told" in await site.do("cancel", queue="default", id=job.id)
    await site.post("/do", 400, action="drop", queue="default", back="/")
    await site.post("/do", 400, action="pause", back="/")


async def test_every_action_is_logged_with_its_user(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgq.dashboard.audit")
    await site.do("pause", queue="default")
    await site.do("resume", queue='a "queue"\nuser="eve"')
    done, refused = caplog.records
    assert done.levelno == logging.INFO
    assert done.getMessage().startswith('user="ada" action="pause" queue="default" outcome="queue')
    assert refused.levelno == logging.WARNING
    assert "\n" not in refused.getMessage()
    assert r"queue=\"a" not in refused.getMessage()
    page = await site.get("/actions")
    assert page.text.index("resume") < page.text.index("pause queue default")
    assert (
        vars(done).items()
        >= {
            "pgq_user": "ada",
            "pgq_action": "pause",
            "pgq_queue": "default",
            "pgq_outcome": done.getMessage().partition('outcome="')[2].rstrip('"'),
        }.items()
    )


async def test_forms_that_are_refused_are_logged(
    site: Site, queue: pgq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.enqueue({})
    fields = {"queue": "default", "id": "7"}
    form = await site.token()
    await site.post("/do", 403, action="cancel", form="0" * 64, **fields)
    await site.post("/do", 400, action="drop", form=form, **fields)
    await site.post("/runs", 400, verb="retry", form=form, queue="default")
    await site.post("/runs/none/start", 413, form=form, more="x" * 1_000_001)
    site.client.headers["x-test-user"] = "eve"
    await site.post("/do", 403, action="retry", form=await site.token("/jobs"), **fields)
    told = [
        tuple(vars(one)[name] for name in ("pgq_user", "pgq_action", "pgq_outcome"))
        for one in caplog.records
    ]
    assert [(user, action) for user, action, _ in told] == [
        ("ada", "cancel"),
        ("ada", "drop"),
        ("ada", "retry"),
        ("ada", "start"),
        ("eve", "retry"),
    ]
    assert all(outcome.startswith("refused: ") for _, _, outcome in told)
    assert vars(caplog.records[0])["pgq_job_id"] == 7


async def test_a_run_is_logged_before_it_changes_anything(
    site: Site, queue: pgq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgq.dashboard.audit")
    ids = [await queue.enqueue({}) for _ in range(2)]
    path, _ = await site.look(verb="cancel", id=[str(one) for one in ids])
    assert caplog.records == []
    await site.post(f"{path}/start")
    await site.settled(path)
    assert [vars(one)["pgq_outcome"] for one in caplog.records] == [
        "begun: 2 jobs",
        "done: 2 jobs are cancelled",
    ]
    assert all(f'ids="{ids[0]},{ids[1]}"' in one.getMessage() for one in caplog.records)


async def test_an_action_leads_back_to_pages_of_the_dashboard_only(site: Site) -> None:
    for back, place in {
        "/jobs?queue=a&done=7": "/jobs?queue=a&done=",
        "https://evil.example/": "/?done=",
        "//evil.example/": "/?done=",
        "/\\evil.example": "/?done=",
        "": "/?done=",
    }.items():
        answer = await site.post("/do", action="pause", queue="default", back=back)
        assert answer.headers["location"].startswith(place), back


async def test_a_run_changes_what_its_preview_has_shown(site: Site, queue: pgq.Queue) -> None:
    first = [await die(queue, error=f"timeout of {n}", headers={"task": "a"}) for n in range(3)]
    other = await die(queue, error="other", headers={"task": "a"})
    path, page = await site.look(verb="retry:all", queue="default", error="TIMEOUT")
    assert "Retry 3 jobs?" in page.text
    assert "3 default dead a timeout of #" in page.text
    late = await die(queue, error="timeout of 9")
    await site.post(f"{path}/start")
    page = await site.settled(path)
    assert "Done: 3 jobs are ready again" in page.text
    assert [await state_of(queue, one) for one in (*first, other, late)] == [
        *["ready"] * 3,
        "dead",
        "dead",
    ]
    assert "retry many" in (await site.get("/actions")).text


async def test_scheduled_jobs_are_run_at_once_but_those_of_groups(
    site: Site, queue: pgq.Queue
) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    one, two = [await queue.enqueue({}, run_at=at) for _ in range(2)]
    grouped = await queue.enqueue({}, run_at=at, group_key="g")
    path, page = await site.look(verb="run:all", queue="default")
    assert "Run 2 jobs?" in page.text
    assert "Left out: 1 job of a group, which stand in a line." in page.text
    await site.post(f"{path}/start")
    assert "Done: 2 jobs are ready." in (await site.settled(path)).text
    states = [await state_of(queue, job_id) for job_id in (one, two, grouped)]
    assert states == ["ready", "ready", "scheduled"]


async def test_a_job_is_moved_to_another_queue_and_priority(
    site: Site, pool: asyncpg.Pool[Any], queue: pgq.Queue, admin: pgq.Admin
) -> None:
    await admin.create_queue("later")
    job_id = await queue.enqueue({}, dedupe_key="k")
    assert "move" in (await site.get(f"/job/{job_id}")).buttons()
    move = {"queue": "default", "id": job_id}
    assert "Name another" in await site.do("move", **move)
    assert "is a number from" in await site.do("move", to_priority="high", **move)
    assert "priority" in await site.do("move", to_priority="99999", **move)
    assert "does not exist" in await site.do("move", to_queue="none", **move)
    told = await site.do("move", to_queue="later", to_priority="-5", **move)
    assert told == f"Job {job_id} is in queue later, of priority -5."
    assert await place_of(queue, job_id) == ("later", -5)
    other = await queue.enqueue({}, dedupe_key="k")
    assert "k" in await site.do("move", to_queue="later", queue="default", id=other)
    [active] = await pgq.Queue(pool, "later").dequeue(1)
    assert "move" not in (await site.get(f"/job/{active.id}")).buttons()
    assert "is active" in await site.do("move", to_priority="1", queue="later", id=active.id)


async def test_jobs_that_can_be_moved_are_moved_together(
    site: Site, pool: asyncpg.Pool[Any], queue: pgq.Queue, admin: pgq.Admin
) -> None:
    older = await queue.enqueue({"n": 0})
    await admin.create_queue("later")
    await pgq.Queue(pool, "later").enqueue({}, dedupe_key="k")
    ids = await queue.enqueue_many([1, 2])
    same_key = await queue.enqueue({}, dedupe_key="k")
    grouped = await queue.enqueue({}, group_key="g")
    path, page = await site.look(verb="move:all", queue="default", to_queue="later")
    assert "Move 4 jobs?" in page.text
    assert "Left out: 1 job of a group, which stand in a line." in page.text
    await site.post(f"{path}/start")
    told = "Done: 2 jobs are moved; 2 jobs not: at work or ended, older than the queue,"
    assert told in (await site.settled(path)).text
    queues = [
        job.queue for one in (*ids, older, same_key, grouped) if (job := await queue.get(one))
    ]
    assert queues == ["later", "later", "default", "default", "default"]
    path, page = await site.look(verb="move", id=ids, to_priority="7")
    assert "to_priority 7" in page.text
    await site.post(f"{path}/start")
    assert "Done: 2 jobs are moved." in (await site.settled(path)).text
    assert [await place_of(queue, one) for one in ids] == [("later", 7)] * 2
    await site.post("/runs", 400, verb="move", id=ids)
    path, _ = await site.look(verb="move", id=ids, to_queue="none")
    await site.post(f"{path}/start")
    assert "Failed: " in (await site.settled(path)).text


async def test_a_run_of_one_kind_of_dead_jobs_leaves_the_others(
    site: Site, queue: pgq.Queue
) -> None:
    one, two = await die(queue, error="user 1 is gone"), await die(queue, error="user 2 is here")
    fields = {"verb": "retry:all", "queue": "default", "signature": "user # is gone"}
    path, page = await site.look(**fields)
    assert "Retry 1 job?" in page.text
    await site.post(f"{path}/start")
    await site.settled(path)
    assert [await state_of(queue, job) for job in (one, two)] == ["ready", "dead"]


async def test_a_run_of_dead_jobs_without_a_task_leaves_those_that_have_one(
    site: Site, queue: pgq.Queue
) -> None:
    tasks: tuple[dict[str, str], ...] = ({}, {"task": "send"}, {"task": ""})
    jobs = [await die(queue, error="gone", headers=headers) for headers in tasks]
    form = await site.token("/dead")
    fields = {"verb": "retry:all", "queue": "default", "signature": "gone", "form": form}
    for job, task in zip(jobs, tasks, strict=True):
        path, page = await site.look(**fields, **task)
        assert "Retry 1 job?" in page.text
        await site.post(f"{path}/start")
        await site.settled(path)
        assert await state_of(queue, job) == "ready"


async def test_a_run_of_selected_jobs_in_steps(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq._operate.bulk.STEP", 2)
    ids = await queue.enqueue_many(list(range(6)))
    [active] = await queue.dequeue(1)
    path, page = await site.look(verb="cancel", id=[str(one) for one in ids[:5]])
    assert "Cancel 5 jobs?" in page.text
    await site.post(f"{path}/start")
    page = await site.settled(path)
    assert "4 jobs are cancelled; 1 job not" in page.text
    assert [await state_of(queue, one) for one in ids] == [
        "active",
        *["cancelled"] * 4,
        "ready",
    ]
    path, _ = await site.look(verb="cancel", id=str(active.id), force="yes")
    await site.post(f"{path}/start")
    assert "1 job is cancelled" in (await site.settled(path)).text


async def test_a_preview_tells_what_it_leaves_out_and_that_there_may_be_more(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, ids = await die(queue), await queue.enqueue_many([1, 2, 3])
    _, page = await site.look(verb="cancel", id=[dead, ids[0]])
    assert "Cancel 1 job?" in page.text
    assert "Left out: 1 job dead." in page.text
    monkeypatch.setattr("pgq.dashboard._actions.MOST", 2)
    monkeypatch.setattr("pgq.dashboard._actions.MOST_DEAD", 1)
    _, page = await site.look(verb="cancel:all")
    assert "Cancel 2 jobs?" in page.text
    assert "There may be more: begin again afterwards." in page.text
    _, page = await site.look(verb="purge", queue="default", state="dead")
    assert "about 1 job or more?" in page.text


async def test_a_run_that_is_stopped_before_its_start_changes_nothing(
    site: Site, queue: pgq.Queue
) -> None:
    job_id = await queue.enqueue({})
    path, _ = await site.look(verb="cancel:all", queue="default")
    await site.post(f"{path}/stop")
    await site.post(f"{path}/start")
    assert "Stopped" in (await site.settled(path)).text
    assert await state_of(queue, job_id) == "ready"


async def test_a_run_that_is_stopped_ends_after_its_step(
    site: Site, queue: pgq.Queue, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq._operate.bulk.STEP", 1)
    ids = await queue.enqueue_many(list(range(3)))
    path, _ = await site.look(verb="cancel:all", queue="default")
    locked = connection.transaction()
    await locked.start()
    await connection.execute("select from pgq.job where id = $1 for update", ids[1])
    await site.post(f"{path}/start")

    async def waits() -> bool:
        return await state_of(queue, ids[0]) == "cancelled" and bool(
            await connection.fetchval(
                "select exists (select from pg_locks where not granted"
                " and $1 = any (pg_blocking_pids(pid)))",
                connection.get_server_pid(),
            )
        )

    await until(waits)
    await site.post(f"{path}/stop")
    await locked.rollback()

    async def is_over() -> bool:
        return "Stopped" in (await site.get(path)).text

    await until(is_over)

    async def is_noted() -> bool:
        return "cancel many" in (await site.get("/actions")).text

    await until(is_noted)
    assert await state_of(queue, ids[2]) == "ready"


async def test_what_waits_for_an_open_transaction_is_given_up_and_keeps_nobody_waiting(
    site: Site, queue: pgq.Queue, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, free = await queue.enqueue(1), await queue.enqueue(2)
    path, _ = await site.look(verb="cancel", id=locked)
    other, _ = await site.look(verb="cancel", id=free)
    form = await site.token()
    async with connection.transaction():
        await connection.execute("select from pgq.job where id = $1 for update", locked)
        with monkeypatch.context() as patch:
            patch.setattr(f"{LIVE}.CALL_SECONDS", 0.2)
            fields: dict[str, Any] = {"action": "cancel", "queue": "default", "id": locked}
            await site.post("/do", **fields, form=form)
            await site.post(f"{path}/start", form=form)
            failed = await site.settled(path)
        await site.post(f"{other}/start", form=form)
        assert "Done: 1 job is cancelled" in (await site.settled(other)).text
        told = (await site.get("/actions")).text
    assert "Failed: the server did not answer in time: 0 jobs are cancelled" in failed.text
    assert "it may have been done or not: the server did not answer in time" in told
    assert await state_of(queue, locked) == "ready"


async def test_a_fault_of_the_dashboard_ends_a_run_and_is_told(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = await site.look(verb="cancel", id=await queue.enqueue({}))
    monkeypatch.setattr("pgq._operate.bulk.cancel", None)
    await site.post(f"{path}/start")
    page = await site.settled(path)
    assert "Failed: TypeError" in page.text
    assert "a run of the dashboard failed" in caplog.text
    assert "failed: TypeError" in (await site.get("/actions")).text


async def test_a_purge_deletes_the_states_that_were_named(site: Site, queue: pgq.Queue) -> None:
    dead, job_id = await die(queue), await queue.enqueue({})
    done = await queue.enqueue({}, headers={"task": "send"}, priority=9)
    await queue.complete_many(await queue.dequeue(1))
    await queue.cancel(await queue.enqueue({}))
    path, page = await site.look(verb="purge", queue="default", state=["ready", "completed"])
    assert "about 2 jobs?" in page.text
    assert "1 default completed send" in page.text
    assert "cancelled" not in page.text.partition("about 2 jobs?")[2]
    await site.post(f"{path}/start")
    assert "2 jobs are deleted" in (await site.settled(path)).text
    assert [await queue.get(one) for one in (job_id, done)] == [None, None]
    assert await state_of(queue, dead) == "dead"
    await site.post("/runs", 400, verb="purge", queue="default")
    await site.post("/runs", 400, verb="purge", state="dead")


async def test_queues_schedules_and_groups_that_are_selected_are_done_each(
    site: Site, pool: asyncpg.Pool[Any], admin: pgq.Admin
) -> None:
    for name in ("a", "b"):
        await admin.create_queue(name, group_on_dead="block")
        await admin.schedule(f"of {name}", "@daily", {}, name)
    labels = (await site.get("/")).values("input", "aria-label")
    assert {f"Select queue {name}" for name in ("a", "b", "default")} <= set(labels)
    assert await site.do("pause", queue=["a", "b", "a"]) == "2 of 2 queues are done."
    assert (await site.get("/")).text.count("paused") == 2
    assert await site.do("resume", queue=["a", "b"]) == "2 of 2 queues are done."
    assert "paused" not in (await site.get("/")).text
    told = await site.do("pause", queue=["a", "none"])
    assert told.startswith("1 of 2 queues are done; ")
    assert "does not exist" in told
    names = ["of a", "of b"]
    assert await site.do("run-schedule", schedule=names) == "2 of 2 schedules are done."
    assert len((await site.get("/jobs")).jobs()) == 2
    assert await site.do("pause-schedule", schedule=names) == "2 of 2 schedules are done."
    assert (await site.get("/schedules")).buttons().count("resume-schedule") == 3
    line = pgq.Queue(pool, "b")
    for group in ("g", "h", "i"):
        await die(line, group_key=group, priority=9)
        await line.enqueue({}, group_key=group)
    site.app.state.live.change()
    page = await site.get("/queue?name=b")
    assert [one for one in page.values("input", "aria-label") if "Select group" in one] == [
        f"Select group {group}" for group in "ghi"
    ]
    assert await site.do("unblock", queue="b", group=["g", "i"]) == "2 of 2 groups are done."
    page = await site.get("/queue?name=b")
    assert [one for one in page.values("input", "aria-label") if "Select group" in one] == [
        "Select group h"
    ]
    log = (await site.get("/actions")).text
    assert "unblock many selected 2 2 of 2 groups are done" in log
    assert "queue b group g" in log
    await site.post("/do", 400, action="pause", queue=[str(n) for n in range(101)], back="/")


async def test_of_many_jobs_that_have_ended_a_purge_counts_some(
    site: Site, queue: pgq.Queue, admin: pgq.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq.dashboard._actions._MOST_COUNTED", 3)
    await queue.enqueue_many(list(range(5)))
    await admin.cancel_all("default")
    path, page = await site.look(verb="purge", queue="default", state="cancelled")
    assert "about 3 jobs or more?" in page.text
    await site.post(f"{path}/start")
    assert "5 jobs are deleted" in (await site.settled(path)).text


async def test_of_many_ids_a_purge_looks_at_the_newest(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq.dashboard._actions.MOST", 3)
    await queue.complete_many(await _claimed(queue))
    await queue.enqueue_many(list(range(5)))
    _, page = await site.look(verb="purge", queue="default", state=["ready", "completed"])
    assert "about 5 jobs or more?" in page.text


async def _claimed(queue: pgq.Queue) -> list[pgq.Job[Any]]:
    await queue.enqueue({})
    return await queue.dequeue(1)


async def test_runs_that_mean_nothing_are_refused(site: Site) -> None:
    await site.post("/runs", 400, verb="retry", queue="default")
    await site.post("/runs", 400, verb="retry:all", state="ready")
    await site.post("/runs", 400, verb="drop:all")
    await site.post("/runs", 400, verb="cancel:all", since="yesterday")
    await site.post("/runs", 400, verb="cancel", id=[str(one) for one in range(1001)])
    await site.get("/runs/unknown", status=404)


async def test_a_run_is_its_users(site: Site, queue: pgq.Queue) -> None:
    await queue.enqueue({})
    path, _ = await site.look(verb="cancel:all")
    site.client.headers["x-test-user"] = "bob"
    await site.get(path, status=404)
    await site.post(f"{path}/start", 404)


async def test_the_runs_of_others_do_not_displace_a_preview(
    site: Site, queue: pgq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq.dashboard._actions._RUNS", 2)
    job_id = await queue.enqueue({})
    path, _ = await site.look(verb="cancel", id=job_id)
    site.client.headers["x-test-user"] = "bob"
    of_bob = [(await site.look(verb="cancel", id=job_id))[0] for _ in range(3)]
    await site.get(of_bob[0], status=404)
    await site.post(f"{of_bob[1]}/start")
    assert "Done: 1 job is cancelled." in (await site.settled(of_bob[1])).text
    await site.get(of_bob[2])
    site.client.headers["x-test-user"] = "ada"
    assert "Cancel 1 job?" in (await site.get(path)).text
    await site.post(f"{path}/start")
    assert "Done: 0 jobs are cancelled; 1 job not" in (await site.settled(path)).text


async def test_forms_of_others_change_nothing(site: Site, admin: pgq.Admin) -> None:
    fields = {"action": "pause", "queue": "default", "back": "/"}
    token = await site.token()
    await site.post("/do", 403, **fields, form="")
    await site.post("/do", 403, **fields, form="0" * 64)
    site.client.headers["x-test-user"] = "bob"
    await site.post("/do", 403, **fields, form=token)
    site.client.headers["x-test-user"] = "ada"
    site.client.headers["sec-fetch-site"] = "cross-site"
    await site.post("/do", 403, **fields, form=token)
    site.client.headers["sec-fetch-site"] = "same-origin"
    nonce = site.client.cookies["pgq_form"]
    site.client.cookies.set("pgq_form", "another", domain="pgq.test", path="/")
    await site.post("/do", 403, **fields, form=token)
    site.client.cookies.set("pgq_form", nonce, domain="pgq.test", path="/")
    assert "is paused" not in (await site.get("/")).text
    await site.post("/do", 303, **fields, form=token)
    await site.post("/do", 413, **fields, form=token, more="x" * 1_000_001)
    assert (await site.client.get("/do")).status_code == 405


@pytest.mark.parametrize("way", ["user", "read_only"])
async def test_who_may_only_look_is_offered_nothing(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, way: str
) -> None:
    job_id = await die(queue)
    read_only = way == "read_only"
    async with site_of(pool, user="ada" if read_only else "eve", read_only=read_only) as site:
        for path in ("/queue?name=default", "/jobs", "/dead", f"/job/{job_id}", "/schedules"):
            assert (await site.get(path)).buttons() == [], path
        token = await site.token("/jobs")
        fields = {"queue": "default", "id": str(job_id), "form": token}
        answer = await site.post("/do", 403, action="retry", **fields)
        assert "You may look, and change nothing." in answer.text
        await site.post("/runs", 403, verb="retry", **fields)
    assert await state_of(queue, job_id) == "dead"


async def test_a_user_does_what_the_application_allows_in_each_queue(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, admin: pgq.Admin
) -> None:
    await admin.create_queue("mine")
    await admin.schedule("daily", "@daily", {}, "default")
    mine = pgq.Queue(pool, "mine")
    dead, dead_mine = await die(queue), await die(mine)
    live, live_mine = await queue.enqueue({}), await mine.enqueue({})
    async with site_of(pool, user="max") as site:
        assert (await site.get("/queue?name=default")).buttons() == ["retry:all"]
        assert (await site.get("/queue?name=mine")).buttons() == ["cancel:all", "purge"]
        assert (await site.get(f"/job/{dead}")).buttons() == ["retry"]
        assert (await site.get(f"/job/{dead_mine}")).buttons() == []
        assert (await site.get("/schedules")).buttons() == []
        assert (await site.get("/dead")).buttons() == ["retry:all"]
        page = await site.get("/jobs?queue=mine")
        assert page.buttons() == ["cancel", "cancel:all", "move", "move:all"]
        form = await site.token("/jobs")
        told = "You may not do that in the queue {}."
        fields = {"queue": "default", "form": form}
        assert await site.do("retry", id=dead_mine, **fields) == told.format("mine")
        assert await site.do("pause", **fields) == told.format("default")
        assert await site.do("run-schedule", schedule="daily", **fields) == told.format("default")
        assert "ready again" in await site.do("retry", id=dead, **fields)
        away = {"id": live_mine, "to_queue": "default", "form": form}
        assert await site.do("move", queue="mine", **away) == told.format("default")
        await site.post("/runs", 400, verb="move", **away)
        await site.post("/runs", 400, verb="purge", state="dead", **fields)
        path, page = await site.look(verb="cancel:all", form=form)
        assert "Cancel 1 job?" in page.text
        assert "Left out: 2 jobs of queues that are not yours to manage." in page.text
        await site.post(f"{path}/start", form=form)
        assert "1 job is cancelled." in (await site.settled(path)).text
    assert await state_of(mine, dead_mine) == "dead"
    assert [await state_of(queue, one) for one in (live, live_mine)] == ["ready", "cancelled"]


async def test_a_preview_of_a_user_who_may_no_longer_act_is_refused(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    dead = await die(queue)
    waits = await queue.enqueue({}, delay=timedelta(hours=1))
    forbidden = set[str]()

    def by_day(_: HTTPConnection) -> dashboard.User:
        return dashboard.User(name="ada", may=lambda action, _: action not in forbidden)

    async with site_of(pool, authenticate=by_day) as site:
        form = await site.token()
        wanted: dict[str, dict[str, Any]] = {
            "retry": {"verb": "retry:all"},
            "run": {"verb": "run", "id": waits},
            "move": {"verb": "move", "id": waits, "to_priority": "1"},
            "purge": {"verb": "purge", "queue": "default", "state": "dead"},
        }
        paths = {
            action: (await site.look(**fields, form=form))[0] for action, fields in wanted.items()
        }
        forbidden.update(paths)
        for path in paths.values():
            answer = await site.post(f"{path}/start", 400, form=form)
            assert "you may not do that in the queue default" in answer.text
    assert [await state_of(queue, one) for one in (dead, waits)] == ["dead", "scheduled"]


async def test_a_role_that_may_observe_one_queue_sees_only_it_and_changes_nothing(
    dsn: dict[str, Any], connection: Connection, queue: pgq.Queue, admin: pgq.Admin
) -> None:
    role = f"observer_{dsn['database']}"
    await admin.create_queue("secret")
    job_id = await die(queue)
    await connection.execute(f"create role {role} login password 'x'")
    await admin.grant("default", role, ["observe"])
    try:
        arguments: dict[str, Any] = {**dsn, "user": role, "password": "x"}
        async with asyncpg.create_pool(**arguments, min_size=0) as pool, site_of(pool) as site:
            overview = await site.get("/")
            assert "secret" not in overview.text
            assert "pgq_grant('*'" in overview.text, "what it may not see, and who helps"
            assert "job" in (await site.get(f"/job/{job_id}")).text
            await site.get("/queue?name=secret", status=404)
            for path in ("/queue?name=default", "/jobs", "/dead", f"/job/{job_id}"):
                assert (await site.get(path)).buttons() == [], path
            page = await site.client.get("/login")
            assert page.status_code == 404
    finally:
        await admin.revoke("default", role)
        await connection.execute(f"drop role {role}")


async def test_the_server_refuses_what_a_form_asks_without_the_privilege(
    dsn: dict[str, Any], connection: Connection, queue: pgq.Queue, admin: pgq.Admin
) -> None:
    role = f"manager_{dsn['database']}"
    await admin.create_queue("mine")
    await connection.execute(f"create role {role} login password 'x'")
    await admin.grant("mine", role, ["observe", "manage"])
    await admin.grant("default", role, ["observe"])
    job_id = await die(queue)
    try:
        arguments: dict[str, Any] = {**dsn, "user": role, "password": "x"}
        async with asyncpg.create_pool(**arguments, min_size=0) as pool, site_of(pool) as site:
            assert "pause" in (await site.get("/queue?name=mine")).buttons()
            token = await site.token("/queue?name=mine")
            assert "is paused" in await site.do("pause", queue="mine", form=token)
            told = await site.do("retry", queue="default", id=job_id, form=token)
            assert "no dead job" in told
            _, page = await site.look(verb="retry:all", form=token)
            assert "Left out: 1 job of queues that are not yours to manage." in page.text
            assert "default" in await site.do("pause", queue="default", form=token)
        assert await state_of(queue, job_id) == "dead"
    finally:
        await admin.revoke("mine", role)
        await admin.revoke("default", role)
        await connection.execute(f"drop role {role}")


async def test_a_token_opens_the_pages(
    pool: asyncpg.Pool[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with site_of(pool, token=TOKEN) as site:
        client = site.client
        for path in ("/", "/series?name=default", "/events", "/job/1"):
            assert (await client.get(path)).headers["location"].startswith("/login?next=%2F")
        assert (await client.post("/do")).headers["location"] == "/login?next=%2F"
        assert (await client.get("/static/app.css")).status_code == 200
        assert (await client.get("/?token=wrong")).headers["location"].startswith("/login")
        bearer = await client.get("/", headers={"authorization": f"Bearer {TOKEN}"})
        assert bearer.status_code == 200
        assert (await client.get("/", headers={"authorization": "Bearer x"})).status_code == 401
        client.cookies.clear()
        answer = await client.get("/jobs", params={"queue": "a b", "token": TOKEN})
        assert answer.headers["location"] == "/jobs?queue=a+b"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert TOKEN not in cookie
        assert (await client.get("/jobs")).status_code == 200
        await site.post("/logout")
        assert (await client.get("/jobs")).status_code == 303
        assert (await client.post("/login", data={"token": "x"})).status_code == 403
        [told] = [one.getMessage() for one in caplog.records if one.name.endswith("audit")]
        assert told.startswith('user="nobody" action="sign in" from="127.0.0.1" outcome=')
        form = {"token": TOKEN, "next": "//evil.example/"}
        answer = await client.post("/login", data=form)
        assert answer.headers["location"] == "/"
        [(name, value)] = [pair for pair in client.cookies.items() if "session" in pair[0]]
        client.cookies.set(name, value.replace(".", "0.", 1), domain="pgq.test", path="/")
        assert (await client.get("/")).status_code == 303, "a later end is not signed"


async def test_one_way_to_sign_in_has_to_be_chosen(pool: asyncpg.Pool[Any]) -> None:
    with pytest.raises(ValueError, match="give one of"):
        dashboard.app(pool)
    with pytest.raises(ValueError, match="give one of"):
        dashboard.app(pool, token=TOKEN, authenticate=dashboard.anybody)
    with pytest.raises(ValueError, match="less than 16"):
        dashboard.app(pool, token="short")


async def test_a_proxy_names_the_user(pool: asyncpg.Pool[Any]) -> None:
    by_header = dashboard.by_header("X-User", ["127.0.0.1"])
    async with site_of(pool, authenticate=by_header) as site:
        assert (await site.client.get("/")).status_code == 401
        answer = await site.client.get("/", headers={"x-user": "grace"})
        assert "user grace" in answer.text
    async with site_of(pool, authenticate=dashboard.by_header("X-User", ["10.0.0.9"])) as site:
        answer = await site.client.get("/", headers={"x-user": "grace"})
        assert answer.status_code == 401, "it is not from the proxy"
    unknown = HTTPConnection({"type": "http", "client": None, "headers": [(b"x-user", b"grace")]})
    assert by_header(unknown) is None, "nobody knows where it is from"


async def test_a_sign_in_of_the_application_may_answer_itself(pool: asyncpg.Pool[Any]) -> None:
    def authenticate(connection: HTTPConnection) -> RedirectResponse:
        return RedirectResponse(f"/sign-in?next={connection.url.path}")

    async with site_of(pool, authenticate=authenticate) as site:
        answer = await site.client.get("/jobs")
        assert answer.headers["location"] == "/sign-in?next=/jobs"


def test_the_command_refuses_what_would_let_everybody_in(dsn: dict[str, Any]) -> None:
    cli = Cli(variables(dsn))
    assert "everybody" in cli.fails(2, "dashboard", "--no-token", "--listen", "0.0.0.0:0")
    assert "choose one" in cli.fails(2, "dashboard", "--no-token", "--token", TOKEN)
    assert "less than 16" in cli.fails(2, "dashboard", "--token", "short", "--listen", "[::1]:0")
    nowhere = Cli({**variables(dsn), "PGPORT": "1"})
    assert "cannot be reached" in nowhere.fails(3, "dashboard", "--listen", "127.0.0.1:0")


@pytest.mark.parametrize("options", [[], ["--no-token"]])
async def test_the_command_serves_until_sigterm_also_while_somebody_watches(
    dsn: dict[str, Any], options: list[str]
) -> None:
    process = await asyncio.create_subprocess_exec(
        SCRIPT,
        *("dashboard", "--listen", "127.0.0.1:0", *options),
        env=variables(dsn),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    address = (await process.stdout.readline()).decode().strip()
    assert ("?token=" in address) == (not options)
    async with httpx.AsyncClient(follow_redirects=True, timeout=PATIENCE) as client:
        assert "Queues" in (await client.get(address)).text
        base = address.partition("?")[0]
        elsewhere = await client.get(base, headers={"host": "evil.example"})
        assert elsewhere.status_code == (400 if options else 200)
        async with client.stream("GET", f"{base}events") as stream:
            lines = stream.aiter_lines()
            while await anext(lines) != "event: tick":
                pass
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), PATIENCE)
    assert process.stderr
    errors = await process.stderr.read()
    assert (process.returncode, errors) in ((0, b""), (-signal.SIGTERM, b""))


async def test_the_command_serves_several_databases_also_while_one_is_down(
    dsn: dict[str, Any], tmp_path: Path
) -> None:
    urls = [url_of(dsn), url_of(dsn, host=str(tmp_path))]
    process = await asyncio.create_subprocess_exec(
        SCRIPT,
        *("dashboard", "--listen", "127.0.0.1:0", "--token", TOKEN, "--dsn", urls[0]),
        *("--dsn", urls[1]),
        env=variables(dsn),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    told = [(await process.stdout.readline()).decode().split() for _ in urls]
    assert [name for _, name in told] == [name_of(url) for url in urls]
    async with httpx.AsyncClient(follow_redirects=True, timeout=PATIENCE) as client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        (ours, name), (down, _) = told
        assert "/login" in str((await client.get(ours)).url)
        page = await client.get(ours, headers=headers)
        assert "default" in page.text
        assert name in page.text
        assert (await client.get(down, headers=headers)).status_code == 503
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), PATIENCE)


def test_the_extra_is_named_where_it_is_missing(
    dsn: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "pgq._cli.pages", raising=False)
    monkeypatch.delattr("pgq._cli.pages", raising=False)
    assert "pgq-asyncpg[cli,dashboard]" in Cli(variables(dsn)).fails(1, "dashboard")


async def test_the_database_goes_and_comes_back(server: Server, dsn: dict[str, Any]) -> None:
    async with (
        asyncpg.create_pool(**dsn, min_size=0, timeout=PATIENCE) as pool,
        site_of(pool, interval=timedelta(milliseconds=20)) as site,
    ):
        live = site.app.state.live
        await site.get("/")
        name = dsn["database"]
        server.psql(f"alter database {name} allow_connections false")
        try:
            server.psql(
                f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
            )

            async def is_lost() -> bool:
                await site.get("/")
                return live.problem is not None

            await until(is_lost)
            assert "The database does not answer" in (await site.get("/")).text
            await site.get("/jobs?queue=other", status=503)
        finally:
            server.psql(f"alter database {name} allow_connections true")

        async def is_back() -> bool:
            return "does not answer" not in (await site.get("/")).text

        await until(is_back)
        await site.get("/jobs?queue=other")


async def test_a_database_that_did_not_answer_for_long_is_looked_for_soon(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = site.app.state.live
    await site.get("/")
    monkeypatch.setattr(f"{LIVE}._SHARE", 1e9)
    monkeypatch.setattr(f"{LIVE}._LOST_SECONDS", 0.01)

    async def hang(client: object) -> None:
        del client
        await asyncio.sleep(0.01)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(f"{LIVE}.gather", hang)
        live.change()
        assert "did not answer in time" in (await site.get("/")).text

    async def is_back() -> bool:
        return "did not answer" not in (await site.get("/")).text

    await until(is_back)
