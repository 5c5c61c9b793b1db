"""What the dashboard changes: single actions, and runs over many jobs.

Each change is one function of the extension. A run first looks which jobs are meant and shows how
many of what kind; once it is confirmed it changes exactly those, in steps. Whatever is tried is
logged with its user by the logger `pgq.dashboard.audit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, cast

from pgq._log import log, trouble
from pgq._models import JobState
from pgq._operate import bulk, sql, wording
from pgq._operate.client import SERVER_ERRORS, Client
from pgq._operate.search import Filter, Search
from pgq.dashboard._access import User
from pgq.dashboard._live import MOST_DEAD, Live, reason

Fields: TypeAlias = Mapping[str, str]
Verb: TypeAlias = Literal["retry", "run", "move", "cancel", "purge"]
Phase: TypeAlias = Literal["looking", "asking", "running", "done", "stopped", "failed"]

MOST: Final = 1_000_000  # jobs of one run
PURGEABLE: Final = ("ready", "scheduled", "waiting", "dead", "completed", "cancelled")
ENDED: Final = ("completed", "cancelled")  # of these pgq_queues has no numbers
STATES_OF: Final[Mapping[Verb, tuple[str, ...]]] = {
    "retry": ("dead",),
    "run": ("scheduled",),
    "move": ("ready", "scheduled", "waiting"),
    "cancel": ("ready", "scheduled", "waiting", "active"),
    "purge": PURGEABLE,
}
_PRIORITY: Final = re.compile(r"[+-]?[0-9]{1,5}")
_NUMBER: Final = re.compile(r"\d+")
_DIGITS: Final = 19  # of the largest id
_PURGE_STEP: Final = 1000
_MOST_COUNTED: Final = 10_000  # jobs of ENDED in the preview of a purge
_ENTRIES: Final = 300
_RUNS: Final = 50  # of a user that are kept
_SIGNATURES: Final = 12  # kinds of jobs that a preview shows

audit_log: Final = logging.getLogger("pgq.dashboard.audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An action that was tried."""

    number: int
    at: datetime
    user: str
    action: str
    target: Fields
    is_done: bool
    outcome: str


class Audit:
    """The last actions, for a page; all of them go to the log."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque(maxlen=_ENTRIES)
        self._count = 0

    def note(
        self, user: User, action: str, target: Fields, *, is_done: bool, outcome: str
    ) -> Entry:
        """Keep and log an action."""
        self._count += 1
        entry = Entry(
            number=self._count,
            at=datetime.now(UTC),
            user=user.name,
            action=action,
            target=target,
            is_done=is_done,
            outcome=outcome,
        )
        self.entries.appendleft(entry)
        facts = {"user": user.name, "action": action, **target, "outcome": outcome}
        shown = " ".join(f"{name}={json.dumps(value)}" for name, value in facts.items())
        level = logging.INFO if is_done else logging.WARNING
        audit_log.log(level, "%s", shown, extra=_about(entry))
        return entry

    def entry(self, number: int) -> Entry | None:
        """Return an action by its number."""
        return next((one for one in self.entries if one.number == number), None)


def _about(entry: Entry) -> dict[str, object]:
    """Return the `extra` of the record of an action."""
    about: dict[str, object] = {
        "pgq_user": entry.user,
        "pgq_action": entry.action,
        "pgq_outcome": entry.outcome,
    }
    if "queue" in entry.target:
        about["pgq_queue"] = entry.target["queue"]
    job_id = number_of(entry.target.get("id", ""))
    if job_id is not None:
        about["pgq_job_id"] = job_id
    return about


def number_of(text: str) -> int | None:
    """Return an id of a URL or a form; None for what is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        return None
    number = int(text)
    return number if number < 2**63 else None


class RefusedError(Exception):
    """The action was not done, for a reason to be shown."""


@dataclass(frozen=True, slots=True)
class Action:
    """A change of one thing.

    Args:
        label: of its button.
        fields: the names of what it is about.
        run: does it, and tells what has become of it.
        options: the names of what may be given beside.
    """

    label: str
    fields: tuple[str, ...]
    run: Callable[[Client, Fields], Awaitable[str]]
    options: tuple[str, ...] = ()


