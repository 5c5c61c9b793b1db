"""pgq in Django: tasks, worker, migration, checks, admin and tests of applications."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import asyncpg
import django
import httpx
import pgq
import pgq.django
import psycopg
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from bootstrap import ROOT, fetch_django_tests
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import (
    DataError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)
from django.db.migrations.state import ProjectState
from django.urls import path
from django.utils import timezone
from pgq import _enqueue
from pgserver import Server

from .cli_session import url_of
from .cli_session import variables as libpq
from .pages import read
from .programs import run_anyhow, run_program
from .sessions import Connection, dsn_of, until

ENGINE = "django.db.backends.postgresql"
TASKS = "django_tasks" if django.VERSION < (6, 0) else "django.tasks"

settings.configure(
    SECRET_KEY="for tests",
    USE_TZ=True,
    DEBUG=True,  # the admin's pages need no manifest then
    ROOT_URLCONF=__name__,
    STATIC_URL="static/",
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "pgq.django",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    DATABASES={
        "default": {"ENGINE": ENGINE, "NAME": "none"},
        "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        "jobs": {"ENGINE": ENGINE, "NAME": "none"},
    },
    TASKS={
        "default": {"BACKEND": "pgq.django.tasks.PgqBackend"},
        "once": {
            "BACKEND": "pgq.django.tasks.PgqBackend",
            "QUEUES": ["once"],
            "OPTIONS": {"max_attempts": 1, "atomic": True},
        },
        "apart": {"BACKEND": "pgq.django.tasks.PgqBackend", "OPTIONS": {"database": "jobs"}},
        "dummy": {"BACKEND": f"{TASKS}.backends.dummy.DummyBackend"},
    },
)
django.setup()

from django.contrib import admin  # noqa: E402 needs the applications
from django.contrib.auth.models import Permission, User  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from pgq.django._names import exceptions, signals, task_backends  # noqa: E402
from pgq.django.checks import check_databases  # noqa: E402
from pgq.django.management.commands.pgq_worker import dsn_of as worker_dsn  # noqa: E402
from pgq.django.models import Job, Queue  # noqa: E402
from pgq.django.operations import InstallPgq  # noqa: E402
from pgq.django.test import collect, inline, run  # noqa: E402

if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks import task
else:
    from django.tasks import task

pytestmark = [pytest.mark.once, pytest.mark.extension]

urlpatterns = [path("admin/", admin.site.urls)]


def sql(statement: str, *parameters: Any) -> Any:
    """Run a statement on Django's connection, and return what is in its first column."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        row = cursor.fetchone() if cursor.description else None
    return None if row is None else row[0]


@task
def add(first: int, second: int = 0) -> int:
    return first + second


@task
async def add_later(first: int, second: int = 0) -> int:
    return await asyncio.to_thread(int, first + second)


@task(takes_context=True)
def tell(context: Any) -> list[Any]:
    return [context.attempt, context.task_result.id, context.task_result.status]


@task
def fail(text: str) -> None:
    raise pgq.InvalidPayload(text)


@task
def hang() -> None:
    while True:
        time.sleep(0.001)


@task
async def hang_later() -> None:
    await asyncio.Event().wait()


@task
def leave() -> None:
    raise SystemExit(3)


@task
def return_function() -> object:
    return fail


@task
def wait() -> None:
    sql("select pg_advisory_lock_shared(1)")


@task
def count(number: int) -> None:
    for _ in range(number):
        add.enqueue(1)


@task(backend="once", queue_name="once")
def note(value: str) -> str:
    sql("insert into note values (%s) returning value", value)
    if value == "late":
        sql("select pg_advisory_xact_lock(1)")
    if value == "bad":
        raise ValueError(value)
    return value


@pytest.fixture(autouse=True)
def database(dsn: dict[str, Any]) -> Iterator[None]:
    """Lead Django to the database of the test."""
    connect_to(dsn)
    yield
    connection.close()


def connect_to(dsn: dict[str, Any], alias: str = "default") -> None:
    connection = connections[alias]
    connection.close()
    names = {
        "NAME": "database",
        "HOST": "host",
        "PORT": "port",
        "USER": "user",
        "PASSWORD": "password",
    }
    connection.settings_dict.update({name: dsn[key] or "" for name, key in names.items()})
    connection.settings_dict["PORT"] = str(dsn["port"])


@pytest.fixture
def once() -> None:
    """The queue of the backend that is atomic, and its table."""
    sql("select pgq_create_queue('once')::text")
    sql("create table note (value text)")


def work(*arguments: str) -> None:
    call_command("pgq_worker", "--until-idle", *arguments)


