"""`pgq workers`, `pgq health` and `pgq locks`: the views as they are."""

from __future__ import annotations

from typing import Final

import click

from pgq._cli import output
from pgq._cli.base import Command, connected
from pgq._cli.output import Column
from pgq._operate import sql
from pgq._operate.client import Client

WORKERS: Final = (
    Column("worker"),
    Column("queue"),
    Column("jobs", right=True),
    Column("expired", right=True),
    Column("oldest_claimed_at", "oldest claim"),
    Column("last_heartbeat_at", "last heartbeat"),
    Column("next_expiry_at", "next expiry"),
    Column("pid", right=True),
    Column("backend_gone"),
)
HEALTH: Final = (
    Column("subject"),
    Column("status"),
    Column("age", right=True),
    Column("pid", right=True),
    Column("detail"),
    Column("query"),
)
_LOCKS: Final = (
    Column("waiting_pid", "waiting", right=True),
    Column("waiting_for", "for", right=True),
    Column("mode"),
    Column("relation"),
    Column("blocking_pid", "blocked by", right=True),
    Column("blocking_state", "state"),
    Column("blocking_since", "since", right=True),
    Column("waiting_query", "query"),
    Column("blocking_query", "blocked by query"),
)


@click.command(
    cls=Command,
    examples="""
        pgq workers
        pgq workers --json
    """,
)
@connected
async def workers(client: Client) -> None:
    """List who holds jobs; not workers that are idle.

    One line for each queue, worker and backend that claimed. Where the backend is gone its jobs
    come back when their leases expire, unless the worker has another connection.
    """
    rows = await client.fetch(sql.WORKERS)
    output.print_rows(rows, WORKERS, "No jobs are leased now. Idle workers are not listed.")


@click.command(
    cls=Command,
    examples="""
        pgq health
        pgq health --json
    """,
)
@connected
async def health(client: Client) -> None:
    """Show what keeps the queue healthy, and what is in its way.

    Maintenance, rotation, sessions that use a slot, who holds the xmin horizon, the archive and
    the slots. Only for roles that may observe all queues. See also: pgq doctor.
    """
    rows = await client.fetch(sql.HEALTH)
    output.print_rows(rows, HEALTH, "You may not observe all queues.")


@click.command(
    cls=Command,
    examples="""
        pgq locks
        pgq locks --json
    """,
)
@connected
async def locks(client: Client) -> None:
    """Show sessions that wait for a lock while they use pgq, and for whom they wait.

    Only for roles that may observe all queues.
    """
    rows = await client.fetch(sql.LOCKS)
    output.print_rows(rows, _LOCKS, "Nobody waits for a lock.")
