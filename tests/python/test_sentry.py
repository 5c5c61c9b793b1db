"""Sentry: what its SDK is told of jobs, as the envelopes that it would send."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pgq
import psycopg
import pytest
import sentry_sdk
from pgq.sentry import PgqIntegration
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from .workers import FAST, tried_twice

pytestmark = pytest.mark.once


class Collector(Transport):
    """A transport that keeps what it is given to send."""

    def __init__(self) -> None:
        super().__init__()
        self.envelopes: list[Envelope] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        """Keep an envelope."""
        self.envelopes.append(envelope)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the payloads of a kind, in the order in which they came."""
        items = [item for envelope in self.envelopes for item in envelope.items]
        return [item.payload.json for item in items if item.type == kind and item.payload.json]


@pytest.fixture
def sentry() -> Iterator[Collector]:
    """The SDK with the integration, for one test."""
    collector = Collector()
    sentry_sdk.init(
        dsn="http://key@localhost/1",
        transport=collector,
        traces_sample_rate=1.0,
        default_integrations=False,
        integrations=[PgqIntegration()],
    )
    yield collector
    sentry_sdk.get_global_scope().set_client(None)  # what is set up once does nothing then


@pytest.fixture
def worker(pool: asyncpg.Pool[Any]) -> pgq.Worker:
    return pgq.Worker(pool, name="test", poll_interval=FAST)


@pgq.task("default")
async def send(job: pgq.Job[str]) -> None:
    sentry_sdk.add_breadcrumb(message=f"sending to {job.payload}")
    match job.payload:
        case "raises":
            raise ZeroDivisionError("no good")
        case "retry":
            raise pgq.Retry("busy", in_=timedelta(hours=1))
        case "cancel":
            raise pgq.Cancel("closed")
        case "give up":
            raise pgq.GiveUp("no such address")
        case _:
            return


async def test_a_job_goes_on_in_the_trace_of_who_enqueued_it(
    pool: asyncpg.Pool[Any], worker: pgq.Worker, sentry: Collector
) -> None:
    worker.add(send)
    with sentry_sdk.start_transaction(name="request", op="http.server") as request:
        handle = await send.enqueue("ada", connection=pool, headers={"tenant": 7})
        several = await send.enqueue_many(["bob", "eve"], connection=pool)
    await worker.run_until_idle()
    requested, *processed = sentry.of("transaction")
    one, many = requested["spans"]
    for span in (one, many):
        assert (span["op"], span["description"], span["origin"]) == (
            "queue.publish",
            "send",
            "auto.queue.pgq",
        )
        assert span["data"]["messaging.system"] == "pgq"
        assert span["data"]["messaging.destination.name"] == "default"
    assert one["data"]["messaging.message.id"] == str(handle.id)
    assert "messaging.message.id" not in many["data"]
    parents: dict[str, str] = {}
    for transaction in processed:
        trace = transaction["contexts"]["trace"]
        assert (trace["op"], trace["origin"], trace["status"]) == (
            "queue.process",
            "auto.queue.pgq",
            "ok",
        )
        assert trace["trace_id"] == request.trace_id
        assert transaction["transaction_info"] == {"source": "task"}
        assert transaction["transaction"] == "send"
        data = trace["data"]
        assert data["messaging.system"] == "pgq"
        assert data["messaging.destination.name"] == "default"
        assert data["messaging.message.retry.count"] == 0
        assert data["messaging.message.receive.latency"] >= 0
        parents[data["messaging.message.id"]] = trace["parent_span_id"]
    assert parents == {
        str(handle.id): one["span_id"],
        **{str(other.id): many["span_id"] for other in several},
    }
    job = await handle.get()
    assert job is not None
    assert job.headers is not None
    assert job.headers["tenant"] == 7
    assert sentry.of("event") == []


async def test_a_failed_attempt_is_an_error_with_its_job(
    pool: asyncpg.Pool[Any], worker: pgq.Worker, sentry: Collector
) -> None:
    worker.add(send)
    await send.enqueue("ada", connection=pool)
    handle = await send.enqueue("raises", connection=pool, max_attempts=2)
    await worker.run_until_idle()
    [event] = sentry.of("event")
    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ZeroDivisionError", "no good")
    assert error["mechanism"] == {"type": "pgq", "handled": False}
    assert error["stacktrace"]["frames"][-1]["function"] == "send"
    assert event["transaction"] == "send"
    assert event["tags"] == {
        "pgq.task": "send",
        "pgq.queue": "default",
        "pgq.job_id": str(handle.id),
        "pgq.attempt": "1",
    }
    assert event["contexts"]["pgq"] == {
        "task": "send",
        "queue": "default",
        "job_id": str(handle.id),
        "attempt": 1,
        "max_attempts": 2,
        "worker": "test",
    }
    assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == ["sending to raises"]
    failed = sentry.of("transaction")[-1]["contexts"]["trace"]
    assert failed["status"] == "internal_error"
    assert failed["trace_id"] == event["contexts"]["trace"]["trace_id"]