def other_sessions() -> int:
    """Count the sessions of the database that are not Django's in this thread."""
    return int(
        sql(
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
    )


# Queues


def test_a_job_ends_with_the_transaction() -> None:
    queue = pgq.django.Queue()
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        queue.enqueue("rolled back")
        raise ZeroDivisionError
    with transaction.atomic():
        kept = queue.enqueue({"text": "50 %s of it"}, delay=timedelta(hours=1), after=[])
    assert [(job.id, job.payload) for job in Job.objects.all()] == [(kept, {"text": "50 %s of it"})]


def test_errors_are_those_of_pgq_and_break_the_transaction_as_any_other() -> None:
    with pytest.raises(pgq.UnknownQueue) as caught, transaction.atomic():
        pgq.django.Queue("unknown").enqueue(1)
    assert isinstance(caught.value.__cause__, ProgrammingError)
    assert pgq.django.Queue().enqueue(1) == 1


def test_a_transaction_that_the_server_has_aborted_does_not_end_as_if_it_committed() -> None:
    told: list[str] = []
    with transaction.atomic():
        transaction.on_commit(lambda: told.append("committed"))
        with pytest.raises(pgq.UnknownQueue):
            pgq.django.Queue("unknown").enqueue(1)
        with pytest.raises(transaction.TransactionManagementError):
            add.enqueue(2)
    with transaction.atomic():
        transaction.on_commit(lambda: told.append("saved"))
        with pytest.raises(pgq.UnknownQueue), transaction.atomic():
            pgq.django.Queue("unknown").enqueue(1)
        add.enqueue(3)
    assert told == ["saved"]
    assert [job.payload["args"] for job in Job.objects.all()] == [[3]]


def test_what_psycopg_refuses_is_an_invalid_argument() -> None:
    wrong: Any = [object()]
    refused: list[dict[str, Any]] = [{"dedupe_key": "\0"}, {"after": wrong}]
    for options in refused:
        with pytest.raises(pgq.InvalidArgument) as caught:
            pgq.django.Queue().enqueue(1, **options)
        assert isinstance(caught.value.__cause__, (DataError, ProgrammingError))


def test_a_transaction_that_is_to_be_rolled_back_says_so_as_django_does() -> None:
    with transaction.atomic():
        with (
            contextlib.suppress(ZeroDivisionError),
            transaction.mark_for_rollback_on_error(using="default"),
        ):
            raise ZeroDivisionError
        with pytest.raises(transaction.TransactionManagementError):
            pgq.django.Queue().enqueue(1)


def test_statements_go_through_django() -> None:
    seen: list[str] = []

    def note_statement(execute: Any, statement: str, *rest: Any) -> Any:
        seen.append(statement)
        return execute(statement, *rest)

    with connection.execute_wrapper(note_statement):
        pgq.django.Queue().enqueue(1)
    assert "pgq_enqueue" in seen[0]


def test_a_lost_connection_is_told() -> None:
    sql("select 1")
    connection.connection.close()
    with pytest.raises(pgq.ConnectionLost):
        pgq.django.Queue().enqueue(1)


# The backend


def test_a_task_commits_with_the_transaction_and_runs() -> None:
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        add.enqueue(1)
        raise ZeroDivisionError
    results: list[Any] = [add.enqueue(1, second=2), add_later.enqueue(2, 3), tell.enqueue()]
    assert {result.status for result in results} == {"READY"}
    assert results == [result.task.get_result(result.id) for result in results]
    work()
    for result in results:
        result.refresh()
        assert result.is_finished
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert result.attempts == 1
    returned = [result.return_value for result in results]
    assert returned == [3, 5, [1, results[2].id, "RUNNING"]]


async def test_tasks_may_be_enqueued_from_a_loop(pool: asyncpg.Pool[Any]) -> None:
    result = await add.aenqueue(1)
    assert await pool.fetchval("select headers ->> 'task' from pgq_jobs") == add.module_path
    assert await add.aget_result(result.id) == result
    await result.arefresh()
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        await add.aget_result("123")
    await pool.close()


def test_tasks_pass_through_the_middleware_of_enqueues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_enqueue, "middleware", [])
    caller: ContextVar[str] = ContextVar("caller")

    @pgq.enqueue_middleware
    async def sign(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        return await call_next(replace(new, headers={**new.headers, "caller": caller.get()}))

    caller.set("ada")
    add.enqueue(1)
    async_to_sync(add.aenqueue)(2)
    assert list_of("select headers ->> 'caller' from pgq_jobs") == ["ada", "ada"]


def test_what_is_refused_before_the_server_knows_leaves_the_transaction_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_enqueue, "middleware", [])

    @pgq.enqueue_middleware
    async def refuse(new: pgq.NewJobs, call_next: pgq.Enqueue) -> Sequence[pgq.JobId]:
        if new.payloads[0]["args"] == [13]:
            raise PermissionError
        return await call_next(new)

    wrong: Any = object()
    with transaction.atomic():
        kept = add.enqueue(1)
        with pytest.raises(PermissionError):
            add.enqueue(13)
        with pytest.raises(TypeError):
            add.enqueue(wrong)
        assert add.enqueue(2).id > kept.id
    with pytest.raises(PermissionError):
        add.enqueue(13)
    assert [job.payload["args"] for job in Job.objects.order_by("id")] == [[1], [2]]


