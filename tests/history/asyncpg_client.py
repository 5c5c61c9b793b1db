"""An asyncpg connection that records the calls of pgq which are sent on it, whoever sends them.

    pool = await asyncpg.create_pool(dsn, connection_class=recorded(recorder))

A `pgq.Worker` with such a pool is recorded whole: its claims, outcomes, heartbeats (on a connection
of their own, which it opens like the pool's) and the transactions of its handlers.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import asyncpg

from .record import Recorder

if TYPE_CHECKING:
    Base = asyncpg.Connection[Any]
else:
    Base = asyncpg.Connection

# Statement -> name in the history. Reads and waits are not recorded: nothing is judged of them.
_CALLS: Final = {
    "enqueue": "enqueue",
    "enqueue_many": "enqueue",
    "dequeue": "dequeue",
    "pop": "pop",
    "claim": "claim",
    "complete": "complete",
    "complete_and_dequeue": "complete_and_dequeue",
    "heartbeat": "heartbeat",
    "fail": "fail",
    "release": "release",
    "release_unheld": "release_unheld",
    "reclaim": "reclaim",
    "cancel": "cancel",
    "retry": "retry",
    "retry_dead": "retry_dead",
    "purge": "purge",
    "create_queue": "configure",
    "configure_queue": "configure",
    "pause": "pause",
    "resume": "resume",
}
_FUNCTION: Final = re.compile(r"pgq_(\w+)\(")
_ARGUMENT: Final = re.compile(r"\b(\w+) => [^$]*?\$(\d+)")
_JOBS: Final = ("dequeue", "pop", "claim", "complete_and_dequeue")


_SINGLE: Final = ("id", "token")


def recorded(recorder: Recorder) -> type[Base]:
    """Return a class of connections whose calls go into the history."""

    class Recorded(Base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.pgq_session = recorder.session()
            self.pgq_transactions = 0
            self.pgq_tx: int | None = None
            backend = self.get_server_pid()
            recorder.note("session", session=self.pgq_session, backend=backend)

        async def fetch(self, query: str, *args: Any, **kwargs: Any) -> Any:
            if (call := _read(query, args)) is None:
                return await super().fetch(query, *args, **kwargs)
            do, arguments = call
            number = recorder.call(do, arguments, self.pgq_session, self.pgq_tx)
            with _failures(recorder, number):
                rows = await super().fetch(query, *args, **kwargs)
            recorder.answer(number, _answer(do, arguments, rows))
            return rows

        async def execute(self, query: str, *args: Any, **kwargs: Any) -> Any:
            if (call := self._control(query, args)) is None:
                return await super().execute(query, *args, **kwargs)
            do, arguments, tx = call
            number = recorder.call(do, arguments, self.pgq_session, tx)
            with _failures(recorder, number):
                answer = await super().execute(query, *args, **kwargs)
            recorder.answer(number, answer)
            return answer

        def _control(
            self, query: str, args: Sequence[Any]
        ) -> tuple[str, dict[str, Any], int | None] | None:
            """Return what to record of a statement that is no call of a function."""
            words = re.findall(r"\w+", query.lower())
            match words[:2]:
                case ["begin", *_]:
                    self.pgq_transactions += 1
                    self.pgq_tx = self.pgq_transactions
                    return "begin", {}, self.pgq_tx
                case ["commit" | "rollback" as word, *rest] if rest != ["to"]:
                    tx, self.pgq_tx = self.pgq_tx, None
                    return word, {}, tx
                case ["insert", "into"] if words[2] == "effect":
                    return "effect", {"job": args[0]}, self.pgq_tx
                case _:
                    return None

    return Recorded


@contextlib.contextmanager
def _failures(recorder: Recorder, number: int) -> Generator[None]:
    try:
        yield
    except asyncpg.PostgresError as error:
        recorder.error(number, error.sqlstate or "XX000")
        raise
    except BaseException:
        recorder.lost(number)
        raise


def _read(query: str, args: Sequence[Any]) -> tuple[str, dict[str, Any]] | None:
    """Return what a statement does, and its arguments as the history has them."""
    function = _FUNCTION.search(query)
    if function is None or (do := _CALLS.get(function[1])) is None:
        return None
    named = {name: args[int(place) - 1] for name, place in _ARGUMENT.findall(query)}
    given = {name: _plain(value) for name, value in named.items()}
    if do == "enqueue":
        payloads = named["payloads"] if "payloads" in named else [named["payload"]]
        delay = args[12] if len(args) > 12 else None  # the bindings' own argument
        return do, {
            "marks": [_mark(payload) for payload in payloads],
            "queue": named["queue"],
            "priority": named["priority"],
            "delay": given["run_at"] if delay is None else delay.total_seconds(),
            "groups": _each(named, "group_key"),
            "keys": _each(named, "dedupe_key"),
            "after": named["after"],
        }
    if all(name in given for name in _SINGLE) and do != "claim":
        given["ids"], given["tokens"] = [given.pop("id")], [given.pop("token")]
    if do == "configure":
        given["queue"] = given.pop("name")
    if "'synchronous_commit'" in query:
        given["durable"] = False
    for dropped in ("results", "result", "checkpoint", "checkpoints", "error"):
        given.pop(dropped, None)
    return do, given


def _each(named: Mapping[str, Any], name: str) -> Any:
    if f"{name}s" in named:
        return named[f"{name}s"]
    return None if named[name] is None else [named[name]]


def _mark(payload: str | None) -> Any:
    """Return the mark in a payload; jobs of others have none."""
    value: Any = None if payload is None else json.loads(payload)
    return cast("dict[str, Any]", value).get("mark") if isinstance(value, dict) else None


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.timestamp() if isinstance(value, datetime) else value


def _answer(do: str, args: Mapping[str, Any], rows: Sequence[asyncpg.Record]) -> Any:
    if do in _JOBS:
        return [_job(row) for row in rows]
    if do == "heartbeat" and rows and len(rows[0]) > 1:
        return [[row["id"], row["lease_expires_at"].timestamp()] for row in rows]
    answers = [row[0] for row in rows]
    if do == "heartbeat":
        return [] if answers in ([], [None]) else [[args["ids"][0], answers[0].timestamp()]]
    if do in ("complete", "release") and answers in ([True], [False], [None]):
        return args["ids"] if answers[0] else []
    if do in ("fail", "cancel", "retry", "purge", "configure", "pause", "resume"):
        return answers[0]
    return answers


def _job(row: asyncpg.Record) -> dict[str, Any]:
    expires = row["lease_expires_at"]
    return {
        "id": row["id"],
        "token": row["token"],
        "mark": _mark(row["payload"]),
        "priority": row["priority"],
        "group": row["group_key"],
        "attempt": row["attempt"],
        "expires": None if expires is None else _seconds(expires),
    }


def _seconds(time: int | datetime) -> float:
    """Return the seconds since 1970 of a time; the bindings ask for microseconds."""
    return time.timestamp() if isinstance(time, datetime) else time / 1e6  # a time: as 0.1.0 does
