"""A claim looks into the ring alone, and nothing that is ready is anywhere else."""

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
LOCKED = """
    select count(*) from pg_locks
     where pid = pg_backend_pid() and relation in ('pgq.job_4'::regclass, 'pgq.job_5'::regclass)
"""
MANY = "select pgq_enqueue_many(array(select '1'::jsonb from unnest($1::text[])), group_keys => $1)"


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
    assert await slot_of(a, job_id) == 4
    await stop_clock(a, now + timedelta(seconds=2))
    await maintain(a)
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


@pytest.mark.parametrize("how", [release, fail, retry, schedule, follow, depend, replace])
async def test_what_becomes_ready_is_found_at_once(
    a: Connection, b: Connection, how: Callable[[Connection], Awaitable[int]]
) -> None:
    await no_ticks(a)
    job_id = await how(a)
    await no_ticks(a)
    assert [found for found, _ in await dequeue(b)] == [job_id]


async def test_of_groups_that_are_busy_in_the_other_parked_slot_all_jobs_wait(
    a: Connection, dsn: Dsn
) -> None:
    groups = [f"g{number}" for number in range(20)]
    ids = [row[0] for row in await a.fetch(MANY, groups * 2)]
    async with sessions(dsn, 1, pgq__slot_size="8192") as (b,):
        while (await ring(b))["parked"][-1] != 5:
            await maintain(b)
    await no_ticks(a)
    thirds = [row[0] for row in await a.fetch(MANY, groups)]
    assert {await slot_of(a, job_id) for job_id in thirds} == {5}
    for expected in (ids[:20], ids[20:], thirds):
        receipts = await dequeue(a, 20)
        assert [job_id for job_id, _ in receipts] == expected
        assert len(await complete(a, receipts)) == 20


@pytest.mark.parametrize("arguments", [", run_at => now() + '1 hour'", ", group_key => 'g'"])
async def test_a_claim_leaves_the_parked_slots_alone(a: Connection, arguments: str) -> None:
    await put(a, arguments)
    await put(a)
    await no_ticks(a)
    async with a.transaction():
        assert len(await dequeue(a)) == 1
        assert await a.fetchval(LOCKED) == 0
