"""The command `pgq` and all its commands."""

from __future__ import annotations

import click

from pgq._cli.base import Root
from pgq._cli.dashboard import dashboard
from pgq._cli.doctor import doctor
from pgq._cli.enqueue import enqueue
from pgq._cli.extension import install, upgrade
from pgq._cli.jobs import cancel, job, jobs, move, retry
from pgq._cli.metrics import metrics
from pgq._cli.queues import pause, purge, queue, queues, resume, unblock
from pgq._cli.schedules import schedule, schedules
from pgq._cli.shard import shard
from pgq._cli.top import top
from pgq._cli.views import health, locks, workers
from pgq._cli.worker import worker

_SECTIONS = {
    "Work": (worker, enqueue),
    "Jobs": (jobs, job, retry, cancel, move),
    "Queues": (queues, queue, pause, resume, unblock, purge),
    "Schedules": (schedules, schedule),
    "Watch": (top, dashboard, workers, health, locks, metrics),
    "Server": (install, upgrade, doctor, shard),
}


@click.group(
    cls=Root,
    sections=_SECTIONS,
    epilog="Exit status: 0 done; 1 failed, refused or not found; 2 wrong usage; 3 the server "
    "cannot be reached, or pgq is not installed in it.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="pgq-asyncpg", prog_name="pgq")
def cli() -> None:
    """The job queue inside PostgreSQL.

    pgq COMMAND --help shows the options of a command, with examples.
    """
