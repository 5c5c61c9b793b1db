"""A clock that was wrong for a while: real sessions go on when it is right."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from .sessions import Connection, complete, dequeue, enqueue, maintain, stop_clock, until

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


async def test_what_is_parked_before_the_second_tick_is_in_time_however_late_that_comes(
    a: Connection, b: Connection
) -> None:
    """A consumer that runs every quarter of an hour, and whose clock was a day ahead."""
    await set_clock(a, timedelta(days=1))
    await enqueue(a, 1)
    await maintain(a, 3)
    await set_clock(a)
    [receipt] = await dequeue(b)
    await b.execute("select pgq_fail($1, $2, retry_in => '1 minute')", *receipt)
    for quarter in (1, 2):
        await set_clock(a, quarter * timedelta(minutes=15))
        await maintain(a)
    assert [job_id for job_id, _ in await dequeue(b)] == [receipt[0]]


@pytest.mark.parametrize("ahead", [timedelta(hours=1), YEAR])
async def test_a_parked_slot_that_a_full_vacuum_has_emptied_keeps_no_time(
    a: Connection, ahead: timedelta
) -> None:
    await set_clock(a, ahead)
    job_id = await a.fetchval("select pgq_enqueue('1', run_at => pgq._now() + '1 hour')")
    await maintain(a, 3)
    await a.execute("select pgq_cancel($1)", job_id)
    await a.execute("vacuum full pgq.job_4")
    assert await a.fetchval("select pg_relation_size('pgq.job_4')") == 0
    await set_clock(a)
    await maintain(a, 4)
    await set_clock(a, timedelta(minutes=11))
    await maintain(a, 4)
    behind = "pg_sequence_last_value('pgq.last_tick') <= pgq._ms(pgq._now())"
    assert await a.fetchval(f"select {behind}") is True
    await a.execute("select pgq_enqueue('2', run_at => pgq._now() + '1 second')")
    await set_clock(a, timedelta(minutes=11, seconds=2))
    await maintain(a)
    assert len(await dequeue(a)) == 1


async def test_a_clock_that_jumps_to_and_fro_hides_no_job(a: Connection, b: Connection) -> None:
    start = await stop_clock(b)

    async def tick_at(*seconds: int) -> None:
        for second in seconds:
            await stop_clock(b, start + timedelta(seconds=second))
            await maintain(b)

    await stop_clock(b, start + timedelta(seconds=4000))
    await b.execute("select pgq_enqueue('1', run_at => pgq._now() + '1 day')")
    await tick_at(4000, 4001, 4002, 0, 1, 2, 4100)
    await stop_clock(b, start + timedelta(seconds=100))
    await a.execute("begin")
    job_id = await a.fetchval("select pgq_enqueue('2', run_at => pgq._now() + '5 s')")
    await tick_at(4101)
    await a.execute("commit")
    await tick_at(4110, 4111, 4112)
    assert [found for found, _ in await dequeue(b)] == [job_id]