def _job_id(fields: Fields) -> int:
    job_id = number_of(fields["id"])
    if job_id is None:
        raise RefusedError("that is no id of a job")
    return job_id


async def _pause(client: Client, fields: Fields) -> str:
    await client.admin().pause(fields["queue"])
    return f"queue {fields['queue']} is paused: active jobs go on, no other starts"


async def _resume(client: Client, fields: Fields) -> str:
    await client.admin().resume(fields["queue"])
    return f"queue {fields['queue']} is resumed"


async def _unblock(client: Client, fields: Fields) -> str:
    if "id" in fields:
        place = (fields["queue"], fields["group"], _job_id(fields))
        for one in await client.fetch(sql.OTHERS_THAT_BLOCK, *place):
            raise RefusedError(f"now job {one['job_id']} blocks the group {fields['group']}")
    if not await client.admin().unblock(fields["queue"], fields["group"]):
        raise RefusedError(f"the group {fields['group']} is not blocked")
    return f"group {fields['group']} goes on; its dead job stays dead"


async def _retry(client: Client, fields: Fields) -> str:
    job_id = _job_id(fields)
    if not await client.queue().retry(job_id):
        raise RefusedError(f"there is no dead job {job_id} that the role may manage")
    return f"job {job_id} is ready again"


async def _run_now(client: Client, fields: Fields) -> str:
    job_id = _job_id(fields)
    if not await client.queue().move(job_id, run_at=datetime.fromtimestamp(0, UTC)):
        raise RefusedError(f"job {job_id} is active or has ended, or the role may not manage it")
    return f"job {job_id} is ready"


def destination(fields: Fields) -> tuple[str | None, int | None]:
    """Return the queue and the priority that jobs are to have, None where they keep theirs."""
    queue, text = fields.get("to_queue") or None, fields.get("to_priority", "").strip()
    if queue is None and not text:
        raise RefusedError("name another queue or priority")
    if not text:
        return queue, None
    if not _PRIORITY.fullmatch(text):
        raise RefusedError("a priority is a number from -32768 to 32767")
    return queue, int(text)


async def _move(client: Client, fields: Fields) -> str:
    job_id = _job_id(fields)
    queue, priority = destination(fields)
    if not await client.queue().move(job_id, queue=queue, priority=priority):
        raise RefusedError(f"job {job_id} is active or has ended, or the role may not manage it")
    place = [f"in queue {queue}"] if queue is not None else []
    place += [f"of priority {priority}"] if priority is not None else []
    return f"job {job_id} is {', '.join(place)}"


async def _cancel(client: Client, fields: Fields) -> str:
    job_id = _job_id(fields)
    if await client.queue().cancel(job_id):
        return f"job {job_id} is cancelled"
    if any(job["cancel_requested"] for job in await client.fetch(sql.JOB, job_id)):
        return f"job {job_id} is active: its worker is told at its next heartbeat"
    raise RefusedError(f"there is no live job {job_id} that the role may manage")


async def _pause_schedule(client: Client, fields: Fields) -> str:
    return _of_schedule(
        fields, "is paused", done=await client.admin().pause_schedule(fields["schedule"])
    )


async def _resume_schedule(client: Client, fields: Fields) -> str:
    return _of_schedule(
        fields, "is resumed", done=await client.admin().resume_schedule(fields["schedule"])
    )


def _of_schedule(fields: Fields, what: str, *, done: bool) -> str:
    if not done:
        raise RefusedError(f"there is no schedule {fields['schedule']} that the role may manage")
    return f"schedule {fields['schedule']} {what}"


async def _run_schedule(client: Client, fields: Fields) -> str:
    name = fields["schedule"]
    job_id = await client.admin().run_schedule(name)
    if job_id is None:
        raise RefusedError(f"there is no schedule {name} that the role may manage")
    return f"schedule {name}: job {job_id} is enqueued"


