"""Steps real sessions through a scenario, one statement at a time, and writes down the history.

Which sessions are blocked is read from the server. The next step is taken only when each statement
that is under way has been answered or waits for somebody who will not go on by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import asyncpg

from .calls import KINDS, claimed, statement
from .check import Blocked, Event, Fault, Killed, Returned, Sent
from .model import Committed, Queue, World
from .rules import Answer, Call, Failure, rows
from .scenario import SETUP, Scenario, Step

Connection: TypeAlias = "asyncpg.Connection[Any]"
Choose: TypeAlias = Callable[[Sequence[str]], str]

CREATE = "select pgq_create_queue($1, max_active => $2, keep_completed => $3::int * interval '1h')"
BLOCKERS = "select pid, pg_blocking_pids(pid) from unnest($1::int[]) pid"


class Sessions(Protocol):
    """What gives a run its sessions, and the time."""

    async def connection(self, name: str) -> Connection:
        """Return the connection of a session; the empty name is the observer's."""
        ...

    async def later(self, ms: int) -> None:
        """Let time pass for all runs that are not at rest."""
        ...


@dataclass(slots=True)
class Session:
    """A session of a run: its connection, what is left of its script, and the call under way."""

    name: str
    connection: Connection
    script: list[Call]
    task: asyncio.Task[Answer] | None = None
    call: Call | None = None
    blocked_by: tuple[str, ...] = ()
    prepared: bool = False
    notified: list[str] = field(default_factory=list[str])

    def next(self) -> Call | None:
        """Return its next step: who has come to an end ends its transactions."""
        if self.task is not None:
            return None
        if self.script:
            return self.script[0]
        if self.connection.is_in_transaction():
            return Call("rollback")
        return Call("rollback_prepared") if self.prepared else None


