"""A scenario: jobs that are there, a script for each session, and the order in which they step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .rules import Call

SETUP = "S"  # the session that makes the jobs, and works them off in the end
Step = tuple[str, Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is run; without an order the scheduler chooses."""

    setup: tuple[Call, ...] = ()
    scripts: Mapping[str, tuple[Call, ...]] = field(default_factory=dict[str, tuple[Call, ...]])
    order: tuple[str, ...] = ()
    keeps: bool = True
    max_active: int = 0

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        head = f"queue: keeps={int(self.keeps)} max_active={self.max_active}"
        lines = [head, *(f"{SETUP}: {call}" for call in self.setup)]
        return "\n".join([*lines, *(f"{who}: {call}" for who, call in self.steps())])

    def steps(self) -> list[Step]:
        """Return the steps in their order, those that it does not name last."""
        left = {who: [*calls] for who, calls in self.scripts.items()}
        order = [*self.order, *(who for who, calls in left.items() for _ in calls)]
        return [(who, left[who].pop(0)) for who in order if left.get(who)]

    @staticmethod
    def of(
        setup: Sequence[Call], steps: Sequence[Step], *, keeps: bool = True, max_active: int = 0
    ) -> Scenario:
        """Return the scenario with these steps in this order."""
        scripts: dict[str, tuple[Call, ...]] = {}
        for who, call in steps:
            scripts[who] = (*scripts.get(who, ()), call)
        return Scenario(
            setup=tuple(setup),
            scripts=scripts,
            order=tuple(who for who, _ in steps),
            keeps=keeps,
            max_active=max_active,
        )

    @staticmethod
    def parse(text: str) -> Scenario:
        """Read a scenario; what follows `--` in a line is a comment."""
        setup: list[Call] = []
        steps: list[Step] = []
        options: dict[str, str] = {}
        for line in text.strip().splitlines():
            who, _, words = line.partition("--")[0].strip().partition(": ")
            if who == "queue":
                options = dict(word.split("=", 1) for word in words.split())
            elif who == SETUP:
                setup.append(Call.parse(words))
            elif who:
                steps.append((who, Call.parse(words)))
        return Scenario.of(
            setup,
            steps,
            keeps=options.get("keeps", "1") == "1",
            max_active=int(options.get("max_active", 0)),
        )
