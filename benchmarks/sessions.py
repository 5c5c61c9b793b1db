"""Enqueues through a session of SQLAlchemy, beside those on a bare connection.

    PYTHONPATH=tools .venv/bin/python -m benchmarks.sessions [--rounds 10]

One client, on one private server, in three ways: many enqueues in one transaction; a request, that
is a transaction that writes a row and enqueues a job; and the same without the job. Both sides take
turns. The figures are medians over the rounds, and the last one is the median of their ratios.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pgq
from pginstall import install
from pgserver import Server
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

INSERT = "insert into orders (total) values ($1)"
NUMBER = 1000

Way = Callable[[], Awaitable[object]]
Sessions = async_sessionmaker[Any]


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    """A row of the application."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


@pgq.task("default")
async def send(job: pgq.Job[dict[str, int]]) -> None:
    """Stand for a task of the application."""


def bare(pool: "asyncpg.Pool[Any]") -> list[Way]:
    """Return the three ways on a bare connection."""

    async def enqueues() -> None:
        async with pool.acquire() as connection, connection.transaction():
            for number in range(NUMBER):
                await send.enqueue({"n": number}, connection=connection)

    async def requests() -> None:
        for number in range(NUMBER):
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(INSERT, number)
                await send.enqueue({"n": number}, connection=connection)

    async def alone() -> None:
        for number in range(NUMBER):
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(INSERT, number)

    return [enqueues, requests, alone]


def in_session(sessions: Sessions) -> list[Way]:
    """Return the same in sessions."""

    async def enqueues() -> None:
        async with sessions.begin() as session:
            for number in range(NUMBER):
                await send.enqueue({"n": number}, session=session)

    async def requests() -> None:
        for number in range(NUMBER):
            async with sessions.begin() as session:
                session.add(Order(total=number))
                await send.enqueue({"n": number}, session=session)

    async def alone() -> None:
        for number in range(NUMBER):
            async with sessions.begin() as session:
                session.add(Order(total=number))

    return [enqueues, requests, alone]


async def speed(way: Way) -> float:
    """Return how often it does its work a second."""
    began = time.perf_counter()
    await way()
    return NUMBER / (time.perf_counter() - began)


async def run(server: Server, rounds: int) -> None:
    """Measure, and print a table."""
    arguments: dict[str, Any] = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "database": server.database,
    }
    engine = create_async_engine("postgresql+asyncpg://", connect_args=arguments)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with asyncpg.create_pool(**arguments) as pool:
        print(f"{'a second':24}{'bare':>8}{'session':>9}{'share':>7}")
        pairs = zip(bare(pool), in_session(async_sessionmaker(engine)), strict=True)
        names = ["enqueues", "requests with a job", "requests without it"]
        for name, (one, other) in zip(names, pairs, strict=True):
            rates = [(await speed(one), await speed(other)) for _ in range(rounds)]
            bares, sessions = (statistics.median(column) for column in zip(*rates, strict=True))
            share = statistics.median(session / base for base, session in rates)
            print(f"{name:24}{bares:8.0f}{sessions:9.0f}{share:7.2f}", flush=True)
    await engine.dispose()


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with Server() as server:
        install(server)
        asyncio.run(run(server, options.rounds))


if __name__ == "__main__":
    main()
