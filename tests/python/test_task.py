"""Tasks: what is enqueued is what handlers get, checked on both ways, and what they answer."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NoReturn, TypedDict
from uuid import UUID

import asyncpg
import pgq
import pydantic
import pytest
from pgq import testing

from .sessions import Connection, within

pytestmark = pytest.mark.once

NO_TIME = timedelta(0)
AT = datetime(2026, 11, 22, 5, tzinfo=UTC)
ID = UUID(int=7)


@dataclass(frozen=True)
class SendEmail:
    to: str
    copies: list[str] = field(default_factory=list[str])
    at: datetime | None = None


class Resize(TypedDict):
    image: UUID
    width: int


class Charge(pydantic.BaseModel):
    account: UUID
    cents: int = pydantic.Field(gt=0)


@pydantic.dataclasses.dataclass
class Refund:
    account: UUID


@pgq.task("default")
async def send_email(job: pgq.Job[SendEmail]) -> str:
    assert isinstance(job.payload, SendEmail)
    return f"to {job.payload.to}"


@pgq.task("default")
async def resize(job: pgq.Job[Resize]) -> Resize:
    return {"image": job.payload["image"], "width": job.payload["width"] // 2}


@pgq.task("default")
async def charge(job: pgq.Job[Charge]) -> Refund:
    return Refund(account=job.payload.account)


@pgq.task("default")
async def anything(job: pgq.Job[Any]) -> Any:
    return job.payload


@pgq.task("default")
async def fall(_: pgq.Job[None]) -> NoReturn:
    raise ZeroDivisionError


@pgq.task("default")
def where(_: pgq.Job[None]) -> tuple[int, str]:
    return os.getpid(), threading.current_thread().name


@pgq.task("default", process=True)
def where_in_a_process(_: pgq.Job[None]) -> tuple[int, str]:
    return os.getpid(), threading.current_thread().name


@pgq.task("default", name="outcome")
async def decide(job: pgq.Job[str]) -> pgq.Retry | pgq.Snooze | pgq.Cancel | None:
    outcomes: dict[str, pgq.Retry | pgq.Snooze | pgq.Cancel] = {
        "retry": pgq.Retry("busy", in_=timedelta(hours=1)),
        "retry now": pgq.Retry(in_=NO_TIME),
        "snooze": pgq.Snooze(timedelta(hours=1)),
        "cancel": pgq.Cancel("not wanted"),
    }
    if job.payload.startswith("raise "):
        raise outcomes[job.payload.removeprefix("raise ")]
    return outcomes[job.payload]


TASKS = (send_email, resize, charge, anything, fall, where, where_in_a_process, decide)


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, TASKS)


async def test_a_dataclass_arrives_as_one(pool: asyncpg.Pool[Any], worker: pgq.Worker) -> None:
    payload = SendEmail("ada@example.org", ["bob@example.org"], AT)
    got: list[SendEmail] = []

    @worker.middleware
    async def look(job: pgq.Job[Any], call_next: Any) -> Any:
        got.append(job.payload)
        return await call_next(job)

    handle = await send_email.enqueue(payload, connection=pool)
    await worker.run_until_idle()
    assert got == [payload]
    assert await handle.result() == "to ada@example.org"


async def test_a_typed_dict_arrives_as_one(pool: asyncpg.Pool[Any], worker: pgq.Worker) -> None:
    handle = await resize.enqueue({"image": ID, "width": 64}, connection=pool)
    await worker.run_until_idle()
    assert await handle.result() == {"image": ID, "width": 32}


async def test_a_pydantic_model_arrives_as_one(pool: asyncpg.Pool[Any], worker: pgq.Worker) -> None:
    handle = await charge.enqueue(Charge(account=ID, cents=5), connection=pool)
    await worker.run_until_idle()
    assert await handle.result() == Refund(account=ID)


async def test_plain_payloads_pass_as_they_are(pool: asyncpg.Pool[Any], worker: pgq.Worker) -> None:
    payload = {"to": ["ada@example.org", None, 1.5]}
    handle = await anything.enqueue(payload, connection=pool)
    await worker.run_until_idle()
    assert await handle.result() == payload


@pytest.mark.parametrize(
    ("task", "payload"),
    [
        (send_email, SendEmail(to=5)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (send_email, {"from": "ada@example.org"}),
        (send_email, object()),
        (resize, {"image": ID}),
        (charge, Charge.model_construct(account=ID, cents=0)),
        (charge, Charge.model_construct(account="none", cents=1)),
    ],
)
async def test_a_wrong_payload_is_not_enqueued(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, task: pgq.Task[Any, Any], payload: Any
) -> None:
    with pytest.raises(pgq.InvalidPayload):
        await task.enqueue(payload, connection=pool)
    with pytest.raises(pgq.InvalidPayload):
        await task.enqueue_many([payload], connection=pool)
    assert await queue.dequeue() == []


async def test_a_wrong_payload_fails_the_job(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker
) -> None:
    job_id = await queue.enqueue({"to": 5}, headers={"task": "send_email"}, max_attempts=1)
    await worker.run_until_idle()
    with pytest.raises(pgq.JobDead, match=r"InvalidPayload.* Expected `str`, got `int`"):
        await send_email.handle(job_id, connection=pool).result()


async def test_a_wrong_result_fails_the_job(pool: asyncpg.Pool[Any], worker: pgq.Worker) -> None:
    @pgq.task("default")
    async def lie(_: pgq.Job[None]) -> int:
        return "one"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    worker.add(lie)
    handle = await lie.enqueue(None, connection=pool, max_attempts=1)
    await worker.run_until_idle()
    with pytest.raises(pgq.JobDead, match="Expected `int`, got `str`"):
        await handle.result()


async def test_a_type_of_which_nothing_is_known_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="no dataclass"):

        @pgq.task("default")
        async def _(_: pgq.Job[asyncio.Event]) -> None: ...


async def test_jobs_in_bulk_get_their_keys_from_their_payloads(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    handles = await send_email.enqueue_many(
        (SendEmail(to) for to in ("ada", "bob", "ada")),
        connection=pool,
        dedupe_key=lambda payload: payload.to,
        group_key=lambda payload: payload.to[0],
        priority=3,
        headers={"trace": "1"},
    )
    assert handles[0].id == handles[2].id
    jobs = await queue.dequeue(10)
    assert [(job.dedupe_key, job.group_key, job.priority) for job in jobs] == [
        ("ada", "a", 3),
        ("bob", "b", 3),
    ]
    assert jobs[0].headers == {"task": "send_email", "trace": "1"}


@pytest.mark.parametrize("deadline", ["30", 0, -1.5, True, float("nan"), timedelta(minutes=1)])
async def test_a_deadline_that_is_no_number_of_seconds_is_refused(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, deadline: object
) -> None:
    headers = {"deadline": deadline}
    email = SendEmail("ada")
    message = r'^the header "deadline" must be a positive number of seconds, not '
    with pytest.raises(pgq.InvalidArgument, match=message):
        await send_email.enqueue(email, connection=pool, headers=headers)
    with pytest.raises(pgq.InvalidArgument, match=message):
        await send_email.enqueue_many([email], connection=pool, headers=headers)
    with pytest.raises(pgq.InvalidArgument, match=message):
        send_email.statement(email, headers=headers)
    with pytest.raises(pgq.InvalidArgument, match=message):
        await send_email.schedule("s", "@daily", email, connection=pool, headers=headers)
    for right in (30, 0.5, None):
        await send_email.enqueue(email, connection=pool, headers={"deadline": right})
    assert [(job.headers or {})["deadline"] for job in await queue.dequeue(10)] == [30, 0.5, None]


async def test_a_task_joins_the_transaction(
    connection: Connection, queue: pgq.Queue, worker: pgq.Worker
) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with connection.transaction():
            await send_email.enqueue(SendEmail("ada"), connection=connection)
            raise ZeroDivisionError
    assert await queue.dequeue() == []
    async with connection.transaction():
        handle = await send_email.enqueue(SendEmail("ada"), connection=connection)
    await worker.run_until_idle()
    with pytest.raises(ValueError, match="on a connection"):
        await handle.result()
    assert await handle.result(connection=connection) == "to ada"


async def test_a_schedule_adds_jobs_of_the_task(
    pool: asyncpg.Pool[Any], connection: Connection, queue: pgq.Queue
) -> None:
    await send_email.schedule("daily", "@daily", SendEmail("ada"), connection=pool)
    await connection.execute("update pgq.schedule set next_at = now() - interval '1 second'")
    await pgq.Admin(pool).maintain()
    (job,) = await queue.dequeue()
    assert job.payload["to"] == "ada"
    assert job.headers is not None
    assert job.headers["task"] == "send_email"


async def test_any_client_names_the_task_in_a_header(
    connection: Connection, queue: pgq.Queue, worker: pgq.Worker, pool: asyncpg.Pool[Any]
) -> None:
    job_id = await connection.fetchval(
        """select pgq_enqueue('{"to": "ada"}', headers => '{"task": "send_email"}')"""
    )
    await worker.run_until_idle()
    assert await send_email.handle(job_id, connection=connection).result() == "to ada"


async def test_a_job_of_no_task_goes_to_the_handler_or_the_only_task(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    alone, both = pgq.Worker(pool, [send_email]), pgq.Worker(pool, [send_email])
    handled: list[Any] = []

    @both.handler("default")
    async def handle(job: pgq.Job[Any]) -> None:
        handled.append(job.payload)

    job_id = await queue.enqueue({"to": "ada"})
    await alone.run_until_idle()
    assert await send_email.handle(job_id, connection=pool).result() == "to ada"
    await queue.enqueue({"to": "ada"})
    await queue.enqueue({"to": "bob"}, headers={"task": "unheard of"})
    await both.run_until_idle()
    assert handled == [{"to": "ada"}, {"to": "bob"}]


@pytest.mark.parametrize("headers", [None, {"task": "unheard of"}, {"task": ["odd"]}])
async def test_a_job_of_an_unknown_task_fails(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker, headers: dict[str, Any] | None
) -> None:
    job_id = await queue.enqueue(1, headers=headers, max_attempts=1)
    await worker.run_until_idle()
    with pytest.raises(pgq.JobDead, match=r"(?s)UnknownTask.*Its tasks are: anything, charge"):
        await send_email.handle(job_id, connection=pool).result()


async def test_plain_functions_run_in_threads_or_processes(
    pool: asyncpg.Pool[Any], worker: pgq.Worker
) -> None:
    thread = await where.enqueue(None, connection=pool)
    process = await where_in_a_process.enqueue(None, connection=pool)
    await worker.run_until_idle()
    assert await thread.result() == (os.getpid(), f"pgq job {thread.id}")
    pid, _ = await process.result()
    assert pid != os.getpid()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("retry", ("scheduled", 1, "busy")),
        ("retry now", ("dead", 2, None)),
        ("snooze", ("scheduled", 0, None)),
        ("cancel", ("cancelled", 1, "not wanted")),
    ],
)
@pytest.mark.parametrize("how", ["", "raise "])
async def test_a_handler_decides_how_its_job_goes_on(
    queue: pgq.Queue, worker: pgq.Worker, how: str, answer: str, expected: tuple[Any, ...]
) -> None:
    job_id = await queue.enqueue(how + answer, headers={"task": "outcome"}, max_attempts=2)
    await worker.run_until_idle()
    job = await queue.get(job_id)
    assert job is not None
    assert (job.state, job.attempt, job.last_error) == expected
    if job.state == "scheduled":
        assert timedelta(minutes=50) < job.run_at - job.enqueued_at < timedelta(minutes=70)


async def test_a_result_is_awaited_until_the_job_has_ended(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    handle = await send_email.enqueue(SendEmail("ada"), connection=pool)
    with pytest.raises(TimeoutError):
        await handle.result(timeout=timedelta(milliseconds=1))
    waiting = asyncio.create_task(handle.result())
    with pytest.raises(TimeoutError):
        await handle.result(timeout=timedelta(0))
    (job,) = await queue.dequeue()
    await queue.complete(job, "done")
    assert await within(waiting) == "done"
    assert await handle.result(timeout=timedelta(0)) == "done"


async def test_a_result_that_will_never_be_is_told(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker
) -> None:
    dead = await fall.enqueue(None, connection=pool, max_attempts=1)
    cancelled = await decide.enqueue("cancel", connection=pool)
    await worker.run_until_idle()
    with pytest.raises(pgq.JobDead, match="ZeroDivisionError"):
        await dead.result()
    with pytest.raises(pgq.JobCancelled, match="not wanted"):
        await cancelled.result()
    await pgq.Admin(pool).configure_queue(queue.name, keep_completed=NO_TIME)
    gone = await send_email.enqueue(SendEmail("ada"), connection=pool)
    await worker.run_until_idle()
    with pytest.raises(pgq.UnknownJob):
        await gone.result()


async def test_who_awaited_a_result_is_told_which_job_it_was(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker
) -> None:
    dead = await decide.enqueue("retry now", connection=pool, max_attempts=2)
    cancelled = await send_email.enqueue(SendEmail("ada"), connection=pool)
    await cancelled.cancel()
    await worker.run_until_idle()
    with pytest.raises(pgq.JobDead) as died:
        await dead.result()
    assert died.value.args == ("the job has died",)
    assert died.value.detail == f"Job {dead.id} of queue 'default' is dead after 2 attempts."
    assert "pgq_retry" in str(died.value.hint)
    with pytest.raises(pgq.JobCancelled, match="the job was cancelled") as was_cancelled:
        await cancelled.result()
    assert was_cancelled.value.detail == f"Job {cancelled.id} of queue 'default' was cancelled."


async def test_a_handle_looks_after_its_job(
    pool: asyncpg.Pool[Any], connection: Connection, queue: pgq.Queue
) -> None:
    handle = await send_email.enqueue(SendEmail("ada"), connection=pool)
    job = await handle.get()
    assert job is not None
    assert (job.id, job.state) == (handle.id, "ready")
    await queue.dequeue()
    assert not await handle.cancel()
    assert await handle.cancel(force=True)
    job = await handle.get()
    assert job is not None
    assert job.state == "cancelled"
    assert await send_email.handle(-1, connection=pool).get() is None
    loose = await send_email.enqueue(SendEmail("eve"), connection=connection)
    with pytest.raises(ValueError, match="on a connection"):
        await loose.get()
    with pytest.raises(ValueError, match="on a connection"):
        await loose.cancel()
    assert await loose.cancel(connection=connection)


async def test_a_task_is_called_and_documented_as_its_function() -> None:
    def plain(job: pgq.Job[int]) -> int:
        """Give back."""
        return job.payload

    @pgq.task("default", transaction=True)
    async def with_a_connection(job: pgq.Job[int], connection: Any) -> Any:
        return job.payload, connection

    class Sender:
        def __init__(self) -> None:
            self.enqueue = "its own"

        def __call__(self, job: pgq.Job[int]) -> int:
            return job.payload

    task = pgq.task("default", name="other")(plain)
    assert task(testing.job(7)) == 7
    assert await send_email(testing.job(SendEmail("ada"))) == "to ada"
    assert await with_a_connection(testing.job(7), "connection") == (7, "connection")
    assert (task.name, vars(task)["__name__"], task.__doc__) == ("other", "plain", "Give back.")
    assert inspect.signature(task) == inspect.signature(plain)
    assert callable(pgq.task("default")(Sender()).enqueue)


class Mailbox:
    def take(self, _: pgq.Job) -> None: ...


def test_an_annotation_may_be_around_the_type_of_a_job() -> None:
    def handle(job: Annotated[pgq.Job[SendEmail], "by night"]) -> None: ...

    task = pgq.Task[Any, Any](handle, "default")
    with pytest.raises(pgq.InvalidPayload):
        task.payloads.encode(1)


async def test_wrong_tasks_are_told_at_once(worker: pgq.Worker) -> None:
    with pytest.raises(ValueError, match="has a task 'send_email' already"):
        worker.add(pgq.task("default", name="send_email")(anything.function))
    with pytest.raises(ValueError, match="deadline"):
        pgq.task("default", deadline=NO_TIME)(anything.function)
    with pytest.raises(ValueError, match="coroutine function cannot run in a process"):
        pgq.task("default", process=True)(anything.function)
    with pytest.raises(ValueError, match="must be a coroutine function"):
        pgq.task("default", transaction=True)(where.function)
    with pytest.raises(ValueError, match="at the top of a module"):
        pgq.task("default", process=True)(lambda _: None)
    with pytest.raises(ValueError, match="at the top of a module"):
        pgq.task("default", process=True)(Mailbox().take)
    with pytest.raises(TypeError, match="cannot be called with a job"):
        pgq.task("default")(lambda: None)  # type: ignore[misc, arg-type] # pyright: ignore[reportCallIssue, reportArgumentType]


def test_what_is_annotated_may_be_a_name_of_the_function_around() -> None:
    import pgq as local_name  # noqa: PLC0415

    @dataclass
    class Local:
        n: int

    def register(function: Any) -> pgq.Task[Any, Any]:
        return pgq.Task[Any, Any](function, "default")

    async def handle(_: local_name.Job[Local]) -> local_name.Retry | None: ...

    assert register(handle).payloads.decode({"n": 1}) == Local(1)
    worker = pgq.Worker()
    assert worker.handler("default")(handle) is handle


def test_an_annotation_that_nobody_knows_is_told() -> None:
    async def handle(_: Any) -> None: ...

    handle.__annotations__["_"] = "pgq.Job[Nowhere]"
    with pytest.raises(TypeError, match="'Nowhere' is not defined; what is written as text"):
        pgq.Task[Any, Any](handle, "default")
