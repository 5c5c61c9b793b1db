"""The judge of histories: what each rule catches in a naive queue, and that pgq breaks none.

Each scenario forces its interleaving: a call that may wait is watched until it waits or answers.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pgserver import PATIENCE, Server

from tests.history import harness, size
from tests.history.final import write_final
from tests.history.judge import Finding, judge, report
from tests.history.psql import Client, Pending
from tests.history.read import read
from tests.history.record import Recorder

from .conftest import TEMPLATE

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
BROKEN = ROOT / "tests" / "history" / "broken"
TABLES = "create table effect (job bigint not null)"

_numbers = itertools.count(1)

Environment: TypeAlias = "dict[str, str]"
Scenario: TypeAlias = "Callable[[Stage], None]"


class Stage:
    """Two programs and an observer that use a queue, and what is written of them."""

    def __init__(self, clients: Iterable[Client], queue: str) -> None:
        self.observer, self.a, self.b = clients
        self.queue = queue
        self.marks = (f"{queue}:{n}" for n in itertools.count(1))

    def enqueue(self, client: Client, number: int = 1, **options: Any) -> Pending:
        """Let a program enqueue jobs in one call."""
        marks = [next(self.marks) for _ in range(number)]
        return client.start_enqueue(marks, self.queue, **options)

    def claim(self, client: Client, lease: float = 30.0) -> Any:
        """Let a program claim a job, and wait for the answer."""
        return client.start_dequeue(1, lease, self.queue).answer()

    def claim_again(self, client: Client) -> Any:
        """Let a program claim until it gets a job."""
        while not (jobs := self.claim(client)):
            pass
        return jobs

    def wait(self, pending: Pending) -> None:
        """Return once a call has answered or waits for another session, of which a sample tells."""
        deadline = time.monotonic() + PATIENCE
        while not pending.is_answered() and not self.observer.start_sample().answer():
            assert time.monotonic() < deadline

    def until(self, condition: str) -> None:
        """Wait until the server says so."""
        deadline = time.monotonic() + PATIENCE
        while self.observer.psql.run(f"select {condition}") != ["t"]:
            assert time.monotonic() < deadline


def overlapping_claims(stage: Stage) -> None:
    """B claims while A's claim is not committed; B completes what it has got."""
    stage.enqueue(stage.observer, 3).answer()
    stage.a.begin()
    assert stage.claim(stage.a)
    claim = stage.b.start_dequeue(queue=stage.queue)
    stage.wait(claim)
    stage.a.commit()
    if jobs := claim.answer():
        stage.b.start_complete(jobs).answer()


def late_commit(stage: Stage) -> None:
    """A's enqueue commits after B has claimed a job with a higher id."""
    stage.a.begin()
    stage.enqueue(stage.a).answer()
    stage.enqueue(stage.observer).answer()
    assert stage.claim(stage.b)
    stage.a.commit()
    for _ in range(3):
        stage.claim(stage.b)


def death_of_a_consumer(stage: Stage) -> None:
    """A claims and dies."""
    stage.enqueue(stage.observer, 2).answer()
    assert stage.claim(stage.a)
    stage.a.close()


def late_completion(stage: Stage) -> None:
    """A's lease runs out, B claims the job, A completes it."""
    stage.enqueue(stage.observer).answer()
    late = stage.claim(stage.a, 0.001)
    stage.claim_again(stage.b)
    stage.a.start_complete(late).answer()


def release_and_claim(stage: Stage) -> None:
    """A gives a job back, so that the attempt does not count, and claims it again."""
    stage.enqueue(stage.observer).answer()
    (job,) = stage.claim(stage.a)
    stage.a.start_release(job).answer()
    stage.claim_again(stage.a)


def claim_after_completion(stage: Stage) -> None:
    """A completes, and B claims when A's lease would be over."""
    stage.enqueue(stage.observer).answer()
    (job,) = stage.claim(stage.a, 0.001)
    stage.a.start_complete([job]).answer()
    stage.until(f"clock_timestamp() > to_timestamp({job['expires']})")
    stage.claim(stage.b)


