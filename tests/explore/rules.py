"""For each call, which answers the documentation allows in a world, and what they change.

A rule yields what the caller's transaction may be after the answer, and nothing if the answer is
wrong. A job that another open transaction has locked stops the rule of a call that has to wait:
such an answer must be explained by a later moment, after the end of that transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from .model import (
    GONE,
    LIVE,
    Committed,
    Job,
    Queue,
    Transaction,
    World,
    claimable,
    end,
    is_over,
    lost,
    state_after,
)

ENDED = ("completed", "cancelled", GONE)
DELAY, LEASE = 5_000, 60_000  # ms: of fail and release; of a claim, unless it says another


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the vocabulary: its kind, the names of jobs, and options."""

    kind: str
    names: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        options = (f"{name}={value}" for name, value in self.options.items())
        return " ".join([self.kind, *self.names, *options])

    @staticmethod
    def parse(text: str) -> Call:
        """Read what __str__ writes."""
        kind, *words = text.split()
        names = tuple(word for word in words if "=" not in word)
        return Call(kind, names, dict(word.split("=", 1) for word in words if "=" in word))

    def number(self, name: str, default: int) -> int:
        """Return an option that is a number."""
        return int(self.options.get(name, default))


@dataclass(frozen=True, slots=True)
class Failure:
    """The answer of a call that failed."""

    sqlstate: str


class Claimed(NamedTuple):
    """A job in the answer of a claim; of pop without token and expiry."""

    name: str
    token: int | None
    expires: int | None


Answer: TypeAlias = Any
"""A Failure, a scalar, or a tuple of names, of (name, id) or of Claimed."""


def rows(answer: Answer) -> tuple[Any, ...]:
    """Return the rows of an answer that has some."""
    if answer is None or isinstance(answer, (Failure, bool, int, str)):
        return ()
    found: tuple[Any, ...] = answer
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a call may see at the moment at which it takes effect."""

    world: World
    who: str
    mine: Transaction
    start: Committed  # what was committed when it was sent, or its snapshot
    tokens: Mapping[str, int]  # of the receipts that it uses

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs that are committed or its own."""
        jobs = {**self.world.base.jobs, **self.mine.jobs}
        if self.mine.queue is None or self.mine.queue.dropped != "force":
            return jobs
        return {
            n: j if j.state in ENDED or n in self.mine.spared else end(j, GONE, self.queue)
            for n, j in jobs.items()
        }

    @property
    def seen(self) -> Mapping[str, Job]:
        """The jobs that it sees who looks before it locks anything."""
        return {**self.start.jobs, **self.mine.jobs}

    @property
    def named(self) -> frozenset[str]:
        """Jobs after which open transactions of others have added jobs."""
        others = (t for who, t in self.world.open.items() if who != self.who)
        return frozenset(n for t in others for job in t.jobs.values() for n in job.after)

    @property
    def queue(self) -> Queue:
        return self.mine.queue or self.world.base.queue

    @property
    def held(self) -> frozenset[str]:
        return self.world.held(self.who)

    @property
    def busy(self) -> frozenset[str]:
        return self.world.busy

    @property
    def old(self) -> bool:
        """Whether it is under REPEATABLE READ or SERIALIZABLE."""
        return self.mine.snapshot is not None

    def sure(self, job: Job) -> bool:
        """Tell whether the call must see the job as it is."""
        name = job.name
        if name in self.held or name in self.busy or name in self.mine.jobs or name in self.named:
            return False
        return self.start.jobs.get(name) == job and self.start.queue == self.world.base.queue

    def changed(
        self, *jobs: Job, locked: Iterable[str] = (), freed: Iterable[Job] = ()
    ) -> Transaction:
        """Return its transaction with other versions of jobs, and more locks.

        A lease that is over and that the answer knows no more was `freed` by a tick before.
        """
        mine = {**self.mine.jobs, **{job.name: job for job in jobs}}
        names = frozenset(job.name for job in freed if job.name not in self.mine.jobs)
        return replace(self.mine, jobs=mine, locked=self.mine.locked.union(locked), freed=names)

    def over(self, job: Job) -> bool:
        """Tell whether the lease of a job is over."""
        return is_over(job, self.world.now)

    def good(self, name: str, jobs: Mapping[str, Job] | None = None) -> Job | None:
        """Return the job of a receipt, if that is good, or may be."""
        job = (self.jobs if jobs is None else jobs).get(name)
        is_good = job is not None and job.state == "active" and job.token == self.tokens[name]
        return job if is_good else None


