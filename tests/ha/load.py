"""The load of `make chaos` on a cluster, and what becomes of it when the leader changes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from bootstrap import CACHE
from pgserver import Server

from tests.chaos.load import Load
from tests.chaos.stage import Counts, Fault, Figures, Stage, install, perform, workplace
from tests.history.record import Recorder
from tests.python.sessions import Dsn, dsn_of, sessions, until

from .cluster import Cluster, Node

PROMOTED: Final = "select clock_timestamp() where not pg_is_in_recovery()"
FIRST: Final = """
    select extract(epoch from clock_timestamp() - $1)::float8
     where exists (select from pgq_jobs where state = 'completed' and finished_at > $1)"""

Act: TypeAlias = "Callable[[Change], Awaitable[None]]"


@dataclass(slots=True, kw_only=True)
class Change:
    """A change of the leader under load, and the seconds that its parts took."""

    stage: Stage
    cluster: Cluster
    old: Node
    new: Node
    begin: float = field(default_factory=time.monotonic)
    until_promoted: float = 0.0
    """From `begin` until the new leader took writes."""
    until_work: float = 0.0
    """From then until a job was completed there that was not completed before."""
    _since: datetime | None = None

    async def promoted(self) -> None:
        """Wait until the new leader takes writes, and let the stage go on there."""
        async with sessions(dsn_of(self.new.server), 1) as (session,):
            self._since = await until(lambda: session.fetchval(PROMOTED), pause=0.02)
        self.until_promoted = time.monotonic() - self.begin
        self.stage.server = self.new.server
        self.stage.forget()

    async def works(self) -> None:
        """Wait until the workers have completed a job at the new leader."""
        async with sessions(dsn_of(self.new.server), 1) as (session,):
            self.until_work = await until(lambda: session.fetchval(FIRST, self._since), pause=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of the jobs, and how long the change took."""

    figures: Figures
    change: Change

    def __str__(self) -> str:
        """Return a line for people."""
        figures, change = self.figures, self.change
        return (
            f"{figures.fault}: {figures.at_risk} jobs at risk, lost {figures.lost}, twice"
            f" {figures.twice}, tried again {figures.again}; promoted after"
            f" {change.until_promoted:.1f} s, first job {change.until_work:.1f} s later"
        )


def prepare(server: Server) -> None:
    """Install what the load needs; its role has the password of the superuser."""
    install(server, None)
    server.psql(f"alter role app password '{server.password}'")


async def run(name: str, cluster: Cluster, dsn: Dsn, act: Act, spared: Server) -> Result:
    """Let the leader change under load, and judge what became of the jobs."""
    changes: list[Change] = []

    async def inject(stage: Stage) -> Counts:
        old, new = await asyncio.to_thread(cluster.roles)
        change = Change(stage=stage, cluster=cluster, old=old, new=new)
        changes.append(change)
        await act(change)
        return Counts({"changes of the leader": 1})

    # A promotion may undo claims, as a crash may.
    fault = Fault(name=name, inject=inject, what="crash", warmup=1, baseline=4, recovery=4)
    with workplace(CACHE / "ha" / name) as directory:
        async with staged(fault, cluster, dsn, directory) as stage:
            figures = await perform(stage, spared)
    return Result(figures=figures, change=changes[0])


@contextlib.asynccontextmanager
async def staged(
    fault: Fault, cluster: Cluster, dsn: Dsn, directory: Path
) -> AsyncGenerator[Stage]:
    """Put a cluster under load; the logs of Patroni stay beside the histories."""
    leader, _ = await asyncio.to_thread(cluster.roles)
    with contextlib.ExitStack() as stack:
        for node in cluster.nodes:
            stack.callback(keep, node, directory)
        dsn = {**dsn, "user": "app"}
        load = Load(dsn, leader.server.environment(), directory)
        stack.callback(load.close)
        stage = Stage(
            fault=fault,
            chance=random.Random(1),
            directory=directory,
            server=leader.server,
            load=load,
            dsn=dsn,
            recorder=Recorder(directory, "stage"),
        )
        stack.callback(stage.forget)
        yield stage


def keep(node: Node, directory: Path) -> None:
    """Copy the log of a node."""
    (directory / f"patroni-{node.name}.log").write_bytes(node.log.read_bytes())
