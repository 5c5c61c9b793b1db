"""OpenTelemetry: traces that go on where a job is handled, and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any, NoReturn

import asyncpg
import pgq
import psycopg
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pgq import _enqueue
from pgq._worker import attempt as _attempt
from pgq._worker import link as _link
from pgq.otel import PgqInstrumentor, queue_metrics

from .cli_session import variables
from .sessions import Connection, stop_clock, until, within
from .workers import FAST, SHORT, tried_twice

pytestmark = pytest.mark.once

LONG = 60.0
OTHERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Email:
    to: str


@pgq.task("default")
async def send(_: pgq.Job[Email]) -> None: ...


@pgq.task("default")
def parent_in_a_thread(_: pgq.Job[None]) -> str:
    return span_id(trace.get_current_span())


@pgq.task("default")
async def parent(_: pgq.Job[None]) -> str:
    return span_id(trace.get_current_span())


@pgq.task("default", transaction=True)
async def parent_in_a_transaction(_: pgq.Job[None], connection: Connection) -> str:
    assert connection.is_in_transaction()
    return span_id(trace.get_current_span())


@pgq.task("default")
async def end(job: pgq.Job[str]) -> Any:
    match job.payload:
        case "returns":
            return "result"
        case "raises":
            raise ZeroDivisionError("no good")
        case "retry":
            return pgq.Retry("busy", in_=timedelta(hours=1))
        case "snooze":
            raise pgq.Snooze(timedelta(hours=1))
        case "cancel":
            return pgq.Cancel()
        case "give up":
            raise pgq.GiveUp("no such address")
        case _:
            return object()


@pgq.task("default", deadline=FAST)
async def sleep(_: pgq.Job[None]) -> None:
    await asyncio.sleep(LONG)


@pgq.task("default", deadline=FAST)
def sleep_in_a_thread(_: pgq.Job[None]) -> None:
    while True:
        threading.Event().wait(0.001)


@pgq.task("default", deadline=timedelta(seconds=1), process=True)
def sleep_in_a_process(_: pgq.Job[None]) -> None:
    threading.Event().wait(LONG)


@pgq.task("default")
async def cancel_itself(_: pgq.Job[None]) -> None:
    raise asyncio.CancelledError


def span_id(span: trace.Span) -> str:
    return trace.format_span_id(span.get_span_context().span_id)


def context_of(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def traceparent(span: ReadableSpan) -> str:
    at = context_of(span)
    trace_id, span_id = trace.format_trace_id(at.trace_id), trace.format_span_id(at.span_id)
    return f"00-{trace_id}-{span_id}-{at.trace_flags:02x}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@dataclass
class Telemetry:
    """What the instrumentation has reported."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracer = self.tracer_provider.get_tracer("test")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        [span] = self.spans(name)
        return span

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return attributes and data point of each series of a metric."""
        data = self.reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), point)
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def jobs(self) -> dict[str, int]:
        """Return the gauge of the jobs of the default queue by state, without what is zero."""
        return {
            found["pgq.job.state"]: point.value
            for found, point in self.points("pgq.queue.jobs")
            if found["messaging.destination.name"] == "default" and point.value
        }


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Instrument the process for one test."""
    telemetry = Telemetry()
    PgqInstrumentor().instrument(
        tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
    )
    yield telemetry
    PgqInstrumentor().uninstrument()
    telemetry.tracer_provider.shutdown()
    telemetry.meter_provider.shutdown()


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, name="test", poll_interval=FAST, grace=timedelta(0))


async def headers(queue: pgq.Queue, job_id: int) -> Any:
    job = await queue.get(job_id)
    assert job is not None
    return job.headers


# Traces


async def test_a_job_carries_the_context_of_the_span_in_which_it_was_sent(
    queue: pgq.Queue, telemetry: Telemetry
) -> None:
    with telemetry.tracer.start_as_current_span("request") as request:
        job_id = await queue.enqueue(1, headers={"tenant": 7})
    span = telemetry.span("send default")
    assert await headers(queue, job_id) == {"tenant": 7, "traceparent": traceparent(span)}
    assert span.parent == request.get_span_context()
    assert span.kind is SpanKind.PRODUCER
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "messaging.system": "pgq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": str(job_id),
    }


async def test_a_job_of_another_driver_carries_it_too(
    dsn: dict[str, Any], queue: pgq.Queue, telemetry: Telemetry
) -> None:
    where = {"host": dsn["host"], "port": dsn["port"], "dbname": dsn["database"]}
    with psycopg.connect(**where, user=dsn["user"]) as own:
        handle = send.enqueue_sync(Email("ada"), connection=own)
    carried = {"task": "send", "traceparent": traceparent(telemetry.span("send default"))}
    assert await headers(queue, handle.id) == carried


