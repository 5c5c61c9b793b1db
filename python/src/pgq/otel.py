"""OpenTelemetry: traces that go on where a job is handled, and metrics. Needs the extra "otel".

Names are those of the semantic conventions for messaging (1.44); what these do not have is below
"pgq.". Instrumentation is of the whole process and can be taken back, as everywhere in
OpenTelemetry: a task is enqueued from anywhere, with a pool or connection that is not pgq's, so
that an argument for it would have to be repeated at each call. It takes part in each enqueue and in
each attempt of a worker; nothing else of the package knows of it, or pays for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from typing import Any, ClassVar, Final, TypeAlias

import asyncpg
from opentelemetry import context, metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider

from pgq import _sql
from pgq._enqueue import Enqueue, NewJobs, middleware
from pgq._models import Job, JobId
from pgq._task import TASK_HEADER
from pgq._worker.config import Endpoint
from pgq._worker.ending import ending
from pgq._worker.handle import instrumentation

__all__ = ["PgqInstrumentor", "queue_metrics"]

_Headers: TypeAlias = Mapping[str, Any] | None
_Attributes: TypeAlias = dict[str, str | int]

_SCOPE: Final = ("pgq.otel", version("pgq-asyncpg"))
_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

_SYSTEM: Final = "messaging.system"
_DESTINATION: Final = "messaging.destination.name"
_OPERATION: Final = "messaging.operation.name"
_OPERATION_TYPE: Final = "messaging.operation.type"
_MESSAGE_ID: Final = "messaging.message.id"
_MESSAGE_COUNT: Final = "messaging.batch.message_count"
_CLIENT_ID: Final = "messaging.client.id"
_DATABASE: Final = "db.namespace"
_ERROR_TYPE: Final = "error.type"
_TASK: Final = "pgq.task.name"
_ATTEMPT: Final = "pgq.job.attempt"
_OUTCOME: Final = "pgq.job.outcome"
_STATE: Final = "pgq.job.state"

_STATES: Final = ("ready", "scheduled", "waiting", "active", "dead")

# Bounds of the histograms, in seconds; the first ones are the conventions'.
_DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_WAITS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 14400)

_READ_SECONDS: Final = 10.0  # else the server is taken to be gone

log: Final = logging.getLogger("pgq")


class PgqInstrumentor:
    """Traces and counts what this process enqueues and what its workers handle.

    It has the methods of the instrumentors of opentelemetry-instrumentation, whose command
    `opentelemetry-instrument` finds it by itself, and does not need that package.
    """

    _undo: ClassVar[ExitStack | None] = None

    def instrument(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        **_: object,
    ) -> None:
        """Begin, for all queues, tasks and workers of the process, those that run already too.

        Args:
            tracer_provider: where spans go; the global one by default.
            meter_provider: where metrics go; the global one by default.
        """
        if PgqInstrumentor._undo is not None:
            log.warning("pgq is instrumented already")
            return
        telemetry = _Telemetry(tracer_provider, meter_provider)
        undo = PgqInstrumentor._undo = ExitStack()
        middleware.append(telemetry.send)
        undo.callback(middleware.remove, telemetry.send)
        instrumentation.append(telemetry.process)
        undo.callback(instrumentation.remove, telemetry.process)

    def uninstrument(self, **_: object) -> None:
        """End what `instrument` began."""
        undo, PgqInstrumentor._undo = PgqInstrumentor._undo, None
        if undo is not None:
            undo.close()


class _Telemetry:
    """The tracer, the instruments, and what is measured with them."""

    def __init__(
        self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
    ) -> None:
        self._tracer = trace.get_tracer(*_SCOPE, tracer_provider, _SCHEMA_URL)
        meter = metrics.get_meter(*_SCOPE, meter_provider, _SCHEMA_URL)
        self._send_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of the call that enqueues.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Jobs that were to be enqueued."
        )
        self._wait_duration = meter.create_histogram(
            "pgq.job.wait.duration",
            "s",
            "Time from when a job was due until it was claimed, by the server's clock.",
            explicit_bucket_boundaries_advisory=_WAITS,
        )
        self._process_duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of the handling of a job.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Jobs that were handled."
        )

    # Send

    async def send(self, new: NewJobs, call_next: Enqueue) -> Sequence[JobId]:
        """Have jobs sent within one span, whose context all of them carry."""
        count = len(new.payloads)
        attributes = _attributes("send", new.queue, new.headers)
        _, links = _received(new.headers)  # the caller's own context, which stays
        begun = time.perf_counter()
        with self._tracer.start_as_current_span(
            f"send {new.queue}",
            kind=SpanKind.CLIENT if links else SpanKind.PRODUCER,
            attributes={**attributes, _OPERATION_TYPE: "send"},
            links=links,
        ) as span:
            if count != 1:
                span.set_attribute(_MESSAGE_COUNT, count)
            try:
                ids = await call_next(replace(new, headers=_with_context(new.headers)))
            except BaseException as exc:
                attributes[_ERROR_TYPE] = type(exc).__qualname__
                span.set_attribute(_ERROR_TYPE, type(exc).__qualname__)
                raise
            finally:
                self._send_duration.record(time.perf_counter() - begun, attributes)
                self._sent.add(count, attributes)
            if count == 1:
                span.set_attribute(_MESSAGE_ID, str(ids[0]))
            return ids

    # Process

    async def process(self, job: Job[Any], call_next: Endpoint) -> Any:
        """Have a job handled within a span that is linked to the one it was sent in."""
        headers = job.headers if isinstance(job.headers, dict) else None
        attributes = _attributes("process", job.queue, headers)
        if job.claimed_at is not None:
            # A claim has the time at which its call began, and may find a job that is newer.
            waited = (job.claimed_at - job.run_at).total_seconds()
            self._wait_duration.record(max(waited, 0.0), attributes)
        received, links = _received(headers)
        token = context.attach(received)
        try:
            with self._tracer.start_as_current_span(
                f"process {job.queue}",
                kind=SpanKind.CONSUMER,
                attributes={
                    **attributes,
                    _OPERATION_TYPE: "process",
                    _MESSAGE_ID: str(job.id),
                    _CLIENT_ID: str(job.worker),
                    _ATTEMPT: job.attempt,
                },
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                return await self._measured(span, attributes, call_next(job))
        finally:
            context.detach(token)

    async def _measured(self, span: Span, attributes: _Attributes, handling: Awaitable[Any]) -> Any:
        begun = time.perf_counter()
        end: Any = None
        try:
            end = await handling
        except BaseException as exc:
            end = exc
            raise
        finally:
            attributes[_OUTCOME], error_type = ending(end)
            if error_type is not None:
                attributes[_ERROR_TYPE] = error_type
                span.record_exception(end)
                span.set_status(StatusCode.ERROR, str(end))
            span.set_attributes(attributes)
            self._process_duration.record(time.perf_counter() - begun, attributes)
            self._consumed.add(1, attributes)
        return end


def _attributes(operation: str, queue: str, headers: _Headers) -> _Attributes:
    attributes: _Attributes = {_SYSTEM: "pgq", _OPERATION: operation, _DESTINATION: queue}
    task = None if headers is None else headers.get(TASK_HEADER)
    if isinstance(task, str):
        attributes[_TASK] = task
    return attributes


def _with_context(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return headers with the current context, or as they are if they have one."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return headers if carrier.keys() & headers.keys() else {**headers, **carrier}


def _received(headers: _Headers) -> tuple[Context, list[Link]]:
    """Return the current context with the baggage of headers, and a link to their span."""
    carrier = {key: text for key, text in (headers or {}).items() if isinstance(text, str)}
    here = trace.get_current_span()
    received = propagate.extract(carrier, trace.set_span_in_context(trace.INVALID_SPAN))
    sender = trace.get_current_span(received).get_span_context()
    links = [Link(sender)] if sender.is_valid else []
    return trace.set_span_in_context(here, received), links


# Queues


class _Depths:
    """What was last read of the queues of one database."""

    def __init__(self, pool: asyncpg.Pool[Any], interval: timedelta, schema: str | None) -> None:
        self._pool = pool
        self._seconds = interval.total_seconds()
        self._statement = _sql.in_schema(_sql.QUEUES, schema)
        self._rows: list[asyncpg.Record] = []
        self._good_until = 0.0

    def rows(self) -> list[asyncpg.Record]:
        """Return the queues; none if they could not be read in time."""
        return self._rows if time.monotonic() < self._good_until else []

    async def read(self) -> None:
        self._rows = await self._pool.fetch(self._statement, timeout=_READ_SECONDS)
        self._good_until = time.monotonic() + 2 * self._seconds

    async def read_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.read()
            except Exception:
                log.warning("the queues could not be read for metrics", exc_info=True)


# Instruments cannot be taken back, and of those of one name the first counts: they all ask this.
_live: Final[list[_Depths]] = []


@asynccontextmanager
async def queue_metrics(
    pool: asyncpg.Pool[Any],
    *,
    interval: timedelta = timedelta(seconds=15),
    schema: str | None = None,
    meter_provider: MeterProvider | None = None,
) -> AsyncGenerator[None, None]:
    """Report, for as long as the block lasts, how many jobs queues have, and the oldest one's age.

    OpenTelemetry asks for them whenever it collects, in a thread of its own, and gets what a task
    of this loop has read last; nothing if that is older than two intervals. One process of a
    database is enough.

    Args:
        pool: where to read; its role needs the privilege "observe" on the queues.
        interval: how often to read; 15 seconds by default.
        schema: where the view pgq_queues is; None (the default) leaves it to search_path.
        meter_provider: where metrics go; the global one by default.

    Raises:
        asyncpg.PostgresError: the view cannot be read.
    """
    depths = _Depths(pool, interval, schema)
    await depths.read()
    meter = metrics.get_meter(*_SCOPE, meter_provider, _SCHEMA_URL)
    meter.create_observable_gauge(
        "pgq.queue.jobs", [_observe_jobs], "{job}", "Jobs of a queue, by their state."
    )
    meter.create_observable_gauge(
        "pgq.queue.oldest_ready_age",
        [_observe_ages],
        "s",
        "How long ago the oldest job of a queue that can be claimed was to run; 0: there is none.",
    )
    _live.append(depths)
    reading = asyncio.create_task(depths.read_for_ever())
    try:
        yield
    finally:
        _live.remove(depths)
        reading.cancel()
        await asyncio.wait([reading])


def _observe_jobs(_: CallbackOptions) -> list[Observation]:
    return [
        Observation(row[state], {**_of(row), _STATE: state})
        for depths in tuple(_live)
        for row in depths.rows()
        for state in _STATES
    ]


def _observe_ages(_: CallbackOptions) -> list[Observation]:
    return [
        Observation(row["oldest_ready_seconds"], _of(row))
        for depths in tuple(_live)
        for row in depths.rows()
    ]


def _of(row: asyncpg.Record) -> _Attributes:
    return {_SYSTEM: "pgq", _DATABASE: row["database"], _DESTINATION: row["queue"]}