def test_a_task_joins_a_transaction_without_autocommit() -> None:
    sql("select 1")
    connection.set_autocommit(False)
    try:
        add.enqueue(1)
        connection.rollback()
        add.enqueue(2)
        connection.commit()
    finally:
        connection.set_autocommit(True)
    assert [job.payload["args"] for job in Job.objects.all()] == [[2]]


def test_a_role_that_may_not_look_is_told_and_enqueues_nothing(server: Server) -> None:
    sql("select pgq_create_queue('other')::text")
    sql("create role clerk login; select pgq_grant('default', 'clerk', '{enqueue}')")
    sql("select pgq_grant('other', 'clerk', '{observe}')")
    owner = connection.settings_dict["USER"]
    try:
        connection.close()
        connection.settings_dict["USER"] = "clerk"
        for around in (contextlib.nullcontext(), transaction.atomic()):
            with contextlib.suppress(transaction.TransactionManagementError), around:
                with pytest.raises(pgq.NotPermitted, match="cannot be looked at") as caught:
                    add.enqueue(1)
                assert "pgq_grant('default', role, '{enqueue, observe}')" in str(caught.value.hint)
        assert pgq.django.Queue().enqueue("plain") == 3
        connection.close()
        connection.settings_dict["USER"] = owner
        assert [job.payload for job in Job.objects.all()] == ["plain"]
    finally:
        connection.close()
        server.psql(
            "drop owned by clerk; drop role clerk", database=connection.settings_dict["NAME"]
        )


def test_priority_and_run_after_are_those_of_the_job() -> None:
    later = timezone.now() + timedelta(hours=1)
    result: Any = add.using(priority=7, run_after=later).enqueue(1)
    job = Job.objects.get()
    assert (job.priority, job.run_at, job.state) == (7, later, "scheduled")
    found: Any = add.get_result(result.id)
    assert found.task == result.task
    low, high = add.using(priority=-100).enqueue(1), add.using(priority=100).enqueue(1)
    assert [job.id for job in pgq.django.Queue().dequeue(2)] == [int(high.id), int(low.id)]
    assert add.get_result(low.id).status == "RUNNING"


def test_a_task_that_fails_is_tried_again() -> None:
    sql("select pgq_configure_queue('default', backoff_base => '1 hour')")
    result = fail.enqueue("no\nValueError: no")
    bad = return_function.enqueue()
    left = leave.enqueue()
    work()
    kinds: list[tuple[Any, type[BaseException]]] = [
        (result, pgq.InvalidPayload),
        (bad, TypeError),
        (left, SystemExit),
    ]
    for failed, kind in kinds:
        failed.refresh()
        assert (failed.status, failed.attempts) == ("READY", 1)
        assert failed.errors[0].exception_class is kind
        assert "Traceback" in failed.errors[0].traceback
    for failed in (result, bad):
        assert "pgq/django/worker.py" not in failed.errors[0].traceback, "that is not of interest"
    assert "in fail" in result.errors[0].traceback.splitlines()[1]


@pytest.mark.usefixtures("once")
def test_a_task_has_failed_when_no_try_is_left() -> None:
    result = note.enqueue("bad")
    work("--backend", "once")
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == ("FAILED", ValueError)
    assert sql("select count(*) from note") == 0, "what it wrote is rolled back"
    cancelled = note.enqueue("good")
    pgq.django.Queue().cancel(int(cancelled.id))
    cancelled.refresh()
    assert cancelled.status == "FAILED"


def test_a_result_has_each_attempt() -> None:
    queue = pgq.django.Queue()
    result: Any = add.enqueue(1, 2)
    job_id = int(result.id)
    frame = '  File "shop.py", line 1, in pay\n'
    long = f"Traceback (most recent call last):\n{frame * 3}ValueError: {'x' * 2000}\n"
    deep = f"Traceback (most recent call last):\n{frame * 300}KeyError: 1\n"
    claims: list[Any] = []
    for worker, text in (("first", deep), ("second", None), ("third", long)):
        job = queue.claim(job_id, worker=worker)
        claims.append(job.claimed_at)
        queue.fail(job, text, retry_in=timedelta(0))
    result.refresh()
    assert (result.status, result.attempts) == ("READY", 3)
    assert (result.started_at, result.last_attempted_at) == (claims[0], claims[-1])
    assert result.worker_ids == ["first", "second", "third"]
    [shortened, whole] = result.errors
    assert shortened.traceback[:400] == deep[:400]
    assert shortened.exception_class in {pgq.JobDead, KeyError}, "its end may be missing"
    assert (whole.exception_class, whole.traceback) == (ValueError, long)
    work()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 4)
    assert result.started_at == claims[0] < result.last_attempted_at < result.finished_at
    assert result.worker_ids[:3] == ["first", "second", "third"]
    assert len(result.errors) == 2


