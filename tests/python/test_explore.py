"""A sample of the interleavings of `make explore`, and whether it finds planted faults."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Iterator
from typing import TypeAlias

import pytest
from pgserver import Server

from tests.explore import plans
from tests.explore.check import Blocked, Event, Later, Returned, Sent, check
from tests.explore.coverage import Coverage
from tests.explore.describe import tell
from tests.explore.driver import explore, smallest
from tests.explore.rules import Answer, Call, Claimed, Failure
from tests.explore.scenario import Scenario
from tests.explore.stage import SETTINGS, prepared, stage

pytestmark = pytest.mark.server

SAMPLE = {"pairs": 30, "triples": 4}


_numbers = itertools.count(1_000_000)


@pytest.fixture(scope="module")
def explored() -> Iterator[Server]:
    """A server on which the explorer makes databases."""
    version = os.environ.get("PGQ_TEST_VERSION")
    with Server(int(version) if version else None, SETTINGS) as server, prepared(server):
        yield server


async def test_some_order_explains_every_answer(
    explored: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("PGQ_EXPLORE_SEED", "1"))
    with capsys.disabled():
        print(f"\nPGQ_EXPLORE_SEED={seed}", flush=True)
    chance = random.Random(seed)
    ends = [[end] for end in plans.ENDS] + [[*ends] for ends in plans.UNUSUAL_ENDS]
    sample = chance.sample([*plans.pairs(ends)], SAMPLE["pairs"])
    sample += chance.sample([*plans.triples()], SAMPLE["triples"])
    coverage = Coverage()
    async with contextlib.aclosing(explore(explored, sample, chance)) as runs:
        async for run in runs:
            coverage.add(run)
            assert run.fault is None, tell(await smallest(explored, run))
    with capsys.disabled():
        print(next(iter(coverage.report())), flush=True)
    assert coverage.met


async def passes(server: Server, script: str) -> None:
    """Run one script as the explorer prints it."""
    async with stage(server, next(_numbers)) as opened:
        run = await opened.run(Scenario.parse(script))
    assert run.fault is None, tell(run)


async def test_a_heartbeat_does_not_wait_for_a_completion(explored: Server) -> None:
    await passes(
        explored,
        """
        queue: keeps=1 max_active=0
        S: enqueue l1
        S: claim l1
        A: begin
        A: complete l1
        B: heartbeat l1
        A: commit
        """,
    )


async def test_a_forced_drop_deletes_a_job_that_an_open_transaction_fails(explored: Server) -> None:
    await passes(
        explored,
        """
        queue: keeps=1 max_active=0
        S: enqueue l1
        S: claim l1
        A: begin
        A: fail_dead l1
        B: drop force=true
        A: commit
        """,
    )


async def test_a_forced_drop_does_not_take_from_cancel_all_what_that_has_locked(
    explored: Server,
) -> None:
    await passes(
        explored,
        """
        queue: keeps=1 max_active=0
        S: enqueue r2
        S: enqueue l1
        S: claim l1
        C: begin
        C: complete l1
        A: cancel_all force=true
        B: drop force=true
        C: commit
        """,
    )


async def test_a_purge_does_not_wait_for_a_retry(explored: Server) -> None:
    await passes(
        explored,
        """
        queue: keeps=1 max_active=0
        S: enqueue d1
        S: claim d1
        S: fail_dead d1
        A: begin
        A: retry d1
        B: purge states=dead
        A: commit
        """,
    )


# --- faults that are planted

WITHOUT_FENCING = """
create or replace function pgq_complete(id bigint, token bigint, result jsonb default null)
returns boolean language sql as $$
    select exists (select from pgq_get(id) j, pgq_complete(array[j.id], array[j.token]))
