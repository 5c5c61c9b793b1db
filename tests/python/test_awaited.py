"""Jobs that change while somebody waits to let another one run after them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from .sessions import Connection, Dsn, enqueue, sessions, slot_of, started, until, waiting, within

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
AFTER = "select pgq_enqueue('0', after => $1)"
LATER = "select pgq_enqueue('1', run_at => clock_timestamp() + '1 hour')"
LOCK = "begin; select from pgq.job where id = {} for update"


@pytest_asyncio.fixture
async def guest(a: Connection, c: Connection) -> AsyncIterator[Connection]:
    """Session a as a role that may enqueue into the default queue, and not into 'closed'."""
    await c.execute("select pgq_create_queue('closed'); create role guest")
    await c.execute("select pgq_grant('default', 'guest', '{enqueue}')")
    await a.execute("set role guest")
    yield a
    a.terminate()
    await c.execute("drop owned by guest; drop role guest")


@pytest.mark.parametrize("run_at", ["null", "clock_timestamp() + '1 hour'"])
async def test_a_job_that_is_moved_to_a_queue_of_others_is_not_known_any_more(
    guest: Connection, b: Connection, c: Connection, run_at: str
) -> None:
    job_id = await c.fetchval(f"select pgq_enqueue('1', run_at => {run_at})")
    await b.execute("begin")
    assert await b.fetchval("select pgq_move($1, 'closed')", job_id)
    async with started(guest.fetchval(AFTER, [job_id])) as adding:
        await waiting(c, guest, adding)
        await b.execute("commit")
        waiter = await within(adding)
    state = await c.fetchval("select state from pgq_jobs where id = $1", waiter)
    assert state == "ready"
    assert await c.fetchval("select count(*) from pgq.dependency") == 0


async def test_who_waits_for_a_job_has_none_locked_that_comes_behind_it(
    dsn: Dsn, a: Connection, b: Connection, c: Connection
) -> None:
    """Jobs are locked by slot and id. Two fall due while a waits for the last one of the ring."""

    async def waits_for(holder: Connection) -> None:
        async def blocked() -> bool:
            blockers: list[int] = await b.fetchval(
                "select pg_blocking_pids($1)", a.get_server_pid()
            )
            return blockers == [holder.get_server_pid()]

        await until(blocked)

    early = [await c.fetchval(LATER) for _ in range(2)]
    (first,) = await enqueue(c, 1)
    async with sessions(dsn, 1) as (other,):
        await other.execute(LOCK.format(first))
        async with started(a.fetchval(AFTER, [first, *early])) as adding:
            await waiting(b, a, adding)
            for job_id in early:
                now = "select pgq_move($1, run_at => clock_timestamp())"
                assert await c.fetchval(now, job_id)
                assert await slot_of(c, job_id) == 0
            await c.execute(LOCK.format(early[1]))
            await other.execute("rollback")
            await waits_for(c)
            # Whoever waits for one of these has none behind it.
            await b.execute(f"{LOCK.format(first)} nowait; rollback")
            await c.execute("rollback")
            waiter = await within(adding)
    on = "select array_agg(on_id order by on_id) from pgq.dependency where job_id = $1"
    assert await b.fetchval(on, waiter) == [*early, first]
