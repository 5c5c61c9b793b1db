"""What may happen beside a queue: snapshots that are held, readers, pg_dump, replication slots."""

import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import final

from benchmarks.pgbench import BenchmarkError
from benchmarks.system import Database, load

_SNAPSHOT = "begin isolation level repeatable read;"
_PATIENCE = 30.0

# Seconds from the Unix epoch to that of PostgreSQL.
_EPOCH = 946_684_800


@final
class Session:
    """A session of psql, for transactions that stay open."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, sql: str) -> None:
        """Run statements and wait until they are done; raises `BenchmarkError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{sql}\n\\echo done\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline()).strip() != "done":
            if not line:
                raise BenchmarkError("a session beside the queue has ended")


@contextmanager
def session(database: Database) -> Generator[Session, None, None]:
    """Open a session; what it has not committed at the end of the block is rolled back."""
    with subprocess.Popen(
        [_program(database, "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=database.environment(),
        text=True,
    ) as process:
        try:
            yield Session(process)
        finally:
            process.terminate()


@contextmanager
def held_snapshot(database: Database) -> Generator[None, None, None]:
    """Keep a snapshot while the block runs, which holds the xmin horizon."""
    with session(database) as holder:
        holder.run(f"{_SNAPSHOT} select 1;")
        yield


@contextmanager
def open_transaction(database: Database, sql: str) -> Generator[None, None, None]:
    """Keep a transaction open that has run statements."""
    with session(database) as holder:
        holder.run(f"begin; {sql}")
        yield


@contextmanager
def overlapping_readers(
    database: Database, sql: str, *, seconds: float, count: int = 4
) -> Generator[None, None, None]:
    """Let readers begin one after the other, each keeping its snapshot for so many seconds."""
    ended, failed = threading.Event(), threading.Event()
    with ExitStack() as stack:
        readers = [stack.enter_context(session(database)) for _ in range(count)]

        def read() -> None:
            turn = 0
            try:
                for reader in readers:
                    reader.run(f"set client_min_messages = error; {_SNAPSHOT} {sql}")
                while not ended.wait(seconds / count):
                    readers[turn % count].run(f"commit; {_SNAPSHOT} {sql}")
                    turn += 1
            except (BenchmarkError, OSError):
                failed.set()

        thread = threading.Thread(target=read, name="readers")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
    if failed.is_set():
        raise BenchmarkError("the readers have ended early")


@contextmanager
def running_dump(database: Database) -> Generator[None, None, None]:
    """Keep pg_dump running by not reading what it writes."""
    # More than a pipe holds, so that the dump cannot end.
    database.psql(
        "create table public.ballast as select repeat('x', 100) from generate_series(1, 20000)"
    )
    with subprocess.Popen(
        [_program(database, "pg_dump")],
        stdout=subprocess.PIPE,
        env=database.environment(),
    ) as dump:
        assert dump.stdout is not None
        try:
            # What can be read is written after all locks were taken.
            if not select.select([dump.stdout], [], [], _PATIENCE)[0] or dump.poll() is not None:
                raise BenchmarkError("pg_dump did not begin")
            yield
            if dump.poll() is not None:
                raise BenchmarkError("pg_dump has ended early")
        finally:
            dump.kill()


@contextmanager
def idle_slot(database: Database) -> Generator[None, None, None]:
    """Keep an idle replication slot that holds the xmin horizon.

    A slot does so after a standby with hot_standby_feedback has used it; here a client says once
    what such a standby would. Raises `UnavailableError` without psycopg.
    """
    database.psql("select pg_create_physical_replication_slot('bench', true)")
    try:
        _send_feedback(database)
        yield
        if database.psql(_SLOT) != "t":
            raise BenchmarkError("the replication slot holds no xmin any more")
    finally:
        # The sender may not have noticed yet that its client is gone.
        database.psql(
            "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where active;"
            " select pg_drop_replication_slot(slot_name) from pg_replication_slots"
        )


_SLOT = "select xmin is not null and not active from pg_replication_slots where slot_name = 'bench'"


def _send_feedback(database: Database) -> None:
    pq = load("psycopg.pq")
    start, xid = database.psql(
        "select restart_lsn || '|' || pg_current_xact_id()"
        " from pg_replication_slots where slot_name = 'bench'"
    ).split("|")
    connection = pq.PGconn.connect(f"{database.dsn}&replication=true".encode())
    try:
        connection.exec_(f"START_REPLICATION SLOT bench PHYSICAL {start}".encode())
        now = int((time.time() - _EPOCH) * 1e6)
        epoch, xmin = divmod(int(xid), 2**32)
        connection.put_copy_data(struct.pack("!cqIIII", b"h", now, xmin, epoch, 0, 0))
        connection.flush()
        deadline = time.monotonic() + _PATIENCE
        while database.psql(_SLOT.replace("not active", "true")) != "t":
            if time.monotonic() > deadline:
                raise BenchmarkError("the replication slot does not hold an xmin")
            time.sleep(0.05)
    finally:
        connection.finish()


def _program(database: Database, name: str) -> str:
    program = shutil.which(name, path=database.environment()["PATH"])
    if program is None:
        raise BenchmarkError(f"no {name} found")
    return program
