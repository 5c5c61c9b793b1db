"""When the next tick comes, while others are at work."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from .sessions import Connection, dequeue, maintain, no_ticks, stop_clock

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}
MS = timedelta(milliseconds=1)
MANY = "select pgq_enqueue_many(array_fill(jsonb '1', array[$1::int]), run_at => $2)"


async def until_next(connection: Connection) -> int:
    """Return in how many milliseconds the next tick is due."""
    ms: int = await connection.fetchval(
        "select last_value - pgq._ms(pgq._now()) from pgq.next_tick"
    )
    return ms


async def clock(connection: Connection) -> datetime:
    """Stop the clock where no tick is due, and return the time."""
    await no_ticks(connection)
    now: datetime = await connection.fetchval("select pgq._now()")
    return now


async def test_a_backlog_goes_on_soon_after_a_tick_that_others_found_at_work(
    a: Connection, b: Connection
) -> None:
    now = await clock(b)
    await b.execute(MANY, 2500, now + 10 * MS)
    await stop_clock(b, now + 10 * MS)
    tick = a.transaction()
    await tick.start()
    await a.execute("select pgq._tick()")
    assert await until_next(b) == 20
    await stop_clock(b, now + 40 * MS)
    await dequeue(b)
    assert await until_next(b) == 20
    await tick.commit()
    for at, ready in ((60, 1000), (61, 2000), (81, 2000), (82, 2500)):
        await stop_clock(b, now + at * MS)
        await dequeue(b)
        assert await b.fetchval("select count(*) from pgq.job where pos is not null") == ready


async def test_a_job_that_falls_due_during_a_tick_is_looked_for_soon_after_it(
    a: Connection, b: Connection
) -> None:
    now = await clock(b)
    await b.execute(MANY, 1, now + 100 * MS)
    tick = a.transaction()
    await tick.start()
    await a.execute("select pgq._tick()")
    assert await until_next(b) == 100
    await stop_clock(b, now + 101 * MS)
    assert await dequeue(b) == []
    assert await until_next(b) == 20
    await tick.commit()


async def test_a_slow_tick_that_others_find_at_work_is_not_followed_at_once(
    a: Connection, b: Connection
) -> None:
    now = await clock(b)
    tick = a.transaction()
    await tick.start()
    await a.execute("select pgq._tick()")
    await stop_clock(b, now + 501 * MS)
    await dequeue(b)
    assert await until_next(b) == 500
    await tick.commit()


@pytest.mark.parametrize(
    "call",
    [
        "select pgq_enqueue('1', run_at => pgq._now() + '300 ms')",
        "select pgq_dequeue(timeout => '299 ms')",
    ],
)
async def test_a_tick_does_not_put_off_what_an_open_transaction_expects(
    a: Connection, b: Connection, call: str
) -> None:
    now = await clock(b)
    await b.execute("select pgq_enqueue('2')")
    other = a.transaction()
    await other.start()
    await a.execute(call)
    assert await until_next(b) == 300
    await stop_clock(b, now + 100 * MS)
    await maintain(b)
    assert await until_next(b) == 200
    await other.commit()