def two_priorities(stage: Stage) -> None:
    """A is the only consumer; what is urgent came last."""
    stage.enqueue(stage.observer).answer()
    stage.enqueue(stage.observer, priority=5).answer()
    for _ in range(2):
        assert stage.claim(stage.a)


def overlapping_claims_of_a_group(stage: Stage) -> None:
    """B claims while A's claim of a job of the same group is not committed."""
    stage.enqueue(stage.observer, 2, groups=["g", "g"]).answer()
    stage.a.begin()
    assert stage.claim(stage.a)
    stage.claim(stage.b)
    stage.a.commit()


def overlapping_claims_under_a_limit(stage: Stage) -> None:
    """One job may be active; B claims while A's claim is not committed."""
    stage.enqueue(stage.observer, 2).answer()
    stage.a.begin()
    assert stage.claim(stage.a)
    claim = stage.b.start_dequeue(queue=stage.queue)
    stage.wait(claim)
    stage.a.commit()
    claim.answer()


def overlapping_keys(stage: Stage) -> None:
    """B enqueues with a key while A's enqueue with it is not committed."""
    stage.a.begin()
    stage.enqueue(stage.a, keys=["k"]).answer()
    enqueue = stage.enqueue(stage.b, keys=["k"])
    stage.wait(enqueue)
    stage.a.commit()
    enqueue.answer()
    stage.enqueue(stage.b, keys=["k"]).answer()


def enqueue_then_rollback(stage: Stage) -> None:
    """A's transaction rolls back."""
    stage.a.begin()
    stage.enqueue(stage.a).answer()
    stage.a.rollback()
    stage.claim(stage.b)


def enqueue_elsewhere_then_rollback(stage: Stage) -> None:
    """The same, and the enqueue goes by another connection, as to a queue outside must."""
    stage.a.begin()
    sent, stage.a.psql = stage.a.psql, stage.observer.psql
    stage.enqueue(stage.a).answer()
    stage.a.psql = sent
    stage.a.rollback()
    stage.claim(stage.b)


def death_before_the_commit(stage: Stage) -> None:
    """A writes its effect and completes in one transaction, and dies in it; B does the same."""
    _effect_twice(stage, together=True)


def death_between_effect_and_completion(stage: Stage) -> None:
    """A commits its effect, and dies before it completes; B does both together."""
    _effect_twice(stage, together=False)