async def test_an_attempt_is_a_trace_of_its_own_linked_to_that_span(
    pool: asyncpg.Pool[Any], worker: pgq.Worker, telemetry: Telemetry
) -> None:
    worker.add(send)
    handle = await send.enqueue(Email("ada@example.org"), connection=pool)
    await worker.run_until_idle()
    sent, span = telemetry.span("send default"), telemetry.span("process default")
    assert span.parent is None
    assert context_of(span).trace_id != context_of(sent).trace_id
    [link] = span.links
    assert link.context.span_id == context_of(sent).span_id
    assert link.context.trace_id == context_of(sent).trace_id
    assert span.kind is SpanKind.CONSUMER
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "messaging.system": "pgq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(handle.id),
        "messaging.client.id": "test",
        "pgq.task.name": "send",
        "pgq.job.attempt": 1,
        "pgq.job.outcome": "completed",
    }
    assert attributes(sent)["pgq.task.name"] == "send"


async def test_a_batch_is_one_span_whose_context_all_of_its_jobs_carry(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, telemetry: Telemetry
) -> None:
    emails = (Email(f"{name}@example.org") for name in ("ada", "bob", "eve"))
    handles = await send.enqueue_many(emails, connection=pool)
    span = telemetry.span("send default")
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(span)
    for handle in handles:
        found = await headers(queue, handle.id)
        assert found == {"task": "send", "traceparent": traceparent(span)}


async def test_the_context_that_the_caller_gave_stays(
    queue: pgq.Queue, worker: pgq.Worker, telemetry: Telemetry
) -> None:
    worker.add(end)
    given = {"traceparent": OTHERS}
    with telemetry.tracer.start_as_current_span("request"):
        job_id = await queue.enqueue("returns", headers=given)
    assert await headers(queue, job_id) == given
    await worker.run_until_idle()
    sent, processed = telemetry.span("send default"), telemetry.span("process default")
    assert sent.kind is SpanKind.CLIENT, "its context is not that of the job"
    for span in (sent, processed):
        [link] = span.links
        assert trace.format_trace_id(link.context.trace_id) in OTHERS


async def test_the_tracestate_and_the_baggage_go_along(
    queue: pgq.Queue, worker: pgq.Worker, telemetry: Telemetry
) -> None:
    tenants: list[object] = []

    @worker.handler("default", concurrency=1, prefetch=1)
    async def handle(_: pgq.Job) -> None:
        tenants.append(baggage.get_baggage("tenant"))

    state = trace.TraceState([("vendor", "x")])
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    remote = trace.SpanContext(1, 2, is_remote=True, trace_flags=flags, trace_state=state)
    caller = trace.set_span_in_context(trace.NonRecordingSpan(remote))
    token = context.attach(baggage.set_baggage("tenant", "seven", caller))
    job_id = await queue.enqueue(1)
    context.detach(token)
    assert await headers(queue, job_id) == {
        "traceparent": traceparent(telemetry.span("send default")),
        "tracestate": "vendor=x",
        "baggage": "tenant=seven",
    }
    await queue.enqueue(2)
    await worker.run_until_idle()
    assert tenants == ["seven", None]


async def test_a_schedule_does_not_carry_the_trace_of_who_made_it(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, telemetry: Telemetry
) -> None:
    with telemetry.tracer.start_as_current_span("request"):
        await pgq.Admin(pool).schedule("plain", "@hourly")
        await send.schedule("typed", "@hourly", Email("ada@example.org"), connection=pool)
    rows = await pool.fetch("select name, headers from pgq.schedule")
    assert {row["name"]: row["headers"] for row in rows} == {
        "plain": None,
        "typed": json.dumps({"task": "send"}),
    }


async def test_an_enqueue_that_fails_is_an_error(
    pool: asyncpg.Pool[Any], telemetry: Telemetry
) -> None:
    with pytest.raises(pgq.UnknownQueue):
        await pgq.Queue(pool, "nowhere").enqueue(1)
    span = telemetry.span("send nowhere")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "UnknownQueue"
    assert [event.name for event in span.events] == ["exception"]
    [(found, point)] = telemetry.points("messaging.client.sent.messages")
    assert (found["error.type"], point.value) == ("UnknownQueue", 1)


@pytest.mark.parametrize("task", [parent, parent_in_a_thread, parent_in_a_transaction])
async def test_a_handler_runs_within_the_span(
    pool: asyncpg.Pool[Any],
    worker: pgq.Worker,
    telemetry: Telemetry,
    task: pgq.Task[None, str],
) -> None:
    worker.add(task)
    handle = await task.enqueue(None, connection=pool)
    await worker.run_until_idle()
    span = context_of(telemetry.span("process default"))
    assert await handle.result(connection=pool) == trace.format_span_id(span.span_id)


