"""Rotation among live sessions: what is open, leased, late or moved is neither lost nor hidden."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest
from pgserver import PATIENCE

from .sessions import (
    NUMBERS,
    Connection,
    Dsn,
    Receipt,
    age_ring,
    complete,
    dequeue,
    enqueue,
    files,
    maintain,
    no_ticks,
    pages,
    raise_floors,
    ring,
    sessions,
    settle_all,
    slot_of,
    started,
    stop_clock,
    turning,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

# As cleaning does it, to a slot that is free.
MOVE = "select pgq._move($1::smallint, 3::smallint, 1000)"
FINDING = [
    "pgq_cancel($1)",
    "pgq_enqueue('2', dedupe_key => 'k', on_duplicate => 'replace') = $1",
    "(pgq_get(pgq_enqueue('2', after => array[$1::bigint]))).state = 'waiting'",
]
SESSIONS = {name: {"pgq__slot_size": "8192"} for name in "abc"}


async def turn(connection: Connection, times: int) -> int:
    """Let jobs run through until the ring has been truncated so often; returns how often."""
    seen = 0
    before = await files(connection)
    deadline = time.monotonic() + PATIENCE
    while seen < times:
        assert time.monotonic() < deadline, "the ring does not turn"
        await enqueue(connection, 200)
        await settle_all(connection)
        await age_ring(connection)
        await maintain(connection)
        after = await files(connection)
        seen += len(after - before)
        before = after
    return seen


async def fill_three_slots(connection: Connection) -> list[int]:
    """Leave a backlog in three slots and return them, oldest first."""
    live: list[int] = []
    while len(live) < 3:
        await enqueue(connection, 200)
        await maintain(connection)
        live = (await ring(connection))["live"]
    return live


async def arrives(connection: Connection, expected: set[int], patience: float) -> None:
    """Claim and complete until these jobs came; ordinary calls do all that is needed for it."""
    seen: set[int] = set()

    async def came() -> bool:
        receipts = await dequeue(connection, 10)
        seen.update(await complete(connection, receipts))
        return expected <= seen

    await until(came, patience)


async def age_transactions(connection: Connection) -> None:
    """Make maintenance take the transactions that are open now for long ones."""
    for _ in range(2):
        await connection.execute("select setval('pgq.xid_shifted', 1)")
        await maintain(connection)


async def set_clock(connection: Connection, seconds: float) -> None:
    await connection.execute(f"""
        create or replace function pgq._now() returns timestamptz
        language plpgsql volatile set search_path = pg_catalog, pg_temp
        as $$ begin return clock_timestamp() + interval '{seconds} s'; end $$
    """)


async def test_an_enqueue_left_open_across_rotations_is_delivered(
    a: Connection, b: Connection
) -> None:
    transaction = a.transaction()
    await transaction.start()
    late = await enqueue(a, 3)
    home = (await ring(b))["live"][-1]
    before = await files(b)
    await turn(b, 6)
    assert not {name for name, _ in await files(b) - before} & {f"pgq.job_{home}"}
    await transaction.commit()
    got: list[int] = []

    async def all_came() -> bool:
        got.extend(await settle_all(b))
        return len(got) >= len(late)

    await until(all_came)
    assert got == late


async def test_a_floor_does_not_pass_an_enqueue_that_is_still_running(
    a: Connection, b: Connection
) -> None:
    await stop_clock(b)  # a transaction that is open for seconds is not waited for
    await b.execute("set pgq.slot_size = '8388608'")
    await enqueue(b, 50)
    transaction = a.transaction()
    await transaction.start()
    (late,) = await enqueue(a, 1)
    for _ in range(4):
        await settle_all(b, 50)
        await raise_floors(b)
        await enqueue(b, 50)
    await settle_all(b, 50)
    await transaction.commit()
    assert await settle_all(b, 50) == [late]


async def test_a_floor_that_passed_a_long_transaction_comes_back_for_its_job(
    a: Connection, b: Connection
) -> None:
    await b.execute("set pgq.slot_size = '8388608'")
    await enqueue(b, 50)
    transaction = a.transaction()
    await transaction.start()
    (late,) = await enqueue(a, 1)
    for _ in range(4):
        await settle_all(b, 50)
        await raise_floors(b)
        await enqueue(b, 50)
        await age_transactions(b)
    await settle_all(b, 50)
    assert await b.fetchval("select max(floor) from pgq.floor_0") > late
    await transaction.commit()
    await maintain(b)
    assert await settle_all(b, 50) == [late]


@pytest.mark.parametrize("writer", ["a stranger", "an enqueue into another slot"])
async def test_a_base_passes_what_old_transactions_have_not_touched(
    a: Connection, b: Connection, writer: str
) -> None:
    transaction = a.transaction()
    await transaction.start()
    if writer == "a stranger":
        await a.execute("select pg_current_xact_id()")
    else:
        await enqueue(a, 1)
        await fill_three_slots(b)
    await b.execute("set pgq.slot_size = '8388608'")
    first = await b.fetchval("select last_value from pgq.number")
    head = (await ring(b))["live"][-1]
    for _ in range(4):
        await enqueue(b, 50)
        await settle_all(b, 50)
        await raise_floors(b)
        await age_transactions(b)
    base = await b.fetchval(f"select max(base) from pgq.floor_{head}")
    await transaction.rollback()
    assert base > first


async def choose_a_slot_that_is_freed(a: Connection, b: Connection) -> int:
    """Begin a transaction in a, have b free the slot to which it will write, and return that."""
    await a.execute("begin isolation level repeatable read")
    home: int = (await ring(a))["live"][-1]
    await maintain(b)
    await b.execute("set pgq.slot_size = '8388608'")
    await enqueue(b, 200)
    await age_ring(b)
    await maintain(b, 2)
    assert home not in (await ring(b))["live"]
    return home


async def test_an_enqueue_that_had_chosen_a_slot_before_it_was_freed_is_delivered(
    a: Connection, b: Connection, c: Connection
) -> None:
    """Nobody else writes to that slot while the transaction is open."""
    home = await choose_a_slot_that_is_freed(a, b)
    (late,) = await enqueue(a, 1)
    await b.execute("set pgq.slot_size = '8192'")
    await maintain(b, 4)
    assert home not in (await ring(b))["live"]
    await b.execute("set pgq.slot_size = '8388608'")
    # What is before it cannot be had for long.
    await c.execute("begin")
    assert len(await c.fetch("select from pgq.job for update")) == 200
    await a.execute("commit")
    assert await slot_of(b, late) == home
    await arrives(b, {late}, 5)
    await c.execute("rollback")


@pytest.mark.parametrize("call", FINDING)
async def test_a_job_is_found_in_a_slot_that_was_free_when_it_came(
    a: Connection, b: Connection, call: str
) -> None:
    home = await choose_a_slot_that_is_freed(a, b)
    late = await a.fetchval("select pgq_enqueue('1', dedupe_key => 'k')")
    await a.execute("commit")
    assert await slot_of(b, late) == home
    assert await b.fetchval(f"select {call}", late) is True


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("call", ["(pgq_claim($1)).id = $1", *FINDING])
async def test_a_job_is_found_though_it_is_moved_behind_the_looks_for_it(
    a: Connection, b: Connection, c: Connection, call: str, again: bool
) -> None:
    home = await choose_a_slot_that_is_freed(a, b)
    late = await a.fetchval("select pgq_enqueue('1', dedupe_key => 'k')")
    await a.execute("commit")
    (free, *_) = {0, 1, 2, 3} - {home, *(await ring(b))["live"]}
    for _ in range(8 if again else 0):  # with plans that are kept
        assert await b.fetchval("select pgq_cancel(0)") is False
    await a.execute(f"begin; lock table pgq.job_{home} in access exclusive mode")
    async with started(b.fetchval(f"select {call}", late)) as task:
        await waiting(c, b, task)
        await a.execute("select pgq._move($1, $2, 1000)", home, free)
        await a.execute("commit")
        assert await within(task) is True


async def test_a_sleeper_wakes_for_the_tick_that_finds_a_job_in_a_slot_that_was_free(
    a: Connection, b: Connection, c: Connection
) -> None:
    await choose_a_slot_that_is_freed(a, b)
    await b.execute("delete from pgq.job")
    (late,) = await enqueue(a, 1)
    await a.execute("commit")
    await no_ticks(b)
    assert await dequeue(c) == []
    for _ in range(40):  # the first sleeps are short anyway
        assert await c.fetchval("select pgq_wait('{default}')") <= timedelta(seconds=0.5)
    await maintain(b, 2)
    assert [job_id for job_id, _ in await dequeue(c)] == [late]


async def test_a_view_counts_a_job_once_that_is_moved_meanwhile(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(a, 1)
    await dequeue(a)
    await maintain(a)
    await c.execute("""
        alter function pgq._tally_slot(smallint, timestamptz) rename to _stopped;
        create function pgq._tally_slot(smallint, timestamptz) returns setof pgq.tally
        language plpgsql stable set search_path = pg_catalog, pg_temp as $$
        begin
            return query select * from pgq._stopped($1, $2);
            perform pg_advisory_lock(7), pg_advisory_unlock(7) where $1 = 0;
        end $$;
        select pg_advisory_lock(7);
    """)
    async with started(b.fetchrow("select ready, active, estimated from pgq_queues")) as task:
        await waiting(c, b, task)
        await a.execute(MOVE, 0)
        await c.execute("select pg_advisory_unlock(7)")
        row = await within(task)
    assert row is not None
    assert tuple(row) == (0, 1, False)


async def test_max_ready_counts_jobs_that_are_moved_meanwhile(
    a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute("select pgq_configure_queue('default', max_ready => 100)")
    await enqueue(a, 100)
    await no_ticks(a)
    await a.execute("""
        insert into pgq.ring (gen, live, ready, parked, filling, cleaned, switched_at)
        select gen + 1, '{3,0}', '{3,0}', parked, 3, '{0}', switched_at from pgq.ring
    """)
    await a.execute("begin; lock table pgq.job_0 in access exclusive mode")
    async with started(b.fetchval("select pgq_enqueue('1')")) as task:
        await waiting(c, b, task)
        await a.execute(MOVE, 0)
        await a.execute("commit")
        with pytest.raises(asyncpg.ConfigurationLimitExceededError):
            await within(task)


async def test_a_purge_waits_for_maintenance_that_is_moving_jobs(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(a, 60)
    await maintain(a)
    await no_ticks(c)
    await a.execute("begin; select from pgq.gate for update; select setval('pgq.last_tick', 1)")
    await a.execute(MOVE, 0)
    async with started(b.fetchval("select pgq_purge('default')")) as task:
        await waiting(c, b, task)
        await a.execute("commit")
        assert await within(task) == 60


async def test_a_purge_finds_jobs_that_maintenance_has_moved_meanwhile(
    a: Connection, b: Connection, c: Connection
) -> None:
    (first, *_) = await enqueue(a, 60)
    await maintain(a)
    await no_ticks(c)
    await c.execute(f"""
        alter function pgq._state_of(pgq.job, timestamptz) rename to _looked;
        create function pgq._state_of(p_job pgq.job, p_now timestamptz) returns text
        language plpgsql set search_path = pg_catalog, pg_temp as $$
        begin
            perform pg_advisory_lock(7), pg_advisory_unlock(7) where p_job.id = {first};
            return pgq._looked(p_job, p_now);
        end $$;
        select pg_advisory_lock(7);
    """)
    async with started(b.fetchval("select pgq_purge('default')")) as task:
        await waiting(c, b, task)
        await a.execute("select setval('pgq.last_tick', 1)")
        await a.execute(MOVE, 0)
        await c.execute("select pg_advisory_unlock(7)")
        assert await within(task) == 60


async def test_a_large_payload_outlives_the_slot_of_its_job(
    a: Connection, b: Connection, c: Connection
) -> None:
    job_id = await a.fetchval(
        "select pgq_enqueue(jsonb_agg(md5(i::text))) from generate_series(1, 20000) i"
    )
    await c.execute("select pg_advisory_lock(7)")
    call = "select pg_advisory_lock(7), jsonb_array_length(payload) as length from pgq_get($1)"
    async with started(b.fetchrow(call, job_id)) as task:
        await waiting(c, b, task)
        home, before = await slot_of(a, job_id), await files(a)
        await complete(a, await dequeue(a))
        await maintain(a)
        await age_ring(a)
        await maintain(a, 2)
        assert f"pgq.job_{home}" in {name for name, _ in await files(a) - before}
        await c.execute("select pg_advisory_unlock(7)")
        row = await within(task)
    assert row is not None
    assert row["length"] == 20000


async def test_a_slot_whose_jobs_are_locked_does_not_keep_others_from_being_emptied(
    a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute("set pgq.slot_size = 9000")  # no empty slot is full
    leases: list[Receipt] = []
    live: list[int] = []
    while len(live) < 3:
        await enqueue(b, 200)
        receipts = await dequeue(b, 200)
        leases += receipts[:1]
        await complete(b, receipts[1:])
        await maintain(b)
        live = (await ring(b))["live"]
    await c.execute("begin")
    locked, other = [await b.fetchval(f"select min(id) from pgq.job_{slot}") for slot in live[:2]]
    await c.execute(f"select from pgq.job_{live[0]} for update")

    async def moved() -> bool:
        await turn(b, 1)
        return await slot_of(b, other) != live[1]

    await until(moved)
    assert await slot_of(b, locked) == live[0]
    assert await turn(b, 6) >= 6
    await c.execute("rollback")

    async def follows() -> bool:
        await turn(b, 1)
        return await slot_of(b, locked) != live[0]

    await until(follows)
    assert await complete(a, leases) == [job_id for job_id, _ in leases]


async def test_a_dense_backlog_under_a_held_horizon_does_not_let_the_ring_grow(
    a: Connection, b: Connection, c: Connection
) -> None:
    size = """
        select sum(pg_relation_size(inhrelid)) from pg_inherits
         where inhparent = 'pgq.job'::regclass
    """
    await a.execute("select pgq_create_queue('kept'); select pgq_pause('kept')")
    kept: list[int] = []
    while len((await ring(a))["live"]) < 3:
        kept += [
            row[0]
            for row in await a.fetch(
                "select pgq_enqueue_many(array_fill(jsonb '1', array[800]), 'kept')"
            )
        ]
        await maintain(a)
    fresh = await a.fetchval(size)
    await c.execute("begin isolation level repeatable read; select pg_current_xact_id()")
    sizes: list[int] = []
    for _ in range(80):
        await enqueue(b, 200)
        assert len(await settle_all(b)) == 200
        await age_ring(b)
        await maintain(b)
        sizes.append(await a.fetchval(size))
    await c.execute("rollback")
    assert max(sizes) < 4 * fresh, (fresh, sizes)
    await a.execute("select pgq_resume('kept')")
    rows = await a.fetch("select id from pgq_dequeue(10000, queue => 'kept')")
    assert [row["id"] for row in rows] == kept


async def test_a_late_commit_in_a_slot_that_is_passed_by_is_delivered_though_the_slot_is_locked(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(b, 500)
    late_one = a.transaction()
    await late_one.start()
    (late,) = await enqueue(a, 1)
    home = (await ring(b))["live"][-1]
    reader = c.transaction()
    await reader.start()
    await c.execute(f"lock table pgq.job_{home} in access share mode")
    await settle_all(b)
    await maintain(b)
    await age_ring(b)
    await maintain(b, 3)
    state = await ring(b)
    assert home in set(state["live"]) - set(state["ready"])
    await late_one.commit()
    await maintain(b)
    assert await settle_all(b) == [late]
    await reader.rollback()


async def test_a_commit_between_the_look_at_a_slot_and_its_lock_is_not_truncated(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(b, 500)
    late_one = a.transaction()
    await late_one.start()
    (late,) = await enqueue(a, 1)
    await settle_all(b)
    await maintain(b)
    await age_ring(b)
    await maintain(b, 3)
    state = await ring(b)
    assert 0 in set(state["live"]) - set(state["ready"])
    # A first look that finds nothing stops here, before the lock.
    await b.execute("""
        alter function pgq._has_jobs rename to _looked;
        create function pgq._has_jobs(p_slot smallint, p_are_ready boolean default false)
        returns boolean
        language plpgsql set search_path = pg_catalog, pg_temp as $$
        declare
            v_found boolean := pgq._looked(p_slot, p_are_ready);
        begin
            if p_slot = 0 and not v_found then
                perform pg_advisory_lock(7), pg_advisory_unlock(7);
            end if;
            return v_found;
        end $$;
    """)
    await c.execute("select pg_advisory_lock(7)")
    async with started(b.execute("select pgq_maintain()")) as task:
        await waiting(c, b, task)
        await late_one.commit()
        await c.execute("select pg_advisory_unlock(7)")
        await within(task)
    await maintain(b)
    assert await settle_all(b) == [late]


async def test_the_ring_keeps_turning_while_a_slot_cannot_be_truncated(
    b: Connection, c: Connection
) -> None:
    await c.execute("begin; lock table pgq.job_0 in access share mode")
    assert await turn(b, 6) >= 6


async def test_a_claim_locks_no_slot_beyond_those_its_batch_comes_from(
    a: Connection, b: Connection
) -> None:
    first, second, third = await fill_three_slots(b)
    held = {first}
    async with a.transaction():
        for batch, more in ((100, set[int]()), (100 + 1, {second})):
            assert len(await dequeue(a, batch)) == batch
            held |= more
            rows = await b.fetch(
                "select distinct substring(relation::regclass::text from '^pgq.job_(.)')::int"
                " from pg_locks where pid = $1 and relation::regclass::text ~ '^pgq.job_[0-3]'",
                a.get_server_pid(),
            )
            assert {row[0] for row in rows} == held
    assert third not in held


@pytest.mark.parametrize(
    ("call", "slots"),
    [
        ("pgq_claim(3)", {0, 4}),
        ("pgq_claim(4)", {0, 4, 5}),
        ("pgq_reclaim()", {0}),
        ("pgq_purge('default', '{dead}')", set[int]()),
    ],
)
async def test_a_call_locks_no_slot_in_which_it_has_nothing_to_do(
    a: Connection, b: Connection, call: str, slots: set[int]
) -> None:
    now: datetime = await b.fetchval("select clock_timestamp()")
    await no_ticks(b, now)
    await enqueue(b, 2)
    assert await dequeue(b, lease="1 s")
    for group in (None, "g"):
        await b.execute(
            "select pgq_enqueue('1', run_at => $1, group_key => $2)",
            now + timedelta(seconds=1),
            group,
        )
    await stop_clock(b, now + timedelta(seconds=2))
    async with a.transaction():
        assert await a.fetch(f"select * from {call}")
        rows = await b.fetch(
            "select distinct substring(relation::regclass::text from '^pgq.job_(.)')::int"
            " from pg_locks where pid = $1 and relation::regclass::text ~ '^pgq.job_[0-5]$'",
            a.get_server_pid(),
        )
        assert {row[0] for row in rows} == slots


async def test_the_ring_keeps_turning_while_a_claim_from_a_backlog_is_left_open(
    a: Connection, b: Connection
) -> None:
    await fill_three_slots(b)
    transaction = a.transaction()
    await transaction.start()
    receipts = await dequeue(a, 10)
    assert await turn(b, 6) >= 6
    await transaction.commit()
    assert len(await complete(a, receipts)) == 10


async def test_a_backlog_of_large_payloads_is_not_moved(a: Connection) -> None:
    large = """
        select pgq_enqueue(to_jsonb(string_agg(md5($1 || i::text), '')))
          from generate_series(1, 500) i
    """
    for slot in range(3):
        for number in range(150):
            await a.execute(large, f"{slot} {number} ")
        if a.get_server_version() >= (15,):
            await a.execute("select pg_stat_force_next_flush()")
        await until(lambda: counted(a, slot, 150))  # noqa: B023 -- awaited at once
        await maintain(a)
    await maintain(a, 2)
    state = await ring(a)
    assert (state["live"], state["cleaned"]) == ([0, 1, 2], [])


async def counted(connection: Connection, slot: int, jobs: int) -> bool:
    """Return whether the statistics that cleaning goes by know of so many jobs."""
    known: int = await connection.fetchval(
        "select pg_stat_get_live_tuples(format('pgq.job_%s', $1::int)::regclass)", slot
    )
    return known >= jobs


async def test_maintenance_is_not_used_up_by_calls_that_are_rolled_back(a: Connection) -> None:
    await set_clock(a, 0)
    await maintain(a)
    last = "select last_value from pgq.last_tick"
    before: int = await a.fetchval(last)
    # More than 2.5 s have passed at the next call; half a second has not since the failed one.
    await set_clock(a, 3)
    transaction = a.transaction()
    await transaction.start()
    await dequeue(a)
    await transaction.rollback()
    assert await a.fetchval(last) == before
    await dequeue(a)
    assert await a.fetchval(last) >= before + 3000


async def test_maintenance_is_not_used_up_by_calls_for_an_unknown_queue(a: Connection) -> None:
    await set_clock(a, 0)
    await dequeue(a)
    last = "select last_value from pgq.last_tick"
    before: int = await a.fetchval(last)
    await set_clock(a, 0.6)
    with pytest.raises(asyncpg.UndefinedObjectError):
        await a.execute("select pgq_dequeue(queue => 'none such')")
    await dequeue(a)
    assert await a.fetchval(last) >= before + 600


async def test_a_publication_for_all_tables_stops_nothing(a: Connection) -> None:
    await a.execute("create publication everything for all tables")
    await a.execute("select pgq_configure_queue('default', keep_completed => '1 hour')")
    assert await turn(a, 4) >= 4
    await enqueue(a, 5)
    (released, failed, beaten, dead, gone) = await dequeue(a, 5)
    assert await a.fetchval("select pgq_release($1, $2)", *released)
    assert await a.fetchval("select pgq_fail($1, $2, retry_in => '0')", *failed) == "scheduled"
    assert await a.fetchval("select pgq_heartbeat($1::int8, $2::int8)", *beaten)
    assert await a.fetchval("select pgq_fail($1, $2, retryable => false)", *dead) == "dead"
    assert await a.fetchval("select pgq_complete($1::int8, $2::int8)", *gone)
    assert await a.fetchval("select pgq_retry($1)", dead[0])
    assert len(await settle_all(a)) == 3


@pytest.mark.parametrize("back", [10.0, 0.9])
async def test_a_clock_set_back_hides_no_job_and_stops_no_maintenance(
    a: Connection, back: float
) -> None:
    await set_clock(a, 0)
    await enqueue(a, 200)
    for _ in range(5):
        for receipt in await dequeue(a, 40):
            await a.execute("select pgq_release($1, $2)", *receipt)
        await raise_floors(a)
    assert len(await settle_all(a)) == 200
    await enqueue(a, 200)
    await set_clock(a, -back)
    released, failed = await dequeue(a, 2)
    assert await a.fetchval("select pgq_release($1, $2)", *released)
    assert await a.fetchval("select pgq_fail($1, $2, retry_in => '0')", *failed) == "scheduled"
    await arrives(a, {released[0], failed[0]}, 3)
    # Expired leases below a floor are found by ticks, which ordinary calls do.
    await enqueue(a, 200)
    leased = await dequeue(a, 64, "100 ms")
    assert len(leased) == 64
    await raise_floors(a)
    await arrives(a, {job_id for job_id, _ in leased}, 3)


async def test_ticks_leave_no_rows_behind_where_a_job_stays_parked(a: Connection) -> None:
    await a.execute("select pgq_enqueue('1', run_at => now() + '1 day')")
    await maintain(a, 50)
    assert await a.fetchval("select count(*) from pgq.floor where slot >= 4") < 3


async def test_ticks_cost_the_same_however_many_there_were_under_a_held_horizon(
    a: Connection, b: Connection
) -> None:
    await a.execute("set pgq.slot_size = '8388608'")
    await a.execute("select pgq_enqueue('1', run_at => now() + '1 day')")
    await b.execute("begin isolation level repeatable read; select 1")
    looked: list[int] = []
    for _ in range(3):
        await maintain(a, 1000)
        # At the least: one in a hundred looks at more.
        looked.append(min([await pages(a, "select pgq._tick()") for _ in range(5)]))
    assert looked[2] <= looked[0] + 3, looked


PARK = "select pgq_fail($1, $2, retry_in => '1 ms')"
# Long enough not to be due before it is parked.
PARK_LONGER = "select pgq_fail($1, $2, retry_in => '1 s')"


@pytest.mark.parametrize("back", [10.0, 0.9])
async def test_a_clock_set_back_hides_no_job_that_is_parked_afterwards(
    a: Connection, back: float
) -> None:
    await a.execute("set pgq.slot_size = '8388608'")
    await set_clock(a, 0)
    await enqueue(a, 10)
    *parked, last = await dequeue(a, 10)
    for receipt in parked:
        await a.execute(PARK, *receipt)
        await maintain(a)
    await set_clock(a, -back)
    await maintain(a)
    assert await a.fetchval(PARK, *last) == "scheduled"
    await arrives(a, {job_id for job_id, _ in [*parked, last]}, 30)


async def test_a_clock_set_back_and_an_open_transaction_hide_no_job(
    a: Connection, b: Connection
) -> None:
    """The positions of parked jobs do not pass one that others cannot see yet."""
    await a.execute("set pgq.slot_size = '8388608'")
    await b.execute("set pgq.slot_size = '8388608'")
    await set_clock(a, 0)
    await enqueue(a, 400)
    receipts = await dequeue(a, 200)
    for receipt in receipts[1:]:
        await a.execute("select pgq_release($1, $2)", *receipt)
    await settle_all(a, 50)
    await raise_floors(a)
    await set_clock(a, -5)
    transaction = b.transaction()
    await transaction.start()
    assert await b.fetchval(PARK_LONGER, *receipts[0]) == "scheduled"
    await set_clock(a, 0)
    for _ in range(4):
        await enqueue(a, 50)
        for receipt in await dequeue(a, 50):
            await a.execute(PARK, *receipt)
        await settle_all(a, 50)
        await raise_floors(a)
        await age_transactions(a)
    due = await b.fetchval("select due from pgq.job where id = $1", receipts[0][0])
    position = "select base from pgq.floor_4 order by n desc limit 1"
    assert await a.fetchval(position) < due
    await transaction.commit()
    await arrives(a, {receipts[0][0]}, 30)


async def test_a_clock_set_back_and_an_old_snapshot_hide_no_job(
    a: Connection, b: Connection
) -> None:
    """Which does not show how far others have raised the positions of parked jobs."""
    await a.execute("set pgq.slot_size = '8388608'")
    await set_clock(a, 0)
    await enqueue(a, 1)
    (receipt,) = await dequeue(a)
    transaction = b.transaction(isolation="repeatable_read")
    await transaction.start()
    await b.execute("select 1")
    for _ in range(4):
        await enqueue(a, 50)
        for other in await dequeue(a, 50):
            await a.execute(PARK, *other)
        await settle_all(a, 50)
        await raise_floors(a)
        await age_transactions(a)
    await set_clock(a, -5)
    assert await b.fetchval(PARK_LONGER, *receipt) == "scheduled"
    due = await b.fetchval("select due from pgq.job where id = $1", receipt[0])
    position = "select base from pgq.floor_4 order by n desc limit 1"
    assert await a.fetchval(position) < due
    await transaction.commit()
    await arrives(a, {receipt[0]}, 30)


async def test_nothing_is_truncated_by_sessions_that_are_not_read_committed(dsn: Dsn) -> None:
    for level in ("repeatable read", "serializable"):
        async with sessions(dsn, 1, pgq__slot_size="8192", default_transaction_isolation=level) as (
            session,
        ):
            before = await files(session)
            await session.execute("select setval('pgq.next_tick', 1)")
            for _ in range(5):
                await enqueue(session, 200)
                await settle_all(session)
            with pytest.raises(asyncpg.ActiveSQLTransactionError):
                await maintain(session)
            assert await files(session) == before
            assert await session.fetchval("select max(gen) from pgq.ring") == 1
            assert await session.fetchval("select count(*) from pgq.chore") == 0


async def test_a_maintenance_queued_before_a_snapshot_exists_does_nothing_under_an_old_one(
    a: Connection, b: Connection
) -> None:
    await enqueue(b, 500)
    await settle_all(b)
    await a.execute("begin isolation level repeatable read; insert into pgq.chore default values")
    before = await ring(b)
    await a.execute("commit")
    assert await ring(b) == before


CALLS = {
    "heartbeat": "select pgq_heartbeat($1::bigint, $2::bigint) is not null",
    "complete": "select pgq_complete($1::bigint, $2::bigint)",
    "fail": "select pgq_fail($1, $2) = 'scheduled'",
    "release": "select pgq_release($1, $2)",
    "heartbeat_many": "select count(*) = 1 from pgq_heartbeat(array[$1::int8], array[$2::int8])",
    "complete_many": "select count(*) = 1 from pgq_complete(array[$1::int8], array[$2::int8])",
}


async def leased_and_moved(a: Connection) -> Receipt:
    """Return the receipt of a job that maintenance has moved by itself."""
    await enqueue(a, 1)
    (receipt,) = await dequeue(a)
    for _ in range(40):
        # Each slot keeps one lease, so that none gets free.
        await enqueue(a, 400)
        leased = await dequeue(a, 400)
        await complete(a, leased[1:])
        await age_ring(a)
        await maintain(a)
        if await slot_of(a, receipt[0]) != receipt[1] & 7:
            return receipt
    raise AssertionError("nothing was moved")


@pytest.mark.parametrize("call", CALLS)
async def test_a_receipt_stays_good_when_maintenance_moves_its_job(
    a: Connection, call: str
) -> None:
    job_id, token = await leased_and_moved(a)
    assert token & 7 < 4
    assert await a.fetchval(CALLS[call], job_id, token) is True
    assert await complete(a, [(job_id, token + (1 << 20))]) == []


ENDING = [call for call in CALLS if not call.startswith("heartbeat")]


@pytest.mark.parametrize("call", ENDING)
async def test_a_call_waits_for_maintenance_that_is_moving_its_job_and_succeeds(
    a: Connection, b: Connection, c: Connection, call: str
) -> None:
    await enqueue(a, 1)
    (receipt,) = await dequeue(a)
    mover = b.transaction()
    await mover.start()
    await b.execute(MOVE, 0)
    async with started(a.fetchval(CALLS[call], *receipt)) as task:
        await waiting(c, a, task)
        await mover.commit()
        assert await within(task) is True


@pytest.mark.parametrize("call", ENDING)
async def test_a_call_succeeds_when_the_move_of_its_job_is_undone(
    a: Connection, b: Connection, c: Connection, call: str
) -> None:
    await enqueue(a, 1)
    (receipt,) = await dequeue(a)
    mover = b.transaction()
    await mover.start()
    await b.execute(MOVE, 0)
    async with started(a.fetchval(CALLS[call], *receipt)) as task:
        await waiting(c, a, task)
        await mover.rollback()
        assert await within(task) is True


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("call", sorted(set(CALLS) - set(ENDING)))
async def test_a_heartbeat_does_not_wait_for_maintenance_that_is_moving_its_job(
    a: Connection, b: Connection, call: str, end: str
) -> None:
    await enqueue(a, 1)
    (receipt,) = await dequeue(a)
    await b.execute("begin")
    await b.execute(MOVE, 0)
    assert await within(a.fetchval(CALLS[call], *receipt)) is True
    await b.execute(end)
    assert await within(a.fetchval(CALLS[call], *receipt)) is True


async def test_cancel_waits_for_maintenance_that_is_moving_its_job_and_succeeds(
    a: Connection, b: Connection, c: Connection
) -> None:
    (job_id,) = await enqueue(a, 1)
    mover = b.transaction()
    await mover.start()
    await b.execute(MOVE, 0)
    async with started(a.fetchval("select pgq_cancel($1)", job_id)) as task:
        await waiting(c, a, task)
        await mover.commit()
        assert await within(task) is True
    assert await dequeue(a) == []


async def test_an_expired_lease_moved_by_maintenance_is_delivered_once(
    a: Connection, b: Connection
) -> None:
    await enqueue(a, 100)
    await dequeue(a, 100, "1 ms")
    await b.execute(MOVE, 0)
    got: list[int] = []

    async def all_came() -> bool:
        got.extend(await settle_all(b, 10))
        return len(got) >= 100

    await until(all_came)
    assert sorted(got) == sorted(set(got))


OLD_SNAPSHOT_CALLS = {
    "claim": "select pgq_claim($1)",
    "cancel": "select pgq_cancel($1)",
    "purge": "select pgq_purge('default') where $1 > 0",
    "reclaim": "select pgq_reclaim() where $1 > 0",
    "dequeue": "select pgq_dequeue() where $1 > 0",
    "pop": "select pgq_pop() where $1 > 0",
}


@pytest.mark.parametrize("call", OLD_SNAPSHOT_CALLS)
async def test_an_old_snapshot_gives_40001_for_a_job_that_has_moved(
    a: Connection, b: Connection, call: str
) -> None:
    (job_id,) = await enqueue(b, 1)
    if call == "reclaim":
        await dequeue(b, 1, "1 ms")
    old = a.transaction(isolation="repeatable_read")
    await old.start()
    await a.execute("select 1")
    await move_and_truncate(b, job_id)
    with pytest.raises(asyncpg.SerializationError):
        await a.fetch(OLD_SNAPSHOT_CALLS[call], job_id)
    await old.rollback()
    assert await slot_of(b, job_id) == 3


async def test_an_old_snapshot_does_not_tell_jobs_of_others_from_unknown_ones(
    a: Connection, b: Connection
) -> None:
    (job_id,) = await enqueue(b, 1)
    await b.execute("create role guest; select pgq_create_queue('mine')")
    await b.execute("select pgq_grant('mine', 'guest', '{observe}')")
    await a.execute("set role guest")
    assert await a.fetch("select * from pgq_get($1)", job_id) == []
    for each in (job_id, job_id + 100_000):
        async with a.transaction(isolation="repeatable_read"):
            await a.execute("select 1")
            if each == job_id:
                await move_and_truncate(b, job_id)
            else:
                await b.execute("truncate pgq.job_0")
            with pytest.raises(asyncpg.SerializationError):
                async with a.transaction():
                    await a.fetch("select * from pgq_get($1)", each)
            with pytest.raises(asyncpg.SerializationError):
                async with a.transaction():
                    await a.fetch("select * from pgq_queues")
    await a.execute("reset role")
    await b.execute("drop owned by guest; drop role guest")


@pytest.mark.parametrize("call", CALLS)
async def test_an_old_snapshot_gives_40001_for_a_receipt_whose_job_has_moved(
    a: Connection, b: Connection, call: str
) -> None:
    await enqueue(b, 1)
    (receipt,) = await dequeue(b)
    old = a.transaction(isolation="repeatable_read")
    await old.start()
    await a.execute("select 1")
    await move_and_truncate(b, receipt[0])
    with pytest.raises(asyncpg.SerializationError):
        await a.fetchval(CALLS[call], *receipt)
    await old.rollback()
    assert await b.fetchval(CALLS[call], *receipt) is True


async def test_an_old_snapshot_gives_40001_for_a_head_whose_row_in_the_line_has_moved(
    a: Connection, b: Connection
) -> None:
    await b.execute("select pgq_enqueue_many('{1,2}', group_keys => '{g,g}')")
    (receipt,) = await dequeue(b)
    old = a.transaction(isolation="repeatable_read")
    await old.start()
    await a.execute("select 1")
    await b.execute("select pgq._move(4::smallint, 5::smallint, 1000); truncate pgq.job_4")
    with pytest.raises(asyncpg.SerializationError):
        await a.fetchval(CALLS["complete"], *receipt)
    await old.rollback()
    assert await b.fetchval(CALLS["complete"], *receipt) is True
    assert len(await dequeue(b)) == 1


@pytest.mark.parametrize(
    "call", ["pgq_cancel_all('default')", "pgq_purge('default')", "pgq_reclaim('default')"]
)
async def test_an_old_snapshot_gives_40001_if_a_slot_is_truncated_meanwhile(
    a: Connection, b: Connection, c: Connection, call: str
) -> None:
    await enqueue(b, 1)
    if "reclaim" in call:
        await dequeue(b, 1, "1 ms")
    old = a.transaction(isolation="repeatable_read")
    await old.start()
    await a.execute("select 1")
    await b.execute(MOVE, 0)
    await c.execute("begin; truncate pgq.job_0")
    async with started(a.fetch(f"select {call}")) as calling:
        await waiting(b, a, calling)
        await c.execute("commit")
        with pytest.raises(asyncpg.SerializationError):
            await within(calling)
    await old.rollback()


async def leased(connection: Connection, number: int) -> list[Receipt]:
    """Enqueue and claim jobs."""
    await enqueue(connection, number)
    return await dequeue(connection, number, "1 day")


async def move_and_truncate(connection: Connection, job_id: int) -> None:
    """Move a job out of slot 0 and let the slot be truncated, by completing what else is there."""
    await connection.execute(MOVE, 0)
    assert await slot_of(connection, job_id) == 3
    before = dict(await files(connection))
    # The head is left when it is full; the pages of dead versions count, so no job is touched.
    await connection.execute("begin")
    await connection.fetch(NUMBERS, 500)
    await connection.execute("rollback")

    async def truncated() -> bool:
        await age_ring(connection)
        await maintain(connection)
        return dict(await files(connection))["pgq.job_0"] != before["pgq.job_0"]

    await until(truncated)


async def test_a_slot_with_a_few_small_jobs_left_is_emptied(a: Connection) -> None:
    await a.execute("set pgq.slot_size = 100000")
    receipts = await leased(a, 2000)
    await complete(a, [receipt for n, receipt in enumerate(receipts) if n % 20])
    assert await slot_of(a, receipts[0][0]) == 0

    async def emptied() -> bool:
        await age_ring(a)
        await maintain(a)
        return bool(await a.fetchval("select pg_relation_size('pgq.job_0') = 0"))

    await until(emptied)
    assert len(await complete(a, receipts[::20])) == 100


async def test_slots_are_cleaned_also_where_payloads_are_large(a: Connection) -> None:
    """They are stored elsewhere; what counts is the room that the rows take."""
    await a.execute("reset pgq.slot_size")
    kept: list[Receipt] = []
    for slot, stay in enumerate((200, 1, 0)):
        await a.execute("""
            select pgq_enqueue(to_jsonb(array(select md5(random()::text)
                                                from generate_series(1, 128) where n > 0)))
              from generate_series(1, 200) n
        """)
        receipts = await dequeue(a, 200, "1 day")
        assert {token & 7 for _, token in receipts} == {slot}
        await complete(a, receipts[stay:])
        kept += receipts[:stay]
        await a.execute("set pgq.slot_size = 200000")
        await maintain(a)
        if slot < 2:
            await a.execute("reset pgq.slot_size")
    assert list((await ring(a))["live"]) == [0, 1, 2]
    await age_ring(a)
    await maintain(a)
    assert (await ring(a))["filling"] == 3
    assert len(await complete(a, kept)) == 201


async def test_leases_survive_a_ring_that_turns_as_fast_as_it_can(
    dsn: Dsn, a: Connection, b: Connection
) -> None:
    receipts: list[Receipt] = []
    batch: list[Receipt] = []

    async def all_came() -> bool:
        # A claim passes by what is just being moved.
        batch.extend(await dequeue(a, 120 - len(batch)))
        return len(batch) == 120

    with turning(dsn) as rotations:
        while len(receipts) < 20 or rotations.count == 0:
            await enqueue(a, 120)
            batch.clear()
            await until(all_came)
            receipts.append(batch[0])
            assert len(await complete(a, batch[1:])) == 119
            renewed = await b.fetch(
                "select id from pgq_heartbeat($1::bigint[], $2::bigint[])",
                [job_id for job_id, _ in receipts],
                [token for _, token in receipts],
            )
            assert len(renewed) == len(receipts)
        assert sorted(await complete(b, receipts)) == sorted(job_id for job_id, _ in receipts)
    assert rotations.count > 0
    assert await a.fetchval("select count(*) from pgq.job") == 0


async def test_a_hundred_open_enqueues_commit_one_by_one_while_the_ring_turns(dsn: Dsn) -> None:
    got: list[int] = []
    async with sessions(dsn, 12, pgq__slot_size="8192") as (consumer, *producers):
        expected: list[int] = []
        with turning(dsn) as rotations:
            rounds = 0
            while rounds < 8 or rotations.count == 0:
                rounds += 1
                opened: list[tuple[Connection, Any]] = []
                for producer in producers:
                    transaction = producer.transaction()
                    await transaction.start()
                    expected += await enqueue(producer, 20)
                    opened.append((producer, transaction))
                    got += await settle_all(consumer)
                for _, transaction in opened:
                    await transaction.commit()
                    got += await settle_all(consumer)

            async def all_came() -> bool:
                got.extend(await settle_all(consumer))
                return len(got) >= len(expected)

            await until(all_came)
    assert sorted(got) == sorted(expected)
    assert rotations.count > 0