ACTIONS: Final[Mapping[str, Action]] = {
    "pause": Action("Pause", ("queue",), _pause),
    "resume": Action("Resume", ("queue",), _resume),
    "unblock": Action("Unblock", ("queue", "group"), _unblock, ("id",)),
    "retry": Action("Retry", ("queue", "id"), _retry),
    "run": Action("Run now", ("queue", "id"), _run_now),
    "move": Action("Move", ("queue", "id"), _move, ("to_queue", "to_priority")),
    "cancel": Action("Cancel", ("queue", "id"), _cancel),
    "pause-schedule": Action("Pause", ("schedule",), _pause_schedule),
    "resume-schedule": Action("Resume", ("schedule",), _resume_schedule),
    "run-schedule": Action("Run now", ("schedule",), _run_schedule),
}


async def queue_of(client: Client, target: Fields) -> str:
    """Return the queue of what an action is about, whatever the form says."""
    if "id" in target:
        job_id = _job_id(target)
        queues = [row["queue"] for row in await client.fetch(sql.IDS_OF, [job_id])]
        what = f"job {job_id}"
    elif "schedule" in target:
        name = target["schedule"]
        rows = await client.fetch(sql.SCHEDULES)
        queues = [row["queue"] for row in rows if row["name"] == name]
        what = f"schedule {name}"
    else:
        return target["queue"]
    if not queues:
        raise RefusedError(f"there is no {what} that the role may observe")
    return str(queues[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """Which jobs a run is about.

    Args:
        verb: what it does.
        wanted: what the jobs are like.
        ids: those that were selected, None for all that are like that.
        kind: their task, None for those that have none, and the last line of their error, with
            numbers left out; None: no matter.
        force: cancel active jobs, too.
        to_queue: the queue that they are to have; None leaves them where they are.
        to_priority: the priority that they are to have; None leaves it as it is.
    """

    verb: Verb
    wanted: Filter
    ids: tuple[int, ...] | None = None
    kind: tuple[str | None, str] | None = None
    force: bool = False
    to_queue: str | None = None
    to_priority: int | None = None

    def target(self) -> Fields:
        """Return what it is about, for the log."""
        named = {
            "queue": self.wanted.queue,
            "states": ",".join(self.wanted.states or ()),
            "task": self.wanted.task,
            "key": self.wanted.dedupe_key,
            "group": self.wanted.group,
            "worker": self.wanted.worker,
            "since": self.wanted.since,
            "until": self.wanted.until,
            "text": self.wanted.text,
            "error_text": self.wanted.error,
            "error": None if self.kind is None else self.kind[1],
            "taskless": "yes" if self.kind is not None and self.kind[0] is None else None,
            "ids": None if self.ids is None else ",".join(map(str, self.ids)),
            "force": "yes" if self.force else None,
            "to_queue": self.to_queue,
            "to_priority": None if self.to_priority is None else str(self.to_priority),
        }
        return {name: str(value) for name, value in named.items() if value}


@dataclass(slots=True)
class Run:
    """A change of many jobs, from the look to its end.

    Args:
        id: not to be guessed.
        user: who has begun it, and alone may go on with it.
        meant: which jobs.
        phase: how far it is.
        ids: the jobs, the oldest first, until the end; of a purge there are none.
        kinds: how many there are of each queue, state, task and error.
        left_out: how many of those that match cannot be meant, by the reason.
        is_cut: more jobs may match, or be deleted, than were counted.
        total: how many jobs there are.
        passed: of those, how many have been tried.
        changed: of those, how many were changed.
        low: the ids above it have been looked at.
        problem: why it has failed.
    """

    id: str
    user: User
    meant: Meant
    at: datetime
    phase: Phase = "looking"
    ids: list[int] = field(default_factory=list[int])
    kinds: Counter[tuple[str, str, str | None, str]] = field(
        default_factory=Counter[tuple[str, str, str | None, str]]
    )
    left_out: Counter[str] = field(default_factory=Counter[str])
    is_cut: bool = False
    total: int = 0
    passed: int = 0
    changed: int = 0
    low: int = 0
    problem: str | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Tell whether it is at work."""
        return self.phase in ("looking", "running")

    def shown_kinds(self) -> list[tuple[tuple[str, str, str | None, str], int]]:
        """Return the kinds with the most jobs."""
        return self.kinds.most_common(_SIGNATURES)


def signature(error: str | None) -> str:
    """Return the line of an error that says it, without the numbers in which it differs."""
    line = " ".join(wording.error_line(error).split())
    return _NUMBER.sub("#", line)[:300]


class Runs:
    """The runs of this process; they take turns, a step each."""

    def __init__(self, live: Live, audit: Audit) -> None:
        self._live = live
        self._audit = audit
        self._runs: dict[str, Run] = {}
        self._turn = asyncio.Lock()

    def get(self, run_id: str, user: User) -> Run | None:
        """Return a run of a user."""
        run = self._runs.get(run_id)
        return run if run is not None and run.user.name == user.name else None

    def of(self, user: User) -> list[Run]:
        """Return the runs of a user, the newest first."""
        return [run for run in reversed(self._runs.values()) if run.user.name == user.name]

    def begin(self, user: User, meant: Meant, may: Callable[[str], bool]) -> Run:
        """Look which jobs are meant.

        Args:
            user: who has begun it.
            meant: which jobs.
            may: tells whether this user may do so in a queue.
        """
        run = Run(secrets.token_urlsafe(12), user, meant, datetime.now(UTC))
        for one in [one for one in self.of(user) if not one.is_busy][_RUNS - 1 :]:
            del self._runs[one.id]
        self._runs[run.id] = run
        self._go_on(run, functools.partial(self._look_for, may=functools.cache(may)))
        return run

    def start(self, run: Run) -> None:
        """Change the jobs that the look has found."""
        if run.phase == "asking":
            run.phase = "running"
            self._note(run, f"begun: {wording.jobs(run.total)}", is_done=True)
            self._go_on(run, self._change)

    def stop(self, run: Run) -> None:
        """End a run; what was changed stays so."""
        if run.phase in ("looking", "asking", "running"):
            was_running = run.phase == "running"
            run.phase = "stopped"
            if not was_running and run.task is not None:
                run.task.cancel()
            if not was_running:
                self._end(run, "stopped before anything was changed")

    async def close(self) -> None:
        """End all runs after their step."""
        for run in self._runs.values():
            self.stop(run)
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _go_on(self, run: Run, work: Callable[[Run], Awaitable[None]]) -> None:
        async def go_on() -> None:
            try:
                await work(run)
            except SERVER_ERRORS as exc:
                self._fail(run, reason(exc))
            except Exception as exc:
                log.exception("a run of the dashboard failed", extra=trouble(exc))
                self._fail(run, repr(exc))

        run.task = asyncio.get_running_loop().create_task(go_on())

    def _fail(self, run: Run, problem: str) -> None:
        run.phase, run.problem = "failed", problem
        self._end(run, f"failed: {problem}; {outcome_of(run)}")

    @contextlib.asynccontextmanager
    async def _step(self) -> AsyncGenerator[Client]:
        """Lend the one connection of all runs for a step."""
        async with self._turn, self._live.call() as client:
            yield client

    async def _look_for(self, run: Run, may: Callable[[str], bool]) -> None:
        meant = run.meant
        if meant.verb == "purge":
            await self._count(run)
            await self._count_ended(run, may)
        elif meant.ids is not None:
            async with self._step() as client:
                rows = await client.fetch(sql.IDS_OF, list(meant.ids))
            self._add(run, rows, may)
        else:
            await self._search(run, may, meant.wanted, MOST)
        run.ids.reverse()
        run.phase = "asking"

    async def _search(
        self,
        run: Run,
        may: Callable[[str], bool],
        wanted: Filter,
        most: int,
        depth: int | None = None,
    ) -> None:
        async with self._step() as client:
            search = Search(client, wanted, known=self._live.known_id)
        pages, found = search.pages(sql.IDS_BETWEEN, limit=most, depth=depth), 0
        async with contextlib.aclosing(pages):
            while True:
                async with self._step() as search.client:
                    page = await anext(pages, None)
                if page is None:
                    break
                self._add(run, page, may)
                found += len(page)
                run.low = search.low
        run.is_cut = run.is_cut or found == most or search.low > 0
        self._live.known_id = search.known

    def _add(self, run: Run, rows: Sequence[dict[str, Any]], may: Callable[[str], bool]) -> None:
        meant = run.meant
        for row in rows:
            error = signature(row["last_error"])
            if meant.kind not in (None, (row["task"], error)):
                continue
            if row["state"] not in STATES_OF[meant.verb]:
                run.left_out[row["state"]] += 1
            elif meant.verb in ("run", "move") and row["group_key"] is not None:
                run.left_out["of a group, which stand in a line"] += 1
            elif not may(row["queue"]):
                run.left_out["of queues that are not yours to manage"] += 1
            else:
                run.ids.append(row["id"])
                run.kinds[row["queue"], row["state"], row["task"], error] += 1
        run.total = run.kinds.total()

    async def _count(self, run: Run) -> None:
        """Count what a purge would delete of jobs that pgq_queues counts."""
        queue = run.meant.wanted.queue or ""
        async with self._step() as client:
            rows = await client.fetch(sql.QUEUES)
        for row in rows:
            for state in run.meant.wanted.states or ():
                if row["queue"] == queue and (count := row.get(state) or 0):
                    run.kinds[queue, state, None, ""] = count
                    run.is_cut = run.is_cut or (state == "dead" and count >= MOST_DEAD)
        run.total = run.kinds.total()

    async def _count_ended(self, run: Run, may: Callable[[str], bool]) -> None:
        """Count what it would delete of the others, up to a bound."""
        states = tuple(one for one in run.meant.wanted.states or () if one in ENDED)
        if states:
            wanted = replace(run.meant.wanted, states=states)
            await self._search(run, may, wanted, _MOST_COUNTED, MOST)

    async def _change(self, run: Run) -> None:
        has_more = True
        while run.phase == "running" and has_more:
            async with self._step() as client:
                has_more = await self._change_some(client, run)
        if run.phase == "running":
            run.phase = "done"
        self._end(run, f"{run.phase}: {outcome_of(run)}")

    async def _change_some(self, client: Client, run: Run) -> bool:
        """Do a step, and tell whether there are more jobs."""
        verb, ids = run.meant.verb, run.ids[run.passed : run.passed + bulk.STEP]
        if verb == "purge":
            queue, states = run.meant.wanted.queue or "", run.meant.wanted.states
            count = await client.admin().purge(
                queue, cast("tuple[JobState, ...]", states), _PURGE_STEP
            )
            run.changed += count
            run.passed += count
            return count == _PURGE_STEP
        if verb == "retry":
            run.changed += len(await bulk.retry(client, ids))
        elif verb == "run":
            run.changed += len(await bulk.run_now(client, ids))
        elif verb == "move":
            meant = run.meant
            run.changed += len(await bulk.move(client, ids, meant.to_queue, meant.to_priority))
        else:
            run.changed += len(await bulk.cancel(client, ids, force=run.meant.force))
        run.passed += len(ids)
        return run.passed < run.total

    def _end(self, run: Run, outcome: str) -> None:
        run.ids.clear()  # there may be a million
        self._live.change()
        self._note(run, outcome, is_done=run.phase == "done")

    def _note(self, run: Run, outcome: str, *, is_done: bool) -> None:
        action, target = f"{run.meant.verb} many", run.meant.target()
        self._audit.note(run.user, action, target, is_done=is_done, outcome=outcome)


_DONE: Final[Mapping[Verb, str]] = {
    "retry": "ready again",
    "run": "ready",
    "move": "moved",
    "cancel": "cancelled",
    "purge": "deleted",
}


def outcome_of(run: Run) -> str:
    """Return what has become of the jobs of a run."""
    text = f"{wording.jobs_are(run.changed)} {_DONE[run.meant.verb]}"
    if (left := run.passed - run.changed) > 0:
        if run.meant.verb == "retry":
            why = "no longer dead, or a live job has the key"
        elif run.meant.verb == "run":
            why = "no longer scheduled"
        elif run.meant.verb == "move":
            why = (
                "at work or ended, older than the queue, or it is full or has a job of the same key"
            )
        elif run.meant.force:
            why = "no longer live"
        else:
            why = "no longer live, or active: then the worker is told"
        text += f"; {wording.jobs(left)} not: {why}"
    return text