Rule: TypeAlias = Callable[[View, Call, Answer], Iterator[Transaction]]


def refused(view: View, answer: Answer, *sqlstates: str) -> Iterator[Transaction]:
    """Explain an error that is documented for the state."""
    if isinstance(answer, Failure) and answer.sqlstate in sqlstates:
        yield view.mine.broken()


def _missing(view: View, answer: Answer) -> Iterator[Transaction]:
    """Explain what a call answers whose queue was dropped, or may have been when it was sent."""
    if view.queue.dropped or view.start.queue.dropped:
        yield from refused(view, answer, "42704")


# --- produce


def enqueue(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Add a job for each name; with a key that a live job has, none."""
    yield from _missing(view, answer)
    after = _after(call)
    key = call.options.get("key")
    if after and view.old:
        yield from refused(view, answer, "25001")
    if any(view.jobs.get(name) is None for name in after):
        yield from refused(view, answer, "P0002")
        return
    keys = [f"key:{key}"] if key else []
    gone = view.queue.dropped and (view.start.queue.dropped or view.mine.queue)
    if gone or view.held.intersection([*after, *keys]):
        return  # if the queue was there when the call was sent, the job may be added in vain
    locked = [*keys, *(name for name in after if view.jobs[name].state in LIVE)]
    known = view.seen if view.old else view.jobs
    existing = [j for j in known.values() if key and j.key == key and j.state in LIVE]
    for job in existing:
        yield from _duplicate(view, call, answer, job, locked)
    if existing or isinstance(answer, Failure):
        return
    if tuple(name for name, _ in answer) == call.names:
        new = _new(view, call)
        yield view.changed(*(replace(new, name=n, id=i) for n, i in answer), locked=locked)


def _after(call: Call) -> tuple[str, ...]:
    return tuple(call.options["after"].split(",")) if "after" in call.options else ()


def _new(view: View, call: Call) -> Job:
    """Return a job as it is when it is added; whether one of a group is ready tells the commit."""
    after = _after(call)
    delay = call.number("in", 0)
    group = call.options.get("group")
    states = {view.jobs[name].state for name in after}
    state = "scheduled" if delay else "ready"
    runs = call.options.get("on_dead") == "run"
    if group:
        state = "waiting"
    elif state_after(states, runs) != "ready":
        state = "waiting"  # the commit, or a tick, makes it dead
    return Job(
        name="",
        id=0,
        state=state,
        priority=call.number("prio", 0),
        due=view.world.now + delay if delay else 0,
        key=call.options.get("key"),
        group=group,
        after=after,
        runs=runs,
        waited=bool(delay),
    )


def _duplicate(
    view: View, call: Call, answer: Answer, job: Job, locked: list[str]
) -> Iterator[Transaction]:
    """Explain an enqueue with the key of a live job."""
    what = call.options.get("dup", "keep")
    if what == "error":
        yield from refused(view, answer, "23505")
    elif answer == ((job.name, job.id),):
        if what == "keep":
            yield view.changed(locked=locked)
        elif job.name not in view.held:
            state = "ready" if job.state == "scheduled" else job.state
            replaced = replace(job, state=state, due=0, waited=True)
            # One that is active is not even locked.
            yield view.changed(*([replaced] if job.state != "active" else []), locked=locked)


def _if(condition: bool, transaction: Transaction) -> Iterator[Transaction]:
    if condition:
        yield transaction


# --- consume


def _room(view: View, *, at_least: bool = True) -> int:
    """Return how many jobs a claim must have, or may have at most, whatever others do."""
    queues = (view.queue, view.world.base.queue, view.start.queue)
    limits = [queue.max_active or 1_000_000 for queue in queues]
    others = [t.jobs for who, t in view.world.open.items() if who != view.who]
    if at_least:
        # A job that was popped counts until that transaction ends.
        busy = {j.name for j in view.world.base.jobs.values() if j.state == "active"}
        return max(min(limits) - len(busy.union(view.mine.jobs, *others)), 0)
    if view.queue.is_loose:
        return 1_000_000
    # A transaction that ends a job may give its place to another one.
    more = (
        _active(view, jobs) - _active(view, {n: view.jobs[n] for n in jobs if n in view.jobs})
        for jobs in others
    )
    return max(max(limits) - _active(view, view.jobs) - sum(max(0, n) for n in more), 0)


def _active(view: View, jobs: Mapping[str, Job]) -> int:
    return sum(job.state == "active" and not view.over(job) for job in jobs.values())


def _in_order(view: View, taken: list[Job], batch: int) -> bool:
    """Tell whether a claim has taken the first of those that it had to see."""
    missed = [
        job
        for job in view.jobs.values()
        if view.sure(job) and claimable(job, view.world.now)
        if job.state == "ready" and job not in taken
    ]
    limit = min(batch, _room(view))
    if missed and len(taken) < limit and not _is_paused(view):
        return False
    ahead = [*itertools.combinations(taken, 2), *itertools.product(taken, missed)]
    return not any(_is_before(later, sooner) for sooner, later in ahead)


def _is_before(one: Job, other: Job) -> bool:
    """Tell whether a job must be claimed before another one."""
    if one.priority != other.priority:
        return one.priority > other.priority
    return not one.waited and not other.waited and one.id < other.id


def _is_paused(view: View) -> bool:
    return view.queue.paused or view.start.queue.paused


def _claim(view: View, rows: tuple[Claimed, ...], lease: int) -> list[Job] | None:
    """Return the jobs that rows of a claim stand for as they were, or None if they are wrong."""
    now = view.world.now
    taken: list[Job] = []
    for row in rows:
        job = view.jobs.get(row.name)
        if job is None or row.name in view.held or not claimable(job, now) or job in taken:
            return None
        if row.token is not None and (row.token <= job.token or row.expires != now + lease):
            return None
        taken.append(job)
    stopped = view.queue.paused and view.start.queue.paused
    return None if taken and (stopped or len(taken) > _room(view, at_least=False)) else taken


def _leased(job: Job, row: Claimed, lease: int) -> Job:
    assert row.token is not None
    assert row.expires is not None
    if job.state == "active":
        job = replace(job, lost=job.lost + 1, waited=True)
    return replace(
        job,
        state="active",
        token=row.token,
        lease=lease,
        expires=row.expires,
        due=0,
    )


def dequeue(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Lease the first jobs that nobody has locked, and wait for nobody."""
    yield from _missing(view, answer)
    if view.queue.max_active and view.old:
        yield from refused(view, answer, "25001")
    if isinstance(answer, Failure) or view.queue.dropped:
        return
    lease = call.number("for", LEASE)
    taken = _claim(view, answer, lease)
    if taken is not None and _in_order(view, taken, call.number("batch", 1)):
        rows = zip(taken, answer, strict=True)
        yield view.changed(*(_leased(job, row, lease) for job, row in rows))


def pop(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Complete the first jobs that nobody has locked, and wait for nobody."""
    yield from _missing(view, answer)
    if view.queue.max_active and view.old:
        yield from refused(view, answer, "25001")
    if isinstance(answer, Failure) or view.queue.dropped:
        return
    taken = _claim(view, answer, 0)
    if taken is not None and _in_order(view, taken, call.number("batch", 1)):
        yield view.changed(*(end(job, "completed", view.queue) for job in taken))


def claim(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Lease one given job; an error tells at once why that cannot be."""
    (name,) = call.names
    job = view.jobs.get(name)
    lease = call.number("for", LEASE)
    if isinstance(answer, Failure):
        yield from _not_claimed(view, name, job, answer)
        return
    taken = _claim(view, answer, lease)
    if taken and taken == [job]:
        yield view.changed(_leased(taken[0], answer[0], lease))


def _not_claimed(view: View, name: str, job: Job | None, answer: Failure) -> Iterator[Transaction]:
    now = view.world.now
    if name in view.held or name in view.busy or (job and job.state == "active"):
        yield from refused(view, answer, "55P03")
    if job and view.over(job) and job.told:
        yield from refused(view, answer, "P0002")
    if job and view.over(job) and job.lost:
        yield from refused(view, answer, "55000")
    if job is None or job.state not in LIVE or view.queue.dropped:
        yield from refused(view, answer, "P0002")
    if job and (not claimable(job, now) or view.queue.paused or not _room(view)):
        yield from refused(view, answer, "55000")
    if view.queue.max_active and view.old:
        yield from refused(view, answer, "25001")


def reclaim(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Take back all expired leases that nobody has locked; a tick may have been first."""
    yield from _missing(view, answer)
    if isinstance(answer, Failure):
        return
    expired = {
        job.name: job
        for job in view.jobs.values()
        if job.state == "active" and job.expires <= view.world.now and job.name not in view.held
    }
    if set(answer) <= expired.keys() and len(set(answer)) == len(answer):
        before = [job for job in expired.values() if job.name not in answer]
        yield view.changed(*(_taken_back(expired[name], view) for name in answer), freed=before)
        free = [job for job in before if job.name not in view.busy]
        if free != before:
            yield view.changed(*(_taken_back(expired[name], view) for name in answer), freed=free)


def _taken_back(job: Job, view: View) -> Job:
    if job.told:
        return end(job, "cancelled", view.queue)
    return lost(job, view.world.now)


# --- with a receipt


def heartbeat(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Renew leases; one that somebody has locked stays as it is, and is not lost."""
    jobs: list[Job] = []
    late: list[Job] = []
    told: dict[str, int] = dict(rows(answer))
    if isinstance(answer, Failure) or len(told) != len(rows(answer)):
        return
    for name in call.names:
        job = view.good(name)
        stuck = name in view.held or name in view.busy
        is_late = job is not None and view.over(job)
        if name not in told and (is_late or (job is None and name not in view.held)):
            late += [job] if job else []
            continue
        base = view.world.base.jobs.get(name)
        if stuck and base is not None and told.get(name) == (base.expires or None):
            continue
        if stuck and name not in told and (base is None or base.token != view.tokens[name]):
            continue
        if job is None or name in view.held or told.get(name) != view.world.now + job.lease:
            return
        jobs.append(replace(job, expires=told[name]))
    if told.keys() <= set(call.names):
        yield view.changed(*jobs, freed=late)


def _settle(
    view: View, call: Call, names: Iterable[str], ended: Callable[[Job], Job]
) -> Iterator[Transaction]:
    """End the attempts whose receipts are good, which must be those that were named."""
    done = set(names)
    good = {name: job for name in call.names if (job := view.good(name)) is not None}
    late = {name: job for name, job in good.items() if view.over(job)}
    # One whose lease is over may have been taken back before somebody else locked it.
    if view.held.intersection((good.keys() - late.keys()) | done):
        return
    if good.keys() - late.keys() <= done <= good.keys():
        kept = [ended(good[name]) for name in done]
        yield view.changed(*kept, freed=[late[name] for name in late.keys() - done])


def complete(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """End a job with its receipt."""
    if not isinstance(answer, Failure):
        yield from _completed(view, call, call.names if answer else ())


def complete_many(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """End jobs with their receipts; those that are stale are left out of the answer."""
    if isinstance(answer, Failure) or len(set(rows(answer))) != len(rows(answer)):
        return
    yield from _completed(view, call, rows(answer))


def _completed(view: View, call: Call, names: Iterable[str]) -> Iterator[Transaction]:
    yield from _settle(view, call, names, lambda job: end(job, "completed", view.queue))


def complete_and_dequeue(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """End jobs and claim the next ones, or neither if a receipt is stale."""
    yield from _missing(view, answer)
    if view.queue.max_active and view.old:
        yield from refused(view, answer, "25001")
    receipts = [view.good(name) for name in call.names]
    if any(job is None or view.over(job) for job in receipts):
        yield from refused(view, answer, "PQ001")
    if isinstance(answer, Failure) or view.held.intersection(call.names):
        return
    for mine in _completed(view, call, call.names):
        later = replace(view, mine=mine)
        yield from dequeue(later, call, answer)


def fail(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """End an attempt: another one comes after DELAY."""
    due = view.world.now + DELAY

    def ended(job: Job) -> Job:
        if job.told:
            return end(job, "cancelled", view.queue)
        return replace(
            job, state="scheduled", token=0, due=due, waited=True, lost=0, lease=0, expires=0
        )

    yield from _failed(view, call, answer, "scheduled", ended)
    if view.queue.dropped:
        yield from fail_dead(view, call, answer)


def fail_dead(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """End an attempt: there is no other one."""

    def ended(job: Job) -> Job:
        return end(job, "cancelled" if job.told else "dead", view.queue)

    yield from _failed(view, call, answer, "dead", ended)


def _failed(
    view: View, call: Call, answer: Answer, state: str, ended: Callable[[Job], Job]
) -> Iterator[Transaction]:
    if isinstance(answer, Failure):
        return
    (name,) = call.names
    job = view.good(name)
    expected = None if job is None else "cancelled" if job.told else state
    if answer is None or answer == expected:
        yield from _settle(view, call, (name,) if answer else (), ended)


def release(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Give a job back: ready at once, or after a delay."""
    delay = call.number("in", 0)

    def ended(job: Job) -> Job:
        if job.told:
            return end(job, "cancelled", view.queue)
        state = "scheduled" if delay else "ready"
        due = view.world.now + delay if delay else 0
        return replace(job, state=state, token=0, due=due, waited=True, lost=0, lease=0, expires=0)

    if not isinstance(answer, Failure):
        yield from _settle(view, call, call.names if answer else (), ended)


# --- jobs


def cancel(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Cancel a job that is not active; tell the worker of one that is."""
    (name,) = call.names
    job = view.jobs.get(name)
    if isinstance(answer, Failure) or name in view.held:
        return
    if job is None or job.state not in LIVE:
        yield from _if(answer is False, view.mine)
        return
    if job.state == "active" and "force" not in call.options:
        yield from _if(answer is False, view.changed(replace(job, told=True)))
        if not view.over(job):
            return
    yield from _if(answer is True, view.changed(end(job, "cancelled", view.queue)))


def move(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Give a job that is not active another priority or time; one of a group is refused."""
    (name,) = call.names
    job = view.jobs.get(name)
    yield from _missing(view, answer)
    if view.queue.dropped:
        yield from _if(answer is False, view.mine)
    # It waits for nobody where a look tells, which may be older than what others have done.
    for looked_at in (job, view.seen.get(name)):
        if looked_at is not None and looked_at.state == "active":
            yield from _if(answer is False, view.mine)
        elif looked_at is not None and looked_at.state in LIVE and looked_at.group is not None:
            yield from refused(view, answer, "0A000")
    if name in view.held:
        return
    if job is None or job.state not in LIVE:
        yield from _if(answer is False, view.mine)
        return
    if job.state == "active":
        if not view.over(job):
            return
        job = _taken_back(job, view)
    if job.group is not None:
        yield from refused(view, answer, "0A000")
        return
    moved = replace(job, priority=call.number("prio", job.priority), waited=True)
    if delay := call.number("in", 0):
        moved = replace(moved, state="scheduled", due=view.world.now + delay)
    yield from _if(answer is True, view.changed(moved))


def cancel_all(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Cancel all jobs that are live, whoever has to be waited for."""
    yield from _missing(view, answer)
    live = [job for job in view.jobs.values() if job.state in LIVE]
    if isinstance(answer, Failure) or view.held.intersection(job.name for job in live):
        return
    force = "force" in call.options
    told = [job for job in live if job.state == "active" and not force]
    new = [job for job in told if job.name not in view.seen]  # it may not have been seen
    expired = [job for job in told if view.over(job)]
    # One whose worker was told before, and whose lease is over, a tick may have cancelled.
    late = [job for job in live if job not in told and view.over(job) and job.told]
    fixed = [job for job in live if job not in [*told, *late] and view.sure(job)]
    doubtful = [job for job in live if job not in [*told, *late, *fixed]] + expired + late
    for some in _subsets(doubtful, int(answer) - len(fixed)):
        ended = [end(job, "cancelled", view.queue) for job in (*fixed, *some)]
        left = [replace(job, told=True) for job in told if job not in some]
        before = [job for job in late if job not in some]
        yield view.changed(*left, *ended, freed=before)
        if new:
            left = [job for job in left if job.name in view.seen]
            yield view.changed(*left, *ended, freed=before)


def _subsets(jobs: list[Job], size: int) -> Iterator[tuple[Job, ...]]:
    if size >= 0:
        yield from itertools.combinations(jobs, size)


def purge(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Delete jobs of some states, but those that others have locked."""
    yield from _missing(view, answer)
    if isinstance(answer, Failure):
        return
    states = call.options.get("states", "ready,scheduled,waiting").split(",")
    free = [j for j in view.jobs.values() if j.name not in view.held]
    fixed = [job for job in free if job.state in states and view.sure(job)]
    doubtful = [job for job in free if job.state in states and not view.sure(job)]
    doubtful += [job for job in free if view.over(job) and "ready" in states]
    for some in _subsets(doubtful, int(answer) - len(fixed)):
        yield view.changed(*(end(job, GONE, view.queue) for job in (*fixed, *some)))


def retry(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Make a dead job ready again."""
    (name,) = call.names
    job = view.jobs.get(name)
    keys = [f"key:{job.key}"] if job and job.key else []
    if view.held.intersection([name, *keys]):
        return
    if job is None or job.state != "dead":
        yield from _if(answer is False, view.mine)
        return
    if job.key and any(j.key == job.key and j.state in LIVE for j in view.jobs.values()):
        yield from refused(view, answer, "23505")
        return
    state = "waiting" if job.group else "ready"
    back = replace(job, state=state, waited=True, lost=0)
    yield from _if(answer is True, view.changed(back, locked=keys))


# --- queues


def _set(view: View, answer: Answer, **settings: Any) -> Iterator[Transaction]:
    yield from _missing(view, answer)
    if answer is None and "queue" not in view.held and not view.queue.dropped:
        queue = replace(view.queue, **settings)
        yield replace(view.changed(locked=["queue"]), queue=queue)


def pause(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Let no more jobs be claimed."""
    yield from _set(view, answer, paused=True)


def resume(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Let jobs be claimed again."""
    yield from _set(view, answer, paused=False)


def configure(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Change max_active."""
    # A first limit does not count what an open transaction has claimed.
    is_first = not view.queue.max_active and view.world.open.keys() - {view.who}
    is_loose = view.queue.is_loose or bool(is_first)
    yield from _set(view, answer, max_active=call.number("max_active", 1), is_loose=is_loose)


def drop(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Drop the queue; jobs are in the way, unless it is forced, and so is who changes it."""
    if view.old:
        yield from refused(view, answer, "25001")
    if view.world.open.keys() - {view.who}:
        yield from refused(view, answer, "55P03")
    force = "force" in call.options
    yield from _missing(view, answer)
    if not force and any(j.state in (*LIVE, "dead") for j in view.jobs.values()):
        yield from refused(view, answer, "55006")
        return
    for mine in _set(view, answer, dropped="force" if force else "yes"):
        yield replace(mine, spared=view.held)


def tick(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Do maintenance when the transaction commits."""
    if view.old:
        yield from refused(view, answer, "25001")
    elif answer is None:
        yield replace(view.mine, ticks=True)


def look(view: View, call: Call, answer: Answer) -> Iterator[Transaction]:
    """Tell the state of each job, which readers see without waiting; at rest none is live."""
    states = {job.name: job.state for job in view.jobs.values() if job.state != GONE}
    if "rest" in call.options and any(state in LIVE for state in states.values()):
        return
    if isinstance(answer, Failure):
        return
    # What ends after the drop of its queue is not kept.
    seen = dict(answer)
    if seen == states or (view.queue.dropped and seen.items() <= states.items()):
        yield view.mine
