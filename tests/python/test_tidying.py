"""What a tick tidies beside the ring: it waits for nobody, and loses nothing that others write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from .sessions import Connection, complete, dequeue, enqueue, maintain, stop_clock, within

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
# As two sessions do that use a priority first.
TWO_LANES = """
    set session_replication_role = replica;
    insert into pgq.lane select l.* from pgq.lane l where l.queue = 'default';
    reset session_replication_role;
    update pgq.lane set is_bounded = not is_bounded where queue = 'default'
"""
MINUTE = timedelta(minutes=1)
# In seconds. No setting ends what waits at a commit for a lock and goes on without it.
SOON = 10


async def test_ends_that_commit_when_their_minute_is_summed_up_count_as_well(
    a: Connection, b: Connection
) -> None:
    await stop_clock(a, NOON)
    await enqueue(a, 2)
    await complete(a, await dequeue(a))
    await b.execute("begin")
    await complete(b, await dequeue(b))
    await stop_clock(a, NOON + 2 * MINUTE)
    await within(maintain(a), SOON)
    await b.execute("commit")
    done = "select completed_last_hour from pgq_queues"
    assert await a.fetchval(done) == 2
    await maintain(a)
    assert await a.fetchval("select count(*) from pgq.stat") == 1
    assert await a.fetchval(done) == 2


@pytest.mark.parametrize("mode", ["access share", "row exclusive", "access exclusive"])
async def test_an_archive_that_others_use_is_emptied_later(
    a: Connection, b: Connection, mode: str
) -> None:
    await stop_clock(a, NOON)
    await a.execute("select pgq_configure_queue('default', keep_completed => '5 minutes')")
    await enqueue(a, 1)
    await complete(a, await dequeue(a))
    table = await a.fetchval("select tableoid::regclass::text from pgq.archive")
    size = f"select pg_relation_size('{table}')"
    await b.execute(f"begin; lock table {table} in {mode} mode")
    await stop_clock(a, NOON + 15 * MINUTE)
    await within(maintain(a), SOON)
    await b.execute("commit")
    assert await a.fetchval(size) > 0
    await maintain(a)
    assert await a.fetchval(size) == 0


async def test_hints_that_others_are_about_to_write_stay(a: Connection, b: Connection) -> None:
    await stop_clock(a, NOON)
    await a.execute(
        "insert into pgq.hint (kind, key) select 'l', -n from generate_series(1, 30000) n"
    )
    await a.execute("delete from pgq.hint")
    await b.execute("begin; insert into pgq.hint (kind, key) values ('x', -1)")
    await within(maintain(a), SOON)
    await b.execute("commit")
    assert await a.fetchval("select count(*) from pgq.hint where key = -1") == 1


async def test_lanes_that_others_have_locked_are_merged_later(a: Connection, b: Connection) -> None:
    await stop_clock(a, NOON)
    await enqueue(a, 1)
    await a.execute(TWO_LANES)
    await b.execute("begin; select from pgq.lane for update")
    await within(maintain(a), SOON)
    await b.execute("commit")
    state = "select array_agg(is_bounded) from pgq.lane where queue = 'default'"
    assert await a.fetchval(state) == [True, True]
    await maintain(a)
    assert await a.fetchval(state) == [False]


async def test_samples_of_a_queue_that_others_have_locked_are_fitted_later(
    a: Connection, b: Connection
) -> None:
    await a.execute("update pgq.queue set sample = 8 where name = 'default'")
    await b.execute("begin; select from pgq.queue for no key update")
    await within(maintain(a), SOON)
    await b.execute("commit")
    sample = "select sample from pgq.queue where name = 'default'"
    assert await a.fetchval(sample) == 8
    await maintain(a)
    assert await a.fetchval(sample) == 4


@pytest.mark.parametrize("cursor", ["of the transaction", "held since an earlier one"])
async def test_a_cursor_that_is_not_filled_behind_a_tick_does_not_put_it_off(
    a: Connection, b: Connection, cursor: str
) -> None:
    ticks = "select pg_sequence_last_value('pgq.last_tick')"
    await stop_clock(a)
    await maintain(a)
    await stop_clock(a, await a.fetchval("select clock_timestamp() + interval '1 hour'"))
    before = await a.fetchval(ticks)
    declare = "declare c cursor {} for select 1"
    if cursor == "of the transaction":
        await b.execute(f"begin; {declare.format('')}")
    else:
        await b.execute(f"begin; {declare.format('with hold')}; commit")
        await b.execute("begin")
    await b.execute("select pgq_maintain(); commit")
    assert await a.fetchval(ticks) > before
