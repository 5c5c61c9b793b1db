"""The programs of the load, each of which writes what it asks and is told into a history.

    python -m tests.chaos.client ROLE NAME DIRECTORY DSN [RATE]

They go on whatever becomes of the server, until SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Final, TypeAlias

import asyncpg
import pgq

from tests.history import psql
from tests.history.asyncpg_client import recorded
from tests.history.record import Recorder
from tests.python.sessions import Connection, Dsn

EXACT: Final = "exact"
"""The queue of the workers whose jobs write their effect in the transaction that completes them."""
PLAIN: Final = "plain"
"""The queue of the workers whose jobs have no effect in the database."""
SQL: Final = "sql"
"""The queue of psql, with effects as in `EXACT`."""
QUEUES: Final = (EXACT, PLAIN, SQL)
LEASE: Final = timedelta(seconds=3)
CALL: Final = timedelta(seconds=2)
EFFECT: Final = "insert into effect (job) values ($1)"
_PATIENCE: Final = 5.0  # seconds until a client gives up a connection
_REST: Final = 0.1  # seconds until it tries again
_GONE: Final = (
    pgq.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    asyncio.TimeoutError,
)


class Client:
    """A program of the load: its history, how it connects, and whether it is to end."""

    def __init__(self, name: str, directory: str, dsn: str, rate: str = "1") -> None:
        self.name = name
        self.recorder = Recorder(Path(directory), name)
        self.dsn: Dsn = {**json.loads(dsn), "connection_class": recorded(self.recorder)}
        self.rate = float(rate)
        self.ended = Event()

    async def rest(self, seconds: float = _REST) -> None:
        """Wait, but not beyond the end."""
        await asyncio.to_thread(self.ended.wait, seconds)


async def produce(client: Client) -> None:
    """Enqueue at a rate: alone, many at once, and in transactions, some of which roll back."""
    chance = random.Random(client.name)
    number = 0
    while not client.ended.is_set():
        connection: Connection | None = None
        with contextlib.suppress(*_GONE):
            connection = await asyncpg.connect(
                **client.dsn, timeout=_PATIENCE, command_timeout=_PATIENCE
            )
            while not client.ended.is_set():
                count = chance.choice((1, 1, 1, 5))
                payloads = [{"mark": f"{client.name}-{number + i}"} for i in range(count)]
                number += count
                await enqueue(connection, chance.choice(QUEUES), payloads, chance.random())
                await client.rest(count / client.rate)
        if connection is not None:
            connection.terminate()
        await client.rest()


async def enqueue(
    connection: Connection, name: str, payloads: list[dict[str, str]], dice: float
) -> None:
    """Enqueue jobs: now and then in a transaction that commits, or in one that rolls back."""
    queue = pgq.Queue(connection, name)
    transaction = connection.transaction() if dice < 0.2 else None
    if transaction is not None:
        await transaction.start()
    if len(payloads) == 1:
        await queue.enqueue(payloads[0])
    else:
        await queue.enqueue_many(payloads)
    if transaction is not None:
        await (transaction.rollback() if dice < 0.1 else transaction.commit())


async def work(client: Client) -> None:
    """Run a worker, whose jobs take up to half a second."""
    chance = random.Random(client.name)
    settings = {"application_name": client.name}
    async with asyncpg.create_pool(
        **client.dsn, min_size=0, max_size=8, server_settings=settings, command_timeout=_PATIENCE
    ) as pool:
        worker = pgq.Worker(pool, name=client.name, call_timeout=CALL)

        @worker.handler(EXACT, timeout=LEASE, concurrency=4, transaction=True)
        async def exact(job: pgq.Job, connection: Connection) -> None:
            await connection.execute(EFFECT, job.id)
            await asyncio.sleep(chance.uniform(0, 0.5))

        @worker.handler(PLAIN, timeout=LEASE, concurrency=4)
        async def plain(_: pgq.Job) -> None:
            await asyncio.sleep(chance.uniform(0, 0.2))

        await worker.run()


async def consume(client: Client) -> None:
    """Let psql claim a job, and complete it in the transaction that writes its effect."""
    while not client.ended.is_set():
        with contextlib.suppress(psql.ConnectionLostError, psql.SqlError, TimeoutError):
            await asyncio.to_thread(consume_by, client)
        await client.rest()


def consume_by(client: Client) -> None:
    """Consume in one session of psql."""
    session = psql.Client(client.recorder, dsn=conninfo(client), patience=_PATIENCE)
    try:
        while not client.ended.is_set():
            if not consume_one(client, session):
                client.ended.wait(_REST)
    finally:
        session.close()


def consume_one(client: Client, session: psql.Client) -> bool:
    """Claim and complete a job if there is one."""
    jobs = session.start_dequeue(1, LEASE.total_seconds(), SQL, client.name).answer()
    if not jobs:
        return False
    session.begin()
    session.start_effect(jobs[0]).answer()
    if session.start_complete(jobs).answer():
        session.commit()
    else:
        session.rollback()
    return True


def conninfo(client: Client) -> str:
    """Return a connection string of libpq."""

    def text(value: str | int | list[str] | list[int]) -> str:
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    names = {"host", "port", "user", "password", "target_session_attrs"}
    named = {name: text(client.dsn[name]) for name in names if name in client.dsn}
    named |= {"dbname": client.dsn["database"], "application_name": client.name}
    return " ".join(f"{name}='{value}'" for name, value in named.items())


async def use_release(client: Client) -> None:
    """Enqueue, claim, renew, release, fail and complete by the statements of the last release."""
    text = (Path(__file__).parents[1] / "python/released/0.1.0.json").read_text(encoding="utf-8")
    statements: dict[str, str] = json.loads(text)
    ask = {
        name.removeprefix("pgq."): statement.replace("@", "")
        for name, statement in statements.items()
    }
    number = 0
    while not client.ended.is_set():
        with contextlib.suppress(*_GONE):
            connection: Connection = await asyncpg.connect(**client.dsn, timeout=_PATIENCE)
            while not client.ended.is_set():
                number += 1
                await use_once(client, connection, ask, number)
                await client.rest(1 / client.rate)
            await connection.close()
        await client.rest()


async def use_once(
    client: Client, connection: Connection, ask: dict[str, str], number: int
) -> None:
    """Enqueue a job, claim one, and give it back, let it fail or complete it."""
    payload = json.dumps({"mark": f"{client.name}-{number}"})
    await connection.fetch(
        ask["ENQUEUE"], payload, PLAIN, 0, *[None] * 5, "keep", None, None, "die"
    )
    for job in await connection.fetch(ask["DEQUEUE"], 1, LEASE, PLAIN, client.name):
        receipt = job["id"], job["token"]
        await connection.fetch(ask["HEARTBEAT_MANY"], [job["id"]], [job["token"]], LEASE, None)
        if number % 5 == 0:
            await connection.fetch(ask["RELEASE"], *receipt, timedelta(0))
        elif number % 5 == 1:
            await connection.fetch(ask["FAIL"], *receipt, "x", timedelta(0), True, False)
        else:
            await connection.fetch(ask["COMPLETE"], *receipt, None)


Role: TypeAlias = Callable[[Client], Awaitable[None]]
ROLES: Final[dict[str, Role]] = {
    "produce": produce,
    "work": work,
    "consume": consume,
    "released": use_release,
}


async def main(role: str, *arguments: str) -> None:
    """Play a role until SIGTERM."""
    client = Client(*arguments)
    if role != "work":  # a worker hears it by itself
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.ended.set)
    await ROLES[role](client)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