async def test_the_middleware_of_a_worker_runs_within_the_span(
    pool: asyncpg.Pool[Any], worker: pgq.Worker, telemetry: Telemetry
) -> None:
    @worker.middleware
    async def child(job: pgq.Job, call_next: Any) -> Any:
        with telemetry.tracer.start_as_current_span("child"):
            return await call_next(job)

    worker.add(parent)
    await parent.enqueue_many([None, None], connection=pool)
    await worker.run_until_idle()
    spans = {context_of(span).span_id: span for span in telemetry.spans("process default")}
    parents = [span.parent for span in telemetry.spans("child")]
    assert {found.span_id for found in parents if found is not None} == spans.keys()
    assert all(span.parent is None for span in spans.values()), "one does not begin in another"


async def test_within_another_span_an_attempt_is_its_child(
    pool: asyncpg.Pool[Any], worker: pgq.Worker, telemetry: Telemetry
) -> None:
    worker.add(parent)
    await parent.enqueue(None, connection=pool)
    with telemetry.tracer.start_as_current_span("script") as script:
        await worker.run_until_idle()
    span = telemetry.span("process default")
    assert span.parent == script.get_span_context()
    assert len(span.links) == 1


@pytest.mark.parametrize(
    ("task", "payload", "ending"),
    [
        (end, "returns", ("completed", None)),
        (end, "retry", ("retried", None)),
        (end, "snooze", ("snoozed", None)),
        (end, "cancel", ("cancelled", None)),
        (end, "give up", ("failed", "GiveUp")),
        (end, "raises", ("failed", "ZeroDivisionError")),
        (sleep, None, ("failed", "TimeoutError")),
        (sleep_in_a_thread, None, ("failed", "TimeoutError")),
        (sleep_in_a_process, None, ("failed", "TimeoutError")),
        (cancel_itself, None, ("failed", "CancelledError")),
    ],
)
async def test_the_span_tells_how_the_attempt_ended(
    pool: asyncpg.Pool[Any],
    telemetry: Telemetry,
    task: pgq.Task[Any, Any],
    payload: Any,
    ending: tuple[str, str | None],
) -> None:
    worker = pgq.Worker(pool, [task])
    await task.enqueue(payload, connection=pool, max_attempts=1)
    await worker.run_until_idle()
    span = telemetry.span("process default")
    found = attributes(span)
    assert (found["pgq.job.outcome"], found.get("error.type")) == ending
    failed = "error.type" in found
    assert span.status.status_code is (StatusCode.ERROR if failed else StatusCode.UNSET)
    assert [event.name for event in span.events] == ["exception"] * failed


@pytest.mark.parametrize(
    ("payload", "task", "error"),
    [({"from": "ada"}, "send", "InvalidPayload"), ({"to": "ada"}, "post", "UnknownTask")],
)
async def test_a_job_that_no_handler_can_take_has_a_span(
    pool: asyncpg.Pool[Any], telemetry: Telemetry, payload: Any, task: str, error: str
) -> None:
    worker = pgq.Worker(pool, [send])
    await pgq.Queue(pool).enqueue(payload, headers={"task": task}, max_attempts=1)
    await worker.run_until_idle()
    span = telemetry.span("process default")
    assert attributes(span)["error.type"] == error
    assert attributes(span)["pgq.task.name"] == task


@pytest.mark.parametrize(
    ("act", "outcome"), [("force", "lost"), ("ask", "cancelled"), ("stop", "released")]
)
async def test_the_span_tells_why_a_handler_was_cancelled(
    queue: pgq.Queue, worker: pgq.Worker, telemetry: Telemetry, act: str, outcome: str
) -> None:
    begun = asyncio.Event()

    @worker.handler("default", timeout=SHORT)
    async def handle(_: pgq.Job) -> None:
        begun.set()
        await asyncio.sleep(LONG)

    job_id = await queue.enqueue(1)
    running = asyncio.create_task(worker.run())
    await within(begun.wait())
    if act == "stop":
        worker.stop()
    else:
        await queue.cancel(job_id, force=act == "force")

    async def has_ended() -> bool:
        return telemetry.spans("process default") != []

    await until(has_ended)
    worker.stop()
    await within(running)
    assert attributes(telemetry.span("process default"))["pgq.job.outcome"] == outcome