def _effect_twice(stage: Stage, *, together: bool) -> None:
    stage.enqueue(stage.observer).answer()
    (job,) = stage.claim(stage.a, 0.001)
    stage.a.begin()
    stage.a.start_effect(job).answer()
    if together:
        stage.a.start_complete([job]).answer()
    else:
        stage.a.commit()
    stage.a.close()
    jobs = stage.claim_again(stage.b)
    stage.b.begin()
    stage.b.start_effect(jobs[0]).answer()
    stage.b.start_complete(jobs).answer()
    stage.b.commit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A naive queue, and which rules it breaks in which scenario."""

    naive: str
    scenario: Scenario
    breaks: set[str]

    def name(self) -> str:
        """Return the name of its test."""
        return self.naive if self.naive != "base" else self.scenario.__name__


CASES = [
    Case(naive="plain_subquery", scenario=overlapping_claims, breaks={"leases", "waits"}),
    Case(naive="rechecked_subquery", scenario=overlapping_claims, breaks={"waits"}),
    Case(naive="select_then_update", scenario=overlapping_claims, breaks={"leases", "waits"}),
    Case(naive="for_update", scenario=overlapping_claims, breaks={"waits"}),
    Case(naive="id_cursor", scenario=late_commit, breaks={"finding"}),
    Case(naive="delete_on_handout", scenario=death_of_a_consumer, breaks={"accounting"}),
    Case(naive="no_fencing", scenario=late_completion, breaks={"receipts"}),
    Case(naive="attempt_as_token", scenario=release_and_claim, breaks={"tokens"}),
    Case(naive="reclaim_any_state", scenario=claim_after_completion, breaks={"ends"}),
    Case(naive="unordered", scenario=two_priorities, breaks={"order"}),
    Case(naive="group_not_exists", scenario=overlapping_claims_of_a_group, breaks={"groups"}),
    Case(naive="limit_by_count", scenario=overlapping_claims_under_a_limit, breaks={"limits"}),
    Case(naive="key_by_look", scenario=overlapping_keys, breaks={"keys"}),
]
# Naive uses of a queue that is right.
USES = [
    Case(naive="base", scenario=enqueue_elsewhere_then_rollback, breaks={"rollbacks"}),
    Case(naive="base", scenario=death_between_effect_and_completion, breaks={"effects"}),
]
RIGHT = [enqueue_then_rollback, death_before_the_commit]
# What the textbook queue does not have.
MORE = [overlapping_claims_of_a_group, overlapping_claims_under_a_limit]
LIMITED = overlapping_claims_under_a_limit


def play(
    directory: Path, environment: Environment, scenarios: Iterable[Scenario]
) -> dict[str, Finding]:
    """Play scenarios, each with a queue of its own, and judge them."""
    recorder = Recorder(directory, "stage")
    clients: list[Client] = []
    try:
        for scenario in scenarios:
            clients = [client for client in clients if not client.psql.is_closed]
            while len(clients) < 3:
                clients.append(Client(recorder, environment))
            stage = Stage(clients, scenario.__name__)
            limit = {"max_active": 1} if scenario is LIMITED else {}
            stage.observer.configure(stage.queue, create=True, **limit)
            scenario(stage)
    finally:
        for client in clients:
            client.close()
    write_final(recorder, environment)
    recorder.close()
    return judge(read(directory))


@pytest.fixture(scope="module")
def database(server: Server) -> Environment:
    """The variables of libpq of a database without pgq."""
    server.psql("create database naive")
    return {**server.environment(), "PGDATABASE": "naive"}


@pytest.fixture
def naive(server: Server, database: Environment, request: pytest.FixtureRequest) -> Environment:
    """The variables of libpq of a fresh schema with a naive queue."""
    name = f"{request.param}_{next(_numbers)}"
    files = [BROKEN / f"{file}.sql" for file in dict.fromkeys(["base", request.param])]
    scripts = [file.read_text(encoding="utf-8") for file in files]
    path = f'create schema "{name}"; set search_path = "{name}"'
    server.psql("; ".join([path, TABLES, *scripts]), "naive")
    return {**database, "PGOPTIONS": f"-c search_path={name}"}


@pytest.mark.parametrize(
    ("naive", "case"),
    [pytest.param(case.naive, case, id=case.name()) for case in [*CASES, *USES]],
    indirect=["naive"],
)
def test_a_naive_queue_breaks_the_rule_that_is_named(
    naive: Environment, case: Case, tmp_path: Path
) -> None:
    findings = play(tmp_path, naive, [case.scenario])
    broken = {name for name, found in findings.items() if found.broken}
    assert broken == case.breaks, report(findings)


@pytest.mark.parametrize("naive", ["base"], indirect=True)
def test_the_textbook_queue_breaks_none(naive: Environment, tmp_path: Path) -> None:
    scenarios = [case.scenario for case in CASES if case.scenario not in MORE]
    findings = play(tmp_path, naive, dict.fromkeys([*scenarios, *RIGHT]))
    assert not any(found.broken for found in findings.values()), report(findings)


def test_pgq_breaks_none_in_the_same_scenarios(
    server: Server, dsn: dict[str, Any], tmp_path: Path
) -> None:
    server.psql(TABLES, dsn["database"])
    environment = {**server.environment(), "PGDATABASE": dsn["database"]}
    scenarios = dict.fromkeys([*(case.scenario for case in CASES), *RIGHT])
    findings = play(tmp_path, environment, scenarios)
    assert not any(found.broken for found in findings.values()), report(findings)
    assert {name for name, found in findings.items() if not found.facts} == {"size"}


class Book:
    """A history written by hand, of jobs in a queue "q"."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recorder = Recorder(directory, "book")
        self.jobs: dict[int, str] = {}
        self.effects: list[int] = []

    def tell(
        self, do: str, answer: Any = None, tx: int | None = None, *, by: str = "a", **args: Any
    ) -> None:
        """Write a call and its answer."""
        number = self.recorder.call(do, args, by, tx)
        self.recorder.answer(number, answer)

    def lose(self, do: str, tx: int | None = None, *, by: str = "a", **args: Any) -> None:
        """Write a call that gets no answer."""
        self.recorder.lost(self.recorder.call(do, args, by, tx))

    def enqueue(self, job_id: int, tx: int | None = None) -> None:
        """Write an enqueue of one job."""
        self.tell("enqueue", [job_id], tx, queue="q", marks=[f"m{job_id}"], priority=0)
        self.jobs[job_id] = "ready"

    def claim(
        self, job_id: int, token: int, tx: int | None = None, *, by: str = "a", **args: Any
    ) -> None:
        """Write a claim of one job for an hour."""
        job = {"id": job_id, "token": token, "mark": f"m{job_id}", "priority": 0}
        self.tell("dequeue", [job], tx, by=by, queue="q", batch=1, timeout=3600.0, **args)

    def judge(self) -> set[str]:
        """Write the final state and return the rules that are broken."""
        for job_id, state in self.jobs.items():
            row = {"id": job_id, "mark": f"m{job_id}", "queue": "q", "state": state, "key": None}
            self.recorder.note("job", **row)
        for job_id in self.effects:
            self.recorder.note("effect", job=job_id)
        self.recorder.note("final", jobs=len(self.jobs), effects=len(self.effects))
        self.recorder.close()
        return {name for name, found in judge(read(self.directory)).items() if found.broken}


