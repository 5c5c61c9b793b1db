"""A clock that was wrong for a while: real sessions go on when it is right."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from .sessions import Connection, complete, dequeue, enqueue, maintain, until

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}
YEAR = timedelta(days=365)
LATE = "select count(*) from pgq.job where greatest(run_at, lease_expires_at) > now() + '1 hour'"

# What somebody does to what lies too far ahead.
LOCKED = {
    "jobs": "select from pgq.job for update",
    "schedules": "select pgq_pause_schedule('s')",
    "starts": "select pgq_configure_queue('default', rate_limit => 8)",
}


async def set_clock(connection: Connection, ahead: timedelta = timedelta()) -> None:
    """Let the queue's clock go on so far ahead of the server's."""
    await connection.execute(f"""
        create or replace function pgq._now() returns timestamptz
        language plpgsql volatile set search_path = pg_catalog, pg_temp
        as $$ begin return clock_timestamp() + interval '{ahead.total_seconds()} s'; end $$
    """)


async def fetch_health(connection: Connection) -> dict[str, Any]:
    """Return the status of each subject that is told of once."""
    rows = await connection.fetch("select subject, status from pgq_health")
    return {row["subject"]: row["status"] for row in rows}


async def count_late(connection: Connection) -> dict[str, int]:
    """Return how many jobs, schedules and starts are due in more than a day."""
    row = await connection.fetchrow(f"""
        select ({LATE}) as jobs,
               (select count(*) from pgq.schedule
                 where next_at > pgq._now() + interval '1 day') as schedules,
               (select count(*) from pgq.start s join pgq.queue q on q.id = s.queue_id
                 where s.moment > pgq._moment(q, pgq._now() + interval '1 day')) as starts
    """)
    assert row is not None
    return dict(row)


async def test_after_a_year_ahead_everything_goes_on_by_ordinary_calls(
    a: Connection, b: Connection
) -> None:
    await set_clock(a, YEAR)
    await a.execute("select pgq_schedule('s', '* * * * *')")
    ids = await enqueue(a, 4)
    # Ticks come with the claims.
    left, failed, released, done = await dequeue(a, 4, "1 s")
    await a.execute("select pgq_fail($1, $2, retry_in => '500 ms')", *failed)
    await a.execute("select pgq_release($1, $2)", *released)
    assert await complete(a, [done]) == [done[0]]
    await set_clock(a)
    assert (await fetch_health(a))["maintenance"] == "warning"
    came: dict[int, int] = {}

    async def all_came() -> bool:
        for job_id, token in await dequeue(b, 10, "1 s"):
            came[job_id] = token
            await complete(b, [(job_id, token)])
        return set(ids) - {done[0]} <= set(came)

    await until(all_came)
    assert left[0] in came
    health = await fetch_health(a)
    assert (health["clock"], health["maintenance"]) == ("warning", "ok")
    waits: timedelta = await a.fetchval("select next_at - now() from pgq_schedules")
    assert waits <= timedelta(minutes=1)


@pytest.mark.parametrize("ended", ["commit", "rollback"])
async def test_what_was_under_way_when_the_clock_was_set_back_is_found(
    a: Connection, b: Connection, ended: str
) -> None:
    """A tick does not see it, or cannot lock it, and comes again for ten minutes."""
    await set_clock(a, YEAR)
    await enqueue(a, 2)
    held, failed = await dequeue(a, 2, "1 minute")
    await maintain(a)
    await b.execute("begin")
    await b.execute("select pgq_fail($1, $2, retry_in => '5 s')", *failed)
    await b.execute("select from pgq.job where id = $1 for update", held[0])
    await set_clock(a)
    await maintain(a, 2)
    assert await a.fetchval(LATE) == 2, "the open transaction has kept both"
    await b.execute(ended)
    await set_clock(a, timedelta(minutes=1))
    await maintain(a)
    assert await a.fetchval(LATE) == 0


@pytest.mark.parametrize("locked", LOCKED)
async def test_what_others_have_locked_when_the_clock_was_set_back_is_mended_later(
    a: Connection, b: Connection, locked: str
) -> None:
    await set_clock(a, YEAR)
    await a.execute("select pgq_schedule('s', '0 * * * *')")
    await a.execute(
        "select pgq_configure_queue('default', rate_limit => 9, rate_interval => '1 day')"
    )
    await enqueue(a, 1)
    await dequeue(a, 1, "1 minute")
    await maintain(a)
    await set_clock(a)
    await b.execute(f"begin; {LOCKED[locked]}")
    await a.execute("set lock_timeout = '500 ms'")
    await maintain(a)
    mended = {"jobs": 0, "schedules": 0, "starts": 0}
    assert await count_late(a) == mended | {locked: 1}
    await b.execute("rollback")
    await set_clock(a, timedelta(minutes=1))
    await maintain(a)
    assert await count_late(a) == mended


async def test_a_tick_that_is_rolled_back_leaves_it_to_the_next_one(a: Connection) -> None:
    await set_clock(a, YEAR)
    await enqueue(a, 1)
    await dequeue(a, 1, "1 minute")
    await maintain(a)
    await set_clock(a)
    await a.execute("begin")
    await a.execute("select pgq._tick()")
    assert await a.fetchval(LATE) == 0
    await a.execute("rollback")
    assert await a.fetchval(LATE) == 1
    await maintain(a)
    assert await a.fetchval(LATE) == 0
    await maintain(a)
    assert (await fetch_health(a))["maintenance"] == "ok"
