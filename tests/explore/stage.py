"""A database in which scenarios run one after the other, and come to rest together.

Each has a queue of its own. When a number of them have taken their steps, all leases and delays
pass, maintenance runs, each queue is worked off, and the histories are checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Generator
from typing import Any

import asyncpg
from pginstall import install
from pgserver import PATIENCE, Server

from .check import Fault, Later, Returned, Sent, check
from .model import LIVE
from .rules import Call, Failure
from .scenario import SETUP, Scenario
from .schedule import Choose, Connection, Run, Session

SETTINGS = {"fsync": "off", "autovacuum": "off", "max_prepared_transactions": "20"}
TEMPLATE = "explore_template"
EPOCH = 1_800_000_000_000  # ms since 1970, where the test's clock begins
CLOCK = f"""
create schema explore;
create sequence explore.clock start {EPOCH};
select nextval('explore.clock');
create or replace function pgq._now() returns timestamptz language sql volatile as $$
    select timestamptz 'epoch' + pg_catalog.pg_sequence_last_value('explore.clock'::regclass)
                               * interval '1 millisecond'
$$
"""
PASS = "select setval('explore.clock', last_value + $1) from explore.clock"
DROP = "select pgq_drop_queue($1, true)"
LOCKS = """
select format('%s %s %s', locktype, mode, relation::regclass) from pg_locks
 where pid = any($1::int[]) and locktype <> 'virtualxid' and pid <> pg_backend_pid()
union all select 'prepared ' || gid from pg_prepared_xacts
"""
TOGETHER = 20  # scenarios that come to rest together
ROUNDS = 40  # until all jobs must have been worked off, also one by one in a group
TICK = Call("tick")


class Stage:
    """A database with the sessions of all scenarios."""

    def __init__(self, server: Server, database: str) -> None:
        self.dsn: dict[str, Any] = {
            "host": server.host,
            "port": server.port,
            "user": server.user,
            "password": server.password,
            "database": database,
            "server_settings": {"deadlock_timeout": "20ms"},
        }
        self.connections: dict[str, Connection] = {}
        self.runs: list[Run] = []  # that are not at rest
        self.numbers = itertools.count(1)

    async def connection(self, name: str) -> Connection:
        """Return the connection of a session; the empty name is the observer's."""
        known = self.connections.get(name)
        if known is None or known.is_closed():
            self.connections[name] = known = await asyncpg.connect(**self.dsn)
        return known

    async def close(self) -> None:
        """Cut off all sessions."""
        for connection in self.connections.values():
            connection.terminate()
        self.connections.clear()

    async def later(self, ms: int) -> None:
        """Let time pass for all runs that are not at rest."""
        observer = await self.connection("")
        await observer.fetchval(PASS, ms)
        for run in self.runs:
            run.history.append(Later(ms))

    async def play(self, scenario: Scenario, choose: Choose | None = None) -> Run:
        """Take the steps of a scenario."""
        run = Run(self, scenario, f"q{next(self.numbers)}")
        self.runs.append(run)
        try:
            await asyncio.wait_for(run.play(choose), PATIENCE)
        except TimeoutError:
            run.fault = Fault(at=len(run.history), why="nothing goes on", kind="hang")
            await self.close()
        return run

    async def run(self, scenario: Scenario) -> Run:
        """Run a scenario alone."""
        run = await self.play(scenario)
        await self.rest()
        return run

    async def rest(self) -> list[Run]:
        """Let all runs come to rest, and return them checked."""
        setup = Session(SETUP, await self.connection(SETUP), [])
        for run in self.runs:
            await self._restore(run, setup)
        for ms in (120_000, 2_000):
            await self._tick(setup, ms)
        left = self.runs
        for number in range(ROUNDS):
            left = [
                run for run in left if not await self._work_off(run, setup, number == ROUNDS - 1)
            ]
            if left:
                await self._tick(setup, 2_000)
        held = await self._held()
        for run in self.runs:
            if held and run.fault is None:
                run.fault = Fault(at=len(run.history), why=f"still held: {held}", kind="held")
            run.fault = check(run.history, run.first) or run.fault
            with contextlib.suppress(asyncpg.UndefinedObjectError):
                await setup.connection.fetchval(DROP, run.queue)
        done, self.runs = self.runs, []
        if any(run.fault is not None for run in done):
            await self.close()
        return done

    async def _restore(self, run: Run, setup: Session) -> None:
        """Undo what keeps jobs from being claimed."""
        run.sessions[SETUP] = setup
        kinds = {call.kind for calls in run.scenario.scripts.values() for call in calls}
        if "pause" in kinds:
            await run.alone(setup, Call("resume"))
        if "configure" in kinds or run.scenario.max_active:
            await run.alone(setup, Call("configure", options={"max_active": "0"}))

    async def _tick(self, setup: Session, ms: int) -> None:
        """Let time pass and do maintenance, once for all."""
        await self.later(ms)
        await setup.connection.fetchval("select pgq_maintain()")
        for run in self.runs:
            run.history += [Sent(SETUP, TICK), Returned(SETUP, None)]

    async def _work_off(self, run: Run, setup: Session, is_last: bool) -> bool:
        """Claim and complete what can be claimed, and tell whether no job is left."""
        rows = await run.alone(setup, Call("dequeue", options={"batch": "100"}))
        if rows and not isinstance(rows, Failure):
            await run.alone(setup, Call("complete_many", tuple(row.name for row in rows)))
        options = {"rest": "yes"} if is_last else {}
        states = await run.alone(setup, Call("look", options=options))
        return isinstance(states, Failure) or not any(state in LIVE for _, state in states)

    async def _held(self) -> str:
        """Tell which locks sessions have without a transaction."""
        pids = [c.get_server_pid() for c in self.connections.values() if not c.is_closed()]
        rows = await (await self.connection("")).fetch(LOCKS, pids)
        return ", ".join(sorted(row[0] for row in rows))


@contextlib.contextmanager
def prepared(server: Server) -> Generator[None]:
    """Make a template database with pgq under the test's clock."""
    server.psql(f"create database {TEMPLATE}")
    install(server, TEMPLATE)
    server.psql(CLOCK, database=TEMPLATE)
    yield
    server.psql(f"drop database {TEMPLATE}")


@contextlib.asynccontextmanager
async def stage(server: Server, number: int, planted: str = "") -> AsyncGenerator[Stage]:
    """Open a fresh database for scenarios, with a fault planted; a used one grows slow."""
    name = f"explore_{number}"
    strategy = "strategy file_copy" if server.major > 14 else ""
    server.psql(f"create database {name} template {TEMPLATE} {strategy}")
    server.psql(planted, database=name)
    opened = Stage(server, name)
    try:
        yield opened
    finally:
        await opened.close()
        server.psql(f"drop database {name} with (force)")
