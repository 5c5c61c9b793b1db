from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import asyncpg
import asyncpg.pool

from pgq import _sql
from pgq._errors import ConnectionLost, InvalidArgument, WrongTransaction, expect, translate
from pgq._models import (
    AfterOnDead,
    AnyReceipt,
    FailOutcome,
    GroupOnDead,
    Job,
    JobId,
    JobSnapshot,
    JobState,
    Lease,
    Missed,
    OnDuplicate,
    Privilege,
    ReceiptState,
    Token,
    receipt_of,
)
from pgq._rows import Loads, jobs_of, read_json

if TYPE_CHECKING:
    PooledConnection: TypeAlias = asyncpg.pool.PoolConnectionProxy[Any]
    Connection: TypeAlias = asyncpg.Connection[Any] | PooledConnection
    Executor: TypeAlias = asyncpg.Pool[Any] | Connection
else:  # they are generic in their stubs only
    PooledConnection = asyncpg.pool.PoolConnectionProxy
    Connection = asyncpg.Connection | PooledConnection
    Executor = asyncpg.Pool | Connection

OnEnqueued: TypeAlias = "Callable[[Queue, Executor, Sequence[JobId]], Awaitable[None]]"
Dumps: TypeAlias = Callable[[Any], str]

DEFAULT_TIMEOUT: Final = timedelta(seconds=30)
_NOTHING: Final = timedelta(0)
_LATE_TO_BEGIN: Final = "sqlalchemy.dialects.postgresql.asyncpg"
_NO_PAYLOAD: Final[Mapping[str, Any]] = {}

# Called with the jobs that were enqueued, before who enqueued them hears of it: see pgq.testing.
on_enqueued: ContextVar[OnEnqueued | None] = ContextVar("on_enqueued", default=None)


