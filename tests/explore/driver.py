"""Runs scenarios in one database after the other, and makes those small that show a fault."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncGenerator, Iterable

from pgserver import Server

from . import plans
from .scenario import Scenario
from .schedule import Run
from .shrink import shrink
from .stage import TOGETHER, Stage, stage

FRESH = 40  # scenarios that share a database
SOME = 3  # orders of a scenario that has too many of them

_numbers = itertools.count(1)


async def played(stage_: Stage, scenario: Scenario, chance: random.Random) -> AsyncGenerator[Run]:
    """Play a scenario in all orders, or one made by chance in some."""
    if scenario.order:
        yield await stage_.play(scenario)
    elif len(scenario.scripts) > 2 and sum(map(len, scenario.scripts.values())) > 4:
        for _ in range(SOME):
            yield await stage_.play(scenario, chance.choice)
    else:
        async for run in plans.schedules(stage_, scenario):
            yield run


async def explore(
    server: Server,
    scenarios: Iterable[Scenario],
    chance: random.Random,
    *,
    seconds: float = float("inf"),
    planted: str = "",
) -> AsyncGenerator[Run]:
    """Run scenarios until the time is over, and yield each run when it was checked."""
    deadline = time.monotonic() + seconds
    wanted = iter(scenarios)
    while (some := [*itertools.islice(wanted, FRESH)]) and time.monotonic() < deadline:
        async with stage(server, next(_numbers), planted) as opened:
            for scenario in some:
                async for _ in played(opened, scenario, chance):
                    if len(opened.runs) >= TOGETHER:
                        for run in await opened.rest():
                            yield run
                if time.monotonic() > deadline:
                    break
            for run in await opened.rest():
                yield run


async def smallest(server: Server, run: Run, planted: str = "") -> Run:
    """Return the run of the smallest scenario that shows the fault of a run."""
    found = run
    async with stage(server, next(_numbers), planted) as opened:

        async def fails(scenario: Scenario) -> bool:
            nonlocal found
            again = await opened.run(scenario)
            same = _kind(again) == _kind(run)
            found = again if same else found
            return same

        if await fails(run.executed()):
            await shrink(found.executed(), fails)
    return found


def _kind(run: Run) -> str | None:
    return run.fault.kind if run.fault is not None else None
