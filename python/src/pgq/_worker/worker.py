"""The worker: which handlers work off which queues, and how."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from types import NoneType
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

import asyncpg

from pgq._calls import Dumps, Executor
from pgq._driver import AnyAsyncSession
from pgq._errors import expect
from pgq._models import Job
from pgq._queue import DEFAULT_TIMEOUT, Queue
from pgq._rows import Loads, read_json
from pgq._task import Task
from pgq._version import check
from pgq._worker.child import LOADED
from pgq._worker.config import (
    AfterHook,
    BeforeHook,
    Consumer,
    Consumers,
    ErrorHook,
    Middleware,
    Prefix,
    Sessions,
    Settings,
    consumer_of,
)
from pgq._worker.health import Health
from pgq._worker.heartbeat import Connect, connect_like
from pgq._worker.link import is_transient
from pgq._worker.run import QueueT, Run
from pgq._worker.shards import Shards
from pgq._worker.signals import signals
from pgq._worker.single import Single

Handler: TypeAlias = Callable[[Job[Any]], Any]
TransactionHandler: TypeAlias = Callable[[Job[Any], Any], Awaitable[Any]]
HandlerT = TypeVar("HandlerT", bound=Handler)
TransactionHandlerT = TypeVar("TransactionHandlerT", bound=TransactionHandler)
BeforeHookT = TypeVar("BeforeHookT", bound=BeforeHook)
AfterHookT = TypeVar("AfterHookT", bound=AfterHook)
ErrorHookT = TypeVar("ErrorHookT", bound=ErrorHook)
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)

_NO_TIME: Final = timedelta(0)
_LONGEST_LEASE: Final = timedelta(days=24)  # of the server


class ConsumerOptions(TypedDict, total=False):
    """The arguments of `Worker.configure`, which `Worker.handler` takes, too."""

    concurrency: int
    timeout: timedelta
    batch: int | None
    prefetch: int


class Worker:
    """Runs handlers for the jobs of one or more queues, until it is told to stop.

    A handler that returns completes its job; one that raises fails it, and the job is tried again
    as its queue is configured. `Retry`, `Snooze`, `GiveUp`, `Cancel` and `Settled`, returned or
    raised, are other ends. Handlers are tasks (see `task`), or functions that `handler` decorates.
    What arrives while outcomes are being written goes together in the next call.

    Leases are renewed by a thread with its own event loop and connection, so a handler may block
    the worker's loop for as long as it likes. What holds up the thread too still loses leases: a
    C call that keeps the GIL, a stopped process, a lost network. A handler is cancelled when its
    lease is lost, when somebody asked to cancel the job (it hears of that with the next
    heartbeat), or at the deadline of its task: a coroutine and a thread by CancelledError, a
    process by SIGKILL. What it returns after its lease was lost changes nothing.

    A worker takes two connections of the pool, one more for each transaction at work, and opens
    two of its own: for heartbeats, and to LISTEN. It logs to "pgq": records about a job have
    `pgq_job_id`, `pgq_queue` and `pgq_attempt`, those about the server `pgq_error`, the name of the
    error's class, and `pgq_pause`, the seconds until the next attempt, those about itself
    `pgq_worker`, and all but those of heartbeats, with several databases, `pgq_database`. At level
    INFO it tells when it has started, after it has checked that it can work, and how it stops. At
    level DEBUG each attempt is told with its duration.

    Args:
        pool: an asyncpg pool; it needs no codec. None (the default) leaves it to `run`.
        tasks: what it handles; more are added by `add` and `handler`.
        pools: instead of a pool, those of several databases, which share the jobs: each gets the
            same share of the concurrency and the prefetch of a queue. One that is away costs the
            others nothing, and is taken up again. A worker has the connections and threads that
            it needs once for each.
        schema: where the pgq functions are; None (the default) leaves it to search_path.
        name: what operators see; host name and process id by default.
        poll_interval: the wait after a claim that found too few jobs, give or take a quarter,
            while it cannot LISTEN; 250 milliseconds by default.
        call_timeout: how long the server may take to answer; 10 seconds by default. After that
            the worker gives the connection up and opens another one.
        grace: how long handlers may go on after a stop; 20 seconds by default.
        listen: False only polls, for example behind a pooler that shares sessions. By default it
            polls until a notification has reached it, and warns if none does.
        durable_claims: True waits until each claim is on disk before its handlers start. By
            default a crash of the server may undo claims of the last second: those jobs run
            again, and the attempt is not counted. All else that a worker writes is durable.
        connect: opens the worker's own connections, one of them on another loop than the pool's.
            By default it connects with the pool's arguments, without its `init` and `setup`.
        sessions: an async_sessionmaker of SQLAlchemy. Handlers with `transaction` get a session
            of it instead of a connection, and flush; the worker commits. None (the default) for
            connections of the pool.
        dumps: makes JSON text of results; `json.dumps` by default.
        loads: reads the JSON text of payloads, headers and checkpoints; by default as
            `json.loads` does.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: poll_interval or call_timeout is not positive, or grace is negative; there are
            `pools` beside `pool`.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any] | None = None,
        tasks: Iterable[Task[Any, Any]] = (),
        *,
        pools: Sequence[asyncpg.Pool[Any]] = (),
        schema: str | None = None,
        name: str | None = None,
        poll_interval: timedelta = timedelta(milliseconds=250),
        call_timeout: timedelta = timedelta(seconds=10),
        grace: timedelta = timedelta(seconds=20),
        listen: bool = True,
        durable_claims: bool = False,
        connect: Connect | None = None,
        sessions: Sessions | None = None,
        dumps: Dumps = json.dumps,
        loads: Loads = read_json,
    ) -> None:
        _pools(pool, pools)
        expect("tasks", tasks, Iterable)
        expect("poll_interval", poll_interval, timedelta)
        expect("call_timeout", call_timeout, timedelta)
        expect("grace", grace, timedelta)
        if poll_interval <= _NO_TIME or call_timeout <= _NO_TIME:
            raise ValueError("poll_interval and call_timeout must be positive")
        if grace < _NO_TIME:
            raise ValueError("grace must not be negative")
        if sessions is not None:
            from pgq._worker import session  # noqa: PLC0415 it needs an extra

            session.check(sessions)
        self._pool = pool
        self._pools = tuple(pools)
        self._connect = connect
        self._schema = schema
        self._loads = loads
        self._middleware: list[Middleware] = []
        self._before: list[BeforeHook] = []
        self._after: list[AfterHook] = []
        self._error: list[ErrorHook] = []
        self._settings = Settings(
            name=name or f"{socket.gethostname()}:{os.getpid()}",
            poll_seconds=poll_interval.total_seconds(),
            call_seconds=call_timeout.total_seconds(),
            grace_seconds=grace.total_seconds(),
            listens=listen,
            durable_claims=durable_claims,
            sessions=sessions,
            dumps=dumps,
            middleware=self._middleware,
            before=self._before,
            after=self._after,
            error=self._error,
        )
        self._consumers: dict[str | Prefix, Consumer] = {}
        self._run: Run | Shards | None = None
        self._stops = False
        self.add(*tasks)

    @property
    def name(self) -> str:
        """What operators see in `pgq_workers`."""
        return self._settings.name

    @property
    def queues(self) -> frozenset[str]:
        """The names of the queues that it works off, without those of a prefix."""
        return frozenset(queue for queue in self._consumers if isinstance(queue, str))

    @property
    def tasks(self) -> tuple[Task[Any, Any], ...]:
        """The tasks that it handles, without the handlers of jobs that name none."""
        return tuple(
            task for consumer in self._consumers.values() for task in consumer.tasks.values()
        )

    def tasks_of(self, queue: str) -> tuple[Task[Any, Any], ...]:
        """The tasks that it handles in a queue, which may be one of a prefix."""
        consumer = consumer_of(self._consumers, queue)
        return () if consumer is None else tuple(consumer.tasks.values())

    def health(self) -> Health:
        """Return how it is; it may be called in any thread, also while the event loop is blocked.

        It asks nobody: what it tells of the server is what the worker's own calls have met.
        """
        run = self._run
        return Health(status="starting") if run is None else run.health()

    # What it does

    def configure(
        self,
        queue: str | Prefix,
        *,
        concurrency: int = 10,
        timeout: timedelta = DEFAULT_TIMEOUT,
        batch: int | None = None,
        prefetch: int = 0,
    ) -> None:
        """Set how the worker works off a queue; what is left out gets its default.

        Args:
            queue: the queue. Each queue of a `Prefix` gets these settings for itself; the worker
                looks for new ones every 5 seconds, and needs the privilege "observe" on them. A
                queue that has settings, tasks or a handler of its own is left out, and the
                longest prefix counts.
            concurrency: the most jobs at work at the same time; 10 by default.
            timeout: the lease, renewed every third of it; 30 seconds by default, at most 24 days.
            batch: the most jobs to claim at once; None (the default) for no bound.
            prefetch: how many more jobs than are at work it claims and holds; 0 by default. For
                short jobs some hundreds save round trips; long ones would wait here while other
                workers have nothing to do. Jobs whose outcome is still to be written do not
                count, as long as it holds at most 2 * (concurrency + prefetch) jobs in all.

        Raises:
            TypeError: timeout is no timedelta.
            ValueError: an argument is not positive, prefetch is negative, or timeout too long.
        """
        expect("timeout", timeout, timedelta)
        if concurrency < 1 or timeout <= _NO_TIME or (batch is not None and batch < 1):
            raise ValueError("concurrency, timeout and batch must be positive")
        if timeout > _LONGEST_LEASE:
            raise ValueError("timeout must be at most 24 days")
        if prefetch < 0:
            raise ValueError("prefetch must not be negative")
        consumer = self._consumer(queue)
        consumer.concurrency, consumer.timeout = concurrency, timeout
        consumer.batch, consumer.prefetch = batch, prefetch

    def add(self, *tasks: Task[Any, Any], queue: str | Prefix | None = None) -> None:
        """Handle the jobs of these tasks, too.

        Args:
            tasks: the tasks.
            queue: where their jobs are; None (the default) for the queue of each task.

        Raises:
            TypeError: one is no task: `task` makes it of a function.
            ValueError: the queue has another task of its name.
        """
        for task in tasks:
            expect("each of tasks", task, Task)
            of = task.queue if queue is None else queue
            if self._consumer(of).tasks.setdefault(task.name, task) is not task:
                raise ValueError(f"queue {str(of)!r} has a task {task.name!r} already")

    @overload
    def handler(
        self,
        queue: str | Prefix,
        *,
        transaction: Literal[False] = ...,
        process: bool = ...,
        deadline: timedelta | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[HandlerT], HandlerT]: ...

    @overload
    def handler(
        self,
        queue: str | Prefix,
        *,
        transaction: Literal[True],
        deadline: timedelta | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[TransactionHandlerT], TransactionHandlerT]: ...

    def handler(
        self,
        queue: str | Prefix,
        *,
        transaction: bool = False,
        process: bool = False,
        deadline: timedelta | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[Any], Any]:
        """Make the decorated function the handler of all jobs of a queue that name no task.

        What it returns, unless None, is kept as the job's result.

        Args:
            queue: the queue, or the `Prefix` of several.
            transaction: call it as `handler(job, connection)` in a transaction in which the job
                is then completed: what it does on that connection happens exactly once. It must
                not settle the job itself. When the lease is lost all of it is rolled back.
            process: as in `task`.
            deadline: as in `task`.
            options: the arguments of `configure`.

        Raises:
            TypeError: an argument is of a wrong type.
            ValueError: the queue has a handler, or an argument is not possible.
        """
        expect("queue", queue, str, Prefix)
        if options:
            self.configure(queue, **options)
        consumer = self._consumer(queue)
        if consumer.handler is not None:
            raise ValueError(f"queue {str(queue)!r} has a handler already")

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            consumer.handler = Task(
                function, str(queue), deadline=deadline, transaction=transaction, process=process
            )
            return function

        return register

    def middleware(self, call: MiddlewareT) -> MiddlewareT:
        """Have the decorated `call(job, call_next)` around each handler.

        It awaits `call_next(job)`, may do so with another job, and returns what that returned, or
        something else; what it raises is as if the handler had raised it. The first one that was
        added is the outermost. A transaction begins and commits within `call_next`.
        """
        self._middleware.append(call)
        return call

    def before(self, hook: BeforeHookT) -> BeforeHookT:
        """Call the decorated `hook(job)` before each handler; what it raises fails the job."""
        self._before.append(hook)
        return hook

    def after(self, hook: AfterHookT) -> AfterHookT:
        """Call the decorated `hook(job, result)` after each handler that returned a result."""
        self._after.append(hook)
        return hook

    def error(self, hook: ErrorHookT) -> ErrorHookT:
        """Call the decorated `hook(job, exception)` once for each attempt that has failed.

        That is whatever it failed of: the handler or what is around it, the deadline, a payload or
        result that is not possible, a task that the worker has not. The job has the payload that
        the handler takes, unless that is what failed.
        """
        self._error.append(hook)
        return hook

    def _consumer(self, queue: str | Prefix) -> Consumer:
        if queue not in self._consumers:
            self._consumers[queue] = Consumer()
        return self._consumers[queue]

    # What it is told

    async def run(
        self,
        pool: asyncpg.Pool[Any] | None = None,
        *,
        pools: Sequence[asyncpg.Pool[Any]] = (),
        handle_signals: bool = True,
    ) -> None:
        """Work until `stop`, SIGTERM or SIGINT.

        On a stop it claims no more, lets handlers finish for `grace` (a second signal ends that
        at once), then cancels them, and gives back what did not finish without counting the
        attempt. A handler that does not end when cancelled keeps its lease until it runs out; if
        it blocks the event loop the process is ended, with the status 128 + the signal's number.
        After a lost connection it connects again, with pauses of a second at most.

        Args:
            pool: an asyncpg pool, if the worker was made without.
            pools: instead of it, those of several databases.
            handle_signals: False leaves SIGTERM and SIGINT to the caller, who has `stop` and
                `abort`. In another thread than the main one they are left alone, too.

        Raises:
            ValueError: there is no pool, or one that is too small, no handler for a queue; for
                several databases less concurrency than one each, `connect` or `sessions`.
            RuntimeError: the worker runs already, or in a process of a handler, which imports the
                main module.
            NotSupported: the extension is of a version that this package is not for.
            Error: claims are not possible: a queue is unknown, not permitted, or pgq not installed.
                At the start that is found before anything is claimed.
        """
        await self._run_once(pool, pools, handle_signals=handle_signals, until_idle=False)

    async def change_pools(self, pools: Sequence[asyncpg.Pool[Any]]) -> None:
        """Work off other databases from now on, in a run with `pools`.

        New ones are taken up. Those that are missing are given up as at a stop; the call waits
        until their jobs have ended. Each of the others goes on with its new share of the
        concurrency.

        Args:
            pools: of all the databases.

        Raises:
            RuntimeError: the worker does not run, or was not given `pools`.
            ValueError: there is no pool, or they are refused as by `run`.
            Error: a new one answers, but cannot be used. Then nothing has changed.
        """
        pools = _pools(None, pools)
        run = self._run
        if not isinstance(run, Shards):
            raise RuntimeError("the worker does not run with pools")  # noqa: TRY004 no argument
        self._check(pools)
        for pool in run.unknown(pools):
            try:
                check(await self._new_queue(pool, Queue).version())
            except Exception as exc:
                if not is_transient(exc):
                    raise
        await run.change(pools)

    async def run_until_idle(
        self,
        pool: asyncpg.Pool[Any] | None = None,
        *,
        pools: Sequence[asyncpg.Pool[Any]] = (),
    ) -> None:
        """Work until no job can be claimed and all handlers have ended, as tests like it.

        It waits neither for jobs that are scheduled nor for those that others hold, nor for a rate
        limit. Of several databases it waits for each alone.

        Args:
            pool: an asyncpg pool, if the worker was made without.
            pools: instead of it, those of several databases.

        Raises:
            ValueError: as in `run`, like the others.
        """
        await self._run_once(pool, pools, handle_signals=False, until_idle=True)

    async def run_job(
        self,
        job_id: int,
        *,
        connection: Executor | None = None,
        session: AnyAsyncSession | None = None,
    ) -> bool:
        """Claim one job, have it handled and write what became of it, all on one connection.

        This is for tests, which may roll all of it back. Nothing renews the lease meanwhile.

        Args:
            job_id: of one of the worker's queues.
            connection: a connection, whose open transaction all of that joins (a handler with
                `transaction` gets it, in a savepoint), or a pool.
            session: an AsyncSession of SQLAlchemy, in place of the connection, for a worker with
                `sessions`.

        Returns:
            False if the job cannot be claimed: it is scheduled or waiting, or has ended.

        Raises:
            Exception: what the handler raised; the attempt has failed.
            UnknownTask: the worker has none for the job; the attempt has failed.
            LeaseLost: the handler, or somebody else, has ended the job.
        """
        if (connection is None) == (session is None):
            raise TypeError("either a connection or a session is needed")
        executor: Any = connection
        if session is not None:
            from pgq.sqlalchemy import AsyncDriver  # noqa: PLC0415 it needs an extra

            executor = AsyncDriver(cast("Any", session))
        queue = self._new_queue(executor, Queue)
        return await Single(self._settings, queue, executor, self._consumers).run(job_id)

    def _new_queue(
        self, executor: Executor, kind: type[QueueT], name: str = "default", /
    ) -> QueueT:
        # Results come to it as text.
        return kind(executor, name, schema=self._schema, dumps=lambda text: text, loads=self._loads)

    def stop(self) -> None:
        """Begin a graceful stop; `run` returns when it is done. Before a run it stops the next."""
        self._stops = True
        if self._run is not None:
            self._run.stop()

    def abort(self) -> None:
        """Stop, and cancel handlers without `grace`, as a second signal does."""
        if self._run is not None:
            self._run.abort()
        self.stop()

    async def _run_once(
        self,
        pool: asyncpg.Pool[Any] | None,
        pools: Sequence[asyncpg.Pool[Any]],
        *,
        handle_signals: bool,
        until_idle: bool,
    ) -> None:
        if pool is None and not pools:
            pool, pools = self._pool, self._pools
        pools = _pools(pool, pools)
        if self._run is not None:
            raise RuntimeError("the worker runs already")
        if LOADED.is_set():
            raise RuntimeError(
                "the main module starts a worker when it is imported:"
                ' put the call below `if __name__ == "__main__":`'
            )
        self._check(pools)
        new_run = partial(self._new_run, until_idle)
        run: Run | Shards
        if pool is not None:
            run = new_run(pool, self._consumers)
        else:
            run = Shards(self.name, self._consumers, pools, new_run, until_idle=until_idle)
        self._run = run
        if self._stops:
            run.stop()
        try:
            with signals.stop(run) if handle_signals else nullcontext():
                await run.main()
        finally:
            self._run, self._stops = None, False

    def _check(self, pools: Sequence[asyncpg.Pool[Any]]) -> None:
        if not pools:
            raise ValueError("the worker has no pool")
        if len(pools) > 1 and (self._connect or self._settings.sessions) is not None:
            raise ValueError("connect and sessions are for one database, and there are several")
        _check_size(pools, self._settings, self._consumers)

    def _new_run(self, until_idle: bool, pool: asyncpg.Pool[Any], consumers: Consumers, /) -> Run:
        return Run(
            self._settings,
            pool,
            partial(self._new_queue, pool),
            self._connect or connect_like(pool),
            consumers,
            until_idle=until_idle,
        )


