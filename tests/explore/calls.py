"""The vocabulary: for each call its SQL, how its answer is read, and the rule of the model for it.

`$q` is the queue, `$ids` and `$tokens` are the receipts of the named jobs, `$id` and `$token` those
of the first; `$payloads` are the names, and a word in capitals is an option. Calls without a rule
begin and end transactions; `check.py` knows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import rules
from .model import World
from .rules import Answer, Call, Claimed, Rule

Rows = Sequence[Sequence[Any]]


class Names(Protocol):
    """What a run knows of the jobs: their names by id."""

    def name(self, job: int, payload: str | None = None) -> str:
        """Return the name of a job."""
        ...


Read = Callable[[Rows, Names], Answer]


def one(rows: Rows, _names: Names) -> Answer:
    """Return the only value; an empty text is what functions without a result return."""
    return None if rows[0][0] == "" else rows[0][0]


def names(rows: Rows, known: Names) -> Answer:
    """Return ids as names."""
    return tuple(known.name(row[0]) for row in rows)


def added(rows: Rows, known: Names) -> Answer:
    """Return names with their ids; a new id gets the name that was asked for."""
    return tuple((known.name(row[0], row[1]), row[0]) for row in rows)


def claimed(rows: Rows, known: Names) -> Answer:
    """Return what a claim has leased."""
    return tuple(Claimed(known.name(row[0], row[1]), row[2], row[3]) for row in rows)


def pairs(rows: Rows, known: Names) -> Answer:
    """Return names with a value."""
    return tuple((known.name(row[0]), row[1]) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a call is made and explained."""

    sql: str
    read: Read = one
    rule: Rule | None = None
    defaults: Mapping[str, str] = field(default_factory=dict[str, str])
    waits: bool = False  # it may wait for transactions that touch what it concerns
    everything: bool = False  # it concerns all jobs of the queue
    bounded: bool = False  # it waits for a while only: the scheduler lets it
    alone: bool = False  # it does not go into a transaction block


MS = "(extract(epoch from {}) * 1000)::bigint"
JOB = f"id, payload #>> '{{}}', token, {MS.format('lease_expires_at')}"
LEASE = "(FOR * interval '1 ms')"
AT = "case when IN > 0 then pgq._now() + IN * interval '1 ms' end"

ENQUEUE = f"""
select e, p from unnest($payloads) p, lateral pgq_enqueue(
    to_jsonb(p), $q, PRIO, {AT}, KEY, GROUP,
    on_duplicate => DUP, after => $after, after_on_dead => ON_DEAD) e
"""
ENQUEUE_MANY = f"""
select e, p from rows from (
    unnest($payloads),
    pgq_enqueue_many(array(select to_jsonb(p) from unnest($payloads) p), $q, PRIO, {AT},
        array_fill(KEY, array[cardinality($payloads)]),
        array_fill(GROUP, array[cardinality($payloads)]))
) r(p, e)
"""
ADDED = {"prio": "0", "in": "0", "key": "", "group": "", "dup": "keep", "on_dead": "die"}
LEASED = {"for": "60000", "batch": "1"}
HEARTBEAT = f"""
select id, {MS.format("lease_expires_at")}
  from pgq_heartbeat($ids, $tokens) where lease_expires_at is not null
"""

