"""A recorded client that speaks plain SQL through psql, one process for each session."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .record import Recorder

PATIENCE: Final = 300.0  # seconds without an answer after which a session counts as hung

_END: Final = "-- end --"
_JOB: Final = """json_build_object('id', id, 'token', token, 'mark', payload->>'mark',
    'priority', priority, 'group', group_key, 'attempt', attempt,
    'expires', extract(epoch from lease_expires_at))"""

_WAITS: Final = """select coalesce(json_agg(json_build_object('backend', pid, 'by', by)), '[]')
    from pg_stat_activity, pg_blocking_pids(pid) as by
    where datname = current_database() and cardinality(by) > 0"""


class SqlError(Exception):
    """The server refused a statement."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class ConnectionLostError(Exception):
    """The session has ended, and no answer will come."""


class Psql:
    """A session of psql that runs one statement at a time.

    Args:
        environment: has the variables of libpq, and psql in its PATH.
        dsn: a connection string; by default the variables say where to.
        setup: SQL that the session runs first.
        patience: seconds without an answer after which the session counts as hung.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        dsn: str = "",
        setup: str = "",
        patience: float = PATIENCE,
    ) -> None:
        self._patience = patience
        self._process = subprocess.Popen(
            ["psql", "-X", "-q", "-A", "-t", *([dsn] if dsn else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._rest = b""
        if setup:
            self.run(setup)
        self.pid = int(self.run("select pg_backend_pid()")[0])

    def send(self, sql: str) -> None:
        """Send a statement without waiting for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{sql};\n\\echo '{_END}' :SQLSTATE\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ConnectionLostError from error

    def receive(self) -> list[str]:
        """Wait for the answer, and return its lines."""
        lines: list[str] = []
        while not (line := self._line()).startswith(_END):
            lines.append(line)
        if (sqlstate := line.split()[-1]) != "00000":
            raise SqlError(sqlstate)
        return lines

    def has_answered(self) -> bool:
        """Tell whether `receive` has something to read."""
        assert self._process.stdout is not None
        return bool(self._rest or select.select([self._process.stdout], [], [], 0)[0])

    def run(self, sql: str) -> list[str]:
        """Run a statement, and return the lines of its answer."""
        self.send(sql)
        return self.receive()

    @property
    def is_closed(self) -> bool:
        """Whether the session has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the session, whatever it is doing."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + self._patience
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
            if not ready:
                raise TimeoutError(f"psql gave no answer within {self._patience} s")
            if not (read := os.read(descriptor, 1 << 16)):
                raise ConnectionLostError
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()


class Pending:
    """A recorded call whose answer is still to come."""

    def __init__(self, client: Client, number: int, sql: str) -> None:
        self._client = client
        self._number = number
        try:
            client.psql.send(sql)
        except ConnectionLostError:
            client.recorder.lost(number)
            raise

    def is_answered(self) -> bool:
        """Tell whether the answer is there, or at least begins to come."""
        return self._client.psql.has_answered()

    def answer(self) -> Any:
        """Wait for the answer, write it into the history, and return it."""
        recorder = self._client.recorder
        try:
            lines = self._client.psql.receive()
        except SqlError as error:
            recorder.error(self._number, error.sqlstate)
            raise
        except (ConnectionLostError, TimeoutError):
            recorder.lost(self._number)
            raise
        answer = json.loads(lines[0]) if lines and lines[0] else None
        recorder.answer(self._number, answer)
        return answer


class Client:
    """What a program does with the queue, recorded. Each method waits; `start` does not."""

    def __init__(
        self,
        recorder: Recorder,
        environment: Mapping[str, str] | None = None,
        dsn: str = "",
        setup: str = "",
        patience: float = PATIENCE,
    ) -> None:
        self.recorder = recorder
        self.psql = Psql(environment, dsn, setup, patience)
        self.session = recorder.session()
        self._transactions = 0
        self._tx: int | None = None
        recorder.note("session", session=self.session, backend=self.psql.pid)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction block is open."""
        return self._tx is not None

    def start(self, do: str, args: dict[str, Any], sql: str) -> Pending:
        """Send a call, and return what waits for its answer; the SQL returns one JSON value."""
        number = self.recorder.call(do, args, self.session, self._tx)
        return Pending(self, number, sql)

    def begin(self) -> None:
        """Begin a transaction block."""
        self._transactions += 1
        self._tx = self._transactions
        self.start("begin", {}, "begin").answer()

    def commit(self) -> None:
        """Commit the transaction block."""
        pending = self.start("commit", {}, "commit")
        self._tx = None
        pending.answer()

    def rollback(self) -> None:
        """Roll the transaction block back."""
        pending = self.start("rollback", {}, "rollback")
        self._tx = None
        pending.answer()

    def start_enqueue(
        self,
        marks: Sequence[str],
        queue: str = "default",
        *,
        priority: int = 0,
        delay: float | None = None,
        groups: Sequence[str | None] | None = None,
        keys: Sequence[str | None] | None = None,
    ) -> Pending:
        """Enqueue a job for each mark, in one call."""
        args = {"marks": [*marks], "queue": queue, "priority": priority, "delay": delay}
        args |= {"groups": groups, "keys": keys}
        run_at = "null" if delay is None else f"clock_timestamp() + interval '{delay} s'"
        payloads = _array([json.dumps({"mark": mark}) for mark in marks], "jsonb")
        sql = f"""select json_agg(id order by place) from pgq_enqueue_many({payloads},
            {_text(queue)}, {priority}, {run_at}, {_array(keys, "text")}, {_array(groups, "text")})
            with ordinality as e (id, place)"""
        return self.start("enqueue", args, sql)

    def start_dequeue(
        self, batch: int = 1, timeout: float = 30.0, queue: str = "default", worker: str = "w"
    ) -> Pending:
        """Claim jobs, and lease them for so many seconds."""
        args = {"batch": batch, "timeout": timeout, "queue": queue, "worker": worker}
        call = f"pgq_dequeue({batch}, '{timeout} s', {_text(queue)}, {_text(worker)})"
        return self.start("dequeue", args, _jobs(call))

    def start_pop(self, batch: int = 1, queue: str = "default") -> Pending:
        """Remove jobs in this transaction."""
        call = f"pgq_pop({batch}, {_text(queue)})"
        return self.start("pop", {"batch": batch, "queue": queue}, _jobs(call))

    def start_complete(self, jobs: Sequence[Mapping[str, Any]]) -> Pending:
        """Complete jobs that `dequeue` returned."""
        args = _receipts(jobs)
        call = f"pgq_complete({_numbers(args['ids'])}, {_numbers(args['tokens'])})"
        return self.start("complete", args, f"select {_list('id')} from {call} as id")

    def start_heartbeat(self, jobs: Sequence[Mapping[str, Any]], timeout: float) -> Pending:
        """Renew leases for so many seconds."""
        args: dict[str, Any] = {**_receipts(jobs), "timeout": timeout}
        call = f"pgq_heartbeat({_numbers(args['ids'])}, {_numbers(args['tokens'])}, '{timeout} s')"
        pair = "json_build_array(id, extract(epoch from lease_expires_at))"
        return self.start("heartbeat", args, f"select {_list(pair)} from {call}")

    def start_fail(
        self, job: Mapping[str, Any], retry_in: float = 0.0, *, retryable: bool = True
    ) -> Pending:
        """Fail an attempt."""
        call = f"pgq_fail({job['id']}, {job['token']}, 'x', '{retry_in} s', {retryable})"
        return self.start("fail", _receipts([job]), f"select to_json({call})")

    def start_release(self, job: Mapping[str, Any], delay: float = 0.0) -> Pending:
        """Give a job back."""
        call = f"pgq_release({job['id']}, {job['token']}, '{delay} s')"
        sql = f"select case when {call} then json_build_array({job['id']}) else '[]' end"
        return self.start("release", _receipts([job]), sql)

    def start_effect(self, job: Mapping[str, Any]) -> Pending:
        """Write the effect of a job."""
        sql = f"insert into effect (job) values ({job['id']}) returning to_json(job)"
        return self.start("effect", {"job": job["id"]}, sql)

    def start_cancel(self, job_id: int, *, force: bool = False) -> Pending:
        """Cancel a job."""
        args = {"id": job_id, "force": force}
        return self.start("cancel", args, f"select to_json(pgq_cancel({job_id}, {force}))")

    def start_purge(self, queue: str, states: Sequence[str]) -> Pending:
        """Delete jobs in these states."""
        args = {"queue": queue, "states": [*states]}
        call = f"pgq_purge({_text(queue)}, {_array(states, 'text')})"
        return self.start("purge", args, f"select to_json({call})")

    def start_sample(self) -> Pending:
        """Look who waits for whom."""
        return self.start("sample", {}, _WAITS)

    def configure(self, queue: str, *, create: bool = False, **settings: Any) -> None:
        """Create a queue, or change its settings."""
        named = [f"{name} => {_value(value)}" for name, value in settings.items()]
        call = "pgq_create_queue" if create else "pgq_configure_queue"
        sql = f"select to_json({call}({', '.join([_text(queue), *named])})::text)"
        self.start("configure", {"queue": queue, **settings}, sql).answer()

    def close(self) -> None:
        """Cut the session off."""
        self.psql.close()


def _receipts(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"ids": [job["id"] for job in jobs], "tokens": [job["token"] for job in jobs]}


def _jobs(call: str) -> str:
    return f"select {_list(_JOB, 'ordinality')} from {call} with ordinality"


def _list(value: str, order: str = "") -> str:
    by = f" order by {order}" if order else ""
    return f"coalesce(json_agg({value}{by}), '[]')"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _value(value: object) -> str:
    return str(value) if isinstance(value, (bool, int, float)) else _text(str(value))


def _numbers(values: Sequence[int]) -> str:
    return f"'{{{','.join(map(str, values))}}}'::bigint[]"


def _array(values: Sequence[str | None] | None, kind: str) -> str:
    if values is None:
        return "null"
    items = ["null" if value is None else _text(value) for value in values]
    return f"array[{', '.join(items)}]::{kind}[]"
