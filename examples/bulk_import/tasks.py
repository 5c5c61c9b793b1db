"""Imports a CSV file: one job cuts it into chunks, each chunk is a job, a last one ends it all."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import asyncpg
import pgq

CHUNK_BYTES = 256 * 1024
CHUNKS_PER_TRANSACTION = 100

worker_pool: ContextVar[asyncpg.Pool] = ContextVar("worker_pool")


@dataclass(frozen=True)
class Import:
    """A file, where workers can read it."""

    id: int
    path: str


@dataclass(frozen=True)
class Chunk:
    """Whole lines of a file, from one byte to another."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True)
class Checkpoint:
    """How much of a file has jobs: all up to a byte, and whether that is the whole file."""

    offset: int = 0
    done: bool = False


async def start(connection: pgq.Connection, path: Path) -> int:
    """Begin the import of a file, and return its id."""
    async with connection.transaction():
        import_id: int = await connection.fetchval(
            "insert into import (path) values ($1) returning id", str(path)
        )
        await split.enqueue(Import(import_id, str(path)), connection=connection)
    return import_id


@pgq.task("imports")
async def split(job: pgq.Job[Import]) -> None:
    """Enqueue the chunks of a file, and what is to run after all of them.

    The checkpoint is written in the transaction that enqueues: the next attempt goes on where this
    one was killed, and no chunk is enqueued twice.
    """
    at = Checkpoint(**job.checkpoint) if job.checkpoint else Checkpoint()
    chunks = cut(Path(job.payload.path), at.offset)
    while not at.done:
        batch = list(islice(chunks, CHUNKS_PER_TRANSACTION))
        at = Checkpoint(
            offset=batch[-1].stop if batch else at.offset,
            done=len(batch) < CHUNKS_PER_TRANSACTION,
        )
        async with worker_pool.get().acquire() as connection, connection.transaction():
            await add_chunks(connection, job.payload, batch)
            if at.done:
                await add_finish(connection, job.payload)
            if not await split.on(connection).heartbeat(job, checkpoint=asdict(at)):
                raise pgq.LeaseLost("somebody else has this job by now")


async def add_chunks(connection: pgq.Connection, file: Import, chunks: list[Chunk]) -> None:
    """Enqueue chunks and note them for the progress."""
    loads = await load.enqueue_many(chunks, connection=connection)
    await connection.executemany(
        "insert into import_chunk (job, import) values ($1, $2)",
        [(chunk.id, file.id) for chunk in loads],
    )


async def add_finish(connection: pgq.Connection, file: Import) -> None:
    """Enqueue the end; if a chunk dies it waits until that one is retried (`pgq_retry`)."""
    rows = await connection.fetch("select job from import_chunk where import = $1", file.id)
    await finish.enqueue(
        file, connection=connection, after=[row["job"] for row in rows], after_on_dead="wait"
    )


@pgq.task("imports", transaction=True)
async def load(job: pgq.Job[Chunk], connection: pgq.Connection) -> None:
    """Load a chunk, exactly once."""
    rows = await asyncio.to_thread(read, job.payload)
    await connection.copy_records_to_table(
        "product", columns=["sku", "name", "cents"], records=rows
    )
    await connection.execute("update import_chunk set rows = $2 where job = $1", job.id, len(rows))


@pgq.task("imports", transaction=True)
async def finish(job: pgq.Job[Import], connection: pgq.Connection) -> None:
    """End an import, all chunks of which are loaded."""
    await connection.execute("update import set finished_at = now() where id = $1", job.payload.id)


def cut(path: Path, offset: int) -> Iterator[Chunk]:
    """Yield the chunks from a byte on; the first line of the file, its header, is in none.

    Quoted values must not contain line ends: a chunk may begin after any of them.
    """
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        start = file.seek(offset)
        if start == 0:
            file.readline()
            start = file.tell()
        while start < size:
            file.seek(start + CHUNK_BYTES)
            file.readline()
            stop = min(file.tell(), size)
            yield Chunk(str(path), start, stop)
            start = stop


def read(chunk: Chunk) -> list[tuple[str, str, int]]:
    """Return the rows of a chunk."""
    with Path(chunk.path).open("rb") as file:
        file.seek(chunk.start)
        text = file.read(chunk.stop - chunk.start).decode()
    lines = csv.reader(io.StringIO(text, newline=""))
    return [(sku, name, int(cents)) for sku, name, cents in lines]
