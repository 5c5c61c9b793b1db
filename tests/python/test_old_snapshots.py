"""Calls under an old snapshot: 40001 if it may hide something, and only then."""

from __future__ import annotations

import pytest

from .sessions import Connection, complete, dequeue, enqueue, slot_of

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}
OLD = "begin isolation level repeatable read; select 1"
PUT = "select pgq_enqueue('1', dedupe_key => $1)"
# What looks for a job, or for a receipt, and whether the job is claimed.
FINDING = {
    "cancel": ("pgq_cancel(id)", False),
    "claim": ("(pgq_claim(id)).id is not null", False),
    "get": ("(pgq_get(id)).id is not null", False),
    "complete": ("pgq_complete(id, token)", True),
    "fail": ("pgq_fail(id, token) = 'scheduled'", True),
    "release": ("pgq_release(id, token)", True),
    "complete many": ("pgq_complete(array[id], array[token]) = id", True),
}


async def act(connection: Connection, call: str, *receipt: int) -> object:
    """Call with the id of a job and a token."""
    names = "(select $1::bigint as id, $2::bigint as token) r"
    return await connection.fetchval(f"select {call} from {names}", *receipt)


@pytest.mark.parametrize("call", FINDING)
async def test_a_job_that_has_not_moved_is_found_while_other_slots_are_truncated(
    a: Connection, b: Connection, call: str
) -> None:
    (job_id,) = await enqueue(b, 1)
    text, is_claimed = FINDING[call]
    token = (await dequeue(b))[0][1] if is_claimed else 0
    await a.execute(OLD)
    await b.execute("truncate pgq.job_1")
    assert await act(a, text, job_id, token) is True
    await a.execute("commit")


async def test_a_key_whose_job_is_about_to_complete_is_taken(a: Connection, b: Connection) -> None:
    job_id = await b.fetchval(PUT, "k")
    receipts = await dequeue(b)
    await a.execute(OLD)
    await b.execute("begin")
    assert await complete(b, receipts) == [job_id]
    assert await a.fetchval(PUT, "k") == job_id
    await a.execute("commit")
    await b.execute("commit")
    assert await slot_of(b, job_id) is None
