from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import asyncpg

from pgq import _sql
from pgq._calls import Calls, Connection, Dumps, Executor
from pgq._driver import Driver, SessionDriver
from pgq._enqueue import Enqueue, NewJobs, sent
from pgq._errors import InvalidArgument, expect
from pgq._models import (
    AfterOnDead,
    AnyReceipt,
    FailOutcome,
    Job,
    JobId,
    JobSnapshot,
    Lease,
    OnDuplicate,
    ReceiptState,
    Token,
    receipt_of,
)
from pgq._rows import Loads, jobs_of, read_json

OnEnqueued: TypeAlias = Callable[[str, Any, Sequence[JobId]], Awaitable[None]]

DEFAULT_TIMEOUT: Final = timedelta(seconds=30)
_NOTHING: Final = timedelta(0)

# Called with the queue and the ids of jobs that were enqueued, before the caller hears of them: see
# pgq.testing.
on_enqueued: ContextVar[OnEnqueued | None] = ContextVar("on_enqueued", default=None)


class Queue(Calls):
    """One queue, for who adds its jobs and who works them off; `Admin` is for who operates it.

    It has a method for each function of the extension that is about jobs. A method runs one
    statement. Without `connection` it takes one from the pool and commits; with `connection` it
    joins the transaction that is open there. Intervals are `timedelta`, times are aware
    `datetime`. Every method raises `UnknownQueue`, `InvalidArgument`,
    `NotPermitted` and `NotInstalled` where they apply, `ConnectionLost` where there is no
    connection any more, and lets other errors of the server itself pass as asyncpg raises them.
    What adds or ends a job raises `WrongTransaction` on a connection that is not of a pool and has
    no open transaction, in a process that uses SQLAlchemy's asyncpg dialect: its sessions begin
    late.

    Args:
        executor: an asyncpg pool or connection; it needs no codec.
        name: the queue; "default" exists from the start, `Admin.create_queue` makes others.
        schema: where the pgq functions are; None (the default) leaves it to search_path.
        dumps: makes JSON text of payloads, headers and results; `json.dumps` by default.
        loads: reads JSON text; by default as `json.loads` does. What it cannot read is an
            `Unreadable` in its job.
    """

    def __init__(
        self,
        executor: Executor | Driver,
        name: str = "default",
        *,
        schema: str | None = None,
        dumps: Dumps = json.dumps,
        loads: Loads = read_json,
    ) -> None:
        super().__init__(executor, schema=schema, dumps=dumps)
        self.name = name
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
            max_attempts: attempts until the job is dead; None takes the queue's.
            headers: what goes beside the payload; None for nothing.
            on_duplicate: what happens to the live job with the same dedupe_key: "keep" leaves it,
                "replace" gives it this payload and run_at unless it is active, "error" raises.
            expires_at: a job that has not started by then is dead and does not run.
            after: ids of jobs; it waits until all of them have completed.
            after_on_dead: when one of those dies or is cancelled, "die" makes this one dead, "wait"
                waits until that one is retried and completes, "run" counts it as completed.
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

        async def send(new: NewJobs) -> list[JobId]:
            [one] = new.payloads
            job_id: JobId = await self._value(
                connection,
                _sql.ENQUEUE,
                self._dumps(one),
                new.queue,
                priority,
                _start(run_at, delay),
                dedupe_key,
                group_key,
                max_attempts,
                self._headers(new.headers or None),
                on_duplicate,
                _aware("expires_at", expires_at),
                after,
                after_on_dead,
                delay,
            )
            return [job_id]

        [job_id] = await self._send(send, [payload], headers, connection)
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

        async def send(new: NewJobs) -> list[JobId]:
            return await self._column(
                connection,
                _sql.ENQUEUE_MANY,
                [self._dumps(payload) for payload in new.payloads],
                new.queue,
                priority,
                _start(run_at, delay),
                dedupe_keys,
                group_keys,
                max_attempts,
                self._headers(new.headers or None),
                on_duplicate,
                _aware("expires_at", expires_at),
                after,
                after_on_dead,
                delay,
            )

        return await self._send(send, [*payloads], headers, connection)

    async def _send(
        self,
        send: Enqueue,
        payloads: Sequence[Any],
        headers: Mapping[str, Any] | None,
        connection: Connection | None,
    ) -> list[JobId]:
        added: list[tuple[str, Sequence[JobId]]] = []  # middleware may choose another queue

        async def send_and_note(new: NewJobs) -> Sequence[JobId]:
            ids = await send(new)
            added.append((new.queue, ids))
            return ids

        new = NewJobs(queue=self.name, payloads=payloads, headers=headers or {})
        ids = [*await sent(send_and_note, new)]
        call = on_enqueued.get()
        executor = self._executor if connection is None else connection
        if call is not None and (
            isinstance(executor, SessionDriver) or not isinstance(executor, Driver)
        ):
            for queue, those in added:
                await call(queue, executor, those)
        return ids

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
            raise ValueError("durable=False needs a call outside a transaction")
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
        return [Lease(**dict(zip(row.keys(), row.values(), strict=True))) for row in rows]

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
        """End an attempt of a job without success.

        Args:
            receipt: the job, or its (id, token).
            error: what went wrong, kept as `last_error`.
            retry_in: when to try again; None backs off as the queue is configured.
            retryable: False gives the job up at once.
            cancel: True ends it as `Queue.cancel` would; not together with `retry_in`.

        Returns:
            "scheduled" for the next attempt, "dead" after the last, "cancelled" if that was asked
            for, here or by `Queue.cancel`; None if the lease is lost.
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

    # One job

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

    async def move(
        self,
        job_id: int,
        *,
        queue: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        connection: Connection | None = None,
    ) -> bool:
        """Give a job that is not at work another queue, priority or time.

        Args:
            job_id: the job, of whichever queue, and of no group.
            queue: its new queue; None leaves it where it is.
            priority: its new priority; None leaves it as it is.
            run_at: when it is due; a time that has passed means now; None leaves it as it is.

        Returns:
            False if it is at work, or has ended.

        Raises:
            DuplicateKey: a live job of the new queue has its dedupe key.
            NotSupported: it is of a group.
            NotClaimable: it is older than the new queue.
            QueueFull: the new queue has as many ready jobs as it may have.
            PayloadTooLong: for the new queue; or that has 1,000 other priorities.
        """
        value: bool = await self._value(connection, _sql.MOVE, job_id, queue, priority, run_at)
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
        connection: Connection | None = None,
    ) -> timedelta:
        """Return how long a session with nothing to do may sleep until a notification.

        `Worker` does all that is needed; see `pgq_wait` for what others have to do.

        Args:
            queues: sleep for these instead of this queue.
            max_wait: the longest sleep.
            connection: the one that listens, outside a transaction; None takes the queue's.

        Returns:
            Zero if there is something to claim now.

        Raises:
            ValueError: no connection is given, and the queue has a pool.
        """
        self._check_listens(connection)
        value: timedelta = await self._value(
            connection, _sql.WAIT, [self.name] if queues is None else queues, max_wait
        )
        return value

    async def wake(self, *, connection: Connection | None = None) -> None:
        """End what `wait` began: nobody needs to notify that connection any more."""
        self._check_listens(connection)
        await self._value(connection, _sql.WAKE)

    def _check_listens(self, connection: Connection | None) -> None:
        if connection is None and isinstance(self._executor, asyncpg.Pool):
            raise ValueError("a pool does not listen: pass the connection that does")

    def _is_in_transaction(self, connection: Connection | None) -> bool:
        executor = self._executor if connection is None else connection
        return not isinstance(executor, asyncpg.Pool) and executor.is_in_transaction()

    async def _jobs(
        self, connection: Connection | None, statement: str, *args: object
    ) -> list[Job]:
        return jobs_of(Job, await self._fetch(connection, statement, *args), self._loads)

    def _json_each(self, values: Sequence[Any] | None) -> list[str | None] | None:
        return None if values is None else [self._json(value) for value in values]


def _aware(name: str, time: datetime | None) -> datetime | None:
    if time is None:
        return None
    expect(name, time, datetime)
    if time.utcoffset() is None:
        raise InvalidArgument(f"{name} has no time zone: a naive datetime is not a time")
    return time


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
