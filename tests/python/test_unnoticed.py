"""Who sleeps looks again soon for those that write jobs, and sleeps well beside all others."""

from __future__ import annotations

from datetime import timedelta

import pytest

from .sessions import Connection

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}
WAIT = "select pgq_wait('{default}')"
LONG = timedelta(seconds=30)
# What an open transaction may have done when a session begins to wait.
STRANGERS = {
    "reads a slot": "select from pgq.job_0",
    "reads the queues": "select from pgq.queue",
    "locks a queue": "select from pgq.queue for key share",
    "writes a table": "insert into own values (1)",
    "writes a partition": "insert into parted values (1)",
    "writes the archive": "insert into pgq.archive select from pgq.archive",
}
WRITERS = {
    "enqueues": "select pgq_enqueue('1')",
    "enqueues for later": "select pgq_enqueue('1', run_at => clock_timestamp() + '1 hour')",
    "configures": "select pgq_configure_queue('default', max_active => 7)",
    "schedules": "select pgq_schedule('s', '0 0 1 1 *')",
}


async def tables(connection: Connection) -> None:
    """Create a table and a partition of others."""
    await connection.execute("""
        create table own (n integer);
        create table parted (n integer) partition by range (n);
        create table parted_0 partition of parted default
    """)


@pytest.mark.parametrize("act", STRANGERS)
async def test_who_writes_no_job_keeps_nobody_awake(a: Connection, b: Connection, act: str) -> None:
    await tables(b)
    await b.execute(f"begin; {STRANGERS[act]}")
    # The first call tells others that it waits.
    await a.fetchval(WAIT)
    assert await a.fetchval(WAIT) == LONG
    await b.execute("commit")


@pytest.mark.parametrize("act", WRITERS)
async def test_who_has_begun_to_write_jobs_keeps_others_awake(
    a: Connection, b: Connection, act: str
) -> None:
    await b.execute(f"begin; {WRITERS[act]}")
    await a.fetchval(WAIT)
    for _ in range(12):
        assert await a.fetchval(WAIT) <= timedelta(seconds=1)
    await b.execute("rollback")
    assert await a.fetchval(WAIT) == LONG


@pytest.mark.parametrize("act", WRITERS)
async def test_who_begins_to_write_when_others_sleep_lets_them_sleep(
    a: Connection, b: Connection, act: str
) -> None:
    await a.fetchval(WAIT)
    assert await a.fetchval(WAIT) == LONG
    await b.execute(f"begin; {WRITERS[act]}")
    for _ in range(2):
        assert await a.fetchval(WAIT) == LONG
    await b.execute("rollback")
