"""Batches: jobs that belong together, and the job that runs when all of them have ended."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from pgq import _sql
from pgq._calls import Calls, Connection, Executor
from pgq._driver import (
    AnyAsyncSession,
    AnySession,
    PsycopgConnection,
    driver_of,
    finish,
    sync_driver_of,
)
from pgq._errors import InvalidArgument
from pgq._models import Job, JobId, JobSnapshot, readable
from pgq._rows import Loads, jobs_of, read_json
from pgq._task import EnqueueOptions, JobHandle

AnyJob: TypeAlias = JobHandle[Any] | Job[Any] | int

BATCH_HEADER: Final = "pgq_batch"
_MOST: Final = 1_000_000  # jobs
_LOOKS: Final = 1000  # jobs that one statement looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How many jobs of a batch have ended, and how; `pending` jobs have not.

    Of `unknown` jobs nothing is kept any more, or the caller may not observe their queue.
    """

    total: int
    pending: int
    completed: int
    dead: int
    cancelled: int
    unknown: int


class Batch(Calls):
    """Jobs that belong together, of whichever queues and tasks.

    It stores nothing of its own: the job that runs at the end carries the ids in a header.

    Args:
        executor: a pool, a connection, or an AsyncSession or AsyncConnection of SQLAlchemy to look
            with; the caller needs the privilege "observe". None is enough for `at_end`, and for the
            methods that take a connection or session of their own.
        jobs: the jobs, as handles, as jobs or as ids; each once, and at most a million.
        schema: where the pgq functions are, as in `Queue`.
        loads: reads JSON text, as in `Queue`.
    """

    def __init__(
        self,
        executor: Executor | AnyAsyncSession | None,
        jobs: Iterable[AnyJob],
        *,
        schema: str | None = None,
        loads: Loads = read_json,
    ) -> None:
        looks: Any = executor
        if hasattr(executor, "run_sync"):  # only a session of SQLAlchemy has this
            looks = driver_of(looks)
        super().__init__(looks, schema=schema)
        self._loads = loads
        self.ids: tuple[JobId, ...] = tuple(sorted({_id(job) for job in jobs}))
        _check_size(len(self.ids))

    @classmethod
    def of(
        cls,
        executor: Executor | AnyAsyncSession | None,
        job: Job[Any],
        *,
        schema: str | None = None,
        loads: Loads = read_json,
    ) -> Batch:
        """Return the batch at whose end a job runs: its handler's, or as `Queue.get` saw it.

        Raises:
            InvalidArgument: it runs at the end of none, or the header that says so is malformed:
                whoever may enqueue can write any.
        """
        headers = readable("headers", job.headers)
        ranges = headers.get(BATCH_HEADER) if isinstance(headers, dict) else None
        if ranges is None:
            raise InvalidArgument(f"job {job.id} does not run at the end of a batch")
        try:
            pairs = msgspec.convert(ranges, list[tuple[int, int]])
        except msgspec.ValidationError as exc:
            raise InvalidArgument(f"the header {BATCH_HEADER} of job {job.id}: {exc}") from exc
        _check_size(sum(max(0, last - first + 1) for first, last in pairs))
        ids = (job_id for first, last in pairs for job_id in range(first, last + 1))
        return cls(executor, ids, schema=schema, loads=loads)

    def __repr__(self) -> str:
        return f"Batch of {len(self.ids)} jobs"

    @property
    def at_end(self) -> EnqueueOptions:
        """The options with which `Task.enqueue` adds the job that runs at the end.

        It runs when each job has completed, died or been cancelled. Add it in the transaction
        that adds the jobs, or a crash in between leaves them without it.
        """
        return {
            "after": self.ids,
            "after_on_dead": "run",
            "headers": {BATCH_HEADER: list(_ranges(self.ids))},
        }

    async def progress(self, *, connection: Connection | None = None) -> Progress:
        """Count the jobs by what became of them; it looks at each one, as `Queue.get` does."""
        states: Counter[str] = Counter()
        for ids in _chunks(self.ids):
            for row in await self._fetch(connection, _sql.COUNT_STATES, ids):
                states[row["state"]] += row["jobs"]
        ended = {state: states.pop(state, 0) for state in ("completed", "dead", "cancelled")}
        unknown = len(self.ids) - sum(states.values()) - sum(ended.values())
        return Progress(total=len(self.ids), pending=sum(states.values()), unknown=unknown, **ended)

    async def jobs(self, *, connection: Connection | None = None) -> AsyncGenerator[JobSnapshot]:
        """Yield what became of each job, in the order of their ids, without those unknown."""
        for ids in _chunks(self.ids):
            for job in await self._look(connection, ids):
                yield job

    def progress_sync(
        self, *, connection: PsycopgConnection | None = None, session: AnySession | None = None
    ) -> Progress:
        """Count the jobs from synchronous code, with what `Task.enqueue_sync` takes."""
        looks: Any = sync_driver_of(connection, session)
        return finish(self.progress(connection=looks))

    def jobs_sync(
        self, *, connection: PsycopgConnection | None = None, session: AnySession | None = None
    ) -> Iterator[JobSnapshot]:
        """Yield what became of each job, as `jobs` does, with what `Task.enqueue_sync` takes."""
        looks: Any = sync_driver_of(connection, session)
        for ids in _chunks(self.ids):
            yield from finish(self._look(looks, ids))

    async def _look(self, connection: Connection | None, ids: list[JobId]) -> list[JobSnapshot]:
        return jobs_of(JobSnapshot, await self._fetch(connection, _sql.GET_MANY, ids), self._loads)


def _check_size(size: int) -> None:
    if size > _MOST:
        raise InvalidArgument(f"a batch has at most {_MOST} jobs, not {size}")


def _id(job: AnyJob) -> JobId:
    return JobId(job) if isinstance(job, int) else job.id


def _ranges(ids: Sequence[JobId]) -> Iterator[list[int]]:
    """Yield the first and last of each run of ids: those of one statement are mostly one run."""
    for _, run in itertools.groupby(enumerate(ids), lambda numbered: numbered[1] - numbered[0]):
        members = [job_id for _, job_id in run]
        yield [members[0], members[-1]]


def _chunks(ids: Sequence[JobId]) -> Iterator[list[JobId]]:
    for first in range(0, len(ids), _LOOKS):
        yield [*ids[first : first + _LOOKS]]