def a_lease_taken_back_too_early(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.tell("reclaim", [1], queue="q")


def a_lease_given_twice(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.claim(1, 11, by="b")


def a_lease_that_a_crash_may_have_undone(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10, durable=False)
    book.tell("fault", what="crash")
    book.claim(1, 11, by="b")


def a_durable_lease_after_a_crash(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.tell("fault", what="crash")
    book.claim(1, 11, by="b")


def a_lease_under_a_clock_that_jumps(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.tell("fault", what="clock")
    book.claim(1, 11, by="b")


def a_lease_that_was_perhaps_given_back(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.lose("release", ids=[1], tokens=[10])
    book.claim(1, 11, by="b")


def a_lease_that_a_heartbeat_has_shortened(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.tell("heartbeat", [[1, 5.0]], ids=[1], tokens=[10], timeout=1e-9)
    book.claim(1, 11, by="b")


def a_release_and_a_claim_that_roll_back(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.tell("begin", tx=1)
    book.tell("release", [1], 1, ids=[1], tokens=[10])
    book.claim(1, 11, 1)
    book.tell("rollback", tx=1)
    book.tell("complete", [1], ids=[1], tokens=[10])
    book.jobs[1] = "completed"


def a_lease_after_a_release_that_rolled_back(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.tell("begin", tx=1)
    book.tell("release", [1], 1, ids=[1], tokens=[10])
    book.tell("rollback", tx=1)
    book.claim(1, 11, by="b")


def a_lost_commit_that_left_one_of_two_jobs(book: Book) -> None:
    book.enqueue(1, 1)
    book.enqueue(2, 1)
    book.lose("commit", 1)
    del book.jobs[2]


def a_lost_commit_that_left_both(book: Book) -> None:
    book.enqueue(1, 1)
    book.enqueue(2, 1)
    book.lose("commit", 1)


def a_lost_commit_that_left_none(book: Book) -> None:
    a_lost_commit_that_left_both(book)
    book.jobs.clear()


def _completion_with_a_lost_commit(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.tell("effect", tx=1, job=1)
    book.tell("complete", [1], 1, ids=[1], tokens=[10])
    book.lose("commit", 1)


def a_lost_commit_whose_completion_is_there_alone(book: Book) -> None:
    _completion_with_a_lost_commit(book)
    book.jobs[1] = "completed"


def a_lost_commit_whose_effect_is_there_alone(book: Book) -> None:
    _completion_with_a_lost_commit(book)
    book.effects = [1]


def a_lost_commit_of_which_all_is_there(book: Book) -> None:
    _completion_with_a_lost_commit(book)
    book.jobs[1] = "completed"
    book.effects = [1]


def a_block_without_a_commit_that_is_there(book: Book) -> None:
    book.enqueue(1, 1)


def a_good_receipt_refused(book: Book) -> None:
    book.enqueue(1)
    book.claim(1, 10)
    book.tell("complete", [], ids=[1], tokens=[10])


@pytest.mark.parametrize(
    ("write", "breaks"),
    [
        pytest.param(write, breaks, id=getattr(write, "__name__", ""))
        for write, breaks in (
            (a_lease_given_twice, {"leases"}),
            (a_lease_taken_back_too_early, {"leases"}),
            (a_durable_lease_after_a_crash, {"leases"}),
            (a_lease_after_a_release_that_rolled_back, {"leases"}),
            (a_lost_commit_that_left_one_of_two_jobs, {"accounting"}),
            (a_lost_commit_whose_completion_is_there_alone, {"effects"}),
            (a_lost_commit_whose_effect_is_there_alone, {"effects"}),
            (a_block_without_a_commit_that_is_there, {"rollbacks"}),
            (a_good_receipt_refused, {"receipts"}),
            (a_lease_that_a_crash_may_have_undone, set[str]()),
            (a_lease_under_a_clock_that_jumps, set[str]()),
            (a_lease_that_was_perhaps_given_back, set[str]()),
            (a_lease_that_a_heartbeat_has_shortened, set[str]()),
            (a_release_and_a_claim_that_roll_back, set[str]()),
            (a_lost_commit_that_left_both, set[str]()),
            (a_lost_commit_that_left_none, set[str]()),
            (a_lost_commit_of_which_all_is_there, set[str]()),
        )
    ],
)
@pytest.mark.constant
def test_the_judge_trusts_only_what_is_certain(
    write: Callable[[Book], None], breaks: set[str], tmp_path: Path
) -> None:
    book = Book(tmp_path)
    write(book)
    assert book.judge() == breaks


def test_pgq_breaks_none_under_a_load(
    server: Server, dsn: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("PGQ_HISTORY_SEED", "0")) or random.randrange(1, 10**9)
    environment = {**server.environment(), "PGDATABASE": dsn["database"]}
    harness.run(tmp_path, environment, seed, jobs=200)
    findings = judge(read(tmp_path))
    with capsys.disabled():
        print(f"\nPGQ_HISTORY_SEED={seed}\n{report(findings)}", flush=True)
    assert not any(found.broken for found in findings.values())
    rare = {"keys", "finding", "order"}
    assert all(findings[name].facts for name in {*harness.RULES} - rare)


def measured(
    server: Server, directory: Path, dsn: dict[str, Any], kind: str, load: size.Load
) -> Finding:
    """Return what the rule of sizes says of a backlog while a session holds the horizon."""
    fresh = f"{dsn['database']}_fresh"
    server.psql(f"create database {fresh} template {TEMPLATE}")
    environments = [
        {**server.environment(), "PGDATABASE": name} for name in (dsn["database"], fresh)
    ]
    recorder = Recorder(directory, "size")
    size.run(recorder, *environments, kind=kind, hold="horizon", load=load)
    recorder.close()
    server.psql(f"drop database {fresh} with (force)")
    return judge(read(directory))["size"]


def test_tables_stay_bounded_while_a_session_holds_the_horizon(
    server: Server, dsn: dict[str, Any], tmp_path: Path
) -> None:
    # `make history` has backlogs and other sizes, for minutes.
    load = size.Load(backlog=2000, traffic=8000, fails=5, slot_size=1 << 17)
    found = measured(server, tmp_path, dsn, "none", load)
    assert found.facts
    assert not found.broken
