"""Limits under concurrency: never more active or started than may be, and nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import TypedDict

import asyncpg
import pytest

from .sessions import (
    Connection,
    Dsn,
    complete,
    connect,
    dequeue,
    enqueue,
    maintain,
    sessions,
    slot_of,
    started,
    turning,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

# c must not be made to wait.
SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {"lock_timeout": "500ms"}}
CONFIGURE = """
    select pgq_configure_queue(
        'default', max_active => $1, rate_limit => $2, rate_interval => $3::text::interval,
        rate_burst => $4, max_attempts => 10000, keep_completed => '0'
    )
"""
ACTIVE = "select count(*) from pgq.job where token is not null"
# In milliseconds, and what it is turned by.
CLOCK = """
    create sequence test_clock;
    select setval('test_clock', 2000000000000);
    create or replace function pgq._now() returns timestamptz language sql volatile as
    $$ select to_timestamp(pg_catalog.pg_sequence_last_value('public.test_clock') / 1000.0) $$
"""
TURN_CLOCK = "select setval('test_clock', last_value + $1) from test_clock"
MOVE = "select pgq._move($1::smallint, 3::smallint, 1000)"
# As maintenance does when a slot is mostly garbage: the next ticks move its jobs to a free one.
CLEAN = """
    with ring as materialized (
        select r.*, (select min(s)::smallint from generate_series(0, 3) s
                      where s <> all (r.live)
                        and pg_relation_size(pgq._slot_table(s)) = 0) as free
          from (select r.* from pgq.ring r order by r.gen desc limit 1) r
    ), begun as (
        insert into pgq.ring (gen, live, ready, parked, filling, cleaned, switched_at)
        select r.gen + 1, r.free || r.live, r.free || r.ready, r.parked, r.free, r.live[1:1], now()
          from ring r
         where r.filling is null and cardinality(r.live) > 1 and r.free is not null
        returning cleaned[1] as slot
    )
    select count(*) from pgq.job j join begun b on b.slot = j.slot where j.token is not null