async def test_a_transaction_that_is_rolled_back_with_its_lease_is_lost(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, worker: pgq.Worker, telemetry: Telemetry
) -> None:
    @worker.handler("default", transaction=True)
    async def handle(job: pgq.Job, _: Connection) -> None:
        await queue.cancel(job.id, force=True)

    await queue.enqueue(1)
    await worker.run_until_idle()
    span = telemetry.span("process default")
    assert attributes(span)["pgq.job.outcome"] == "lost"
    assert attributes(span)["error.type"] == "LeaseLost"


async def test_a_job_whose_transaction_could_not_begin_is_released(
    pool: asyncpg.Pool[Any], telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = _link.transaction

    def fail_once(*_: object) -> NoReturn:
        monkeypatch.setattr(_attempt, "transaction", begin)
        raise ConnectionResetError

    monkeypatch.setattr(_attempt, "transaction", fail_once)
    monkeypatch.setattr(_attempt, "_RELEASE_SECONDS", 0)
    worker = pgq.Worker(pool, [parent_in_a_transaction])
    await parent_in_a_transaction.enqueue(None, connection=pool)
    await worker.run_until_idle()
    outcomes = [attributes(span)["pgq.job.outcome"] for span in telemetry.spans("process default")]
    assert outcomes == ["released", "completed"]


@pytest.mark.parametrize(
    "given", [None, {"traceparent": 5, "tracestate": ["x"], "task": {}}, {"traceparent": "x"}]
)
async def test_headers_of_other_clients_do_no_harm(
    queue: pgq.Queue,
    worker: pgq.Worker,
    telemetry: Telemetry,
    connection: Connection,
    given: Mapping[str, Any] | None,
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    enqueue = "select pgq_enqueue('1', headers => $1::text::jsonb)"
    await connection.execute(enqueue, None if given is None else json.dumps(given))
    await worker.run_until_idle()
    span = telemetry.span("process default")
    assert attributes(span)["pgq.job.outcome"] == "completed"
    assert not span.links


# Metrics


async def test_jobs_are_counted_by_queue_task_and_outcome(
    pool: asyncpg.Pool[Any], worker: pgq.Worker, telemetry: Telemetry
) -> None:
    worker.add(end)
    await end.enqueue_many(["returns", "returns", "raises"], connection=pool, max_attempts=1)
    await worker.run_until_idle()
    series = {
        "messaging.system": "pgq",
        "messaging.operation.name": "process",
        "messaging.destination.name": "default",
        "pgq.task.name": "end",
    }
    completed = {**series, "pgq.job.outcome": "completed"}
    failed = {**series, "pgq.job.outcome": "failed", "error.type": "ZeroDivisionError"}
    counts = telemetry.points("messaging.client.consumed.messages")
    assert [(found, point.value) for found, point in counts] == [(completed, 2), (failed, 1)]
    durations = telemetry.points("messaging.process.duration")
    assert [(found, point.count) for found, point in durations] == [(completed, 2), (failed, 1)]
    [(found, point)] = telemetry.points("messaging.client.sent.messages")
    assert point.value == 3
    assert found == {**series, "messaging.operation.name": "send"}
    [(_, point)] = telemetry.points("messaging.client.operation.duration")
    assert point.count == 1


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, LookupError, pgq.Retry, pgq.Cancel, pgq.JobDead]
)
async def test_what_errors_say_makes_no_series_of_its_own(
    queue: pgq.Queue, worker: pgq.Worker, telemetry: Telemetry, error: type[BaseException]
) -> None:
    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        raise error(job.payload)

    await queue.enqueue_many(["one text", "another"], max_attempts=1)
    await worker.run_until_idle()
    for name in ("messaging.client.consumed.messages", "messaging.process.duration"):
        [(found, _)] = telemetry.points(name)
        assert found.get("error.type") in {None, error.__name__}


async def test_the_wait_is_from_when_a_job_was_due_until_its_claim(
    queue: pgq.Queue, worker: pgq.Worker, telemetry: Telemetry
) -> None:
    attempts = await tried_twice(queue, worker)
    assert attempts[1].run_at > attempts[1].enqueued_at
    waits = [
        max(job.claimed_at - job.run_at, timedelta(0))
        for job in attempts
        if job.claimed_at is not None
    ]
    [(_, point)] = telemetry.points("pgq.job.wait.duration")
    assert point.count == 2
    assert point.sum == pytest.approx(sum(waits, timedelta(0)).total_seconds())