$$
"""
DEQUEUE = """
alter function pgq_dequeue(integer, interval, text, text) rename to sound_dequeue;
create function pgq_dequeue(
    batch integer default 1, timeout interval default '30 seconds',
    queue text default 'default', worker text default null
) returns setof pgq_job language plpgsql as $$ begin {} end $$
"""
WAITING_CLAIMS = DEQUEUE.format("""
    perform pg_advisory_xact_lock(1);
    return query select * from sound_dequeue(batch, timeout, queue, worker);
""")
CLAIMS_WITH_A_HOLE = DEQUEUE.format("""
    if not exists (select from pg_stat_activity where pid <> pg_backend_pid()
                      and datname = current_database() and state = 'idle in transaction') then
        return query select * from sound_dequeue(batch, timeout, queue, worker);
    end if;
""")
LOSING_RELEASE = """
create or replace function pgq_release(id bigint, token bigint, delay interval default '0')
returns boolean language sql as $$ select pgq_complete(id, token) $$
"""
PLANTED = {
    "completions without fencing": (
        WITHOUT_FENCING,
        ["dequeue batch=10", "complete x1"],
        "complete x1",
        6,
    ),
    "claims that wait": (WAITING_CLAIMS, ["dequeue", "dequeue"], "must not wait", 4),
    "claims with a hole": (CLAIMS_WITH_A_HOLE, ["complete l1", "dequeue"], "dequeue", 4),
    "release that loses jobs": (LOSING_RELEASE, ["release l1", "claim r1"], "dequeue", 4),
}


@pytest.mark.parametrize("name", PLANTED)
async def test_a_planted_fault_is_found_and_made_small(explored: Server, name: str) -> None:
    planted, calls, why, lines = PLANTED[name]
    scripts = {
        who: plans.script(text, who, ends=["commit"]) for who, text in zip("AB", calls, strict=True)
    }
    scenario = Scenario(setup=plans.scene(itertools.chain(*scripts.values())), scripts=scripts)
    runs = explore(explored, [scenario], random.Random(1), planted=planted)
    found = [run async for run in runs if run.fault is not None]
    assert found
    small = await smallest(explored, found[0], planted)
    assert small.fault is not None
    assert why in small.fault.why, tell(small)
    script = str(small.executed())
    assert len(script.splitlines()) <= 1 + lines, script
    # The script says it all: it fails again, and without the fault it passes.
    for sql, fails in ((planted, True), ("", False)):
        async with stage(explored, next(_numbers), sql) as opened:
            again = await opened.run(Scenario.parse(script))
        assert (again.fault is not None) == fails, tell(again)


# --- the oracle, on histories that are made up

LEASE = 60_000
Made: TypeAlias = "tuple[str, str, Answer] | Event"


def history(*events: Made, token: int = 0) -> list[Event]:
    """Return a history of calls that do not overlap, and other events."""
    result: list[Event] = []
    for event in events:
        if isinstance(event, tuple):
            who, text, answer = event
            call = Call.parse(text)
            result.append(Sent(who, call, dict.fromkeys(call.names, token)))
            result.append(Returned(who, answer))
        else:
            result.append(event)
    return result


ONE = ("S", "enqueue r1", (("r1", 1),))
TWO = ("S", "enqueue r2", (("r2", 2),))
TAKEN = ("A", "dequeue", (Claimed("r1", 7, LEASE),))
EXPLAINED: dict[str, list[Made]] = {
    "a job is claimed": [ONE, TAKEN],
    "a claim passes by what an open transaction has": [
        ONE,
        TWO,
        ("A", "begin", "BEGIN"),
        TAKEN,
        ("B", "dequeue", (Claimed("r2", 8, LEASE),)),
    ],
    "an expired lease is claimed again": [
        ONE,
        TAKEN,
        Later(LEASE),
        ("B", "dequeue", (Claimed("r1", 8, 2 * LEASE),)),
    ],
    "a receipt is good": [ONE, TAKEN, ("A", "complete r1", True)],
    "the second job of a group follows the first": [
        ("S", "enqueue g1 group=g", (("g1", 1),)),
        ("S", "enqueue g2 group=g", (("g2", 2),)),
        ("A", "dequeue batch=9", (Claimed("g1", 7, LEASE),)),
        ("A", "complete g1", True),
        ("A", "dequeue batch=9", (Claimed("g2", 8, LEASE),)),
    ],
}
NOT_EXPLAINED: dict[str, list[Made]] = {
    "a job is claimed twice": [ONE, TAKEN, ("B", "dequeue", (Claimed("r1", 8, LEASE),))],
    "a token goes back": [
        ONE,
        TAKEN,
        Later(LEASE),
        ("B", "dequeue", (Claimed("r1", 6, 2 * LEASE),)),
    ],
    "a ready job is not found": [ONE, ("A", "dequeue", ())],
    "a later job is claimed first": [ONE, TWO, ("A", "dequeue", (Claimed("r2", 7, LEASE),))],
    "a lower priority is claimed first": [
        ("S", "enqueue r1 prio=-1", (("r1", 1),)),
        TWO,
        TAKEN,
    ],
    "a stale receipt is good": [
        ONE,
        TAKEN,
        Later(LEASE),
        ("B", "dequeue", (Claimed("r1", 8, 2 * LEASE),)),
        ("A", "complete r1", True),
    ],
    "a good receipt is refused": [ONE, TAKEN, ("A", "complete r1", False)],
    "an enqueue that was rolled back is seen": [
        ("S", "begin", "BEGIN"),
        ONE,
        ("S", "rollback", "ROLLBACK"),
        TAKEN,
    ],
    "an enqueue that is not committed is seen": [("S", "begin", "BEGIN"), ONE, TAKEN],
    "two jobs of a group are active": [
        ("S", "enqueue g1 group=g", (("g1", 1),)),
        ("S", "enqueue g2 group=g", (("g2", 2),)),
        ("A", "dequeue batch=9", (Claimed("g1", 7, LEASE), Claimed("g2", 8, LEASE))),
    ],
    "two jobs have a key": [
        ("S", "enqueue k1 key=k", (("k1", 1),)),
        ("S", "enqueue k2 key=k", (("k2", 2),)),
    ],
    "a second completion does not wait for the first one": [
        ONE,
        TAKEN,
        ("A", "begin", "BEGIN"),
        ("A", "complete r1", True),
        ("B", "complete r1", False),
    ],
    "an error that is not documented": [ONE, ("A", "dequeue", Failure("XX000"))],
    "a serialization failure under READ COMMITTED": [
        ONE,
        ("A", "begin", "BEGIN"),
        ("A", "dequeue", Failure("40001")),
    ],
    "a deadlock of single calls": [ONE, TAKEN, ("A", "complete r1", Failure("40P01"))],
    "a job is left at rest": [ONE, ("S", "look rest=yes", (("r1", "ready"),))],
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_oracle_explains(name: str) -> None:
    assert check(history(*EXPLAINED[name], token=7)) is None


@pytest.mark.parametrize("name", NOT_EXPLAINED)
def test_the_oracle_does_not_explain(name: str) -> None:
    fault = check(history(*NOT_EXPLAINED[name], token=7))
    assert fault is not None
    assert fault.at >= 1


def test_a_claim_must_not_wait_and_a_second_completion_may() -> None:
    open_ = history(ONE, TAKEN, ("A", "begin", "BEGIN"), ("A", "complete r1", True), token=7)
    for text, explained in (("complete r1", True), ("dequeue", False), ("cancel r9", False)):
        call = Call.parse(text)
        sent = Sent("B", call, dict.fromkeys(call.names, 7))
        fault = check([*open_, sent, Blocked("B", ("A",))])
        assert (fault is None) == explained, text


def test_a_scenario_is_read_as_it_was_written() -> None:
    chance = random.Random(1)
    for scenario in (plans.chance(chance) for _ in range(100)):
        written = str(scenario)
        assert str(Scenario.parse(written)) == written
