"""Shows pgq at work on real files, with workers that are killed and stopped in the middle.

The files of the running Python's standard library become rows of `document`, and each gets a job
in the transaction that inserts it; some of these transactions are rolled back and done again. Four
worker processes write the results, each batch in the transaction that completes its jobs. One of
them is killed while it holds jobs; one is stopped for so long that others get its jobs, and then
goes on. At the end every result is computed again, here. With --serve the dashboard shows what has
happened, until Ctrl-C. PGHOST and so on lead to the database.
"""

import asyncio
import hashlib
import os
import signal
import sys
import sysconfig
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeAlias

import asyncpg
import pgq

LIBRARY: Final = Path(sysconfig.get_path("stdlib"))
QUEUE: Final = "documents"
WORKERS: Final = [f"worker {number}" for number in range(1, 5)]
FILES_PER_TRANSACTION: Final = 300
BATCH: Final = 20
LEASE: Final = timedelta(seconds=3)
PATIENCE_SECONDS: Final = 300.0
BAR_WIDTH: Final = 50

TABLES: Final = """
    create table document (id bigint generated always as identity primary key, path text not null);
    create table result (  -- without a unique key: work that was done twice would be seen twice
        document_id bigint not null references document, sha256 text not null,
        lines bigint not null, bytes bigint not null, attempt integer not null,
        worker text not null, done_at timestamptz not null default clock_timestamp());
    create table refusal (document_id bigint not null references document, worker text not null);
"""

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


def measure(path: str) -> tuple[str, int, int]:
    """Return SHA-256, number of lines and number of bytes of a file below `LIBRARY`."""
    content = (LIBRARY / path).read_bytes()
    return hashlib.sha256(content).hexdigest(), content.count(b"\n"), len(content)


# A worker process


async def work(name: str) -> None:
    """Claim and measure files until SIGTERM.

    The jobs end in the transaction that writes the results, and what it is too late for is not
    written: others have it. `pgq.Worker` does as much; this loop shows what lies below it.
    """
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    connection: Connection = await asyncpg.connect(server_settings={"application_name": name})
    queue = pgq.Queue(connection, QUEUE)
    while not stopping.is_set():
        jobs = await queue.dequeue(BATCH, LEASE, worker=name)
        if not jobs:
            await asyncio.sleep(0.02)
            continue
        found = {job.id: (job.payload["document"], *measure(job.payload["path"])) for job in jobs}
        async with connection.transaction():
            completed = set(await queue.complete_many(jobs))
            await connection.executemany(
                "insert into result (document_id, sha256, lines, bytes, attempt, worker)"
                " values ($1, $2, $3, $4, $5, $6)",
                [(*found[job.id], job.attempt, name) for job in jobs if job.id in completed],
            )
            await connection.executemany(
                "insert into refusal (document_id, worker) values ($1, $2)",
                [(found[job.id][0], name) for job in jobs if job.id not in completed],
            )
    await connection.close()


# The process that watches and disturbs them


async def main(*, serves: bool) -> int:
    """Run the demo, and then the dashboard if it `serves`; return the exit status."""
    connection: Connection = await asyncpg.connect()
    await connection.execute("create extension if not exists pgq")
    await connection.execute(TABLES)
    queue, admin = pgq.Queue(connection, QUEUE), pgq.Admin(connection)
    await admin.create_queue(QUEUE)
    await admin.pause(QUEUE)  # until all workers are there
    files = find_files()
    rolled_back = await enqueue(connection, queue, files)
    print(f"{len(files)} files of {LIBRARY}, {rolled_back} of them enqueued again after a rollback")
    workers = {
        name: await asyncio.create_subprocess_exec(
            sys.executable, __file__, name, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        )
        for name in WORKERS
    }
    try:
        await watch(connection, queue, workers, len(files))
        failure = None
    except TimeoutError as error:
        failure = str(error)
    finally:
        for process in workers.values():
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        ends = [await process.wait() for process in workers.values()]
    faults = await report(connection, rolled_back)
    await connection.close()
    if failure is None and ends != [-signal.SIGKILL, 0, 0, 0]:
        failure = f"the workers ended with {ends}"
    if failure is not None:
        print(f"FAILED: {failure}")
    shown = await show() if serves else 0
    return 1 if faults or failure else shown


