"""Jobs that run as they are enqueued, with the real SQL, and jobs made by hand."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import logging
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pgq
import pytest
from pgq import _enqueue, testing

from .sessions import Connection, rolled_back

pytestmark = pytest.mark.once

FAST = timedelta(milliseconds=5)


@dataclasses.dataclass
class Email:
    to: str


@pgq.task("default")
async def send(job: pgq.Job[Email]) -> str:
    if job.payload.to == "nobody":
        raise LookupError("no such address")
    return f"to {job.payload.to}"


@pgq.task("default", transaction=True)
async def note(job: pgq.Job[str], connection: Connection) -> None:
    await connection.execute("insert into note values ($1)", job.payload)
    if job.payload == "wrong":
        raise LookupError


@pytest.fixture
def worker() -> pgq.Worker:
    return pgq.Worker(tasks=[send, note])


@pytest.fixture(autouse=True)
async def table(connection: Connection) -> None:
    await connection.execute("create table note (text text)")
    # What has failed stays scheduled, however long the test takes.
    await connection.execute("select pgq_configure_queue('default', backoff_base => '1 hour')")


async def notes(connection: Connection) -> list[str]:
    return [row[0] for row in await connection.fetch("select text from note order by 1")]


async def state(connection: Connection, job_id: int) -> tuple[str, int]:
    job = await pgq.Queue(connection).get(job_id)
    assert job is not None
    return job.state, job.attempt


async def test_a_job_runs_in_the_transaction_that_enqueues_it(
    connection: Connection, pool: asyncpg.Pool[Any], worker: pgq.Worker
) -> None:
    with testing.inline(worker):
        async with rolled_back(connection):
            email = await send.enqueue(Email("ada"), connection=connection)
            assert await email.result(connection=connection) == "to ada"
            await note.enqueue("welcome", connection=connection)
            assert await notes(connection) == ["welcome"]
            assert await pool.fetchval("select count(*) from note") == 0
    assert await notes(connection) == []
    assert await pgq.Queue(connection).get(email.id) is None


async def test_what_is_enqueued_by_a_pool_is_run_by_it(
    pool: asyncpg.Pool[Any], worker: pgq.Worker
) -> None:
    with testing.inline(worker):
        handles = await send.enqueue_many([Email("ada"), Email("eve")], connection=pool)
        await note.enqueue("welcome", connection=pool)
    assert [await handle.result() for handle in handles] == ["to ada", "to eve"]
    assert await pool.fetchval("select text from note") == "welcome"


async def test_nothing_runs_outside_the_block_or_for_other_queues(
    connection: Connection, worker: pgq.Worker
) -> None:
    other = pgq.Queue(connection, "other")
    await pgq.Admin(connection).create_queue(other.name)
    with testing.inline(worker):
        other_id = await other.enqueue(1)
    handle = await send.enqueue(Email("ada"), connection=connection)
    assert await state(connection, other_id) == ("ready", 0)
    assert await state(connection, handle.id) == ("ready", 0)


async def test_jobs_run_in_queues_of_a_prefix_and_in_those_that_middleware_chooses(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_enqueue, "middleware", [])
    worker = pgq.Worker()
    seen: list[tuple[str, Any]] = []

    @worker.handler(pgq.Prefix("mail."))
    async def handle(job: pgq.Job) -> None:
        seen.append((job.queue, job.payload))

    @pgq.enqueue_middleware
    async def sort(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        names = {"urgent": "mail.urgent", "spam": "spam"}
        return await call_next(dataclasses.replace(new, queue=names.get(new.queue, new.queue)))

    for name in ("mail.a", "mail.urgent", "spam"):
        await pgq.Admin(connection).create_queue(name)
    with testing.inline(worker):
        for name in ("mail.a", "urgent", "spam"):
            await pgq.Queue(connection, name).enqueue(name)
        await pgq.Queue(connection, "urgent").enqueue_many(["both"])
    assert seen == [("mail.a", "mail.a"), ("mail.urgent", "urgent"), ("mail.urgent", "both")]


async def test_the_handler_gets_the_job_as_it_was_claimed(
    connection: Connection,
) -> None:
    jobs: list[pgq.Job] = []
    worker = pgq.Worker(name="inline")

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        jobs.append(job)
        await queue.heartbeat(job, checkpoint=1)

    queue = pgq.Queue(connection)
    with testing.inline(worker):
        job_id = await queue.enqueue({"n": 1}, headers={"trace": "x"})
    [job] = jobs
    assert (job.id, job.state, job.attempt, job.worker) == (job_id, "active", 1, "inline")
    assert (job.payload, job.headers) == ({"n": 1}, {"trace": "x"})
    assert await state(connection, job_id) == ("completed", 1)


async def test_an_error_is_raised_where_the_job_was_enqueued(
    connection: Connection, worker: pgq.Worker
) -> None:
    with testing.inline(worker) as errors:
        async with connection.transaction():
            with pytest.raises(LookupError, match="no such address"):
                await send.enqueue(Email("nobody"), connection=connection)
        with pytest.raises(LookupError):
            await note.enqueue("wrong", connection=connection)
    assert [type(error) for error in errors] == [LookupError, LookupError]
    assert await notes(connection) == [], "the handler's transaction was rolled back, and only it"
    jobs = await connection.fetch("select state, last_error from pgq_jobs")
    assert [job["state"] for job in jobs] == ["scheduled", "scheduled"]
    assert "LookupError: no such address" in jobs[0]["last_error"]


async def test_errors_may_be_listed_only(connection: Connection, worker: pgq.Worker) -> None:
    with testing.inline(worker, raise_errors=False) as errors:
        async with connection.transaction():
            emails = [Email("ada"), Email("nobody"), Email("eve")]
            handles = await send.enqueue_many(emails, connection=connection)
            await note.enqueue("wrong", connection=connection)
            await note.enqueue("right", connection=connection)
    states = [(await state(connection, handle.id))[0] for handle in handles]
    assert states == ["completed", "scheduled", "completed"]
    assert [str(error) for error in errors] == ["no such address", ""]
    assert await notes(connection) == ["right"]


async def test_a_job_runs_only_if_it_can_be_claimed_and_only_once(
    connection: Connection, worker: pgq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pgq")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    nobody = Email("nobody")
    with testing.inline(worker, raise_errors=False) as errors:
        later = await send.enqueue(Email("ada"), run_at=tomorrow, connection=connection)
        assert f"job {later.id} is scheduled" in caplog.text
        waits = await send.enqueue(Email("ada"), after=[later.id], connection=connection)
        first = await send.enqueue(nobody, dedupe_key="n", connection=connection)
        second = await send.enqueue(nobody, dedupe_key="n", connection=connection)
        many = await send.enqueue_many(
            [Email("ada")] * 3, dedupe_key=lambda email: email.to, connection=connection
        )
        follows = await send.enqueue(Email("eve"), after=[many[0].id], connection=connection)
        await pgq.Admin(connection).pause("default")
        paused = await send.enqueue(Email("ada"), connection=connection)
    assert await state(connection, later.id) == ("scheduled", 0)
    assert await state(connection, waits.id) == ("waiting", 0)
    assert first == second
    assert len(errors) == 1
    assert await state(connection, first.id) == ("scheduled", 1)
    assert await state(connection, many[0].id) == ("completed", 1)
    assert await state(connection, follows.id) == ("completed", 1)
    assert await state(connection, paused.id) == ("ready", 0)


async def test_a_job_that_is_ready_again_does_not_run_again(connection: Connection) -> None:
    runs = 0

    @pgq.task("default")
    async def postpone(_: pgq.Job[None]) -> pgq.Snooze:
        nonlocal runs
        runs += 1
        return pgq.Snooze(timedelta(0))

    with testing.inline(pgq.Worker(tasks=[postpone])):
        first = await postpone.enqueue(None, dedupe_key="once", connection=connection)
        second = await postpone.enqueue(None, dedupe_key="once", connection=connection)
    assert first == second
    assert await state(connection, first.id) == ("ready", 0)
    assert runs == 1


async def test_groups_go_on_at_commit(
    connection: Connection, pool: asyncpg.Pool[Any], worker: pgq.Worker
) -> None:
    emails = [Email("ada"), Email("eve"), Email("kim")]
    with testing.inline(worker):
        for executor in (pool, connection):
            handles = await send.enqueue_many(emails, group_key=lambda _: "g", connection=executor)
            for handle in handles:
                assert await state(connection, handle.id) == ("completed", 1)
        async with connection.transaction():
            handle = await send.enqueue(Email("ada"), group_key="g", connection=connection)
            assert await state(connection, handle.id) == ("waiting", 0)
    assert await state(connection, handle.id) == ("ready", 0)


async def test_a_handler_may_ask_for_another_end(connection: Connection) -> None:
    @pgq.task("default")
    async def ends(job: pgq.Job[str]) -> pgq.Retry | pgq.Snooze | pgq.Cancel:
        if job.payload == "retry":
            return pgq.Retry("busy")
        if job.payload == "snooze":
            raise pgq.Snooze(timedelta(hours=1))
        return pgq.Cancel("closed")

    async with connection.transaction():
        with testing.inline(pgq.Worker(tasks=[ends])) as errors:
            ids = [
                (await ends.enqueue(end, connection=connection)).id
                for end in ("retry", "snooze", "cancel")
            ]
    assert [await state(connection, job_id) for job_id in ids] == [
        ("scheduled", 1),
        ("scheduled", 0),
        ("cancelled", 1),
    ]
    assert errors == []


async def test_jobs_that_handlers_enqueue_by_a_connection_of_a_pool_run(
    pool: asyncpg.Pool[Any],
) -> None:
    @pgq.task("default", transaction=True)
    async def count(job: pgq.Job[int], connection: Connection) -> int:
        if job.payload > 0:
            await count.enqueue(job.payload - 1, connection=connection)
        return job.payload

    with testing.inline(pgq.Worker(tasks=[count])):
        await count.enqueue(3, connection=pool)
    assert await pool.fetchval("select count(*) from pgq_jobs where state = 'completed'") == 4


async def test_jobs_that_handlers_enqueue_run_after_those(connection: Connection) -> None:
    steps: list[str] = []
    depths: set[int] = set()

    @pgq.task("default", transaction=True)
    async def count(job: pgq.Job[int], connection: Connection) -> None:
        steps.append(f"begin {job.payload}")
        depths.add(len(inspect.stack(0)))
        if job.payload > 0:
            await count.enqueue(job.payload - 1, connection=connection)
        steps.append(f"end {job.payload}")

    async with rolled_back(connection):
        with testing.inline(pgq.Worker(tasks=[count])):
            await count.enqueue(20, connection=connection)
    assert steps == [f"{step} {n}" for n in range(20, -1, -1) for step in ("begin", "end")]
    assert len(depths) == 1


async def test_hooks_and_middleware_are_around_the_handlers(connection: Connection) -> None:
    worker = pgq.Worker(tasks=[send])
    calls: list[Any] = []

    @worker.before
    def take(job: pgq.Job) -> None:
        calls.append(job.payload)

    @worker.after
    @worker.error
    def take_end(_: pgq.Job, end: object) -> None:
        calls.append(str(end))

    @worker.middleware
    async def shout(job: pgq.Job, call_next: Any) -> str:
        return str(await call_next(job)).upper()

    with testing.inline(worker, raise_errors=False):
        handle = await send.enqueue(Email("ada"), connection=connection)
        await send.enqueue(Email("nobody"), connection=connection)
    assert calls == [Email("ada"), "to ada", Email("nobody"), "no such address"]
    assert await handle.result(connection=connection) == "TO ADA"


async def test_a_plain_function_runs_in_a_thread(connection: Connection) -> None:
    @pgq.task("default")
    def where(_: pgq.Job[None]) -> str:
        return threading.current_thread().name

    with testing.inline(pgq.Worker(tasks=[where])):
        handle = await where.enqueue(None, connection=connection)
    assert await handle.result(connection=connection) == f"pgq job {handle.id}"


async def test_deadlines_apply(connection: Connection) -> None:
    @pgq.task("default", deadline=FAST, transaction=True)
    async def hang(_: pgq.Job[None], connection: Connection) -> None:
        await connection.execute("insert into note values ('hangs')")
        await asyncio.Event().wait()

    async with connection.transaction():
        with (
            testing.inline(pgq.Worker(tasks=[hang])),
            pytest.raises(TimeoutError, match="the deadline of the task has passed"),
        ):
            await hang.enqueue(None, connection=connection)
    assert await notes(connection) == []
    job = await connection.fetchrow("select state, last_error from pgq_jobs")
    assert job is not None
    assert job["state"] == "scheduled"
    assert "TimeoutError: the deadline of the task has passed" in job["last_error"]


async def test_a_timeout_of_the_handler_is_not_the_deadline(connection: Connection) -> None:
    @pgq.task("default", deadline=timedelta(minutes=1))
    async def late(_: pgq.Job[None]) -> None:
        raise TimeoutError("no answer")

    async with connection.transaction():
        with (
            testing.inline(pgq.Worker(tasks=[late])),
            pytest.raises(TimeoutError, match="no answer"),
        ):
            await late.enqueue(None, connection=connection)


async def test_a_result_that_cannot_be_stored_fails_the_attempt(connection: Connection) -> None:
    @pgq.task("default")
    async def zero(_: pgq.Job[None]) -> str:
        return "\0"

    async with connection.transaction():
        with testing.inline(pgq.Worker(tasks=[zero])), pytest.raises(pgq.InvalidArgument):
            await zero.enqueue(None, connection=connection)
    assert await connection.fetchval("select state from pgq_jobs") == "scheduled"


@pytest.mark.parametrize("transaction", [False, True])
async def test_a_handler_must_not_end_its_job_itself(
    connection: Connection, transaction: bool
) -> None:
    async def end(job: pgq.Job, own: Connection | None = None) -> None:
        await (own or connection).execute("insert into note values ('ended')")
        assert await pgq.Queue(own or connection).complete(job)

    worker = pgq.Worker()
    handler: Any = worker.handler
    handler("default", transaction=transaction)(end)
    with testing.inline(worker), pytest.raises(pgq.LeaseLost):
        await pgq.Queue(connection).enqueue(1)
    assert await notes(connection) == ([] if transaction else ["ended"])


async def test_one_job_runs_when_told_to(connection: Connection, worker: pgq.Worker) -> None:
    async with rolled_back(connection):
        handle = await note.enqueue("welcome", connection=connection)
        assert await worker.run_job(handle.id, connection=connection)
        assert await notes(connection) == ["welcome"]
        assert not await worker.run_job(handle.id, connection=connection), "it has ended"
        unknown = await pgq.Queue(connection).enqueue(1, headers={"task": "unknown"})
        with pytest.raises(pgq.UnknownTask):
            await worker.run_job(unknown, connection=connection)
        assert await state(connection, unknown) == ("scheduled", 1)


def test_a_job_made_by_hand_has_every_field() -> None:
    job = testing.job(Email("ada"))
    assert (job.payload, job.state, job.attempt) == (Email("ada"), "active", 1)
    assert job.receipt == (1, 1)
    assert job.lease_expires_at is not None
    assert job.enqueued_at.utcoffset() == timedelta(0)
    fields = {field.name for field in dataclasses.fields(pgq.Job)}
    assert set(inspect.signature(testing.job).parameters) == fields
    values: dict[str, Any] = {name: object() for name in fields}
    made = testing.job(**values)
    assert {name: getattr(made, name) for name in fields} == values


async def test_a_handler_is_called_with_a_job_made_by_hand() -> None:
    assert await send.function(testing.job(Email("ada"))) == "to ada"
    with pytest.raises(LookupError):
        await send.function(testing.job(Email("nobody"), attempt=3))


async def test_handlers_run_in_the_context_in_which_the_block_was_entered(
    connection: Connection,
) -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []
    worker = pgq.Worker(name="inline")

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        seen.append(tenant.get())
        tenant.set("leaked")
        if job.payload:
            await pgq.Queue(connection).enqueue(0)

    with testing.inline(worker):
        tenant.set("of the request")
        await pgq.Queue(connection).enqueue(1)
    assert seen == ["nobody", "nobody"]
    assert tenant.get() == "of the request"