class Queue:
    """One queue, with a method for every function of the extension.

    A method runs one statement. Without `connection` it takes one from the pool and commits;
    with `connection` it joins the transaction that is open there. Intervals are `timedelta`,
    times are aware `datetime`. Every method raises `UnknownQueue`, `InvalidArgument`,
    `NotPermitted` and `NotInstalled` where they apply, `ConnectionLost` where there is no
    connection any more, and lets other errors of the server itself pass as asyncpg raises them.
    What adds or ends a job raises `WrongTransaction` on a connection that is not of a pool and has
    no open transaction, in a process that uses SQLAlchemy's asyncpg dialect: its sessions begin
    late.

    Args:
        executor: an asyncpg pool or connection; it needs no codec.
        name: the queue; "default" exists from the start, others are made by `create`.
        schema: where the pgq functions are; None (the default) leaves it to search_path.
        dumps: makes JSON text of payloads, headers and results; `json.dumps` by default.
        loads: reads JSON text; by default as `json.loads` does. What it cannot read is an
            `Unreadable` in its job.
    """

    def __init__(
        self,
        executor: Executor,
        name: str = "default",
        *,
        schema: str | None = None,
        dumps: Dumps = json.dumps,
        loads: Loads = read_json,
    ) -> None:
        self.name = name
        self._executor = executor
        self._schema = schema
        self._dumps = dumps
        self._loads = loads

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # Produce

    async def enqueue(
        self,
        payload: Any,
        *,
        priority: int = 0,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        dedupe_key: str | None = None,
        group_key: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "keep",
        expires_at: datetime | None = None,
        after: Sequence[int] | None = None,
        after_on_dead: AfterOnDead = "die",
        connection: Connection | None = None,
    ) -> JobId:
        """Add a job.

        Args:
            payload: anything `dumps` takes; None is the JSON null.
            priority: higher goes first, -32768 to 32767.
            run_at: not before this time; None means now.
            delay: not before this long from now, by the server's clock; in place of run_at.
            dedupe_key: if a live job of the queue has this key, or one that completed within the
                queue's `dedupe_for`, nothing is added and its id returned.
            group_key: of the jobs of a group at most the queue's `group_concurrency` are at work at
                the same time, in the order of their ids, retries included.
            max_attempts: tries until the job is dead; None takes the queue's.
            headers: what goes beside the payload; None for nothing.
            on_duplicate: what happens to the live job with the same dedupe_key: "keep" leaves it,
                "replace" gives it this payload and run_at unless it is active, "error" raises.
            expires_at: a job that has not started by then is dead and does not run.
            after: ids of jobs; it waits until all of them have completed.
            after_on_dead: when one of those dies or is cancelled, "die" makes this one dead, "wait"
                waits until that one is retried and completes.
            connection: joins its transaction.

        Returns:
            The id of the job.

        Raises:
            DuplicateKey: with on_duplicate="error".
            QueueFull: the queue has as many ready jobs as it may have.
            PayloadTooLong: for this queue; or it has 1,000 other priorities.
            NotSupported: `after` together with `group_key`.
            UnknownJob: an id in `after` that no job has had yet.
            WrongTransaction: under REPEATABLE READ or SERIALIZABLE, with `after`, or with a
                `dedupe_key` where the queue has a `dedupe_for`.
        """
        job_id: JobId = await self._value(
            connection,
            _sql.ENQUEUE,
            self._dumps(payload),
            self.name,
            priority,
            _start(run_at, delay),
            dedupe_key,
            group_key,
            max_attempts,
            self._headers(headers),
            on_duplicate,
            _aware("expires_at", expires_at),
            after,
            after_on_dead,
            delay,
        )
        await self._enqueued(connection, [job_id])
        return job_id

    async def enqueue_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: int = 0,
        run_at: datetime | None = None,
        delay: timedelta | None = None,
        dedupe_keys: Sequence[str | None] | None = None,
        group_keys: Sequence[str | None] | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, Any] | None = None,
        on_duplicate: OnDuplicate = "keep",
        expires_at: datetime | None = None,
        after: Sequence[int] | None = None,
        after_on_dead: AfterOnDead = "die",
        connection: Connection | None = None,
    ) -> list[JobId]:
        """Add many jobs in one statement.

        Args:
            payloads: one for each job; the other arguments are as in `enqueue`, for all of them.
            dedupe_keys: one for each payload; None for a job without one.
            group_keys: one for each payload; None for a job without one.

        Returns:
            The ids, in the order of the payloads.
        """
        ids = await self._column(
            connection,
            _sql.ENQUEUE_MANY,
            [self._dumps(payload) for payload in payloads],
            self.name,
            priority,
            _start(run_at, delay),
            dedupe_keys,
            group_keys,
            max_attempts,
            self._headers(headers),
            on_duplicate,
            _aware("expires_at", expires_at),
            after,
            after_on_dead,
            delay,
        )
        await self._enqueued(connection, ids)
        return ids

    async def _enqueued(self, connection: Connection | None, ids: Sequence[JobId]) -> None:
        call = on_enqueued.get()
        if call is not None:
            await call(self, self._executor if connection is None else connection, ids)

    # Consume

    async def dequeue(
        self,
        batch: int = 1,
        timeout: timedelta = DEFAULT_TIMEOUT,
        *,
        queues: Sequence[str] | None = None,
        worker: str | None = None,
        durable: bool = True,
        connection: Connection | None = None,
    ) -> list[Job]:
        """Claim jobs, fresh ones and those whose lease has expired, and never wait for others.

        Args:
            batch: the most jobs to claim.
            timeout: the lease: a job not settled or renewed in that time may be claimed again.
            queues: claim from these instead of this queue, the first ones first.
            worker: a name for the claimer, to be seen by operators; at most 200 characters.
            durable: False does not wait until the claim is on disk (PostgreSQL 14 always does). A
                crash of the server within a second may then undo it: the job can be claimed
                again, and that attempt is not counted.
            connection: joins its transaction.

        Returns:
            The claimed jobs, highest priority first, then oldest first.

        Raises:
            ValueError: `durable` is False, and the connection is in a transaction.
        """
        if not durable and self._is_in_transaction(connection):
            raise ValueError("durable=False would be for all that the transaction writes")
        if queues is None:
            statement = _sql.DEQUEUE if durable else _sql.DEQUEUE_RELAXED
            return await self._jobs(connection, statement, batch, timeout, self.name, worker)
        statement = _sql.DEQUEUE_FROM if durable else _sql.DEQUEUE_FROM_RELAXED
        return await self._jobs(connection, statement, batch, timeout, queues, worker)

    async def heartbeat(
        self,
        receipt: AnyReceipt,
        timeout: timedelta | None = None,
        *,
        checkpoint: Any = None,
        connection: Connection | None = None,
    ) -> datetime | None:
        """Renew a lease.

        Args:
            receipt: the job, or its (id, token).
            timeout: the new lease from now on; None renews for as long as it was claimed for.
            checkpoint: how far the job has come: anything `dumps` takes, which the next attempt
                finds in `Job.checkpoint`; None leaves the last one.

        Returns:
            When the lease runs out now; None if it is lost.
        """
        value: datetime | None = await self._value(
            connection, _sql.HEARTBEAT, *receipt_of(receipt), timeout, self._json(checkpoint)
        )
        return value

    async def heartbeat_many(
        self,
        receipts: Iterable[AnyReceipt],
        timeout: timedelta | None = None,
        *,
        checkpoints: Sequence[Any] | None = None,
        connection: Connection | None = None,
    ) -> list[Lease]:
        """Renew many leases in one statement.

        Args:
            receipts: jobs, or their (id, token) pairs.
            timeout: as in `heartbeat`, for all of them.
            checkpoints: one for each receipt, as in `heartbeat`.

        Returns:
            The leases; those that are missing are lost. One whose job another transaction has
            locked is not renewed, and comes as it is; with a checkpoint the call waits instead.
        """
        ids, tokens = _columns(receipts)
        notes = self._json_each(checkpoints)
        rows = await self._fetch(connection, _sql.HEARTBEAT_MANY, ids, tokens, timeout, notes)
        return [Lease(**dict(row.items())) for row in rows]

    async def complete(
        self, receipt: AnyReceipt, result: Any = None, *, connection: Connection | None = None
    ) -> bool:
        """End a job with success.

        In the transaction that writes the job's effects (`connection`) it makes them happen
        exactly once: roll back when it returns False.

        Args:
            receipt: the job, or its (id, token).
            result: anything `dumps` takes, kept with the finished job; None for none.

        Returns:
            False if the lease is lost.
        """
        value: bool = await self._value(
            connection, _sql.COMPLETE, *receipt_of(receipt), self._json(result)
        )
        return value

    async def complete_many(
        self,
        receipts: Iterable[AnyReceipt],
        results: Sequence[Any] | None = None,
        *,
        connection: Connection | None = None,
    ) -> list[JobId]:
        """End many jobs with success in one statement.

        Args:
            receipts: jobs, or their (id, token) pairs.
            results: one for each receipt, as in `complete`; None for none at all.

        Returns:
            The ids of the completed jobs; the leases of those that are missing are lost.
        """
        ids, tokens = _columns(receipts)
        return await self._column(
            connection, _sql.COMPLETE_MANY, ids, tokens, self._json_each(results)
        )

    async def complete_and_dequeue(
        self,
        receipts: Iterable[AnyReceipt],
        batch: int = 1,
        timeout: timedelta = DEFAULT_TIMEOUT,
        *,
        worker: str | None = None,
        connection: Connection | None = None,
    ) -> list[Job]:
        """End the jobs of the last batch and claim the next one, in one round trip and commit.

        Args:
            receipts: jobs, or their (id, token) pairs; may be empty.
            batch: the most jobs to claim.
            timeout: the lease, as in `dequeue`.
            worker: a name for the claimer, to be seen by operators; at most 200 characters.

        Returns:
            The claimed jobs, highest priority first, then oldest first.

        Raises:
            LeaseLost: a lease is lost. Then nothing was completed and nothing claimed.
        """
        return await self._jobs(
            connection,
            _sql.COMPLETE_AND_DEQUEUE,
            *_columns(receipts),
            batch,
            timeout,
            self.name,
            worker,
        )

    async def fail(
        self,
        receipt: AnyReceipt,
        error: str | None = None,
        *,
        retry_in: timedelta | None = None,
        retryable: bool = True,
        cancel: bool = False,
        connection: Connection | None = None,
    ) -> FailOutcome | None:
        """End a try of a job without success.

        Args:
            receipt: the job, or its (id, token).
            error: what went wrong, kept as `last_error`.
            retry_in: when to try again; None backs off as the queue is configured.
            retryable: False gives the job up at once.
            cancel: True ends it as `Queue.cancel` would; not together with `retry_in`.

        Returns:
            "scheduled" for the next try, "dead" after the last, "cancelled" if that was asked for,
            here or by `Queue.cancel`; None if the lease is lost.
        """
        value: FailOutcome | None = await self._value(
            connection, _sql.FAIL, *receipt_of(receipt), error, retry_in, retryable, cancel
        )
        return value

    async def release(
        self,
        receipt: AnyReceipt,
        delay: timedelta = _NOTHING,
        *,
        connection: Connection | None = None,
    ) -> bool:
        """Give a job back as if it had not been claimed: the attempt does not count.

        Args:
            receipt: the job, or its (id, token).
            delay: not to be claimed again before; by default at once.

        Returns:
            False if the lease is lost.
        """
        value: bool = await self._value(connection, _sql.RELEASE, *receipt_of(receipt), delay)
        return value

    async def release_unheld(
        self,
        worker: str,
        tokens: Iterable[Token],
        pid: int | None = None,
        *,
        connection: Connection | None = None,
    ) -> list[JobId]:
        """Give back what is leased to a worker, of whichever queue, that it does not hold.

        For a worker that may have lost the answer to a claim, and for whoever outlives one. A
        claim that is still under way is not seen: call it once more.

        Args:
            worker: its name.
            tokens: of all jobs that it has begun and not ended.
            pid: only what the server's process of that number has claimed, where several workers
                share a name.

        Returns:
            The ids of the jobs; their attempts do not count.
        """
        return await self._column(connection, _sql.RELEASE_UNHELD, worker, list(tokens), pid)

    async def outcome(
        self, receipt: AnyReceipt, *, connection: Connection | None = None
    ) -> ReceiptState | None:
        """Tell what became of a receipt, for whoever has lost the answer to a call with it.

        Args:
            receipt: the job, or its (id, token).

        Returns:
            How the job ended with it, that it is still good ("active"), or that the job goes on or
            has ended without it ("lost"): it was given back or failed with it, or its lease was
            lost. None if nothing is kept of the job.
        """
        value: ReceiptState | None = await self._value(
            connection, _sql.OUTCOME, *receipt_of(receipt)
        )
        return value

    async def reclaim(
        self,
        max: int = 1000,  # noqa: A002 the function's own argument name
        *,
        all_queues: bool = False,
        connection: Connection | None = None,
    ) -> list[JobId]:
        """Take expired leases back now; `dequeue` does it by itself.

        Args:
            max: the most leases to take back.
            all_queues: of every queue instead of this one.

        Returns:
            The ids of the jobs that are ready again, or dead after their last attempt.
        """
        return await self._column(connection, _sql.RECLAIM, None if all_queues else self.name, max)

    async def pop(self, batch: int = 1, *, connection: Connection | None = None) -> list[Job]:
        """Remove jobs, for good when the transaction commits.

        A rollback or a lost connection brings them back. Without `connection` they are gone
        when the method returns.

        Args:
            batch: the most jobs to remove.
            connection: joins its transaction.

        Returns:
            The removed jobs.
        """
        return await self._jobs(connection, _sql.POP, batch, self.name)

    async def claim(
        self,
        job_id: int,
        timeout: timedelta = DEFAULT_TIMEOUT,
        *,
        worker: str | None = None,
        connection: Connection | None = None,
    ) -> Job:
        """Claim one given job, of whichever queue, or fail at once.

        Args:
            job_id: the job.
            timeout: the lease, as in `dequeue`.
            worker: a name for the claimer; at most 200 characters.

        Returns:
            The claimed job.

        Raises:
            JobHeld: somebody else holds it; `detail` says who, and until when.
            NotClaimable: it is scheduled, waiting, expired, to be cancelled, without an attempt
                left, or in a queue that is paused or at a limit.
            UnknownJob: it does not exist or has ended.
        """
        return (await self._jobs(connection, _sql.CLAIM, job_id, timeout, worker))[0]

    # Operate

    async def create(
        self,
        *,
        max_attempts: int = 20,
        backoff_base: timedelta = timedelta(seconds=1),
        backoff_factor: float = 2,
        backoff_max: timedelta = timedelta(hours=1),
        keep_completed: timedelta = timedelta(days=1),
        keep_dead: timedelta = timedelta(days=30),
        max_active: int = 0,
        dedupe_for: timedelta = _NOTHING,
        group_concurrency: int = 1,
        group_on_dead: GroupOnDead = "continue",
        rate_limit: int = 0,
        rate_interval: timedelta = timedelta(seconds=1),
        rate_burst: int = 0,
        priority_ageing: timedelta = _NOTHING,
        max_ready: int = 0,
        max_payload: int = 0,
        if_not_exists: bool = False,
        description: str | None = None,
        connection: Connection | None = None,
    ) -> bool:
        """Create the queue.

        Args:
            max_attempts: tries until a job is dead.
            backoff_base: the wait after the first failed try.
            backoff_factor: by which the wait grows with every try.
            backoff_max: the longest wait.
            keep_completed: how long completed jobs are kept; zero keeps none.
            keep_dead: how long dead and cancelled jobs are kept.
            max_active: the most jobs at work at the same time; 0 for no limit.
            dedupe_for: how long a dedupe key stays taken after its job has completed.
            group_concurrency: how many jobs of one group may be at work at the same time.
            group_on_dead: "continue" lets the next job of a group run when one has died, "block"
                waits until that one is retried or `unblock` is called.
            rate_limit: the most jobs that start per `rate_interval`; 0 for no limit.
            rate_interval: see there; a second by default.
            rate_burst: the most jobs that start at once after a pause; 0 for `rate_limit`.
            priority_ageing: for each such time that its oldest job has been ready a priority counts
                as one higher; zero for never.
            max_ready: with so many ready jobs `enqueue` raises; 0 for no bound.
            max_payload: the most bytes of a payload as JSON text; 0 for no bound.
            if_not_exists: leave a queue of this name as it is, whatever its settings.
            description: what the queue is for. Needs pgq 0.2 in the database.

        Returns:
            False if there is one, with `if_not_exists`.

        Raises:
            QueueExists: there is one of this name.
        """
        value: bool = await self._value(
            connection,
            _sql.CREATE_QUEUE if description is None else _sql.CREATE_DESCRIBED_QUEUE,
            self.name,
            max_attempts,
            backoff_base,
            backoff_factor,
            backoff_max,
            keep_completed,
            keep_dead,
            max_active,
            dedupe_for,
            group_concurrency,
            group_on_dead,
            rate_limit,
            rate_interval,
            rate_burst,
            priority_ageing,
            max_ready,
            max_payload,
            if_not_exists,
            *([] if description is None else [description]),
        )
        return value

    async def configure(
        self,
        *,
        max_attempts: int | None = None,
        backoff_base: timedelta | None = None,
        backoff_factor: float | None = None,
        backoff_max: timedelta | None = None,
        keep_completed: timedelta | None = None,
        keep_dead: timedelta | None = None,
        max_active: int | None = None,
        dedupe_for: timedelta | None = None,
        group_concurrency: int | None = None,
        group_on_dead: GroupOnDead | None = None,
        rate_limit: int | None = None,
        rate_interval: timedelta | None = None,
        rate_burst: int | None = None,
        priority_ageing: timedelta | None = None,
        max_ready: int | None = None,
        max_payload: int | None = None,
        description: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Change settings of the queue: the arguments of `create`, None leaves one as it is.

        An empty description removes it.
        """
        await self._value(
            connection,
            _sql.CONFIGURE_QUEUE if description is None else _sql.CONFIGURE_DESCRIBED_QUEUE,
            self.name,
            max_attempts,
            backoff_base,
            backoff_factor,
            backoff_max,
            keep_completed,
            keep_dead,
            max_active,
            dedupe_for,
            group_concurrency,
            group_on_dead,
            rate_limit,
            rate_interval,
            rate_burst,
            priority_ageing,
            max_ready,
            max_payload,
            *([] if description is None else [description]),
        )

    async def drop(self, *, force: bool = False, connection: Connection | None = None) -> None:
        """Drop the queue.

        Args:
            force: drop its live and dead jobs with it.

        Raises:
            QueueInUse: it holds jobs, and `force` is False.
            JobHeld: a transaction that has used pgq stayed open meanwhile.
            WrongTransaction: in a transaction under REPEATABLE READ or SERIALIZABLE.
        """
        await self._value(connection, _sql.DROP_QUEUE, self.name, force)

    async def pause(self, *, connection: Connection | None = None) -> None:
        """Hand out no more jobs of the queue; those at work go on."""
        await self._value(connection, _sql.PAUSE, self.name)

    async def resume(self, *, connection: Connection | None = None) -> None:
        """Hand out jobs of the queue again."""
        await self._value(connection, _sql.RESUME, self.name)

    async def unblock(self, group_key: str, *, connection: Connection | None = None) -> bool:
        """Let a group go on that is blocked because one of its jobs has died.

        Args:
            group_key: the group.

        Returns:
            False if the group is not blocked.
        """
        return bool(await self._value(connection, _sql.UNBLOCK, self.name, group_key))

    async def purge(
        self,
        states: Sequence[JobState] = ("ready", "scheduled", "waiting"),
        max: int | None = None,  # noqa: A002 the function's own argument name
        *,
        connection: Connection | None = None,
    ) -> int:
        """Delete the jobs of the queue that are in one of the given states.

        Args:
            states: "dead", "completed" and "cancelled" may be named too; active jobs never go.
            max: the most jobs; None for all.

        Returns:
            How many were deleted.
        """
        value: int = await self._value(connection, _sql.PURGE, self.name, states, max)
        return value

    async def get(self, job_id: int, *, connection: Connection | None = None) -> JobSnapshot | None:
        """Look at one job, live or finished: its state, its result, its last error.

        Args:
            job_id: the job, of whichever queue.

        Returns:
            The job; None if it is unknown, no longer kept, or not to be seen by the caller.
        """
        rows = await self._fetch(connection, _sql.GET, job_id)
        return next(iter(jobs_of(JobSnapshot, rows, self._loads)), None)

    async def cancel(
        self, job_id: int, *, force: bool = False, connection: Connection | None = None
    ) -> bool:
        """Cancel a job; of one that is at work, tell its worker.

        Args:
            job_id: the job, of whichever queue.
            force: also cancels a job that is at work; its receipt is good for nothing any more.

        Returns:
            False if it was not cancelled: it has ended, or it is at work, and then its heartbeat
            says `cancel_requested` and there is no other attempt.
        """
        value: bool = await self._value(connection, _sql.CANCEL, job_id, force)
        return value

    async def cancel_key(
        self, dedupe_key: str, *, force: bool = False, connection: Connection | None = None
    ) -> bool:
        """Cancel the live job of the queue that has a dedupe key, as `cancel` does."""
        value: bool = await self._value(connection, _sql.CANCEL_KEY, self.name, dedupe_key, force)
        return value

    async def cancel_all(
        self,
        *,
        force: bool = False,
        max: int | None = None,  # noqa: A002 the function's own argument name
        connection: Connection | None = None,
    ) -> int:
        """Cancel all live jobs of the queue, as `cancel` does.

        Args:
            force: as in `cancel`.
            max: the most jobs; None for all.

        Returns:
            How many were cancelled.
        """
        value: int = await self._value(connection, _sql.CANCEL_ALL, self.name, force, max)
        return value

    async def retry(self, job_id: int, *, connection: Connection | None = None) -> bool:
        """Make a dead job ready again.

        Args:
            job_id: the job, of whichever queue.

        Returns:
            False if there is no such dead job.
        """
        value: bool = await self._value(connection, _sql.RETRY, job_id)
        return value

    async def retry_dead(
        self,
        max: int = 1000,  # noqa: A002 the function's own argument name
        *,
        connection: Connection | None = None,
    ) -> list[JobId]:
        """Make the dead jobs of the queue ready again.

        Args:
            max: the most jobs.

        Returns:
            Their ids.
        """
        return await self._column(connection, _sql.RETRY_DEAD, self.name, max)

    async def schedule(
        self,
        name: str,
        cron: str,
        payload: Any = _NO_PAYLOAD,
        *,
        timezone: str = "UTC",
        priority: int = 0,
        max_attempts: int | None = None,
        headers: Mapping[str, Any] | None = None,
        missed: Missed = "once",
        connection: Connection | None = None,
    ) -> datetime:
        """Add a job to the queue at the times that a cron expression names.

        Args:
            name: of the schedule; one of that name is replaced, in whichever queue it is.
            cron: the five fields of crontab(5), or "@hourly" and the like.
            payload: of each job; an empty object by default.
            timezone: whose local time the expression is about.
            priority: as in `enqueue`.
            max_attempts: as in `enqueue`.
            headers: as in `enqueue`; "pgq_schedule" and "pgq_scheduled_at" are added.
            missed: what becomes of times at which nobody used the queue: "once" adds one job for
                all of them, "all" one for each, "skip" none if it is more than a minute late.

        Returns:
            The first of the times; a past one if it was missed, and the schedule was there
            with the same expression and time zone.
        """
        value: datetime = await self._value(
            connection,
            _sql.SCHEDULE,
            name,
            cron,
            self._dumps(payload),
            self.name,
            timezone,
            priority,
            max_attempts,
            self._headers(headers),
            missed,
        )
        return value

    async def unschedule(self, name: str, *, connection: Connection | None = None) -> bool:
        """Remove a schedule, of whichever queue; False if there is none of that name."""
        return bool(await self._value(connection, _sql.UNSCHEDULE, name))

    async def pause_schedule(self, name: str, *, connection: Connection | None = None) -> bool:
        """Let a schedule add no more jobs; False if there is none of that name."""
        return bool(await self._value(connection, _sql.PAUSE_SCHEDULE, name))

    async def resume_schedule(self, name: str, *, connection: Connection | None = None) -> bool:
        """Let a paused schedule go on with its next time; False if there is none of that name."""
        return bool(await self._value(connection, _sql.RESUME_SCHEDULE, name))

    async def grant(
        self, role: str, privileges: Sequence[Privilege], *, connection: Connection | None = None
    ) -> None:
        """Give a role privileges on the queue; of `Queue(..., "*")`, on all queues.

        Args:
            role: the role, or "public".
            privileges: what it may do.
        """
        await self._value(connection, _sql.GRANT, self.name, role, privileges)

    async def revoke(
        self,
        role: str,
        privileges: Sequence[Privilege] = ("enqueue", "consume", "observe", "manage"),
        *,
        connection: Connection | None = None,
    ) -> None:
        """Take back what `grant` gave, by default all of it."""
        await self._value(connection, _sql.REVOKE, self.name, role, privileges)

    async def watch(
        self,
        table: str,
        *,
        condition: str | None = None,
        events: Sequence[Literal["insert", "update"]] = ("insert",),
        dedupe: bool = False,
        connection: Connection | None = None,
    ) -> None:
        """Let each row that is written to a table add a job in the same transaction.

        The payload has the keys "table", "operation" and "key", the columns of the primary key.

        Args:
            table: the table, as in SQL: with its schema, quoted where needed.
            condition: SQL about NEW (and OLD) that a row must meet; not for input of others.
            events: which statements add jobs.
            dedupe: add none while one for the same row lives.

        Raises:
            NotPermitted: the owner of the table needs the privilege "enqueue".
            NotClaimable: the table has no primary key.
        """
        await self._value(connection, _sql.WATCH, table, self.name, condition, list(events), dedupe)

    async def unwatch(self, table: str, *, connection: Connection | None = None) -> bool:
        """End what `watch` began; False if the table was not watched for the queue."""
        return bool(await self._value(connection, _sql.UNWATCH, table, self.name))

    # Sleep

    async def channel(
        self, name: str | None = None, *, connection: Connection | None = None
    ) -> str:
        """Return the channel to LISTEN on for jobs of the queue, or of another one."""
        value: str = await self._value(connection, _sql.CHANNEL, name or self.name)
        return value

    async def wait(
        self,
        queues: Sequence[str] | None = None,
        max_wait: timedelta = DEFAULT_TIMEOUT,
        *,
        connection: Connection,
    ) -> timedelta:
        """Return how long a session with nothing to do may sleep until a notification.

        `Worker` does all that is needed; see `pgq_wait` for what others have to do.

        Args:
            queues: sleep for these instead of this queue.
            max_wait: the longest sleep.
            connection: the one that listens, outside a transaction.

        Returns:
            Zero if there is something to claim now.
        """
        value: timedelta = await self._value(
            connection, _sql.WAIT, [self.name] if queues is None else queues, max_wait
        )
        return value

    async def wake(self, *, connection: Connection) -> None:
        """End what `wait` began: nobody needs to notify that connection any more."""
        await self._value(connection, _sql.WAKE)

    async def maintain(self, *, connection: Connection | None = None) -> None:
        """Do the extension's maintenance now; ordinary calls do it by themselves.

        Raises:
            WrongTransaction: the transaction is not READ COMMITTED.
        """
        await self._value(connection, _sql.MAINTAIN)

    async def version(self, *, connection: Connection | None = None) -> str:
        """Return the version of the installed extension."""
        value: str = await self._value(connection, _sql.VERSION)
        return value

    # One way to the server

    def _is_in_transaction(self, connection: Connection | None) -> bool:
        executor = self._executor if connection is None else connection
        return not isinstance(executor, asyncpg.Pool) and executor.is_in_transaction()

    async def _fetch(
        self, connection: Connection | None, statement: str, *args: object
    ) -> list[asyncpg.Record]:
        executor = self._executor if connection is None else connection
        if isinstance(executor, asyncpg.Pool):
            acquired = await acquire(executor)
            try:
                return await self._fetch(acquired, statement, *args)
            finally:
                with suppress(Exception):  # a connection that breaks then has answered before
                    await executor.release(acquired)
        if not hasattr(executor, "fetch"):
            expect("connection", executor, asyncpg.Pool, asyncpg.Connection)
        if statement in _sql.JOINING:
            _check_begun(executor)
        try:
            return await executor.fetch(_sql.in_schema(statement, self._schema), *args)
        except asyncpg.PostgresError as exc:
            error = translate(exc, statement)
            if error is None:
                raise
            raise error from exc
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as exc:
            if not _is_lost(executor, exc):
                raise
            raise ConnectionLost("the connection to the server is lost") from exc

    async def _value(self, connection: Connection | None, statement: str, *args: object) -> Any:
        return (await self._fetch(connection, statement, *args))[0][0]

    async def _column(
        self, connection: Connection | None, statement: str, *args: object
    ) -> list[JobId]:
        return [row["id"] for row in await self._fetch(connection, statement, *args)]

    async def _jobs(
        self, connection: Connection | None, statement: str, *args: object
    ) -> list[Job]:
        return jobs_of(Job, await self._fetch(connection, statement, *args), self._loads)

    def _json(self, value: Any) -> str | None:
        return None if value is None else self._dumps(value)

    def _headers(self, headers: Mapping[str, Any] | None) -> str | None:
        if headers is None:
            return None
        expect("headers", headers, Mapping)
        return self._dumps(dict(headers))

    def _json_each(self, values: Sequence[Any] | None) -> list[str | None] | None:
        return None if values is None else [self._json(value) for value in values]


async def acquire(pool: asyncpg.Pool[Any]) -> PooledConnection:
    """Take a connection from a pool; raises `ConnectionLost` if it cannot connect."""
    try:
        return await pool.acquire()
    except TimeoutError:
        raise
    except asyncpg.PostgresError as exc:
        error = translate(exc)
        if error is None:
            raise
        raise error from exc
    except (OSError, asyncpg.InternalClientError) as exc:
        raise ConnectionLost(f"cannot connect to the server: {exc}") from exc


def _is_lost(connection: Connection, error: Exception) -> bool:
    """Tell whether an error means that a connection is gone.

    asyncpg raises InternalClientError when a call begins as the server ends the session, and
    InterfaceError when it has ended, or when its pool has taken it back for that.
    """
    if not isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, TimeoutError)
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True


def _aware(name: str, time: datetime | None) -> datetime | None:
    if time is None:
        return None
    expect(name, time, datetime)
    if time.utcoffset() is None:
        raise InvalidArgument(f"{name} has no time zone: a naive datetime is not a time")
    return time


def _check_begun(executor: Executor) -> None:
    """Refuse the connection of a session of SQLAlchemy that has not begun its transaction yet.

    SQLAlchemy sends BEGIN with its own first statement. What ran before would have committed by
    itself, and outlive a rollback of the session. Its connections are those of no pool of asyncpg;
    nothing else tells them from the application's own.
    """
    if (
        _LATE_TO_BEGIN in sys.modules
        and isinstance(executor, asyncpg.Connection)
        and not isinstance(executor, asyncpg.pool.PoolConnectionProxy)
        and not executor.is_in_transaction()
    ):
        raise WrongTransaction(
            "no transaction is open on the connection, and SQLAlchemy may own it",
            detail="SQLAlchemy begins a transaction with its first statement. A job that is"
            " enqueued before would commit by itself, and stay when the session rolls back.",
            hint='With a session: await session.execute(text("select 1")) first. With a connection'
            " of your own: async with connection.transaction().",
        )


def _start(run_at: datetime | None, delay: timedelta | None) -> datetime | None:
    if delay is not None:
        expect("delay", delay, timedelta)
        if run_at is not None:
            raise InvalidArgument("run_at and delay are both given: pass one of them")
        if delay < _NOTHING:
            raise InvalidArgument("delay must not be negative")
    return _aware("run_at", run_at)


def _columns(receipts: Iterable[AnyReceipt]) -> tuple[list[int], list[int]]:
    pairs = [receipt_of(receipt) for receipt in receipts]
    return [job_id for job_id, _ in pairs], [token for _, token in pairs]
