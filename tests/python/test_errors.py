"""Every error of the contract: its SQLSTATE, its class, and that nothing was written."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pgq
import pytest
from pginstall import uninstall
from pgq._calls import diagnose
from pgq._errors import translate

if TYPE_CHECKING:
    from pgserver import Server

NO_TIME = timedelta(0)
FOR_EVER = timedelta.max
NEGATIVE = timedelta(seconds=-1)
Call = Callable[[pgq.Queue, pgq.Admin], Awaitable[Any]]


NULL: Any = None


@dataclass(frozen=True)
class Case:
    name: str
    sqlstate: str
    error: type[pgq.Error]
    call: Call


async def claim_held(queue: pgq.Queue, _: pgq.Admin) -> None:
    await queue.enqueue(1)
    (job,) = await queue.dequeue()
    await queue.claim(job.id)


async def claim_finished(queue: pgq.Queue, _: pgq.Admin) -> None:
    await queue.enqueue(1)
    (job,) = await queue.dequeue()
    await queue.complete(job)
    await queue.claim(job.id)


async def claim_scheduled(queue: pgq.Queue, _: pgq.Admin) -> None:
    job_id = await queue.enqueue(1, run_at=datetime.now(UTC) + timedelta(days=1))
    await queue.claim(job_id)


async def claim_paused(queue: pgq.Queue, admin: pgq.Admin) -> None:
    job_id = await queue.enqueue(1)
    await admin.pause(queue.name)
    await queue.claim(job_id)


async def drop_in_use(queue: pgq.Queue, admin: pgq.Admin) -> None:
    await queue.enqueue(1)
    await admin.drop_queue(queue.name)


async def drop_with_dead(queue: pgq.Queue, admin: pgq.Admin) -> None:
    await queue.enqueue(1, max_attempts=1)
    (job,) = await queue.dequeue()
    await queue.fail(job)
    await admin.drop_queue(queue.name)


async def enqueue_twice(queue: pgq.Queue, _: pgq.Admin) -> None:
    await queue.enqueue(1, dedupe_key="k")
    await queue.enqueue(2, dedupe_key="k", on_duplicate="error")


CASES = [
    Case("create twice", "42710", pgq.QueueExists, lambda q, a: a.create_queue(q.name)),
    Case("drop in use", "55006", pgq.QueueInUse, drop_in_use),
    Case("drop with dead jobs", "55006", pgq.QueueInUse, drop_with_dead),
    Case("claim held", "55P03", pgq.JobHeld, claim_held),
    Case("claim finished", "P0002", pgq.UnknownJob, claim_finished),
    Case("claim unknown", "P0002", pgq.UnknownJob, lambda q, a: q.claim(987654321)),
    Case("claim scheduled", "55000", pgq.NotClaimable, claim_scheduled),
    Case("claim paused", "55000", pgq.NotClaimable, claim_paused),
    Case("dedupe_key", "22023", pgq.InvalidArgument, lambda q, a: q.enqueue(1, dedupe_key="")),
    Case("duplicate", "23505", pgq.DuplicateKey, enqueue_twice),
    Case("group_key", "22023", pgq.InvalidArgument, lambda q, a: q.enqueue(1, group_key="")),
    Case(
        "dedupe_keys",
        "22023",
        pgq.InvalidArgument,
        lambda q, a: q.enqueue_many([1], dedupe_keys=["k", "l"]),
    ),
    Case(
        "group_keys", "22023", pgq.InvalidArgument, lambda q, a: q.enqueue_many([1], group_keys=[])
    ),
    Case("priority", "22003", pgq.InvalidArgument, lambda q, a: q.enqueue(1, priority=32768)),
    Case(
        "priorities",
        "22003",
        pgq.InvalidArgument,
        lambda q, a: q.enqueue_many([1], priority=-32769),
    ),
    Case("batch", "22023", pgq.InvalidArgument, lambda q, a: q.dequeue(0)),
    Case(
        "batch of several",
        "22023",
        pgq.InvalidArgument,
        lambda q, a: q.dequeue(0, queues=["default"]),
    ),
    Case("batch of pop", "22023", pgq.InvalidArgument, lambda q, a: q.pop(0)),
    Case("timeout", "22023", pgq.InvalidArgument, lambda q, a: q.dequeue(1, NO_TIME)),
    Case("timeout for ever", "22023", pgq.InvalidArgument, lambda q, a: q.dequeue(1, FOR_EVER)),
    Case("timeout of claim", "22023", pgq.InvalidArgument, lambda q, a: q.claim(1, NO_TIME)),
    Case(
        "timeout of heartbeat",
        "22023",
        pgq.InvalidArgument,
        lambda q, a: q.heartbeat((1, 1), NO_TIME),
    ),
    Case(
        "timeouts", "22023", pgq.InvalidArgument, lambda q, a: q.heartbeat_many([(1, 1)], NEGATIVE)
    ),
    Case("delay", "22023", pgq.InvalidArgument, lambda q, a: q.release((1, 1), NEGATIVE)),
    Case("retry_in", "22023", pgq.InvalidArgument, lambda q, a: q.fail((1, 1), retry_in=NEGATIVE)),
    Case("state", "22023", pgq.InvalidArgument, lambda q, a: a.purge(q.name, ["active"])),
    Case("null queue", "22004", pgq.InvalidArgument, lambda q, a: q.dequeue(queues=[NULL])),
    Case("null id", "22004", pgq.InvalidArgument, lambda q, a: q.cancel(NULL)),
    Case("null token", "22004", pgq.InvalidArgument, lambda q, a: q.complete((1, NULL))),
    Case(
        "null in ids",
        "22004",
        pgq.InvalidArgument,
        lambda q, a: q.complete_many([(1, 1), (NULL, 1)]),
    ),
    Case(
        "null in tokens", "22004", pgq.InvalidArgument, lambda q, a: q.heartbeat_many([(1, NULL)])
    ),
    Case("zero byte", "22021", pgq.InvalidArgument, lambda q, a: q.fail((1, 1), "\0")),
    Case("not storable", "22P05", pgq.InvalidArgument, lambda q, a: q.enqueue("\0")),
    Case("not JSON", "22P02", pgq.InvalidArgument, lambda q, a: q.enqueue(float("nan"))),
]

ON_UNKNOWN_QUEUE: dict[str, Call] = {
    "enqueue": lambda q, a: q.enqueue(1),
    "enqueue_many": lambda q, a: q.enqueue_many([1]),
    "enqueue_many of nothing": lambda q, a: q.enqueue_many([]),
    "dequeue": lambda q, a: q.dequeue(),
    "dequeue of several": lambda q, a: q.dequeue(queues=["default", q.name]),
    "reclaim": lambda q, a: a.reclaim(q.name),
    "pop": lambda q, a: q.pop(),
    "configure": lambda q, a: a.configure_queue(q.name),
    "drop": lambda q, a: a.drop_queue(q.name),
    "drop by force": lambda q, a: a.drop_queue(q.name, force=True),
    "pause": lambda q, a: a.pause(q.name),
    "resume": lambda q, a: a.resume(q.name),
    "purge": lambda q, a: a.purge(q.name),
    "retry_dead": lambda q, a: a.retry_dead(q.name),
}


async def raised(call: Awaitable[Any]) -> pgq.Error:
    with pytest.raises(pgq.Error) as info:
        await call
    error = info.value
    assert isinstance(error.__cause__, asyncpg.PostgresError)
    assert error.__cause__.sqlstate == error.sqlstate
    return error


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_an_error_has_the_class_of_its_sqlstate(
    pool: asyncpg.Pool[Any], queue: pgq.Queue, case: Case
) -> None:
    error = await raised(case.call(queue, pgq.Admin(pool)))
    assert (error.sqlstate, type(error)) == (case.sqlstate, case.error)


@pytest.mark.parametrize("name", ON_UNKNOWN_QUEUE)
async def test_an_unknown_queue_is_an_error_everywhere(pool: asyncpg.Pool[Any], name: str) -> None:
    error = await raised(ON_UNKNOWN_QUEUE[name](pgq.Queue(pool, "nowhere"), pgq.Admin(pool)))
    assert (error.sqlstate, type(error)) == ("42704", pgq.UnknownQueue)


@pytest.mark.parametrize("name", ["", "x" * 201])
async def test_a_queue_name_has_1_to_200_characters(pool: asyncpg.Pool[Any], name: str) -> None:
    error = await raised(pgq.Admin(pool).create_queue(name))
    assert (error.sqlstate, type(error)) == ("22023", pgq.InvalidArgument)


async def test_maintain_refuses_a_transaction_with_an_old_snapshot(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    async with pool.acquire() as connection:
        for isolation in ("repeatable_read", "serializable"):
            transaction = connection.transaction(isolation=isolation)
            await transaction.start()
            with pytest.raises(pgq.WrongTransaction) as info:
                await pgq.Admin(connection).maintain()
            assert info.value.sqlstate == "25001"
            await transaction.rollback()


async def test_a_conflict_under_repeatable_read_is_a_serialization_failure(
    pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    await queue.enqueue(1)
    (job,) = await queue.dequeue()
    async with pool.acquire() as connection:
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        assert await connection.fetchval("select 1") == 1  # the snapshot
        assert await queue.heartbeat(job) is not None
        with pytest.raises(pgq.SerializationFailure) as info:
            await queue.complete(job, connection=connection)
        assert info.value.sqlstate == "40001"
        await transaction.rollback()
    assert await queue.complete(job)


async def test_a_role_without_rights_is_not_permitted(
    dsn: dict[str, Any], pool: asyncpg.Pool[Any]
) -> None:
    async with pool.acquire() as connection:
        await connection.execute("set role pg_monitor")
        with pytest.raises(pgq.NotPermitted) as info:
            await pgq.Queue(connection).enqueue(1)
        assert info.value.sqlstate == "42501"


async def test_a_database_without_the_extension_is_told(
    server: Server, dsn: dict[str, Any], connection: asyncpg.Connection[Any]
) -> None:
    uninstall(server, dsn["database"])
    for queue in (pgq.Queue(connection), pgq.Queue(connection, schema="no such schema")):
        with pytest.raises(pgq.NotInstalled) as info:
            await queue.enqueue(1)
        assert info.value.hint is not None
        assert "CREATE EXTENSION pgq" in info.value.hint
    await connection.close()


async def test_an_unknown_queue_hints_at_creating_it(pool: asyncpg.Pool[Any]) -> None:
    with pytest.raises(pgq.UnknownQueue) as info:
        await pgq.Queue(pool, "nowhere").enqueue(1)
    assert info.value.hint is not None
    assert "pgq_create_queue" in info.value.hint
    assert info.value.hint in str(info.value)
    copy = pickle.loads(pickle.dumps(info.value))
    assert (type(copy), str(copy)) == (pgq.UnknownQueue, str(info.value))


async def test_arguments_that_cannot_be_sent_are_invalid_too(queue: pgq.Queue) -> None:
    with pytest.raises(pgq.InvalidArgument) as info:
        await queue.enqueue(1, priority=2**40)
    assert info.value.sqlstate == "22000"


async def test_nothing_was_written_by_a_refused_call(queue: pgq.Queue) -> None:
    for priority in (32768, 2**40):
        with pytest.raises(pgq.InvalidArgument):
            await queue.enqueue_many([1, 2], priority=priority)
    assert await queue.dequeue(10) == []


@pytest.mark.parametrize("steps", [0, 2, 9], ids=["as it is sent", "just before", "before"])
async def test_a_connection_that_the_server_ends_is_lost(
    server: Server, connection: asyncpg.Connection[Any], steps: int
) -> None:
    # The loop stands still meanwhile. It reads the server's good-bye in the second step from here
    # on, and the end of the connection in the third.
    server.psql(f"select pg_terminate_backend({connection.get_server_pid()}, 10000)")
    for _ in range(steps):
        await asyncio.sleep(0)
    with pytest.raises(pgq.ConnectionLost) as info:
        await pgq.Queue(connection).enqueue(1)
    assert info.value.__cause__ is not None
    copy = pickle.loads(pickle.dumps(info.value))
    assert (type(copy), str(copy)) == (pgq.ConnectionLost, str(info.value))


async def test_a_connection_of_a_pool_that_the_server_ends_is_lost(
    server: Server, pool: asyncpg.Pool[Any], queue: pgq.Queue
) -> None:
    for steps in (0, 2):
        pid = await pool.fetchval("select pg_backend_pid()")
        server.psql(f"select pg_terminate_backend({pid}, 10000)")
        for _ in range(steps):
            await asyncio.sleep(0)
        with pytest.raises(pgq.ConnectionLost):
            await queue.enqueue(1)
        await queue.enqueue(1)


async def test_a_server_that_cannot_be_reached_is_a_lost_connection(dsn: dict[str, Any]) -> None:
    with socket.socket() as place:  # nobody listens there
        place.bind(("127.0.0.1", 0))
        nowhere: dict[str, Any] = {**dsn, "host": "127.0.0.1", "port": place.getsockname()[1]}
        async with asyncpg.create_pool(**nowhere, min_size=0) as pool:
            with pytest.raises(pgq.ConnectionLost, match="cannot connect"):
                await pgq.Queue(pool).enqueue(1)


async def test_a_connection_that_was_closed_is_lost(
    pool: asyncpg.Pool[Any], connection: asyncpg.Connection[Any]
) -> None:
    await connection.close()
    with pytest.raises(pgq.ConnectionLost):
        await pgq.Queue(connection).enqueue(1)
    async with pool.acquire() as acquired:
        await acquired.close()
        with pytest.raises(pgq.ConnectionLost):
            await pgq.Queue(acquired).enqueue(1)


async def test_errors_that_are_not_of_pgq_pass(
    pool: asyncpg.Pool[Any], connection: asyncpg.Connection[Any]
) -> None:
    async with connection.transaction():
        cursor = await connection.cursor("select generate_series(1, 9), pg_sleep(0.01)")
        busy = asyncio.create_task(cursor.fetch(9))
        await asyncio.sleep(0)
        with pytest.raises(asyncpg.InterfaceError):
            await pgq.Queue(connection).enqueue(1)
        await busy
    await pool.close()
    with pytest.raises(asyncpg.InterfaceError):
        await pgq.Queue(pool).enqueue(1)
    assert translate(diagnose(asyncpg.QueryCanceledError("x"))) is None
    assert translate(diagnose(asyncpg.UnknownPostgresError("x"))) is None
    assert translate(diagnose(asyncpg.InvalidCachedStatementError("x"))) is None
    assert type(translate(diagnose(asyncpg.FeatureNotSupportedError("x")))) is pgq.NotSupported


@pytest.mark.parametrize("sqlstate", ["42703", "42P01", "42804", "42883"])
async def test_a_call_under_which_an_update_has_changed_functions_is_to_be_repeated(
    connection: asyncpg.Connection[Any], sqlstate: str
) -> None:
    await connection.execute(f"""
        create or replace function pgq._check_restricted() returns void language plpgsql
        as $$ begin raise exception 'an old text' using errcode = '{sqlstate}'; end $$
    """)
    with pytest.raises(pgq.SerializationFailure, match="an old text") as caught:
        await pgq.Queue(connection).dequeue()
    assert "repeat it" in str(caught.value)


async def test_a_call_whose_plan_names_what_an_update_has_dropped_is_to_be_repeated(
    connection: asyncpg.Connection[Any],
) -> None:
    await connection.execute("""
        create or replace function pgq._check_restricted() returns void language plpgsql
        as $$ begin perform gin_clean_pending_list(4000000000); end $$
    """)
    with pytest.raises(pgq.SerializationFailure, match="4000000000") as caught:
        await pgq.Queue(connection).dequeue()
    assert caught.value.sqlstate == "XX000"


async def test_another_internal_error_is_not_to_be_repeated(
    connection: asyncpg.Connection[Any],
) -> None:
    await connection.execute("""
        create or replace function pgq._check_restricted() returns void language plpgsql
        as $$ begin raise exception 'could not open relation' using errcode = 'XX000'; end $$
    """)
    with pytest.raises(asyncpg.InternalServerError):
        await pgq.Queue(connection).dequeue()
