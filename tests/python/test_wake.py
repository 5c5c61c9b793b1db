"""Waking sessions that sleep: who is notified and who is not, and that no job waits for long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

import asyncpg
import pgq
import pytest
from pgq._worker.link import backoff
from pgq._worker.listen import Listener

from .conftest import TEMPLATE, serve
from .sessions import (
    Connection,
    Dsn,
    complete,
    dequeue,
    dsn_of,
    enqueue,
    maintain,
    raise_floors,
    sessions,
    started,
    until,
    waiting,
    within,
)

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
NEVER = timedelta(hours=1)
SECOND = timedelta(seconds=1)
PUT = "select pgq_enqueue('1')"
WAIT = "select pgq_wait($1)"
REGISTERED = """
    select count(*) from pg_locks
     where locktype = 'advisory' and classid = 1885826917 and mode = 'ShareLock' and granted
       and database = (select oid from pg_database where datname = current_database())
"""


class Ear:
    """A session that listens on the channel of a queue and counts what it hears."""

    def __init__(self, connection: Connection, channel: str) -> None:
        self.connection = connection
        self.channel = channel
        self.heard: list[str] = []

    async def count(self) -> int:
        """Return how many notifications have come; what was sent before has arrived."""
        # Notifications of others reach a session before the answer to its own statement.
        mark = f"mark {self.connection.get_server_pid()}"
        await self.connection.execute(f"notify {self.channel}, '{mark}'")

        async def marked() -> bool:
            return mark in self.heard

        await until(marked)
        number = self.heard[: self.heard.index(mark)].count("")
        del self.heard[: self.heard.index(mark) + 1]
        return number


async def listen(connection: Connection, queue: str = "default") -> Ear:
    """Let a session listen."""
    ear = Ear(connection, await connection.fetchval("select pgq_channel($1)", queue))

    def hear(_: object, __: int, ___: str, text: object) -> None:
        ear.heard.append(str(text))

    await connection.add_listener(ear.channel, hear)
    return ear


async def sleep(connection: Connection, *queues: str) -> timedelta:
    """Wait until there is nothing to do for long, and return for how long."""

    async def deep() -> timedelta:
        pause: timedelta = await connection.fetchval(WAIT, [*(queues or ["default"])])
        return pause if pause > SECOND else timedelta(0)

    return await until(deep)


async def active(connection: Connection, **options: str) -> tuple[int, int]:
    """Enqueue a job, claim it, and return its receipt."""
    arguments = "".join(f", {name} => '{value}'" for name, value in options.items())
    await connection.fetchval(f"select pgq_enqueue('1'{arguments})")
    (receipt,) = await dequeue(connection)
    return receipt


# Who is notified


async def test_nobody_is_notified_while_nobody_waits(a: Connection, b: Connection) -> None:
    ear = await listen(b)
    await a.execute(PUT)
    await enqueue(a, 10)
    receipt = (await dequeue(a))[0]
    await a.execute("select pgq_release($1, $2)", *receipt)
    assert await ear.count() == 0
    await sleep_and_wake(b)
    await a.execute(PUT)
    assert await ear.count() == 0


async def sleep_and_wake(connection: Connection) -> None:
    """Begin to wait and end it."""
    await connection.fetchval(WAIT, ["default"])
    await connection.fetchval(WAIT, ["default"])
    await connection.execute("select pgq_wake()")


async def test_who_waits_is_notified_once_for_each_statement(a: Connection, b: Connection) -> None:
    ear = await listen(b)
    assert await sleep(b) == timedelta(seconds=30)
    await a.execute(PUT)
    assert await ear.count() == 1
    await enqueue(a, 100)
    assert await ear.count() == 1
    await a.execute("select pgq_enqueue('1', dedupe_key => 'k')")
    assert await ear.count() == 1
    await a.execute("select pgq_enqueue('1', dedupe_key => 'k')")
    assert await ear.count() == 0
    await a.execute("begin")
    await a.execute(PUT)
    assert await ear.count() == 0
    await a.execute("rollback")
    assert await ear.count() == 0


async def test_who_is_given_jobs_all_the_time_is_not_notified(a: Connection, b: Connection) -> None:
    ear = await listen(b)
    await sleep(b)
    await a.execute(PUT)
    assert await ear.count() == 1

    async def told() -> bool:
        return bool(await b.fetchval(WAIT, ["default"]) == timedelta(0))

    for _ in range(20):
        await b.execute("select pgq_wake()")
        assert len(await complete(b, await dequeue(b))) == 1
        assert timedelta(0) < await b.fetchval(WAIT, ["default"]) < SECOND
        assert await a.fetchval(REGISTERED) == 0
        await a.execute(PUT)
        await until(told)
    assert await ear.count() == 0


async def test_only_those_who_wait_for_that_queue_are_notified(
    a: Connection, b: Connection, c: Connection
) -> None:
    await a.execute("select pgq_create_queue('it''s a \"queue\"')")
    ear, other = await listen(b), await listen(c, 'it\'s a "queue"')
    await sleep(c, 'it\'s a "queue"')
    await a.execute(PUT)
    assert (await ear.count(), await other.count()) == (0, 0)
    await a.execute("select pgq_enqueue('1', 'it''s a \"queue\"')")
    assert (await ear.count(), await other.count()) == (0, 1)


async def test_several_who_wait_are_all_notified(
    a: Connection, b: Connection, c: Connection
) -> None:
    first, second = await listen(b), await listen(c)
    await sleep(b)
    await sleep(c)
    await a.execute(PUT)
    assert (await first.count(), await second.count()) == (1, 1)
    await b.execute("select pgq_wake()")
    await a.execute("select * from pgq_pop()")
    await a.execute(PUT)
    assert await second.count() == 1


async def test_the_first_jobs_of_a_priority_wake(a: Connection, b: Connection) -> None:
    ear = await listen(b)
    await sleep(b)
    for call in ("'1', priority => 7", "'1', priority => 8, dedupe_key => 'k'"):
        for _ in range(2):
            await a.execute(f"select pgq_enqueue({call}); delete from pgq.job")
            assert await ear.count() == 1
    await a.execute("select pgq_enqueue('1', priority => 9, expires_at => now() + '1 hour')")
    assert await ear.count() == 1


async def test_a_session_does_not_notify_itself_alone(a: Connection) -> None:
    ear = await listen(a)
    await sleep(a)
    await a.execute(PUT)
    assert await ear.count() == 0


async def test_jobs_that_come_back_wake(a: Connection, b: Connection) -> None:
    ear = await listen(b)
    receipts = [await active(a) for _ in range(5)]
    await sleep(b)
    await a.execute("select pgq_fail($1, $2, 'no', '0')", *receipts[0])
    assert await ear.count() == 1, "fail"
    await a.execute("select pgq_fail($1, $2, 'no', '5 s')", *receipts[1])
    assert await ear.count() == 1, "fail, to be tried soon: the sleeper must set its alarm"
    await a.execute("select pgq_fail($1, $2, 'no', '2 hours')", *receipts[2])
    assert await ear.count() == 0, "fail, to be tried much later"
    await a.execute("select pgq_release($1, $2)", *receipts[3])
    assert await ear.count() == 1, "release"
    await a.execute("select pgq_fail($1, $2, 'no', retryable => false)", *receipts[4])
    assert await ear.count() == 0, "dead"
    assert await a.fetchval("select pgq_retry($1)", receipts[4][0])
    assert await ear.count() == 1, "retry"
    for receipt in await dequeue(a, 10):
        await a.execute("select pgq_fail($1, $2, 'no', retryable => false)", *receipt)
    assert await ear.count() == 0
    assert await a.fetch("select pgq_retry_dead('default')")
    assert await ear.count() == 1, "retry_dead"


async def test_jobs_that_are_scheduled_wake_only_if_soon(a: Connection, b: Connection) -> None:
    ear = await listen(b)
    await sleep(b)
    put = "select pgq_enqueue('1', run_at => now() + $1::text::interval, dedupe_key => $2)"
    await a.execute(put, "1 hour", "k")
    assert await ear.count() == 0
    await a.execute(put, "20 s", None)
    assert await ear.count() == 1
    assert timedelta(seconds=15) < await sleep(b) <= timedelta(seconds=21)
    await a.execute(
        "select pgq_enqueue('1', run_at => now() + '10 s', dedupe_key => 'k',"
        " on_duplicate => 'replace')"
    )
    assert await ear.count() == 1, "brought forward"
    assert await sleep(b) < timedelta(seconds=11)


async def test_followers_wake_when_they_become_heads(a: Connection, b: Connection) -> None:
    ear = await listen(b)
    receipt = await active(a, group_key="g")
    await a.execute("select pgq_enqueue('2', group_key => 'g')")
    assert await dequeue(a) == []
    await sleep(b)
    assert await complete(a, [receipt]) == [receipt[0]]
    assert await ear.count() == 1
    (second,) = await dequeue(a)
    await a.execute("select pgq_enqueue('3', group_key => 'g')")
    await ear.count()
    await a.execute("select pgq_fail($1, $2, 'no', retryable => false)", *second)
    assert await ear.count() == 1


async def test_after_jobs_wake_when_they_become_ready(a: Connection, b: Connection) -> None:
    ear = await listen(b)
    receipt = await active(a)
    await sleep(b)
    await a.execute("select pgq_enqueue('2', after => array[$1::bigint])", receipt[0])
    assert await ear.count() == 0
    assert await complete(a, [receipt]) == [receipt[0]]
    assert await ear.count() == 1
    assert len(await dequeue(a)) == 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("follows", ["group_key => 'g'", "after => array[$1::bigint]"])
async def test_who_leaves_something_to_the_next_tick_wakes_who_does_it(
    a: Connection, b: Connection, level: str, follows: str
) -> None:
    ear = await listen(b)
    receipt = await active(a, **({"group_key": "g"} if "group" in follows else {}))
    await a.execute(f"select pgq_enqueue('2', {follows})", *receipt[: "after" in follows])
    await sleep(b)
    another = await active(b, group_key="h")
    await sleep(b)
    await a.execute(f"begin isolation level {level}")
    assert await complete(a, [receipt]) == [receipt[0]]
    assert await complete(a, [another]) == [another[0]]
    await a.execute("commit")
    assert await ear.count() == 1


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
async def test_a_group_that_is_blocked_no_more_wakes(
    a: Connection, b: Connection, level: str
) -> None:
    ear = await listen(b)
    await a.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    receipt = await active(a, group_key="g")
    await a.execute("select pgq_enqueue('2', group_key => 'g')")
    await a.execute("select pgq_fail($1, $2, 'no', retryable => false)", *receipt)
    await sleep(b)
    await a.execute(f"begin isolation level {level}; select pgq_purge('default', '{{dead}}')")
    await a.execute("commit")
    assert await ear.count() == 1


async def test_a_group_whose_next_job_is_locked_wakes_who_does_the_next_tick(
    a: Connection, b: Connection, c: Connection
) -> None:
    ear = await listen(b)
    receipt = await active(a, group_key="g")
    replace = (
        "select pgq_enqueue('2', group_key => 'g', dedupe_key => 'k', on_duplicate => 'replace')"
    )
    await a.execute(replace)
    await sleep(b)
    await c.execute(f"begin; {replace}")
    assert await complete(a, [receipt]) == [receipt[0]]
    assert await ear.count() == 1
    await c.execute("commit")
    assert await b.fetchval(WAIT, ["default"]) < SECOND


async def test_settings_that_let_jobs_run_wake(a: Connection, b: Connection) -> None:
    ear = await listen(b)
    await a.execute("select pgq_pause('default')")
    await a.execute(PUT)
    await sleep(b)
    await a.execute("select pgq_pause('default')")
    assert await ear.count() == 0
    await a.execute("select pgq_resume('default')")
    assert await ear.count() == 1
    await a.execute("select pgq_configure_queue('default', max_active => 5)")
    assert await ear.count() == 1


async def test_schedules_wake_so_that_sleepers_set_their_alarm(
    a: Connection, b: Connection
) -> None:
    ear = await listen(b)
    await sleep(b)
    await a.execute("select pgq_schedule('s', '* * * * *')")
    assert await ear.count() == 1
    await a.execute("select pgq_pause_schedule('s')")
    await ear.count()
    assert await sleep(b) == timedelta(seconds=30)
    await a.execute("select pgq_resume_schedule('s')")
    assert await ear.count() == 1
    await a.execute("update pgq.schedule set next_at = clock_timestamp() + '5 s'")
    assert await sleep(b) < timedelta(seconds=6)


# Nothing is missed


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
async def test_a_job_that_commits_after_the_look_is_not_missed_for_long(
    a: Connection, b: Connection, level: str
) -> None:
    ear = await listen(b)
    await a.execute(f"begin isolation level {level}; {PUT}")
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        pause = await b.fetchval(WAIT, ["default"])
        assert timedelta(0) < pause <= SECOND
        await asyncio.sleep(0.02)
    await a.execute("commit")
    assert await b.fetchval(WAIT, ["default"]) == timedelta(0) or await ear.count() == 1


@pytest.mark.parametrize(
    "call",
    [
        "pgq_resume('default')",
        "pgq_schedule('new', '* * * * *')",
        "pgq_resume_schedule('s')",
        "pgq_retry(id) from pgq.archive",
        "pgq_complete(id, token) from pgq.job where group_key is not null and token is not null",
    ],
)
async def test_what_lets_jobs_run_and_commits_after_the_look_is_not_missed(
    a: Connection, b: Connection, call: str
) -> None:
    dead = await active(a)
    await a.execute("select pgq_fail($1, $2, 'no', retryable => false)", *dead)
    await a.execute("select pgq_schedule('s', '* * * * *'), pgq_pause_schedule('s')")
    await active(a, group_key="g")
    await a.execute("select pgq_enqueue('1', group_key => 'g')")
    if "resume('" in call:
        await a.execute(f"{PUT}; select pgq_pause('default')")
    await a.execute("update pgq.lane set awaited_until = clock_timestamp() + '3 minutes'")
    await a.execute(f"begin; select {call}")
    for _ in range(15):
        assert timedelta(0) < await b.fetchval(WAIT, ["default"]) <= SECOND
    await a.execute("commit")
    await a.execute("update pgq.schedule set next_at = clock_timestamp() where not paused")
    assert await b.fetchval(WAIT, ["default"]) == timedelta(0)


async def found_by_looking(writer: Connection, sleeper: Connection, ear: Ear) -> None:
    """Commit what was begun before the sleeper could be noticed: it looks until it has come."""
    for _ in range(15):
        assert timedelta(0) < await sleeper.fetchval(WAIT, ["default"]) <= SECOND
    await writer.execute("commit")
    assert await ear.count() == 0
    assert await sleeper.fetchval(WAIT, ["default"]) == timedelta(0)


async def claimed_by_a_sleeper(connection: Connection) -> None:
    """Wait, and claim when told to, until there is a job; it must not be told to sleep for long."""

    async def claimed() -> bool:
        pause = await connection.fetchval(WAIT, ["default"])
        assert pause <= SECOND
        if pause:
            await asyncio.sleep(pause.total_seconds())
            return False
        await connection.execute("select pgq_wake()")
        return await dequeue(connection) != []

    await until(claimed)


@pytest.mark.parametrize("how", ["expires", "repeatable read", "serializable", "after", "pop"])
async def test_what_is_left_to_the_next_tick_is_not_missed(
    a: Connection, b: Connection, how: str
) -> None:
    if how == "after":
        (job_id,) = await enqueue(a, 1)
        await a.execute("select pgq_enqueue('2', after => array[$1::bigint])", job_id)
    else:
        await a.execute("select pgq_enqueue('1', group_key => 'g', max_attempts => 1)")
        await a.execute("select pgq_enqueue('2', group_key => 'g')")
    if how == "expires":
        assert await dequeue(a, lease="50 ms")
    elif how == "pop":
        await a.execute("select setval('pgq.next_tick', 1)")
        assert await a.fetch("select from pgq_pop()")
    else:
        receipts = await dequeue(a)
        level = "serializable" if how == "after" else how
        await a.execute(f"begin isolation level {level}")
        assert await complete(a, receipts)
        await a.execute("commit")
        assert await a.fetchval("select count(*) from pgq.hint")
    await claimed_by_a_sleeper(b)


async def test_a_late_commit_below_a_floor_is_not_missed(a: Connection, b: Connection) -> None:
    ids = await enqueue(b, 50)
    await a.execute(f"begin; {PUT}")
    for _ in range(4):
        ids = [receipt[0] for receipt in await dequeue(b, 100)]
        assert await b.fetch("select pgq_complete(id, token) from pgq.job where token is not null")
        await raise_floors(b)
        await enqueue(b, 50)
        # What is open now counts as a long transaction.
        for _ in range(2):
            await b.execute("select setval('pgq.xid_shifted', 1)")
            await maintain(b)
    assert len(await dequeue(b, 100)) == 50
    await b.execute("select pgq_complete(id, token) from pgq.job where token is not null")
    await raise_floors(b)
    assert await b.fetchval("select max(floor) from pgq.floor_0") > min(ids)
    for _ in range(15):
        assert timedelta(0) < await b.fetchval(WAIT, ["default"]) <= SECOND
    await a.execute("commit")
    await claimed_by_a_sleeper(b)


async def test_what_was_begun_while_somebody_lingered_is_not_missed(
    a: Connection, b: Connection
) -> None:
    ear = await listen(b)
    await sleep(b)
    await b.execute("select pgq_wake()")
    assert timedelta(0) < await b.fetchval(WAIT, ["default"]) < SECOND
    await a.execute(f"begin; {PUT}")

    async def registered() -> bool:
        assert timedelta(0) < await b.fetchval(WAIT, ["default"]) <= SECOND
        return bool(await b.fetchval(REGISTERED))

    await until(registered)
    await found_by_looking(a, b, ear)


async def test_what_was_begun_before_others_could_notice_is_not_missed(
    a: Connection, b: Connection
) -> None:
    ear = await listen(b)
    await b.execute("begin")
    await b.fetchval(WAIT, ["default"])
    await a.execute(f"begin; {PUT}")
    await b.execute("commit")
    await found_by_looking(a, b, ear)


async def test_an_enqueue_that_has_not_come_to_its_slot_notifies_who_sleeps_by_then(
    a: Connection, b: Connection, c: Connection
) -> None:
    ear = await listen(b)
    await c.execute("begin; select from pgq.bucket for update")
    async with started(a.fetchval("select pgq_enqueue('1', dedupe_key => 'k')")) as adding:
        await waiting(c, a, adding)
        assert await sleep(b) == timedelta(seconds=30)
        await c.execute("rollback")
        await within(adding)
    assert await ear.count() == 1


async def test_what_was_begun_when_others_noticed_no_more_is_not_missed(
    a: Connection, b: Connection
) -> None:
    ear = await listen(b)
    await sleep(b)
    await a.execute("update pgq.lane set awaited_until = clock_timestamp()")
    await a.execute(f"begin; {PUT}")
    await found_by_looking(a, b, ear)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_an_old_snapshot_does_not_hide_who_waits(
    a: Connection, b: Connection, level: str
) -> None:
    ear = await listen(b)
    await a.execute(f"begin isolation level {level}; select count(*) from pgq.queue")
    assert await sleep(b) == timedelta(seconds=30)
    await a.execute(PUT)
    await a.execute("select pgq_enqueue('1', dedupe_key => 'k')")
    await a.execute("select pgq_release(id, token) from pgq_dequeue()")
    await a.execute("commit")
    assert await ear.count() == 1


async def test_a_sleeper_with_old_snapshots_looks_again_soon(a: Connection) -> None:
    await a.execute("set default_transaction_isolation = 'repeatable read'")
    for _ in range(12):
        assert await a.fetchval(WAIT, ["default"]) <= SECOND


async def test_a_rolled_back_savepoint_takes_its_notification_along(
    a: Connection, b: Connection
) -> None:
    ear = await listen(b)
    await sleep(b)
    await a.execute(f"begin; savepoint s; {PUT}; rollback to s; commit")
    assert await ear.count() == 0
    await a.execute(f"begin; savepoint s; {PUT}; release s; commit")
    assert await ear.count() == 1


async def test_sleepers_are_seen_for_as_long_as_they_sleep(a: Connection, b: Connection) -> None:
    await sleep(b)
    await a.execute("begin; select from pgq.lane for no key update")
    # Nobody can say at present that somebody will sleep for longer than this.
    await a.execute("commit")
    await a.execute("update pgq.lane set awaited_until = clock_timestamp() + '5 s'")
    await a.execute("begin; select from pgq.lane for no key update")
    assert await b.fetchval(WAIT, ["default"]) <= timedelta(seconds=5)
    await a.execute("rollback")
    pause = await b.fetchval("select pgq_wait('{default}', '1 day')")
    left = await a.fetchval("select min(awaited_until) - clock_timestamp() from pgq.lane")
    assert SECOND < pause < left


async def test_a_writer_that_stays_open_does_not_delay_what_falls_due(
    a: Connection, b: Connection
) -> None:
    await a.execute(f"begin; {PUT}")
    for _ in range(12):
        assert await b.fetchval(WAIT, ["default"]) <= SECOND
    await b.execute("select pgq_enqueue('2', run_at => clock_timestamp() + '300 ms')")
    assert await b.fetchval(WAIT, ["default"]) <= timedelta(milliseconds=310)
    assert await b.fetchval("select pgq_wait('{default}', '20 ms')") <= timedelta(milliseconds=20)


async def test_a_writer_may_stay_open_for_hours(a: Connection, b: Connection) -> None:
    await a.execute(f"begin; {PUT}")
    pauses = await b.fetchval(
        "select array_agg(distinct pgq_wait('{default}')) from generate_series(1, 1100)"
    )
    assert max(pauses) == SECOND


async def test_the_end_of_a_session_ends_its_wait(a: Connection, b: Connection) -> None:
    await sleep(b)
    assert await a.fetchval(REGISTERED) == 1
    await a.execute("select pg_terminate_backend($1, 10000)", b.get_server_pid())
    assert await a.fetchval(REGISTERED) == 0


async def test_a_wait_that_failed_leaves_nothing_behind(a: Connection, b: Connection) -> None:
    await a.execute("select pgq_create_queue('other')")
    await b.execute("begin; select pgq_wait('{default,other}'); rollback")
    await b.execute("begin; select pgq_wait('{default}'); rollback")
    await sleep(b)
    assert await a.fetchval(REGISTERED) == 1
    await b.execute("select pgq_wake()")
    assert await a.fetchval(REGISTERED) == 0


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_a_wait_that_fails_on_its_way_is_over(
    a: Connection, b: Connection, c: Connection, setting: str
) -> None:
    ear = await listen(b)
    await a.execute("select pgq_create_queue('other')")
    await b.fetchval(WAIT, ["default"])
    await b.execute("select pgq_wake(), set_config('pgq.idle', '', false)")
    await b.execute(f"set {setting} = '200ms'")
    for queues in (["default"], ["default", "other"]):
        # It needs the table when it has its locks.
        await a.execute("begin; lock table pgq.lane in access exclusive mode")
        with pytest.raises((asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError)):
            await b.fetchval(WAIT, queues)
        assert await c.fetchval(REGISTERED) == 0
        await a.execute("rollback")
        await b.execute("set statement_timeout = 0")
        await sleep(b)
        await b.execute(f"set {setting} = '200ms'")
        assert await c.fetchval(REGISTERED) == 1
        await a.execute(PUT)
        assert await ear.count() == 1
        await a.execute("select pgq_purge('default')")


async def test_a_wait_that_may_not_write_is_over(a: Connection, b: Connection) -> None:
    await b.execute("set default_transaction_read_only = on")
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await b.fetchval(WAIT, ["default"])
    assert await a.fetchval(REGISTERED) == 0


async def test_a_wake_that_is_rolled_back_lets_nobody_believe_that_it_waits(
    a: Connection, b: Connection
) -> None:
    ear = await listen(b)
    await sleep(b)
    await b.execute("begin; select pgq_wake(); rollback")
    await sleep(b)
    await a.execute(PUT)
    assert await ear.count() == 1


async def test_a_wait_does_not_wait_for_who_looks_for_those_that_do(
    a: Connection, b: Connection
) -> None:
    # As a producer that is stopped just then.
    await a.execute("select pg_advisory_lock(1885826917, id) from pgq.queue")
    pauses = [await within(b.fetchval(WAIT, ["default"]), 5) for _ in range(4)]
    assert max(pauses) <= SECOND
    await a.execute("select pg_advisory_unlock(1885826917, id) from pgq.queue")
    ear = await listen(b)
    await sleep(b)
    await a.execute(PUT)
    assert await ear.count() == 1


async def test_a_producer_that_is_cancelled_keeps_no_lock(a: Connection, b: Connection) -> None:
    await a.execute("set statement_timeout = '20ms'")
    for _ in range(40):
        with pytest.raises(asyncpg.QueryCanceledError):
            await a.execute("do $$ begin loop perform pgq._wake(1); end loop; end $$")
    held = "select count(*) from pg_locks where locktype = 'advisory' and classid = 1885826917"
    assert await b.fetchval(held) == 0


async def test_who_is_woken_by_a_lease_that_expires_can_claim_the_job(
    a: Connection, b: Connection
) -> None:
    await sleep(b)
    await enqueue(a, 1)
    ((job_id, _),) = await dequeue(a, lease="1.2 s")
    left = "select lease_expires_at - clock_timestamp() from pgq.job"
    before = await a.fetchval(left)
    pause = await b.fetchval(WAIT, ["default"])
    assert await a.fetchval(left) <= pause <= max(before, timedelta(0))
    await asyncio.sleep(pause.total_seconds())
    assert await b.fetchval(WAIT, ["default"]) == timedelta(0)
    assert [claimed for claimed, _ in await dequeue(b)] == [job_id]


# Prepared transactions


@pytest.mark.parametrize("level", ["read committed", "serializable"])
async def test_a_transaction_can_be_prepared_while_somebody_waits(dsn: Dsn, level: str) -> None:
    async with sessions(dsn, 2) as (a, b):
        await a.execute("select pgq_purge('default'); select pgq_maintain()")
        ear = await listen(b)
        await sleep(b)
        await a.execute(f"begin isolation level {level}; {PUT}; prepare transaction 'p'")
        assert await ear.count() == 0
        await b.execute("select pgq_wake()")
        for _ in range(12):
            assert await b.fetchval(WAIT, ["default"]) <= SECOND
        await a.execute("commit prepared 'p'")
        assert await b.fetchval(WAIT, ["default"]) == timedelta(0)
        assert len(await dequeue(b)) == 1
        await b.execute("select pgq_wake()")
        await sleep(b)
        await a.execute(f"begin isolation level {level}; {PUT}; {PUT}; commit")
        assert await ear.count() == 1
        await a.execute("set session_replication_role = replica")
        await a.execute(PUT)
        assert await ear.count() == 1
        await maintain(b, 2)
        assert await a.fetchval("select count(*) from pgq.chore where wake is not null") == 0
        await a.execute("select pgq_purge('default')")


# The worker


@contextlib.asynccontextmanager
async def running(worker: pgq.Worker) -> AsyncGenerator[None]:
    """Run a worker during the block; it must stop promptly."""
    task = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield
    finally:
        worker.stop()
        await within(task, 5)


def counting(worker: pgq.Worker, *queues: str) -> tuple[list[Any], Callable[[int], Any]]:
    """Let a worker note the payloads; also return how to wait for so many of them."""
    seen: list[Any] = []

    async def handle(job: pgq.Job) -> None:
        seen.append(job.payload)

    for queue in queues or ["default"]:
        worker.handler(queue)(handle)

    async def has(number: int) -> None:
        async def enough() -> bool:
            return len(seen) >= number

        await until(enough)

    return seen, has


async def listener(connection: Connection, other_than: int = 0) -> int:
    """Return the process id of the session that waits, once there is one."""

    async def found() -> int:
        pid: int | None = await connection.fetchval(
            "select pid from pg_locks where locktype = 'advisory' and classid = 1885826917"
            " and mode = 'ShareLock' and granted and pid <> $1 and database ="
            " (select oid from pg_database where datname = current_database()) limit 1",
            other_than,
        )
        return pid or 0

    return await until(found)


async def idle(connection: Connection, queues: int = 1) -> None:
    """Return once a worker's listener waits for so many queues, and sleeps."""

    async def asleep() -> bool:
        return bool(
            await connection.fetchval(REGISTERED) == queues
            and await connection.fetchval(
                "select bool_and(awaited_until > clock_timestamp()) from pgq.lane"
            )
        )

    await until(asleep)


