"""Commits that notify where the notification queue is full, with and without prepared ones."""

from __future__ import annotations

import contextlib

import asyncpg
import pytest

from .conftest import TEMPLATE, serve
from .sessions import dequeue, dsn_of, sessions, until

pytestmark = pytest.mark.server

PUT = "select pgq_enqueue('1')"
WAIT = "select pgq_wait('{default}')"


@pytest.mark.once
@pytest.mark.parametrize("prepared", ["0", "10"])
async def test_a_commit_that_would_notify_succeeds_while_the_queue_is_full(prepared: str) -> None:
    """It is full while a session of any database listens and does not read."""
    with serve(max_notify_queue_pages="64", max_prepared_transactions=prepared) as server:
        async with sessions(dsn_of(server, TEMPLATE), 4) as (deaf, caller, sleeper, producer):
            # The first call tells others that it waits.
            await sleeper.fetchval(WAIT)
            await sleeper.fetchval(WAIT)
            await deaf.execute("listen noise")
            await deaf.execute("begin; select 1")
            with contextlib.suppress(asyncpg.ProgramLimitExceededError):
                while True:
                    await caller.execute("select pg_notify('noise', repeat('x', 7000))")
            await producer.execute(PUT)
            await deaf.execute("rollback")
            assert len(await dequeue(sleeper, 10)) == 1

            async def has_room() -> bool:
                return bool(await caller.fetchval("select pg_notification_queue_usage() < 0.1"))

            await until(has_room)
