"""Groups under concurrency: one active job each, in id order, and nobody waits for the others."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest
from pginstall import INSTALL

from .sessions import (
    Connection,
    Dsn,
    Receipt,
    complete,
    dequeue,
    maintain,
    no_ticks,
    raise_floors,
    sessions,
    slot_of,
    started,
    stop_clock,
    turning,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
ONE = "select pgq_enqueue(to_jsonb($1::text), group_key => $1)"
MANY = """
    select pgq_enqueue_many(
        array(select to_jsonb(k) from unnest($1::text[]) k), group_keys => $1
    )
"""
CLAIM = "select id, token, group_key, attempt from pgq_dequeue($1, '1 hour')"


# A transaction that writes to it is held at its commit, behind what pgq does there, until the
# advisory lock is free.
HELD = """
    create table held (round integer);
    create function hold() returns trigger language plpgsql as $$
    begin
        if new.round < 3 then
            insert into held values (new.round + 1);
        else
            perform pg_advisory_xact_lock_shared(1);
        end if;
        return null;
    end
    $$;
    create constraint trigger hold after insert on held deferrable initially deferred
        for each row execute function hold();
    select pg_advisory_lock(1);
"""


async def put(connection: Connection, group: str = "g") -> int:
    """Enqueue a job of a group, and return its id."""
    job_id: int = await connection.fetchval(ONE, group)
    return job_id


async def claimed(connection: Connection, batch: int = 10) -> list[int]:
    """Claim what there is, and return the ids."""
    return [job_id for job_id, _ in await dequeue(connection, batch)]


async def finish(connection: Connection, job_id: int) -> None:
    """Complete an active job."""
    token = await connection.fetchval(
        "select token from pgq.job where id = $1 and token is not null", job_id
    )
    assert await complete(connection, [(job_id, token)]) == [job_id]


async def drain(consumer: Connection) -> list[tuple[str, int]]:
    """Claim and complete one by one until there is nothing; return groups and ids."""
    seen: list[tuple[str, int]] = []
    while rows := await consumer.fetch(CLAIM, 1):
        seen += [(row["group_key"], row["id"]) for row in rows]
        await complete(consumer, [(row["id"], row["token"]) for row in rows])
    return seen


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_group_ever_has_more_active_jobs_than_it_may(
    dsn: Dsn, a: Connection, concurrency: int
) -> None:
    groups = [f"g{number}" for number in range(7)]
    active: defaultdict[str, int] = defaultdict(int)
    started: defaultdict[str, list[int]] = defaultdict(list)
    locks = {group: asyncio.Lock() for group in groups}
    produced: list[int] = []
    done: list[int] = []
    ended = asyncio.Event()

    async def produce(producer: Connection, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            chosen = [chance.choice(groups) for _ in range(chance.choice([1, 1, 3, 10]))]
            # One enqueues to a group at a time, so that ids are in the order of the commits.
            for group in sorted(set(chosen)):
                await locks[group].acquire()
            try:
                if len(chosen) == 1:
                    produced.append(await put(producer, chosen[0]))
                else:
                    produced.extend(row[0] for row in await producer.fetch(MANY, chosen))
            finally:
                for group in set(chosen):
                    locks[group].release()

    async def consume(consumer: Connection, seed: int) -> None:
        chance = random.Random(seed)
        while not (ended.is_set() and len(done) == len(produced)):
            rows = await consumer.fetch(CLAIM, chance.choice([1, 5]))
            for row in rows:
                active[row["group_key"]] += 1
                assert active[row["group_key"]] <= concurrency
                if row["attempt"] == 1:
                    started[row["group_key"]].append(row["id"])
            for row in rows:
                active[row["group_key"]] -= 1
                if chance.random() < 0.8:
                    done.extend(await complete(consumer, [(row["id"], row["token"])]))
                else:
                    await consumer.execute(
                        "select pgq_fail($1, $2, 'no', '0')", row["id"], row["token"]
                    )
            if not rows:
                await asyncio.sleep(0.01)

    await a.execute(
        "select pgq_configure_queue('default', max_attempts => 1000, keep_completed => '0',"
        " group_concurrency => $1)",
        concurrency,
    )
    async with sessions(dsn, 14) as them:
        with turning(dsn):
            consumers = [asyncio.create_task(consume(c, n)) for n, c in enumerate(them[:7])]
            await asyncio.gather(*(produce(p, n) for n, p in enumerate(them[7:])))
            ended.set()
            await within(asyncio.gather(*consumers))
    assert sorted(done) == sorted(produced)
    for ids in started.values():
        assert concurrency > 1 or ids == sorted(ids)
    assert await a.fetchval("select count(*) from pgq.job") == 0
    assert await a.fetchval("select count(*) from pgq.hint") == 0


async def test_a_follower_waits_for_its_heads_retries(a: Connection) -> None:
    first, second, other = await put(a), await put(a), await put(a, "other")
    assert await claimed(a) == [first, other]
    await a.execute("select pgq_fail(id, token, 'no', '1 hour') from pgq_get($1)", first)
    assert await claimed(a) == []
    await a.execute("select pgq_cancel($1)", first)
    assert await claimed(a) == [second]


async def test_nobody_waits_for_an_open_transaction_of_the_same_group(
    a: Connection, b: Connection, c: Connection
) -> None:
    first = await put(a)
    await a.execute("begin")
    late = await put(a)
    second = await within(put(b))
    assert await within(claimed(b)) == [first]
    await within(finish(b, first))
    assert await within(claimed(c)) == [second]
    await a.execute("commit")
    third = await put(b)
    assert await claimed(b) == []
    await finish(b, second)
    assert await claimed(b) == [late]
    await finish(b, late)
    assert await claimed(b) == [third]


@pytest.mark.parametrize("keep", [timedelta(0), timedelta(days=1)])
@pytest.mark.parametrize("others", [0, 1])
async def test_who_ends_a_head_waits_for_those_who_are_just_committing_to_its_group(
    a: Connection, b: Connection, c: Connection, keep: timedelta, others: int
) -> None:
    await c.execute(HELD)
    await a.execute("select pgq_configure_queue('default', keep_completed => $1)", keep)
    first = await put(a)
    assert await claimed(a) == [first]
    await b.execute("begin")
    second = await put(b)
    await b.execute("insert into held values (1)")
    # With a higher id, and waiting, so that it could follow the first one.
    followers = [await put(a) for _ in range(others)]
    async with started(b.execute("commit")) as commit:
        await waiting(c, b, commit)
        async with started(finish(a, first)) as end:
            await waiting(c, a, end)
            await c.execute("select pg_advisory_unlock(1)")
            await within(asyncio.gather(commit, end))
    for job_id in (second, *followers):
        assert await claimed(c) == [job_id]
        await finish(c, job_id)


async def test_what_is_rolled_back_leaves_the_group_as_it_was(a: Connection, b: Connection) -> None:
    first = await put(a)
    assert await claimed(a) == [first]
    await a.execute("begin")
    await put(a)
    await finish(a, first)
    await a.execute("rollback")
    second = await put(b)
    assert await claimed(b) == []
    await a.execute("begin")
    await a.execute("savepoint s")
    await finish(a, first)
    await put(a)
    await a.execute("rollback to s")
    third = await put(a)
    await a.execute("commit")
    assert await claimed(b) == []
    await finish(b, first)
    assert await drain(b) == [("g", second), ("g", third)]


async def test_a_head_is_decided_under_old_snapshots_and_immediate_constraints_too(
    a: Connection, b: Connection
) -> None:
    async def settled() -> bool:
        await maintain(b)
        return not await b.fetchval("select count(*) from pgq.hint")

    for begin in (
        "begin isolation level repeatable read",
        "begin isolation level serializable",
        "begin; set constraints all immediate",
    ):
        await a.execute(begin)
        first, second = await put(a), await put(a)
        await a.execute("commit")
        await until(settled)
        assert await claimed(b) == [first]
        await a.execute(begin)
        await finish(a, first)
        await a.execute("commit")
        await until(settled)
        assert await claimed(b) == [second]
        await finish(b, second)
        assert await b.fetchval("select count(*) from pgq.job") == 0


async def test_commits_that_turn_the_same_groups_in_other_orders_do_not_deadlock(
    dsn: Dsn, a: Connection
) -> None:
    async def produce(producer: Connection, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(20):
            keys = [f"g{number}" for number in range(12)]
            chance.shuffle(keys)
            async with producer.transaction():
                for key in keys:
                    await put(producer, key)
                for receipt in chance.sample(
                    receipts := await dequeue(producer, 12), len(receipts)
                ):
                    await complete(producer, [receipt])

    async with sessions(dsn, 6) as producers:
        await within(asyncio.gather(*(produce(p, n) for n, p in enumerate(producers))))
    await a.execute("select pgq_reclaim()")
    left = await drain(a)
    assert len(left) == len(set(left))
    for key in {key for key, _ in left}:
        ids = [job_id for group, job_id in left if group == key]
        assert ids == sorted(ids)
    assert await a.fetchval("select count(*) from pgq.job") == 0


async def test_a_dead_head_blocks_its_group_if_it_is_to(a: Connection) -> None:
    await a.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    first, second, third = await put(a), await put(a), await put(a)
    kill = "select pgq_fail(id, token, 'no', retryable => false) from pgq_get($1)"
    assert await claimed(a) == [first]
    await a.execute(kill, first)
    assert await claimed(a) == []
    assert await a.fetchval("select pgq_retry($1)", first)
    assert await claimed(a) == [first]
    await finish(a, first)
    assert await claimed(a) == [second]
    await a.execute(kill, second)
    fourth = await put(a)
    assert await claimed(a) == []
    assert await a.fetchval("select pgq_unblock('default', 'g')")
    assert not await a.fetchval("select pgq_unblock('default', 'g')")
    assert await claimed(a) == [third]
    await finish(a, third)
    assert await claimed(a) == [fourth]


async def test_a_crowd_that_waits_costs_the_other_groups_nothing(a: Connection) -> None:
    async def typical_claim() -> int:
        pages: list[int] = []
        for _ in range(31):
            plan = await a.fetchval(
                "explain (analyze, buffers, timing off, format json) select * from pgq_dequeue()"
            )
            pages.append(int(plan.split('"Shared Hit Blocks": ')[1].split(",")[0]))
        return sorted(pages)[15]

    await a.fetch(MANY, [f"g{number}" for number in range(200)])
    before = await typical_claim()
    await a.fetch(MANY, ["hot"] * 20_000)
    after = await typical_claim()
    # There may be one more parked slot to look at; not the thousands that wait in it.
    assert after < 2 * before, (before, after)


async def entries(connection: Connection) -> int:
    """How many index entries of jobs this session has read lately; dead ones count."""
    read: int = await connection.fetchval(
        "select sum(pg_stat_get_xact_tuples_returned(i.indexrelid))::bigint from pg_index i"
        " join pg_inherits s on s.inhrelid = i.indrelid where s.inhparent = 'pgq.job'::regclass"
    )
    return read


async def assert_cheap_again(connection: Connection, act: Callable[[], Awaitable[int]]) -> None:
    """Act 500 times, and wait until an act reads little again after maintenance.

    The past is skipped after a second or two only, as somebody may still be writing into it.
    """

    async def is_cheap() -> bool:
        await raise_floors(connection)
        await maintain(connection)
        return sorted([await act() for _ in range(5)])[2] < 300

    for _ in range(500):
        await act()
    await until(is_cheap, pause=0.3)


@pytest.mark.parametrize(("concurrency", "is_retried"), [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("adds", [False, True])
async def test_a_hot_group_is_turned_at_the_same_cost_under_a_held_horizon(
    dsn: Dsn, a: Connection, adds: bool, concurrency: int, is_retried: bool
) -> None:
    async def turn() -> int:
        if is_retried:
            ((job_id, token),) = await dequeue(a)
            await a.execute("select pgq_fail($1, $2, retry_in => '1 ms')", job_id, token)

            async def is_back() -> bool:
                await maintain(a)
                return await slot_of(a, job_id) in range(4)

            await until(is_back)
        before = await entries(a)
        held = await dequeue(a)
        async with a.transaction():
            assert len(await complete(a, held)) == 1
            if adds:
                await put(a, "hot")
        return await entries(a) - before

    async with sessions(dsn, 1) as (holder,):
        await holder.execute("begin isolation level repeatable read; select pg_current_xact_id()")
        await a.execute(
            "select pgq_configure_queue('default', group_concurrency => $1)", concurrency
        )
        await a.fetch(MANY, ["hot"] * 3000)
        await assert_cheap_again(a, turn)


async def test_a_hot_group_is_left_to_ticks_at_the_same_cost_under_a_held_horizon(
    dsn: Dsn, a: Connection, b: Connection
) -> None:
    async def turn() -> int:
        await maintain(b)
        held = await dequeue(b)
        before = await entries(a)
        async with a.transaction(isolation="repeatable_read"):
            assert len(await complete(a, held)) == 1
        return await entries(a) - before

    async with sessions(dsn, 1) as (holder,):
        await holder.execute("begin isolation level repeatable read; select pg_current_xact_id()")
        await a.fetch(MANY, ["hot"] * 3000)
        await assert_cheap_again(a, turn)


async def test_a_group_with_one_job_at_a_time_does_not_read_its_past_under_a_held_horizon(
    dsn: Dsn, a: Connection
) -> None:
    async def life() -> int:
        before = await entries(a)
        job_id = await put(a)
        assert await claimed(a) == [job_id]
        await finish(a, job_id)
        return await entries(a) - before

    async with sessions(dsn, 1) as (holder,):
        await holder.execute("begin isolation level repeatable read; select pg_current_xact_id()")
        await a.execute("set pgq.slot_size = 8192")  # its past goes with the slot
        await assert_cheap_again(a, life)


async def test_many_jobs_of_one_group_are_let_go_at_the_same_cost_each(a: Connection) -> None:
    read: dict[int, int] = {}
    for number in (100, 400):
        await a.execute("select pgq_configure_queue('default', group_concurrency => 1)")
        await a.fetch(MANY, [f"g{number}"] * number)
        await a.execute("update pgq.queue set group_concurrency = 1000")
        await a.execute(
            "insert into pgq.hint (kind, key)"
            " select distinct 'g'::\"char\", group_id from pgq.job where group_key = $1",
            f"g{number}",
        )
        before = await entries(a)
        async with a.transaction():
            await a.execute("select pgq._take_hints()")
            read[number] = await entries(a) - before
        assert len(await claimed(a, number)) == number
    assert read[400] < 6 * read[100], read


async def test_two_dimensions_of_groups_are_refused_also_where_they_are_busy(a: Connection) -> None:
    await a.fetch(MANY, ["a", "b"] * 2)
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await a.execute("select pgq_enqueue_many('{1,2}', group_keys => '{{a},{b}}')")


async def test_who_does_not_know_the_seed_cannot_know_what_stands_for_a_group(
    a: Connection,
) -> None:
    job_id = await put(a)
    is_unseeded = await a.fetchval(
        "select j.group_id = hashtextextended(j.group_key, l.queue_id)"
        "  from pgq.job j join pgq.lane l on l.id = j.lane where j.id = $1",
        job_id,
    )
    seed = await a.fetchval("select pg_sequence_last_value('pgq.group_seed')")
    # An upgraded installation goes on as before: it may have jobs that have groups.
    assert is_unseeded == (seed is None) == (os.environ.get(INSTALL) == "upgraded")


KILL = "select pgq_fail(id, token, 'no', retryable => false) from pgq_get($1)"


@pytest.mark.parametrize("end", ["rollback", "commit"])
async def test_a_follower_that_is_about_to_be_changed_is_not_forgotten(
    a: Connection, b: Connection, end: str
) -> None:
    first = await put(a)
    second = await a.fetchval("select pgq_enqueue('1', group_key => 'g', dedupe_key => 'k')")
    third = await put(a)
    assert await claimed(a) == [first]
    await b.execute("begin")
    if end == "rollback":
        await b.execute("select pgq_cancel($1)", second)
    else:
        await b.execute(
            "select pgq_enqueue('2', group_key => 'g', dedupe_key => 'k',"
            " on_duplicate => 'replace')"
        )
    await within(finish(a, first))
    await maintain(a, 2)
    assert await claimed(a) == []
    await b.execute(end)
    await maintain(a)
    assert await claimed(a) == [second]
    await finish(a, second)
    assert await claimed(a) == [third]


async def test_a_retried_job_that_blocked_its_group_does_not_hide_others(
    a: Connection, b: Connection
) -> None:
    await a.execute(
        "select pgq_configure_queue('default', group_on_dead => 'block', group_concurrency => 2)"
    )
    first, second, third = [await put(a) for _ in range(3)]
    assert await claimed(a) == [first, second]
    await a.execute(KILL, first)
    await a.execute(KILL, second)
    assert await a.fetchval("select pgq_retry($1)", first)
    assert await claimed(a) == []
    assert await a.fetchval("select pgq_retry($1)", second)
    assert await claimed(a) == [first, second]
    await finish(a, first)
    assert await claimed(a) == [third]


async def test_a_late_job_of_a_blocked_group_runs_when_it_is_retried(
    a: Connection, b: Connection
) -> None:
    await a.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    await b.execute("begin")
    late = await put(b)
    first = await put(a)
    assert await claimed(a) == [first]
    await a.execute(KILL, first)
    await b.execute("commit")
    assert await a.fetchval("select pgq_retry($1)", first)
    assert sorted([*(await claimed(a)), *(await claimed(a))]) == [late]
    await finish(a, late)
    assert await claimed(a) == [first]


@pytest.mark.parametrize("followed", [False, True])
async def test_a_late_job_that_has_died_and_blocked_its_group_runs_when_it_is_retried(
    a: Connection, b: Connection, *, followed: bool
) -> None:
    await a.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    await b.execute("begin")
    late = await put(b)
    first = await put(a)
    assert await claimed(a) == [first]
    await b.execute("commit")
    await finish(a, first)
    assert await claimed(a) == [late]
    await a.execute(KILL, late)
    next_ones = [await put(a) for _ in range(followed)]
    assert await a.fetchval("select pgq_retry($1)", late)
    assert await claimed(a) == [late]
    await finish(a, late)
    assert await claimed(a) == next_ones


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_transaction_that_adds_to_a_group_and_then_ends_its_head_hides_no_job(
    a: Connection, b: Connection, concurrency: int
) -> None:
    await a.execute(f"select pgq_configure_queue('default', group_concurrency => {concurrency})")
    await a.execute("begin")
    added = await put(a)
    head = await put(b)
    assert [row[0] for row in await a.fetch("select id from pgq_pop()")] == [head]
    await a.execute("commit")
    assert await claimed(b) == [added]


async def test_a_head_ends_while_an_open_transaction_has_cancelled_its_followers(
    a: Connection, b: Connection
) -> None:
    head, _ = await put(a), await put(a)
    assert await claimed(a) == [head]
    await b.execute("begin")
    assert await b.fetchval("select pgq_cancel_all('default', max => 1)") == 1
    await a.execute("set lock_timeout = '5 s'")
    await finish(a, head)
    await b.execute("rollback")


async def test_purging_the_dead_unblocks_their_groups(a: Connection) -> None:
    await a.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    first, second = await put(a), await put(a)
    assert await claimed(a) == [first]
    await a.execute(KILL, first)
    assert await claimed(a) == []
    assert await a.fetchval("select pgq_purge('default', '{dead}')") == 1
    assert await claimed(a) == [second]


async def test_nobody_overtakes_while_a_group_is_left_to_the_next_tick(
    a: Connection, b: Connection
) -> None:
    first, second = await put(a), await put(a)
    assert await claimed(a) == [first]
    await b.execute("begin isolation level repeatable read")
    await finish(b, first)
    await b.execute("commit")
    assert await a.fetchval("select count(*) from pgq.hint") == 1
    third = await put(a)
    await maintain(a)
    assert await claimed(a) == [second]
    await finish(a, second)
    assert await claimed(a) == [third]


async def test_a_job_that_is_left_to_the_next_tick_may_follow_before_it(
    a: Connection, b: Connection
) -> None:
    await b.execute("begin; set constraints all immediate")
    left = await put(b)
    first = await put(a)
    assert await claimed(a) == [first]
    await b.execute("commit")
    assert await a.fetchval("select count(*) from pgq.hint") == 1
    await finish(a, first)
    await maintain(a)
    assert await a.fetchval("select count(*) from pgq.hint") == 0
    assert await claimed(a) == [left]


@pytest.mark.parametrize("jobs", [1, 2])
async def test_a_head_that_ends_under_an_old_snapshot_while_others_commit_lets_nobody_pass(
    dsn: Dsn, a: Connection, b: Connection, c: Connection, jobs: int
) -> None:
    first, second = await put(a), await put(a)
    assert await claimed(a) == [first]
    await b.execute("begin")
    later = [await put(b) for _ in range(jobs)]
    async with sessions(dsn, 1) as (holder,):
        # Stops a commit that has locked the bucket, before it counts heads.
        await holder.execute("""
            alter function pgq._lock_buckets rename to _lock_in;
            create function pgq._lock_buckets(p_keys bigint[]) returns void language plpgsql as $$
            begin
                perform pgq._lock_in(p_keys);
                perform pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1);
            end $$;
            select pg_advisory_lock(1);
        """)
        async with started(b.execute("commit")) as commit:
            await waiting(a, b, commit)
            await c.execute("begin isolation level repeatable read")
            await finish(c, first)
            await c.execute("commit")
            await holder.execute("select pg_advisory_unlock(1)")
            await within(commit)
    await maintain(a)
    for job_id in [second, *later]:
        assert await claimed(a) == [job_id]
        await finish(a, job_id)


async def test_a_late_job_waits_for_a_head_that_was_retried(a: Connection, b: Connection) -> None:
    await b.execute("begin")
    late = await put(b)
    head = await put(a)
    await a.execute("select pgq_fail(id, token, retryable => false) from pgq_dequeue()")
    assert await a.fetchval("select pgq_retry($1)", head)
    assert await claimed(a) == [head]
    await b.execute("commit")
    assert await claimed(a) == []
    await finish(a, head)
    assert await claimed(a) == [late]


async def test_a_late_job_waits_for_a_head_that_was_late(
    a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute("begin")
    latest = await put(b)
    await c.execute("begin")
    late = await put(c)
    head = await put(a)
    assert await claimed(a) == [head]
    await c.execute("commit")
    await finish(a, head)
    assert await claimed(a) == [late]
    await b.execute("commit")
    assert await claimed(a) == []
    await finish(a, late)
    assert await claimed(a) == [latest]


async def test_a_late_job_waits_for_all_heads(a: Connection, b: Connection) -> None:
    await a.execute("select pgq_configure_queue('default', group_concurrency => 2)")
    await maintain(a)
    await b.execute("begin")
    late = await put(b)
    heads = [await put(a), await put(a)]
    assert await claimed(a) == heads
    await b.execute("commit")
    assert await claimed(a) == []
    await finish(a, heads[0])
    assert await claimed(a) == [late]


async def test_a_new_job_for_which_there_is_no_room_waits_behind_those_that_waited_before(
    a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute("begin")
    first, second, third = [await put(b) for _ in range(3)]
    await c.execute("begin")
    fourth = await put(c)
    await b.execute("commit")
    assert await claimed(a) == [first]
    await a.execute("begin isolation level repeatable read")
    await finish(a, first)
    await a.execute("commit")
    # What the end of the first one has left to the next tick goes first: the second follows.
    await c.execute("commit")
    await maintain(a)
    for job_id in (second, third, fourth):
        assert await claimed(a) == [job_id]
        await finish(a, job_id)


async def test_many_jobs_of_groups_are_added_in_one_call(a: Connection) -> None:
    """A plan that compares each with each would take minutes."""
    for groups in (1, 10_000, 20_000):
        keys = [f"{groups} {number % groups}" for number in range(20_000)]
        await within(a.fetch(MANY, keys))


async def test_jobs_that_commit_late_are_not_overtaken_by_those_after_the_heads(
    a: Connection, b: Connection
) -> None:
    await a.execute("select pgq_configure_queue('default', group_concurrency => 2)")
    await b.execute("begin")
    await b.fetchval(
        MANY.replace("group_keys", "run_at => now() + '1 hour', group_keys"), ["g"] * 2
    )
    second = await put(a)
    await b.execute("commit")
    await put(a)
    assert await claimed(a) == [second]
    await finish(a, second)
    assert await claimed(a) == []


async def test_all_places_of_a_group_that_are_free_are_taken(a: Connection) -> None:
    await a.execute("select pgq_configure_queue('default', group_concurrency => 3)")
    ids = [await put(a) for _ in range(8)]
    held = await dequeue(a, 10)
    assert [job_id for job_id, _ in held] == ids[:3]
    await complete(a, held[:2])
    assert await claimed(a) == ids[3:5]
    await complete(a, held[2:])
    assert await claimed(a) == ids[5:6]


async def test_more_of_a_group_may_run_when_its_concurrency_is_raised(a: Connection) -> None:
    ids = [await put(a) for _ in range(4)]
    assert await claimed(a) == ids[:1]
    await a.execute("select pgq_configure_queue('default', group_concurrency => 2)")
    last = await put(a)
    assert await claimed(a) == ids[1:2]
    await finish(a, ids[0])
    assert await claimed(a) == ids[2:3]
    assert last > ids[3]


@pytest.mark.parametrize("others", [["h"], []], ids=["two notes", "one"])
@pytest.mark.parametrize("is_own", [True, False], ids=["same transaction", "before a tick"])
async def test_no_new_job_overtakes_when_the_concurrency_is_raised(
    a: Connection, b: Connection, is_own: bool, others: list[str]
) -> None:
    ids = [await put(a) for _ in range(3)]
    assert await claimed(a) == ids[:1]
    await b.execute("begin; select from pgq.gate for update")  # no tick decides meanwhile
    if not is_own:
        await a.execute("select pgq_configure_queue('default', group_concurrency => 2)")
    async with a.transaction():
        if is_own:
            await a.execute("select pgq_configure_queue('default', group_concurrency => 2)")
        last, *new = [await put(a, group) for group in ["g", *others]]
    await b.execute("commit")
    await maintain(a)
    assert sorted(await claimed(a)) == [ids[1], *new]
    await finish(a, ids[0])
    await finish(a, ids[1])
    assert await claimed(a) == [ids[2], last]


async def test_all_groups_of_several_calls_are_decided_at_once(a: Connection) -> None:
    async with a.transaction():
        ids = [row[0] for keys in ("abc", "def") for row in await a.fetch(MANY, [*keys])]
        ids += [await put(a, "g"), await put(a, "h")]
    assert await claimed(a) == ids


async def test_a_concurrency_that_was_raised_for_long_before_its_commit_counts_for_all(
    a: Connection, b: Connection
) -> None:
    await a.execute("begin; select pgq_configure_queue('default', group_concurrency => 2)")
    ids = [await put(b) for _ in range(2)]
    assert await claimed(b) == ids[:1]
    await a.execute("commit")
    await maintain(b)
    assert await claimed(b) == ids[1:]


async def test_who_knows_the_old_concurrency_when_it_is_raised_is_found_by_the_next_tick(
    a: Connection, b: Connection
) -> None:
    await a.execute("select pgq_configure_queue('default', group_concurrency => 2)")
    await b.execute("begin; select from pgq.gate for update")
    await a.execute("update pgq.queue set group_concurrency = 1")  # as one who commits now sees it
    ids = [await put(a) for _ in range(2)]
    assert await claimed(a) == ids[:1]
    await a.execute("update pgq.queue set group_concurrency = 2")
    await b.execute("commit")
    await maintain(a)
    assert await claimed(a) == ids[1:]
    assert await a.fetchval("select count(*) from pgq.hint") == 0


@pytest.mark.parametrize("keys", [["g"], ["g", "g"]])
async def test_who_commits_behind_a_parked_head_with_a_higher_id_is_not_left_behind(
    a: Connection, b: Connection, keys: list[str]
) -> None:
    # All wait in a parked slot where the group is busy, and the only head is there, too.
    ids = [await put(b) for _ in range(2)]
    await a.execute("begin")
    late = [row[0] for row in await a.fetch(MANY, keys)]
    head = await put(b)
    for job_id in ids:
        assert await claimed(b) == [job_id]
        await finish(b, job_id)
    await a.execute("commit")
    last = await put(b)
    for job_id in [head, *late, last]:
        assert await claimed(b) == [job_id]
        await finish(b, job_id)


async def lines(a: Connection, number: int) -> tuple[list[int], list[int]]:
    """Enqueue two jobs of each of so many groups and claim the first ones; return the ids."""
    groups = [f"g{n}" for n in range(number)]
    ids = [row[0] for row in await a.fetch(MANY, groups * 2)]
    assert await claimed(a, number) == ids[:number]
    return ids[:number], ids[number:]


async def heads(a: Connection) -> list[tuple[int, int]]:
    """Return the receipts of the jobs that do not wait, in any order."""
    rows = await a.fetch("select id, token from pgq.job where token is not null")
    receipts = [(row["id"], row["token"]) for row in rows]
    random.Random(len(rows)).shuffle(receipts)
    return receipts


async def finish_all(connection: Connection, job_ids: list[int]) -> None:
    """Complete active jobs."""
    rows = await connection.fetch(
        "select id, token from pgq.job where id = any ($1) and token is not null", job_ids
    )
    assert len(await complete(connection, [(row["id"], row["token"]) for row in rows])) == len(rows)


async def test_a_claim_looks_behind_the_heads_that_open_claims_have(
    a: Connection, b: Connection
) -> None:
    firsts, seconds = await lines(a, 250)
    await finish_all(a, firsts)
    await a.execute("begin")
    assert await claimed(a, 120) == seconds[:120]
    assert await claimed(b, 10) == seconds[120:130]
    await a.execute("rollback")
    assert await claimed(b, 300) == seconds[:120] + seconds[130:]


async def test_heads_are_claimed_in_the_order_in_which_they_were_let_go(a: Connection) -> None:
    firsts, seconds = await lines(a, 150)
    await finish_all(a, firsts[50:])
    await finish_all(a, firsts[:50])
    assert await claimed(a, 10) == seconds[50:60]
    assert await claimed(a, 150) == seconds[60:] + seconds[:50]


async def test_of_one_group_the_lowest_ids_go_first_of_more_than_a_hundred(a: Connection) -> None:
    await a.execute("select pgq_configure_queue('default', group_concurrency => 200)")
    ids = [row[0] for row in await a.fetch(MANY, ["g"] * 150)]
    for job_id, token in reversed(await dequeue(a, 150)):
        await a.execute("select pgq_release($1, $2)", job_id, token)
    assert await claimed(a, 10) == ids[:10]


async def test_a_pop_that_does_maintenance_lets_the_next_of_its_group_go(a: Connection) -> None:
    await put(a)
    await put(a)
    await a.execute("select setval('pgq.next_tick', 1)")
    for _ in range(2):
        assert len(await a.fetch("select from pgq_pop()")) == 1


async def test_maintenance_never_waits_for_a_group(a: Connection, b: Connection) -> None:
    await a.execute("begin; set constraints all immediate")
    await put(a)
    second = await put(a, "other")
    await a.execute("commit")
    await b.execute("begin")
    await b.execute("select pgq_cancel($1)", second)
    await a.execute("set lock_timeout = '5 s'")
    await maintain(a, 3)
    await b.execute("rollback")
    await maintain(a, 2)
    assert len(await claimed(a)) == 2


async def test_maintenance_never_waits_for_a_late_job(a: Connection, b: Connection) -> None:
    await b.execute("begin; set constraints all immediate")
    late = await put(b)
    first = await put(a)
    assert await claimed(a) == [first]
    await b.execute("commit; begin")
    await b.execute("select pgq_cancel($1)", late)
    await a.execute("set lock_timeout = '5 s'")
    await maintain(a, 3)
    await b.execute("rollback")
    await maintain(a)
    await finish(a, first)
    assert await claimed(a) == [late]


async def test_immediate_constraints_keep_no_bucket_locked(a: Connection, b: Connection) -> None:
    await a.execute("begin; set constraints all immediate")
    await put(a)
    await within(put(b))
    await a.execute("commit")
    await maintain(b)
    assert len(await drain(b)) == 2


async def test_groups_are_turned_in_sessions_that_replicate(a: Connection, b: Connection) -> None:
    await a.execute("set session_replication_role = replica")
    first = await put(a)
    assert await claimed(b) == [first]


async def test_a_new_job_can_be_put_off_in_its_own_transaction(a: Connection) -> None:
    call = "select pgq_enqueue('1', dedupe_key => 'k', group_key => 'g'"
    await a.execute("begin")
    await a.execute(f"{call})")
    await a.execute(f"{call}, run_at => now() + '1 hour', on_duplicate => 'replace')")
    await a.execute("commit")
    assert await claimed(a) == []
    assert await a.fetchval("select run_at > now() from pgq.job")


async def test_a_dead_job_that_is_retried_waits_while_another_one_is_active(a: Connection) -> None:
    first, second, third = await put(a), await put(a), await put(a)
    assert await claimed(a) == [first]
    await a.execute(KILL, first)
    assert await claimed(a) == [second]
    assert await a.fetchval("select pgq_retry($1)", first)
    assert await claimed(a) == []
    await finish(a, second)
    assert await claimed(a) == [first]
    await finish(a, first)
    assert await claimed(a) == [third]


async def test_a_lowered_group_concurrency_counts_those_that_are_active(a: Connection) -> None:
    configure = "select pgq_configure_queue('default', group_concurrency => $1)"
    await a.execute(configure, 2)
    ids = [row[0] for row in await a.fetch(MANY, ["g"] * 5)]
    assert await claimed(a) == ids[:2]
    await a.execute(configure, 1)
    await finish(a, ids[0])
    assert await claimed(a) == []
    await finish(a, ids[1])
    assert await claimed(a) == ids[2:3]
    await finish(a, ids[2])
    assert await claimed(a) == ids[3:4]


async def test_an_end_and_an_enqueue_in_one_transaction_leave_one_head(a: Connection) -> None:
    ids = [row[0] for row in await a.fetch(MANY, ["g"] * 4)]
    for job_id, follower in ((ids[0], ids[1]), (ids[1], ids[2])):
        assert await claimed(a) == [job_id]
        async with a.transaction():
            await finish(a, job_id)
            assert await claimed(a) == []
            new = await put(a)
        assert await a.fetchval("select state from pgq_jobs where id = $1", new) == "waiting"
        assert await a.fetchval("select state from pgq_jobs where id = $1", follower) == "ready"


async def test_a_cancelled_follower_does_not_make_the_next_one_a_head(a: Connection) -> None:
    first, second, third = await put(a), await put(a), await put(a)
    assert await claimed(a) == [first]
    assert await a.fetchval("select pgq_cancel($1)", second)
    assert await claimed(a) == []
    await finish(a, first)
    assert await claimed(a) == [third]


async def test_a_follower_of_an_old_snapshot_is_not_lost(dsn: Dsn, a: Connection) -> None:
    first = await put(a)
    assert await claimed(a) == [first]
    async with sessions(dsn, 1) as (old,):
        await old.execute("begin isolation level repeatable read; select from pgq.queue")
        second = await put(a)
        third = await put(old)
        await finish(a, first)
        assert await claimed(a) == [second]
        await old.execute("commit")
    await maintain(a)
    await finish(a, second)
    await maintain(a)
    assert await claimed(a) == [third]


async def test_an_expired_lease_is_found_behind_thousands_that_wait(a: Connection) -> None:
    await a.fetch(MANY, [f"g{number % 600}" for number in range(12_000)])
    assert len(await claimed(a, 1000)) == 600
    first = await a.fetchval("select pgq_enqueue('1', group_key => 'h', max_attempts => 1)")
    second = await put(a, "h")
    assert [job_id for job_id, _ in await dequeue(a, 1, "10 ms")] == [first]
    assert await a.fetchval("select pgq_wait('{default}')") < timedelta(seconds=1)
    await asyncio.sleep(0.02)
    await maintain(a, 2)  # its group is left to the second one
    assert await claimed(a) == [second]


PARK = "update pgq.job set slot = $2 where id = any ($1) and slot = 4"


async def park_in_both(a: Connection) -> None:
    """Have both parked slots in use."""
    await a.execute(
        "insert into pgq.ring (gen, live, ready, parked, switched_at)"
        " select gen + 1, live, ready, '{4,5}', switched_at from pgq.ring order by gen desc limit 1"
    )


@pytest.mark.parametrize("keep", [timedelta(0), timedelta(days=1)], ids=["unkept", "kept"])
@pytest.mark.parametrize("moved", [[1], [2], [1, 3], [2, 3], [1, 2, 3]])
async def test_a_group_goes_on_in_id_order_wherever_its_jobs_wait(
    a: Connection, moved: list[int], keep: timedelta
) -> None:
    await a.execute("select pgq_configure_queue('default', keep_completed => $1)", keep)
    ids = [row[0] for row in await a.fetch(MANY, ["g"] * 4 + ["h"] * 4)]
    await park_in_both(a)
    await a.execute(PARK, [ids[number] for number in moved], 5)
    for number in range(4):
        assert await claimed(a) == [ids[number], ids[4 + number]]
        receipts = await a.fetch("select id, token from pgq.job where token is not null")
        assert len(await complete(a, [(row["id"], row["token"]) for row in receipts])) == 2
    assert await a.fetchval("select count(*) from pgq.job") == 0


async def test_heads_are_claimed_in_id_order_from_all_slots(a: Connection) -> None:
    firsts, seconds = await lines(a, 20)
    await park_in_both(a)
    await a.execute(PARK, seconds[1::3], 5)
    await finish_all(a, firsts)
    new = [await put(a, f"n{number}") for number in range(2)]
    assert await claimed(a, 7) == seconds[:7]
    assert await claimed(a, 9) == seconds[7:16]
    assert await claimed(a, 9) == seconds[16:] + new


@pytest.mark.parametrize("number", [10, 500])
async def test_the_good_ones_of_many_receipts_in_any_order_complete_jobs_of_groups(
    a: Connection, number: int
) -> None:
    await a.execute("select pgq_configure_queue('default', keep_completed => '0')")
    firsts, seconds = await lines(a, number)
    [(one, _), (other, token), *good] = await heads(a)
    ids = sorted(job_id for job_id, _ in good)
    wrong = [(one, token), (other, token + (1 << 20)), (seconds[0], token)]
    assert sorted(await complete(a, [*wrong, *good, *good[:3]])) == ids
    assert await claimed(a, number) == [seconds[firsts.index(job_id)] for job_id in ids]


async def test_a_single_claim_takes_another_one_if_the_next_in_the_ring_is_locked(
    a: Connection, b: Connection
) -> None:
    head, ringed, follower = [await put(a, group) for group in ["p", "n", "p"]]
    assert await claimed(a, 1) == [head]
    await finish(a, head)
    await no_ticks(a)
    await b.execute("begin")
    await b.execute("select from pgq.job where id = $1 for update", ringed)
    assert await claimed(a, 1) == [follower]
    await b.execute("rollback")
    assert await claimed(a, 1) == [ringed]


async def test_single_claims_look_behind_the_heads_that_open_claims_have(
    a: Connection, b: Connection
) -> None:
    firsts, seconds = await lines(a, 130)
    await finish_all(a, firsts)
    ringed = await put(a, "n")
    await no_ticks(a)
    await b.execute("begin")
    assert await claimed(b, 120) == seconds[:120]
    for job_id in [*seconds[120:], ringed]:
        assert await claimed(a, 1) == [job_id]
    await b.execute("rollback")


async def test_jobs_that_were_given_back_keep_their_order(a: Connection, b: Connection) -> None:
    ids = [
        row[0] for row in await a.fetch("select pgq_enqueue_many(array_fill('1'::jsonb, '{46}'))")
    ]
    await b.execute("begin")
    await b.execute("select from pgq.job where id = $1 for update", ids[2])
    receipts = await dequeue(a, 50)
    assert len(receipts) == 45
    await b.execute("rollback")
    for job_id, token in reversed(receipts):
        await a.execute("select pgq_release($1, $2)", job_id, token)
    await no_ticks(a)
    for job_id in ids[:4]:
        assert await claimed(a, 1) == [job_id]


async def test_a_claim_returns_as_many_as_it_can_where_others_have_locked_heads(
    a: Connection, b: Connection
) -> None:
    firsts, seconds = await lines(a, 104)
    await finish_all(a, firsts)
    await a.execute("begin")
    assert await claimed(a, 95) == seconds[:95]
    assert await claimed(b, 10) == seconds[95:]
    await a.execute("rollback")


@pytest.mark.parametrize("idle", [1, 2])
async def test_where_most_groups_of_a_call_are_busy_the_commit_finds_those_that_are_not(
    a: Connection, idle: int
) -> None:
    heads, followers = await lines(a, 2)
    keys = ["g0", "g1", *(f"i{n}" for n in range(idle))]
    ids = [row[0] for row in await a.fetch(MANY, keys)]
    assert await claimed(a) == ids[2:]
    for ended, next_ones in ((heads, followers), (followers, ids[:2])):
        await finish_all(a, ended)
        assert await claimed(a) == next_ones


@pytest.mark.parametrize("bad", ["", "k" * 251])
async def test_a_bad_key_among_those_of_busy_groups_is_refused(a: Connection, bad: str) -> None:
    await lines(a, 2)
    with pytest.raises(asyncpg.DataError, match="group_keys"):
        await a.fetch(
            "select pgq_enqueue_many(array_fill('1'::jsonb, array[3]), group_keys => $1)",
            ["g0", "g1", bad],
        )


async def test_jobs_of_one_group_in_one_call_wait_in_their_order(a: Connection) -> None:
    first = await put(a)
    ids = [row[0] for row in await a.fetch(MANY, ["g", "g", "h", "g"])]
    assert await claimed(a) == [first, ids[2]]
    for job_id, follower in ((first, ids[0]), (ids[0], ids[1]), (ids[1], ids[3])):
        await finish(a, job_id)
        assert await claimed(a) == [follower]


async def test_jobs_of_one_group_in_one_call_are_no_two_heads_when_groups_are_left_to_ticks(
    a: Connection, b: Connection
) -> None:
    first = await put(a)
    assert await claimed(a) == [first]
    await b.execute("begin isolation level repeatable read; select from pgq.queue")
    await finish(b, first)
    await b.execute("commit")
    ids = [row[0] for row in await a.fetch(MANY, ["g", "g", "g"])]
    assert await claimed(a) == ids[:1]
    await finish(a, ids[0])
    assert await claimed(a) == ids[1:2]


async def test_no_setting_keeps_a_group_from_going_on(a: Connection) -> None:
    first, second = await put(a), await put(a)
    assert await claimed(a) == [first]
    async with a.transaction():
        await finish(a, first)
        idle = await put(a, "h")
        await a.execute("reset all")
    assert await claimed(a) == [second, idle]
    third = await put(a)
    for name in ("noted", "decided"):
        async with a.transaction():
            await a.execute(f"select set_config('pgq.{name}', pg_current_xact_id()::text, true)")
            await finish(a, second)
            other = await put(a, "i" + name)
        await maintain(a)
        assert sorted(await claimed(a)) == sorted([third, other])
        second, third = third, await put(a)


async def test_thousands_of_calls_are_decided_at_one_commit(a: Connection) -> None:
    """Each group at once, whatever the number of notes: none is left to the ticks."""
    await a.execute("""
        do $$ begin
            for i in 1..3000 loop
                perform pgq_enqueue('1', group_key => 'g' || i % 1000);
            end loop;
        end $$
    """)
    assert await a.fetchval("select count(*) from pgq.hint") == 0
    ready = "select count(*) from pgq_jobs where state = 'ready'"
    assert await a.fetchval(ready) == 1000
    receipts = await dequeue(a, 1000)
    async with a.transaction():
        for receipt in receipts:
            await complete(a, [receipt])
    assert await a.fetchval("select count(*) from pgq.hint") == 0
    assert await a.fetchval(ready) == 1000


@pytest.mark.parametrize("constraints", ["deferred", "immediate"])
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_transactions_with_snapshots_of_their_own_do_not_fail_for_each_others_notes(
    a: Connection, b: Connection, isolation: str, constraints: str
) -> None:
    for session in (a, b):
        await session.execute(f"begin isolation level {isolation}")
        await session.execute(f"set constraints all {constraints}")
    ids = [await put(session, group) for group in "gh" for session in (a, b)]
    for session in (a, b):
        await session.execute("commit")
    await maintain(a, 2)
    assert await claimed(a) == ids[::2]


async def test_a_note_that_was_taken_already_does_not_stand_for_another_one(a: Connection) -> None:
    """Of which the event is still queued, while a trigger of somebody has put others off again."""
    busy = await put(a)
    assert await claimed(a) == [busy]
    await a.execute("""
        create temp table meddled (n int);
        create function pg_temp.meddle() returns trigger language plpgsql as $$ begin
            set constraints all deferred;
            perform public.pgq_enqueue('1', group_key => 'h');
            return null;
        end $$;
        create constraint trigger meddle after insert on meddled deferrable initially deferred
            for each row execute function pg_temp.meddle();
    """)
    async with a.transaction():
        second = await put(a)
        await a.execute("insert into meddled values (1)")
        third = await put(a)
        await a.execute("set constraints all immediate")
    await maintain(a, 2)
    (other,) = await claimed(a)
    assert other > third
    for job_id, follower in ((busy, second), (second, third)):
        await finish(a, job_id)
        assert await claimed(a) == [follower]


async def test_what_a_savepoint_takes_back_is_not_noted(a: Connection) -> None:
    first, second, other = await put(a), await put(a), await put(a, "h")
    assert await claimed(a) == [first, other]
    async with a.transaction():
        await a.execute("savepoint before")
        await finish(a, first)
        await a.execute("rollback to before")
        await finish(a, other)
    assert await claimed(a) == []
    await finish(a, first)
    assert await claimed(a) == [second]


async def test_all_calls_of_a_transaction_let_their_groups_go_on(a: Connection) -> None:
    ids = [row[0] for row in await a.fetch(MANY, ["g", "h", "g", "h"])]
    assert await claimed(a) == ids[:2]
    async with a.transaction():
        await finish(a, ids[0])
        await finish(a, ids[1])
        new = await put(a, "i")
    assert await claimed(a) == [*ids[2:], new]


async def test_who_waits_does_not_follow_in_a_group_that_was_blocked_meanwhile(
    a: Connection,
) -> None:
    await a.execute(
        "select pgq_configure_queue('default', group_on_dead => 'block', group_concurrency => 2)"
    )
    first, second, third = await put(a), await put(a), await put(a)
    assert await claimed(a) == [first, second]
    await a.execute(KILL, first)
    await finish(a, second)
    assert await claimed(a) == []
    await a.execute("select pgq_unblock('default', 'g')")
    assert await claimed(a) == [third]


@pytest.mark.parametrize("ended", [0, 1])
async def test_a_lowered_group_concurrency_counts_whichever_head_is_active(
    a: Connection, ended: int
) -> None:
    await a.execute("select pgq_create_queue('old', group_concurrency => 2)")
    ids = [await a.fetchval("select pgq_enqueue('1', 'old', group_key => 'g')") for _ in range(4)]
    receipts = await a.fetch("select id, token from pgq_dequeue(9, queue => 'old')")
    assert [row["id"] for row in receipts] == ids[:2]
    await a.execute("select pgq_configure_queue('old', group_concurrency => 1)")
    await complete(a, [(receipts[ended]["id"], receipts[ended]["token"])])
    assert await a.fetch("select id from pgq_dequeue(9, queue => 'old')") == []


async def test_a_tick_that_ends_a_head_does_not_let_a_later_job_overtake(a: Connection) -> None:
    now = await a.fetchval("select clock_timestamp()")
    late = "select pgq_enqueue('1', group_key => 'g', expires_at => $1)"
    first = await a.fetchval(late, now + timedelta(seconds=10))
    second = await put(a)
    # A hint, by an old snapshot, of the third one only.
    await a.execute("begin isolation level repeatable read")
    third = await put(a)
    await a.execute("commit")
    await stop_clock(a, now + timedelta(seconds=11))
    await maintain(a)
    assert await a.fetchval("select state from pgq_jobs where id = $1", first) == "dead"
    await maintain(a)
    assert await claimed(a) == [second]
    await finish(a, second)
    assert await claimed(a) == [third]


async def test_a_transaction_that_has_noted_in_two_tables_decides_at_its_commit(
    a: Connection, b: Connection
) -> None:
    first, second = await put(a), await put(a)
    receipts = await dequeue(a, 10)
    assert [job_id for job_id, _ in receipts] == [first]
    await a.execute("begin")
    await complete(a, receipts)
    await park_in_both(b)
    third, other = await put(a), await put(a, "h")
    await a.execute("commit")
    assert await a.fetchval("select count(*) from pgq.hint") == 0
    assert set(await claimed(a)) == {second, other}
    await finish(a, second)
    assert await claimed(a) == [third]


async def test_who_notes_does_not_wait_for_a_tick_that_is_held_at_its_commit(
    a: Connection, b: Connection, c: Connection
) -> None:
    await c.execute(HELD)
    await put(c)
    await a.execute("begin; select pgq_maintain(); insert into held values (1)")
    async with started(a.execute("commit")) as tick:
        await waiting(c, a, tick)
        assert await within(put(b, "h")) > 0
        await c.execute("select pg_advisory_unlock(1)")
        await within(tick)


LOOKING = {
    "cancel": "pgq_cancel($1)",
    "replace": "pgq_enqueue('2', group_key => 'g', dedupe_key => 'k', on_duplicate => 'replace')"
    " = $1",
    "after": "(pgq_get(pgq_enqueue('3', after => array[$1::bigint]))).state = 'waiting'",
}


@pytest.mark.parametrize("way", ["due", "next"])
@pytest.mark.parametrize("call", LOOKING)
async def test_a_job_that_gets_its_copy_while_others_look_it_up_is_found_there(
    a: Connection, b: Connection, c: Connection, call: str, way: str
) -> None:
    """They wait for its row in the line, which does not stand for the job any more then."""
    await c.execute(HELD)
    now = await stop_clock(c)
    first = await put(c)
    receipts = await dequeue(c)
    if way == "due":
        await complete(c, receipts)
    job_id = await c.fetchval(
        "select pgq_enqueue('1', group_key => 'g', dedupe_key => 'k', run_at => $1)",
        now + timedelta(minutes=1) if way == "due" else None,
    )
    await no_ticks(c, now + timedelta(minutes=2))
    await a.execute("begin; insert into held values (1)")
    if way == "due":
        await a.execute("select pgq._tick()")
    else:
        assert await complete(a, receipts) == [first]
    async with started(a.execute("commit")) as commit:
        await waiting(c, a, commit)
        async with started(b.fetchval(f"select {LOOKING[call]}", job_id)) as found:
            await waiting(c, b, found)
            await c.execute("select pg_advisory_unlock(1)")
            await within(commit)
            assert await within(found) is True
    rows = await c.fetch("select id, token, payload from pgq_dequeue(10, '1 hour')")
    assert [row["payload"] for row in rows] == {"cancel": [], "replace": ["2"], "after": ["1"]}[
        call
    ]
    assert await complete(c, [(row["id"], row["token"]) for row in rows]) == [r["id"] for r in rows]
    assert len(await claimed(c)) == (call == "after")
    assert await c.fetchval("select count(*) from pgq.job") == (call == "after")


# pgq_claim waits between its first look at the job and its lock, until the advisory lock is free.
HELD_CHECK = """
    alter function pgq._check_claimable rename to _check_first;
    create function pgq._check_claimable(p_job pgq.job, p_queue pgq.queue) returns void
    language plpgsql as $$
    begin
        perform pgq._check_first(p_job, p_queue), pg_advisory_xact_lock_shared(1);
    end $$;
    select pg_advisory_lock(1)
