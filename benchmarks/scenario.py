"""Scenarios: what is run, and the kind of them that most are, throughput.

Each directory of `benchmarks/scenarios` is one scenario: its module `scenario.py` has an object
`SCENARIO`. Beside it lie the scripts for pgbench, `<system>.sql`, or `<system>.<variant>.sql` for
one variant. A system without a script does not take part. In a script `{{name}}` stands for the
system's statement or the variant's variable of that name, `{{payload}}` for a payload, and
`{{payloads}}` for an array of as many as the variable `batch` says.
"""

import math
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pgserver import ServerError

from benchmarks import pgbench
from benchmarks.figures import Bar, Failure, Figure, Results, Series, number
from benchmarks.pgbench import BenchmarkError
from benchmarks.stage import Stage
from benchmarks.system import PAYLOAD, PAYLOADS, UnavailableError

Found = Figure | Series | Failure

# Jobs for each second at most, since filling takes longer than a quick run.
_QUICK_BACKLOG = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run a scenario.

    `name` is part of file names, `variables` are pgbench's, `setup` is run on the database before.
    `of` names another variant that the report compares it with; `quick` is whether a quick run
    has it.
    """

    name: str
    title: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    setup: str = ""
    of: str = ""
    quick: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a scenario runs with; `stages` are the systems that are there and take part."""

    place: Path
    stages: Sequence[Stage]
    rounds: int
    seconds: int
    quick: bool
    results: Results
    minutes: float | None = None

    def script(
        self, stage: Stage, variant: Variant, payload: str = PAYLOAD, scenario: str = ""
    ) -> str | None:
        """Return the script of a system, or None if it does not take part.

        `scenario` names another scenario whose script it is.
        """
        place = self.place.parent / scenario if scenario else self.place
        for name in (f"{stage.short}.{variant.name}.sql", f"{stage.short}.sql"):
            if (place / name).exists():
                values = {"payload": payload, "payloads": PAYLOADS}
                values |= {**stage.statements, **variant.variables}
                return pgbench.render((place / name).read_text(), values)
        return None

    def turn(self, number: int) -> list[Stage]:
        """Return the systems in the order of a round, which is another one in each."""
        return random.Random(number).sample(self.stages, len(self.stages))

    def chosen(self, variants: Sequence[Variant]) -> list[Variant]:
        """Return the variants that this run has."""
        return [variant for variant in variants if variant.quick or not self.quick]

    def attempt(
        self, stage: Stage, variant: Variant, measure: Callable[[], Iterable[Found]]
    ) -> Iterator[Found]:
        """Yield what is measured, or that it failed; nothing if it did so before."""
        if self.results.has_failed(variant.name, stage.short):
            return
        label = f"{variant.title}, {stage.short}".lstrip(", ")
        try:
            for found in measure():
                if isinstance(found, Figure):
                    text = f"{number(found.value)} {found.metric}"
                    self.say(f"round {found.round + 1}: {label}: {text}")
                yield found
        except (BenchmarkError, ServerError, UnavailableError) as error:
            self.say(f"{label}: FAILED: {error}")
            yield Failure(variant=variant.name, system=stage.short, reason=str(error))

    def remark(self, text: str) -> None:
        """Add a line to what the report says about the scenario."""
        if text not in self.results.remarks:
            self.results.remarks.append(text)

    def say(self, text: str) -> None:
        """Tell the progress."""
        print(f"  {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Scenario(ABC):
    """A scenario: `description` is for the report, `settings` are the server's while it runs.

    `matrix` makes one table of all variants and metrics; `standard` is whether it runs unasked.
    `most` are the most rounds, 0 for as many as are asked for. `systems` are those that take part,
    if not all do.
    """

    title: str
    description: str
    variants: Sequence[Variant] = (Variant(name=""),)
    bars: Sequence[Bar] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    matrix: bool = False
    standard: bool = True
    most: int = 0
    systems: Sequence[str] = ()

    @abstractmethod
    def run(self, context: Context) -> Iterable[Found]:
        """Measure; what is found is stored as it comes."""


class _ExhaustedError(Exception):
    """A system came near the end of its backlog."""


@dataclass(frozen=True, kw_only=True)
class Throughput(Scenario):
    """How many jobs per second a script can do, checked against what is live afterwards.

    A transaction of the script adds `adds` jobs and takes at most `takes`. `ready` jobs are there
    before the run, and `backlog` more for each second of it. `warm` is the number of seconds
    before those that count, in which the sessions plan. Where one of these is text, it names the
    variant's variable that has the number. `seconds` are the least that count.
    `scripts` names another scenario whose scripts are used. A quick run counts all of a shorter
    run, even if its backlog ends before.
    """

    adds: int | str = 0
    takes: int | str = 0
    ready: int = 0
    backlog: int | str = 0
    clients: int | str = 4
    scripts: str = ""
    warm: int | str = 1
    seconds: int = 0

    def run(self, context: Context) -> Iterator[Found]:
        """Run all systems, variants and rounds; a system that fails is left out from there."""
        backlogs: dict[str, int] = {}
        for turn in range(context.rounds):
            for variant in context.chosen(self.variants):
                yield from self._round(context, turn, variant, backlogs)
        if self.backlog and backlogs:
            titles = {variant.name: variant.title for variant in self.variants}
            sizes = [f"{titles[name]}: {jobs:,} jobs" for name, jobs in backlogs.items()]
            context.remark(f"The backlogs: {'; '.join(sizes)}.")

    def _round(
        self, context: Context, turn: int, variant: Variant, backlogs: dict[str, int]
    ) -> Iterator[Found]:
        """Run all systems on equal backlogs, and again on larger ones if they were too small."""
        figures: list[Found] = []
        for stage in context.turn(turn):
            measure = partial(self._measure, context, stage, variant, turn, backlogs)
            try:
                for found in context.attempt(stage, variant, measure):
                    if isinstance(found, Failure):
                        yield found
                    else:
                        figures.append(found)
            except _ExhaustedError:
                context.say(f"{variant.title}: again with a larger backlog")
                backlogs[variant.name] = math.ceil(backlogs[variant.name] * 2.5)
                yield from self._round(context, turn, variant, backlogs)
                return
        yield from figures

    def _measure(
        self, context: Context, stage: Stage, variant: Variant, turn: int, backlogs: dict[str, int]
    ) -> list[Found]:
        script = context.script(stage, variant, scenario=self.scripts)
        if script is None:
            return []
        adds, takes, clients, backlog, warm = (
            int(variant.variables[value]) if isinstance(value, str) else value
            for value in (self.adds, self.takes, self.clients, self.backlog, self.warm)
        )
        seconds = context.seconds if context.quick else max(context.seconds, self.seconds)
        # Connecting takes a part of it, and the log leaves out the seconds that are not whole.
        length = seconds + clients // 64 + (0 if context.quick else warm + 2)
        backlog = min(backlog, _QUICK_BACKLOG) if context.quick else backlog
        jobs = backlogs.setdefault(variant.name, self.ready + backlog * length)
        with stage.database(jobs) as database:
            if variant.setup:
                database.psql(variant.setup)
            before = stage.live(database)
            run = pgbench.run(
                database,
                script,
                seconds=length,
                clients=clients,
                variables=variant.variables,
                count=not context.quick,
            )
            after = stage.live(database)
        if backlog > 0 and after <= clients * takes and not context.quick:
            raise _ExhaustedError
        done = self._count(run.transactions, adds, takes, before, after)
        if done < 0.99 * run.transactions * (takes or adds):
            context.remark(
                f"{stage.system.name} {variant.title}: a claim came back with "
                f"{done / run.transactions:.2f} of {takes} jobs."
            )
        rate = run.transactions / run.seconds if context.quick else run.per_second(warm, seconds)
        value = rate * done / run.transactions
        return [Figure(variant=variant.name, system=stage.short, round=turn, value=value)]

    def _count(self, transactions: int, adds: int, takes: int, before: int, after: int) -> int:
        """Return how many jobs were done; raises `BenchmarkError` if that cannot be true."""
        added = transactions * adds
        if takes == 0:
            if after - before != added:
                raise BenchmarkError(f"{after - before} jobs are there of {added} enqueued")
            return added
        done = before + added - after
        if not 0 < done <= transactions * takes:
            raise BenchmarkError(
                f"{done} jobs were completed by {transactions} claims of at most {takes}"
            )
        return done
