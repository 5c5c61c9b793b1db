"""Jobs that are moved while others claim, end, move or enqueue them."""

from __future__ import annotations

import asyncpg
import pytest

from .sessions import (
    Connection,
    complete,
    dequeue,
    enqueue,
    maintain,
    no_ticks,
    started,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
MOVE = "select pgq_move($1, 'other')"
PLACE = "select queue, priority, state from pgq_jobs where id = $1"


@pytest.fixture(autouse=True)
async def other(c: Connection) -> None:
    """Make the queue into which jobs are moved."""
    await c.execute("select pgq_create_queue('other')")


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_move_waits_for_a_claim(
    a: Connection, b: Connection, c: Connection, ending: str
) -> None:
    (job_id,) = await enqueue(c, 1)
    await a.execute("begin")
    assert [claimed for claimed, _ in await dequeue(a)] == [job_id]
    async with started(b.fetchval(MOVE, job_id)) as moving:
        await waiting(c, b, moving)
        await a.execute(ending)
        assert await within(moving) is (ending == "rollback")
    queue, state = ("default", "active") if ending == "commit" else ("other", "ready")
    assert tuple(await c.fetchrow(PLACE, job_id) or ()) == (queue, 0, state)


async def test_an_active_job_is_left_alone_before_it_is_looked_at(a: Connection) -> None:
    job_id = await a.fetchval("select pgq_enqueue('1', group_key => 'g')")
    with pytest.raises(asyncpg.FeatureNotSupportedError):
        await a.fetchval(MOVE, job_id)
    await dequeue(a)
    assert await a.fetchval(MOVE, job_id) is False


async def test_claims_pass_by_a_job_that_is_being_moved(
    a: Connection, b: Connection, c: Connection
) -> None:
    (job_id,) = await enqueue(c, 1)
    for ending in ("rollback", "commit"):
        await a.execute("begin")
        assert await a.fetchval(MOVE, job_id)
        assert await within(dequeue(b)) == []
        await a.execute(ending)
    assert await dequeue(b) == []
    call = "select id from pgq_dequeue(queue => 'other')"
    assert await b.fetchval(call) == job_id


async def test_of_two_moves_the_second_one_goes_on_from_the_first_one(
    a: Connection, b: Connection, c: Connection
) -> None:
    (job_id,) = await enqueue(c, 1)
    await a.execute("begin")
    assert await a.fetchval(MOVE, job_id)
    async with started(b.fetchval("select pgq_move($1, priority => 7)", job_id)) as moving:
        await waiting(c, b, moving)
        await a.execute("commit")
        assert await within(moving) is True
    assert tuple(await c.fetchrow(PLACE, job_id) or ()) == ("other", 7, "ready")


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_move_waits_for_who_enqueues_its_key(
    a: Connection, b: Connection, c: Connection, ending: str
) -> None:
    job_id = await c.fetchval("select pgq_enqueue('1', dedupe_key => 'k')")
    await a.execute("begin")
    await a.execute("select pgq_enqueue('2', 'other', dedupe_key => 'k')")
    async with started(b.fetchval(MOVE, job_id)) as moving:
        await waiting(c, b, moving)
        await a.execute(ending)
        if ending == "commit":
            with pytest.raises(asyncpg.UniqueViolationError):
                await within(moving)
        else:
            assert await within(moving) is True


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_who_enqueues_the_key_of_a_job_waits_for_its_move(
    a: Connection, b: Connection, c: Connection, ending: str
) -> None:
    job_id = await c.fetchval("select pgq_enqueue('1', dedupe_key => 'k')")
    await a.execute("begin")
    assert await a.fetchval(MOVE, job_id)
    add = b.fetchval("select pgq_enqueue('2', 'other', dedupe_key => 'k')")
    async with started(add) as adding:
        await waiting(c, b, adding)
        await a.execute(ending)
        added = await within(adding)
    assert (added == job_id) is (ending == "commit")
    keys = "select count(*), count(distinct queue) from pgq_jobs where dedupe_key = 'k'"
    assert tuple(await c.fetchrow(keys) or ()) == ((1, 1) if ending == "commit" else (2, 2))


async def test_what_a_moved_job_waits_for_completes_meanwhile(
    a: Connection, b: Connection, c: Connection
) -> None:
    for move_ends in ("commit", "rollback"):
        (first,) = await enqueue(c, 1)
        waiter = await c.fetchval("select pgq_enqueue('2', after => array[$1::bigint])", first)
        receipts = await dequeue(c)
        await no_ticks(c)
        # Whoever completes locks what the job waits for; whoever moves the job waits for nobody.
        await a.execute("begin")
        assert await within(complete(a, receipts)) == [first]
        await b.execute("begin")
        assert await within(b.fetchval(MOVE, waiter))
        await within(a.execute("commit"))
        await b.execute(move_ends)
        await maintain(c, 2)
        queue = "other" if move_ends == "commit" else "default"
        assert tuple(await c.fetchrow(PLACE, waiter) or ()) == (queue, 0, "ready")
        await c.execute("select pgq_cancel($1)", waiter)


async def test_a_move_needs_privileges_on_both_queues(a: Connection, c: Connection) -> None:
    (job_id,) = await enqueue(c, 1)
    await c.execute("create role mover; grant mover to current_user")
    await c.execute("select pgq_grant('default', 'mover', '{manage}')")
    await a.execute("set session authorization mover")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await a.fetchval(MOVE, job_id)
    assert await a.fetchval("select pgq_move($1, priority => 2)", job_id)
    await c.execute("select pgq_grant('other', 'mover', '{enqueue}')")
    assert await a.fetchval(MOVE, job_id)
    assert await a.fetchval("select pgq_move($1, priority => 3)", job_id) is False
    assert tuple(await c.fetchrow(PLACE, job_id) or ()) == ("other", 2, "ready")


async def test_an_old_snapshot_does_not_move_what_has_changed(a: Connection, c: Connection) -> None:
    (job_id,) = await enqueue(c, 1)
    await a.execute("begin isolation level repeatable read; select 1 from pgq_jobs")
    await c.execute("select pgq_move($1, priority => 3)", job_id)
    with pytest.raises(asyncpg.SerializationError):
        await a.fetchval(MOVE, job_id)
