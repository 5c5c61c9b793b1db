"""Many sessions at once: who gets which job, in which order, and who waits for whom."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import timedelta

import asyncpg
import pytest

from .sessions import (
    Connection,
    Dsn,
    Receipt,
    complete,
    dequeue,
    enqueue,
    in_two_slots,
    maintain,
    raise_floors,
    ring,
    sessions,
    settle_all,
    slot_of,
    started,
    stop_clock,
    turning,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

# c looks on, and must not be made to wait.
SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {"lock_timeout": "500ms"}}


async def test_eight_consumers_see_each_of_20000_jobs_exactly_once(dsn: Dsn) -> None:
    async with sessions(dsn, 8) as consumers:
        ids = await enqueue(consumers[0], 20_000)
        with turning(dsn, 500_000):
            firsts = await asyncio.gather(*(dequeue(consumer, 25) for consumer in consumers))
            assert all(firsts)
            done = await complete(consumers[0], itertools.chain(*firsts))
            seen = await asyncio.gather(*(settle_all(consumer, 25) for consumer in consumers))
        # Maintenance may have been moving what was left when the last of them asked.
        late = await settle_all(consumers[0])
        assert sorted(itertools.chain(done, *seen, late)) == ids
        assert await consumers[0].fetchval("select count(*) from pgq.job") == 0


@pytest.mark.parametrize("batch", [1, 7, 100])
async def test_one_consumer_sees_priority_then_the_order_of_what_many_enqueued(
    dsn: Dsn, batch: int
) -> None:
    """By id; but calls that run while the ring turns may change places with one another."""
    clock = itertools.count()
    calls: list[tuple[int, int, int, list[int]]] = []  # priority, begin, end, ids

    async def produce(producer: Connection, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            priority, begin = chance.choice([-1, 0, 7]), next(clock)
            rows = await producer.fetch(
                "select pgq_enqueue_many(array_fill(jsonb '1', array[10]), priority => $1)",
                priority,
            )
            calls.append((priority, begin, next(clock), [row[0] for row in rows]))

    async with sessions(dsn, 6) as (consumer, *producers):
        slots = 0
        with turning(dsn):
            while slots < 2:
                await asyncio.gather(*(produce(p, seed) for seed, p in enumerate(producers)))
                slots = await consumer.fetchval("select count(distinct slot) from pgq.job")
        places: dict[int, int] = {}
        priorities: list[int] = []
        while jobs := await consumer.fetch(
            "select id, priority from pgq_dequeue($1, '1 hour')", batch
        ):
            for job in jobs:
                places[job["id"]] = len(places)
                priorities.append(job["priority"])
    assert len(places) == sum(len(ids) for *_, ids in calls)
    assert priorities == sorted(priorities, reverse=True)
    for priority, _, end, ids in calls:
        mine = [places[job_id] for job_id in ids]
        assert mine == sorted(mine)
        for other, begin, _, others in calls:
            if other == priority and end < begin:
                assert max(mine) < min(places[job_id] for job_id in others)


async def test_a_second_completer_of_a_receipt_waits_for_the_first(
    a: Connection, b: Connection, c: Connection
) -> None:
    for end, answer in (("commit", []), ("rollback", [1])):
        ids = await enqueue(a, 1)
        receipts = await dequeue(a)
        await a.execute("begin")
        assert await complete(a, receipts) == ids
        async with started(complete(b, receipts)) as task:
            await waiting(c, b, task)
            await a.execute(end)
            assert await within(task) == ids * len(answer)


async def test_a_completion_that_has_waited_is_of_then(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(c, 1)
    receipts = await dequeue(c)
    await a.execute("begin")
    assert await complete(a, receipts)
    async with started(complete(b, receipts)) as task:
        await waiting(c, b, task)
        await c.execute("select pgq_configure_queue('default', keep_completed => '2 hours')")
        now = await c.fetchval("select clock_timestamp()")
        await a.execute("rollback")
        assert await within(task)
    row = await c.fetchrow("select finished_at, expires_at, bucket from pgq.archive")
    assert row is not None
    assert row["finished_at"] > now
    assert row["expires_at"] - row["finished_at"] == timedelta(hours=2)
    expected = "select pgq._archive_bucket($1, '2 hours')"
    assert row["bucket"] == await c.fetchval(expected, row["expires_at"])


async def test_dequeue_does_not_wait_for_rows_that_others_have_locked(
    a: Connection, c: Connection
) -> None:
    ids = await enqueue(c, 20)
    await a.execute("begin")
    await a.execute("select from pgq.job where id % 2 = $1 for update", ids[0] % 2)
    assert [job_id for job_id, _ in await dequeue(c, 20)] == ids[1::2]
    assert await dequeue(c, 20) == []
    await a.execute("rollback")
    assert [job_id for job_id, _ in await dequeue(c, 20)] == ids[0::2]


async def test_a_reader_is_not_blocked_by_producers_and_consumers(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(c, 3)
    await a.execute("begin")
    await enqueue(a, 2)
    receipts = await dequeue(a)
    await complete(a, receipts)
    await b.execute("begin")
    await within(b.execute("select pgq_pop()"))
    assert await c.fetchval("select count(*) from pgq.job") == 3
    assert await c.fetchval("select count(*) from pgq.archive") == 0


async def test_a_second_claim_of_a_job_fails_at_once(
    a: Connection, b: Connection, c: Connection
) -> None:
    (job_id,) = await enqueue(c, 1)
    await a.execute("begin")
    assert await a.fetchval("select (pgq_claim($1)).id", job_id) == job_id
    await c.execute("set lock_timeout = 0")
    with pytest.raises(asyncpg.LockNotAvailableError) as refused:
        await within(c.execute("select pgq_claim($1)", job_id), 5)
    assert refused.value.sqlstate == "55P03"
    assert refused.value.detail == "It is being claimed or settled just now."
    await a.execute("commit")
    with pytest.raises(asyncpg.LockNotAvailableError) as refused:
        await within(b.execute("select pgq_claim($1)", job_id), 5)
    assert str(refused.value.detail).startswith("It is leased until ")


async def test_sessions_that_race_for_one_job_get_it_once(dsn: Dsn) -> None:
    async with sessions(dsn, 8) as racers:
        for _ in range(50):
            (job_id,) = await enqueue(racers[0], 1)
            answers = await asyncio.gather(
                *(racer.fetchval("select (pgq_claim($1)).id", job_id) for racer in racers[:4]),
                *(dequeue(racer) for racer in racers[4:]),
                return_exceptions=True,
            )
            refused = [x for x in answers if isinstance(x, asyncpg.LockNotAvailableError)]
            won = [x for x in answers if not isinstance(x, BaseException) and x]
            assert len(won) == 1
            assert len(refused) + len(won) + answers.count([]) == 8


async def test_a_heartbeat_does_not_wait_for_jobs_that_others_have_locked(
    a: Connection, b: Connection, c: Connection
) -> None:
    receipts = await in_two_slots(c)
    ids, tokens = ([pair[n] for pair in receipts] for n in (0, 1))
    expiry = "select id, lease_expires_at from pgq.job"
    heartbeat = "select * from pgq_heartbeat($1::bigint[], $2::bigint[], '2 hours')"
    for held in receipts:
        before = dict(await c.fetch(expiry))
        transaction = b.transaction()
        await transaction.start()
        assert await complete(b, [held]) == [held[0]]
        answer = await within(a.fetch(heartbeat, ids, tokens))
        after = {row["id"]: row["lease_expires_at"] for row in answer}
        assert sorted(after) == sorted(ids)
        assert after == dict(await c.fetch(expiry))
        assert {job_id for job_id in ids if after[job_id] == before[job_id]} == {held[0]}
        async with started(
            a.fetchval("select pgq_heartbeat($1::int8, $2::int8, '3 hours', '1')", *held)
        ) as noting:
            await waiting(c, a, noting)
            await transaction.rollback()
            assert await within(noting) > after[held[0]]
        assert await c.fetchval("select checkpoint from pgq.job where id = $1", held[0]) == "1"
    assert sorted(await complete(a, receipts)) == sorted(ids)
    assert await a.fetch(heartbeat, ids, tokens) == []


async def test_a_heartbeat_that_has_waited_renews_from_then_on(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(c, 1)
    (held,) = await dequeue(c)
    await b.execute("begin")
    assert await complete(b, [held]) == [held[0]]
    note = "select pgq_heartbeat($1::int8, $2::int8, '1 hour', '1') - interval '1 hour'"
    async with started(a.fetchval(note, *held)) as noting:
        await waiting(c, a, noting)
        now = await c.fetchval("select clock_timestamp()")
        await b.execute("rollback")
        assert await within(noting) > now


@pytest.mark.parametrize("keep", ["1 day", "0"])
@pytest.mark.parametrize("notes", [None, ["1", "2"]])
async def test_a_heartbeat_and_a_completion_of_the_same_jobs_do_not_deadlock(
    a: Connection, b: Connection, c: Connection, keep: str, notes: list[str] | None
) -> None:
    """Whatever the order of the jobs on disk."""
    await c.execute(f"select pgq_configure_queue('default', keep_completed => '{keep}')")
    await enqueue(c, 2)
    receipts = await dequeue(c, 2)
    ids, tokens = ([pair[n] for pair in receipts] for n in (0, 1))
    heartbeat = "select id from pgq_heartbeat($1::bigint[], $2::bigint[], null, $3::jsonb[])"
    await c.fetch(heartbeat, ids[:1], tokens[:1], None)
    places = "select array_agg(id order by ctid) from pgq.job"
    assert await c.fetchval(places) == ids[::-1]
    transaction = c.transaction()
    await transaction.start()
    await c.execute("select from pgq.job where id = $1 for update", ids[0])
    async with started(a.fetch(heartbeat, ids, tokens, notes)) as renewing:
        if notes is None:
            assert len(await within(renewing)) == 2
        else:
            await waiting(c, a, renewing)
        async with started(complete(b, receipts)) as completing:
            await waiting(c, b, completing)
            await transaction.commit()
            assert sorted(await within(completing)) == ids
            assert len(await within(renewing)) == 2


async def test_a_stale_receipt_with_a_checkpoint_holds_nobody_up(
    a: Connection, b: Connection
) -> None:
    await enqueue(a, 1)
    (stale,) = await dequeue(a, 1, "1 ms")

    async def claimed() -> list[Receipt]:
        return await dequeue(b)

    fresh = await until(claimed)
    async with a.transaction():
        note = "select pgq_heartbeat($1::int8, $2::int8, checkpoint => '1')"
        assert await a.fetchval(note, *stale) is None
        assert await within(complete(b, fresh)) == [stale[0]]


async def test_a_checkpoint_is_kept_wherever_the_job_has_been_moved(
    a: Connection, b: Connection, c: Connection
) -> None:
    await enqueue(a, 1)
    (receipt,) = await dequeue(a)
    await a.execute("select pgq._move(0::smallint, 1::smallint, 1000)")
    await b.execute("begin")
    await b.execute("select pgq_cancel($1)", receipt[0])
    note = "select pgq_heartbeat($1::int8, $2::int8, checkpoint => '7')"
    async with started(a.fetchval(note, *receipt)) as noting:
        await waiting(c, a, noting)
        await b.execute("rollback")
        assert await within(noting)
    assert await c.fetchval("select checkpoint from pgq.job") == "7"


async def test_expired_leases_come_back_in_order_and_before_later_jobs(a: Connection) -> None:
    ids = await enqueue(a, 20_000)
    early = ids[:2000]
    now = await stop_clock(a)
    for _ in range(20):
        await dequeue(a, 100, "300 ms")
    await stop_clock(a, now + timedelta(seconds=1))
    await maintain(a, 4)
    seen: list[int] = []

    async def all_came() -> bool:
        receipts = await dequeue(a, 10)
        seen.extend(job_id for job_id, _ in receipts)
        await complete(a, receipts)
        return early[-1] in seen

    await until(all_came, pause=0)
    back = [job_id for job_id in seen if job_id <= early[-1]]
    assert back == early
    first, last = seen.index(early[0]), seen.index(early[-1])
    assert last - first == len(early) - 1, "later jobs came in between"


async def test_what_comes_back_during_a_claim_does_not_follow_what_it_has_taken(
    a: Connection, b: Connection, c: Connection
) -> None:
    # A claim of more than there is: it goes on behind what it took, and looks nowhere else.
    await a.execute("set pgq.slot_size = '8192'")
    await enqueue(a, 1200)
    await a.execute("analyze pgq.job_0")
    await maintain(a)
    await enqueue(a, 50)
    assert len((await ring(a))["live"]) == 2
    await b.execute("begin")
    held = await dequeue(b, 20)
    # The claim stops here, between its first slot and the second: of so many it raises the floor.
    await a.execute("""
        alter function pgq._raise_floor(smallint, bigint) rename to _raise_more;
        create function pgq._raise_floor(p_slot smallint, p_lane bigint) returns void
        language plpgsql set search_path = pg_catalog, pg_temp as $$
        begin
            perform pg_advisory_lock(7), pg_advisory_unlock(7);
            perform pgq._raise_more(p_slot, p_lane);
        end $$;
    """)
    await c.execute("select pg_advisory_lock(7)")
    async with started(a.fetch("select id, priority from pgq_dequeue(2000, '1 hour')")) as task:
        await waiting(c, a, task)
        await b.execute("rollback")
        await b.execute("select pgq_enqueue('9', priority => 9)")
        await c.execute("select pg_advisory_unlock(7)")
        rows = await within(task)
    assert len(rows) == 1230
    assert rows == sorted(rows, key=lambda row: (-row["priority"], row["id"]))
    assert len(await dequeue(b, 2000)) == len(held) + 1


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
async def test_receipts_of_several_slots_are_locked_in_one_order_whatever_theirs(
    a: Connection, b: Connection, c: Connection, order: list[int]
) -> None:
    await a.execute("select pgq_configure_queue('default', keep_completed => '0')")
    receipts = await in_two_slots(a)
    await c.execute("begin")
    await c.fetch("select from pgq.job where id = $1 for update", receipts[0][0])
    shuffled = [receipts[index] for index in order]
    async with started(complete(a, shuffled)) as completing:
        await waiting(c, a, completing)
        # Nothing of a later slot is held while the call waits for the first one.
        await b.fetch("select from pgq.job where id = $1 for update nowait", receipts[1][0])
        await c.execute("commit")
        assert sorted(await within(completing)) == [job_id for job_id, _ in receipts]


@pytest.mark.parametrize("jobs", [10, 250])
async def test_receipts_of_jobs_for_which_others_wait_are_locked_in_the_same_order(
    a: Connection, b: Connection, c: Connection, jobs: int
) -> None:
    await a.execute("select pgq_configure_queue('default', keep_completed => '0')")
    await enqueue(a, jobs)
    receipts = await dequeue(a, jobs)
    (awaited, _), *others = receipts
    await a.execute("select pgq_enqueue('1', after => array[$1::bigint])", awaited)
    await c.execute("begin")
    await c.fetch("select from pgq.job where id = $1 for update", awaited)
    async with started(complete(a, receipts)) as completing:
        await waiting(c, a, completing)
        # It has locked none of those that come after the one that it waits for.
        for other, _ in (others[0], others[-1]):
            await b.fetch("select from pgq.job where id = $1 for update nowait", other)
        await c.execute("commit")
        assert len(await within(completing)) == jobs


async def test_jobs_that_are_given_back_unheld_are_locked_in_the_order_of_completions(
    a: Connection, b: Connection, c: Connection
) -> None:
    ids = await enqueue(a, 2)
    for receipt in reversed(await dequeue(a, 2)):
        await a.execute("select pgq_fail($1, $2, retry_in => '0')", *receipt)
    rows = await a.fetch("select id, token from pgq_dequeue(2, '1 hour', worker => 'w')")
    assert await a.fetchval("select array_agg(id order by pos) from pgq.job") == ids[::-1]
    await c.execute("begin")
    await c.fetch("select from pgq.job where id = $1 for update", ids[0])
    async with started(complete(b, [(row["id"], row["token"]) for row in rows])) as completing:
        await waiting(c, b, completing)
        async with started(a.fetch("select pgq_release_unheld('w', '{}')")) as releasing:
            await waiting(c, a, releasing)
            await c.execute("commit")
            assert sorted(await within(completing)) == ids
            assert await within(releasing) == []


async def test_a_consumer_with_an_old_snapshot_finds_expired_leases_below_a_floor(
    dsn: Dsn, a: Connection
) -> None:
    ids = await enqueue(a, 1000)
    for _ in range(4):
        await dequeue(a, 100, "700 ms")
        await raise_floors(a)
    assert await a.fetchval("select max(floor) from pgq.floor_0") > ids[0]
    for level in ("repeatable read", "serializable"):
        async with sessions(dsn, 1, default_transaction_isolation=level) as (old,):

            async def expired_came(consumer: Connection = old) -> bool:
                await maintain(a)
                return any(job_id in ids[:400] for job_id, _ in await dequeue(consumer))

            await until(expired_came)


async def test_a_look_into_an_empty_slot_counts_under_serializable(
    a: Connection, b: Connection
) -> None:
    for queue in ("left", "right"):
        await a.execute("select pgq_create_queue($1)", queue)
        await a.execute("select pgq_enqueue('1', $1)", queue)
        failing = "select pgq_fail(id, token, retryable => false) from pgq_dequeue(queue => $1)"
        assert await a.fetchval(failing, queue) == "dead"
    assert await a.fetchval("select pg_relation_size('pgq.job_4')") == 0
    for session, queue in ((a, "left"), (b, "right")):
        await session.execute("begin isolation level serializable")
        assert await session.fetch("select from pgq_dequeue(queue => $1)", queue) == []
    for session, queue in ((a, "right"), (b, "left")):
        retrying = "select pgq_retry(id) from pgq_jobs where queue = $1 and state = 'dead'"
        assert await session.fetchval(retrying, queue)
    await a.execute("commit")
    with pytest.raises(asyncpg.SerializationError):
        await b.execute("commit")


async def test_parked_jobs_come_in_the_order_in_which_they_fell_due(
    a: Connection,
) -> None:
    due = await stop_clock(a) + timedelta(hours=1)
    await a.execute(
        "select pgq_enqueue('1', run_at => $1::timestamptz - n * interval '100 us')"
        "  from generate_series(1, 900) n",
        due,
    )
    await stop_clock(a, due)
    await maintain(a)
    seen = await settle_all(a, 10)
    assert len(seen) == 900
    assert seen == sorted(seen, reverse=True)


async def test_scheduled_jobs_start_within_a_second_of_their_time(dsn: Dsn, a: Connection) -> None:
    await enqueue(a, 200)
    await settle_all(a)
    now = await stop_clock(a)
    for delay in range(100, 700, 50):
        await a.execute(
            "select pgq_enqueue('1', run_at => $1)", now + timedelta(milliseconds=delay)
        )
    late: list[float] = []
    for step in range(0, 1600, 40):
        await stop_clock(a, now + timedelta(milliseconds=step))
        rows = await a.fetch(
            "select id, token, extract(epoch from claimed_at - run_at)::float8 as late"
            " from pgq_dequeue(10)"
        )
        late.extend(row["late"] for row in rows)
        await complete(a, [(row["id"], row["token"]) for row in rows])
    assert len(late) == 12
    assert min(late) >= 0
    assert max(late) < 1


@pytest.mark.parametrize("lease", [100, 300])
async def test_expired_leases_are_claimable_within_a_second(
    a: Connection, b: Connection, lease: int
) -> None:
    await enqueue(a, 300)
    await settle_all(a)
    ids = await enqueue(a, 300)
    now = await stop_clock(a)
    for _ in range(3):
        await dequeue(a, 64, f"{lease} ms")
        await raise_floors(a)
    expected = set(ids[:192])
    expiry = dict(await a.fetch("select id, lease_expires_at from pgq.job where token > 0"))
    assert expected == set(expiry)
    late: dict[int, float] = {}

    for step in range(-1, 20):
        await stop_clock(a, now + timedelta(milliseconds=lease + 50 * step))
        while rows := await b.fetch("select id, token, claimed_at from pgq_dequeue(10)"):
            for row in rows:
                if row["id"] in expected:
                    late[row["id"]] = (row["claimed_at"] - expiry[row["id"]]).total_seconds()
                await complete(b, [(row["id"], row["token"])])
    assert set(late) == expected
    assert min(late.values()) >= 0
    assert max(late.values()) < 1


@pytest.mark.parametrize(
    "call",
    [
        "pgq_move($1, priority => 3)",
        "pgq_enqueue('2', dedupe_key => 'k', on_duplicate => 'replace') where $1 > 0",
    ],
)
async def test_what_leaves_an_active_job_alone_does_not_lock_it(
    a: Connection, b: Connection, call: str
) -> None:
    job_id = await a.fetchval("select pgq_enqueue('1', dedupe_key => 'k')")
    receipts = await dequeue(b)
    await a.execute("begin")
    await a.fetch(f"select {call}", job_id)
    assert await within(complete(b, receipts)) == [job_id]
    await a.execute("commit")


async def test_a_stale_receipt_changes_nothing_while_the_new_holder_works(
    a: Connection, b: Connection, c: Connection
) -> None:
    (job_id,) = await enqueue(a, 1)
    (stale,) = await dequeue(a, 1, "1 ms")
    fresh: list[Receipt] = []

    async def claimed() -> bool:
        fresh.extend(await dequeue(b))
        return bool(fresh)

    await until(claimed)
    assert fresh[0][0] == job_id
    assert fresh[0][1] > stale[1]
    # Also while the new holder's transaction is open.
    await b.execute("begin")
    assert await b.fetchval("select pgq_heartbeat($1::bigint, $2::bigint)", *fresh[0])
    assert await complete(c, [stale]) == []
    assert await c.fetchval("select pgq_heartbeat($1::bigint, $2::bigint)", *stale) is None
    assert await c.fetchval("select pgq_fail($1, $2)", *stale) is None
    assert await c.fetchval("select pgq_release($1, $2)", *stale) is False
    await b.execute("commit")
    await maintain(b)
    assert await complete(b, fresh) == [job_id]


@pytest.mark.parametrize(
    "arguments",
    [
        "pgq_enqueue('1')",
        "pgq_enqueue('1', headers => '{}')",
        "pgq_enqueue('1', dedupe_key => 'k')",
        "pgq_enqueue('1', group_key => 'g')",
        "pgq_enqueue_many('{1,2}')",
    ],
)
async def test_an_enqueue_draws_its_id_when_it_has_the_slots_lock(
    a: Connection, b: Connection, c: Connection, arguments: str
) -> None:
    # Or the bases could pass an id whose transaction they cannot see.
    drawn = "select pg_sequence_last_value('pgq.number')"
    await a.execute("begin; lock table pgq.job_0, pgq.job_4 in share mode")
    async with started(b.execute(f"select {arguments}")) as enqueued:
        await waiting(c, b, enqueued)
        assert await c.fetchval(drawn) is None
        await a.execute("commit")
        await within(enqueued)
    assert await c.fetchval(drawn) is not None


@pytest.mark.parametrize(
    "call",
    [
        "pgq_enqueue('2', run_at => pgq._now() + '300 ms')",
        "pgq_enqueue_many('{2}', run_at => pgq._now() + '300 ms')",
        "pgq_enqueue('2', run_at => pgq._now() + '300 ms', dedupe_key => 'k')",
        "pgq_release(j.id, j.token, '300 ms') from pgq.job j where j.token is not null",
        "pgq_fail(j.id, j.token, retry_in => '300 ms') from pgq.job j where j.token is not null",
    ],
)
async def test_a_job_whose_time_comes_while_its_slot_is_locked_is_not_passed_by(
    a: Connection, b: Connection, c: Connection, call: str
) -> None:
    now = await stop_clock(c)
    await enqueue(a, 1)
    await dequeue(a)
    await a.execute("select pgq_enqueue('1', run_at => pgq._now() + '1 day')")
    await a.execute("begin; lock table pgq.job_4 in share mode")
    async with started(b.execute(f"select {call}")) as parked:
        await waiting(c, b, parked)
        # Ticks raise positions meanwhile.
        for second in range(1, 4):
            await stop_clock(c, now + timedelta(seconds=second))
            await maintain(c)
        await a.execute("commit")
        await within(parked)
    for second in range(4, 7):
        await stop_clock(c, now + timedelta(seconds=second))
        await maintain(c)
    assert len(await dequeue(c, 9)) == 1


async def test_pop_does_not_bring_the_next_tick_forward(a: Connection) -> None:
    await stop_clock(a)
    await enqueue(a, 1)
    register = "pg_sequence_last_value('pgq.next_tick')"
    later = await a.fetchval(
        "select setval('pgq.next_tick', pgq._ms(pgq._now()) + 490)"
        " from setval('pgq.last_tick', pgq._ms(pgq._now()))"
    )
    assert len(await a.fetch("select * from pgq_pop(), set_config('x.y', '', true)")) == 1
    assert await a.fetchval(f"select {register}") == later


@pytest.mark.parametrize(
    "call",
    [
        "select pgq_cancel_all('default')",
        "select pgq_enqueue('1', after => array(select id from pgq.job order by id))",
    ],
)
@pytest.mark.parametrize("differ", ["slots", "lanes"])
async def test_calls_that_lock_many_jobs_do_so_in_the_order_of_receipts(
    a: Connection, b: Connection, c: Connection, differ: str, call: str
) -> None:
    # The first one has the lower id, and the later place.
    if differ == "lanes":
        await a.execute("select pgq_enqueue('1', priority => p) from unnest('{5,0}'::int[]) p")
        low, high = sorted(await dequeue(a, 2))
    else:
        first, second, *others = await in_two_slots(a, 2)
        await complete(a, others)
        await a.execute("select pgq_fail($1, $2, retry_in => '0')", *first)
        (low,), high = await dequeue(a), second
        assert low[1] & 7 == 1
    await c.execute("begin")
    await c.fetch("select from pgq.job where id = $1 for update", high[0])
    async with started(a.fetch(call)) as locking:
        await waiting(c, a, locking)
        assert await within(b.fetchval("select pgq_heartbeat($1::int8, $2::int8)", *low), 5)
        await c.execute("commit")
        await within(locking)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_cancelling_waits_for_a_completion_and_then_decides(
    a: Connection, b: Connection, c: Connection, force: bool, end: str
) -> None:
    (job_id,) = await enqueue(a, 1)
    receipts = await dequeue(a)
    await a.execute("begin")
    assert await complete(a, receipts) == [job_id]
    async with started(b.fetchval("select pgq_cancel($1::bigint, $2)", job_id, force)) as cancelled:
        await waiting(c, b, cancelled)
        await a.execute(end)
        assert await within(cancelled) == (force and end == "rollback")
    asked = await c.fetchval("select cancel_requested from pgq.job")
    assert asked == (None if force or end == "commit" else True)
    assert await complete(a, receipts) == ([job_id] if asked else [])


@pytest.mark.parametrize(("delay", "claimed_again"), [("0", False), ("0", True), ("1 h", False)])
async def test_cancelling_waits_for_a_release_and_ends_what_was_given_back(
    a: Connection, b: Connection, c: Connection, delay: str, claimed_again: bool
) -> None:
    await enqueue(a, 1)
    (receipt,) = await dequeue(a)
    await a.execute("begin")
    await a.fetchval(f"select pgq_release($1::int8, $2::int8, '{delay}')", *receipt)
    if claimed_again:
        await a.execute("select pgq_claim($1)", receipt[0])
    async with started(b.fetchval("select pgq_cancel($1::bigint)", receipt[0])) as cancelled:
        await waiting(c, b, cancelled)
        await a.execute("commit")
        assert await within(cancelled) is not claimed_again
    state = "active" if claimed_again else "cancelled"
    assert await c.fetchval("select state from pgq_get($1)", receipt[0]) == state
    asked = await c.fetch("select cancel_requested from pgq.job where token is not null")
    assert [row[0] for row in asked] == [True] * claimed_again


async def test_a_cancelled_head_is_followed_by_the_next_of_its_group(a: Connection) -> None:
    put = "select pgq_enqueue('1', group_key => 'g')"
    first, second, third = [await a.fetchval(put) for _ in range(3)]
    assert [job_id for job_id, _ in await dequeue(a, 9)] == [first]
    assert await a.fetchval("select pgq_cancel($1, true)", first)
    assert [job_id for job_id, _ in await dequeue(a, 9)] == [second]
    assert not await a.fetchval("select pgq_cancel($1)", second)
    await a.execute("select pgq_fail(id, token) from pgq.job where token > 0")
    assert [job_id for job_id, _ in await dequeue(a, 9)] == [third]


async def test_a_job_dies_again_while_another_session_is_about_to_retry_it(
    a: Connection, b: Connection, c: Connection
) -> None:
    [job_id] = await enqueue(c, 1)
    die = "select pgq_fail(id, token, retryable => false) from pgq_claim($1)"
    retry = "select pgq_retry($1)"
    assert await a.fetchval(die, job_id) == "dead"
    await a.execute("begin")
    assert await a.fetchval(retry, job_id)
    async with started(b.fetchval(retry, job_id)) as other:
        await waiting(c, b, other)
        assert await a.fetchval(die, job_id) == "dead"
        await a.execute("commit")
        assert await within(other) is False, "and no error: it has no key that another one holds"
    assert await b.fetchval(retry, job_id)


async def test_a_lease_far_from_the_floor_that_is_locked_when_it_expires_is_taken_back_later(
    a: Connection, b: Connection
) -> None:
    now = await stop_clock(a)
    ids = await enqueue(a, 1500)
    assert await a.fetchval("select token from pgq_claim($1, '1 minute')", ids[-1]) > 0
    await stop_clock(a, now + timedelta(minutes=2))
    await b.execute("begin")
    await b.execute(f"select from pgq.job where id = {ids[-1]} for update")
    await maintain(a)
    await b.execute("rollback")
    await maintain(a)
    assert await a.fetchval(f"select state from pgq_jobs where id = {ids[-1]}") == "ready"
    await maintain(a)
    assert await a.fetchval("select count(*) from pgq.hint") == 0


async def test_a_job_that_is_locked_when_it_is_too_late_for_it_dies_later(
    a: Connection, b: Connection, c: Connection
) -> None:
    now = await stop_clock(a)
    call = "select pgq_enqueue('1', expires_at => $1)"
    job_id = await a.fetchval(call, now + timedelta(minutes=1))
    await stop_clock(a, now + timedelta(minutes=2))
    await b.execute(f"begin; select from pgq.job where id = {job_id} for update")
    await maintain(c)
    await b.execute("rollback")
    state = f"select state from pgq_jobs where id = {job_id}"
    assert await a.fetchval(state) == "ready"
    await maintain(a)
    assert await a.fetchval(state) == "dead"


async def test_a_due_job_that_is_locked_is_ready_later(
    a: Connection, b: Connection, c: Connection
) -> None:
    now = await stop_clock(a)
    due = now + timedelta(minutes=1)
    ids = [await a.fetchval("select pgq_enqueue('1', run_at => $1)", due) for _ in range(2)]
    await stop_clock(a, due)
    await b.execute("begin")
    assert await b.fetchval("select pgq_cancel($1)", ids[0]) is True
    await maintain(c)
    assert [job_id for job_id, _ in await dequeue(a, 9)] == ids[1:]
    await b.execute("rollback")
    await maintain(a)
    assert [job_id for job_id, _ in await dequeue(a, 9)] == ids[:1]


async def test_a_job_that_others_have_locked_is_not_moved(b: Connection, c: Connection) -> None:
    ids = await enqueue(b, 3)
    await b.execute(f"begin; select from pgq.job where id = {ids[0]} for update")
    move = "select pgq._move(0::smallint, 3::smallint, 1000)"
    assert await c.fetchval(move) == 2
    assert [await slot_of(c, job_id) for job_id in ids] == [0, 3, 3]
    await b.execute("rollback")
    assert await c.fetchval(move) == 1


async def test_one_tick_does_not_wait_for_another(b: Connection, c: Connection) -> None:
    for session in (b, c):
        await session.execute("set pgq.slot_size = '8192'")
    await enqueue(b, 100)
    before = await ring(b)
    await b.execute("begin; select pgq._tick()")
    assert len((await ring(b))["live"]) == len(before["live"]) + 1
    await maintain(c)
    assert await ring(c) == before
    await b.execute("rollback")
    await maintain(c)
    assert len((await ring(c))["live"]) == len(before["live"]) + 1


async def test_a_purge_leaves_what_others_have_locked(b: Connection, c: Connection) -> None:
    ids = await enqueue(b, 3)
    await b.execute("begin")
    assert await b.fetchval("select pgq_cancel($1)", ids[0]) is True
    assert await c.fetchval("select pgq_purge('default')") == 2
    await b.execute("rollback")
    assert [job_id for job_id, _ in await dequeue(c, 9)] == ids[:1]


async def test_who_retries_all_dead_jobs_leaves_out_those_that_others_retry(
    a: Connection, b: Connection, c: Connection
) -> None:
    ids = await enqueue(a, 2)
    for job_id, token in await dequeue(a, 2):
        await a.execute("select pgq_fail($1, $2, retryable => false)", job_id, token)
    await b.execute("begin")
    assert await b.fetchval("select pgq_retry($1)", ids[0]) is True
    retry = "select array(select pgq_retry_dead('default'))"
    assert await c.fetchval(retry) == ids[1:]
    await b.execute("rollback")
    assert await a.fetchval(retry) == ids[:1]


async def test_a_database_does_not_become_a_shard_while_others_enqueue(
    b: Connection, c: Connection
) -> None:
    # As an enqueue that has not drawn its number yet.
    await b.execute("begin; lock table pgq.job_0 in row exclusive mode")
    with pytest.raises(asyncpg.LockNotAvailableError, match="could not obtain lock"):
        await c.execute("select pgq_set_shard(1)")
    await b.execute("rollback")
    await c.execute("select pgq_set_shard(1)")
    assert await c.fetchval("select pgq_enqueue('1')") == (1 << 48) + 1
