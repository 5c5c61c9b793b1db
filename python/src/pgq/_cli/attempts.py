"""Metrics of one worker for Prometheus: its attempts by queue and task, and how it is.

The database knows no ends by task: whoever makes the attempts counts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Enum,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from pgq._cli.probes import Probes
from pgq._cli.web import Answer
from pgq._models import Job
from pgq._task import TASK_HEADER
from pgq._worker.config import Endpoint
from pgq._worker.ending import ending
from pgq._worker.handle import instrumentation
from pgq._worker.health import STATUSES

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


def measured(probes: Probes) -> Callable[[], Answer]:
    """Measure all attempts of this process from now on, and return the page of metrics."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    status = Enum(
        "pgq_worker_status",
        "1 for what the worker's probes tell, as pgq.Health describes it.",
        states=STATUSES,
        registry=registry,
    )
    jobs = Gauge("pgq_worker_jobs", "Jobs that the worker holds.", registry=registry)
    took = Histogram(
        "pgq_worker_attempt_seconds",
        "Attempts by outcome, and how long they took.",
        ("queue", "task", "outcome"),
        buckets=_SECONDS,
        registry=registry,
    )
    waited = Histogram(
        "pgq_worker_wait_seconds",
        "From when a job was due until it was claimed, by the server's clock.",
        ("queue", "task"),
        buckets=_SECONDS,
        registry=registry,
    )

    def task_of(job: Job[Any]) -> str:
        """Return the task that a job names, if the worker has it: anybody can think up others."""
        name = job.headers.get(TASK_HEADER) if isinstance(job.headers, dict) else None
        tasks = probes.worker.tasks_of(job.queue) if probes.worker is not None else ()
        return str(name) if any(task.name == name for task in tasks) else ""

    async def measure(job: Job[Any], call_next: Endpoint) -> Any:
        task = task_of(job)
        if job.claimed_at is not None:
            waiting = (job.claimed_at - job.run_at).total_seconds()
            waited.labels(job.queue, task).observe(max(waiting, 0.0))
        begun = time.perf_counter()
        end: Any = None
        try:
            end = await call_next(job)
        except BaseException as exc:
            end = exc
            raise
        finally:
            outcome, _ = ending(end)
            took.labels(job.queue, task, outcome).observe(time.perf_counter() - begun)
        return end

    def page() -> Answer:
        health = probes.health()
        status.state(health.status)
        jobs.set(health.jobs)
        return Answer(body=generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    instrumentation.append(measure)
    return page
