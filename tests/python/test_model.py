"""Random load under a checker that knows every job, while the ring turns.

Sessions do random things, alone and in transactions, and tell the model what the server answered.
The model counts a transaction's effects when its COMMIT was answered, and orders them by that: what
was answered before a call was sent must be respected by the call. What overlaps is checked at the
end, by tokens and by the server's clock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import asyncpg
import pytest

from .sessions import Connection, Dsn, complete, sessions, turning, until

pytestmark = pytest.mark.server

SESSIONS = 10
MOST_JOBS = 1500
DEQUEUE = "select * from pgq_dequeue($1, $2::int * interval '1 ms')"
READ_COMMITTED, OLD = "read committed", ("repeatable read", "serializable")
HELD, UNKNOWN, NOT_NOW = "55P03", "P0002", "55000"


class Lease(NamedTuple):
    """A claim as its holder knows it."""

    id: int
    token: int
    claimed_at: datetime
    """When the server began the call that claimed it."""
    expires_at: datetime
    since: int
    """What was known when that call was sent."""
    answered_at: datetime


class Effect(NamedTuple):
    """What a call has done if its transaction commits."""

    kind: str
    id: int
    token: int = 0
    lease: Lease | None = None


@dataclass
class Job:
    """What is known for certain of a job."""

    payload: int
    run_at: datetime | None = None
    enqueued: int | None = None
    """When its enqueue was known to have committed."""
    ended: tuple[int, str] | None = None
    leases: dict[int, Lease] = field(default_factory=dict[int, Lease])
    known: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """When which token was known to have been given."""
    settled: set[int] = field(default_factory=set[int])
    """Tokens that were used up by complete, fail or release."""
    asked: bool = False
    """Whether it was to be cancelled while it may have been active: then it may end by itself."""


class Model:
    """All jobs, and the order of what is known."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.undone: set[int] = set()
        self.tokens: set[int] = set()
        self.touched: set[int] = set()
        """Tokens that another session than the holder has tried to use."""
        self.now = 0
        self.calls = itertools.count()
        self.newest = 0
        self.live = 0
        self.counts: dict[str, int] = {}

    def apply(self, effects: list[Effect]) -> None:
        """Take up the effects of a transaction that has committed."""
        self.now += 1
        for effect in effects:
            self.counts[effect.kind] = self.counts.get(effect.kind, 0) + 1
            job = self.jobs[effect.id]
            if effect.kind == "enqueue":
                job.enqueued = self.now
                self.live += 1
            elif effect.lease is not None:
                job.leases[effect.token] = effect.lease
                if effect.kind == "claim":
                    job.known.append((self.now, effect.token))
            elif effect.kind == "ask":
                job.asked = True
            else:
                job.settled.add(effect.token)
                if effect.kind not in ("release", "scheduled"):
                    assert job.ended is None, f"job {effect.id} ended twice: {job.ended}, {effect}"
                    job.ended = (self.now, effect.kind)
                    self.live -= 1

    def count(self, what: str) -> None:
        """Count what ended a transaction instead of its commit.

        40P01 is two transactions that use receipts of jobs which the other one is about to claim,
        as their leases have expired: each waits for the outcome of the other.
        """
        self.counts[what] = self.counts.get(what, 0) + 1

    def drop(self, effects: list[Effect]) -> None:
        """Forget the effects of a transaction that was rolled back."""
        self.undone.update(effect.id for effect in effects if effect.kind == "enqueue")

    def given(self, row: asyncpg.Record, since: int) -> Lease:
        """Check a job that a claim which was sent at `since` has leased."""
        self.check_given(row, since)
        claimed_at, expires_at = row["claimed_at"], row["lease_expires_at"]
        answered_at = datetime.now(UTC)
        return Lease(row["id"], row["token"], claimed_at, expires_at, since, answered_at)

    def check_given(self, row: asyncpg.Record, since: int, popped: bool = False) -> None:
        """Check a job that a claim which was sent at `since` has returned."""
        assert row["id"] not in self.undone, f"job {row['id']} was rolled back"
        # A consumer may be faster than the answer to the producer.
        payload = json.loads(row["payload"])
        job = self.jobs.setdefault(row["id"], Job(payload))
        assert payload == job.payload
        assert job.ended is None or job.ended[0] > since, f"job {row['id']} is {job.ended}"
        if not popped:
            assert row["token"] not in self.tokens, "a token was used twice"
            self.tokens.add(row["token"])
            for at, token in job.known:
                assert at > since or token < row["token"], "a token went back"

    def check_settled(self, lease: Lease, good: bool, since: int) -> None:
        """Check whether a receipt was rightly accepted, or rightly refused."""
        job = self.jobs[lease.id]
        if good:
            assert job.ended is None or job.ended[0] > since, f"{lease} accepted: {job.ended}"
            newer = [token for at, token in job.known if at <= since and token > lease.token]
            assert not newer, f"stale {lease} accepted, {newer}"
        elif lease.token not in self.touched:
            assert datetime.now(UTC) >= lease.expires_at, f"good {lease} refused"

    def check_all(self) -> None:
        """Check that every job ended, and that its leases did not overlap."""
        for job_id, job in self.jobs.items():
            if job.enqueued is None:
                assert not job.leases
                assert job.ended is None
                continue
            for lease in job.leases.values():
                if job.run_at is not None:
                    assert lease.answered_at >= job.run_at, "too early"
                    # A claim has the time at which it began, and may find a job that is newer.
                    found_newer = job.enqueued > lease.since
                    assert lease.claimed_at >= job.run_at or found_newer, "too early"
            assert job.ended is not None, f"job {job_id} is lost"
            tokens = sorted(job.leases)
            for token, after in itertools.pairwise(tokens):
                if token not in job.settled:
                    first, second = job.leases[token], job.leases[after]
                    assert first.expires_at <= second.claimed_at, f"two leases: {first}, {second}"


