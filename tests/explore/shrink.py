"""Makes a scenario with a fault smaller: fewer sessions, fewer jobs, fewer steps, fewer changes."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from .scenario import Scenario, Step

Fails = Callable[[Scenario], Awaitable[bool]]


async def shrink(scenario: Scenario, fails: Fails) -> Scenario:
    """Return a scenario that still fails, and of which nothing can be left out."""
    last = None
    while scenario != last:
        last = scenario
        for cut in (_without_session, _without_job, _without_step, _moved, _usual):
            number = 0
            while (candidate := cut(scenario, number)) is not None:
                if candidate != scenario and await fails(candidate):
                    scenario = candidate
                else:
                    number += 1
    return scenario


def _without_session(scenario: Scenario, number: int) -> Scenario | None:
    names = [*scenario.scripts]
    if number >= len(names):
        return None
    return _with(scenario, [step for step in scenario.steps() if step[0] != names[number]])


def _without_job(scenario: Scenario, number: int) -> Scenario | None:
    """Leave out all calls of the setup with one job, or one call."""
    setup = scenario.setup
    names = list(dict.fromkeys(name for call in setup for name in call.names))
    if number < len(names):
        return replace(scenario, setup=tuple(c for c in setup if names[number] not in c.names))
    number -= len(names)
    if number >= len(setup):
        return None
    return replace(scenario, setup=(*setup[:number], *setup[number + 1 :]))


def _without_step(scenario: Scenario, number: int) -> Scenario | None:
    steps = scenario.steps()
    if number >= len(steps):
        return None
    return _with(scenario, [*steps[:number], *steps[number + 1 :]])


def _moved(scenario: Scenario, number: int) -> Scenario | None:
    """Swap two steps if that lets one session take more of its steps together."""
    steps = scenario.steps()
    if number + 1 >= len(steps):
        return None
    one, other = steps[number : number + 2]
    swapped = [*steps[:number], other, one, *steps[number + 2 :]]
    fewer = one[0] != other[0] and _changes(swapped) < _changes(steps)
    return _with(scenario, swapped) if fewer else scenario


def _changes(steps: Sequence[Step]) -> int:
    """Return how often another session goes on."""
    return sum(one[0] != other[0] for one, other in itertools.pairwise(steps))


def _usual(scenario: Scenario, number: int) -> Scenario | None:
    return None if number else replace(scenario, keeps=True, max_active=0)


def _with(scenario: Scenario, steps: Sequence[Step]) -> Scenario:
    return Scenario.of(scenario.setup, steps, keeps=scenario.keeps, max_active=scenario.max_active)
