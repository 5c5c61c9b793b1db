"""The logger of the package, and what its records carry beside their text.

The names are flat and have a prefix: formatters and exporters take them as they are (OpenTelemetry
drops dicts), `%(pgq_job_id)s` works, and they clash neither with those of `LogRecord` nor with the
application's own.
"""

from __future__ import annotations

import logging
from typing import Final

from pgq._models import Job

log: Final = logging.getLogger("pgq")


def about(job: Job) -> dict[str, object]:
    """Return the `extra` of a record about a job."""
    return {"pgq_job_id": job.id, "pgq_queue": job.queue, "pgq_attempt": job.attempt}


def trouble(error: BaseException, pause: float = 0.0) -> dict[str, object]:
    """Return the `extra` of a record about the server: the error, and seconds to the next try."""
    return {"pgq_error": type(error).__name__, "pgq_pause": pause}
