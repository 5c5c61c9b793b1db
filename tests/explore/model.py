"""What the documentation promises of one queue, as a state machine without SQL, locks or time.

A `World` is what has been committed, what each open transaction has done, and the clock. A rule
(in `rules.py`) says which worlds may follow when a call has given an answer. Some things are not
known: a lease that is over may have been taken back by any tick, or may still be good; what is due
may have been made ready. The model leaves that open until an answer tells (`is_over`), or until a
tick with which nobody interferes. `Job.waited` marks jobs whose place among others of their
priority is not promised: they were delayed, given back, or have followed another one, or were
added to a group before others and committed after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

LIVE = ("ready", "scheduled", "waiting", "active")
GONE = "gone"  # deleted: purged, or completed where nothing is kept
BACKOFF = 500  # ms, the least that a job waits after its first failure, or a second lost lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job; a state that is not live is its end."""

    name: str
    id: int
    state: str = "ready"
    priority: int = 0
    token: int = 0  # of the last claim: good while the job is active
    lease: int = 0  # ms, as long as the last claim has asked for
    expires: int = 0  # ms
    due: int = 0  # ms, of a scheduled job
    lost: int = 0  # leases in a row
    key: str | None = None
    group: str | None = None
    after: tuple[str, ...] = ()
    runs: bool = False  # also after jobs that have died
    died: bool = False  # it is gone, and was dead or cancelled
    told: bool = False  # its worker is to cancel it
    waited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The settings that calls change; `dropped` says how."""

    dropped: str = ""
    paused: bool = False
    max_active: int = 0
    is_loose: bool = False  # some active jobs do not count
    keeps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What everybody sees."""

    jobs: Mapping[str, Job] = field(default_factory=dict[str, Job])
    queue: Queue = field(default_factory=Queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What an open transaction has done: its versions of jobs and queue, and what else it locks."""

    jobs: Mapping[str, Job] = field(default_factory=dict[str, Job])
    queue: Queue | None = None
    locked: frozenset[str] = frozenset()  # jobs, "key:..." and "queue"
    snapshot: Committed | None = None  # under REPEATABLE READ and SERIALIZABLE
    begun: int = 0  # what World.commits was then
    serializable: bool = False
    saved: Transaction | None = None
    failed: bool = False
    ticks: bool = False  # it does maintenance when it commits
    freed: frozenset[str] = frozenset()  # jobs whose leases some tick has ended, its answers tell
    spared: frozenset[str] = frozenset()  # jobs that others had locked when it dropped the queue
    calls: int = 0

    def touches(self) -> frozenset[str]:
        """Return what others may have to wait for."""
        return self.locked | self.jobs.keys()

    def broken(self) -> Transaction:
        """Return the transaction after an error: all is undone up to its savepoint."""
        return replace(
            self.saved or Transaction(),
            snapshot=self.snapshot,
            begun=self.begun,
            serializable=self.serializable,
            saved=self.saved,
            failed=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that is known at one moment."""

    now: int = 0
    base: Committed = field(default_factory=Committed)
    commits: int = 0  # any of them may have done maintenance
    open: Mapping[str, Transaction] = field(default_factory=dict[str, Transaction])
    sleepers: Mapping[str, int] = field(default_factory=dict[str, int])  # until when
    woken: frozenset[str] = frozenset()  # sleepers that must have been notified
    # What calls that are under way may have locked, at the moment of an effect.
    busy: frozenset[str] = field(default=frozenset(), compare=False)

    def held(self, but: str = "") -> frozenset[str]:
        """Return what open transactions of others have locked."""
        return frozenset[str]().union(
            *(transaction.touches() for who, transaction in self.open.items() if who != but)
        )

    def with_open(self, who: str, transaction: Transaction | None) -> World:
        """Return the world with another transaction of a session, or none."""
        others = {name: value for name, value in self.open.items() if name != who}
        return replace(self, open=others if transaction is None else {**others, who: transaction})


def is_over(job: Job, now: int) -> bool:
    """Tell whether the lease of a job is over: a tick may have taken it back, or may not."""
    return job.state == "active" and job.expires <= now


def claimable(job: Job, now: int) -> bool:
    """Tell whether a claim may have a job that nobody has locked."""
    if job.told:
        return False
    if job.state == "scheduled":
        return job.due <= now
    return job.state == "ready" or is_over(job, now)


def end(job: Job, state: str, queue: Queue) -> Job:
    """Return the job as it is when it has ended."""
    kept = queue.keeps or state != "completed"
    return Job(
        name=job.name,
        id=job.id,
        state=state if kept else GONE,
        key=job.key,
        group=job.group,
        died=state == GONE and job.state in ("dead", "cancelled"),
    )


def is_head(job: Job) -> bool:
    """Tell whether a job keeps the next one of its group waiting."""
    return job.state in ("ready", "scheduled", "active")


def commit(world: World, who: str) -> Iterator[World]:
    """Yield what may be when a transaction has committed."""
    mine = world.open[who]
    queue = mine.queue or world.base.queue
    jobs = {**world.base.jobs, **mine.jobs}
    others = replace(world.with_open(who, None), commits=world.commits + 1)
    if queue.dropped:
        # What others have locked, or had, goes with the next tick.
        stay = others.held() | mine.spared
        if not mine.queue:
            stay = frozenset(n for n, j in jobs.items() if j.state in LIVE)
        ended = {name: _dropped(job, queue) for name, job in jobs.items()}
        left = {name: job for name, job in jobs.items() if name in stay}
        if queue.dropped == "force" and any(ended[name] != left[name] for name in left):
            yield replace(others, base=Committed(jobs={**ended, **left}, queue=queue))
        # A lease that was over may have been taken back before.
        freed = {n: _dropped(_ticked(j, world), queue) for n, j in jobs.items()}
        if mine.queue and freed != ended:
            yield replace(others, base=Committed(jobs={**freed, **left}, queue=queue))
        jobs = ended
    after = replace(others, base=Committed(jobs=jobs, queue=queue))
    plain = mine.snapshot is None and not who.endswith("'")
    groups = {job.group for job in mine.jobs.values() if job.group}
    ticks = mine.ticks and not after.open and not after.busy
    for settled in settle(after, groups, mine.jobs, certain=plain):
        if ticks:
            yield from (_wake(world, ticked) for ticked in tick(settled))
            if plain:  # a transaction that is prepared leaves it to others
                continue
        yield _wake(world, settled)
        # Whoever commits may do maintenance in passing.
        passing = next(settle(settled, _groups(settled), jobs, certain=True))
        if passing != settled:
            yield _wake(world, passing)


def _groups(world: World) -> set[str]:
    return {job.group for job in world.base.jobs.values() if job.group}


def _dropped(job: Job, queue: Queue) -> Job:
    """Return what becomes of a job when its queue is dropped, or was before it was committed."""
    if job.state not in (*LIVE, "dead"):
        return job
    return end(job, GONE if queue.dropped == "force" else "cancelled", queue)


def _wake(before: World, after: World) -> World:
    """Return the world in which sleepers have been notified of jobs that became ready."""
    ready = {name for name, job in after.base.jobs.items() if job.state == "ready"}
    old = {name for name, job in before.base.jobs.items() if job.state == "ready"}
    if after.base.queue.paused or after.base.queue.dropped or not ready - old:
        return after
    asleep = {who for who, until in after.sleepers.items() if until > after.now}
    return replace(after, woken=after.woken | asleep)


def settle(
    world: World, groups: Iterable[str], changed: Iterable[str], *, certain: bool
) -> Iterator[World]:
    """Yield the world with the next jobs of groups and those that come after others let go.

    Of the latter only those that have changed, or that come after one that has. Where the promise
    is "at once or by the next tick", also the world as it was.
    """
    jobs = dict(world.base.jobs)
    held = world.held() | world.busy
    news = set(changed)
    doubtful = not certain
    for job in [*jobs.values()]:
        if job.state == "waiting" and job.after and news.intersection([job.name, *job.after]):
            before = [jobs[name] for name in job.after if name in jobs]
            state = state_after(["dead" if j.died else j.state for j in before], job.runs)
            if state == "waiting":
                continue
            if job.name in held:
                doubtful = True
            jobs[job.name] = replace(job, state=state, waited=True)
            news.add(job.name)
    for group in groups:
        members = sorted((j for j in jobs.values() if j.group == group), key=lambda j: j.id)
        waiting = [job for job in members if job.state == "waiting"]
        if waiting and not any(is_head(job) for job in members):
            doubtful |= any(job.name in held for job in members)
            jobs[waiting[0].name] = replace(
                waiting[0], state="ready", waited=_comes_later(world, waiting[0], members)
            )
    settled = replace(world, base=replace(world.base, jobs=jobs))
    yield settled
    if doubtful and settled != world:
        yield world


def _comes_later(world: World, head: Job, members: list[Job]) -> bool:
    """Tell whether a job of a group becomes ready behind jobs that were added after it."""
    added = [*world.base.jobs.values()]
    for transaction in world.open.values():
        added += transaction.jobs.values()
    return any(job.id > head.id for job in added if job.group != head.group) or any(
        job.state not in LIVE for job in members
    )


def state_after(states: Iterable[str], runs: bool) -> str:
    """Return what a job is that comes after jobs in these states."""
    states = [*states]
    if not runs and any(state in ("dead", "cancelled") for state in states):
        return "dead"
    return "waiting" if any(state in LIVE for state in states) else "ready"


def tick(world: World) -> Iterator[World]:
    """Yield what becomes of expired leases, of what is due and of who waits, by a tick."""
    held = world.held()
    jobs = {
        job.name: job if job.name in held else _ticked(job, world)
        for job in world.base.jobs.values()
    }
    if world.base.queue.dropped:
        jobs = {name: _dropped(job, world.base.queue) for name, job in jobs.items()}
    ticked = replace(world, base=replace(world.base, jobs=jobs))
    yield from settle(ticked, _groups(ticked), jobs, certain=True)


def has_work(world: World) -> bool:
    """Tell whether a tick may have changed a job."""
    return any(_ticked(job, world) != job for job in world.base.jobs.values())


def _ticked(job: Job, world: World) -> Job:
    if is_over(job, world.now):
        if job.told:
            return end(job, "cancelled", world.base.queue)
        return lost(job, world.now)
    if job.state == "scheduled" and job.due <= world.now:
        return replace(job, state="ready", due=0, waited=True)
    return job


def freed(world: World, names: Iterable[str]) -> World:
    """Return the world after a tick has ended the expired leases of these jobs."""
    jobs = {name: _ticked(world.base.jobs[name], world) for name in names}
    base = replace(world.base, jobs={**world.base.jobs, **jobs})
    return replace(world, base=base)


def lost(job: Job, now: int) -> Job:
    """Return a job whose expired lease was taken back; the second in a row costs a backoff."""
    state, due = ("scheduled", now + BACKOFF) if job.lost else ("ready", 0)
    return replace(
        job,
        state=state,
        due=due,
        token=0,
        lease=0,
        expires=0,
        lost=job.lost + 1,
        waited=True,
    )