@pytest.mark.usefixtures("once")
def test_a_result_outlives_a_cancel_and_a_retry() -> None:
    first: Any = note.using(backend="default", queue_name="default").enqueue("good")
    queue = pgq.django.Queue()
    queue.fail(queue.claim(int(first.id)), "no", retry_in=timedelta(hours=1))
    queue.cancel(int(first.id))
    first.refresh()
    assert [error.traceback for error in first.errors] == ["no"]
    sql("select pgq_configure_queue('once', max_attempts => 1)::text")
    dead: Any = note.enqueue("bad")
    work("--backend", "once")
    assert queue.retry(int(dead.id))
    dead.refresh()
    assert (dead.status, dead.attempts, dead.worker_ids) == ("READY", 0, [])
    assert [error.exception_class for error in dead.errors] == [ValueError]
    assert dead.started_at is not None


def test_results_are_those_of_the_backend_and_its_tasks() -> None:
    sql("select pgq_create_queue('other')::text")
    foreign = [
        pgq.django.Queue().enqueue("no task"),
        pgq.django.Queue().enqueue({}, headers={"task": "os.path.join"}),
        pgq.django.Queue().enqueue([], headers={"task": add.module_path}),
        pgq.django.Queue("other").enqueue({"args": [1]}, headers={"task": add.module_path}),
    ]
    for result_id in (*foreign, "", "first", 10**30, 99):
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            add.get_result(str(result_id))
    own = pgq.django.Queue().enqueue(
        {"args": [1]}, priority=1000, headers={"task": add.module_path}
    )
    found: Any = add.get_result(str(own))
    assert found.args == [1]
    with pytest.raises(exceptions.TaskResultMismatch):
        tell.get_result(str(own))


def test_a_job_of_a_task_may_have_a_deadline() -> None:
    told: list[str] = []

    def listen(task_result: Any, **_: Any) -> None:
        told.append(task_result.id)

    signals.task_finished.connect(listen)
    try:
        queue = pgq.django.Queue()
        for late in (hang, hang_later):
            headers = {"task": late.module_path, "deadline": 0.05}
            queue.enqueue({"args": [], "kwargs": {}}, headers=headers, max_attempts=1)
        work()
    finally:
        signals.task_finished.disconnect(listen)
    results: list[Any] = [hang.get_result("1"), hang_later.get_result("2")]
    assert [result.status for result in results] == ["FAILED", "FAILED"]
    assert [result.errors[0].exception_class for result in results] == [TimeoutError] * 2
    assert told == [], "the worker ends the attempt, not the task"


def test_what_is_no_task_fails_its_attempt(caplog: pytest.LogCaptureFixture) -> None:
    sql("select pgq_configure_queue('default', backoff_base => '1 hour')")
    pgq.django.Queue().enqueue("no task")
    pgq.django.Queue().enqueue({}, headers={"task": "os.path.join"})
    pgq.django.Queue().enqueue({}, headers={"task": "no.module"})
    pgq.django.Queue().enqueue("no call", headers={"task": add.module_path})
    work()
    assert set(Job.objects.values_list("attempt", "state")) == {(1, "scheduled")}
    for text in ("None is no task", "'os.path.join' is no task", "cannot import", "the payload"):
        assert text in caplog.text


def test_signals_tell_of_each_task(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, str, Any]] = []

    def listen(sender: Any, task_result: Any, signal: Any, **_: Any) -> None:
        names = ("task_enqueued", "task_started", "task_finished")
        name = next(name for name in names if getattr(signals, name) is signal)
        told.append((name, task_result.id, task_result.status))

    with contextlib.ExitStack() as stack:
        for signal in (signals.task_enqueued, signals.task_started, signals.task_finished):
            signal.connect(listen)
            stack.callback(signal.disconnect, listen)
        add.enqueue(1)
        work()
        add_later.enqueue(1)
        fail.enqueue("again")
        work("--concurrency", "1")
    assert told == [
        ("task_enqueued", "1", "READY"),
        ("task_started", "1", "RUNNING"),
        ("task_finished", "1", "SUCCESSFUL"),
        ("task_enqueued", "2", "READY"),
        ("task_enqueued", "3", "READY"),
        ("task_started", "2", "RUNNING"),
        ("task_finished", "2", "SUCCESSFUL"),
        ("task_started", "3", "RUNNING"),
    ]


