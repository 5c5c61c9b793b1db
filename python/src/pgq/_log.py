"""The logger of the package, and what its records carry beside their text.

The names are flat and have a prefix: formatters and exporters take them as they are (OpenTelemetry
drops dicts), `%(pgq_job_id)s` works, and they clash neither with those of `LogRecord` nor with the
application's own.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from types import TracebackType
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from pgq._models import Job

log: Final = logging.getLogger("pgq")

# Of those of a worker on several databases, the one that a record is about.
database: Final[ContextVar[str]] = ContextVar("database")

_OWN: Final = {"pgq", "pgq._worker", "pgq.django"}


def _name_database(record: logging.LogRecord) -> bool:
    name = database.get("")
    if name:
        record.pgq_database = name
    return True


log.addFilter(_name_database)


def name_of(url: str, **arguments: object) -> str:
    """Return what may be shown of how a database is reached: its host, port and name.

    Args:
        url: the URL; "" for none.
        arguments: others of `asyncpg.connect`, which win.
    """
    parts = urlsplit(url)
    asked = {"database": parts.path.lstrip("/"), **dict(parse_qsl(parts.query)), **arguments}
    port = f":{asked['port']}" if "port" in asked else ""
    host = asked["host"] if "host" in asked else parts.netloc.rpartition("@")[2]
    return f"{host}{port}/{asked['database']}"


def about(job: Job) -> dict[str, object]:
    """Return the `extra` of a record about a job."""
    return {"pgq_job_id": job.id, "pgq_queue": job.queue, "pgq_attempt": job.attempt}


def about_worker(name: str) -> dict[str, object]:
    """Return the `extra` of a record about a worker."""
    return {"pgq_worker": name}


def trouble(error: BaseException, pause: float = 0.0) -> dict[str, object]:
    """Return the `extra` of a record about the server: the error, seconds to the next attempt."""
    return {"pgq_error": type(error).__name__, "pgq_pause": pause}


def traced(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return an error and its traceback from where the worker calls what is not its own."""
    begin = error.__traceback__
    while begin is not None and begin.tb_frame.f_globals.get("__package__") in _OWN:
        begin = begin.tb_next
    return type(error), error, begin or error.__traceback__
