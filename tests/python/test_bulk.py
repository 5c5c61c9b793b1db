"""Calls for many jobs: what they cost, and that single calls do not deadlock with each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

import pytest

from .sessions import (
    Connection,
    Dsn,
    dequeue,
    enqueue,
    pages,
    sessions,
    started,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}}
JOBS = 2000
SETTLE = """
    select pgq_complete(array_agg(d.id), array_agg(d.token)) from pgq_dequeue(100, '1 hour') d
"""
KEYED = """
    select pgq_enqueue_many(
        array(select to_jsonb(k) from unnest($1::text[]) k), dedupe_keys => $1,
        on_duplicate => 'replace'
    )
"""


async def settle_by_hundreds(connection: Connection) -> int:
    """Claim and complete all jobs, and return how many pages that looked at."""
    total = 0
    for _ in range(JOBS // 100):
        async with connection.transaction():
            total += await pages(connection, SETTLE)
    assert await connection.fetchval("select count(*) from pgq.job") == 0
    return total


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("", "select pgq_cancel_all('default')"),
        ("", "select pgq_purge('default')"),
        pytest.param(
            "select pgq_fail(d.id, d.token, retryable => false) from pgq_dequeue($1) d",
            "select pgq_retry_dead('default', 2000)",
            marks=pytest.mark.xfail(
                strict=True, raises=AssertionError, reason="core: dead jobs come back one by one"
            ),
        ),
        ("select pgq_dequeue($1, '1 ms')", "select pgq_reclaim('default', 2000)"),
        ("select pgq_dequeue($1, '1 hour')", "select pgq_cancel_all('default', force => true)"),
    ],
    ids=["cancel_all", "purge", "retry_dead", "reclaim", "cancel_all_force"],
)
async def test_a_bulk_call_costs_what_completing_its_jobs_costs(
    a: Connection, before: str, call: str
) -> None:
    """In pages: 1.3 of it, for what a count of pages cannot tell from chance."""
    await enqueue(a, JOBS)
    await settle_by_hundreds(a)  # a session reads the catalog first
    await enqueue(a, JOBS)
    settled = await settle_by_hundreds(a)
    await enqueue(a, JOBS)
    if before:
        await a.execute(before.replace("$1", str(JOBS)))
    cost = await pages(a, call)
    assert cost <= 1.3 * settled, (cost / JOBS, settled / JOBS)


@pytest.mark.parametrize(
    "call",
    [
        "select pgq_purge('small')",
        "select pgq_cancel_all('small')",
        "select pgq_cancel_all('small', force => true)",
        "select pgq_configure_queue('small', max_active => 10)",
    ],
    ids=["purge", "cancel_all", "cancel_all_force", "max_active"],
)
async def test_a_bulk_call_reads_no_jobs_of_other_queues(a: Connection, call: str) -> None:
    put = "select pgq_enqueue('1', 'small'), pgq_enqueue('1', 'small', run_at => now() + '1 day')"
    await a.execute("select pgq_create_queue('small')")
    await a.execute(put)
    await a.execute(call)  # a session reads the catalog first
    await a.execute("select pgq_configure_queue('small', max_active => 0)")
    await a.execute(put)
    few = await pages(a, call)
    await a.execute("select pgq_configure_queue('small', max_active => 0)")
    await enqueue(a, 20_000)
    later = (
        "select pgq_enqueue_many(array_fill(jsonb '1', array[20000]), run_at => now() + '1 day')"
    )
    await a.execute(later)
    await a.execute(put)
    assert await pages(a, call) <= few + 100


async def move(mover: Connection) -> None:
    """Move the jobs of the first slot that nobody has locked to another one, as ticks do."""
    await mover.execute("select pgq._move(0::smallint, 1::smallint, 1000)")


async def blocked_by(observer: Connection, waiter: Connection, holder: Connection) -> None:
    """Return once a session waits for another one."""

    async def is_blocked() -> bool:
        blockers: list[int] = await observer.fetchval(
            "select pg_blocking_pids($1)", waiter.get_server_pid()
        )
        return holder.get_server_pid() in blockers

    await until(is_blocked)


async def lock(holder: Connection, *job_ids: int) -> None:
    await holder.execute("select from pgq.job where id = any ($1) for update", job_ids)


async def cross(
    connections: Sequence[Connection],
    ids: list[int],
    cancel: str,
    other: Coroutine[Any, Any, Any],
) -> None:
    """Let one call cancel all, and another one change all but the first job, crosswise.

    The first one has seen the last job before it is moved behind the others.
    """
    a, b, c, d = connections
    gate, _, middle, last = ids
    async with d.transaction():
        await lock(d, gate, last)
        await move(c)
    await c.execute("begin")
    await lock(c, middle)
    await c.execute("savepoint s")
    await lock(c, gate)
    async with started(a.fetchval(cancel)) as cancelling:
        await waiting(d, a, cancelling)
        await move(d)
        async with started(other) as changing:
            await blocked_by(d, b, c)
            await c.execute("rollback to s")
            await blocked_by(d, a, b)
            await c.execute("rollback")
            await within(asyncio.gather(cancelling, changing))


@pytest.fixture
async def four(dsn: Dsn) -> AsyncGenerator[list[Connection]]:
    """Yield two sessions that call, one that holds them up and one that looks on."""
    async with sessions(dsn, 4) as opened:
        yield opened


async def test_cancelling_all_and_completing_many_do_not_deadlock(four: list[Connection]) -> None:
    a, b, *_ = four
    ids = await enqueue(a, 4)
    receipts = dict(await dequeue(a, 4))
    complete = b.fetch(
        "select pgq_complete($1::bigint[], $2::bigint[])", ids[1:], [receipts[i] for i in ids[1:]]
    )
    await cross(four, ids, "select pgq_cancel_all('default', force => true)", complete)


async def test_cancelling_all_and_replacing_many_do_not_deadlock(four: list[Connection]) -> None:
    a, b, *_ = four
    keys = ["gate", "first", "middle", "last"]
    ids = [row[0] for row in await a.fetch(KEYED, keys)]
    await cross(four, ids, "select pgq_cancel_all('default')", b.fetch(KEYED, keys[1:]))


async def test_cancelling_all_waits_in_the_order_in_which_others_replace(
    four: list[Connection],
) -> None:
    a, b, c, d = four
    keys = ["first", "middle", "last"]
    ids = [row[0] for row in await a.fetch(KEYED, keys)]
    await c.execute("begin")
    await lock(c, ids[1])
    async with started(b.fetch(KEYED, keys)) as replacing:
        await blocked_by(d, b, c)
        async with started(a.fetchval("select pgq_cancel_all('default')")) as cancelling:
            await blocked_by(d, a, b)
            await c.execute("rollback")
            assert [row[0] for row in await within(replacing)] == ids
            assert await within(cancelling) == 3
