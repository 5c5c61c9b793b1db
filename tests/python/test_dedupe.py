"""Dedupe keys under concurrency: one live job per key, whatever the others do."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta

import asyncpg
import pytest

from .sessions import (
    Connection,
    Dsn,
    complete,
    dequeue,
    enqueue,
    files,
    maintain,
    sessions,
    settle_all,
    started,
    stop_clock,
    turning,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
ONE = "select pgq_enqueue(to_jsonb($1::text), dedupe_key => $1)"
MANY = """
    select pgq_enqueue_many(
        array(select to_jsonb(k) from unnest($1::text[]) k), dedupe_keys => $1
    )
"""
TWICE = """
    select dedupe_key from pgq.job where dedupe_key is not null
     group by dedupe_queue_id, dedupe_key having count(*) > 1
"""


async def put(connection: Connection, key: str = "k") -> int:
    """Enqueue with a key, and return the id."""
    job_id: int = await connection.fetchval(ONE, key)
    return job_id


async def count(connection: Connection) -> int:
    """Return the number of live jobs."""
    jobs: int = await connection.fetchval("select count(*) from pgq.job")
    return jobs


async def test_sixteen_sessions_add_one_job_per_key(dsn: Dsn, a: Connection) -> None:
    async def produce(producer: Connection, seed: int) -> dict[str, int]:
        chance = random.Random(seed)
        found: dict[str, int] = {}
        for _ in range(30):
            keys = [f"k{chance.randrange(300)}" for _ in range(chance.choice([1, 1, 5, 50]))]
            if len(keys) == 1:
                ids = [await put(producer, keys[0])]
            else:
                ids = [row[0] for row in await producer.fetch(MANY, keys)]
            for key, job_id in zip(keys, ids, strict=True):
                assert found.setdefault(key, job_id) == job_id
        return found

    async with sessions(dsn, 16) as producers:
        with turning(dsn):
            answers = await asyncio.gather(*(produce(p, seed) for seed, p in enumerate(producers)))
    ids: dict[str, int] = {}
    for answer in answers:
        for key, job_id in answer.items():
            assert ids.setdefault(key, job_id) == job_id
    rows = await a.fetch("select dedupe_key, id from pgq.job")
    assert {row["dedupe_key"]: row["id"] for row in rows} == ids
    assert len(rows) == len(ids)


async def test_a_key_is_free_again_when_its_job_ends_and_never_live_twice(
    dsn: Dsn, a: Connection
) -> None:
    # Jobs complete, fail, are given back and moved, so that a key's job is now here, now there.
    ended = asyncio.Event()

    async def consume(consumer: Connection, seed: int) -> int:
        chance, done = random.Random(seed), 0
        while not ended.is_set():
            receipts = await dequeue(consumer, 5)
            if not receipts:
                await asyncio.sleep(0.001)
            for receipt in receipts:
                if chance.random() < 0.4:
                    done += len(await complete(consumer, [receipt]))
                elif chance.random() < 0.5:
                    await consumer.execute("select pgq_release($1, $2)", *receipt)
                else:
                    await consumer.execute("select pgq_fail($1, $2, 'no', '0')", *receipt)
        return done

    async def produce(producer: Connection, seed: int) -> set[int]:
        chance, ids = random.Random(seed), set[int]()
        for _ in range(400):
            ids.add(await put(producer, f"k{chance.randrange(3)}"))
            assert await producer.fetch(TWICE) == []
        return ids

    await a.execute(
        "select pgq_configure_queue('default', max_attempts => 1000, keep_completed => '0')"
    )
    async with sessions(dsn, 8) as them:
        with turning(dsn):
            consumers = [asyncio.create_task(consume(c, n)) for n, c in enumerate(them[:4])]
            produced = await asyncio.gather(*(produce(p, n) for n, p in enumerate(them[4:])))
            ended.set()
            done = await asyncio.gather(*consumers)
    assert len(set[int]().union(*produced)) == sum(done) + await count(a)
    assert sum(done) > 0


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_second_enqueue_waits_for_the_first_ones_outcome(
    a: Connection, b: Connection, c: Connection, bulk: bool
) -> None:
    async def add() -> int:
        return (await b.fetch(MANY, ["other", "k"]))[1][0] if bulk else await put(b)

    for end in ("rollback", "commit"):
        await a.execute("begin")
        first = await put(a)
        async with started(add()) as second:
            await waiting(c, b, second)
            await a.execute(end)
            assert (await within(second) == first) == (end == "commit")
        assert await c.fetchval("select count(*) from pgq.job where dedupe_key = 'k'") == 1
        await b.execute("select pgq_purge('default')")


async def test_consumers_never_wait_for_an_open_enqueue_with_their_jobs_key(
    a: Connection, b: Connection
) -> None:
    first = await put(a)
    await b.execute("begin")
    assert await put(b) == first
    ((job_id, token),) = await within(dequeue(a))
    assert await within(a.fetchval("select pgq_fail($1, $2, 'no', '0')", job_id, token))
    assert await within(complete(a, await dequeue(a))) == [first]
    await b.execute("commit")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_an_old_snapshot_does_not_add_a_second_job(
    a: Connection, b: Connection, level: str
) -> None:
    await b.execute(f"begin isolation level {level}; select 1")
    first = await put(a)
    with pytest.raises(asyncpg.SerializationError):
        await put(b)
    await b.execute("rollback")
    await b.execute(f"begin isolation level {level}; select 1")
    assert await put(b) == first
    other = await put(b, "other")
    assert await put(b, "other") == other
    await b.execute("commit")
    assert await count(a) == 2


async def test_an_old_snapshot_takes_the_key_of_a_job_that_is_about_to_complete(
    a: Connection, b: Connection
) -> None:
    job_id = await put(b)
    receipts = await dequeue(b)
    await a.execute("begin isolation level repeatable read; select 1")
    await b.execute("begin")
    assert await complete(b, receipts) == [job_id]
    assert await put(a) == job_id
    await a.execute("commit")
    await b.execute("commit")
    assert await count(b) == 0


async def test_an_old_snapshot_does_not_overlook_a_job_that_was_moved(
    a: Connection, b: Connection
) -> None:
    first = await put(a)
    await b.execute("begin isolation level repeatable read; select 1")
    await a.execute("select pgq_release(id, token) from pgq_dequeue()")
    before = await files(a)
    await a.execute("set pgq.slot_size = 8192")

    async def is_truncated() -> bool:
        # Jobs stay in all slots until only the free one is left, into which they are moved.
        await enqueue(a, 200)
        await maintain(a)
        await a.execute("""
            select pgq_complete(id, token) from pgq_dequeue(300)
             where dedupe_key is null and id % 50 > 0
        """)
        await a.execute("select pgq_release(id, token) from pgq.job where token is not null")
        return ("pgq.job_0", dict(before)["pgq.job_0"]) not in await files(a)

    await until(is_truncated, pause=0.1)
    # Where it was there is nothing any more, and where it is the snapshot does not show it.
    with pytest.raises(asyncpg.SerializationError):
        await put(b)
    await b.execute("rollback")
    assert await put(b) == first


async def test_an_enqueue_with_a_key_locks_only_the_slot_that_it_writes(
    a: Connection, b: Connection
) -> None:
    await a.execute("begin")
    await put(a)
    held = await a.fetch(
        "select distinct relation::regclass::text from pg_locks"
        " where pid = pg_backend_pid() and relation::regclass::text ~ '^pgq.(job|archive)_[0-9]+$'"
    )
    assert [row[0] for row in held] == ["pgq.job_0"]
    await maintain(b)
    await a.execute("commit")


REPLACE = "select pgq_enqueue('\"new\"', dedupe_key => 'k', on_duplicate => 'replace')"


@pytest.mark.parametrize("end", ["rollback", "commit"])
async def test_replacing_waits_for_whoever_is_about_to_claim(
    a: Connection, b: Connection, c: Connection, end: str
) -> None:
    first = await put(a)
    await a.execute("begin")
    assert [job_id for job_id, _ in await dequeue(a)] == [first]
    async with started(b.fetchval(REPLACE)) as replaced:
        await waiting(c, b, replaced)
        await a.execute(end)
        assert await within(replaced) == first
    payload = await c.fetchval("select payload from pgq.job")
    assert payload == ('"new"' if end == "rollback" else '"k"')


@pytest.mark.parametrize("call", ["pgq_pop()", "pgq_cancel(1)"])
async def test_what_replaces_a_job_that_ends_meanwhile_is_added(
    a: Connection, b: Connection, c: Connection, call: str
) -> None:
    first = await put(a)
    assert first == 1
    await a.execute("begin")
    await a.execute(f"select * from {call}")
    async with started(b.fetchval(REPLACE)) as replaced:
        await waiting(c, b, replaced)
        await a.execute("commit")
        assert await within(replaced) > first
    assert await c.fetchval("select payload from pgq.job") == '"new"'


async def test_jobs_are_replaced_in_the_lock_order(
    a: Connection, b: Connection, c: Connection
) -> None:
    """Whoever else locks several jobs begins with those in the ring, whatever their ids are."""
    await a.execute("select pgq_enqueue('1', dedupe_key => 'a', run_at => now() + '1 hour')")
    await a.execute("begin")
    await a.execute("select pgq_claim($1)", await put(b, "b"))
    replace = """
        select pgq_enqueue_many(
            '{2,3}', dedupe_keys => '{a,b}', on_duplicate => 'replace', run_at => now() + '1 hour'
        )
    """
    async with started(b.execute("select pgq_cancel_all('default')")) as cancelling:
        await waiting(a, b, cancelling)
        async with started(c.execute(replace)) as replacing:
            await waiting(a, c, replacing)
            await a.execute("rollback")
            await within(cancelling)
            await within(replacing)
    assert await count(a) == 2


async def test_no_replaced_payload_is_lost_while_jobs_are_moved(dsn: Dsn, a: Connection) -> None:
    await a.execute("select pgq_pause('default')")
    ids = [await put(a, f"k{number}") for number in range(50)]
    await a.execute("select pgq_create_queue('other')")

    async def churn(connection: Connection) -> None:
        for _ in range(150):
            await connection.execute(
                "select pgq_enqueue_many(array_fill(jsonb '1', array[50]), 'other')"
            )
            await connection.execute(
                "select pgq_complete(id, token) from pgq_dequeue(50, queue => 'other')"
            )
            await maintain(connection)

    async def replace(connection: Connection, seed: int) -> None:
        call = "select pgq_enqueue($2, dedupe_key => $1, on_duplicate => 'replace')"
        for turn in range(20):
            for number in range(seed, 50, 2):
                assert await connection.fetchval(call, f"k{number}", str(turn)) == ids[number]

    async with sessions(dsn, 3) as (b, c, d):
        with turning(dsn):
            await asyncio.gather(churn(b), replace(c, 0), replace(d, 1))
    assert (
        await a.fetch("select id from pgq.job where payload <> '19' and dedupe_key is not null")
        == []
    )
    assert await a.fetchval("select count(*) from pgq.job where dedupe_key is not null") == 50


async def test_writers_of_a_watched_table_do_not_wait_for_other_rows(
    a: Connection, b: Connection
) -> None:
    await a.execute("create table item (id integer primary key)")
    await a.execute("select pgq_watch('item', dedupe => true)")
    # Two keys of one bucket, by trying.
    await a.execute("insert into item select generate_series(1, 2000)")
    [(first, second)] = await a.fetch("""
        select min(id), max(id)
          from (select (j.payload #>> '{key,id}')::integer as id,
                       hashtextextended(j.dedupe_key collate "C", j.dedupe_queue_id) & 16383
                  from pgq.job j) k (id, bucket)
         group by bucket having count(*) > 1 limit 1
    """)
    await a.execute("truncate item; select pgq_purge('default')")
    await a.execute("begin")
    await a.execute("insert into item values ($1)", first)
    await within(b.execute("insert into item values ($1)", second))
    await a.execute("commit")
    assert len(await dequeue(a, 10)) == 2


async def test_a_key_that_rows_of_two_transactions_may_have_is_waited_for(
    a: Connection, b: Connection, c: Connection
) -> None:
    await a.execute("create table item (id integer primary key deferrable initially deferred)")
    await a.execute("select pgq_watch('item', events => '{insert,update}', dedupe => true)")
    await a.execute("begin; insert into item values (1); update item set id = 2")
    async with started(b.execute("insert into item values (1)")) as adding:
        await waiting(c, b, adding)
        await a.execute("commit")
        await within(adding)
    assert len(await dequeue(a, 10)) == 2


async def test_a_key_that_rows_of_two_tables_have_is_waited_for(
    a: Connection, b: Connection, c: Connection
) -> None:
    for name in ("older_key", "key"):
        await a.execute("alter table if exists item rename to older")
        await a.execute(f"create table item (id integer, constraint {name} primary key (id))")
        await a.execute("select pgq_watch('item', dedupe => true)")
    await a.execute("begin; insert into older values (1)")
    async with started(b.execute("insert into item values (1)")) as adding:
        await waiting(c, b, adding)
        await a.execute("commit")
        await within(adding)
    assert len(await dequeue(a, 10)) == 1


@pytest.mark.parametrize("kind", ["temporary", "regclass"])
async def test_a_key_that_looks_like_that_of_another_row_is_waited_for(
    a: Connection, b: Connection, c: Connection, kind: str
) -> None:
    if kind == "regclass":
        await c.execute("create table item (id regclass primary key)")
        await c.execute("select pgq_watch('item', dedupe => true)")
    for session in (a, b):
        if kind == "temporary":
            await session.execute("create temporary table item (id integer primary key)")
            await session.execute("select pgq_watch('item', dedupe => true)")
        await session.execute("create temporary table thing (id integer)")
    value = "1" if kind == "temporary" else "'pg_temp.thing'"
    await a.execute(f"begin; insert into item values ({value})")
    async with started(b.execute(f"insert into item values ({value})")) as adding:
        await waiting(c, b, adding)
        await a.execute("commit")
        await within(adding)
    assert len(await dequeue(a, 10)) == 1


# Expired


@pytest.mark.parametrize("how", ["keep", "replace", "error"])
@pytest.mark.parametrize("kind", ["ready", "behind one of its group", "after another"])
async def test_a_job_that_has_not_started_in_time_keeps_no_key(
    a: Connection, kind: str, how: str
) -> None:
    now = await stop_clock(a)
    if kind != "ready":
        await a.execute("select pgq_enqueue('0', group_key => 'g')")
    held = await dequeue(a)
    late = await a.fetchval(
        "select pgq_enqueue("
        "    '1', dedupe_key => 'k', expires_at => $1, group_key => $2, after => $3"
        ")",
        now + timedelta(seconds=1),
        "g" if kind == "behind one of its group" else None,
        [job_id for job_id, _ in held] if kind == "after another" else None,
    )
    again = "select pgq_enqueue('2', dedupe_key => 'k', on_duplicate => $1)"
    await stop_clock(a, now + timedelta(seconds=0.9))
    assert await a.fetchval(again, "keep") == late
    await stop_clock(a, now + timedelta(seconds=2))
    new = await a.fetchval(again, how)
    assert new != late
    old = await a.fetchrow("select state, last_error from pgq_get($1)", late)
    assert old is not None
    assert tuple(old) == ("dead", "expired")
    assert len(await complete(a, held)) == (kind != "ready")
    assert await settle_all(a) == [new]
    assert await count(a) == 0


async def test_a_late_job_that_somebody_claims_is_waited_for(
    a: Connection, b: Connection, c: Connection
) -> None:
    now = await stop_clock(a)
    late = await a.fetchval(
        "select pgq_enqueue('1', dedupe_key => 'k', expires_at => $1)", now + timedelta(seconds=1)
    )
    await a.execute("begin")
    ((_, token),) = await dequeue(a)
    await stop_clock(c, now + timedelta(seconds=2))
    async with started(put(b)) as adding:
        await waiting(c, b, adding)
        await a.execute("commit")
        assert await within(adding) == late
    assert await complete(a, [(late, token)]) == [late]


@pytest.mark.parametrize("run_at", [None, "20 ms"])
async def test_a_keyed_bulk_that_takes_long_is_not_overlooked(
    a: Connection, b: Connection, c: Connection, run_at: str | None
) -> None:
    # It waits for a key in the middle, while others use the lane and ticks raise the bases.
    await a.execute("begin")
    await put(a, "busy")
    call = (
        "select pgq_enqueue_many(array_fill(jsonb '1', array[3]), run_at => now() + $1::text"
        "::interval, dedupe_keys => '{x,busy,y}')"
    )

    async def is_old(xid: int) -> bool:
        await settle_all(c)
        await enqueue(c, 10)
        await maintain(c)
        old: bool = await c.fetchval("select pg_sequence_last_value('pgq.xid_old') > $1", xid)
        return old

    async with started(b.fetch(call, run_at)) as added:
        await waiting(c, b, added)
        xid = await c.fetchval("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        # From then on nobody waits for those who were open at that time.
        await until(lambda: is_old(xid))
        for _ in range(10):
            assert await is_old(xid)
        await a.execute("rollback")
        ids = {row[0] for row in await within(added)}
    seen = set[int]()

    async def all_seen() -> bool:
        await maintain(c)
        seen.update(job_id for job_id, _ in await dequeue(c, 1000))
        return ids <= seen

    await until(all_seen)


async def test_keys_of_any_collation_are_the_same(
    a: Connection, b: Connection, c: Connection
) -> None:
    collations = await a.fetch(
        "select a.attcollation = (select oid from pg_collation where collname = 'C') as is_c"
        " from pg_attribute a join pg_class t on t.oid = a.attrelid"
        " where t.relnamespace = 'pgq'::regnamespace and t.relkind in ('r', 'p')"
        " and a.attname in ('dedupe_key', 'group_key')"
    )
    assert len(collations) > 2
    assert all(row["is_c"] for row in collations)
    try:
        await a.execute(
            "create collation nd (provider = icu, locale = 'und', deterministic = false)"
        )
    except asyncpg.FeatureNotSupportedError:
        return  # a server without ICU has no collation in which other strings are equal
    await a.execute("begin")
    first = await a.fetchval("select pgq_enqueue('1', dedupe_key => 'k' collate nd)")
    async with started(put(b)) as second:
        await waiting(c, b, second)
        await a.execute("commit")
        assert await within(second) == first


async def test_held_keys_need_read_committed(a: Connection) -> None:
    await a.execute("select pgq_configure_queue('default', dedupe_for => '1 hour')")
    await a.execute("begin isolation level repeatable read")
    with pytest.raises(asyncpg.ActiveSQLTransactionError):
        await put(a)
    await a.execute("rollback")


async def test_bulks_stay_fast_after_single_keys(a: Connection) -> None:
    """A plan made for one key would compare each of thousands with each."""
    await put(a)
    for turn in range(7):
        keys = [f"{turn} {number}" for number in range(5000)]
        await within(a.fetch(MANY, keys), 3)


async def test_dead_jobs_and_enqueue_race_for_a_key(dsn: Dsn, a: Connection) -> None:
    outcomes: Counter[str] = Counter()
    async with sessions(dsn, 2) as (b, c):
        for _ in range(50):
            dead = await put(a)
            await a.execute("select pgq_fail(id, token, retryable => false) from pgq_dequeue()")
            retried, added = await asyncio.gather(
                b.fetch("select * from pgq_retry_dead('default')"), put(c)
            )
            assert await a.fetch(TWICE) == []
            assert await count(a) == 1
            assert (added == dead) == bool(retried)
            outcomes["retried" if retried else "added"] += 1
            await a.execute("select pgq_purge('default', '{ready,dead}')")
    assert outcomes["added"] > 0


async def test_cancel_by_key_follows_a_key_that_another_job_gets(
    a: Connection, b: Connection, c: Connection
) -> None:
    await put(a)
    receipts = await dequeue(a)
    await a.execute("begin")
    assert len(await complete(a, receipts)) == 1
    successor = await put(a)
    async with started(b.fetchval("select pgq_cancel_key('default', 'k')")) as task:
        await waiting(c, b, task)
        await a.execute("commit")
        assert await within(task) is True
    rows = await a.fetch("select id from pgq_jobs where state = 'cancelled'")
    assert [row["id"] for row in rows] == [successor]