async def show(*options: str) -> int:
    """Serve the dashboard until a signal comes, and return 0; its exit status if it ends before."""
    say("What has happened, in a browser, until Ctrl-C:")
    dashboard = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pgq", "dashboard", *options
    )
    told = asyncio.Event()

    def end(number: int) -> None:
        told.set()
        dashboard.send_signal(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    status = await dashboard.wait()
    return 0 if told.is_set() else status


def find_files() -> list[str]:
    """Return the paths of all files of the standard library, below `LIBRARY`."""
    paths = (path.relative_to(LIBRARY) for path in LIBRARY.rglob("*") if path.is_file())
    return sorted(
        path.as_posix() for path in paths if path.parts[0] not in ("site-packages", "dist-packages")
    )


async def enqueue(connection: Connection, queue: pgq.Queue, files: Sequence[str]) -> int:
    """Insert rows and jobs together; return for how many that was rolled back at first."""
    rolled_back = 0
    for start in range(0, len(files), FILES_PER_TRANSACTION):
        paths = files[start : start + FILES_PER_TRANSACTION]
        if start // FILES_PER_TRANSACTION % 3 == 1:
            transaction = connection.transaction()
            await transaction.start()
            await insert(connection, queue, paths)
            await transaction.rollback()
            rolled_back += len(paths)
        async with connection.transaction():
            await insert(connection, queue, paths)
    return rolled_back


async def insert(connection: Connection, queue: pgq.Queue, paths: Sequence[str]) -> None:
    """Insert a row and a job for every path."""
    rows = await connection.fetch(
        "insert into document (path) select unnest($1::text[]) returning id, path", paths
    )
    await queue.enqueue_many([{"document": row["id"], "path": row["path"]} for row in rows])


async def watch(
    connection: Connection, queue: pgq.Queue, workers: Mapping[str, Process], total: int
) -> None:
    """Let the workers work, and disturb them, until every document has a result."""

    async def are_connected() -> bool:
        rows = await connection.fetch("select application_name from pg_stat_activity")
        return {row["application_name"] for row in rows} >= workers.keys()

    def have_done(goal: int) -> Callable[[], Awaitable[bool]]:
        async def condition() -> bool:
            done: int = await connection.fetchval("select count(distinct document_id) from result")
            show_progress(done, total)
            return done >= goal

        return condition

    async def is_refused() -> bool:
        return bool(await connection.fetchval("select exists (select from refusal)"))

    killed, stopped = WORKERS[:2]
    await until(are_connected)
    await pgq.Admin(connection).resume(QUEUE)
    await until(have_done(total // 4))
    await stop_with_jobs(connection, killed, workers[killed])
    workers[killed].kill()
    say(f"{killed} is killed while it holds jobs (SIGKILL)")
    await until(have_done(total // 2))
    await stop_with_jobs(connection, stopped, workers[stopped])
    say(f"{stopped} is stopped while it holds jobs (SIGSTOP), longer than their lease of {LEASE}")
    await until(have_done(total))
    workers[stopped].send_signal(signal.SIGCONT)
    say(f"{stopped} goes on, too late")
    await until(is_refused)


async def stop_with_jobs(connection: Connection, name: str, process: Process) -> None:
    """Stop a worker between a claim and its completion, which the server knows.

    There are plenty of jobs left when this is called, so the claim has got some.
    """
    while True:
        process.send_signal(signal.SIGSTOP)
        while True:
            row = await connection.fetchrow(
                "select state, query from pg_stat_activity where application_name = $1", name
            )
            if row is None:
                raise TimeoutError(f"{name} has gone")
            if row["state"] != "active":
                break
        if row["state"] == "idle" and "pgq_dequeue" in row["query"]:
            return
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.001)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition, but not for ever."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the workers did not get on")
        await asyncio.sleep(0.005)


async def report(connection: Connection, rolled_back: int) -> int:
    """Compute every result again, print the table, and return the number of faults."""
    paths = {row["id"]: row["path"] for row in await connection.fetch("select * from document")}
    results = await connection.fetch("select * from result")
    refusals = await connection.fetchval("select count(*) from refusal")
    times = Counter(row["document_id"] for row in results)
    lost = len(paths.keys() - times.keys())
    twice = sum(count - 1 for count in times.values())
    wrong = sum(
        (row["sha256"], row["lines"], row["bytes"]) != measure(paths[row["document_id"]])
        for row in results
    )
    undisturbed = [row["done_at"] for row in results if row["attempt"] == 1]
    seconds = (max(undisturbed) - min(undisturbed)).total_seconds()
    table = {
        "jobs": len(paths),
        "jobs/s": round(len(undisturbed) / seconds),
        "rolled back": rolled_back,
        "reclaimed": sum(row["attempt"] - 1 for row in results),
        "stale completions refused": refusals,
        "lost": lost,
        "done twice": twice,
        "results that differ": wrong,
    }
    print("\n".join(f"{name:26}{value:>8}" for name, value in table.items()))
    return lost + twice + wrong


def show_progress(done: int, total: int) -> None:
    """Draw the progress bar over the last one, where there is a terminal."""
    if sys.stdout.isatty():
        print(f"\r[{'#' * (BAR_WIDTH * done // total):{BAR_WIDTH}}] {done}/{total}", end="")
        sys.stdout.flush()


def say(text: str) -> None:
    """Print a line, in the place of the progress bar."""
    print(f"\r{text:{BAR_WIDTH + 20}}" if sys.stdout.isatty() else text, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] != "--serve":
        asyncio.run(work(sys.argv[1]))
    else:
        raise SystemExit(asyncio.run(main(serves=len(sys.argv) > 1)))
