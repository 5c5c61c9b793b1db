"""`manage.py pgq_worker`."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from argparse import ArgumentParser, BooleanOptionalAction
from typing import Any, Final
from urllib.parse import urlencode

import asyncpg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.utils import autoreload

from pgq._errors import Error
from pgq.django._names import task_backends
from pgq.django.tasks import PgqBackend
from pgq.django.worker import DjangoWorker

# What asyncpg knows of the parameters that psycopg has.
_PARAMETERS: Final = frozenset(
    {
        "dbname",
        "user",
        "password",
        "host",
        "port",
        "service",
        "passfile",
        "options",
        "application_name",
        "target_session_attrs",
        "krbsrvname",
        "gsslib",
        "sslmode",
        "sslnegotiation",
        "sslcert",
        "sslkey",
        "sslpassword",
        "sslrootcert",
        "sslcrl",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
    }
)
_STOP_SECONDS: Final = 10.0


class Command(BaseCommand):
    """Runs Django's tasks that are jobs of pgq, until SIGTERM or SIGINT.

    The first signal lets tasks finish, a second one ends them.
    """

    help: Any = "Runs Django's tasks that are jobs of pgq, until SIGTERM or SIGINT."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--backend", default="default", help='alias in TASKS; "default" by default'
        )
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help="a queue to work off, may be repeated; the backend's QUEUES by default",
        )
        parser.add_argument(
            "--concurrency",
            type=int,
            default=10,
            metavar="N",
            help="tasks of a queue at the same time; 10 by default",
        )
        parser.add_argument(
            "--until-idle", action="store_true", help="end when no job can be claimed"
        )
        parser.add_argument(
            "--reload",
            action=BooleanOptionalAction,
            default=settings.DEBUG,
            help="start again when code changes; with DEBUG by default",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        try:
            backend = task_backends[options["backend"]]
        except ImproperlyConfigured as exc:
            raise CommandError(str(exc)) from exc
        if not isinstance(backend, PgqBackend):
            raise CommandError(f'TASKS["{backend.alias}"] is no backend of pgq')
        queues = options["queues"] or sorted(backend.queues)
        if not queues:
            raise CommandError("the backend takes all queues: name those of the worker by --queue")
        if unknown := set(queues) - backend.queues if backend.queues else None:
            raise CommandError(f"the backend has no queue {', '.join(sorted(unknown))}")
        worker = DjangoWorker(backend)
        try:
            for queue in queues:
                worker.configure(queue, concurrency=options["concurrency"])
        except ValueError as exc:
            raise CommandError(str(exc)) from exc
        log = logging.getLogger("pgq")
        if options["verbosity"] and not log.hasHandlers():  # settings.LOGGING leaves it alone
            log.addHandler(logging.StreamHandler())
            log.setLevel(logging.INFO)
        if options["reload"] and not options["until_idle"]:
            reloader: Any = autoreload
            reloader.run_with_reloader(_run_in_thread, worker, backend.database)
        else:
            _run(worker, backend.database, until_idle=options["until_idle"])


def _run(worker: DjangoWorker, alias: str, *, until_idle: bool) -> None:
    try:
        asyncio.run(_work(worker, alias, until_idle=until_idle))
    except Error as exc:
        raise CommandError(str(exc)) from exc


def _run_in_thread(worker: DjangoWorker, alias: str) -> None:
    """Run beside the main thread, which exits when code changes: give jobs back before that."""
    ended = threading.Event()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        def stop() -> None:
            loop.call_soon_threadsafe(worker.abort)
            ended.wait(_STOP_SECONDS)

        atexit.register(stop)
        try:
            runner.run(_work(worker, alias, until_idle=False))
        finally:
            atexit.unregister(stop)
            ended.set()


async def _work(worker: DjangoWorker, alias: str, *, until_idle: bool) -> None:
    async with asyncpg.create_pool(dsn_of(alias), min_size=0, max_size=2) as pool:
        await (worker.run_until_idle(pool) if until_idle else worker.run(pool))


def dsn_of(alias: str) -> str:
    """Return where asyncpg finds a database of settings.DATABASES."""
    connection = connections[alias]
    given = connection.get_connection_params()
    known = {name: given[name] for name in _PARAMETERS & given.keys()}
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        known["role"] = role
    return "postgresql://?" + urlencode({"application_name": "pgq_worker", **known})
