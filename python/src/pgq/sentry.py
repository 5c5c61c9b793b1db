"""Sentry: errors of jobs, a transaction for each attempt, and traces that go on there.

Needs the extra "sentry". Names are those of Sentry's conventions for queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import sentry_sdk
from sentry_sdk.consts import OP, SPANDATA, SPANSTATUS
from sentry_sdk.integrations import Integration
from sentry_sdk.tracing import BAGGAGE_HEADER_NAME, SENTRY_TRACE_HEADER_NAME, TransactionSource
from sentry_sdk.utils import event_from_exception

from pgq._enqueue import Enqueue, NewJobs, middleware
from pgq._models import Job, JobId
from pgq._task import TASK_HEADER
from pgq._worker.config import Endpoint
from pgq._worker.ending import ending
from pgq._worker.handle import instrumentation

__all__ = ["PgqIntegration"]

_ORIGIN: Final = "auto.queue.pgq"
_STATUS: Final = {
    "failed": SPANSTATUS.INTERNAL_ERROR,
    "cancelled": SPANSTATUS.CANCELLED,
    "released": SPANSTATUS.ABORTED,
    "lost": SPANSTATUS.ABORTED,
}


class PgqIntegration(Integration):
    """Tells Sentry what this process enqueues and its workers handle.

    It is an argument of the SDK: `sentry_sdk.init(integrations=[PgqIntegration()])`. Where the
    SDK's `trace_lifecycle` is "stream" it tells of errors alone.
    """

    identifier = "pgq"

    @staticmethod
    def setup_once() -> None:
        """Begin, for all queues, tasks and workers of the process; the SDK calls it once."""
        middleware.append(_publish)
        instrumentation.append(_process)


async def _publish(new: NewJobs, call_next: Enqueue) -> Sequence[JobId]:
    """Have jobs sent within one span, whose trace all of them carry."""
    if sentry_sdk.get_client().get_integration(PgqIntegration) is None:
        return await call_next(new)
    name = _name(new.headers, new.queue)
    with sentry_sdk.start_span(op=OP.QUEUE_PUBLISH, name=name, origin=_ORIGIN) as span:
        span.set_data(SPANDATA.MESSAGING_SYSTEM, "pgq")
        span.set_data(SPANDATA.MESSAGING_DESTINATION_NAME, new.queue)
        ids = await call_next(replace(new, headers=_with_trace(new.headers)))
        if len(ids) == 1:
            span.set_data(SPANDATA.MESSAGING_MESSAGE_ID, str(ids[0]))
        return ids


async def _process(job: Job[Any], call_next: Endpoint) -> Any:
    """Have a job handled within a transaction, and tell of the error if the attempt fails."""
    client = sentry_sdk.get_client()
    if client.get_integration(PgqIntegration) is None:
        return await call_next(job)
    headers: Mapping[str, Any] = job.headers if isinstance(job.headers, dict) else {}
    name = _name(headers, job.queue)
    about = {"task": name, "queue": job.queue, "job_id": str(job.id), "attempt": job.attempt}
    result: Any = None
    end: Any = None
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.set_context("pgq", {**about, "max_attempts": job.max_attempts, "worker": job.worker})
        for key, value in about.items():
            scope.set_tag(f"pgq.{key}", str(value))
        transaction = sentry_sdk.continue_trace(
            {key: text for key, text in headers.items() if isinstance(text, str)},
            op=OP.QUEUE_PROCESS,
            name=name,
            source=TransactionSource.TASK,
            origin=_ORIGIN,
        )
        with sentry_sdk.start_transaction(transaction, custom_sampling_context={"pgq": about}):
            transaction.set_data(SPANDATA.MESSAGING_SYSTEM, "pgq")
            transaction.set_data(SPANDATA.MESSAGING_DESTINATION_NAME, job.queue)
            transaction.set_data(SPANDATA.MESSAGING_MESSAGE_ID, str(job.id))
            transaction.set_data(SPANDATA.MESSAGING_MESSAGE_RETRY_COUNT, job.attempt - 1)
            if job.claimed_at is not None:
                waited = (job.claimed_at - job.run_at).total_seconds()
                transaction.set_data(
                    SPANDATA.MESSAGING_MESSAGE_RECEIVE_LATENCY, max(waited, 0.0) * 1000
                )
            try:
                result = await call_next(job)
            except BaseException as exc:  # noqa: BLE001 it is raised below
                end = exc
            outcome, _ = ending(end)
            transaction.set_status(_STATUS.get(outcome, SPANSTATUS.OK))
            if outcome == "failed":
                mechanism = {"type": "pgq", "handled": False}
                event, hint = event_from_exception(end, client.options, mechanism)
                sentry_sdk.capture_event(event, hint)
    if end is not None:
        raise end
    return result


def _name(headers: Mapping[str, Any], queue: str) -> str:
    task = headers.get(TASK_HEADER)
    return task if isinstance(task, str) else queue


def _with_trace(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return headers with the current trace, or as they are if they have one."""
    if SENTRY_TRACE_HEADER_NAME in headers:
        return headers
    trace = dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())
    baggage = [headers.get(BAGGAGE_HEADER_NAME), trace.pop(BAGGAGE_HEADER_NAME, None)]
    if any(baggage):
        trace[BAGGAGE_HEADER_NAME] = ",".join(filter(None, baggage))
    return {**headers, **trace}
