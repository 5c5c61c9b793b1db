"""The views of pgq as models, which nothing writes to."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from django.db import models

fields: Final[Any] = models  # without a plugin the stubs do not know what is in a field
_STATES = ("ready", "scheduled", "waiting", "active", "completed", "dead", "cancelled")


class Job(models.Model):
    """A job, live or finished: a row of `pgq_jobs`."""

    id: int = fields.BigIntegerField(primary_key=True)
    token: int | None = fields.BigIntegerField(null=True)
    queue: str = fields.TextField()
    priority: int = fields.IntegerField()
    state: str = fields.TextField(choices=[(state, state) for state in _STATES])
    attempt: int = fields.IntegerField()
    max_attempts: int | None = fields.IntegerField(null=True)
    payload: Any = fields.JSONField()
    headers: dict[str, Any] | None = fields.JSONField(null=True)
    group_key: str | None = fields.TextField(null=True)
    dedupe_key: str | None = fields.TextField(null=True)
    worker: str | None = fields.TextField(null=True)
    enqueued_at: datetime = fields.DateTimeField()
    run_at: datetime = fields.DateTimeField()
    claimed_at: datetime | None = fields.DateTimeField(null=True)
    lease_expires_at: datetime | None = fields.DateTimeField(null=True)
    last_error: str | None = fields.TextField(null=True)
    cancel_requested: bool = fields.BooleanField()
    checkpoint: Any = fields.JSONField(null=True)
    expires_at: datetime | None = fields.DateTimeField(null=True)
    finished_at: datetime | None = fields.DateTimeField(null=True)
    result: Any = fields.JSONField(null=True)

    class Meta:
        """Read only."""

        managed = False
        db_table = "pgq_jobs"
        ordering: ClassVar[list[str]] = ["-id"]
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        permissions: ClassVar[list[tuple[str, str]]] = [
            ("retry_job", "Can retry job"),
            ("cancel_job", "Can cancel job"),
        ]

    def __str__(self) -> str:
        """Name it."""
        return f"{self.queue} {self.id}"

    @property
    def task(self) -> str | None:
        """The name of the task."""
        return self.headers.get("task") if isinstance(self.headers, dict) else None


class Queue(models.Model):
    """A queue, with its counts of jobs: a row of `pgq_queues`."""

    queue: str = fields.TextField(primary_key=True)
    ready: int = fields.BigIntegerField()
    scheduled: int = fields.BigIntegerField()
    waiting: int = fields.BigIntegerField()
    active: int = fields.BigIntegerField()
    dead: int = fields.BigIntegerField()
    oldest_ready_age: timedelta | None = fields.DurationField(null=True)
    next_due: datetime | None = fields.DateTimeField(null=True)
    completed_last_minute: int | None = fields.BigIntegerField(null=True)
    failed_last_minute: int = fields.BigIntegerField()
    completed_last_hour: int | None = fields.BigIntegerField(null=True)
    failed_last_hour: int = fields.BigIntegerField()
    max_active: int = fields.IntegerField()
    paused: bool = fields.BooleanField()
    estimated: bool = fields.BooleanField()
    description: str | None = fields.TextField(null=True)

    class Meta:
        """Read only."""

        managed = False
        db_table = "pgq_queues"
        ordering: ClassVar[list[str]] = ["queue"]
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)

    def __str__(self) -> str:
        """Name it."""
        return self.queue