"""


async def configure(
    connection: Connection,
    max_active: int = 0,
    rate_limit: int = 0,
    rate_interval: str = "1 day",
    rate_burst: int = 0,
) -> None:
    """Give the default queue limits."""
    await connection.execute(CONFIGURE, max_active, rate_limit, rate_interval, rate_burst)


class Limit(TypedDict, total=False):
    """One of the limits."""

    max_active: int
    rate_limit: int


def limit(kind: str, number: int) -> Limit:
    """Return a limit of either kind."""
    return {"max_active": number} if kind == "max_active" else {"rate_limit": number}


async def claims(connection: Connection, batch: int = 10) -> int:
    """Claim jobs, which must not wait, and return how many they were."""
    return len(await within(dequeue(connection, batch)))


@dataclass
class Crowd:
    """Consumers that do all that may happen to a claim, and count the jobs at work."""

    dsn: Dsn
    observer: Connection
    most: int
    total: int
    enqueued: int = 0
    is_fed: bool = False
    running: int = 0
    peak: int = 0
    killed: int = 0
    moved: int = 0
    done: set[int] = field(default_factory=set[int])

    @property
    def is_over(self) -> bool:
        """Whether all that was to happen has happened, and all jobs have been done."""
        return self.is_fed and len(self.done) >= self.enqueued

    async def work(self, jobs: int) -> None:
        """Be at work on jobs that have been claimed."""
        self.running += jobs
        self.peak = max(self.peak, self.running)
        assert self.running <= self.most
        await asyncio.sleep(0)
        assert self.running <= self.most
        self.running -= jobs

    async def settle(self, consumer: Connection, chance: random.Random) -> None:
        """Claim in one transaction; complete, fail or give back in others."""
        for job_id, token in await dequeue(consumer, chance.choice([1, 2, 5])):
            await self.work(1)
            end = chance.choice(["complete", "complete", "fail", "release"])
            if end == "complete":
                self.done.update(await complete(consumer, [(job_id, token)]))
            elif end == "fail":
                await consumer.execute("select pgq_fail($1, $2, 'no', '0')", job_id, token)
            else:
                await consumer.execute("select pgq_release($1, $2)", job_id, token)

    async def exchange(self, consumer: Connection, chance: random.Random) -> None:
        """Complete a batch and claim the next one, time and again."""
        receipts = await dequeue(consumer, chance.choice([1, 3]))
        while receipts and chance.random() < 0.8:
            await self.work(len(receipts))
            rows = await consumer.fetch(
                "select id, token from pgq_complete_and_dequeue($1, $2, $3)",
                [receipt[0] for receipt in receipts],
                [receipt[1] for receipt in receipts],
                chance.choice([1, 3]),
            )
            self.done.update(receipt[0] for receipt in receipts)
            receipts = [(row["id"], row["token"]) for row in rows]
        await self.work(len(receipts))
        self.done.update(await complete(consumer, receipts))

    async def transact(self, consumer: Connection, chance: random.Random) -> None:
        """Claim or pop in a transaction that stays open for a while, and may be rolled back."""
        call = "pgq_pop($1)" if chance.random() < 0.5 else "pgq_dequeue($1, '1 ms')"
        await consumer.execute("begin")
        ids = [row[0] for row in await consumer.fetch(f"select id from {call}", 3)]
        await self.work(len(ids))
        if chance.random() < 0.5:
            await consumer.execute("rollback")
        else:
            await consumer.execute("commit")
            self.done.update(ids if "pop" in call else [])

    async def abandon(self, consumer: Connection, chance: random.Random) -> None:
        """Claim and never come back."""
        await dequeue(consumer, chance.choice([1, 3]), "1 ms")

    async def die(self, consumer: Connection, chance: random.Random) -> None:
        """Claim in a session that is terminated meanwhile."""
        victim = await connect(self.dsn)
        if chance.random() < 0.5:
            await victim.execute("begin")
        call = asyncio.create_task(dequeue(victim, 3, "1 ms"))
        await asyncio.sleep(0)
        await consumer.execute("select pg_terminate_backend($1)", victim.get_server_pid())
        with contextlib.suppress(
            asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError
        ):
            await call
        victim.terminate()
        self.killed += 1

    async def consume(self, consumer: Connection, seed: int) -> None:
        """Do one or the other until all jobs have been done."""
        chance = random.Random(seed)
        actions = [self.settle, self.exchange, self.transact, self.abandon, self.die]
        while not self.is_over:
            (act,) = chance.choices(actions, [40, 20, 20, 10, 1])
            await act(consumer, chance)
            await asyncio.sleep(0.001)

    async def move(self, mover: Connection) -> None:
        """Enqueue jobs, and have them moved to another slot, leases and all."""
        while not self.is_over:
            self.is_fed = self.enqueued >= self.total and self.moved > 0 and self.killed > 0
            if not self.is_fed and self.enqueued - len(self.done) < self.total:
                self.enqueued += len(await enqueue(mover, self.most))
            async with mover.transaction():
                await mover.execute("select from pgq.gate for update")
                self.moved += await mover.fetchval(CLEAN)
            await asyncio.sleep(0.005)

    async def watch(self) -> None:
        """Count the active jobs, in one snapshot each time."""
        while not self.is_over:
            assert await self.observer.fetchval(ACTIVE) <= self.most


@pytest.mark.parametrize("most", [1, 5])
async def test_no_more_jobs_are_ever_active_than_may_be(
    dsn: Dsn, a: Connection, b: Connection, most: int
) -> None:
    await configure(a, most)
    crowd = Crowd(dsn, b, most, 60 * most)
    async with sessions(dsn, 16) as consumers:
        with turning(dsn) as rotations:
            await within(
                asyncio.gather(
                    crowd.watch(),
                    crowd.move(a),
                    *(crowd.consume(consumer, n) for n, consumer in enumerate(consumers)),
                )
            )
    assert crowd.peak > most / 2
    assert crowd.killed > 0
    assert crowd.moved > 0
    assert rotations.count > 0
    assert await a.fetchval("select count(*) from pgq.job") == 0
    await enqueue(a, most + 1)
    assert await claims(a) == most


async def test_no_more_jobs_start_than_may_and_none_less(
    dsn: Dsn, a: Connection, b: Connection
) -> None:
    rate, burst, elapsed = 100, 7, 0
    starts = 0
    chance = random.Random(1)
    ended = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def consume(consumer: Connection, seed: int) -> None:
        nonlocal starts
        chance = random.Random(seed)
        while not ended.is_set():
            async with contextlib.AsyncExitStack() as stack:
                transaction = consumer.transaction()
                await transaction.start()
                stack.push_async_callback(transaction.rollback)
                count = len(await dequeue(consumer, chance.choice([1, 2, 20])))
                await asyncio.sleep(0)
                if chance.random() < 0.7:
                    stack.pop_all()
                    await transaction.commit()
                    starts += count
                    assert starts <= burst + elapsed
            if not count:
                await asyncio.sleep(0.005)

    async def all_started() -> bool:
        for task in tasks:
            if task.done():
                task.result()
        return starts == burst + elapsed

    await a.execute(CLOCK)
    await configure(a, 0, rate, "1 s", burst)
    await enqueue(a, 2000)
    async with sessions(dsn, 16) as consumers:
        tasks += [asyncio.create_task(consume(c, n)) for n, c in enumerate(consumers)]
        for _ in range(40):
            await until(all_started)
            # Never by more than the bucket holds, or starts are lost.
            moments = chance.randint(1, burst)
            elapsed += moments
            await b.execute(TURN_CLOCK, moments * 1000 // rate)
            await maintain(b)
        await until(all_started)
        ended.set()
        await within(asyncio.gather(*tasks))
    assert await a.fetchval("select count(*) from pgq.job where token is not null") == starts
    assert await a.fetchval("select count(*) from pgq.start") <= 2 * burst


async def test_a_claim_that_took_long_does_not_start_what_was_forgotten_meanwhile(
    a: Connection, b: Connection, c: Connection
) -> None:
    burst = 7
    await a.execute(CLOCK)
    await configure(a, 0, 100, "1 s", burst)
    await enqueue(a, 50)
    assert await claims(a, 20) == burst
    # The slow claim does not know yet which moments are free.
    await b.execute("begin; lock table pgq.start")
    async with started(claims(a, 20)) as slow:
        await waiting(b, a, slow)
        await b.execute(TURN_CLOCK, burst * 10)
        await b.execute("select pgq._forget_starts(pgq._now())")
        assert await b.fetchval("select count(*) from pgq.start") == 0
        await b.execute("commit")
        assert await slow + await claims(c, 20) <= burst
    assert await claims(c, 20) + await a.fetchval(ACTIVE) == 2 * burst


@pytest.mark.parametrize("ms", [50, 900, 5000])
async def test_a_claim_that_took_long_starts_what_the_bucket_holds_then(
    a: Connection, b: Connection, c: Connection, ms: int
) -> None:
    burst = 7
    await a.execute(CLOCK)
    await configure(a, 0, 100, "1 s", burst)
    await enqueue(a, 50)
    await b.execute("begin; lock table pgq.start")
    async with started(claims(a, 20)) as slow:
        await waiting(b, a, slow)
        await b.execute(TURN_CLOCK, ms)
        await b.execute("commit")
        assert [await slow, await claims(c, 20)] == [burst, 0]


async def test_no_start_is_lost_to_a_claim_that_takes_longer_than_a_moment(a: Connection) -> None:
    # The bucket is full: the moments that are taken first are about to leave it.
    await configure(a, 0, 1_000_000, "1 s", 1000)
    await enqueue(a, 20)
    assert [await claims(a, 1) for _ in range(20)] == [1] * 20


@pytest.mark.parametrize("moments", [1, 4, 200])
async def test_a_claim_starts_the_burst_and_no_more_while_time_goes_by(
    a: Connection, moments: int
) -> None:
    # So many moments with each look at the clock.
    await a.execute(CLOCK)
    await a.execute(
        f"""
        alter sequence test_clock increment {moments * 10};
        create or replace function pgq._now() returns timestamptz language sql volatile as
        $$ select to_timestamp(pg_catalog.nextval('public.test_clock') / 1000.0) $$
        """
    )
    await configure(a, 0, 100, "1 s", 5)
    await enqueue(a, 50)
    assert await claims(a, 20) == 5


async def test_what_a_claim_starts_is_in_the_bucket_when_it_looks_last(
    a: Connection, b: Connection
) -> None:
    # Ten moments with each look of pgq._take_starts, which tries again for what it did not get.
    await a.execute(CLOCK)
    await a.execute(
        """
        create or replace function pgq._now() returns timestamptz language plpgsql as $$
        declare
            v_context text;
        begin
            get diagnostics v_context = pg_context;
            perform nextval('public.test_clock') where v_context like '%._take_starts(%';
            return to_timestamp(pg_sequence_last_value('public.test_clock') / 1000.0);
        end $$;
        alter sequence test_clock increment 100
        """
    )
    await configure(a, 0, 100, "1 s", 7)
    await enqueue(a, 50)
    await b.execute("begin")
    assert await claims(b, 5) == 5
    before = await a.fetchval("select last_value from test_clock")
    assert await claims(a, 20) == 2
    last = await a.fetchval("select last_value from test_clock")
    assert last - before > 200, "it has tried again"
    starts = await a.fetch("select moment from pgq.start")
    assert [last // 10 - 7 < row["moment"] <= last // 10 for row in starts] == [True, True]


async def test_a_bucket_may_hold_more_starts_than_there_were_moments_since_1970(
    a: Connection,
) -> None:
    await configure(a, 0, 1, "1 year", 100)
    await enqueue(a, 120)
    assert [await claims(a, 120), await claims(a, 120)] == [100, 0]


@pytest.mark.parametrize("kind", ["max_active", "rate_limit"])
class TestOpenTransactions:
    async def test_what_an_open_claim_uses_nobody_waits_for(
        self, a: Connection, b: Connection, c: Connection, kind: str
    ) -> None:
        await configure(a, **limit(kind, 5))
        await enqueue(a, 20)
        await a.execute("begin")
        assert await claims(a, 2) == 2
        assert await claims(c) == 3
        assert await claims(c) == 0
        await within(maintain(c))
        await a.execute("rollback")
        assert await claims(c) == 2

    async def test_what_it_does_not_use_others_may(
        self, a: Connection, b: Connection, c: Connection, kind: str
    ) -> None:
        await configure(a, **limit(kind, 5))
        await b.execute("begin")
        assert await claims(b) == 0
        await enqueue(a, 1)
        await a.execute("begin")
        assert await claims(a) == 1
        await enqueue(c, 20)
        assert await claims(c) == 4
        assert await claims(b) == 0

    async def test_a_terminated_one_gives_all_back(
        self, a: Connection, b: Connection, c: Connection, kind: str
    ) -> None:
        await configure(a, **limit(kind, 5))
        await enqueue(a, 20)
        await a.execute("begin")
        assert await claims(a) == 5
        assert await claims(c) == 0
        await b.execute("select pg_terminate_backend($1, 10000)", a.get_server_pid())
        assert await claims(c) == 5

    async def test_a_savepoint_gives_back_what_came_after_it(
        self, a: Connection, c: Connection, kind: str
    ) -> None:
        await configure(a, **limit(kind, 5))
        await enqueue(a, 20)
        await a.execute("begin")
        assert await claims(a, 1) == 1
        await a.execute("savepoint s")
        assert await claims(a) == 4
        await a.execute("rollback to s")
        assert await claims(c) == 4
        await a.execute("commit")
        assert await claims(c) == 0

    async def test_settings_change_beside_it(
        self, a: Connection, b: Connection, c: Connection, kind: str
    ) -> None:
        await configure(a, **limit(kind, 5))
        await enqueue(a, 40)
        assert await claims(a, 1) == 1
        await a.execute("begin")
        assert await claims(a, 1) == 1
        await within(configure(c, rate_interval="2 days", **limit(kind, 20)))
        assert await claims(c, 40) >= 18
        await a.execute("commit")
        assert await claims(c) <= 1
        await b.execute("begin")
        await configure(b, **limit(kind, 30))
        await within(maintain(c))
        assert await claims(c) <= 1
        await b.execute("commit")
        assert await claims(c, 1) == 1


async def test_a_later_burst_does_not_collide_with_an_open_claim(
    a: Connection, c: Connection
) -> None:
    await configure(a, rate_limit=10)
    await enqueue(a, 40)
    await a.execute("begin")
    assert await claims(a, 1) == 1
    await within(configure(c, rate_limit=10, rate_burst=20))
    assert await claims(c, 40) >= 19
    await a.execute("commit")
    assert await claims(c) <= 1


async def test_maintenance_does_not_wait_for_whoever_changes_a_rate(
    a: Connection, b: Connection, c: Connection
) -> None:
    await configure(a, rate_limit=1000, rate_interval="1 s", rate_burst=5)
    await enqueue(a, 20)
    assert await claims(a, 5) == 5
    assert await until(lambda: claims(a, 1)) == 1
    await b.execute("begin")
    await configure(b, rate_limit=10)
    # Until the first starts are old enough to be forgotten.
    assert await until(lambda: claims(c, 5)) > 0
    for _ in range(20):
        await within(maintain(c))
    await b.execute("rollback")


async def test_permits_above_a_limit_that_others_raise_again_are_not_dropped(
    a: Connection, b: Connection, c: Connection
) -> None:
    await configure(a, 3)
    await enqueue(a, 3)
    await configure(a, 1)
    await b.execute("begin")
    await configure(b, 3)
    await maintain(c)
    await b.execute("commit")
    assert await claims(c) == 3


async def test_permits_above_a_limit_that_an_open_claim_uses_are_dropped_later(
    a: Connection, b: Connection, c: Connection
) -> None:
    await configure(a, 3)
    await enqueue(a, 3)
    await a.execute("begin")
    assert await claims(a) == 3
    await configure(b, 1)
    permits = "select count(*) from pgq.permit"
    await maintain(c)
    assert await c.fetchval(permits) == 3
    await a.execute("rollback")
    await maintain(c)
    assert await c.fetchval(permits) == 1
    assert await claims(c) == 1


async def test_the_permits_of_a_killed_worker_come_back_with_its_leases(
    a: Connection, b: Connection
) -> None:
    async def again() -> int:
        await maintain(b)
        return await claims(b)

    await configure(a, 3)
    ids = await enqueue(a, 3)
    await enqueue(a, 3)
    assert [job_id for job_id, _ in await dequeue(a, 9, "200 ms")] == ids
    await b.execute("select pg_terminate_backend($1, 10000)", a.get_server_pid())
    assert await b.fetchval(ACTIVE) == 3
    # One after the other as they are taken back, never more than three.
    taken = 0
    while taken < 3:
        taken += await until(again)
        assert await b.fetchval(ACTIVE) <= 3
    assert taken == 3
    assert await again() == 0


async def test_a_permit_comes_back_from_behind_a_backlog(a: Connection) -> None:
    await configure(a, 1)
    ids = await enqueue(a, 10_001)
    await a.execute("select pgq_claim($1, '1 ms')", ids[-1])

    async def again() -> int:
        await maintain(a)
        return await claims(a)

    assert await until(again) == 1


async def test_a_priority_that_is_new_while_bounds_are_set_is_bounded(
    a: Connection, b: Connection
) -> None:
    await a.execute("begin; select pgq_enqueue('1', priority => 7)")
    await b.execute("select pgq_configure_queue('default', max_payload => 10)")
    await a.execute("commit")
    await maintain(a)
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        await a.execute("select pgq_enqueue('[1, 2, 3, 4, 5]', priority => 7)")


async def test_a_permit_is_good_after_claims_that_were_rolled_back(
    a: Connection, b: Connection
) -> None:
    await configure(a, 1)
    first, _ = await enqueue(a, 2)
    for _ in range(20):
        await a.execute("begin")
        assert await claims(a) == 1
        assert await claims(b) == 0
        await a.execute("rollback")
        ((job_id, token),) = await dequeue(b)
        assert job_id == first
        assert await claims(a) == 0
        await b.execute("select pgq_release($1, $2)", job_id, token)


async def test_pops_of_one_transaction_count_as_one_after_the_other(
    a: Connection, b: Connection
) -> None:
    await configure(a, 2)
    await enqueue(a, 6)
    await a.execute("begin")
    assert len(await a.fetch("select * from pgq_pop(9)")) == 2
    assert len(await b.fetch("select * from pgq_pop(9)")) == 0
    assert len(await a.fetch("select * from pgq_pop(1)")) == 1
    assert len(await b.fetch("select * from pgq_pop(9)")) == 0
    await a.execute("commit")
    assert len(await b.fetch("select * from pgq_pop(9)")) == 2


async def test_a_job_that_is_active_when_its_queue_gets_a_limit_is_not_moved_meanwhile(
    a: Connection, b: Connection
) -> None:
    first, second, _ = await enqueue(a, 3)
    assert len(await dequeue(a)) == 1
    home = await slot_of(a, first)
    await b.execute("begin")
    await configure(b, 1)
    assert await a.fetchval(MOVE, home)
    assert await slot_of(a, first) == home
    assert await slot_of(a, second) != home
    await b.execute("commit")
    assert await a.fetchval(MOVE, home)
    assert await slot_of(a, first) != home
    assert await claims(a) == 0


async def test_a_queue_gets_a_limit_when_its_active_jobs_have_been_moved(
    a: Connection, b: Connection, c: Connection
) -> None:
    (first, *_) = await enqueue(a, 3)
    assert len(await dequeue(a)) == 1
    await a.execute("begin")
    assert await a.fetchval(MOVE, await slot_of(a, first))
    async with started(configure(b, 1)) as task:
        await waiting(a, b, task)
        await a.execute("commit")
        await within(task)
    assert await claims(c) == 0