# Cases of Django that cannot pass, with the reasons.
DO_NOT_APPLY = {
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result": "changes a list in memory",
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": "does so, too",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": "pgq can",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": "pgq can",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": "pgq can",
    "test_immediate_backend.ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "the task is interrupted in a worker, and not where it was enqueued"
    ),
    "test_immediate_backend.ImmediateBackendTransactionTestCase"
    ".test_doesnt_wait_until_transaction_commit_by_default": "no worker sees a task before",
}


def test_djangos_own_tests_of_backends_pass() -> None:
    names = ("ENGINE", "NAME", "HOST", "PORT", "USER", "PASSWORD")
    database = json.dumps({name: connection.settings_dict[name] for name in names})
    program = (sys.executable, "-W", "error", "-m", f"{__package__}.django_cases")
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = run_program(*program, fetch_django_tests(), database, cwd=ROOT, env=path)
    cases = json.loads(told.splitlines()[-1])
    assert len(cases) > 70
    failed = {name.removeprefix("tasks."): wrong for name, wrong in cases.items() if wrong}
    unknown = {name: wrong for name, wrong in failed.items() if name not in DO_NOT_APPLY}
    assert not unknown, "\n".join(f"{name}: {wrong}" for name, wrong in unknown.items())
    assert failed.keys() == DO_NOT_APPLY.keys()


if django.VERSION < (6, 0):  # it has no tasks
    del test_djangos_own_tests_of_backends_pass


def test_backends_are_checked_also_where_nothing_imports_djangos_tasks() -> None:
    program = """
import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    INSTALLED_APPS=["pgq.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TASKS={"default": {"BACKEND": "pgq.django.tasks.PgqBackend"}},
)
django.setup()
call_command("check")
"""
    status, told = run_anyhow(sys.executable, "-c", program)
    assert status != 0
    assert told.count("(pgq.E001)") == 1


def test_jobs_may_be_in_another_database_than_the_rows(empty: None, dsn: dict[str, Any]) -> None:
    """The default database has no pgq."""
    connect_to(dsn, "jobs")
    elsewhere = add.using(backend="apart")
    try:
        with pytest.raises(pgq.NotInstalled):
            add.enqueue(1)
        with transaction.atomic():
            result: Any = elsewhere.enqueue(1, 2)
            transaction.set_rollback(True)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="jobs"):
            elsewhere.enqueue(3)
            raise ZeroDivisionError
        work("--backend", "apart")
        result.refresh()
        assert (result.status, result.return_value) == ("SUCCESSFUL", 3)
        assert elsewhere.get_result(result.id) == result
        assert [job.id for job in Job.objects.using("jobs")] == [int(result.id)]
    finally:
        connections["jobs"].close()


def test_a_database_that_is_not_postgresqls_is_an_error() -> None:
    backend = type(task_backends["default"])("x", {"OPTIONS": {"database": "other"}})
    [error] = backend.check()
    assert (error.id, error.is_serious()) == ("pgq.E001", True)
    assert [*task_backends["default"].check()] == []


# The worker


def test_connections_are_closed_after_each_task() -> None:
    for n in range(5):
        count.enqueue(n)
    work("--concurrency", "3")
    assert Job.objects.filter(state="completed").count() == 15
    assert other_sessions() == 0


@pytest.mark.parametrize("max_age", [0, None])
async def test_a_worker_has_few_connections(
    max_age: int | None, dsn: dict[str, Any], connection: Connection
) -> None:
    queue = pgq.Queue(connection)
    waiting = {"task": wait.module_path}
    await queue.enqueue_many(({"args": []} for _ in range(40)), headers=waiting)
    await connection.execute("select pg_advisory_lock(1)")
    program = (
        "from tests.python import test_django as tests;"
        f"tests.connect_to({dsn!r});"
        f"tests.connection.settings_dict['CONN_MAX_AGE'] = {max_age};"
        "tests.work('--concurrency', '16')"
    )
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run_worker = partial(run_program, sys.executable, "-c", program, cwd=ROOT, env=path)
    working = asyncio.create_task(asyncio.to_thread(run_worker))

    async def all_wait() -> bool:
        if working.done():
            working.result()
        waiters = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        return bool(await connection.fetchval(waiters) == 16)

    await until(all_wait)
    sessions = await connection.fetchval(
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and application_name in ('', 'pgq_worker')"
        " and pid <> pg_backend_pid()"
    )
    assert sessions <= 20
    await connection.execute("select pg_advisory_unlock(1)")
    await working
    left = "select count(*) from pgq_jobs where state <> 'completed'"
    assert await connection.fetchval(left) == 0