"""


@pytest.mark.parametrize("is_head", [True, False])
@pytest.mark.parametrize("then", ["moved", "claimed", "put off"])
async def test_a_due_job_that_goes_on_while_it_is_claimed_by_its_id_is_not_claimed_twice(
    a: Connection, b: Connection, c: Connection, then: str, is_head: bool
) -> None:
    now = await stop_clock(c)
    job_id = await c.fetchval(
        "select pgq_enqueue('1', group_key => $1, run_at => $2)",
        "g" if is_head else None,
        now + timedelta(minutes=1),
    )
    await no_ticks(c, now + timedelta(minutes=2))
    await c.execute(HELD_CHECK)
    async with started(b.fetchrow("select * from pgq_claim($1, '1 hour')", job_id)) as claim:
        await waiting(c, b, claim)
        await a.execute("select pgq._tick()")
        receipts = await dequeue(a) if then != "moved" else []
        if then == "put off":
            await a.execute("select pgq_fail($1, $2, retry_in => '1 hour')", *receipts[0])
        await c.execute("select pg_advisory_unlock(1)")
        if then == "moved":
            job = await within(claim)
            assert job is not None
            receipts = [(job["id"], job["token"])]
        else:
            with pytest.raises(asyncpg.LockNotAvailableError):
                await within(claim)
    copies = "select count(*) from pgq.job where id = $1 and slot < 4"
    assert await c.fetchval(copies, job_id) == (then != "put off")
    assert await complete(c, receipts) == [job_id] * (then != "put off")
    assert await c.fetchval("select count(*) from pgq.job") == (then == "put off")


async def test_a_claim_of_a_due_job_locks_the_head_of_the_ring_before_it_draws_a_position(
    a: Connection, b: Connection
) -> None:
    """Ticks take a number that was drawn without such a lock for that of a job that is there."""
    now = await stop_clock(a)
    job_id = await a.fetchval("select pgq_enqueue('1', run_at => $1)", now + timedelta(minutes=1))
    await no_ticks(a, now + timedelta(minutes=2))
    await a.execute("begin; lock table pgq.job_0, pgq.job_1, pgq.job_2, pgq.job_3 in share mode")
    async with started(b.fetchval("select id from pgq_claim($1, '1 hour')", job_id)) as claim:
        await waiting(a, b, claim)
        assert await a.fetchval("select last_value from pgq.number") == job_id
        await a.execute("rollback")
        assert await within(claim) == job_id
    assert await a.fetchval("select pos > id from pgq.job where id = $1", job_id)


async def test_a_scheduled_head_that_dies_for_its_key_blocks_its_group(a: Connection) -> None:
    now = await stop_clock(a)
    await a.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    scheduled = "select pgq_enqueue('1', group_key => 'g', dedupe_key => 'k', run_at => $1"
    head = await a.fetchval(
        f"{scheduled}, expires_at => $2)", now + timedelta(hours=1), now + timedelta(seconds=1)
    )
    second = await put(a)
    await stop_clock(a, now + timedelta(seconds=2))
    # The key is free: the job that has it has not started in time.
    third = await a.fetchval(f"{scheduled})", now)
    assert third > second
    assert await a.fetchval("select state from pgq_jobs where id = $1", head) == "dead"
    await maintain(a)
    assert await claimed(a) == []
    assert await a.fetchval("select pgq_unblock('default', 'g')")
    assert await claimed(a) == [second]
    await finish(a, second)
    assert await claimed(a) == [third]


@pytest.mark.parametrize("then", ["cancelled", "claimed"])
async def test_an_expired_lease_that_changes_while_it_is_claimed_by_its_id_is_left_alone(
    a: Connection, b: Connection, c: Connection, then: str
) -> None:
    now = await stop_clock(c)
    job_id = await put(c)
    ((_, token),) = await dequeue(c, 1, "1 s")
    await no_ticks(c, now + timedelta(seconds=2))
    await c.execute(HELD_CHECK)
    async with started(b.fetchrow("select * from pgq_claim($1, '1 hour')", job_id)) as claim:
        await waiting(c, b, claim)
        if then == "cancelled":
            assert not await a.fetchval("select pgq_cancel($1)", job_id)
        else:
            await a.execute("select pgq_release($1, $2)", job_id, token)
            ((_, token),) = await dequeue(a, 1, "1 s")
            await stop_clock(c, now + timedelta(seconds=4))
        await c.execute("select pg_advisory_unlock(1)")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await within(claim)
    assert await c.fetchval("select token from pgq.job where slot < 4") == token


# As a tick does it when the written parked slot has more garbage than the other one.
MOVE = "select pgq._move(4::smallint, 5::smallint, 1000)"
HEAD_CALLS = {
    "complete": "select pgq_complete($1::bigint, $2::bigint)",
    "complete_many": "select pgq_complete(array[$1::bigint], array[$2::bigint])",
    "fail": "select pgq_fail($1, $2, retry_in => '1 hour')",
    "kill": "select pgq_fail($1, $2, retryable => false)",
    "release": "select pgq_release($1, $2, '1 hour')",
    "cancel": "select pgq_cancel($1, true) where $2::bigint > 0",
}


@pytest.mark.parametrize("call", HEAD_CALLS)
async def test_an_old_snapshot_gives_40001_for_a_head_whose_line_has_moved(
    a: Connection, b: Connection, call: str
) -> None:
    await a.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    first, second = await put(a), await put(a)
    ((_, token),) = await dequeue(a)
    await b.execute("begin isolation level repeatable read; select from pgq.queue")
    await a.execute(MOVE)
    await a.execute("truncate pgq.job_4")
    with pytest.raises(asyncpg.SerializationError):
        await b.fetch(HEAD_CALLS[call], first, token)
    await b.execute("rollback")
    await finish(a, first)
    assert await claimed(a) == [second]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize(
    "call",
    [
        "pgq_unblock('default', 'g') and $1::bigint > 0",
        "pgq_retry($1)",
        "pgq_purge('default', '{dead}') = 1 and $1::bigint > 0",
    ],
)
async def test_a_group_is_unblocked_though_maintenance_is_moving_its_line(
    a: Connection, b: Connection, c: Connection, call: str, end: str
) -> None:
    await a.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    first, second = await put(a), await put(a)
    assert await claimed(a) == [first]
    await a.execute(KILL, first)
    await b.execute("begin")
    await b.execute(MOVE)
    async with started(a.fetchval(f"select {call}", first)) as unblocking:
        await waiting(c, a, unblocking)
        await b.execute(end)
        assert await within(unblocking) is True
    assert await claimed(a) == [first if "retry" in call else second]


async def test_an_old_snapshot_does_not_unblock_a_line_that_has_moved(
    a: Connection, b: Connection
) -> None:
    await a.execute("select pgq_configure_queue('default', group_on_dead => 'block')")
    first, second = await put(a), await put(a)
    assert await claimed(a) == [first]
    await a.execute(KILL, first)
    await b.execute("begin isolation level repeatable read; select from pgq.queue")
    await a.execute(MOVE)
    await a.execute("truncate pgq.job_4")
    with pytest.raises(asyncpg.SerializationError):
        await b.fetchval("select pgq_unblock('default', 'g')")
    await b.execute("rollback")
    assert await b.fetchval("select pgq_unblock('default', 'g')")
    assert await claimed(a) == [second]


async def test_a_head_keeps_what_has_replaced_it_though_maintenance_was_moving_its_line(
    a: Connection, b: Connection, c: Connection
) -> None:
    call = "select pgq_enqueue($1, dedupe_key => 'k', group_key => 'g', on_duplicate => 'replace')"
    head = await a.fetchval(call, "1")
    await b.execute("begin")
    await b.execute(MOVE)
    async with started(a.fetchval(call, "2")) as replacing:
        await waiting(c, a, replacing)
        await b.execute("commit")
        assert await within(replacing) == head
    now = await stop_clock(c)
    await a.execute("select pgq_fail(id, token, retry_in => '1 minute') from pgq_dequeue()")
    await stop_clock(c, now + timedelta(minutes=2))
    await maintain(a)
    assert await a.fetchval("select payload from pgq_dequeue()") == "2"


@pytest.mark.parametrize("number", [1, 2000])
async def test_late_jobs_that_were_left_to_a_tick_wait_for_the_head_however_many_they_are(
    a: Connection, b: Connection, number: int
) -> None:
    await b.execute("begin; set constraints all immediate")
    late = [row[0] for row in await b.fetch(MANY, ["g"] * number)]
    head = await put(a)
    assert await claimed(a) == [head]
    await b.execute("commit")
    await maintain(a)
    assert await claimed(a) == []
    await finish(a, head)
    assert await claimed(a) == late[:1]


async def test_a_late_job_that_is_free_again_while_a_tick_looks_is_no_second_head(
    a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute("begin; set constraints all immediate")
    late = await put(b)
    head = await put(a)
    assert await claimed(a) == [head]
    await b.execute("commit")
    await a.execute("""
        alter function pgq._next_heads(bigint[], bigint[], bigint[], bigint[], bigint[])
            rename to _next_heads_then;
        create function pgq._next_heads(bigint[], bigint[], bigint[], bigint[], bigint[])
        returns table (slot smallint, id bigint, lane bigint, group_id bigint, head_place bigint)
        language plpgsql as $$
        begin
            perform pg_advisory_xact_lock(7);
            return query select * from pgq._next_heads_then($1, $2, $3, $4, $5);
        end
        $$
    """)
    await b.execute("begin; select pg_advisory_xact_lock(7)")
    await c.execute(f"begin; select from pgq.job where id = {late} for update")
    async with started(a.execute("select pgq_maintain()")) as tick:
        await waiting(c, a, tick)
        await c.execute("rollback")
        await b.execute("rollback")
        await within(tick)
    await maintain(a)
    assert await claimed(a) == []
    await finish(a, head)
    assert await claimed(a) == [late]


async def test_a_late_job_waits_for_a_head_behind_one_that_was_left_to_a_tick(
    a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute("begin")
    late = await put(b)
    await c.execute("begin; set constraints all immediate")
    left = await put(c)
    head = await put(a)
    assert await claimed(a) == [head]
    await c.execute("commit")
    await b.execute("commit")
    assert await claimed(a) == []
    await maintain(a)
    assert await claimed(a) == []
    for job_id in (head, late, left):
        await finish(a, job_id)
        assert await claimed(a) == ([] if job_id == left else [late if job_id == head else left])


@pytest.mark.parametrize("before", range(3))
async def test_a_late_job_waits_for_all_heads_when_the_concurrency_was_lowered(
    a: Connection, b: Connection, before: int
) -> None:
    await a.execute("select pgq_configure_queue('default', group_concurrency => 3)")
    await maintain(a, 2)
    heads = [await put(a) for _ in range(before)]
    await b.execute("begin")
    late = await put(b)
    heads += [await put(a) for _ in range(3 - before)]
    assert await claimed(a) == heads
    await a.execute("select pgq_configure_queue('default', group_concurrency => 1)")
    await maintain(a, 2)
    await b.execute("commit")
    for head in heads:
        assert await claimed(a) == []
        await finish(a, head)
    assert await claimed(a) == [late]


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_due_job_that_is_locked_brings_no_tick_after_tick(
    a: Connection, b: Connection, group: str | None
) -> None:
    now = await stop_clock(a)
    due = now + timedelta(minutes=1)
    job_id = await a.fetchval("select pgq_enqueue('1', group_key => $1, run_at => $2)", group, due)
    await stop_clock(a, due)
    await b.execute(f"begin; select from pgq.job where id = {job_id} for update")
    await maintain(a)
    next_tick = "select last_value - pgq._ms(pgq._now()) from pgq.next_tick"
    assert await a.fetchval(next_tick) == 500
    await b.execute("rollback")
    await maintain(a)
    assert await claimed(a) == [job_id]


@pytest.mark.parametrize("end", ["lease", "second lease", "unstarted"])
async def test_maintenance_never_waits_for_the_row_in_the_line_of_what_it_takes_back(
    a: Connection, b: Connection, end: str
) -> None:
    now = await stop_clock(a)
    job_id = await a.fetchval(
        "select pgq_enqueue('1', group_key => 'g', expires_at => $1)", now + timedelta(seconds=9)
    )
    if end != "unstarted":
        for lost in range(1 if end == "lease" else 2):
            now += timedelta(seconds=lost)
            await stop_clock(a, now)
            assert len(await dequeue(a, 1, "200 ms")) == 1
            await stop_clock(a, now + timedelta(milliseconds=300))
            if (end, lost) == ("second lease", 0):
                await maintain(a)
    else:
        await stop_clock(a, now + timedelta(seconds=10))
    # As pgq_cancel_all does with a row that has become a head while it waited for the row.
    await b.execute(
        "begin; select from pgq.job where slot in (4, 5) and place is not null for update"
    )
    await a.execute("set lock_timeout = '5 s'")
    await maintain(a)
    await b.execute("rollback")
    await maintain(a)
    state = await a.fetchval("select state from pgq_get($1)", job_id)
    assert state == {"lease": "ready", "second lease": "scheduled", "unstarted": "dead"}[end]


@pytest.mark.parametrize("kind", ["group", "waiter"])
async def test_what_is_left_to_ticks_again_and_again_starves_nobody(
    a: Connection, b: Connection, c: Connection, kind: str
) -> None:
    receipts: list[Receipt] = []
    ids: list[int] = []
    if kind == "group":
        await a.execute("begin isolation level repeatable read")
        await a.fetch(MANY, [str(n) for n in range(1501)])
        await a.execute("commit")
    else:
        await a.execute("select pgq_enqueue('1')")
        receipts = await dequeue(a)
        await a.execute(
            "select pgq_enqueue('2', after => array[$1::bigint]) from generate_series(1, 1501)",
            receipts[0][0],
        )
    # The other jobs are about to be cancelled. Keys in order come to this one as the last.
    job_id = await a.fetchval(
        "select id from pgq.job where token is null order by coalesce(group_id, id) desc limit 1"
    )
    for session, sign in ((b, "<>"), (c, "=")):
        await session.execute("begin")
        await session.execute(
            f"select from pgq.job where id {sign} {job_id} and token is null for update"
        )
    if kind == "waiter":
        assert await complete(a, receipts) == [receipts[0][0]]
        assert await a.fetchval("select count(*) from pgq.hint") == 1501
    await c.execute("rollback")
    # Each time two of three have their turn.
    for _ in range(25):
        await maintain(a)
        ids = await claimed(a)
        if ids:
            break
    assert ids == [job_id]
    assert await a.fetchval("select count(*) from pgq.hint") == 1500