def _pools(
    pool: asyncpg.Pool[Any] | None, pools: Sequence[asyncpg.Pool[Any]]
) -> Sequence[asyncpg.Pool[Any]]:
    """Return the pools of either argument; an application's own wrapper of a pool is one, too."""
    if pool is not None and pools:
        raise ValueError("give either pool or pools")
    expect("pools", pools, Sequence)
    if pool is not None and not hasattr(pool, "get_max_size"):
        expect("pool", pool, asyncpg.Pool, NoneType)
    for each in pools:
        if not hasattr(each, "get_max_size"):
            expect("each of pools", each, asyncpg.Pool)
    return [pool] if pool is not None else list(pools)


def _check_size(
    pools: Sequence[asyncpg.Pool[Any]], settings: Settings, consumers: Consumers
) -> None:
    """Refuse a pool that is too small for the handlers, and queues without any."""
    handled = [task for consumer in consumers.values() for task in consumer.all_tasks()]
    if not handled:
        raise ValueError("the worker has no handler")
    for queue, consumer in consumers.items():
        if not consumer.all_tasks():
            raise ValueError(f"the worker has no handler for queue {str(queue)!r}")
        if consumer.concurrency < len(pools):
            raise ValueError(
                f"the concurrency of queue {str(queue)!r} is less than one per database"
            )
    in_pool = settings.sessions is None and any(task.transaction for task in handled)
    needed = 3 if in_pool else 2
    if any(pool.get_max_size() < needed for pool in pools):
        raise ValueError(f"the worker needs a pool of at least {needed} connections")