def connection_arguments() -> dict[str, Any]:
    given = connection.get_connection_params()
    return {name: given[name] for name in ("dbname", "user", "host", "port")}


@pytest.mark.usefixtures("once")
def test_what_an_atomic_task_writes_happens_with_the_end_of_its_job() -> None:
    good, lost = note.enqueue("good"), note.enqueue("late")
    held = psycopg.connect(**connection_arguments(), autocommit=True)
    held.execute("select pg_advisory_lock(1)")

    async def waits() -> bool:
        cursor = held.execute("select from pg_locks where not granted and locktype = 'advisory'")
        return cursor.fetchone() is not None

    async def take_away() -> None:
        working = asyncio.create_task(asyncio.to_thread(work, "--backend", "once"))
        await until(waits)
        held.execute("select pgq_cancel(%s, force => true)", [int(lost.id)])
        held.execute("select pg_advisory_unlock(1)")
        await working

    asyncio.run(take_away())
    held.close()
    good.refresh()
    assert good.return_value == "good"
    assert list_of("select value from note") == ["good"]


def list_of(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return [row[0] for row in cursor.fetchall()]


def test_a_coroutine_function_cannot_be_atomic() -> None:
    with pytest.raises((exceptions.TaskException), match="async"):
        add_later.using(backend="once", queue_name="once")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "dummy"], "no backend of pgq"),
        (["--backend", "unknown"], "unknown"),
        (["--queue", "unknown"], "has no queue unknown"),
        (["--concurrency", "0"], "must be positive"),
        (["--backend", "once"], 'queue "once" does not exist'),
    ],
)
def test_a_worker_that_cannot_work_says_why(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        work(*arguments)


def test_the_worker_connects_as_django_does(monkeypatch: pytest.MonkeyPatch) -> None:
    sql("create role shopkeeper; grant shopkeeper to current_user")
    options = {"options": "-c search_path=pg_catalog", "assume_role": "shopkeeper", "pool": False}
    known = {
        "sslpassword": "secret",
        "sslnegotiation": "postgres",
        "ssl_min_protocol_version": "TLSv1.2",
        "ssl_max_protocol_version": "TLSv1.3",
        "krbsrvname": "postgres",
        "gsslib": "gssapi",
    }
    options |= known
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    async def look() -> Any:
        found = await asyncpg.connect(worker_dsn("default"))
        answer = await found.fetchrow(
            "select current_user, current_setting('search_path'),"
            " current_setting('application_name'), current_database()"
        )
        await found.close()
        return tuple(answer or ())

    # asyncpg takes what it does not know for settings, which the server would refuse.
    answer = asyncio.run(look())
    assert known.items() <= dict(parse_qsl(urlsplit(worker_dsn("default")).query)).items()
    database = connection.settings_dict["NAME"]
    assert answer == ("shopkeeper", "pg_catalog", "pgq_worker", database)
    monkeypatch.undo()
    sql("drop role shopkeeper")


# Migration and checks


@pytest.fixture
def empty(server: Server) -> Generator[None]:
    """Django's database has no pgq."""
    server.psql("create database empty_of_django")
    connect_to(dsn_of(server, "empty_of_django"))
    yield
    connection.close()
    server.psql("drop database empty_of_django with (force)")


def versions() -> tuple[str | None, str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "select installed_version, default_version from pg_available_extensions"
            " where name = 'pgq'"
        )
        installed, available = cursor.fetchone()
    return installed, available


@pytest.mark.usefixtures("empty")
def test_the_migration_installs_pgq() -> None:
    [warning] = check_databases(databases=["default", "other"])
    assert (warning.id, warning.hint) == ("pgq.W001", "Run: manage.py migrate pgq")
    shown = StringIO()
    call_command("sqlmigrate", "pgq", "0001", stdout=shown)
    assert "create extension if not exists pgq;" in shown.getvalue()
    assert versions()[0] is None
    call_command("migrate", "pgq", verbosity=0)
    installed, available = versions()
    assert installed == available
    assert check_databases(databases=["default", "other"]) == []
    call_command("migrate", "pgq", "zero", verbosity=0)
    assert versions()[0] == available, "the jobs stay"
    call_command("migrate", "pgq", verbosity=0)


@pytest.mark.usefixtures("empty")
def test_the_migration_upgrades_pgq() -> None:
    sql("create extension pgq version '0.1.0'")
    migrate()
    installed, available = versions()
    assert installed == available


def test_the_migration_leaves_alone_what_is_there(server: Server) -> None:
    sql("create role guest login")
    try:
        connection.close()
        connection.settings_dict["USER"] = "guest"
        migrate()
        [warning] = check_databases(databases=["default"])
        assert "permission denied" in warning.msg
    finally:
        connection.close()
        server.psql("drop role guest")


def migrate() -> None:
    state = ProjectState()
    with connection.schema_editor() as editor:
        InstallPgq().database_forwards("pgq", editor, state, state)


def test_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgq._version.PACKAGE", "9.0.0")
    [warning] = check_databases(databases=["default"])
    assert warning.id == "pgq.W002"
    assert "ALTER EXTENSION pgq UPDATE" in str(warning.hint)


def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "pgq", "--check", "--dry-run", verbosity=0)


