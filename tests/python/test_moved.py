"""An old snapshot does not see jobs that maintenance has moved since: the call says so, or works.

TRUNCATE empties a slot for all snapshots. Under REPEATABLE READ and SERIALIZABLE a call that misses
a row then raises 40001. A call that has found its rows works, whatever was truncated elsewhere.
"""

from __future__ import annotations

import asyncpg
import pytest

from .sessions import Connection, Receipt, dequeue, enqueue

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}

ISOLATIONS = ["read_committed", "repeatable_read", "serializable"]
# Each of them looks for the row of a job in the line of its group.
OF_A_GROUP = {
    "complete": "select pgq_complete($1::bigint, $2::bigint)",
    "complete many": "select count(*) = 1 from pgq_complete(array[$1::int8], array[$2::int8])",
    "fail": "select pgq_fail($1, $2, retry_in => '1 hour') = 'scheduled'",
    "release": "select pgq_release($1, $2, '1 hour')",
    "retry": "select pgq_retry($1) where $2::bigint > 0",
}
SETTLING = {
    "complete": OF_A_GROUP["complete"],
    "complete many": """
        select count(*) = 1 from pgq_complete(array[$1::int8], array[$2::int8], '{"1"}'::jsonb[])
    """,
    "fail": OF_A_GROUP["fail"],
    "release": "select pgq_release($1, $2)",
    "heartbeat": "select pgq_heartbeat($1::bigint, $2::bigint) is not null",
    "cancel": "select pgq_cancel($1, force => true) where $2::bigint > 0",
}
FINDING = ["pgq_cancel($1)", "(pgq_claim($1)).id is not null", "(pgq_get($1)).id is not null"]


async def lead_a_group(connection: Connection, call: str) -> Receipt:
    """Return the receipt of the first job of a group: leased, or dead for a retry."""
    await connection.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    await connection.execute("select pgq_enqueue('1', group_key => 'g')")
    (receipt,) = await dequeue(connection)
    if call == "retry":
        await connection.execute("select pgq_fail($1, $2, retryable => false)", *receipt)
    return receipt


async def move_lines(connection: Connection) -> None:
    """Move what is parked to the other slot, and empty the first one, as maintenance does."""
    assert await connection.fetchval("select pgq._move(4::smallint, 5::smallint, 1000)") == 1
    await connection.execute("truncate pgq.job_4")


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("call", OF_A_GROUP)
async def test_a_row_in_a_line_that_has_moved_is_found_or_the_call_fails(
    a: Connection, b: Connection, call: str, isolation: str
) -> None:
    receipt = await lead_a_group(b, call)
    await a.execute(f"begin isolation level {isolation.replace('_', ' ')}")
    await a.execute("select 1")
    await move_lines(b)
    if isolation == "read_committed":
        assert await a.fetchval(OF_A_GROUP[call], *receipt) is True
        await a.execute("commit")
        return
    with pytest.raises(asyncpg.SerializationError):
        await a.fetchval(OF_A_GROUP[call], *receipt)
    await a.execute("rollback")
    assert await b.fetchval(OF_A_GROUP[call], *receipt) is True


@pytest.mark.parametrize("call", OF_A_GROUP)
async def test_the_end_of_a_job_of_a_group_is_not_refused_for_slots_that_it_is_not_in(
    a: Connection, b: Connection, call: str
) -> None:
    receipt = await lead_a_group(b, call)
    async with a.transaction(isolation="repeatable_read"):
        await a.execute("select 1")
        await b.execute("truncate pgq.job_2, pgq.job_5")
        assert await a.fetchval(OF_A_GROUP[call], *receipt) is True


@pytest.mark.parametrize("call", SETTLING)
async def test_a_receipt_is_not_refused_for_slots_that_its_job_is_not_in(
    a: Connection, b: Connection, call: str
) -> None:
    await enqueue(b, 1)
    (receipt,) = await dequeue(b)
    async with a.transaction(isolation="repeatable_read"):
        await a.execute("select 1")
        await b.execute("truncate pgq.job_2, pgq.job_5")
        assert await a.fetchval(SETTLING[call], *receipt) is True


@pytest.mark.parametrize("call", FINDING)
async def test_a_job_is_found_when_slots_that_it_is_not_in_were_truncated(
    a: Connection, b: Connection, call: str
) -> None:
    (job_id,) = await enqueue(b, 1)
    async with a.transaction(isolation="repeatable_read"):
        await a.execute("select 1")
        await b.execute("truncate pgq.job_2, pgq.job_5")
        assert await a.fetchval(f"select {call}", job_id) is True


@pytest.mark.parametrize("ageing", ["0", "1 hour"])
async def test_a_claim_that_finds_too_few_is_refused_when_slots_were_truncated(
    a: Connection, b: Connection, ageing: str
) -> None:
    await b.execute(
        "select pgq_configure_queue('default', priority_ageing => $1::text::interval)", ageing
    )
    await enqueue(b, 1)
    transaction = a.transaction(isolation="repeatable_read")
    await transaction.start()
    await a.execute("select 1")
    await b.execute("truncate pgq.job_2, pgq.job_5")
    assert len(await a.fetch("select * from pgq_dequeue(1)")) == 1
    with pytest.raises(asyncpg.SerializationError, match="moved by maintenance"):
        await a.fetch("select * from pgq_dequeue(1)")
    await transaction.rollback()


async def test_an_unknown_job_is_unknown_when_other_tables_were_truncated(
    a: Connection, b: Connection
) -> None:
    (job_id,) = await enqueue(b, 1)
    async with a.transaction(isolation="repeatable_read"):
        await a.execute("select 1")
        await b.execute("truncate pgq.archive_3, pgq.floor_2, pgq.note_2, pgq.hold_2")
        assert await a.fetchval("select pgq_cancel($1)", job_id + 1000) is False
        assert await a.fetch("select * from pgq_get($1)", job_id + 1000) == []


@pytest.mark.parametrize("call", ["pgq_claim($1)", "pgq_cancel($1)"])
async def test_an_old_snapshot_answers_alike_for_unknown_jobs_and_those_of_others(
    a: Connection, b: Connection, call: str
) -> None:
    (job_id,) = await enqueue(b, 1)
    await b.execute("create role guest; select pgq_create_queue('mine')")
    await b.execute("select pgq_grant('mine', 'guest', '{consume,manage}')")
    await a.execute("set role guest")
    async with a.transaction(isolation="repeatable_read"):
        await a.execute("select 1")
        await b.execute("truncate pgq.job_2")
        for each in (job_id, job_id + 1000):
            with pytest.raises(asyncpg.SerializationError):
                async with a.transaction():
                    await a.fetch(f"select {call}", each)
    await a.execute("reset role")
    await b.execute("drop owned by guest; drop role guest")
