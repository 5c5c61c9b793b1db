"""Tasks: typed functions that handle the jobs of a queue, and enqueue them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
import types
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import asyncpg

from pgq._admin import Admin
from pgq._calls import Executor
from pgq._codec import Codec
from pgq._driver import (
    AnyAsyncSession,
    AnySession,
    PsycopgConnection,
    Recorder,
    Statement,
    driver_of,
    finish,
    sync_driver_of,
)
from pgq._errors import InvalidArgument, JobCancelled, JobDead, UnknownJob, expect
from pgq._models import AfterOnDead, Job, JobId, JobSnapshot, Missed, OnDuplicate
from pgq._outcomes import Outcome
from pgq._queue import Queue

if TYPE_CHECKING:
    from pgq._sync import SyncQueue

P = TypeVar("P")
R = TypeVar("R")

TASK_HEADER: Final = "task"
DEADLINE_HEADER: Final = "deadline"  # seconds
_FIRST_LOOK_SECONDS: Final = 0.02
_LAST_LOOK_SECONDS: Final = 1.0
_NO_CLASSES: Final = (Any, Annotated, types.UnionType)  # which are some in certain versions

RunIn: TypeAlias = Literal["loop", "thread", "process"]


def checked_deadline(seconds: object) -> float:
    """Return the deadline that the header of a job says; raises `InvalidArgument` if it is none."""
    # A bool is an int, but no time.
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise InvalidArgument(
            f'the header "{DEADLINE_HEADER}" must be a positive number of seconds, not {seconds!r}'
        )
    return float(seconds)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Tell whether a function, or the call of an object, is a coroutine."""
    called = getattr(function, "__call__", None)  # noqa: B004 of an object that is not a function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


class EnqueueOptions(TypedDict, total=False):
    """The arguments that `Task.enqueue` and `Task.enqueue_many` pass on to those of `Queue`."""

    priority: int
    run_at: datetime | None
    delay: timedelta | None
    max_attempts: int | None
    headers: Mapping[str, Any] | None
    on_duplicate: OnDuplicate
    expires_at: datetime | None
    after: Sequence[int] | None
    after_on_dead: AfterOnDead


@dataclass(frozen=True, slots=True)
class JobHandle(Generic[R]):
    """A job that was enqueued, and a way to its result.

    Its methods look with `connection`, a connection or pool, or with `session`, an AsyncSession or
    AsyncConnection of SQLAlchemy, in the transaction that is open there; by default with the pool
    that the job was enqueued with, or what `Task.handle` was given. Without any of them they raise
    ValueError.
    """

    id: JobId
    _task: Task[Any, R]
    _executor: Executor | None

    async def get(
        self, *, connection: Executor | None = None, session: AnyAsyncSession | None = None
    ) -> JobSnapshot | None:
        """Look at the job, as `Queue.get` does."""
        return await self._queue(connection, session).get(self.id)

    async def cancel(
        self,
        *,
        force: bool = False,
        connection: Executor | None = None,
        session: AnyAsyncSession | None = None,
    ) -> bool:
        """Cancel the job, or tell its worker, as `Queue.cancel` does."""
        return await self._queue(connection, session).cancel(self.id, force=force)

    async def result(
        self,
        timeout: timedelta | None = None,
        *,
        connection: Executor | None = None,
        session: AnyAsyncSession | None = None,
    ) -> R:
        """Wait until the job has ended and return what its handler returned.

        It looks again and again, every 20 ms at first and every second in the end. The caller
        needs the privilege "observe" on the queue, which has to keep completed jobs. In the
        transaction that has enqueued the job it would wait for ever.

        Args:
            timeout: how long to wait at most, 0 for one look; None (the default) waits for ever.
            connection: a pool or connection to look with.
            session: a session to look with, whose transaction stays open while it waits.

        Raises:
            JobDead: the job has died; `detail` says which.
            JobCancelled: it was cancelled; `detail` says which.
            UnknownJob: there is none of this id, or its queue keeps no completed jobs.
            InvalidPayload: the result is not of the type that the task declares.
            TimeoutError: it has not ended in time.
            ValueError: the job was enqueued on a connection, and none is given here.
        """
        expect("timeout", timeout, timedelta, types.NoneType)
        queue = self._queue(connection, session)
        seconds = None if timeout is None else timeout.total_seconds()
        job = await self._look(queue)
        if job.finished_at is None:
            job = await asyncio.wait_for(self._ended(queue), seconds)
        if job.state == "dead":
            raise JobDead(
                job.last_error or "the job has died",
                detail=f"Job {job.id} of queue {job.queue!r} is dead after {job.attempt} attempts.",
                hint="pgq_retry makes it ready again.",
            )
        if job.state == "cancelled":
            raise JobCancelled(
                job.last_error or "the job was cancelled",
                detail=f"Job {job.id} of queue {job.queue!r} was cancelled.",
            )
        return self._task.results.decode(job.result)

    def _queue(self, connection: Executor | None, session: AnyAsyncSession | None) -> Queue:
        if session is not None:
            call = self._task._on  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return call(connection, session)
        executor = connection or self._executor
        if executor is None:
            raise ValueError("the job was enqueued on a connection: pass one here, or a pool")
        return self._task.on(executor)

    async def _look(self, queue: Queue) -> JobSnapshot:
        job = await queue.get(self.id)
        if job is None:
            raise UnknownJob(f"there is no job {self.id}, or it has ended and was not kept")
        return job

    async def _ended(self, queue: Queue) -> JobSnapshot:
        pause = _FIRST_LOOK_SECONDS
        while True:
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            if (job := await self._look(queue)).finished_at is not None:
                return job
            pause = min(pause * 1.5, _LAST_LOOK_SECONDS)


