"""Arguments of a wrong type are told by their names, and not by what they hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Annotated, Any, Final, Protocol

import asyncpg
import pgq
import pytest
from pgq import testing

pytestmark = pytest.mark.once

DSN: Any = "postgresql://ada:secret@db/shop"
HOUR: Final = timedelta(hours=1)


class HasPayload(Protocol):
    payload: int


async def count(job: pgq.Job[int]) -> None: ...


task: Final[Any] = pgq.task("default")(count)
new_worker: Final[Any] = pgq.Worker
new_task: Final[Any] = pgq.task


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: new_task(count), r'pgq.task needs the name of the queue: @pgq.task\("emails"\)'),
        (lambda: new_task("q", deadline=30)(count), "deadline must be timedelta or None, not int"),
        (lambda: new_worker().handler(count), "queue must be str or Prefix, not function"),
        (lambda: new_worker().configure("q", timeout=30), "timeout must be timedelta, not int"),
        (lambda: new_worker(grace=30), "grace must be timedelta, not int"),
        (lambda: new_worker(DSN), "pool must be Pool or None, not str"),
        (lambda: new_worker([task]), "pool must be Pool or None, not list"),
        (lambda: new_worker(None, task), "tasks must be Iterable, not Task"),
        (lambda: new_worker(None, [count]), "each of tasks must be Task, not function"),
        (lambda: pgq.Retry(in_=DSN), "in_ must be timedelta or None, not str"),
    ],
)
def test_what_is_made_of_wrong_arguments_names_them(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        call()


@pytest.mark.parametrize("name", ["run_at", "delay", "expires_at", "headers", "connection"])
async def test_wrong_arguments_of_enqueue_are_named(pool: asyncpg.Pool[Any], name: str) -> None:
    wrong = HOUR if name in {"run_at", "expires_at"} else DSN
    queue: Any = pgq.Queue(pool)
    one, many = (task.enqueue, queue.enqueue), (task.enqueue_many, queue.enqueue_many)
    for call in (*one, *many):
        with pytest.raises(TypeError, match=f"^{name} must be .*, not (str|timedelta)$"):
            await call(1 if call in one else [1], **{"connection": pool, name: wrong})


async def test_wrong_arguments_of_other_calls_are_named(pool: asyncpg.Pool[Any]) -> None:
    queue: Any = pgq.Queue(pool)
    with pytest.raises(TypeError, match=r"^headers must be Mapping"):
        await task.schedule("hourly", "0 * * * *", 1, headers="x", connection=pool)
    with pytest.raises(TypeError, match=r"^connection must be Pool or Connection, not str$"):
        await pgq.Queue(DSN).get(1)
    with pytest.raises(TypeError, match=r"^timeout must be timedelta or None, not int$"):
        await task.handle(1, connection=pool).result(5)
    with pytest.raises(TypeError, match=r"^pool must be Pool or None, not str$"):
        await pgq.Worker(tasks=[task]).run(DSN)
    with pytest.raises(pgq.InvalidArgument, match="for argument timeout: 30 "):
        await queue.dequeue(1, 30)
    with pytest.raises(pgq.InvalidArgument, match="for argument after: "):
        await queue.enqueue(1, after=["first"])


@pytest.mark.parametrize("kind", ["int", "dict[str, int]", "timedelta"])
def test_a_task_takes_a_job_and_not_its_payload(kind: str) -> None:
    def handle(job: Any) -> None: ...

    handle.__annotations__["job"] = kind
    with pytest.raises(TypeError, match=r"^handle takes a job: job must be pgq.Job"):
        pgq.task("default")(handle)


@pytest.mark.parametrize(
    "kind",
    [
        Any,
        object,
        pgq.Job,
        pgq.JobSnapshot,
        pgq.Job[int] | pgq.Job[str],
        Annotated[pgq.Job[int], "counted"],
        HasPayload,
        Hashable,
    ],
    ids=str,
)
def test_a_task_takes_what_may_be_a_job(kind: Any) -> None:
    def handle(job: Any) -> Any:
        return job.payload

    handle.__annotations__["job"] = kind
    assert pgq.task("default")(handle)(testing.job(7)) == 7
    assert pgq.task("default")(lambda job: job.payload)(testing.job(7)) == 7


def test_a_decorator_may_give_the_payload_to_what_it_is_around() -> None:
    def double(payload: int) -> int:
        return 2 * payload

    @pgq.task("default")
    @functools.wraps(double)
    def handle(job: Any) -> int:
        return double(job.payload)

    assert handle(testing.job(7)) == 14
