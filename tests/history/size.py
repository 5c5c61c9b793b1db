"""Measures whether the tables stay bounded, whatever stays in them and whoever holds the horizon.

A backlog that does not move, a session that holds something, and the traffic of another queue. The
size is compared with what the same backlog takes in a fresh database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .psql import Psql
from .record import Recorder

_CALL: Final = 200  # jobs

_BYTES: Final = """
    select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
     where c.relnamespace = 'pgq'::regnamespace and c.relkind in ('r', 'm')"""
_ADD: Final = """
    select count(*) from pgq_enqueue_many(
        array(select jsonb_build_object('mark', {mark} || n) from generate_series(1, {number}) n),
        '{queue}'{more})"""
# Some jobs fail at first, and are tried again at once.
_SETTLE: Final = """
    with claimed as materialized (
        select id, token, attempt = 1 and id % {fails} = 0 as fails
          from pgq_dequeue({number}, '1 hour', 'traffic')
    ),
    failed as materialized (
        select pgq_fail(id, token, retry_in => '0') from claimed where fails
    ),
    good as (
        select coalesce(array_agg(id), '{{}}') as ids, coalesce(array_agg(token), '{{}}') as tokens
          from claimed where not fails
    )
    select count(*) from good, pgq_complete(ids, tokens)
     where (select count(*) from failed) >= 0"""
_NONE_KEPT: Final = "keep_completed => '0', keep_dead => '0'"


def measure(psql: Psql) -> int:
    """Return the bytes of all tables of pgq, with their indexes."""
    return int(psql.run(_BYTES)[0])


def add(psql: Psql, queue: str, number: int, more: str = "") -> None:
    """Enqueue jobs in calls that do not overfill a slot."""
    mark = f"'{queue}:' || pg_current_xact_id() || ':'"
    for first in range(0, number, _CALL):
        some = min(_CALL, number - first)
        psql.run(
            _ADD.format(mark=mark, queue=queue, number=some, more=more.replace("?", str(some)))
        )
        psql.run("select pgq_maintain()")


def _none(_: Psql, __: int) -> None:
    pass


def _paused(psql: Psql, number: int) -> None:
    psql.run("select pgq_pause('backlog')")
    add(psql, "backlog", number)


def _scheduled(psql: Psql, number: int) -> None:
    add(psql, "backlog", number, ", run_at => clock_timestamp() + interval '1 day'")


def _grouped(psql: Psql, number: int) -> None:
    add(psql, "backlog", 1, ", group_keys => '{g}'")
    psql.run("select count(*) from pgq_dequeue(1, '1 day', 'backlog')")
    add(psql, "backlog", number - 1, ", group_keys => array_fill('g'::text, array[?])")


def _leased(psql: Psql, number: int) -> None:
    add(psql, "backlog", number)
    psql.run(f"select count(*) from pgq_dequeue({number}, '1 day', 'backlog')")


BACKLOGS: Final[dict[str, Callable[[Psql, int], None]]] = {
    "none": _none,
    "paused": _paused,
    "scheduled": _scheduled,
    "grouped": _grouped,
    "leased": _leased,
}
HOLDS: Final = {
    "horizon": "begin isolation level repeatable read; select pg_current_xact_id()",
    # As pg_dump does: it reads all jobs, and keeps its locks.
    "dump": "begin isolation level repeatable read; select count(*) from pgq_jobs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much stays and how much passes."""

    backlog: int
    traffic: int
    batch: int = 200
    fails: int = 5
    """Of so many jobs that pass one fails at first."""
    slot_size: int = 8 << 20
    """Bytes at which a slot is full, which the owner of pgq may set. The slack is 8 of them."""
    pace: float = 0
    """Seconds that a batch takes at least."""


def run(
    recorder: Recorder,
    environment: Mapping[str, str],
    fresh: Mapping[str, str],
    *,
    kind: str,
    hold: str,
    load: Load,
) -> None:
    """Let traffic pass a backlog, and note the sizes of the last fifth, by which it has settled.

    What holds locks as a dump does ends half way. Both databases have pgq and nothing else; in
    `fresh` the backlog is written once.
    """
    setup = f"set pgq.slot_size = {load.slot_size}"
    psql = Psql(environment, setup=setup)
    holder = Psql(environment)
    other = Psql(fresh, setup=setup)
    for session in (psql, other):
        session.run(f"select pgq_create_queue('backlog', {_NONE_KEPT})")
    empty = measure(other)
    # Leases change nothing of what lives: it may have been written once.
    BACKLOGS["paused" if kind == "leased" else kind](other, load.backlog)
    facts = {"fresh": measure(other) - empty, "slack": 8 * load.slot_size}
    psql.run(f"select pgq_create_queue('traffic', {_NONE_KEPT})")
    BACKLOGS[kind](psql, load.backlog)
    holder.run(HOLDS[hold])
    calls = load.traffic // load.batch
    for number in range(calls):
        until = time.monotonic() + load.pace
        _pass(psql, load)
        time.sleep(max(0, until - time.monotonic()))
        if number == calls // 2 and hold == "dump":
            holder.run("commit")
        if number >= calls - calls // 5:
            recorder.note("size", bytes=measure(psql) - empty, **facts)
    recorder.note("final", jobs=0, effects=0)
    for session in (psql, holder, other):
        session.close()


def _pass(psql: Psql, load: Load) -> None:
    """Let jobs of the other queue pass, and run the maintenance that is due."""
    add(psql, "traffic", load.batch)
    settled = 0
    while settled < load.batch:
        settled += int(psql.run(_SETTLE.format(number=load.batch, fails=load.fails))[0])
