"""Sessions, waiting and measuring for the tests of concurrency."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
)
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import asyncpg
from pgserver import PATIENCE, Server

Connection: TypeAlias = "asyncpg.Connection[Any]"
Dsn: TypeAlias = "dict[str, Any]"
Receipt: TypeAlias = "tuple[int, int]"
T = TypeVar("T")

NUMBERS = "select pgq_enqueue_many(array(select to_jsonb(n) from generate_series(1, $1::int) n))"


def dsn_of(server: Server, database: str = Server.database) -> Dsn:
    """Return the arguments with which asyncpg connects to a database of a server."""
    return {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "database": database,
    }


@contextlib.asynccontextmanager
async def sessions(dsn: Dsn, number: int, **settings: str) -> AsyncGenerator[list[Connection]]:
    """Open connections; on leaving they are cut off, whatever they are doing."""
    opened: list[Connection] = []
    try:
        while len(opened) < number:
            opened.append(await connect(dsn, **settings))
        yield opened
    finally:
        for connection in opened:
            connection.terminate()


async def connect(dsn: Dsn, **settings: str) -> Connection:
    """Connect with server settings; dots in their names are written as two underscores."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    connection: Connection = await asyncpg.connect(**dsn, server_settings=named)
    return connection


async def enqueue(connection: Connection, number: int) -> list[int]:
    """Enqueue jobs with the payloads 1, 2, and so on."""
    return [row[0] for row in await connection.fetch(NUMBERS, number)]


async def dequeue(connection: Connection, batch: int = 1, lease: str = "1 hour") -> list[Receipt]:
    """Claim jobs of the default queue."""
    rows = await connection.fetch(
        "select id, token from pgq_dequeue($1, $2::text::interval)", batch, lease
    )
    return [(row["id"], row["token"]) for row in rows]


async def complete(connection: Connection, receipts: Iterable[Receipt]) -> list[int]:
    """Complete jobs and return the ids of those that were."""
    pairs = list(receipts)
    rows = await connection.fetch(
        "select pgq_complete($1::bigint[], $2::bigint[])",
        [receipt[0] for receipt in pairs],
        [receipt[1] for receipt in pairs],
    )
    return [row[0] for row in rows]


async def settle_all(connection: Connection, batch: int = 100) -> list[int]:
    """Claim and complete until there is nothing, and return the ids in the order of the claims."""
    ids: list[int] = []
    while receipts := await dequeue(connection, batch):
        assert sorted(await complete(connection, receipts)) == sorted(i for i, _ in receipts)
        ids += [job_id for job_id, _ in receipts]
    return ids


async def settle(connection: Connection, number: int) -> None:
    """Claim and complete so many jobs while others move them, by which a claim passes."""
    ids: list[int] = []

    async def all_came() -> bool:
        ids.extend(await settle_all(connection))
        return len(ids) >= number

    await until(all_came)
    assert len(set(ids)) == len(ids) == number


async def maintain(connection: Connection, times: int = 1) -> None:
    """Run maintenance, each time in a transaction of its own."""
    for _ in range(times):
        await connection.execute("select pgq_maintain()")


async def age_ring(connection: Connection) -> None:
    """Let two seconds have passed since a slot was left; claims look into it until then."""
    await connection.execute("update pgq.ring set switched_at = switched_at - interval '2 s'")
    # The statistics by which slots are chosen for cleaning are known by then, too. PostgreSQL 14
    # cannot be told to send them: there the jobs are counted.
    if connection.get_server_version() >= (15,):
        await connection.execute("select pg_stat_force_next_flush()")
        return
    await connection.execute("""
        do $$
        begin
            execute replace(
                pg_get_functiondef('pgq._pages'::regproc),
                'pg_stat_get_live_tuples(pgq._slot_table(p_slot))',
                '(select count(*) from pgq.job i where i.slot = p_slot)'
            );
        end $$
    """)


async def raise_floors(connection: Connection) -> None:
    """Raise all claim positions as far as they may go; claims do it now and then, by chance."""
    await connection.execute(
        "select pgq._raise_floor(s::smallint, l.id) from generate_series(0, 3) s, pgq.lane l"
    )


