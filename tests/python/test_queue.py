"""Every method of Queue against the functions it stands for."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import asyncpg
import pgq
import pytest
from pginstall import uninstall
from pgq import _sql

from .sessions import Connection

if TYPE_CHECKING:
    from pgserver import Server

AWKWARD = [
    None,
    True,
    0,
    -1.5,
    "",
    'quote " backslash \\ brace { comma , null NULL',
    "smörgåsbord \U0001f99c",
    [],
    [None, [1]],
    {},
    {"a": {"b": [1, "2", None]}},
]
NAMES = ["emails", "Q\"uo'te $1 %s", "Ünï \U0001f99c", "x" * 200]


def now() -> datetime:
    return datetime.now(UTC)


async def test_job_has_the_columns_of_the_claim(queue: pgq.Queue) -> None:
    before = now() - timedelta(seconds=60)
    job_id = await queue.enqueue({"n": 1}, priority=7, max_attempts=3, headers={"trace": "abc"})
    (job,) = await queue.dequeue(5, timedelta(seconds=10), worker="me")
    assert (job.id, job.queue, job.priority, job.state) == (job_id, "default", 7, "active")
    assert (job.attempt, job.max_attempts, job.worker) == (1, 3, "me")
    assert (job.payload, job.headers) == ({"n": 1}, {"trace": "abc"})
    assert (job.group_key, job.dedupe_key, job.last_error) == (None, None, None)
    assert not job.cancel_requested
    assert job.claimed_at is not None
    assert job.lease_expires_at is not None
    assert before < job.enqueued_at <= job.claimed_at
    assert job.lease_expires_at - job.claimed_at == timedelta(seconds=10)
    assert job.run_at.tzinfo is not None
    assert job.receipt == (job.id, job.token)
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.payload = 2  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]


async def test_a_dedupe_key_is_taken_while_its_job_lives_and_for_dedupe_for(
    queue: pgq.Queue,
    admin: pgq.Admin,
) -> None:
    await admin.configure_queue(queue.name, dedupe_for=timedelta(hours=1))
    first = await queue.enqueue(1, dedupe_key="k")
    assert await queue.enqueue(2, dedupe_key="k") == first
    assert await queue.enqueue_many([3, 4], dedupe_keys=["l", "k"]) == [first + 1, first]
    assert await queue.enqueue(5, dedupe_key="k", on_duplicate="replace") == first
    jobs = await queue.dequeue(5)
    assert [(job.dedupe_key, job.payload) for job in jobs] == [("k", 5), ("l", 3)]
    await queue.complete(jobs[0])
    assert await queue.enqueue(6, dedupe_key="k") == first


async def test_jobs_of_a_group_run_one_after_the_other(queue: pgq.Queue, admin: pgq.Admin) -> None:
    await admin.configure_queue(queue.name, group_concurrency=1, group_on_dead="block")
    ids = await queue.enqueue_many([1, 2, 3], group_keys=["g", "g", "h"])
    jobs = await queue.dequeue(5)
    assert [(job.id, job.group_key) for job in jobs] == [(ids[0], "g"), (ids[2], "h")]
    await queue.fail(jobs[0], retryable=False)
    assert await queue.dequeue(5) == []
    assert await admin.unblock(queue.name, "g")
    assert not await admin.unblock(queue.name, "g")
    assert [job.id for job in await queue.dequeue(5)] == [ids[1]]


async def test_a_running_job_is_told_to_end_and_leaves_a_checkpoint(
    queue: pgq.Queue, admin: pgq.Admin
) -> None:
    job_id = await queue.enqueue(1, dedupe_key="k")
    (job,) = await queue.dequeue()
    assert job.checkpoint is None
    assert await queue.heartbeat(job, checkpoint={"page": 7})
    assert await queue.fail(job, retry_in=timedelta(0)) == "scheduled"
    (job,) = await queue.dequeue()
    assert job.checkpoint == {"page": 7}
    assert len(await queue.heartbeat_many([job], checkpoints=[{"page": 8}])) == 1
    assert await queue.release(job)
    (job,) = await queue.dequeue()
    assert job.checkpoint == {"page": 8}
    assert not await queue.cancel(job_id)
    assert [lease.cancel_requested for lease in await queue.heartbeat_many([job])] == [True]
    assert await queue.fail(job) == "cancelled"
    await queue.enqueue(2, dedupe_key="k")
    assert await queue.cancel_key("k")
    await queue.enqueue_many([3, 4])
    (job, _) = await queue.dequeue(2)
    assert await queue.cancel(job.id, force=True)
    assert not await queue.complete(job)
    assert await admin.cancel_all(queue.name) == 0
    assert await admin.cancel_all(queue.name, force=True) == 1
    await queue.enqueue_many([5, 6, 7, 8])
    assert [await admin.cancel_all(queue.name, max=1), await admin.purge(queue.name, max=2)] == [
        1,
        2,
    ]
    assert [
        await admin.cancel_all(queue.name, max=2),
        await admin.purge(queue.name, ["cancelled"], 1),
    ] == [1, 1]


@pytest.mark.parametrize("codec", ["none", "registered", "foreign"])
async def test_payloads_pass_whatever_codec_the_connection_has(
    connection: asyncpg.Connection[Any], codec: str
) -> None:
    if codec == "registered":
        await pgq.register(connection)
    if codec == "foreign":
        for name in ("json", "jsonb"):
            await connection.set_type_codec(
                name, schema="pg_catalog", encoder=lambda _: "0", decoder=lambda _: "foreign"
            )
    queue = pgq.Queue(connection)
    ids = [await queue.enqueue(value, headers={"is": value}) for value in AWKWARD]
    ids += await queue.enqueue_many(AWKWARD, headers={"all": 1})
    jobs = await queue.dequeue(100)
    assert [job.id for job in jobs] == ids == sorted(ids)
    assert [job.payload for job in jobs] == AWKWARD * 2
    assert [job.headers for job in jobs] == [{"is": value} for value in AWKWARD] + [
        {"all": 1}
    ] * len(AWKWARD)
    await connection.close()


async def test_register_decodes_the_callers_own_jsonb(dsn: dict[str, Any]) -> None:
    async with asyncpg.create_pool(**dsn, min_size=0, init=pgq.register) as pool:
        assert await pool.fetchval("select $1::jsonb", {"a": [1]}) == {"a": [1]}
        assert await pool.fetchval("select $1::json", [None]) == [None]


async def test_own_json_functions_write_and_read_payloads(pool: asyncpg.Pool[Any]) -> None:
    queue = pgq.Queue(pool, dumps=lambda value: json.dumps([value]), loads=lambda text: (text,))
    await queue.enqueue("a")
    assert (await queue.pop())[0].payload == ('["a"]',)


@pytest.mark.parametrize("name", NAMES)
async def test_a_queue_name_may_be_any_text(pool: asyncpg.Pool[Any], name: str) -> None:
    queue = pgq.Queue(pool, name)
    await pgq.Admin(pool).create_queue(queue.name)
    await queue.enqueue(1)
    (job,) = await queue.dequeue()
    assert job.queue == name


@pytest.mark.parametrize("schema", ["jobs", "Weird Ünï@"])
async def test_the_extension_may_live_in_any_schema(
    server: Server, dsn: dict[str, Any], connection: asyncpg.Connection[Any], schema: str
) -> None:
    quoted = f'"{schema}"'  # the server takes no quote in the schema of an extension
    uninstall(server, dsn["database"])
    server.psql(
        f"create schema {quoted}; create extension pgq schema {quoted}",
        database=dsn["database"],
    )
    queue = pgq.Queue(connection, schema=schema)
    await queue.enqueue(1)
    (job,) = await queue.dequeue()
    assert await queue.complete(job)
    with pytest.raises(pgq.NotInstalled):
        await pgq.Queue(connection).enqueue(1)
    await connection.execute("select set_config('search_path', $1, false)", quoted)
    await pgq.Queue(connection).enqueue(1)
    await connection.close()


async def test_a_method_joins_the_transaction_of_its_connection(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await queue.enqueue(1, connection=connection)
        await queue.enqueue_many([2, 3], connection=connection)
        assert await queue.dequeue(10) == []
        await transaction.rollback()
        async with connection.transaction():
            await queue.enqueue(4, connection=connection)
    (job,) = await queue.dequeue(10)
    assert job.payload == 4


@pytest.mark.parametrize("queues", [None, ["default"]])
async def test_a_claim_that_need_not_be_durable_leaves_the_setting_alone(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, queues: list[str] | None
) -> None:
    await queue.enqueue_many([1, 2])
    async with pool.acquire() as connection:
        await connection.execute("set synchronous_commit = local")
        for _ in range(2):
            options = {"worker": "w", "queues": queues, "connection": connection}
            (job,) = await queue.dequeue(durable=False, **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            assert job.worker == "w"
            assert await connection.fetchval("show synchronous_commit") == "local"


async def test_a_transaction_cannot_hold_a_claim_that_need_not_be_durable(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    async with pool.acquire() as connection, connection.transaction():
        with pytest.raises(ValueError, match="durable"):
            await queue.dequeue(durable=False, connection=connection)
        with pytest.raises(ValueError, match="durable"):
            await pgq.Queue(connection).dequeue(durable=False)


async def test_a_completion_that_is_rolled_back_did_not_happen(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    await queue.enqueue(1)
    (job,) = await queue.dequeue()
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await queue.complete(job, connection=connection)
        await transaction.rollback()
    assert await queue.complete(job)
    assert not await queue.complete(job)


async def test_jobs_with_and_without_keys_go_in_one_call(queue: pgq.Queue) -> None:
    live = await queue.enqueue(0, dedupe_key="k")
    ids = await queue.enqueue_many(
        [1, 2, 3, 4, 5],
        dedupe_keys=[None, "k", None, "l", "l"],
        group_keys=["g", "h", None, None, "g"],
    )
    assert (ids[1], ids[4]) == (live, ids[3])
    jobs = {job.id: job for job in await queue.dequeue(9)}
    keys = [(jobs[i].payload, jobs[i].dedupe_key, jobs[i].group_key) for i in ids[:4]]
    assert keys == [(1, None, "g"), (0, "k", None), (3, None, None), (4, "l", None)]
    assert len(jobs) == 4


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_an_old_snapshot_takes_jobs_without_keys_among_those_with(
    queue: pgq.Queue, connection: Connection, level: str
) -> None:
    await connection.execute(f"begin isolation level {level}")
    ids = await queue.enqueue_many([1, 2, 3], dedupe_keys=[None, "k", None], connection=connection)
    await connection.execute("commit")
    assert len(set(ids)) == 3
    assert {job.id for job in await queue.dequeue(9)} == set(ids)


async def test_enqueue_many_of_nothing_is_nothing(queue: pgq.Queue) -> None:
    assert await queue.enqueue_many([]) == []
    assert await queue.enqueue_many(iter(())) == []


async def test_a_job_of_the_future_is_not_claimed(queue: pgq.Queue) -> None:
    await queue.enqueue("later", run_at=now() + timedelta(hours=1))
    await queue.enqueue("past", run_at=now() - timedelta(hours=1))
    assert [job.payload for job in await queue.dequeue(10)] == ["past"]


async def test_a_delay_counts_from_now_by_the_clock_of_the_server(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    @pgq.task("default")
    async def handle(_: pgq.Job[int]) -> None: ...

    async with pool.acquire() as connection, connection.transaction():
        before = await connection.fetchval("select clock_timestamp()")
        hour = timedelta(hours=1)
        ids = [await queue.enqueue(1, delay=hour, connection=connection)]
        ids += await queue.enqueue_many([2, 3], delay=hour, connection=connection)
        ids.append((await handle.enqueue(4, delay=hour, connection=connection)).id)
        after = await connection.fetchval("select clock_timestamp()")
    jobs = [await queue.get(job_id) for job_id in ids]
    assert all(job is not None and before + hour <= job.run_at <= after + hour for job in jobs)
    await queue.enqueue("now", delay=timedelta(0))
    assert [job.payload for job in await queue.dequeue(10)] == ["now"]


async def test_a_delay_beside_a_time_or_below_zero_is_refused(queue: pgq.Queue) -> None:
    with pytest.raises(pgq.InvalidArgument, match="run_at and delay are both given"):
        await queue.enqueue(1, run_at=now(), delay=timedelta(hours=1))
    with pytest.raises(pgq.InvalidArgument, match="delay must not be negative"):
        await queue.enqueue_many([1], delay=timedelta(microseconds=-1))
    assert await queue.dequeue(10) == []


async def test_a_naive_time_is_refused(queue: pgq.Queue) -> None:
    naive = datetime.now()  # noqa: DTZ005
    with pytest.raises(pgq.InvalidArgument, match="time zone"):
        await queue.enqueue(1, run_at=naive)
    with pytest.raises(ValueError, match="time zone"):
        await queue.enqueue_many([1], run_at=naive)


async def test_several_queues_are_claimed_in_array_order(pool: asyncpg.Pool[Any]) -> None:
    first, second = pgq.Queue(pool, "first"), pgq.Queue(pool, "second")
    for queue in (first, second):
        await pgq.Admin(pool).create_queue(queue.name)
    await first.enqueue(1)
    await second.enqueue(2, priority=9)
    jobs = await pgq.Queue(pool).dequeue(5, queues=["first", "second"], worker="w")
    assert [(job.queue, job.worker) for job in jobs] == [("first", "w"), ("second", "w")]


async def test_a_heartbeat_renews_the_lease(queue: pgq.Queue) -> None:
    await queue.enqueue_many([1, 2])
    first, second = await queue.dequeue(2, timedelta(seconds=10))
    assert first.lease_expires_at is not None
    own = await queue.heartbeat(first)
    longer = await queue.heartbeat(first.receipt, timedelta(hours=1))
    assert own is not None
    assert longer is not None
    assert first.lease_expires_at < own < longer
    assert await queue.heartbeat((first.id, first.receipt.token - 1)) is None
    assert await queue.complete(second)
    (lease,) = await queue.heartbeat_many([second, first, first], timedelta(hours=2))
    assert (lease.id, lease.cancel_requested) == (first.id, False)
    assert lease.lease_expires_at > longer
    assert await queue.heartbeat_many([]) == []


async def test_complete_and_dequeue_exchanges_batches(queue: pgq.Queue) -> None:
    await queue.enqueue_many([1, 2, 3])
    first = await queue.complete_and_dequeue([], 2, timedelta(minutes=5), worker="w")
    assert [(job.payload, job.worker) for job in first] == [(1, "w"), (2, "w")]
    (third,) = await queue.complete_and_dequeue(first, 2)
    assert third.payload == 3
    with pytest.raises(pgq.LeaseLost) as caught:
        await queue.complete_and_dequeue([third, first[0].receipt])
    assert caught.value.sqlstate == "PQ001"
    assert f"{{{first[0].id}}}" in (caught.value.detail or "")
    assert await queue.complete_and_dequeue([third.receipt]) == []


async def test_complete_many_leaves_lost_receipts_out(queue: pgq.Queue) -> None:
    ids = await queue.enqueue_many([1, 2, 3])
    first, second, third = await queue.dequeue(3)
    assert await queue.complete(second, {"answer": 42})
    done = await queue.complete_many([first, second.receipt, (third.id, third.receipt.token)])
    assert sorted(done) == [ids[0], ids[2]]
    assert await queue.complete_many([]) == []


async def test_complete_many_keeps_a_result_for_each(queue: pgq.Queue) -> None:
    ids = await queue.enqueue_many([1, 2, 3])
    jobs = await queue.dequeue(3)
    with pytest.raises(pgq.InvalidArgument, match="same length"):
        await queue.complete_many(jobs, [1])
    assert sorted(await queue.complete_many(jobs, [{"answer": 42}, None, [None]])) == ids
    kept = [await queue.get(job_id) for job_id in ids]
    assert [job.result for job in kept if job is not None] == [{"answer": 42}, None, [None]]


async def test_get_shows_one_job_in_each_state(pool: asyncpg.Pool[Any], queue: pgq.Queue) -> None:
    soon = now() + timedelta(hours=1)
    job_id = await queue.enqueue({"n": 1}, headers={"h": 1}, expires_at=soon)
    ready = await pgq.Queue(pool, "whichever").get(job_id)
    assert ready is not None
    assert (ready.id, ready.queue, ready.state, ready.expires_at) == (
        job_id,
        "default",
        "ready",
        soon,
    )
    assert (ready.result, ready.finished_at) == (None, None)
    with pytest.raises(pgq.InvalidArgument, match="receipt"):
        _ = ready.receipt
    (job,) = await queue.dequeue(worker="w")
    assert await queue.heartbeat(job, checkpoint=[7])
    active = await queue.get(job_id)
    assert active is not None
    assert active.lease_expires_at is not None
    shown = {field.name: getattr(active, field.name) for field in dataclasses.fields(pgq.Job)}
    assert pgq.Job(**shown) == dataclasses.replace(
        job, lease_expires_at=active.lease_expires_at, checkpoint=[7]
    )
    assert await queue.complete(active, {"answer": 42})
    completed = await queue.get(job_id)
    assert completed is not None
    assert (completed.state, completed.result) == ("completed", {"answer": 42})
    assert completed.finished_at is not None
    assert job.claimed_at is not None
    assert job.claimed_at < completed.finished_at
    assert await queue.get(job_id + 1000) is None


async def test_a_worker_may_cancel_its_job(queue: pgq.Queue) -> None:
    job_id = await queue.enqueue(1)
    (job,) = await queue.dequeue()
    with pytest.raises(pgq.InvalidArgument, match="retry_in"):
        await queue.fail(job, retry_in=timedelta(0), cancel=True)
    assert await queue.fail(job, "not wanted", cancel=True) == "cancelled"
    cancelled = await queue.get(job_id)
    assert cancelled is not None
    assert (cancelled.state, cancelled.last_error) == ("cancelled", "not wanted")
    assert await queue.fail(job, cancel=True) is None


async def test_a_job_has_the_history_of_its_failed_attempts(queue: pgq.Queue) -> None:
    job_id = await queue.enqueue(1)
    (job,) = await queue.dequeue(worker="w")
    snapshot = await queue.get(job_id)
    assert snapshot is not None
    assert snapshot.history is None
    assert await queue.fail(job, "no")
    snapshot = await queue.get(job_id)
    assert snapshot is not None
    assert snapshot.history is not None
    assert job.claimed_at is not None
    (attempt,) = snapshot.history
    assert (attempt["attempt"], attempt["worker"], attempt["error"]) == (1, "w", "no")
    assert datetime.fromisoformat(attempt["claimed_at"]) == job.claimed_at
    assert datetime.fromisoformat(attempt["ended_at"]) >= job.claimed_at


async def test_a_job_names_those_for_which_it_waits_and_who_waits_for_it(queue: pgq.Queue) -> None:
    ids = await queue.enqueue_many([1, 2])
    last = await queue.enqueue(3, after=ids)
    first, behind = await queue.get(ids[0]), await queue.get(last)
    assert first is not None
    assert behind is not None
    assert (first.after, first.before) == (None, [last])
    assert (behind.after, behind.before) == (ids, None)


async def test_fail_schedules_and_then_gives_up(queue: pgq.Queue) -> None:
    job_id = await queue.enqueue(1, max_attempts=2)
    (job,) = await queue.dequeue()
    assert await queue.fail(job, "first", retry_in=timedelta(0)) == "scheduled"
    assert await queue.fail(job, "stale") is None
    (job,) = await queue.dequeue()
    assert (job.attempt, job.last_error) == (2, "first")
    assert await queue.fail(job, "second") == "dead"
    assert await queue.retry(job_id)
    assert not await queue.retry(job_id)
    (again,) = await queue.dequeue()
    assert (again.payload, again.attempt, again.last_error) == (1, 1, "second")
    assert again.receipt.token > job.receipt.token


async def test_fail_for_good_and_retry_all_the_dead(queue: pgq.Queue, admin: pgq.Admin) -> None:
    ids = await queue.enqueue_many([1, 2, 3])
    for job in await queue.dequeue(3):
        assert await queue.fail(job, retryable=False) == "dead"
    assert len(await admin.retry_dead(queue.name, 2)) == 2
    assert len(await admin.retry_dead(queue.name)) == 1
    assert [job.id for job in await queue.dequeue(10)] == ids


async def test_release_does_not_count_the_attempt(queue: pgq.Queue) -> None:
    await queue.enqueue(1)
    (job,) = await queue.dequeue()
    assert await queue.release(job)
    assert not await queue.release(job)
    (again,) = await queue.dequeue()
    assert again.attempt == 1
    assert await queue.release(again, timedelta(hours=1))
    assert await queue.dequeue() == []


async def test_what_a_worker_does_not_hold_is_released(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    async with pool.acquire() as connection:
        pid = connection.get_server_pid()
        await queue.enqueue_many(range(3))
        held, *lost = await queue.dequeue(3, worker="w", connection=connection)
        _, token = held.receipt
        assert await queue.release_unheld("w", [token], pid - 1) == []
        assert await queue.release_unheld("w", [token], pid) == [job.id for job in lost]
    assert await queue.release_unheld("w", []) == [held.id]
    assert [job.attempt for job in await queue.dequeue(3)] == [1, 1, 1]


async def test_what_became_of_a_receipt(pool: asyncpg.Pool[Any], queue: pgq.Queue) -> None:
    await queue.enqueue_many(range(3))
    done, released, lost = await queue.dequeue(3)
    assert await queue.outcome(done) == "active"
    assert await queue.complete(done)
    assert await queue.release(released, timedelta(hours=1))
    assert [await queue.outcome(job) for job in (done, released)] == ["completed", "lost"]
    await pool.execute("delete from pgq.job where id = $1", lost.id)
    assert await queue.outcome(lost) is None


async def test_reclaim_takes_expired_leases_back(pool: asyncpg.Pool[Any]) -> None:
    here, there = pgq.Queue(pool), pgq.Queue(pool, "there")
    await pgq.Admin(pool).create_queue(there.name)
    for queue in (here, there):
        await queue.enqueue_many([1, 2])
    async with pool.acquire() as connection:
        # No tick takes the leases back before: none comes under REPEATABLE READ.
        async with connection.transaction(isolation="repeatable_read"):
            for queue in (here, there):
                jobs = await queue.dequeue(2, timedelta(microseconds=1), connection=connection)
                assert len(jobs) == 2
        async with connection.transaction():
            reclaim = pgq.Admin(connection).reclaim
            assert len(await reclaim(here.name, 1)) == 1
            assert len(await reclaim(here.name)) == 1
            assert await reclaim(here.name) == []
            assert len(await reclaim()) == 2


async def test_pop_removes_with_the_transaction(pool: asyncpg.Pool[Any], queue: pgq.Queue) -> None:
    await queue.enqueue_many([1, 2])
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert [job.payload for job in await queue.pop(5, connection=connection)] == [1, 2]
        await transaction.rollback()
    (popped,) = await queue.pop()
    assert (popped.payload, popped.token) == (1, None)
    with pytest.raises(pgq.InvalidArgument, match="popped"):
        await queue.complete(popped)
    assert [job.payload for job in await queue.pop(5)] == [2]
    assert await queue.pop() == []


async def test_claim_takes_the_one_given_job(queue: pgq.Queue) -> None:
    await queue.enqueue(1)
    job_id = await queue.enqueue(2)
    job = await queue.claim(job_id, timedelta(minutes=1), worker="moderator")
    assert (job.id, job.payload, job.worker) == (job_id, 2, "moderator")
    with pytest.raises(pgq.JobHeld, match="is held") as refused:
        await queue.claim(job_id, worker="another")
    assert refused.value.detail is not None
    assert refused.value.detail.startswith('It is leased to "moderator" until ')
    assert await queue.complete(job)


async def test_the_life_of_a_queue(pool: asyncpg.Pool[Any]) -> None:
    queue, admin = pgq.Queue(pool, "life"), pgq.Admin(pool)
    await admin.create_queue(
        queue.name,
        max_attempts=3,
        backoff_base=timedelta(seconds=2),
        backoff_factor=1.5,
        backoff_max=timedelta(minutes=1),
        keep_completed=timedelta(0),
        keep_dead=timedelta(days=1),
        max_active=0,
    )
    await admin.configure_queue(queue.name, max_attempts=4)
    await queue.enqueue(1)
    await admin.pause(queue.name)
    assert await queue.dequeue() == []
    await admin.resume(queue.name)
    (job,) = await queue.dequeue()
    assert job.max_attempts == 4
    with pytest.raises(pgq.QueueInUse):
        await admin.drop_queue(queue.name)
    assert await admin.purge(queue.name) == 0
    assert await queue.complete(job)
    await queue.enqueue(2)
    assert await admin.purge(queue.name, ["ready"]) == 1
    await queue.enqueue(3)
    await admin.drop_queue(queue.name, force=True)
    with pytest.raises(pgq.UnknownQueue):
        await queue.enqueue(4)


async def test_a_job_that_is_not_at_work_can_be_cancelled(queue: pgq.Queue) -> None:
    job_id = await queue.enqueue(1)
    assert await queue.cancel(job_id)
    assert not await queue.cancel(job_id)
    assert await queue.dequeue() == []


async def test_maintain_and_version(queue: pgq.Queue, admin: pgq.Admin) -> None:
    await admin.maintain()
    assert re.fullmatch(r"\d+\.\d+\.\d+", await queue.version())


async def test_a_watched_table_adds_jobs_until_it_is_unwatched(
    queue: pgq.Queue, admin: pgq.Admin, pool: asyncpg.Pool[Any]
) -> None:
    await pool.execute("create table post (id integer primary key)")
    await admin.watch("post")
    await pool.execute("insert into post values (1)")
    [job] = await queue.dequeue(10)
    assert job.payload == {"table": "public.post", "operation": "INSERT", "key": {"id": 1}}
    assert await admin.unwatch("post")
    assert not await admin.unwatch("post")
    await pool.execute("insert into post values (2)")
    assert await queue.dequeue() == []
    with pytest.raises(asyncpg.UndefinedFunctionError, match="is_vip"):
        await admin.watch("post", condition="is_vip(new.id)")
    with pytest.raises(asyncpg.InvalidSchemaNameError, match="nowhere"):
        await admin.watch("nowhere.post")


async def test_headers_may_be_any_mapping(queue: pgq.Queue) -> None:
    await queue.enqueue(1, headers=MappingProxyType({"trace": "x"}))
    [job] = await queue.dequeue()
    assert job.headers == {"trace": "x"}


async def test_every_function_of_the_extension_has_its_statement(
    pool: asyncpg.Pool[Any],
) -> None:
    rows = await pool.fetch(
        """
        select p.oid::regprocedure::text as signature, p.proname as name,
               coalesce(p.proargnames[:p.pronargs], '{}') as arguments
          from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace and p.proname ~ '^pgq_'
           and p.proname not in ('pgq_check_watch', 'pgq_enqueue_row') -- parts of pgq_watch
        """
    )
    functions = {(row["name"], tuple(row["arguments"])): row["signature"] for row in rows}
    called = {
        (match[1], tuple(re.findall(r"(\w+) =>", statement)))
        for statement in vars(_sql).values()
        if isinstance(statement, str) and (match := re.search(r"@(pgq_\w+)\(", statement))
    }
    assert called >= set(functions)
    for name, arguments in called - set(functions):
        # For older versions of the extension.
        assert any((name, (*arguments, new)) in functions for new in ["description", "max"])


def test_a_statement_in_place_of_another_one_makes_the_same_call() -> None:
    for statement, instead in (_sql.BLIND | _sql.IMPATIENT).items():
        for part in (r"@pgq_\w+", r"\w+ =>", r"\$\d+[\w:\[\]]*"):
            assert re.findall(part, statement) == re.findall(part, instead)


@pytest.mark.parametrize(
    ("method", "function"),
    [
        ("enqueue", "pgq_enqueue"),
        ("enqueue_many", "pgq_enqueue_many"),
        ("dequeue", "pgq_dequeue"),
        ("heartbeat", "pgq_heartbeat"),
        ("complete", "pgq_complete"),
        ("complete_many", "pgq_complete"),
        ("complete_and_dequeue", "pgq_complete_and_dequeue"),
        ("fail", "pgq_fail"),
        ("release", "pgq_release"),
        ("release_unheld", "pgq_release_unheld"),
        ("reclaim", "pgq_reclaim"),
        ("pop", "pgq_pop"),
        ("claim", "pgq_claim"),
        ("create_queue", "pgq_create_queue"),
        ("configure_queue", "pgq_configure_queue"),
        ("drop_queue", "pgq_drop_queue"),
        ("purge", "pgq_purge"),
        ("retry_dead", "pgq_retry_dead"),
    ],
)
async def test_defaults_are_those_of_the_server(
    pool: asyncpg.Pool[Any], method: str, function: str
) -> None:
    rows = await pool.fetch(
        """
        select argument, pg_catalog.pg_get_function_arg_default(p.oid, n::integer) as expression
          from pg_catalog.pg_proc p, unnest(p.proargnames) with ordinality as a (argument, n)
         where p.proname = $1 and p.pronamespace = 'public'::regnamespace
        """,
        function,
    )
    server = {row["argument"]: row["expression"] for row in rows if row["expression"]}
    compared = 0
    owner = pgq.Queue if hasattr(pgq.Queue, method) else pgq.Admin
    for name, parameter in inspect.signature(getattr(owner, method)).parameters.items():
        if parameter.default is inspect.Parameter.empty or name not in server:
            continue
        expected = await pool.fetchval(f"select {server[name]}")
        default: object = parameter.default
        assert (["ready", "scheduled", "waiting"] if name == "states" else default) == expected
        compared += 1
    assert compared > 0


async def test_every_setting_of_a_queue_is_stored(pool: asyncpg.Pool[Any]) -> None:
    async def stored() -> dict[str, Any]:
        row = await pool.fetchrow("select * from pgq.queue where name = 'set'")
        assert row is not None
        return dict(row)

    first: dict[str, Any] = {
        "max_attempts": 3,
        "backoff_base": timedelta(seconds=4),
        "backoff_factor": 1.5,
        "backoff_max": timedelta(seconds=50),
        "keep_completed": timedelta(seconds=6),
        "keep_dead": timedelta(seconds=7),
        "max_active": 8,
        "dedupe_for": timedelta(seconds=9),
        "group_concurrency": 10,
        "group_on_dead": "block",
        "rate_limit": 11,
        "rate_interval": timedelta(seconds=12),
        "rate_burst": 13,
        "priority_ageing": timedelta(seconds=14),
        "max_ready": 15,
        "max_payload": 16,
        "description": "invoices",
    }
    queue, admin = pgq.Queue(pool, "set"), pgq.Admin(pool)
    ignored = {"name", "if_not_exists", "connection"}
    names = set(inspect.signature(admin.create_queue).parameters) - ignored
    assert names == set(inspect.signature(admin.configure_queue).parameters) - ignored
    assert names == set(first)
    await admin.create_queue(queue.name, **first)
    assert (await stored()).items() >= first.items()
    for name, value in first.items():
        other: Any = "continue" if name == "group_on_dead" else value * 2
        await admin.configure_queue(queue.name, **{name: other})
        assert (await stored()).items() >= (first | {name: other}).items()
        await admin.configure_queue(queue.name, **{name: value})
    await admin.configure_queue(queue.name)
    assert await admin.create_queue(queue.name, max_attempts=4, if_not_exists=True) is False
    assert (await stored()).items() >= first.items()


async def test_a_queue_at_its_limit_gives_no_more_jobs(queue: pgq.Queue, admin: pgq.Admin) -> None:
    await admin.configure_queue(
        queue.name, max_active=2, rate_limit=3, rate_interval=timedelta(days=1)
    )
    ids = await queue.enqueue_many([1, 2, 3, 4, 5])
    jobs = await queue.dequeue(5)
    assert [job.id for job in jobs] == ids[:2]
    with pytest.raises(pgq.NotClaimable):
        await queue.claim(ids[4])
    assert [job.id for job in await queue.complete_and_dequeue(jobs, 5)] == ids[2:3]
    assert await queue.dequeue(5) == []
    assert await queue.pop(5) == []


async def test_a_low_priority_that_has_waited_for_long_goes_first(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    await pgq.Admin(pool).configure_queue(queue.name, priority_ageing=timedelta(hours=1))
    first = await queue.enqueue("low", priority=1)
    second = await queue.enqueue("high", priority=3)
    await pool.execute(
        "update pgq.job set enqueued_at = now() - interval '150 min' where id = $1", first
    )
    assert [job.id for job in await queue.dequeue(1)] == [second]
    await queue.enqueue("high", priority=3)
    await pool.execute(
        "update pgq.job set enqueued_at = now() - interval '190 min' where id = $1", first
    )
    assert [job.id for job in await queue.dequeue(1)] == [first]


async def test_numbers_that_no_float_can_hold_arrive(
    connection: Connection, queue: pgq.Queue
) -> None:
    numbers = f"[1{'0' * 400}.5, 12345678901234567890123]"
    await connection.execute("select pgq_enqueue($1::text::jsonb)", numbers)
    (job,) = await queue.dequeue()
    assert job.payload == [float("inf"), 12345678901234567890123]


async def test_times_are_datetimes_whatever_the_connection_makes_of_them(
    dsn: dict[str, Any], queue: pgq.Queue
) -> None:
    connection = await asyncpg.connect(**dsn)
    try:
        for name in ("timestamptz", "bytea", "jsonb", "bool", "interval"):
            await connection.set_type_codec(name, schema="pg_catalog", encoder=str, decoder=list)
        job_id = await connection.fetchval("select pgq_enqueue('1', run_at => '2999-12-31 0:0Z')")
        ahead = await queue.get(job_id, connection=connection)
        await connection.execute("select pgq_enqueue('2', run_at => '1066-10-14 9:00:00.000001Z')")
        jobs = await queue.dequeue(5, timedelta(seconds=1.5), connection=connection)
    finally:
        await connection.close()
    assert ahead is not None
    assert ahead.run_at == datetime(2999, 12, 31, tzinfo=UTC)
    assert (ahead.claimed_at, ahead.expires_at) == (None, None)
    assert [job.payload for job in jobs] == [2]
    for job in jobs:
        assert job.claimed_at is not None
        assert job.lease_expires_at is not None
        assert job.lease_expires_at - job.claimed_at == timedelta(seconds=1.5)
        assert abs(job.claimed_at - now()) < timedelta(seconds=60)