ENDS: list[tuple[object, tuple[str, list[str]]]] = [
    ("retry", ("ok", [])),
    ("cancel", ("cancelled", [])),
    ("give up", ("internal_error", ["GiveUp"])),
    (1, ("internal_error", ["InvalidPayload"])),
]


@pytest.mark.parametrize(("payload", "told"), ENDS)
async def test_only_what_fails_is_an_error(
    queue: pgq.Queue,
    worker: pgq.Worker,
    sentry: Collector,
    payload: object,
    told: tuple[str, list[str]],
) -> None:
    worker.add(send)
    await queue.enqueue(payload, headers={"task": "send"})
    await worker.run_until_idle()
    [transaction] = sentry.of("transaction")
    errors = [event["exception"]["values"][-1]["type"] for event in sentry.of("event")]
    assert (transaction["contexts"]["trace"]["status"], errors) == told


async def test_attempts_are_counted_and_latency_is_from_due_to_claimed(
    queue: pgq.Queue, worker: pgq.Worker, sentry: Collector
) -> None:
    attempts = await tried_twice(queue, worker)
    assert attempts[1].run_at > attempts[1].enqueued_at
    waits = [job.claimed_at - job.run_at for job in attempts if job.claimed_at is not None]
    transactions = sentry.of("transaction")
    data = [found["contexts"]["trace"]["data"] for found in transactions]
    assert [found["messaging.message.retry.count"] for found in data] == [0, 1]
    assert [found["messaging.message.receive.latency"] for found in data] == [
        pytest.approx(max(wait / timedelta(milliseconds=1), 0)) for wait in waits
    ]
    assert {found["transaction"] for found in transactions} == {"default"}


async def test_synchronous_code_is_told_of_and_the_caller_s_context_stays(
    dsn: dict[str, Any], queue: pgq.Queue, sentry: Collector
) -> None:
    where = {name: dsn[name] for name in ("host", "port", "user")} | {"dbname": dsn["database"]}
    given = {"sentry-trace": "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1"}
    with sentry_sdk.start_transaction(name="request"), psycopg.connect(**where) as own:
        send.enqueue_sync("given", connection=own, headers=given)
        send.enqueue_sync("others", connection=own, headers={"baggage": "tenant=7"})
    kept, added = await queue.dequeue(10)
    assert kept.headers == {"task": "send", **given}
    assert added.headers is not None
    assert added.headers["baggage"].startswith("tenant=7,sentry-trace_id=")
    [requested] = sentry.of("transaction")
    assert [span["op"] for span in requested["spans"]] == ["queue.publish", "queue.publish"]
    assert added.headers["sentry-trace"].split("-")[1] == requested["spans"][1]["span_id"]


async def test_headers_of_other_clients_do_no_harm(
    queue: pgq.Queue, worker: pgq.Worker, sentry: Collector
) -> None:
    @worker.handler("default")
    async def handle(_: pgq.Job) -> None: ...

    for headers in ({"sentry-trace": "no trace", "baggage": ",,="}, {"sentry-trace": 7}):
        await queue.enqueue(1, headers=headers)
    await worker.run_until_idle()
    assert [found["contexts"]["trace"]["status"] for found in sentry.of("transaction")] == [
        "ok",
        "ok",
    ]


async def test_nothing_is_told_without_the_integration(
    pool: asyncpg.Pool[Any], worker: pgq.Worker, sentry: Collector
) -> None:
    worker.add(send)
    sentry_sdk.init(
        dsn="http://key@localhost/1",
        transport=sentry,
        traces_sample_rate=1.0,
        default_integrations=False,
    )
    handle = await send.enqueue("raises", connection=pool, max_attempts=1)
    await worker.run_until_idle()
    job = await handle.get()
    assert job is not None
    assert (job.state, job.headers) == ("dead", {"task": "send"})
    assert sentry.envelopes == []