class Run:
    """One scenario as it goes: the history, and what the sessions know of the jobs."""

    def __init__(self, stage: Sessions, scenario: Scenario, queue: str) -> None:
        self.stage = stage
        self.scenario = scenario
        self.queue = queue
        self.history: list[Event] = []
        self.steps: list[Step] = []  # as they were taken
        self.fault: Fault | None = None
        self.first = World()
        self.ids: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.tokens: dict[tuple[str, str], int] = {}
        self.sessions: dict[str, Session] = {}

    def name(self, job: int, payload: str | None = None) -> str:
        """Return the name of a job, or give it the one of its payload."""
        if job not in self.names and payload is not None:
            self.names[job] = payload
            self.ids[payload] = job
        return self.names.get(job, f"#{job}")

    def executed(self) -> Scenario:
        """Return the scenario with the order in which its steps were taken."""
        scenario = self.scenario
        return Scenario.of(
            scenario.setup, self.steps, keeps=scenario.keeps, max_active=scenario.max_active
        )

    async def play(self, choose: Choose | None) -> None:
        """Make the jobs and take all steps."""
        scenario = self.scenario
        setup = Session(SETUP, await self.stage.connection(SETUP), [])
        await setup.connection.fetchval(
            CREATE, self.queue, scenario.max_active, int(scenario.keeps)
        )
        now = await setup.connection.fetchval("select last_value from explore.clock")
        queue = Queue(keeps=scenario.keeps, max_active=scenario.max_active)
        self.first = World(now=now, base=Committed(queue=queue))
        self.sessions[SETUP] = setup
        for call in scenario.setup:
            await self.alone(setup, call)
        for name, calls in scenario.scripts.items():
            self.sessions[name] = Session(name, await self.stage.connection(name), [*calls])
        while enabled := await self.enabled():
            await self.step(self.sessions[(choose or self.follow)(enabled)])

    def follow(self, enabled: Sequence[str]) -> str:
        """Choose as the scenario's order says, and where that cannot be, the first one."""
        order = self.scenario.order[len(self.steps) :]
        return order[0] if order and order[0] in enabled else enabled[0]

    async def enabled(self) -> list[str]:
        """Return the sessions that can take a step; wait while all are under way."""
        while True:
            enabled = [s.name for s in self.sessions.values() if s.next() is not None]
            under_way = [s.task for s in self.sessions.values() if s.task is not None]
            if enabled or not under_way:
                return enabled
            await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            await self.settle()

    def is_free(self, session: Session) -> bool:
        """Tell whether there is nobody for whom a session could wait."""
        return not any(
            s.prepared or (s is not session and (s.task or s.connection.is_in_transaction()))
            for s in self.sessions.values()
        )

    async def step(self, session: Session) -> None:
        """Let a session take its next step; a BEGIN goes with what follows it."""
        call = session.next()
        assert call is not None
        if session.script:
            session.script.pop(0)
            self.steps.append((session.name, call))
        if call.kind == "later":
            await self.stage.later(int(call.names[0]))
        elif call.kind == "kill":
            await self.kill(self.sessions[call.names[0]])
        else:
            await self.start(session, call)
            await self.settle()
            if call.kind == "begin" and session.script and session.task is None:
                await self.step(session)

    async def alone(self, session: Session, call: Call) -> Answer:
        """Run a call beside which nothing happens, and return its answer."""
        if call.kind == "later":
            await self.stage.later(int(call.names[0]))
            return None
        await self.start(session, call)
        assert session.task is not None
        await self.settle()
        answered = self.history[-1]
        assert isinstance(answered, Returned)
        return answered.answer

    async def start(self, session: Session, call: Call) -> None:
        """Send a call."""
        keys = [((session.name, name), (SETUP, name)) for name in call.names]
        tokens = {own[1]: self.tokens.get(own, self.tokens.get(setup, 0)) for own, setup in keys}
        self.history.append(Sent(session.name, call, tokens))
        session.call = call
        session.task = asyncio.create_task(self.ask(session, call, tokens))

    async def ask(self, session: Session, call: Call, tokens: dict[str, int]) -> Answer:
        """Send a call and return its answer."""
        kind = KINDS[call.kind]
        connection = session.connection
        sql, arguments = statement(call, self.queue, self.ids, tokens)
        try:
            if call.kind == "wait":
                await self.listen(session)
            if kind.rule is None and not kind.alone:
                return (await connection.execute(sql.replace("$who", session.name))).upper()
            answered = await connection.fetch(sql, *arguments)
        except asyncpg.PostgresError as error:
            return Failure(error.sqlstate or "")
        if call.kind == "wake":
            await connection.execute("select 1")
            await asyncio.sleep(0)
            return bool(session.notified)
        return kind.read([tuple(row) for row in answered], self)

    async def listen(self, session: Session) -> None:
        """Have the session listen for the queue before it sleeps."""
        session.notified.clear()
        channel = await session.connection.fetchval("select pgq_channel($1)", self.queue)

        def notify(_connection: Any, _pid: int, channel: str, _payload: object) -> None:
            session.notified.append(channel)

        await session.connection.add_listener(channel, notify)

    async def kill(self, session: Session) -> None:
        """End the backend of a session, which gets another one."""
        observer = await self.stage.connection("")
        pid = session.connection.get_server_pid()
        await observer.fetchval("select pg_terminate_backend($1, 10000)", pid)
        self.history.append(Killed(session.name))
        if session.task is not None:
            await asyncio.gather(session.task, return_exceptions=True)
            session.task = None
        session.connection.terminate()
        session.connection = await self.stage.connection(session.name)
        await self.settle()

    async def settle(self) -> None:
        """Wait until each call under way has been answered or is blocked for good."""
        pause = 0.005
        while under_way := [s for s in self.sessions.values() if s.task is not None]:
            tasks = [s.task for s in under_way if s.task is not None]
            if len(under_way) == 1 and self.is_free(under_way[0]):
                await asyncio.wait(tasks)
            done, _ = await asyncio.wait(tasks, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if done:
                for session in under_way:
                    self.take_answer(session)
            elif await self.is_blocked(under_way):
                return
            pause = min(pause * 1.5, 0.02)

    def take_answer(self, session: Session) -> None:
        """Write down an answer that has come."""
        if session.task is None or not session.task.done():
            return
        answer, session.task, session.blocked_by = session.task.result(), None, ()
        self.history.append(Returned(session.name, answer))
        assert session.call is not None
        if session.call.kind == "prepare":
            session.prepared = answer == "PREPARE TRANSACTION"
        elif session.call.kind in ("commit_prepared", "rollback_prepared"):
            session.prepared = False
        if KINDS[session.call.kind].read is claimed:
            for row in rows(answer):
                if row.token is not None:
                    self.tokens[session.name, row.name] = row.token

    async def is_blocked(self, under_way: Sequence[Session]) -> bool:
        """Tell whether all wait for sessions that do not go on by themselves."""
        if any(s.call and KINDS[s.call.kind].bounded for s in under_way):
            return False
        pids = {s.connection.get_server_pid(): s.name for s in self.sessions.values()}
        observer = await self.stage.connection("")
        waiting = [s.connection.get_server_pid() for s in under_way]
        found = await observer.fetch(BLOCKERS, waiting)
        blockers = {pids[pid]: self.names_of(by, pids) for pid, by in found}
        if not all(blockers.values()) or any(s.task and s.task.done() for s in under_way):
            return False
        if _has_cycle(blockers):
            return False  # the server ends one of them
        for session in under_way:
            if session.blocked_by != blockers[session.name]:
                session.blocked_by = blockers[session.name]
                self.history.append(Blocked(session.name, session.blocked_by))
        return True

    def names_of(self, pids: Sequence[int], known: dict[int, str]) -> tuple[str, ...]:
        """Return who blocks; a prepared transaction has no process."""
        ready = [f"{s.name}'" for s in self.sessions.values() if s.prepared]
        found = [known.get(pid, f"process {pid}") for pid in pids if pid]
        return tuple(sorted({*found, *(ready if 0 in pids else [])}))


def _has_cycle(blockers: dict[str, tuple[str, ...]]) -> bool:
    """Tell whether sessions wait for one another."""
    left = dict(blockers)
    while free := [who for who, by in left.items() if not set(by) & left.keys()]:
        for who in free:
            del left[who]
    return bool(left)