async def test_a_job_that_is_claimed_before_its_time_by_a_clock_set_back_has_not_waited(
    connection: Connection, queue: pgq.Queue, worker: pgq.Worker, telemetry: Telemetry
) -> None:
    jobs: list[pgq.Job] = []

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        jobs.append(job)

    now = await stop_clock(connection)
    await queue.enqueue(1, connection=connection)
    await stop_clock(connection, now - timedelta(minutes=1))
    await within(worker.run_until_idle())
    [job] = jobs
    assert job.claimed_at is not None
    assert job.claimed_at < job.run_at
    [(_, point)] = telemetry.points("pgq.job.wait.duration")
    assert (point.count, point.sum) == (1, 0)


async def test_the_gauges_tell_what_queues_hold_while_they_are_read(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    telemetry = Telemetry()
    await queue.enqueue_many(range(3))
    await queue.dequeue(1)

    async def are_two_ready() -> bool:
        return telemetry.jobs() == {"ready": 2, "active": 1}

    async def are_three_ready() -> bool:
        return telemetry.jobs() == {"ready": 3, "active": 1}

    interval = timedelta(minutes=1)
    async with queue_metrics(pool, interval=interval, meter_provider=telemetry.meter_provider):
        assert await are_two_ready()
        [(found, age)] = telemetry.points("pgq.queue.oldest_ready_age")
        assert found["db.namespace"] == await pool.fetchval("select current_database()")
        assert 0 <= age.value < 60
    assert telemetry.points("pgq.queue.jobs") == []
    # A second block finds instruments that are there already.
    interval = timedelta(milliseconds=100)
    async with queue_metrics(pool, interval=interval, meter_provider=telemetry.meter_provider):
        await until(are_two_ready)
        await queue.enqueue(4)
        await until(are_three_ready)
    assert telemetry.points("pgq.queue.jobs") == []
    telemetry.meter_provider.shutdown()


async def test_the_gauges_are_silent_while_the_queues_cannot_be_read(
    pool: asyncpg.Pool[Any], connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = Telemetry()

    async def are_silent() -> bool:
        return telemetry.points("pgq.queue.jobs") == []

    async def are_back() -> bool:
        return not await are_silent()

    async def is_told() -> bool:
        return "the queues could not be read for metrics" in caplog.text

    interval = timedelta(milliseconds=20)
    async with queue_metrics(pool, interval=interval, meter_provider=telemetry.meter_provider):
        await connection.execute("alter view pgq_queues rename to elsewhere")
        await until(is_told)
        await until(are_silent)
        await connection.execute("alter view elsewhere rename to pgq_queues")
        await until(are_back)
    telemetry.meter_provider.shutdown()


# Instrumentation


async def test_it_can_be_taken_back(
    queue: pgq.Queue, worker: pgq.Worker, telemetry: Telemetry
) -> None:
    worker.add(end)
    PgqInstrumentor().uninstrument()
    job_id = await queue.enqueue("returns")
    await worker.run_until_idle()
    assert await headers(queue, job_id) is None
    assert telemetry.exporter.get_finished_spans() == ()
    assert not hasattr(pgq.Queue.enqueue, "__wrapped__")


async def test_it_happens_once(
    queue: pgq.Queue, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pgq"):
        PgqInstrumentor().instrument()
    assert "instrumented already" in caplog.text
    await queue.enqueue(1)
    assert len(telemetry.spans("send default")) == 1


def test_opentelemetry_instrument_finds_it() -> None:
    [found] = entry_points(group="opentelemetry_instrumentor", name="pgq")
    instrumentor = found.load()()
    before = len(_enqueue.middleware)
    instrumentor.instrument(skip_dep_check=True)
    try:
        assert len(_enqueue.middleware) == before + 1
    finally:
        instrumentor.uninstrument()
    assert len(_enqueue.middleware) == before


def test_who_does_not_ask_for_it_does_not_import_it() -> None:
    program = "import pgq, sys; print('opentelemetry' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


ALONE = """
import asyncio, sys

class Refuse:
    def find_spec(self, name, *_):
        known = {"asyncpg", "msgspec", "pgq", *sys.stdlib_module_names}
        if name.partition(".")[0] not in known:
            raise ModuleNotFoundError(f"no extra is installed: {name}", name=name)

sys.meta_path.insert(0, Refuse())

import asyncpg, pgq

@pgq.task("default")
async def double(job: pgq.Job[int]) -> int:
    return 2 * job.payload

async def main() -> None:
    async with asyncpg.create_pool(min_size=0) as pool:
        handle = await double.enqueue(21, connection=pool)
        await pgq.Worker(pool, [double]).run_until_idle()
        print(await handle.result(connection=pool))

asyncio.run(main())
"""


def test_the_package_works_with_asyncpg_alone(dsn: dict[str, Any]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables(dsn)},
    )
    assert (done.stdout, done.stderr) == ("42\n", "")
