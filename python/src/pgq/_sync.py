"""The methods of `Queue` for synchronous code: each runs the same one of `Queue`, to its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Unpack

from pgq._driver import finish
from pgq._models import (
    AnyReceipt,
    FailOutcome,
    Job,
    JobId,
    JobSnapshot,
    Lease,
    ReceiptState,
)
from pgq._queue import DEFAULT_TIMEOUT, Queue
from pgq._task import EnqueueOptions

_NOTHING: Final = timedelta(0)


class SyncQueue:
    """Base of the synchronous queues: what producers and consumers need of `Queue`.

    Args:
        queue: on a driver whose calls wait for nothing.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.name: str = queue.name

    def __repr__(self) -> str:
        return repr(self._queue)

    # Produce

    def enqueue(
        self,
        payload: Any,
        *,
        dedupe_key: str | None = None,
        group_key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> JobId:
        """Add a job, as `pgq.Queue.enqueue` does, and return its id."""
        call = self._queue.enqueue(payload, dedupe_key=dedupe_key, group_key=group_key, **options)
        return finish(call)

    def enqueue_many(
        self,
        payloads: Iterable[Any],
        *,
        dedupe_keys: Sequence[str | None] | None = None,
        group_keys: Sequence[str | None] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[JobId]:
        """Add many jobs in one statement, as `pgq.Queue.enqueue_many` does."""
        return finish(
            self._queue.enqueue_many(
                payloads, dedupe_keys=dedupe_keys, group_keys=group_keys, **options
            )
        )

    # Consume

    def dequeue(
        self,
        batch: int = 1,
        timeout: timedelta = DEFAULT_TIMEOUT,
        *,
        queues: Sequence[str] | None = None,
        worker: str | None = None,
    ) -> list[Job]:
        """Claim jobs, as `pgq.Queue.dequeue` does."""
        return finish(self._queue.dequeue(batch, timeout, queues=queues, worker=worker))

    def claim(
        self, job_id: int, timeout: timedelta = DEFAULT_TIMEOUT, *, worker: str | None = None
    ) -> Job:
        """Claim one given job or fail at once, as `pgq.Queue.claim` does."""
        return finish(self._queue.claim(job_id, timeout, worker=worker))

    def pop(self, batch: int = 1) -> list[Job]:
        """Remove jobs, for good when the transaction commits, as `pgq.Queue.pop` does."""
        return finish(self._queue.pop(batch))

    def heartbeat(
        self, receipt: AnyReceipt, timeout: timedelta | None = None, *, checkpoint: Any = None
    ) -> datetime | None:
        """Renew a lease, as `pgq.Queue.heartbeat` does; None if it is lost."""
        return finish(self._queue.heartbeat(receipt, timeout, checkpoint=checkpoint))

    def heartbeat_many(
        self,
        receipts: Iterable[AnyReceipt],
        timeout: timedelta | None = None,
        *,
        checkpoints: Sequence[Any] | None = None,
    ) -> list[Lease]:
        """Renew many leases in one statement, as `pgq.Queue.heartbeat_many` does."""
        return finish(self._queue.heartbeat_many(receipts, timeout, checkpoints=checkpoints))

    def complete(self, receipt: AnyReceipt, result: Any = None) -> bool:
        """End a job with success, as `pgq.Queue.complete` does; False if the lease is lost."""
        return finish(self._queue.complete(receipt, result))

    def complete_many(
        self, receipts: Iterable[AnyReceipt], results: Sequence[Any] | None = None
    ) -> list[JobId]:
        """End many jobs with success in one statement, as `pgq.Queue.complete_many` does."""
        return finish(self._queue.complete_many(receipts, results))

    def complete_and_dequeue(
        self,
        receipts: Iterable[AnyReceipt],
        batch: int = 1,
        timeout: timedelta = DEFAULT_TIMEOUT,
        *,
        worker: str | None = None,
    ) -> list[Job]:
        """End the jobs of the last batch and claim the next one, in one statement.

        It raises `LeaseLost` as `pgq.Queue.complete_and_dequeue` does.
        """
        call = self._queue.complete_and_dequeue(receipts, batch, timeout, worker=worker)
        return finish(call)

    def fail(
        self,
        receipt: AnyReceipt,
        error: str | None = None,
        *,
        retry_in: timedelta | None = None,
        retryable: bool = True,
        cancel: bool = False,
    ) -> FailOutcome | None:
        """End an attempt of a job without success, as `pgq.Queue.fail` does."""
        return finish(
            self._queue.fail(receipt, error, retry_in=retry_in, retryable=retryable, cancel=cancel)
        )

    def release(self, receipt: AnyReceipt, delay: timedelta = _NOTHING) -> bool:
        """Give a job back, as `pgq.Queue.release` does; False if the lease is lost."""
        return finish(self._queue.release(receipt, delay))

    def outcome(self, receipt: AnyReceipt) -> ReceiptState | None:
        """Tell what became of a receipt, as `pgq.Queue.outcome` does."""
        return finish(self._queue.outcome(receipt))

    # One job

    def get(self, job_id: int) -> JobSnapshot | None:
        """Look at one job, live or finished, as `pgq.Queue.get` does."""
        return finish(self._queue.get(job_id))

    def cancel(self, job_id: int, *, force: bool = False) -> bool:
        """Cancel a job, or tell its worker, as `pgq.Queue.cancel` does."""
        return finish(self._queue.cancel(job_id, force=force))

    def cancel_key(self, dedupe_key: str, *, force: bool = False) -> bool:
        """Cancel the live job of the queue that has a dedupe key."""
        return finish(self._queue.cancel_key(dedupe_key, force=force))

    def move(
        self,
        job_id: int,
        *,
        queue: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
    ) -> bool:
        """Give a job another queue, priority or time, as `pgq.Queue.move` does."""
        return finish(self._queue.move(job_id, queue=queue, priority=priority, run_at=run_at))

    def retry(self, job_id: int) -> bool:
        """Make a dead job ready again, as `pgq.Queue.retry` does."""
        return finish(self._queue.retry(job_id))

    # Sleep

    def channel(self, name: str | None = None) -> str:
        """Return the channel to LISTEN on for jobs of the queue, or of another one."""
        return finish(self._queue.channel(name))

    def wait(
        self, queues: Sequence[str] | None = None, max_wait: timedelta = DEFAULT_TIMEOUT
    ) -> timedelta:
        """Return how long the session may sleep until a notification, as `pgq.Queue.wait` does."""
        return finish(self._queue.wait(queues, max_wait))

    def wake(self) -> None:
        """End what `wait` began: nobody needs to notify the session any more."""
        finish(self._queue.wake())