async def test_an_idle_worker_starts_new_jobs_without_polling(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    worker = pgq.Worker(pool, poll_interval=NEVER)
    seen, has = counting(worker)
    async with running(worker):
        for number in range(1, 6):
            await idle(a)
            start = time.monotonic()
            await a.execute("select pgq_enqueue(to_jsonb($1::integer))", number)
            await has(number)
            assert time.monotonic() - start < 2
    assert seen == [1, 2, 3, 4, 5]


async def test_a_nap_costs_a_worker_one_call(
    pool: asyncpg.Pool[Any], a: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, asked = pgq.Queue.channel, 0

    async def count(self: pgq.Queue, *args: Any, **options: Any) -> str:
        nonlocal asked
        asked += 1
        return await channel(self, *args, **options)

    monkeypatch.setattr(pgq.Queue, "channel", count)
    worker = pgq.Worker(pool, poll_interval=NEVER)
    _, has = counting(worker)
    async with running(worker):
        for number in range(1, 4):
            await idle(a)
            await a.execute(PUT)
            await has(number)
        await idle(a)
    assert asked == 2, "before the first claim, and to listen"


async def test_a_worker_of_several_queues_is_woken_for_each(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    names = ["default", "second", 'it\'s a "third"']
    for name in names[1:]:
        await a.execute("select pgq_create_queue($1)", name)
    worker = pgq.Worker(pool, poll_interval=NEVER)
    seen, has = counting(worker, *names)
    async with running(worker):
        for number in range(1, 10):
            await idle(a, 3)
            await a.execute(
                "select pgq_enqueue(to_jsonb($1::integer), $2)", number, names[number % 3]
            )
            await has(number)
    assert seen == list(range(1, 10))


async def test_a_worker_starts_jobs_when_they_fall_due(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    worker = pgq.Worker(pool, poll_interval=NEVER)
    seen, has = counting(worker)
    async with running(worker):
        await idle(a)
        start = time.monotonic()
        await a.execute("select pgq_enqueue('1', run_at => clock_timestamp() + '700 ms')")
        await has(1)
        assert 0.69 < time.monotonic() - start < 3
        # A schedule's time is set to be near, while the worker sleeps.
        await a.execute("select pgq_schedule('s', '* * * * *', '2')")
        await idle(a)
        await a.execute(
            "update pgq.schedule set next_at = clock_timestamp() + '700 ms';"
            "select pgq_resume_schedule('s')"
        )
        await has(2)
    assert seen == [1, 2]


async def test_nothing_is_lost_when_each_job_follows_the_one_before(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    worker = pgq.Worker(pool, poll_interval=NEVER)
    turn: asyncio.Queue[int] = asyncio.Queue()

    @worker.handler("default")
    async def handle(job: pgq.Job) -> None:
        turn.put_nowait(job.payload)

    slow = 0
    async with running(worker):
        for number in range(300):
            start = time.monotonic()
            await a.execute("select pgq_enqueue(to_jsonb($1::integer))", number)
            assert await within(turn.get()) == number
            slow += time.monotonic() - start > 0.5
    assert slow <= 3, f"{slow} of 300 jobs waited for more than half a second"


@pytest.mark.parametrize("how", ["terminated", "stuck"])
async def test_a_worker_recovers_when_its_listener_is_lost(
    pool: asyncpg.Pool[Any], a: Connection, how: str
) -> None:
    worker = pgq.Worker(pool, poll_interval=NEVER, call_timeout=2 * SECOND)
    _, has = counting(worker)
    async with running(worker):
        await idle(a)
        pid = await listener(a)
        if how == "terminated":
            await a.execute("select pg_terminate_backend($1, 10000)", pid)
            await a.execute(PUT)
            await has(1)
        else:
            # Its alarm rings, it asks the server, and there is no answer.
            before = await a.fetchval("select clock_timestamp()")
            await a.execute("select pgq_enqueue('1', run_at => clock_timestamp() + '1 s')")

            async def notified() -> bool:
                query = "select query_start > $2 from pg_stat_activity where pid = $1"
                return bool(await a.fetchval(query, pid, before))

            await until(notified)
            os.kill(pid, signal.SIGSTOP)
            try:
                await has(1)
            finally:
                os.kill(pid, signal.SIGCONT)
        assert await listener(a, pid) != pid
        await a.execute(PUT)
        await has(2)


async def test_a_listener_that_is_lost_now_and_then_comes_back_as_soon_each_time(
    pool: asyncpg.Pool[Any], a: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    worker = pgq.Worker(pool, poll_interval=NEVER)
    counting(worker)
    pid = 0
    with caplog.at_level(logging.WARNING, "pgq"):
        async with running(worker):
            start = time.monotonic()
            for _ in range(5):
                pid = await listener(a, pid)
                await a.execute("select pg_terminate_backend($1, 10000)", pid)
            await listener(a, pid)
    # 0.5 s each time; 0.5 + 1 + 2 + 4 + 8 s if pauses went on growing.
    assert time.monotonic() - start < 9


@pytest.mark.parametrize("error", [OSError("no more connections"), LookupError("no secret")])
async def test_a_worker_that_cannot_listen_polls(
    pool: asyncpg.Pool[Any], dsn: Dsn, a: Connection, error: Exception
) -> None:
    calls = 0

    async def connect() -> Connection:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise error
        connection: Connection = await asyncpg.connect(**dsn)
        return connection

    worker = pgq.Worker(pool, poll_interval=timedelta(milliseconds=10), connect=connect)
    _, has = counting(worker)
    async with running(worker):
        for number in range(1, 4):
            await a.execute(PUT)
            await has(number)
        assert await a.fetchval(REGISTERED) == 0


async def test_workers_do_not_poll_or_connect_again_in_step(
    pool: asyncpg.Pool[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    rest = Listener.idle

    async def watched(self: Listener, name: str, jitter: float) -> None:
        pauses.append(jitter)
        await rest(self, name, jitter)

    async def polled() -> bool:
        return len(pauses) >= 20

    monkeypatch.setattr(Listener, "idle", watched)
    worker = pgq.Worker(pool, poll_interval=timedelta(milliseconds=1), listen=False)
    counting(worker)
    async with running(worker):
        await until(polled)
    assert len(set(pauses)) > 10
    assert all(0.75 <= pause <= 1.25 for pause in pauses)
    first, second = (list(islice(backoff(), 10)) for _ in range(2))
    assert first != second
    for pause, most in zip(first, (0.1 * 2**n for n in range(10)), strict=True):
        assert min(most, 1) / 2 <= pause <= min(most, 1)


@pytest.mark.parametrize("number", ["10", "0"])
async def test_a_worker_looks_once_a_second_where_transactions_are_prepared(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    waits: list[timedelta] = []
    wait = pgq.Queue.wait

    async def noted(queue: pgq.Queue, *args: Any, **options: Any) -> timedelta:
        waits.append(await wait(queue, *args, **options))
        return waits[-1]

    monkeypatch.setattr(pgq.Queue, "wait", noted)
    with serve(max_prepared_transactions=number) as server:
        dsn = dsn_of(server, TEMPLATE)
        async with asyncpg.create_pool(**dsn, min_size=0) as pool, sessions(dsn, 1) as (a,):
            worker = pgq.Worker(pool, poll_interval=NEVER)
            _, has = counting(worker)
            async with running(worker):
                await listener(a)
                await until(partial(sleeps, waits))
                if number != "0":
                    await a.execute(f"begin; {PUT}; prepare transaction 'p'")
                    await a.execute("commit prepared 'p'")
                    await has(1)
    assert (max(waits) > SECOND) == (number == "0")


async def sleeps(waits: list[timedelta]) -> bool:
    return bool(waits) and waits[-1] > SECOND / 2


async def test_without_listen_a_worker_only_polls(pool: asyncpg.Pool[Any], a: Connection) -> None:
    worker = pgq.Worker(pool, poll_interval=timedelta(milliseconds=10), listen=False)
    _, has = counting(worker)
    async with running(worker):
        for number in range(1, 4):
            await a.execute(PUT)
            await has(number)
        assert await a.fetchval(REGISTERED) == 0
        assert await a.fetchval("select max(awaited_until) from pgq.lane") is None


async def test_an_idle_worker_stops_at_once_and_leaves_no_session(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    worker = pgq.Worker(pool, poll_interval=NEVER)
    counting(worker)
    async with started(worker.run(handle_signals=False)) as task:
        await idle(a)
        start = time.monotonic()
        worker.stop()
        await within(task)
        assert time.monotonic() - start < 2

    async def unregistered() -> bool:
        return not await a.fetchval(REGISTERED)

    await until(unregistered)


# A queue that is dropped, and created again

AGAIN = "select pgq_create_queue('default')"
DROP = "select pgq_drop_queue('default', true)"


@pytest.mark.parametrize("number", ["10", "0"])
async def test_who_sleeps_is_woken_when_the_queue_is_dropped(number: str) -> None:
    with serve(max_prepared_transactions=number) as server:
        async with sessions(dsn_of(server, TEMPLATE), 2) as (a, b):
            await a.execute("select pgq_create_queue('q')")
            ear, other = await listen(b, "q"), await listen(b)
            await sleep(b, "q", "default")
            await a.execute("begin; select pgq_drop_queue('q'); rollback")
            assert await ear.count() == 0
            await a.execute("select pgq_drop_queue('q')")
            assert (await ear.count(), await other.count()) == (1, 0)
            # Its next call does not sleep for the other queue either.
            with pytest.raises(asyncpg.UndefinedObjectError):
                await b.fetchval(WAIT, ["q", "default"])
            assert await a.fetchval(REGISTERED) == 0


async def test_who_looked_for_a_queue_before_its_drop_does_not_sleep_after_it(
    a: Connection, b: Connection
) -> None:
    await sleep(b)
    await b.execute("select pgq_wake()")
    queue_id = await a.fetchval("select id from pgq.queue")
    await a.execute(DROP)
    pause = await b.fetchval(
        "select pgq._sleep_for(array[$1::integer], array[null::bigint], '30 s', pgq._now())",
        queue_id,
    )
    assert pause < SECOND


async def test_who_listens_on_the_channel_of_a_dropped_queue_sleeps_for_a_second(
    a: Connection, b: Connection
) -> None:
    async def asleep() -> timedelta:
        pause: timedelta = await b.fetchval(WAIT, ["default"])
        return pause if pause >= SECOND else timedelta(0)

    await listen(b)
    assert await sleep(b) > SECOND
    await a.execute(f"begin; {DROP}; {AGAIN}; commit")
    await b.execute("select pgq_wake()")
    assert await until(asleep) == SECOND
    assert await b.fetchval("select pgq_wait('{default}', '20 ms')") <= timedelta(milliseconds=20)
    ear = await listen(b)
    assert await sleep(b) > SECOND
    await a.execute(PUT)
    assert await ear.count() == 1


@pytest.fixture
def long_sleeps_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but notifications wake workers that may sleep for more than a second."""
    wait = pgq.Queue.wait

    async def waiting_for_ever(*args: Any, **options: Any) -> timedelta:
        pause = await wait(*args, **options)
        return NEVER if pause > SECOND else pause

    monkeypatch.setattr(pgq.Queue, "wait", waiting_for_ever)


async def gone(caplog: pytest.LogCaptureFixture) -> bool:
    return "queue 'default' is gone" in caplog.text


@pytest.mark.once
@pytest.mark.usefixtures("long_sleeps_never_end")
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_worker_that_sleeps_works_for_a_queue_that_is_created_again(
    pool: asyncpg.Pool[Any], a: Connection, caplog: pytest.LogCaptureFixture, *, at_once: bool
) -> None:
    worker = pgq.Worker(pool, poll_interval=NEVER)
    seen, has = counting(worker)
    async with running(worker):
        for number in range(1, 7, 2):
            await idle(a)
            if at_once:
                await a.execute(f"begin; {DROP}; {AGAIN}; commit")
            else:
                caplog.clear()
                await a.execute(DROP)
                await until(partial(gone, caplog))
                await a.execute(AGAIN)
            await a.execute("select pgq_enqueue(to_jsonb($1::integer))", number)
            await has(number)
            await idle(a)
            await a.execute("select pgq_enqueue(to_jsonb($1::integer))", number + 1)
            await has(number + 1)
    assert seen == list(range(1, 7))


@pytest.mark.once
@pytest.mark.usefixtures("long_sleeps_never_end")
async def test_a_worker_goes_on_with_its_other_queues_when_one_is_dropped(
    pool: asyncpg.Pool[Any], a: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await a.execute("select pgq_create_queue('other')")
    worker = pgq.Worker(pool, poll_interval=NEVER)
    _, has = counting(worker, "default", "other")
    with caplog.at_level(logging.INFO, "pgq"):
        async with running(worker):
            await idle(a, 2)
            pid = await listener(a)
            await a.execute(DROP)
            await until(partial(gone, caplog))
            await idle(a)
            assert await listener(a) == pid
            await a.execute("select pgq_enqueue('1', 'other')")
            await has(1)
            # Its listener may be lost meanwhile.
            await idle(a)
            await a.execute("select pg_terminate_backend($1, 10000)", await listener(a))
            await listener(a, pid)
            await a.execute("select pgq_enqueue('2', 'other')")
            await has(2)
            await a.execute(AGAIN)
            await idle(a, 2)
            await a.execute(PUT)
            await has(3)
    told = [record.message for record in caplog.records if "queue 'default'" in record.message]
    assert len(told) == 2, "once when it is gone, and once when it is back"


@pytest.mark.once
async def test_a_listener_that_meets_the_drop_first_goes_on_listening(
    pool: asyncpg.Pool[Any],
    a: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wait, failures = pgq.Queue.wait, 0

    async def wait_in_vain(*args: Any, **options: Any) -> timedelta:
        nonlocal failures
        if not failures:
            await a.execute(DROP)
        try:
            return await wait(*args, **options)
        except pgq.UnknownQueue:
            failures += 1
            raise

    monkeypatch.setattr(pgq.Queue, "wait", wait_in_vain)
    worker = pgq.Worker(pool, poll_interval=NEVER)
    _, has = counting(worker)
    async with running(worker):
        await until(partial(gone, caplog))
        await a.execute(AGAIN)
        await idle(a)
        await a.execute(PUT)
        await has(1)
    assert failures == 1
    assert "cannot listen" not in caplog.text


async def test_a_worker_that_runs_until_it_is_idle_ends_when_its_queue_is_dropped(
    pool: asyncpg.Pool[Any], a: Connection
) -> None:
    worker = pgq.Worker(pool)

    @worker.handler("default")
    async def handle(_: pgq.Job) -> None:
        await a.execute(DROP)

    await a.execute(PUT)
    with pytest.raises(pgq.UnknownQueue):
        await within(worker.run_until_idle())


@pytest.mark.once
@pytest.mark.parametrize("prepared", ["0", "10"])
async def test_a_full_queue_of_notifications_stops_no_producer(prepared: str) -> None:
    """It is full while a session of any database listens and does not read; sleepers poll."""
    with serve(max_notify_queue_pages="64", max_prepared_transactions=prepared) as server:
        dsn = dsn_of(server, TEMPLATE)
        async with sessions(dsn, 4) as (deaf, caller, sleeper, producer):
            ear = await listen(sleeper)
            await sleep(sleeper)
            await deaf.execute("listen noise")
            await deaf.execute("begin; select 1")
            with contextlib.suppress(asyncpg.ProgramLimitExceededError):
                while True:
                    await caller.execute("select pg_notify('noise', repeat('x', 7000))")
            await producer.execute(PUT)
            assert ear.heard == []
            await deaf.execute("rollback")

            async def has_room() -> bool:
                return bool(await caller.fetchval("select pg_notification_queue_usage() < 0.1"))

            await until(has_room)
            await producer.execute(PUT)
            assert await ear.count() == 1
            assert len(await dequeue(sleeper, 10)) == 2
