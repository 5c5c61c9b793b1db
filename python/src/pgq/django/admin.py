"""The admin of Django: the jobs, which may be retried and cancelled, and the queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest

import pgq.django
from pgq._errors import Error
from pgq._operate.wording import jobs_are
from pgq._sync import SyncQueue
from pgq.django.models import Job, Queue

if TYPE_CHECKING:
    _Base: TypeAlias = admin.ModelAdmin[Any]
else:  # it is generic in its stubs only
    _Base = admin.ModelAdmin

# What becomes of jobs.
_READY: Final = "ready again"
_CANCELLED: Final = "cancelled"
_ASKED: Final = "asked to stop"


class _ReadOnly(_Base):
    show_full_result_count: ClassVar[Any] = False  # it would read all jobs once more

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class QueueFilter(admin.SimpleListFilter):
    """The queues by their names, which does not need a look at the jobs."""

    title: Any = "queue"
    parameter_name: Any = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Name the queues."""
        return [(name, name) for name in Queue.objects.values_list("queue", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Restrict the jobs to those of the queue that was chosen."""
        return queryset if self.value() is None else queryset.filter(queue=self.value())


@admin.register(Job)
class JobAdmin(_ReadOnly):
    """The jobs: retry and cancel need the permissions `pgq.retry_job` and `pgq.cancel_job`."""

    list_display: Any = (
        "id",
        "queue",
        "task",
        "state",
        "attempt",
        "enqueued_at",
        "run_at",
        "error",
    )
    list_filter: ClassVar[Any] = (QueueFilter, "state", "cancel_requested", "enqueued_at")
    search_fields: ClassVar[Any] = (
        "=id",
        "=dedupe_key",
        "=group_key",
        "headers__task",
        "last_error",
    )
    actions: Any = ("retry_jobs", "cancel_jobs")

    @admin.display
    def error(self, job: Job) -> str:
        """The last line of the error."""
        return (job.last_error or "").strip().rpartition("\n")[2][:200]

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may retry jobs."""
        user: Any = request.user
        return bool(user.has_perm("pgq.retry_job"))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may cancel jobs."""
        user: Any = request.user
        return bool(user.has_perm("pgq.cancel_job"))

    @admin.action(description="Retry selected dead jobs", permissions=["retry"])
    def retry_jobs(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        """Make the dead ones of the jobs ready again."""
        self._each(request, jobs, _READY, _retry)

    @admin.action(description="Cancel selected jobs", permissions=["cancel"])
    def cancel_jobs(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        """Cancel the live ones of the jobs, and have workers told of those that are active."""
        self._each(request, jobs, _CANCELLED, _cancel)

    def _each(
        self,
        request: HttpRequest,
        jobs: QuerySet[Job],
        wanted: str,
        call: Callable[[SyncQueue, int], str | None],
    ) -> None:
        """Change each job, log it, and tell how many are as wanted, or have become something else.

        Args:
            call: returns what the job is then; None if it stays as it was.
        """
        queue = pgq.django.Queue(using=jobs.db)
        numbers = Counter({wanted: 0})
        for job in jobs:
            try:
                with transaction.atomic(using=jobs.db):
                    become = call(queue, job.id)
            except Error as exc:
                self.message_user(request, f"Job {job.id}: {exc}", messages.ERROR)
                continue
            if become is not None:
                numbers[become] += 1
                self.log_change(request, job, f"It is {become}.")
        for become, number in numbers.items():
            self.message_user(request, f"{jobs_are(number)} {become}.", messages.SUCCESS)


def _retry(queue: SyncQueue, job_id: int) -> str | None:
    return _READY if queue.retry(job_id) else None


def _cancel(queue: SyncQueue, job_id: int) -> str | None:
    if queue.cancel(job_id):
        return _CANCELLED
    job = queue.get(job_id)
    return _ASKED if job is not None and job.state == "active" else None


@admin.register(Queue)
class QueueAdmin(_ReadOnly):
    """The queues and how many jobs are in them."""

    list_display: Any = ("queue", "ready", "scheduled", "waiting", "active", "dead", "paused")
