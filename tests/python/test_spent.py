"""Spent slots: plain claims pass by them, and whatever becomes claimable there is found in time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from .sessions import (
    Connection,
    Dsn,
    Receipt,
    age_ring,
    complete,
    enqueue,
    maintain,
    raise_floors,
    ring,
    sessions,
    slot_of,
    stop_clock,
)

pytestmark = pytest.mark.server

# An empty slot has one page, a used one more.
SESSIONS = {name: {"pgq__slot_size": "9000"} for name in "abc"}
JOBS = 40


async def claim(connection: Connection, batch: int) -> list[Receipt]:
    """Claim without a tick, as most calls do."""
    rows = await connection.fetch(
        "select d.id, d.token from (select setval('pgq.last_tick', pgq._ms(pgq._now())),"
        " setval('pgq.next_tick', pgq._ms(pgq._now()) + 400) offset 0) t,"
        " lateral pgq_dequeue($1, case when t is not null then interval '1 day' end) d",
        batch,
    )
    return [(row["id"], row["token"]) for row in rows]


async def plain(connection: Connection, batch: int = 1) -> list[int]:
    """Claim without a tick and return the ids."""
    return [job_id for job_id, _ in await claim(connection, batch)]


async def leave(connection: Connection) -> int:
    """Let the slot that is written be left, and return which it was."""
    (home,) = (await ring(connection))["live"][-1:]
    await maintain(connection)
    assert (await ring(connection))["live"][-1] != home
    return int(home)


async def age(connection: Connection) -> None:
    """Let two seconds have passed since the slot was left."""
    await age_ring(connection)
    await maintain(connection)


async def pass_by(connection: Connection) -> None:
    """Let the claim positions pass what is still open."""
    for _ in range(4):
        await connection.execute("select setval('pgq.xid_shifted', 1)")
        await maintain(connection)
        await raise_floors(connection)


async def is_spent(connection: Connection, slot: int) -> bool:
    """Tell whether claims pass by a slot."""
    now = await ring(connection)
    assert slot in now["live"]
    return slot not in now["ready"]


async def leased(connection: Connection, number: int = JOBS) -> list[Receipt]:
    """Enqueue jobs and claim them."""
    await enqueue(connection, number)
    receipts = await claim(connection, number)
    assert len(receipts) == number
    return receipts


async def expire(connection: Connection) -> None:
    """Let all leases have expired."""
    await connection.execute("""
        create or replace function pgq._now() returns timestamptz
        language plpgsql volatile set search_path = pg_catalog, pg_temp
        as $$ begin return clock_timestamp() + interval '2 days'; end $$
    """)


@pytest.mark.parametrize("call", ["pgq_dequeue(1)", "pgq_pop(1)"])
@pytest.mark.parametrize("ending", ["rollback", "prepared"])
async def test_what_a_claim_gives_back_by_rolling_back_is_there_for_the_next_one(
    a: Connection, b: Connection, call: str, ending: str
) -> None:
    await leased(a)
    (last,) = await enqueue(a, 1)
    await b.execute("begin; select setval('pgq.next_tick', pgq._ms(pgq._now()) + 400)")
    assert await b.fetchval(f"select id from {call}") == last
    if ending == "prepared":
        await b.execute("prepare transaction 'claim'")
    home = await leave(a)
    await age(a)
    assert not await is_spent(a, home)
    assert await plain(a) == []
    await b.execute("rollback prepared 'claim'" if ending == "prepared" else "rollback")
    assert await plain(a) == [last]
    await age(a)
    assert await is_spent(a, home)


async def test_an_enqueue_that_is_open_while_its_slot_is_left_is_there_when_it_commits(
    a: Connection, b: Connection
) -> None:
    await stop_clock(a)
    await leased(a)
    await b.execute("begin")
    (late,) = await enqueue(b, 1)
    await leave(a)
    await maintain(a, 3)
    await b.execute("commit")
    assert await plain(a) == [late]


@pytest.mark.parametrize("ending", ["commit", "prepared"])
@pytest.mark.parametrize("group", [None, "one"])
async def test_an_enqueue_that_commits_to_a_spent_slot_is_there_after_the_next_tick(
    a: Connection, b: Connection, ending: str, group: str | None
) -> None:
    await leased(a)
    await b.execute("begin")
    late = await b.fetchval("select pgq_enqueue('1', group_key => $1)", group)
    if ending == "prepared":
        await b.execute("prepare transaction 'enqueue'")
    home = await leave(a)
    await age(a)
    await pass_by(a)
    assert await is_spent(a, home)
    assert await a.fetchval(f"select max(floor) from pgq.floor_{home}") >= late
    await b.execute("commit prepared 'enqueue'" if ending == "prepared" else "commit")
    # The next tick moves a job that was prepared with a group.
    await maintain(a)
    assert await plain(a) == [late]


async def test_who_sleeps_is_called_back_soon_for_a_late_commit_in_a_spent_slot(
    a: Connection, b: Connection, c: Connection
) -> None:
    await leased(a)
    await b.execute("begin")
    await enqueue(b, 1)
    home = await leave(a)
    await age(a)
    assert await is_spent(a, home)
    await b.execute("commit")
    for _ in range(20):
        assert await c.fetchval("select pgq_wait('{default}')") <= timedelta(seconds=1)


async def test_expired_leases_in_a_spent_slot_are_claimed_at_full_rate_after_a_tick(
    a: Connection, b: Connection
) -> None:
    ids = [job_id for job_id, _ in await leased(a)]
    home = await leave(a)
    since = (await ring(a))["switched_at"] - timedelta(seconds=2)
    await age(a)
    assert await is_spent(a, home)
    # Of pgq_health that is the age of the rotation.
    assert (await ring(a))["switched_at"] == since
    (newer,) = await enqueue(a, 1)
    await expire(a)
    assert await plain(a) == [newer]
    await maintain(a)
    for start in range(0, JOBS, 5):
        assert await plain(b, 5) == ids[start : start + 5]


async def test_expired_leases_in_a_spent_slot_are_claimable_within_a_second(
    a: Connection, b: Connection
) -> None:
    receipts = await leased(a)
    home = await leave(a)
    await age(a)
    assert await is_spent(a, home)
    now = await stop_clock(a)
    rows = await a.fetch(
        "select h.* from pgq_heartbeat($1::int8[], $2::int8[], interval '200 ms') h",
        [job_id for job_id, _ in receipts],
        [token for _, token in receipts],
    )
    expiry = {row["id"]: row["lease_expires_at"] for row in rows}
    assert len(expiry) == JOBS
    late: dict[int, float] = {}
    for step in range(26):
        await stop_clock(a, now + timedelta(milliseconds=50 * step))
        while rows := await b.fetch("select id, token, claimed_at from pgq_dequeue(5)"):
            for row in rows:
                late[row["id"]] = (row["claimed_at"] - expiry[row["id"]]).total_seconds()
                await complete(b, [(row["id"], row["token"])])
    assert len(late) == JOBS
    assert min(late.values()) >= 0
    assert max(late.values()) < 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_consumers_with_an_old_snapshot_find_what_a_tick_has_freed(
    dsn: Dsn, a: Connection, level: str
) -> None:
    ids = [job_id for job_id, _ in await leased(a)]
    home = await leave(a)
    await age(a)
    assert await is_spent(a, home)
    await expire(a)
    await maintain(a)
    async with sessions(dsn, 1, default_transaction_isolation=level) as (old,):
        assert await plain(old, JOBS) == ids


async def test_receipts_are_good_in_a_spent_slot_and_it_is_truncated_when_they_are_used(
    a: Connection,
) -> None:
    receipts = await leased(a)
    home = await leave(a)
    await age(a)
    assert await is_spent(a, home)
    assert await complete(a, receipts) == [job_id for job_id, _ in receipts]
    await maintain(a, 2)
    now = await ring(a)
    assert home not in now["live"] + now["ready"]
    assert await a.fetchval("select pg_relation_size($1::text)", f"pgq.job_{home}") == 0


async def test_what_comes_late_to_a_slot_that_was_just_left_is_not_passed_by(
    a: Connection, b: Connection
) -> None:
    await leased(a)
    await b.execute("begin")
    late = await enqueue(b, 2)
    home = await leave(a)
    ids = await enqueue(a, 3)
    await b.execute("commit")
    assert await plain(a) == late[:1]
    assert await plain(a, 3) == late[1:] + ids[:2]
    await b.execute("begin")
    await b.execute("select pgq_release(id, token) from pgq.job where id = $1", late[0])
    assert await plain(a) == ids[2:]
    await b.execute("commit")
    assert not await is_spent(a, home)
    assert await plain(a, 3) == late[:1]


async def test_two_slots_that_were_just_left_are_not_passed_by(a: Connection) -> None:
    await leased(a)
    await leave(a)
    middle = await enqueue(a, JOBS)
    await leave(a)
    ids = await enqueue(a, 2)
    assert len((await ring(a))["ready"]) == 3
    assert await plain(a, JOBS - 1) == middle[:-1]
    assert await plain(a, 9) == middle[-1:] + ids


async def test_what_an_old_snapshot_adds_to_the_slot_that_it_knows_comes_first(
    a: Connection, b: Connection
) -> None:
    await leased(a)
    await b.execute("begin isolation level repeatable read; select from pgq.ring")
    home = await leave(a)
    first = await enqueue(a, 1)
    late = await enqueue(b, 1)
    await b.execute("commit")
    last = await enqueue(a, 1)
    assert await slot_of(a, late[0]) == home
    assert await plain(a) == late
    assert await plain(a) == first
    assert await plain(a) == last