# Tests of applications


def test_tasks_run_inline() -> None:
    with inline() as results:
        result = count.enqueue(2)
        later = add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        awaited: Any = add_later.enqueue(1, 2)
    assert awaited.return_value == 3
    assert (result.status, later.status) == ("SUCCESSFUL", "READY")
    assert [r.task.name for r in results] == ["count", "add", "add", "add", "add_later"]
    add.enqueue(1)
    assert len(results) == 5


def test_a_task_that_fails_inline_raises_or_is_listed() -> None:
    with transaction.atomic():
        with inline(), pytest.raises(pgq.InvalidPayload):
            fail.enqueue("no")
        with inline(raise_errors=False):
            result = fail.enqueue("no")
        assert result.errors[0].exception_class is pgq.InvalidPayload
        assert Job.objects.count() == 2


@pytest.mark.usefixtures("once")
def test_an_atomic_task_runs_inline() -> None:
    with transaction.atomic(), inline(raise_errors=False):
        assert note.enqueue("good").return_value == "good"
        assert note.enqueue("bad").status == "FAILED"
    assert list_of("select value from note") == ["good"]


def test_tasks_are_collected_and_run_later() -> None:
    with transaction.atomic():
        with collect() as results:
            add.enqueue(1, 2)
            add.using(backend="dummy").enqueue(1)
        [result] = results
        assert run(result)
        assert result.return_value == 3
        assert not run(result), "it has ended"