KINDS: dict[str, Kind] = {
    "enqueue": Kind(sql=ENQUEUE, read=added, rule=rules.enqueue, defaults=ADDED),
    "enqueue_many": Kind(sql=ENQUEUE_MANY, read=added, rule=rules.enqueue, defaults=ADDED),
    "dequeue": Kind(
        sql=f"select {JOB} from pgq_dequeue(BATCH, {LEASE}, $q)",
        read=claimed,
        rule=rules.dequeue,
        defaults=LEASED,
        everything=True,
    ),
    "pop": Kind(
        sql=f"select {JOB} from pgq_pop(BATCH, $q)",
        read=claimed,
        rule=rules.pop,
        defaults=LEASED,
        everything=True,
    ),
    "claim": Kind(
        sql=f"select {JOB} from pgq_claim($id, {LEASE})",
        read=claimed,
        rule=rules.claim,
        defaults=LEASED,
    ),
    "heartbeat": Kind(sql=HEARTBEAT, read=pairs, rule=rules.heartbeat),
    "complete": Kind(sql="select pgq_complete($id, $token)", rule=rules.complete, waits=True),
    "complete_many": Kind(
        sql="select pgq_complete($ids, $tokens)", read=names, rule=rules.complete_many, waits=True
    ),
    "complete_and_dequeue": Kind(
        sql=f"select {JOB} from pgq_complete_and_dequeue($ids, $tokens, BATCH, {LEASE}, $q)",
        read=claimed,
        rule=rules.complete_and_dequeue,
        defaults=LEASED,
        waits=True,
        everything=True,
    ),
    "fail": Kind(
        sql="select pgq_fail($id, $token, 'no', '5 seconds')", rule=rules.fail, waits=True
    ),
    "fail_dead": Kind(
        sql="select pgq_fail($id, $token, 'no', retryable => false)",
        rule=rules.fail_dead,
        waits=True,
    ),
    "release": Kind(
        sql="select pgq_release($id, $token, IN * interval '1 ms')",
        rule=rules.release,
        defaults={"in": "0"},
        waits=True,
    ),
    "reclaim": Kind(sql="select pgq_reclaim($q)", read=names, rule=rules.reclaim, everything=True),
    "cancel": Kind(
        sql="select pgq_cancel($id, FORCE)",
        rule=rules.cancel,
        defaults={"force": "false"},
        waits=True,
    ),
    "move": Kind(
        sql=f"select pgq_move($id, priority => nullif(PRIO, 0), run_at => {AT})",
        rule=rules.move,
        waits=True,
    ),
    "cancel_all": Kind(
        sql="select pgq_cancel_all($q, FORCE)",
        rule=rules.cancel_all,
        defaults={"force": "false"},
        waits=True,
        everything=True,
    ),
    "retry": Kind(sql="select pgq_retry($id)", rule=rules.retry, waits=True),
    "purge": Kind(
        sql="select pgq_purge($q, string_to_array(STATES, ','))",
        rule=rules.purge,
        defaults={"states": "ready,scheduled,waiting"},
        everything=True,
    ),
    "pause": Kind(sql="select pgq_pause($q)", rule=rules.pause, waits=True),
    "resume": Kind(sql="select pgq_resume($q)", rule=rules.resume, waits=True),
    "configure": Kind(
        sql="select pgq_configure_queue($q, max_active => MAX_ACTIVE)",
        rule=rules.configure,
        defaults={"max_active": "1"},
        waits=True,
    ),
    "drop": Kind(
        sql="select pgq_drop_queue($q, FORCE)",
        rule=rules.drop,
        defaults={"force": "false"},
        waits=True,
        everything=True,
        bounded=True,
    ),
    "tick": Kind(sql="select pgq_maintain()", rule=rules.tick),
    "look": Kind(
        sql="select id, state from pgq_jobs where queue = $q",
        read=pairs,
        rule=rules.look,
    ),
    "wait": Kind(sql=f"select {MS.format('pgq_wait(array[$q])')}", everything=True, alone=True),
    "wake": Kind(sql="select pgq_wake()", alone=True),
    "begin": Kind(sql="begin"),
    "begin_old": Kind(sql="begin isolation level repeatable read; select 1"),
    "begin_serializable": Kind(sql="begin isolation level serializable; select 1"),
    "commit": Kind(sql="commit"),
    "rollback": Kind(sql="rollback"),
    "savepoint": Kind(sql="savepoint s"),
    "rollback_to": Kind(sql="rollback to s"),
    "prepare": Kind(sql="prepare transaction '$who'"),
    "commit_prepared": Kind(sql="commit prepared '$who'"),
    "rollback_prepared": Kind(sql="rollback prepared '$who'"),
    "kill": Kind(sql=""),  # the session itself: its connection breaks
    "later": Kind(sql=""),  # so many ms pass
}


def statement(
    call: Call, queue: str, ids: Mapping[str, int], tokens: Mapping[str, int]
) -> tuple[str, list[Any]]:
    """Return the SQL of a call and its arguments."""
    kind = KINDS[call.kind]
    options = {**kind.defaults, **call.options}
    after = [ids.get(name, 0) for name in options.get("after", "").split(",") if name]
    values: dict[str, tuple[Any, str]] = {
        "$q": (queue, "text"),
        "$payloads": ([*call.names], "text[]"),
        "$ids": ([ids.get(name, 0) for name in call.names], "bigint[]"),
        "$tokens": ([tokens[name] for name in call.names], "bigint[]"),
        "$id": (ids.get(call.names[0], 0) if call.names else 0, "bigint"),
        "$token": (tokens[call.names[0]] if call.names else 0, "bigint"),
        "$after": (after or None, "bigint[]"),
    }
    for name in ("key", "group", "dup", "on_dead", "states"):
        values[name.upper()] = (options.get(name) or None, "text")
    for name in ("prio", "in", "batch", "for", "max_active"):
        values[name.upper()] = (int(options.get(name, 0)), "integer")
    values["FORCE"] = (options.get("force") == "true", "boolean")
    arguments: list[Any] = []
    numbers: dict[str, str] = {}

    def bind(match: re.Match[str]) -> str:
        if match[0] not in values:
            return match[0]
        if match[0] not in numbers:
            value, type_ = values[match[0]]
            arguments.append(value)
            numbers[match[0]] = f"${len(arguments)}::{type_}"
        return numbers[match[0]]

    return re.sub(r"\$[a-z]+|\b[A-Z_]{2,}\b", bind, kind.sql.strip()), arguments


def concerns(call: Call, world: World) -> frozenset[str]:
    """Return what a call may lock while it is under way."""
    options = call.options
    found = {*call.names, *options.get("after", "").split(",")} - {""}
    if KINDS[call.kind].everything:
        found |= world.base.jobs.keys()
    if "key" in options:
        found |= {f"key:{options['key']}"}
        found |= {job.name for job in world.base.jobs.values() if job.key == options["key"]}
    if call.kind in ("pause", "resume", "configure", "drop"):
        found |= {"queue"}
    if call.kind == "retry":
        found |= {f"key:{job.key}" for job in jobs_of(call, world) if job.key}
    return frozenset(found)


def jobs_of(call: Call, world: World) -> Iterator[Any]:
    """Yield the jobs that a call names."""
    return (world.base.jobs[name] for name in call.names if name in world.base.jobs)


def may_wait(call: Call) -> bool:
    """Tell whether a call may wait for others at all."""
    return KINDS[call.kind].waits or bool({"key", "after"} & call.options.keys())
