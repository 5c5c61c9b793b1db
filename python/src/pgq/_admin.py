from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pgq import _sql
from pgq._calls import Calls, Connection
from pgq._models import GroupOnDead, JobId, JobState, Missed, Privilege

_NOTHING: Final = timedelta(0)
_NO_PAYLOAD: Final[Mapping[str, Any]] = {}


class Admin(Calls):
    """What operators do with queues as a whole, schedules, watched tables and privileges.

    Methods are named as the functions of the extension. They take connections, and raise errors,
    as those of `Queue` do.

    Args:
        executor: an asyncpg pool or connection; it needs no codec.
        schema: where the pgq functions are; None (the default) leaves it to search_path.
        dumps: makes JSON text of the payloads and headers of schedules; `json.dumps` by default.
    """

    async def create_queue(
        self,
        name: str,
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
        """Create a queue.

        Args:
            name: of the queue.
            max_attempts: attempts until a job is dead.
            backoff_base: the wait after the first failed attempt.
            backoff_factor: by which the wait grows with every attempt.
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
            name,
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

    async def configure_queue(
        self,
        name: str,
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
        """Change settings of a queue: the arguments of `create_queue`; None leaves one as it is.

        An empty description removes it.
        """
        await self._value(
            connection,
            _sql.CONFIGURE_QUEUE if description is None else _sql.CONFIGURE_DESCRIBED_QUEUE,
            name,
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

    async def drop_queue(
        self, name: str, *, force: bool = False, connection: Connection | None = None
    ) -> None:
        """Drop a queue.

        Args:
            name: of the queue.
            force: drop its live and dead jobs with it.

        Raises:
            QueueInUse: it holds jobs, and `force` is False.
            JobHeld: a transaction that has used pgq stayed open meanwhile.
            WrongTransaction: in a transaction under REPEATABLE READ or SERIALIZABLE.
        """
        await self._value(connection, _sql.DROP_QUEUE, name, force)

    async def pause(self, queue: str, *, connection: Connection | None = None) -> None:
        """Hand out no more jobs of a queue; those at work go on."""
        await self._value(connection, _sql.PAUSE, queue)

    async def resume(self, queue: str, *, connection: Connection | None = None) -> None:
        """Hand out jobs of a queue again."""
        await self._value(connection, _sql.RESUME, queue)

    async def unblock(
        self, queue: str, group_key: str, *, connection: Connection | None = None
    ) -> bool:
        """Let a group go on that is blocked because one of its jobs has died.

        Args:
            queue: the queue.
            group_key: the group.

        Returns:
            False if the group is not blocked.
        """
        return bool(await self._value(connection, _sql.UNBLOCK, queue, group_key))

    async def purge(
        self,
        queue: str,
        states: Sequence[JobState] = ("ready", "scheduled", "waiting"),
        max: int | None = None,  # noqa: A002 the function's own argument name
        *,
        connection: Connection | None = None,
    ) -> int:
        """Delete the jobs of a queue that are in one of the given states.

        Args:
            queue: the queue.
            states: "dead", "completed" and "cancelled" may be named too; active jobs never go.
            max: the most jobs; None for all.

        Returns:
            How many were deleted.
        """
        value: int
        if max is None:  # as the release before knows it
            value = await self._value(connection, _sql.PURGE, queue, states)
        else:
            value = await self._value(connection, _sql.PURGE_SOME, queue, states, max)
        return value

    async def cancel_all(
        self,
        queue: str,
        *,
        force: bool = False,
        max: int | None = None,  # noqa: A002 the function's own argument name
        connection: Connection | None = None,
    ) -> int:
        """Cancel all live jobs of a queue, as `Queue.cancel` does.

        Args:
            queue: the queue.
            force: as in `Queue.cancel`.
            max: the most jobs; None for all.

        Returns:
            How many were cancelled.
        """
        value: int
        if max is None:  # as the release before knows it
            value = await self._value(connection, _sql.CANCEL_ALL, queue, force)
        else:
            value = await self._value(connection, _sql.CANCEL_SOME, queue, force, max)
        return value

    async def retry_dead(
        self,
        queue: str,
        max: int = 1000,  # noqa: A002 the function's own argument name
        *,
        connection: Connection | None = None,
    ) -> list[JobId]:
        """Make the dead jobs of a queue ready again.

        Args:
            queue: the queue.
            max: the most jobs.

        Returns:
            Their ids.
        """
        return await self._column(connection, _sql.RETRY_DEAD, queue, max)

    async def schedule(
        self,
        name: str,
        cron: str,
        payload: Any = _NO_PAYLOAD,
        queue: str = "default",
        *,
        timezone: str = "UTC",
        priority: int = 0,
        max_attempts: int | None = None,
        headers: Mapping[str, Any] | None = None,
        missed: Missed = "once",
        connection: Connection | None = None,
    ) -> datetime:
        """Add a job to a queue at the times that a cron expression names.

        Args:
            name: of the schedule; one of that name is replaced, in whichever queue it is.
            cron: the five fields of crontab(5), with one for seconds before them if there are six;
                "@hourly" and the like; or "@every 90 seconds", from a second to a week.
            payload: of each job; an empty object by default.
            queue: the queue.
            timezone: whose local time the expression is about.
            priority: as in `Queue.enqueue`.
            max_attempts: as in `Queue.enqueue`.
            headers: as in `Queue.enqueue`; "pgq_schedule" and "pgq_scheduled_at" are added.
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
            queue,
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

    async def run_schedule(
        self, name: str, *, connection: Connection | None = None
    ) -> JobId | None:
        """Add the job of a schedule now; return its id, or None if there is none of that name.

        Args:
            name: of the schedule, which may be paused; its next time stays.
            connection: in whose transaction the job is added.

        Raises:
            QueueFull: the queue has `max_ready` jobs.
            PayloadTooLong: the payload is longer than the `max_payload` of the queue.
        """
        value: JobId | None = await self._value(connection, _sql.RUN_SCHEDULE, name)
        return value

    async def grant(
        self,
        queue: str,
        role: str,
        privileges: Sequence[Privilege],
        *,
        connection: Connection | None = None,
    ) -> None:
        """Give a role privileges on a queue.

        Args:
            queue: the queue, or "*" for all queues.
            role: the role, or "public".
            privileges: what it may do.
        """
        await self._value(connection, _sql.GRANT, queue, role, privileges)

    async def revoke(
        self,
        queue: str,
        role: str,
        privileges: Sequence[Privilege] = ("enqueue", "consume", "observe", "manage"),
        *,
        connection: Connection | None = None,
    ) -> None:
        """Take back what `grant` gave, by default all of it."""
        await self._value(connection, _sql.REVOKE, queue, role, privileges)

    async def watch(
        self,
        table: str,
        queue: str = "default",
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
            queue: the queue.
            condition: SQL about NEW (and OLD) that a row must meet; not for input of others.
            events: which statements add jobs.
            dedupe: add none while one for the same row lives.

        Raises:
            NotPermitted: the owner of the table needs the privilege "enqueue".
            NotClaimable: the table has no primary key.
        """
        await self._value(connection, _sql.WATCH, table, queue, condition, list(events), dedupe)

    async def unwatch(
        self, table: str, queue: str = "default", *, connection: Connection | None = None
    ) -> bool:
        """End what `watch` began; False if the table was not watched for the queue."""
        return bool(await self._value(connection, _sql.UNWATCH, table, queue))

    async def reclaim(
        self,
        queue: str | None = None,
        max: int = 1000,  # noqa: A002 the function's own argument name
        *,
        connection: Connection | None = None,
    ) -> list[JobId]:
        """Take expired leases back now; maintenance does it by itself.

        Args:
            queue: the queue; None for all queues.
            max: the most leases to take back.

        Returns:
            The ids of the jobs that are ready again, or dead after their last attempt.
        """
        return await self._column(connection, _sql.RECLAIM, queue, max)

    async def maintain(self, *, connection: Connection | None = None) -> None:
        """Do the extension's maintenance now; ordinary calls do it by themselves.

        Raises:
            WrongTransaction: the transaction is not READ COMMITTED.
        """
        await self._value(connection, _sql.MAINTAIN)

    async def set_shard(self, shard: int, *, connection: Connection | None = None) -> None:
        """Make the database a shard of several, whose number is part of the ids of its jobs.

        Called once, before the first job; again with the same number it does nothing.

        Args:
            shard: its number, from 0 (as without the call) to 16383.

        Raises:
            NotClaimable: it is another shard, or jobs have been there.
        """
        await self._value(connection, _sql.SET_SHARD, shard)