class Task(Generic[P, R]):
    """A function that handles jobs of one queue, made by `task`.

    The jobs carry its name in the header "task", so a queue may have many tasks, and any client
    can enqueue for one. It can be called as the function itself, and is documented like it.

    Attributes:
        function: the decorated function.
        name: what the header says.
        queue: the name of the queue.
        deadline: how long an attempt may take; None for no bound.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        queue: str,
        *,
        name: str | None = None,
        deadline: timedelta | None = None,
        transaction: bool = False,
        process: bool = False,
        schema: str | None = None,
    ) -> None:
        expect("queue", queue, str)
        expect("deadline", deadline, timedelta, types.NoneType)
        if deadline is not None and deadline <= timedelta(0):
            raise ValueError("the deadline must be positive")
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name: str = name or _name(function)
        self.queue = queue
        self.deadline = deadline
        self.transaction = transaction
        self.run_in = _place(function, transaction=transaction, process=process)
        self.payloads: Codec[P] = Codec(_payload_kind(function, 2 if transaction else 1))
        self.results: Codec[R] = Codec(_result_kind(function))
        self._schema = schema

    def __call__(self, job: Job[P], *connection: Any) -> Any:
        """Call the function, as tests like it; a coroutine function returns what is to be awaited.

        Args:
            job: for example one of `pgq.testing.job`.
            connection: for a function with `transaction`, which the call does not begin.
        """
        return self.function(job, *connection)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, queue={self.queue!r})"

    def on(self, executor: Executor) -> Queue:
        """Return the task's queue on a pool or connection."""
        return Queue(executor, self.queue, schema=self._schema)

    def handle(self, job_id: int, *, connection: Executor | None = None) -> JobHandle[R]:
        """Return a handle of a job of this task that was enqueued before, or elsewhere.

        Args:
            job_id: the job.
            connection: a pool or connection for the methods of `JobHandle`.
        """
        return JobHandle(JobId(job_id), self, connection)

    @overload
    async def enqueue(
        self,
        payload: P,
        *,
        connection: Executor,
        dedupe_key: str | None = ...,
        group_key: str | None = ...,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[R]: ...

    @overload
    async def enqueue(
        self,
        payload: P,
        *,
        session: AnyAsyncSession,
        dedupe_key: str | None = ...,
        group_key: str | None = ...,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[R]: ...

    async def enqueue(
        self,
        payload: P,
        *,
        connection: Executor | None = None,
        session: AnyAsyncSession | None = None,
        dedupe_key: str | None = None,
        group_key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[R]:
        """Add a job for this task.

        Args:
            payload: what the handler finds in `job.payload`.
            connection: a connection of asyncpg, whose open transaction it joins, or a pool.
            session: an AsyncSession or AsyncConnection of SQLAlchemy, whose transaction it joins,
                in place of `connection`. This needs the extra "sqlalchemy".
            dedupe_key: as in `Queue.enqueue`.
            group_key: as in `Queue.enqueue`.
            options: the other arguments of `Queue.enqueue`.

        Raises:
            InvalidPayload: the payload is not of the type that the task declares.
            Error: what `Queue.enqueue` raises.
        """
        job_id = await self._on(connection, session).enqueue(
            self.payloads.encode(payload),
            dedupe_key=dedupe_key,
            group_key=group_key,
            **self._with_name(options),
        )
        return self.handle(job_id, connection=_pool(connection))

    @overload
    async def enqueue_many(
        self,
        payloads: Iterable[P],
        *,
        connection: Executor,
        dedupe_key: Callable[[P], str | None] | None = ...,
        group_key: Callable[[P], str | None] | None = ...,
        **options: Unpack[EnqueueOptions],
    ) -> list[JobHandle[R]]: ...

    @overload
    async def enqueue_many(
        self,
        payloads: Iterable[P],
        *,
        session: AnyAsyncSession,
        dedupe_key: Callable[[P], str | None] | None = ...,
        group_key: Callable[[P], str | None] | None = ...,
        **options: Unpack[EnqueueOptions],
    ) -> list[JobHandle[R]]: ...

    async def enqueue_many(
        self,
        payloads: Iterable[P],
        *,
        connection: Executor | None = None,
        session: AnyAsyncSession | None = None,
        dedupe_key: Callable[[P], str | None] | None = None,
        group_key: Callable[[P], str | None] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[JobHandle[R]]:
        """Add many jobs for this task in one statement.

        Args:
            payloads: one for each job.
            connection: a connection of asyncpg, whose open transaction it joins, or a pool.
            session: in place of `connection`, as in `enqueue`.
            dedupe_key: makes the key of a job, or None, from its payload; None for no keys.
            group_key: makes the group of a job, or None, from its payload; None for no groups.
            options: the other arguments of `Queue.enqueue_many`, for all jobs.

        Returns:
            Handles in the order of the payloads.

        Raises:
            InvalidPayload: a payload is not of the type that the task declares.
            Error: what `Queue.enqueue_many` raises.
        """
        payloads = list(payloads)
        ids = await self._on(connection, session).enqueue_many(
            [self.payloads.encode(payload) for payload in payloads],
            dedupe_keys=_keys(dedupe_key, payloads),
            group_keys=_keys(group_key, payloads),
            **self._with_name(options),
        )
        pool = _pool(connection)
        return [self.handle(job_id, connection=pool) for job_id in ids]

    @overload
    def enqueue_sync(
        self,
        payload: P,
        *,
        connection: PsycopgConnection,
        dedupe_key: str | None = ...,
        group_key: str | None = ...,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[R]: ...

    @overload
    def enqueue_sync(
        self,
        payload: P,
        *,
        session: AnySession,
        dedupe_key: str | None = ...,
        group_key: str | None = ...,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[R]: ...

    def enqueue_sync(
        self,
        payload: P,
        *,
        connection: PsycopgConnection | None = None,
        session: AnySession | None = None,
        dedupe_key: str | None = None,
        group_key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[R]:
        """Add a job for this task from synchronous code.

        Args:
            payload: what the handler finds in `job.payload`.
            connection: a connection of psycopg 3, whose transaction it joins. This needs the extra
                "psycopg".
            session: a Session or Connection of SQLAlchemy, whose transaction it joins, in place of
                `connection`. This needs the extra "sqlalchemy".
            dedupe_key: as in `Queue.enqueue`.
            group_key: as in `Queue.enqueue`.
            options: the other arguments of `Queue.enqueue`.

        Returns:
            A handle with the job's id; its methods are asynchronous, and take an asyncpg pool.

        Raises:
            InvalidPayload: the payload is not of the type that the task declares.
            Error: what `Queue.enqueue` raises.
        """
        job_id = self._on_sync(connection, session).enqueue(
            self.payloads.encode(payload),
            dedupe_key=dedupe_key,
            group_key=group_key,
            **self._with_name(options),
        )
        return self.handle(job_id)

    @overload
    def enqueue_many_sync(
        self,
        payloads: Iterable[P],
        *,
        connection: PsycopgConnection,
        dedupe_key: Callable[[P], str | None] | None = ...,
        group_key: Callable[[P], str | None] | None = ...,
        **options: Unpack[EnqueueOptions],
    ) -> list[JobHandle[R]]: ...

    @overload
    def enqueue_many_sync(
        self,
        payloads: Iterable[P],
        *,
        session: AnySession,
        dedupe_key: Callable[[P], str | None] | None = ...,
        group_key: Callable[[P], str | None] | None = ...,
        **options: Unpack[EnqueueOptions],
    ) -> list[JobHandle[R]]: ...

    def enqueue_many_sync(
        self,
        payloads: Iterable[P],
        *,
        connection: PsycopgConnection | None = None,
        session: AnySession | None = None,
        dedupe_key: Callable[[P], str | None] | None = None,
        group_key: Callable[[P], str | None] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[JobHandle[R]]:
        """Add many jobs for this task in one statement, from synchronous code.

        The arguments are those of `enqueue_many` and `enqueue_sync`.
        """
        payloads = list(payloads)
        ids = self._on_sync(connection, session).enqueue_many(
            [self.payloads.encode(payload) for payload in payloads],
            dedupe_keys=_keys(dedupe_key, payloads),
            group_keys=_keys(group_key, payloads),
            **self._with_name(options),
        )
        return [self.handle(job_id) for job_id in ids]

    def statement(
        self,
        payload: P,
        *,
        dedupe_key: str | None = None,
        group_key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Statement:
        """Return the SQL of `enqueue` and its parameters, to run with any driver.

        Args:
            payload: what the handler finds in `job.payload`.
            dedupe_key: as in `Queue.enqueue`.
            group_key: as in `Queue.enqueue`.
            options: the other arguments of `Queue.enqueue`.

        Returns:
            A statement whose only row and column is the id of the job.

        Raises:
            InvalidPayload: the payload is not of the type that the task declares.
            InvalidArgument: an argument is malformed; the server checks the others.
        """
        recorder = Recorder()
        queue = Queue(recorder, self.queue, schema=self._schema)
        finish(
            queue.enqueue(
                self.payloads.encode(payload),
                dedupe_key=dedupe_key,
                group_key=group_key,
                **self._with_name(options),
            )
        )
        return recorder.statement

    async def schedule(
        self,
        name: str,
        cron: str,
        payload: P,
        *,
        connection: Executor,
        timezone: str = "UTC",
        priority: int = 0,
        max_attempts: int | None = None,
        headers: Mapping[str, Any] | None = None,
        missed: Missed = "once",
    ) -> datetime:
        """Add a job for this task at the times that a cron expression names.

        Args:
            name: of the schedule; one of that name is replaced.
            cron: as in `Admin.schedule`, like the further arguments.
            payload: of each job.
            connection: a connection, whose open transaction it joins, or a pool.

        Returns:
            The first of the times.
        """
        return await Admin(connection, schema=self._schema).schedule(
            name,
            cron,
            self.payloads.encode(payload),
            self.queue,
            timezone=timezone,
            priority=priority,
            max_attempts=max_attempts,
            headers=self._headers(headers),
            missed=missed,
        )

    def _on(self, connection: Executor | None, session: AnyAsyncSession | None) -> Queue:
        if session is None and connection is not None:
            return self.on(connection)
        if session is None or connection is not None:
            raise TypeError("either a connection or a session is needed")
        return Queue(driver_of(session), self.queue, schema=self._schema)

    def _on_sync(
        self, connection: PsycopgConnection | None, session: AnySession | None
    ) -> SyncQueue:
        from pgq._sync import SyncQueue  # noqa: PLC0415 it needs this module

        driver = sync_driver_of(connection, session)
        return SyncQueue(Queue(driver, self.queue, schema=self._schema))

    def _with_name(self, options: EnqueueOptions) -> EnqueueOptions:
        return {**options, "headers": self._headers(options.get("headers"))}

    def _headers(self, headers: Mapping[str, Any] | None) -> dict[str, Any]:
        if not headers:
            return {TASK_HEADER: self.name}
        expect("headers", headers, Mapping)
        if (deadline := headers.get(DEADLINE_HEADER)) is not None:
            checked_deadline(deadline)
        return {TASK_HEADER: self.name, **headers}


class TaskDecorator(Protocol):
    """What `task` returns: it makes a `Task` of a coroutine function or of a plain one."""

    @overload
    def __call__(self, function: Callable[[Job[P]], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[[Job[P]], R], /) -> Task[P, R]: ...


class TransactionTaskDecorator(Protocol):
    """What `task(..., transaction=True)` returns."""

    def __call__(
        self, function: Callable[[Job[P], Any], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...


@overload
def task(
    queue: str,
    *,
    name: str | None = ...,
    deadline: timedelta | None = ...,
    transaction: Literal[False] = ...,
    process: bool = ...,
    schema: str | None = ...,
) -> TaskDecorator: ...


@overload
def task(
    queue: str,
    *,
    name: str | None = ...,
    deadline: timedelta | None = ...,
    transaction: Literal[True],
    schema: str | None = ...,
) -> TransactionTaskDecorator: ...


def task(
    queue: str,
    *,
    name: str | None = None,
    deadline: timedelta | None = None,
    transaction: bool = False,
    process: bool = False,
    schema: str | None = None,
) -> Any:
    """Make the decorated function a `Task`: the handler of some of the jobs of a queue.

    The function takes a `Job[SendEmail]`; its payload is encoded and validated when it is
    enqueued and when it is handled. What it returns, unless None, is kept as the job's result. A
    coroutine function runs in the worker's event loop, a plain one in a thread of the worker.

    Args:
        queue: the name of the queue.
        name: the name of the task, which jobs carry; the function's by default.
        deadline: how long an attempt may take before it is cancelled and has failed; None (the
            default) sets no bound.
        transaction: call it as `function(job, connection)` in a transaction in which the job is
            then completed: what it does on that connection happens exactly once.
        process: run a plain function in a process, which is killed when the job is cancelled, and
            ends with the worker's; it has to be a function that can be imported.
        schema: where the pgq functions are, for `enqueue`; None leaves it to search_path.

    Raises:
        TypeError: nothing is known about the type of the payload or the result, an argument is of
            a wrong type, or the function does not take a job.
        ValueError: arguments contradict each other.
    """
    if not isinstance(queue, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError('pgq.task needs the name of the queue: @pgq.task("emails")')

    def make(function: Callable[..., Any]) -> Task[Any, Any]:
        return Task(
            function,
            queue,
            name=name,
            deadline=deadline,
            transaction=transaction,
            process=process,
            schema=schema,
        )

    return make


def _keys(key: Callable[[P], str | None] | None, payloads: Sequence[P]) -> list[str | None] | None:
    return None if key is None else [key(payload) for payload in payloads]


def _pool(executor: Executor | None) -> asyncpg.Pool[Any] | None:
    return executor if isinstance(executor, asyncpg.Pool) else None


def _place(function: Callable[..., Any], *, transaction: bool, process: bool) -> RunIn:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{_name(function)} yields: a handler returns")
    if is_coroutine_function(function):
        if process:
            raise ValueError("a coroutine function cannot run in a process")
        return "loop"
    if transaction:
        raise ValueError("a handler with transaction=True must be a coroutine function")
    is_bound = not inspect.isclass(getattr(function, "__self__", type))
    if process and (is_bound or "<" in getattr(function, "__qualname__", "<")):
        raise ValueError("a function that runs in a process must stand at the top of a module")
    return "process" if process else "thread"


def _payload_kind(function: Callable[..., Any], arguments: int) -> Any:
    signature = inspect.signature(function)
    try:
        signature.bind(*range(arguments))
    except TypeError as exc:
        expected = "a job and a connection" if arguments == 2 else "a job"
        raise TypeError(f"{_name(function)}{signature} cannot be called with {expected}") from exc
    first = next(iter(signature.parameters.values()))
    kind = _resolved(function, first.annotation)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    origin = get_origin(kind)
    if origin is Job:
        return get_args(kind)[0]
    # What a decorator is around may be given something else than the job.
    if inspect.unwrap(function) is function and not _may_be_a_job(origin or kind):
        found = inspect.formatannotation(kind)
        raise TypeError(
            f"{_name(function)} takes a job: {first.name} must be pgq.Job[{found}], not {found}"
        )
    return Any


def _may_be_a_job(kind: Any) -> bool:
    if kind in _NO_CLASSES or not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
        return True
    return issubclass(Job, kind) or issubclass(kind, Job)


def _result_kind(function: Callable[..., Any]) -> Any:
    kind = _resolved(function, inspect.signature(function).return_annotation)
    if get_origin(kind) not in {Union, types.UnionType}:
        return Any if _is_outcome(kind) else kind
    members = [member for member in get_args(kind) if not _is_outcome(member)]
    return Union[tuple(members)] if members else Any  # noqa: UP007 it is computed


def _is_outcome(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Outcome)


def _written(function: Callable[..., Any]) -> Any:
    """Return the function, or callable object, that decorators and partials are around."""
    inner = inspect.unwrap(function)
    return _written(inner.func) if isinstance(inner, functools.partial) else inner


def _name(function: Callable[..., Any]) -> str:
    written = _written(function)
    return str(getattr(written, "__name__", type(written).__name__))


def _resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """Return what an annotation stands for, also where it, or a part of it, is text."""
    if annotation is inspect.Signature.empty:
        return Any
    written = _written(function)
    if not hasattr(written, "__globals__"):
        written = type(written).__call__
    annotated = types.SimpleNamespace(__annotations__={"it": annotation})
    names = getattr(written, "__globals__", {})
    try:
        try:
            return get_type_hints(annotated, names, include_extras=True)["it"]
        except NameError:  # it may be a name of the function that is making the handler
            return get_type_hints(annotated, names, _local_names(names), include_extras=True)["it"]
    except NameError as exc:
        raise TypeError(
            f"{_name(function)}: {exc}; what is written as text is looked up in the module, and in"
            " the functions of the module that are being called"
        ) from exc


def _local_names(module: dict[str, Any]) -> dict[str, Any]:
    """Return the local names of all functions of a module, given its names, that are at work."""
    found: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is module:
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found
