"""The oracle: whether some order of the calls explains every answer of a history.

A call takes effect at one moment between being sent and its answer. What does not overlap has one
order; of what does, all are tried. All worlds that explain the history so far are kept; when none
is left, the last event is the fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from . import model
from .calls import KINDS, concerns, may_wait
from .model import Committed, Transaction, World
from .rules import Answer, Call, Failure, Rule, View

NOTHING = Transaction()
ADD = ("enqueue", "enqueue_many")
NAP = 10  # ms that a session sleeps at most which has just worked, and which nobody notifies


@dataclass(frozen=True, slots=True)
class Sent:
    """A session has sent a call, with the tokens of the receipts that it has."""

    who: str
    call: Call
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Returned:
    """It has got an answer."""

    who: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Blocked:
    """It waits for locks of others."""

    who: str
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Killed:
    """Its backend has been ended."""

    who: str


@dataclass(frozen=True, slots=True)
class Later:
    """Time has passed."""

    ms: int


Event: TypeAlias = "Sent | Returned | Blocked | Killed | Later"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A call that is under way."""

    sent: Sent
    answer: Answer
    start: Committed
    waited: bool = False
    done: bool = False  # it has taken effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Possibility:
    """A world that explains the events so far."""

    world: World = field(default_factory=World)
    pending: Mapping[str, Pending] = field(default_factory=dict[str, Pending])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The first event that nothing explains, and the worlds before it."""

    at: int
    why: str
    kind: str = ""  # the same for faults that are probably one
    worlds: tuple[World, ...] = ()


def check(history: Sequence[Event], first: World | None = None) -> Fault | None:
    """Return what is wrong in a history, if anything is."""
    known = [Possibility(world=first or World())]
    for number, event in enumerate(history):
        answer = _answer_of(history, number) if isinstance(event, Sent) else None
        after: list[Possibility] = []
        for possibility in known:
            for follower in _follow(possibility, event, answer):
                if follower not in after:
                    after.append(follower)
        if not after:
            worlds = tuple(possibility.world for possibility in known)
            why, kind = _describe(event, history[:number])
            return Fault(at=number, why=why, kind=kind, worlds=worlds)
        known = after
    return None


def _answer_of(history: Sequence[Event], number: int) -> Answer:
    sent = history[number]
    assert isinstance(sent, Sent)
    for event in history[number + 1 :]:
        if isinstance(event, Returned) and event.who == sent.who:
            return event.answer
    return None


def _describe(event: Event, before: Sequence[Event]) -> tuple[str, str]:
    """Return what is wrong with an event, and of what kind that is."""
    if isinstance(event, Later):
        return f"no order of the calls explains {event}", "later"
    calls = [e.call for e in before if isinstance(e, Sent) and e.who == event.who]
    if isinstance(event, Blocked):
        why = f"{event.who}: {calls[-1]}: must not wait for {', '.join(event.by)}"
        return why, f"{calls[-1].kind} waits"
    if isinstance(event, Returned):
        answer = event.answer
        kind = answer.sqlstate if isinstance(answer, Failure) else type(answer).__name__
        why = f"{event.who}: {calls[-1]}: no order of the calls explains {answer!r}"
        return why, f"{calls[-1].kind} {kind}"
    return f"no order of the calls explains {event}", "other"


def _follow(known: Possibility, event: Event, answer: Answer) -> Iterator[Possibility]:
    """Yield what explains one more event."""
    world, pending = known.world, known.pending
    if isinstance(event, Sent):
        mine = world.open.get(event.who, NOTHING)
        call = Pending(sent=event, answer=answer, start=mine.snapshot or world.base)
        yield replace(known, pending={**pending, event.who: call})
    elif isinstance(event, Returned):
        for reached in _effects(known, event.who):
            yield replace(reached, pending=_without(reached.pending, event.who))
    elif isinstance(event, Killed):
        prepared = world.with_open(event.who, None)
        yield Possibility(world=prepared, pending=_without(pending, event.who))
    elif isinstance(event, Blocked):
        if _may_wait(known, event):
            call = replace(pending[event.who], waited=True)
            yield replace(known, pending={**pending, event.who: call})
    else:
        for reached in _effects(known, None):
            yield replace(reached, world=replace(reached.world, now=reached.world.now + event.ms))


def _without(pending: Mapping[str, Pending], who: str) -> dict[str, Pending]:
    return {name: call for name, call in pending.items() if name != who}


def _effects(known: Possibility, last: str | None) -> Iterator[Possibility]:
    """Let calls that are under way take effect, in any order; with `last`, until it has."""
    if last is None or known.pending[last].done:
        yield known
        if last is not None:
            return
    for who, call in known.pending.items():
        if call.done:
            continue
        done = {**known.pending, who: replace(call, done=True)}
        for world in _effect(known, who, call):
            yield from _effects(Possibility(world=world, pending=done), last)


def _effect(known: Possibility, who: str, pending: Pending) -> Iterator[World]:
    """Yield the worlds in which a call has taken effect with the answer that it got."""
    world = replace(known.world, busy=_busy(known, who))
    call, answer = pending.sent.call, pending.answer
    mine = world.open.get(who)
    if call.kind in _CONTROL:
        yield from _CONTROL[call.kind](world, who, answer)
        return
    if call.kind in ("wait", "wake"):
        yield from _sleep(world, who, call, answer)
        return
    if mine is not None and mine.failed:
        if answer == Failure("25P02"):
            yield world
        return
    if isinstance(answer, Failure) and _is_excused(known, who, answer):
        yield world.with_open(who, mine.broken() if mine else None)
        return
    rule = KINDS[call.kind].rule
    assert rule is not None
    view = View(
        world=world,
        who=who,
        mine=mine or NOTHING,
        start=pending.start,
        tokens=pending.sent.tokens,
    )
    for changed in rule(view, call, answer):
        world = model.freed(view.world, changed.freed)
        counted = _counted(changed)
        after = world.with_open(who, counted)
        if mine is not None:
            yield after
            # A job for which it has waited stays locked, also if it is not what was looked for.
            more = concerns(call, world) & world.base.jobs.keys() - counted.touches() - view.held
            if pending.waited and more:
                locked = replace(counted, locked=counted.locked | more)
                yield world.with_open(who, locked)
        elif changed.failed:
            yield world
        else:
            yield from model.commit(after, who)
    if known.world.base.queue.dropped == "force" and not pending.start.queue.dropped:
        yield from _before_drop(known, pending, view, rule)


def _counted(changed: Transaction) -> Transaction:
    """Return a transaction after one more call."""
    return replace(changed, calls=changed.calls + 1, freed=frozenset[str]())


def _before_drop(known: Possibility, pending: Pending, view: View, rule: Rule) -> Iterator[World]:
    """Explain a call that was sent before a drop with force, and may still have met the jobs.

    Or those of them that have not ended since.
    """
    unsure = replace(pending.start, jobs={})
    before = replace(view, world=replace(known.world, base=pending.start), start=unsure)
    for changed in rule(before, pending.sent.call, pending.answer):
        yield known.world
        if view.who in known.world.open:
            yield known.world.with_open(view.who, _counted(changed))
        else:
            jobs = {**known.world.base.jobs, **changed.jobs}
            yield replace(known.world, base=replace(known.world.base, jobs=jobs))


def _busy(known: Possibility, who: str) -> frozenset[str]:
    """Return what others may have locked of which the model does not know."""
    busy = frozenset[str]()
    for other, pending in known.pending.items():
        if other != who and not pending.done:
            busy |= concerns(pending.sent.call, known.world)
    if _dropping(known.world) - {who}:
        busy |= known.world.base.jobs.keys()
    return busy


def _dropping(world: World) -> set[str]:
    """Return the transactions that drop the queue: what they lock of it is not promised."""
    return {who for who, mine in world.open.items() if mine.queue and mine.queue.dropped}


def _is_excused(known: Possibility, who: str, answer: Failure) -> bool:
    """Tell whether transactions themselves explain an error, whatever the call is."""
    world = known.world
    mine = world.open.get(who)
    if answer.sqlstate == "40001" and mine is not None:
        return _may_be_too_late(world, mine)
    # Transactions of several calls may wait for one another, single calls must not.
    return answer.sqlstate == "40P01" and any(
        transaction.calls > (other not in known.pending)
        for other, transaction in world.open.items()
    )


def _may_be_too_late(world: World, mine: Transaction) -> bool:
    """Tell whether something may have changed since the snapshot of a transaction."""
    if mine.snapshot is None or mine.serializable:
        return mine.serializable
    return mine.begun != world.commits or model.has_work(world)


def _may_wait(known: Possibility, event: Blocked) -> bool:
    """Tell whether a call may wait for all those for whom it does."""
    call = known.pending[event.who].sent.call
    if not may_wait(call) and not (call.kind in ADD and _dropping(known.world) & {*event.by}):
        return False
    wanted = concerns(call, known.world)
    reasons = {other: _is_reason(known, other, wanted) for other in event.by}
    # The server does not tell for which of several prepared transactions.
    prepared = [reason for other, reason in reasons.items() if other.endswith("'")]
    others = [reason for other, reason in reasons.items() if not other.endswith("'")]
    return all(others) and (not prepared or any(prepared))


def _is_reason(known: Possibility, other: str, wanted: frozenset[str]) -> bool:
    """Tell whether a session may have locked what a call wants."""
    if other in _dropping(known.world):
        return True
    taken = known.world.open.get(other, NOTHING).touches()
    if other in known.pending:
        taken |= concerns(known.pending[other].sent.call, known.world)
    return bool(wanted & taken)


# --- the beginning and the end of transactions


def _begin(world: World, who: str, answer: Answer) -> Iterator[World]:
    if not isinstance(answer, Failure) and who not in world.open:
        yield world.with_open(who, Transaction())


def _begin_old(world: World, who: str, answer: Answer) -> Iterator[World]:
    if not isinstance(answer, Failure):
        yield world.with_open(who, Transaction(snapshot=world.base, begun=world.commits))


def _begin_serializable(world: World, who: str, answer: Answer) -> Iterator[World]:
    if not isinstance(answer, Failure):
        mine = Transaction(snapshot=world.base, begun=world.commits, serializable=True)
        yield world.with_open(who, mine)


def _commit(world: World, who: str, answer: Answer) -> Iterator[World]:
    mine = world.open.get(who)
    if mine is None or (mine.failed and answer == "ROLLBACK"):
        yield world.with_open(who, None)
    elif isinstance(answer, Failure):
        yield from _refused(world, who, mine, answer)
    elif answer == "COMMIT" and not mine.failed:
        yield from model.commit(world, who)


def _refused(world: World, who: str, mine: Transaction, answer: Failure) -> Iterator[World]:
    """Explain why a transaction cannot be committed, or prepared."""
    live = any(j.state in (*model.LIVE, "dead") for j in world.base.jobs.values())
    dropping = mine.queue is not None and mine.queue.dropped == "yes"
    if (answer.sqlstate == "55006" and dropping and live) or (
        answer.sqlstate == "40001" and _may_be_too_late(world, mine)
    ):
        yield world.with_open(who, None)


def _rollback(world: World, who: str, answer: Answer) -> Iterator[World]:
    if answer == "ROLLBACK":
        yield world.with_open(who, None)


def _savepoint(world: World, who: str, answer: Answer) -> Iterator[World]:
    mine = world.open.get(who)
    if mine is None or mine.failed:
        yield world
    elif not isinstance(answer, Failure):
        yield world.with_open(who, replace(mine, saved=mine))


def _rollback_to(world: World, who: str, answer: Answer) -> Iterator[World]:
    mine = world.open.get(who)
    if mine is None or mine.saved is None:
        yield world if mine is None else world.with_open(who, mine.broken())
    elif not isinstance(answer, Failure):
        yield world.with_open(who, replace(mine.saved, saved=mine.saved))


def _prepare(world: World, who: str, answer: Answer) -> Iterator[World]:
    mine = world.open.get(who)
    if mine is None or mine.failed:
        yield world.with_open(who, None)
    elif isinstance(answer, Failure):
        yield from _refused(world, who, mine, answer)
    elif answer == "PREPARE TRANSACTION":
        yield world.with_open(who, None).with_open(f"{who}'", mine)


def _commit_prepared(world: World, who: str, answer: Answer) -> Iterator[World]:
    if who in world.open:
        yield world.with_open(who, world.open[who].broken())
    elif f"{who}'" not in world.open:
        yield world
    elif answer == "COMMIT PREPARED":
        yield from model.commit(world, f"{who}'")


def _rollback_prepared(world: World, who: str, answer: Answer) -> Iterator[World]:
    if who in world.open:
        yield world.with_open(who, world.open[who].broken())
    elif f"{who}'" not in world.open or answer == "ROLLBACK PREPARED":
        yield world.with_open(f"{who}'", None)


_CONTROL = {
    "begin": _begin,
    "begin_old": _begin_old,
    "begin_serializable": _begin_serializable,
    "commit": _commit,
    "rollback": _rollback,
    "savepoint": _savepoint,
    "rollback_to": _rollback_to,
    "prepare": _prepare,
    "commit_prepared": _commit_prepared,
    "rollback_prepared": _rollback_prepared,
}


def _has_work(world: World, who: str) -> bool:
    """Tell whether a session must not go to sleep."""
    queue, held = world.base.queue, world.held(who)
    return (
        not queue.paused
        and not queue.max_active
        and any(job.state == "ready" and job.name not in held for job in world.base.jobs.values())
    )


def _sleep(world: World, who: str, call: Call, answer: Answer) -> Iterator[World]:
    """Explain how long a session may sleep, or whether it was notified."""
    if call.kind == "wait":
        if isinstance(answer, Failure):
            if answer.sqlstate == "42704" and world.base.queue.dropped:
                yield world
        elif answer <= NAP:  # nobody notifies it
            yield replace(world, woken=world.woken - {who})
        elif answer <= 30_000 and not _has_work(world, who):
            until = {**world.sleepers, who: world.now + answer}
            yield replace(world, sleepers=until, woken=world.woken - {who})
        return
    if answer or who not in world.woken:
        sleepers = {name: until for name, until in world.sleepers.items() if name != who}
        yield replace(world, sleepers=sleepers, woken=world.woken - {who})