class Session:
    """One client that does random things."""

    def __init__(self, model: Model, connection: Connection, seed: int) -> None:
        self.model = model
        self.connection = connection
        self.chance = random.Random(seed)
        self.leases: list[Lease] = []
        self.old: list[Lease] = []
        self.effects: list[Effect] = []

    async def enqueue(self) -> None:
        if self.model.live > MOST_JOBS:
            return
        payloads = [next(self.model.calls) for _ in range(self.chance.choice([1, 1, 5, 30]))]
        delay = self.chance.choice([None, None, None, 0.05, 0.5])
        now = datetime.now(UTC).timestamp()
        run_at = None if delay is None else datetime.fromtimestamp(now + delay, UTC)
        rows = await self.connection.fetch(
            "select pgq_enqueue_many($1::text[]::jsonb[], priority => $2, run_at => $3)",
            [str(payload) for payload in payloads],
            self.chance.choice([0, 0, 0, 3]),
            run_at,
        )
        for payload, row in zip(payloads, rows, strict=True):
            job = self.model.jobs.setdefault(row[0], Job(payload))
            assert job.payload == payload
            job.run_at = run_at
            self.model.newest = max(self.model.newest, row[0])
            self.effects.append(Effect("enqueue", row[0]))

    def take(self, row: asyncpg.Record, since: int) -> None:
        lease = self.model.given(row, since)
        self.leases.append(lease)
        self.effects.append(Effect("claim", lease.id, lease.token, lease))

    async def dequeue(self) -> None:
        since = self.model.now
        batch, lease = self.chance.choice([1, 5, 30]), self.chance.choice([150, 400, 2000])
        for row in await self.connection.fetch(DEQUEUE, batch, lease):
            self.take(row, since)

    async def pop(self) -> None:
        since = self.model.now
        for row in await self.connection.fetch(
            "select * from pgq_pop($1)", self.chance.choice([1, 10])
        ):
            self.model.check_given(row, since, popped=True)
            self.effects.append(Effect("pop", row["id"]))

    async def claim(self) -> None:
        if not self.model.jobs:
            return
        since = self.model.now
        job_id = self.model.newest - int(self.chance.expovariate(0.01))
        try:
            row = await self.connection.fetchrow(
                "select (c).* from pgq_claim($1, '400 ms') c", job_id
            )
        except asyncpg.PostgresError as error:
            if error.sqlstate == UNKNOWN:
                job = self.model.jobs.get(job_id)
                if job is not None and job.enqueued is not None and job.enqueued <= since:
                    assert not await self.connection.fetchval(
                        "select exists (select from pgq.job where id = $1)", job_id
                    ), f"job {job_id} was denied"
            elif error.sqlstate not in (HELD, NOT_NOW):
                raise
            return
        assert row is not None
        self.take(row, since)

    async def cancel(self) -> None:
        if not self.model.jobs:
            return
        job_id = self.model.newest - int(self.chance.expovariate(0.01))
        if job_id not in self.model.jobs:
            return  # it may have committed, and the answer to who enqueued it is on its way
        since = self.model.now
        if await self.connection.fetchval("select pgq_cancel($1)", job_id):
            ended = self.model.jobs[job_id].ended
            assert ended is None or ended[0] > since
            self.effects.append(Effect("cancel", job_id))
        elif job_id in self.model.jobs:
            self.effects.append(Effect("ask", job_id))

    async def reclaim(self) -> None:
        await self.connection.fetch("select pgq_reclaim(max => $1)", self.chance.choice([5, 500]))

    def pick(self) -> Lease | None:
        if not self.leases:
            return None
        return self.leases[self.chance.randrange(len(self.leases))]

    async def heartbeat(self) -> None:
        if (lease := self.pick()) is None:
            return
        since = self.model.now
        expiry = await self.connection.fetchval(
            "select pgq_heartbeat($1::bigint, $2::bigint)", lease.id, lease.token
        )
        self.model.check_settled(lease, expiry is not None, since)
        self.leases.remove(lease)
        if expiry is None:
            self.old.append(lease)
            return
        renewed = lease._replace(expires_at=expiry)
        self.leases.append(renewed)
        self.effects.append(Effect("heartbeat", lease.id, lease.token, renewed))

    async def settle(self) -> None:
        """Use up one of the receipts."""
        if (lease := self.pick()) is not None:
            await self.use(lease)
            self.leases.remove(lease)
            self.old.append(lease)

    async def use(self, lease: Lease) -> None:
        since = self.model.now
        how, sql = self.chance.choice(
            [
                ("complete", "pgq_complete($1::bigint, $2::bigint)::text"),
                ("complete", "pgq_complete($1::bigint, $2::bigint)::text"),
                ("fail", "pgq_fail($1, $2, 'x', random() * interval '200 ms', random() < 0.8)"),
                ("release", "pgq_release($1, $2, random() * interval '50 ms')::text"),
            ]
        )
        answer = await self.connection.fetchval(f"select {sql}", lease.id, lease.token)
        good = answer not in (None, "false")
        self.model.check_settled(lease, good, since)
        if good:
            kind = answer if how == "fail" else how
            self.effects.append(Effect(kind, lease.id, lease.token))

    async def complete_all(self) -> None:
        """Complete what is held, in one call."""
        held, self.leases = self.leases, []
        self.old += held
        since = self.model.now
        done = await complete(self.connection, [(lease.id, lease.token) for lease in held])
        assert len(done) == len(set(done))
        # Of two leases on one job, the older one was lost to this very session.
        newest = {lease.id: lease for lease in sorted(held, key=lambda lease: lease.token)}
        for lease in newest.values():
            self.model.check_settled(lease, lease.id in done, since)
            if lease.id in done:
                self.effects.append(Effect("complete", lease.id, lease.token))

    async def reuse(self) -> None:
        """Use a receipt that was used up or lost already."""
        if self.old:
            lease = self.chance.choice(self.old[-50:])
            self.model.touched.add(lease.token)
            await self.use(lease)

    async def step(self) -> None:
        """Do one thing that may be part of a transaction."""
        await self.chance.choices(
            [
                self.enqueue,
                self.dequeue,
                self.pop,
                self.heartbeat,
                self.settle,
                self.complete_all,
            ],
            [10, 10, 2, 10, 10, 4],
        )[0]()

    async def alone(self) -> None:
        """Do one thing in a transaction of its own."""
        calls = [self.step, self.claim, self.cancel, self.reclaim, self.reuse]
        before = ([*self.leases], [*self.old], [*self.effects])
        try:
            await self.chance.choices(calls, [30, 4, 2, 1, 4])[0]()
        except asyncpg.DeadlockDetectedError:
            self.restore(*before)
            self.model.count("40P01")
            return
        except BaseException:
            self.model.drop(self.effects)
            raise
        self.commit()

    def commit(self) -> None:
        self.model.apply(self.effects)
        self.effects = []

    def restore(self, leases: list[Lease], old: list[Lease], effects: list[Effect]) -> None:
        self.model.drop(self.effects[len(effects) :])
        self.leases, self.old, self.effects = [*leases], [*old], [*effects]

    async def transaction(self) -> None:
        """Do some things in one transaction; sometimes it stays open for long."""
        level = self.chance.choices([READ_COMMITTED, *OLD], [14, 4, 2])[0]
        before = ([*self.leases], [*self.old], [*self.effects])
        await self.connection.execute(f"begin isolation level {level}")
        try:
            for _ in range(self.chance.randint(1, 5)):
                saved = ([*self.leases], [*self.old], [*self.effects])
                await self.connection.execute("savepoint before")
                await self.step()
                if self.chance.random() < 0.2:
                    await self.connection.execute("rollback to before")
                    self.restore(*saved)
                if self.chance.random() < 0.02:
                    await asyncio.sleep(self.chance.uniform(0, 2))
            if self.chance.random() < 0.25:
                await self.connection.execute("rollback")
                self.restore(*before)
                return
            await self.connection.execute("commit")
        except asyncpg.SerializationError:
            assert level in OLD, "40001 under READ COMMITTED"
            await self.undo(before, "40001")
        except asyncpg.DeadlockDetectedError:
            await self.undo(before, "40P01")
        else:
            self.commit()

    async def undo(self, before: tuple[list[Lease], list[Lease], list[Effect]], why: str) -> None:
        await self.connection.execute("rollback")
        self.restore(*before)
        self.model.count(why)

    async def run(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self.chance.random() < 0.35:
                await self.transaction()
            else:
                await self.alone()


async def drain(model: Model, connection: Connection) -> None:
    """Take every job that is left, and wait for those that are leased or scheduled."""

    async def empty() -> bool:
        since = model.now
        rows = await connection.fetch(DEQUEUE, 100, 5000)
        leases = [model.given(row, since) for row in rows]
        receipts = [(lease.id, lease.token) for lease in leases]
        assert sorted(await complete(connection, receipts)) == sorted(i for i, _ in receipts)
        model.apply(
            [
                effect
                for lease in leases
                for effect in (
                    Effect("claim", lease.id, lease.token, lease),
                    Effect("complete", lease.id, lease.token),
                )
            ]
        )
        left: int = await connection.fetchval("select count(*) from pgq.job")
        return left == 0

    await until(empty)


async def test_random_load_while_the_ring_turns(
    dsn: Dsn, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("PGQ_MODEL_SEED", "0")) or random.randrange(1, 10**9)
    seconds = float(os.environ.get("PGQ_MODEL_SECONDS", "20"))
    with capsys.disabled():
        print(f"\nPGQ_MODEL_SEED={seed}", flush=True)
    model = Model()
    async with sessions(dsn, SESSIONS + 1, deadlock_timeout="200ms") as (first, *others):
        # Jobs that lose several leases come back after their backoff.
        await first.execute(
            "select pgq_configure_queue('default', max_attempts => 32767, "
            "backoff_base => '1 ms', backoff_max => '50 ms')"
        )
        with turning(dsn) as rotations:
            deadline = time.monotonic() + seconds
            clients = [Session(model, c, seed + number) for number, c in enumerate(others)]
            tasks = [asyncio.create_task(client.run(deadline)) for client in clients]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await drain(model, first)
        archived = await first.fetch("select id, state from pgq.archive")
        for row in archived:
            job = model.jobs[row["id"]]
            if job.ended is None and job.asked and row["state"] == "cancelled":
                job.ended = (model.now, "cancelled")
        model.check_all()
        states = {"complete": "completed", "pop": "completed", "cancel": "cancelled"}
        expected = {
            job_id: states.get(job.ended[1], job.ended[1])
            for job_id, job in model.jobs.items()
            if job.ended is not None
        }
        assert len(archived) == len(expected), "a job was archived twice, or never"
        assert {row["id"]: row["state"] for row in archived} == expected
    with capsys.disabled():
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(model.counts.items()))
        print(f"{rotations.count} slots truncated in {seconds:g} s under: {told}", flush=True)
    assert rotations.count > seconds / 2  # it takes two ticks
