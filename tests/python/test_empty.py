"""A claim does not look into parked slots that are known to be empty, and misses nothing there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from .sessions import (
    Connection,
    Dsn,
    complete,
    dequeue,
    maintain,
    no_ticks,
    ring,
    sessions,
    slot_of,
    stop_clock,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}
KNOWN = """
    select array(
        select s from unnest(array[4, 5], array[
            pg_sequence_last_value('pgq.empty_4'), pg_sequence_last_value('pgq.empty_5')
        ]) u (s, since) where since is not null order by s
    )
"""
LOCKED = """
    select count(*) from pg_locks
     where pid = pg_backend_pid() and relation in ('pgq.job_4'::regclass, 'pgq.job_5'::regclass)
"""
MANY = "select pgq_enqueue_many(array(select '1'::jsonb from unnest($1::text[])), group_keys => $1)"


async def known(connection: Connection) -> list[int]:
    """Return the parked slots that are known to be empty."""
    slots: list[int] = await connection.fetchval(KNOWN)
    return slots


async def rest(connection: Connection) -> None:
    """Let ticks find out what is empty; none comes after that."""
    await maintain(connection, 2)
    assert await known(connection) == [4, 5]
    await no_ticks(connection)


async def put(connection: Connection, arguments: str = "") -> int:
    """Enqueue a job and return its id."""
    job_id: int = await connection.fetchval(f"select pgq_enqueue('1'{arguments})")
    return job_id


async def release(a: Connection) -> int:
    job_id = await put(a)
    await a.execute("select pgq_release(d.id, d.token) from pgq_dequeue(1) d")
    return job_id


async def fail(a: Connection) -> int:
    job_id = await put(a)
    await a.execute("select pgq_fail(d.id, d.token, retry_in => '0') from pgq_dequeue(1) d")
    return job_id


async def retry(a: Connection) -> int:
    job_id = await put(a)
    await a.execute("select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue(1) d")
    assert await a.fetchval("select pgq_retry($1)", job_id)
    return job_id


async def schedule(a: Connection) -> int:
    now = await stop_clock(a)
    job_id = await put(a, f", run_at => '{now + timedelta(seconds=1)}'")
    await no_ticks(a, now + timedelta(seconds=2))
    return job_id


async def follow(a: Connection) -> int:
    await put(a, ", group_key => 'g'")
    first = await dequeue(a)
    job_id = await put(a, ", group_key => 'g'")
    assert len(await complete(a, first)) == 1
    return job_id


async def depend(a: Connection) -> int:
    first = await put(a)
    receipts = await dequeue(a)
    job_id = await put(a, f", after => array[{first}]")
    assert len(await complete(a, receipts)) == 1
    return job_id


async def replace(a: Connection) -> int:
    job_id = await put(a, ", dedupe_key => 'k'")
    assert await put(a, ", dedupe_key => 'k', on_duplicate => 'replace'") == job_id
    return job_id


@pytest.mark.parametrize("park", [release, fail, retry, schedule, follow, depend, replace])
async def test_what_is_parked_is_found_at_once(
    a: Connection, b: Connection, park: Callable[[Connection], Awaitable[int]]
) -> None:
    await rest(a)
    job_id = await park(a)
    assert await slot_of(b, job_id) == 4
    assert 4 not in await known(b)
    assert [found for found, _ in await dequeue(b)] == [job_id]


async def test_of_groups_that_are_busy_in_the_other_parked_slot_all_jobs_wait(
    a: Connection, dsn: Dsn
) -> None:
    groups = [f"g{number}" for number in range(20)]
    ids = [row[0] for row in await a.fetch(MANY, groups * 2)]
    async with sessions(dsn, 1, pgq__slot_size="8192") as (b,):
        while (await ring(b))["parked"][-1] != 5:
            await maintain(b)
    await maintain(a)
    assert await known(a) == [5]
    await no_ticks(a)
    thirds = [row[0] for row in await a.fetch(MANY, groups)]
    assert {await slot_of(a, job_id) for job_id in thirds} == {5}
    assert await known(a) == []
    for expected in (ids[:20], ids[20:], thirds):
        receipts = await dequeue(a, 20)
        assert [job_id for job_id, _ in receipts] == expected
        assert len(await complete(a, receipts)) == 20


async def test_a_slot_that_is_locked_for_writing_is_not_taken_for_empty(
    a: Connection, b: Connection
) -> None:
    await rest(b)
    await a.execute("begin; select pgq._open_slot(4::smallint)")
    await maintain(b, 2)
    assert await known(b) == [5]
    await a.execute("rollback")
    await maintain(b)
    assert await known(b) == [4, 5]


async def test_rows_of_somebody_who_does_not_know_the_register_are_found_by_a_tick(
    a: Connection,
) -> None:
    job_id = await release(a)
    await a.execute("create table kept as select * from pgq.job_4; truncate pgq.job_4")
    await rest(a)
    await a.execute("insert into pgq.job_4 select * from kept")
    assert await known(a) == [4, 5]
    await maintain(a)
    assert await known(a) == [5]
    assert [found for found, _ in await dequeue(a)] == [job_id]


async def test_in_a_restored_database_nothing_is_known_to_be_empty(a: Connection) -> None:
    await rest(a)
    await a.execute("select setval('pgq.home', 1), pgq._skip_lost_tokens()")
    assert await known(a) == []


async def test_a_claim_leaves_a_slot_alone_that_is_known_to_be_empty(a: Connection) -> None:
    await rest(a)
    await put(a)
    async with a.transaction():
        assert len(await dequeue(a)) == 1
        assert await a.fetchval(LOCKED) == 0
    await a.execute("select setval('pgq.empty_4', 1, false)")
    await put(a)
    async with a.transaction():
        assert len(await dequeue(a)) == 1
        assert await a.fetchval(LOCKED) > 0