def test_the_files_of_the_page_work(tmp_path: Path, dsn: dict[str, Any]) -> None:
    blocks = re.findall(
        r"^```python title=\"(\S+)\"\n(.*?)^```$", read("docs/django.md"), re.MULTILINE | re.DOTALL
    )
    files = dict(blocks)
    files["settings.py"] += (
        f"\nDATABASES = {{'default': {{'ENGINE': '{ENGINE}', 'NAME': 'page'}}}}\nSECRET_KEY = '1'"
    )
    files["tasks.py"] = f"from {TASKS} import task\n@task\ndef add(a, b): return a + b\n"
    files["__init__.py"] = files["migrations/__init__.py"] = ""
    (tmp_path / "shop" / "migrations").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "shop" / name).write_text(text, encoding="utf-8")
    variables = {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {**os.environ, **libpq(dsn), **variables}
    command = (sys.executable, "-m", "django", "test", "shop")
    assert "Ran 2 tests" in run_program(*command, cwd=tmp_path, env=environment)


# The admin


@pytest.fixture
def site() -> Client:
    """A client of the admin, as nobody yet."""
    logging.getLogger("django.request").setLevel(logging.ERROR)
    call_command("migrate", verbosity=0)
    return Client()


def login(site: Client, *permissions: str) -> None:
    user: Any = User.objects.create_user("ada", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    site.force_login(user)


def page(site: Client, address: str, **query: str) -> str:
    answer = site.get(f"/admin/pgq/{address}", query)
    assert answer.status_code == 200
    return answer.content.decode()


def act(site: Client, action: str, *ids: int) -> str:
    data = {"action": action, "_selected_action": list(map(str, ids))}
    return site.post("/admin/pgq/job/", data, follow=True).content.decode()


def test_the_admin_shows_jobs_and_queues(site: Client) -> None:
    login(site, "view_job", "view_queue")
    first, second = add.enqueue(1), fail.enqueue("the reason")
    work()
    shown = page(site, "job/")
    assert f"{__name__}.add" in shown
    assert "InvalidPayload: the reason" in shown
    links = {result.id: f"/admin/pgq/job/{result.id}/change/" for result in (first, second)}

    def listed(**query: str) -> list[str]:
        text = page(site, "job/", **query)
        return [result_id for result_id, link in links.items() if link in text]

    assert listed() == [first.id, second.id]
    assert listed(state__exact="completed") == [first.id]
    assert listed(queue="default") == [first.id, second.id]
    assert listed(queue="none") == []
    assert listed(cancel_requested__exact="0") == [first.id, second.id]
    assert listed(cancel_requested__exact="1") == []
    tomorrow = timezone.now() + timedelta(days=1)
    assert listed(enqueued_at__lt=tomorrow.isoformat()) == [first.id, second.id]
    assert listed(enqueued_at__gte=tomorrow.isoformat()) == []
    assert listed(q="django.fail") == [second.id]
    assert listed(q="the reason") == [second.id]
    assert first.id in listed(q=first.id)
    assert "the reason" in page(site, f"job/{second.id}/change/")
    assert "default" in page(site, "queue/")
    assert 'name="action"' not in shown


def test_the_admin_retries_and_cancels_what_is_selected(site: Client) -> None:
    login(site, "view_job", "retry_job", "cancel_job")
    queue = pgq.django.Queue()
    dead, twin, ready = (
        queue.enqueue(n, dedupe_key=k) for n, k in ((1, "k"), (2, None), (3, None))
    )
    for job in queue.dequeue(2):
        queue.fail(job, retryable=False)
    queue.enqueue(4, dedupe_key="k")
    shown = act(site, "retry_jobs", dead, twin, ready)
    assert "1 job is ready again." in shown
    assert f"Job {dead}: " in shown, "another live job has its key"
    assert Job.objects.get(id=twin).state == "ready"
    assert "2 jobs are cancelled." in act(site, "cancel_jobs", twin, ready)
    assert Job.objects.get(id=ready).state == "cancelled"
    assert sql("select count(*) from django_admin_log") == 3


def test_the_admin_tells_of_active_jobs_that_are_to_be_cancelled(site: Client) -> None:
    login(site, "view_job", "cancel_job")
    queue = pgq.django.Queue()
    active, done, ready = (queue.enqueue(n) for n in range(3))
    for job in queue.dequeue(2):
        if job.id == done:
            queue.complete(job)
    shown = act(site, "cancel_jobs", active, done, ready)
    assert "1 job is cancelled." in shown
    assert "1 job is asked to stop." in shown
    assert Job.objects.get(id=active).cancel_requested
    noted = "select object_id || ': ' || change_message from django_admin_log order by 1"
    assert list_of(noted) == [f"{active}: It is asked to stop.", f"{ready}: It is cancelled."]


@pytest.mark.parametrize(("permission", "action"), [("retry", "cancel"), ("cancel", "retry")])
def test_actions_need_their_permissions(site: Client, permission: str, action: str) -> None:
    login(site, "view_job", f"{permission}_job")
    job_id = pgq.django.Queue().enqueue(1)
    shown = page(site, "job/")
    assert f'value="{permission}_jobs"' in shown
    assert f'value="{action}_jobs"' not in shown
    act(site, f"{action}_jobs", job_id)
    assert Job.objects.get().state == "ready"


def test_a_router_leads_the_admin_to_another_database(site: Client) -> None:
    class Router:
        def db_for_read(self, model: Any, **_: Any) -> str | None:
            return "other" if model._meta.app_label == "pgq" else None  # noqa: SLF001 it is Django's way

    login(site, "view_queue")
    assert "default" in page(site, "queue/")
    with override_settings(DATABASE_ROUTERS=[Router()]):
        assert (Job.objects.db, Queue.objects.db) == ("other", "other")
        with pytest.raises(OperationalError, match="no such table: pgq_queues"):
            page(site, "queue/")


def test_nobody_changes_jobs_otherwise(site: Client) -> None:
    site.force_login(User.objects.create_superuser("root"))
    job_id = pgq.django.Queue().enqueue(1)
    assert site.get("/admin/pgq/job/add/").status_code == 403
    assert site.post(f"/admin/pgq/job/{job_id}/change/", {"state": "dead"}).status_code == 403
    assert site.post(f"/admin/pgq/job/{job_id}/delete/", {"post": "yes"}).status_code == 403
    assert Queue.objects.get(queue="default").ready == 1


# The dashboard


@pytest.mark.parametrize("is_superuser", [True, False])
def test_the_dashboard_is_beside_the_site_for_its_staff(
    site: Client, dsn: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, is_superuser: bool
) -> None:
    monkeypatch.setenv("PGQ_DSN", url_of(dsn))
    found = re.search(r'```python title="asgi.py"\n(.*?)```', read("docs/dashboard.md"), re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(found[1], names)
    application = names["application"]
    user = User.objects.create_user("ada", is_staff=True, is_superuser=is_superuser)
    site.force_login(user)
    cookies = {"sessionid": site.cookies["sessionid"].value}

    async def look() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=application)
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        async with application.router.lifespan_context(application), client:
            answers = [await client.get("/pgq/"), await client.get("/admin/login/")]
            client.cookies.update(cookies)
            answers.append(await client.get("/pgq/queue?name=default"))
            await sync_to_async(connections.close_all)()
        return answers

    nobody, elsewhere, staff = asyncio.run(look())
    assert nobody.headers["location"] == "/admin/login/?next=/pgq/"
    assert "Log in" in elsewhere.text
    assert "user ada" in staff.text
    assert ("Pause" in staff.text) == is_superuser