async def pages(connection: Connection, query: str) -> int:
    """Return how many pages a query looks at."""
    (explained,) = json.loads(
        await connection.fetchval(f"explain (analyze, buffers, timing off, format json) {query}")
    )
    plan = explained["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def in_two_slots(connection: Connection, first: int = 1) -> list[Receipt]:
    """Claim jobs, of which the first ones are in one slot of the ring and two in the next one."""
    await connection.execute("set pgq.slot_size = '8192'")
    await enqueue(connection, first)
    await maintain(connection)
    await connection.execute("reset pgq.slot_size")
    await enqueue(connection, 2)
    receipts = await dequeue(connection, first + 2)
    assert [token & 7 for _, token in receipts] == [0] * first + [1, 1]
    return receipts


async def stop_clock(connection: Connection, at: datetime | None = None) -> datetime:
    """Let no time pass for the queue, and return the time; no tick comes by itself meanwhile."""
    now: datetime = at or await connection.fetchval("select clock_timestamp()")
    await connection.execute(f"""
        create or replace function pgq._now() returns timestamptz
        language sql volatile as $$ select timestamptz '{now.isoformat()}' $$
    """)
    return now


async def no_ticks(connection: Connection, at: datetime | None = None) -> None:
    """Stop the clock where no maintenance is due."""
    await stop_clock(connection, at)
    await connection.execute("""
        select setval('pgq.next_tick', pgq._ms(pgq._now()) + 400),
               setval('pgq.last_tick', pgq._ms(pgq._now()))
    """)


async def slot_of(connection: Connection, job_id: int) -> int | None:
    """Return the slot in which a job is."""
    slot: int | None = await connection.fetchval("select slot from pgq.job where id = $1", job_id)
    return slot


async def ring(connection: Connection) -> asyncpg.Record:
    """Return the newest state of the ring."""
    rows: list[asyncpg.Record] = await connection.fetch(
        "select * from pgq.ring order by gen desc limit 1"
    )
    return rows[0]


async def until(
    condition: Callable[[], Awaitable[T]], patience: float = PATIENCE, pause: float = 0.005
) -> T:
    """Ask again and again until the answer is true, and return it; fail when it takes too long."""
    deadline = time.monotonic() + patience
    while not (answer := await condition()):
        assert time.monotonic() < deadline, f"not within {patience} s"
        await asyncio.sleep(pause)
    return answer


async def waiting(
    observer: Connection, waiter: Connection, call: asyncio.Task[Any] | None = None
) -> None:
    """Return once a session waits for a lock that another one holds, or its call has ended."""

    async def blocked() -> bool:
        if call is not None and call.done():
            call.result()
            raise AssertionError("the call did not wait")
        blockers: list[int] = await observer.fetchval(
            "select pg_blocking_pids($1)", waiter.get_server_pid()
        )
        return bool(blockers)

    await until(blocked)


async def within(call: Awaitable[T], seconds: float = PATIENCE) -> T:
    """Return what a call returns, which must not hang."""
    return await asyncio.wait_for(call, seconds)


@contextlib.asynccontextmanager
async def rolled_back(connection: Connection) -> AsyncGenerator[None]:
    """A transaction that is rolled back in the end."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


@contextlib.asynccontextmanager
async def started(call: Coroutine[Any, Any, T]) -> AsyncGenerator[asyncio.Task[T]]:
    """Run a call beside the block, and cancel it if the block fails."""
    task = asyncio.ensure_future(call)
    try:
        yield task
    except BaseException as exc:
        if task.done() and not task.cancelled() and task.exception() is not None:
            exc.add_note(f"the call beside it had ended with {task.exception()!r}")
        raise
    finally:
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass
class Rotations:
    """How often the slots of a database were truncated."""

    count: int = 0


_FILES = """
    select c.oid::regclass::text, pg_relation_filenode(c.oid)
      from pg_class c join pg_inherits i on i.inhrelid = c.oid
     where i.inhparent = 'pgq.job'::regclass
"""


async def files(connection: Connection) -> set[tuple[str, int]]:
    """Return the slots with their files: TRUNCATE gives a slot a new one. Takes no lock on them."""
    return {(row[0], row[1]) for row in await connection.fetch(_FILES)}


@contextlib.contextmanager
def turning(dsn: Dsn, slot_size: int = 8192) -> Generator[Rotations]:
    """Rotate as fast as it goes while the block lasts, in a thread and a session of its own."""
    result = Rotations()
    errors: list[BaseException] = []
    stop = threading.Event()
    turns = threading.Event()

    async def turn() -> None:
        async with sessions(dsn, 1, pgq__slot_size=str(slot_size)) as (connection,):
            before = await files(connection)
            await maintain(connection)
            turns.set()
            while not stop.is_set():
                await maintain(connection)
                after = await files(connection)
                result.count += len(after - before)
                before = after

    def work() -> None:
        try:
            asyncio.run(turn())
        except BaseException as error:  # noqa: BLE001 -- raised again in the caller's thread
            errors.append(error)
            turns.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert turns.wait(PATIENCE)
        yield result
    finally:
        stop.set()
        thread.join(PATIENCE)
    if errors:
        raise errors[0]


def payload(row: asyncpg.Record) -> Any:
    """Return the payload of a job that was fetched without a codec."""
    return json.loads(row["payload"])
