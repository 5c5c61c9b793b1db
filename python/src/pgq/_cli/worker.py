"""`pgq worker`."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, suppress
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import asyncpg
import click

import pgq
from pgq._cli import logs
from pgq._cli.base import Command, Settings, server_settings, settings
from pgq._cli.dsns import DsnFile
from pgq._cli.errors import Failure, Misuse
from pgq._cli.params import address
from pgq._cli.probes import Probes
from pgq._cli.supervisor import Supervisor
from pgq._cli.web import serving
from pgq._task import Task
from pgq._worker.run import SUPERVISED
from pgq._worker.worker import Worker

# Frames of what imports, not of what is imported.
_OURS: Final = (
    "<",
    *(f"{Path(str(file)).parent}{os.sep}" for file in (pgq.__file__, importlib.__file__)),
)
_Target: TypeAlias = "Worker | Callable[[asyncpg.Pool[Any]], object]"

log = logging.getLogger("pgq")


@click.command(
    cls=Command,
    has_json=False,
    many_dsns=True,
    examples="""
        pgq worker shop.jobs:worker
        pgq worker shop.jobs:worker --dsn postgresql://a/shop --dsn postgresql://b/shop
        pgq worker shop.jobs:worker --dsn-file /etc/shop/shards
        pgq worker shop.jobs:worker --processes 4 --log-json
        pgq worker shop.jobs:make_worker --reload --log-level debug
        pgq worker shop.jobs:worker --health 0.0.0.0:8080
    """,
)
@click.argument("target")
@click.option(
    "--dsn-file",
    type=click.Path(path_type=Path),
    help="Its lines name the databases, in place of --dsn; SIGHUP has it read again.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many, each with its own event loop and pool.",
)
@click.option("--reload", is_flag=True, help="Start again when a Python file below here changes.")
@click.option(
    "--pool-size",
    type=click.IntRange(2),
    default=10,
    show_default=True,
    help="The most connections of the pool of a process.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least severe level that is written.",
)
@click.option("--log-json", is_flag=True, help="Write the log as one JSON object a line.")
@click.option(
    "--health",
    type=address,
    metavar="HOST:PORT",
    help="Serve /live and /ready there, and /metrics with the extra 'metrics'.",
)
@click.option("--supervised", is_flag=True, hidden=True)
def worker(
    target: str,
    *,
    dsn_file: Path | None,
    processes: int,
    reload: bool,
    pool_size: int,
    log_level: str,
    log_json: bool,
    health: tuple[str, int] | None,
    supervised: bool,
) -> None:
    """Run a worker until SIGTERM or SIGINT.

    TARGET is module:attribute. The attribute is a pgq.Worker made without a pool, or a function
    that is called with a pool and returns a pgq.Worker or an async context manager of one.
    Modules are found from the current directory, as with python -m.

    With several --dsn, or several URLs with blanks between them in PGQ_DSN, a pgq.Worker works
    off all of these databases: each gets the same share of its concurrency. With --dsn-file, too;
    on SIGHUP databases that are new there are taken up, and those that are gone given up when
    their jobs have ended.

    On a signal the worker claims no more, and its handlers may finish; a second one ends them at
    once. The log goes to stderr. With several processes, one that dies is started again after a
    pause that grows.

    /live answers 503 while the event loop is blocked. /ready does so then, too, and before the
    start, during a stop, and while the server does not answer. Both tell in JSON how the worker
    is. They are about one process: run several containers or units instead of --processes.

    Exits with 0 after a signal, with 2 if TARGET is not a worker from the
    start, and with 1 if a process did not end as it was told to.
    """
    if settings().schema is not None:
        raise click.UsageError("The worker names its schema itself: pgq.Worker(schema=...).")
    if health is not None and (processes > 1 or reload):
        raise click.UsageError("--health is for one process, without --reload.")
    logs.configure(log_level, as_json=log_json)
    if processes == 1 and not reload:
        probes = Probes()
        with ExitStack() as stack:
            if health is not None:
                where = stack.enter_context(serving(probes.pages(), *health))
                log.info("serving %s/live and %s/ready", where, where)
            run = partial(_run, probes, supervised=supervised)
            asyncio.run(_serve(settings(), _load(target), pool_size, dsn_file, run))
        return
    command = [sys.executable, "-m", "pgq", "worker", target]
    command += ["--pool-size", str(pool_size), "--log-level", log_level]
    command += ["--dsn-file", str(dsn_file)] if dsn_file is not None else []
    command += ["--log-json"] if log_json else []
    command += ["--debug"] if settings().debug else []
    command += ["--supervised"]
    environment = dict(os.environ)
    if (dsn := settings().dsn) is not None:
        environment["PGQ_DSN"] = dsn
    changes = _changes() if reload else None
    supervisor = Supervisor(command, environment, processes, rereads=dsn_file is not None)
    status = asyncio.run(supervisor.run(changes))
    raise click.exceptions.Exit(status)


def _changes() -> AsyncIterator[object]:
    """Return an iterator over changes of Python files below the current directory."""
    try:
        watchfiles = importlib.import_module("watchfiles")
    except ModuleNotFoundError as exc:
        message = "--reload needs watchfiles: pip install 'pgq-asyncpg[cli,reload]'"
        raise Failure(message) from exc
    changes: AsyncIterator[object] = watchfiles.awatch(
        Path.cwd(), watch_filter=watchfiles.PythonFilter()
    )
    return changes


def _load(target: str) -> _Target:
    """Import what module:attribute names."""
    name, _, path = target.partition(":")
    if not name or not path:
        raise click.UsageError(f"{target!r} is not module:attribute.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except Exception as exc:
        raise Misuse(f"cannot import {name}: {type(exc).__name__}: {exc}{_where(exc)}") from exc
    try:
        found: object = reduce(getattr, path.split("."), module)
    except AttributeError as exc:
        raise Misuse(str(exc)) from exc
    if isinstance(found, Worker) or (_takes_a_pool(found) and not isinstance(found, Task)):
        return cast("_Target", found)
    raise Misuse(
        f"{target} is neither a pgq.Worker nor a function that takes a pool: its type is "
        f"{type(found).__name__}. Name a worker, as in: pgq worker shop.jobs:worker"
    )


def _takes_a_pool(found: object) -> bool:
    try:
        inspect.signature(cast("Callable[..., object]", found)).bind("pool")
    except (TypeError, ValueError):  # it cannot be called, or not so
        return False
    return True


def _where(exc: Exception) -> str:
    """Return the line of the user that an import failed at, or where the module was looked for."""
    frames = traceback.extract_tb(exc.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    if theirs:
        return f" ({theirs[-1].filename}, line {theirs[-1].lineno})"
    if isinstance(exc, ModuleNotFoundError):
        return f" (looked for from the current directory, {Path.cwd()})"
    return ""


async def _serve(
    options: Settings,
    target: _Target,
    pool_size: int,
    dsn_file: Path | None,
    run: Callable[[Worker, Callable[[], Awaitable[None]]], Awaitable[None]],
) -> None:
    def new_pool(dsn: str | None) -> asyncpg.Pool[Any]:
        return asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=pool_size,
            server_settings=server_settings(options, "pgq worker"),
        )

    dsns: list[str | None] = [*(options.dsn or "").split()]
    if (dsn_file is not None or len(dsns) > 1) and not isinstance(target, Worker):
        raise Misuse("several databases need a pgq.Worker, not a function that takes a pool")
    if dsn_file is not None:
        worker = cast("Worker", target)
        await run(worker, partial(DsnFile(dsn_file, new_pool).run, worker))
        return
    async with AsyncExitStack() as stack:
        pools = [await stack.enter_async_context(new_pool(dsn)) for dsn in dsns or [None]]
        if isinstance(target, Worker):
            several = len(pools) > 1
            await run(
                target,
                partial(target.run, pools=pools) if several else partial(target.run, pools[0]),
            )
            return
        made = target(pools[0])
        if isinstance(made, Worker):
            await run(made, made.run)
        elif isinstance(made, AbstractAsyncContextManager):
            async with cast("AbstractAsyncContextManager[Worker]", made) as entered:
                await run(entered, entered.run)
        elif inspect.iscoroutine(made):
            made.close()
            message = (
                "the function is a coroutine function: make it a plain function, or one that "
                "yields the worker, with @contextlib.asynccontextmanager"
            )
            raise Misuse(message)
        else:
            message = (
                f"the function returned {made!r}, not a pgq.Worker or a context manager of one"
            )
            raise Misuse(message)


async def _run(
    probes: Probes, worker: Worker, run: Callable[[], Awaitable[None]], *, supervised: bool
) -> None:
    probes.worker = worker
    if supervised:
        _obey_supervisor(worker)
    try:
        await run()
    except ValueError as exc:
        if isinstance(exc, pgq.Error):  # of the server, or its data
            raise
        raise Misuse(str(exc)) from exc
    log.info("worker %s has stopped", worker.name)


def _obey_supervisor(worker: Worker) -> None:
    """Let a signal stop the worker, however often it comes: what is on stdin aborts it.

    A service manager sends each signal to this process as well as to the supervisor, who passes
    it on. The end of stdin is that of the supervisor.
    """
    loop = asyncio.get_running_loop()
    file = sys.stdin.fileno()

    def read() -> None:
        if os.read(file, 1):
            worker.abort()
        else:
            loop.remove_reader(file)
            worker.stop()

    def stop(_number: int, _frame: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(worker.stop)

    loop.add_reader(file, read)
    # Before the run, and after it: what the target cleans up then is not to be cut short.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    SUPERVISED.set()
