"""Scenarios: what is run, and the kind of them that most are, throughput.

Each directory of `benchmarks/scenarios` is one scenario: its module `scenario.py` has an object
`SCENARIO`. Beside it lie the scripts for pgbench, `<system>.sql`, or `<system>.<variant>.sql` for
one variant. A system without a script does not take part. In a script `{{name}}` stands for the
system's statement, the variant's variable, or the payload of that name.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgserver import ServerError

from benchmarks import pgbench
from benchmarks.figures import Bar, Failure, Figure, Results, Series
from benchmarks.pgbench import BenchmarkError
from benchmarks.stage import Stage
from benchmarks.system import PAYLOAD, UnavailableError

Found = Figure | Series | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run a scenario.

    `name` is part of file names, `variables` are pgbench's, `setup` is run on the database before.
    """

    name: str
    title: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    setup: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a scenario runs with; `stages` are the systems that are there."""

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
                values = {"payload": payload, **stage.statements, **variant.variables}
                return pgbench.render((place / name).read_text(), values)
        return None

    def turn(self, number: int) -> list[Stage]:
        """Return the systems in the order of a round: each round another one begins."""
        first = number % max(len(self.stages), 1)
        return [*self.stages[first:], *self.stages[:first]]

    def attempt(
        self, stage: Stage, variant: Variant, measure: Callable[[], Iterable[Found]]
    ) -> Iterator[Found]:
        """Yield what is measured, or that it failed."""
        label = f"{variant.title}, {stage.short}".lstrip(", ")
        try:
            for found in measure():
                if isinstance(found, Figure):
                    self.say(f"{label}: {found.value:,.4g} {found.metric}")
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
    """A scenario: `description` is for the report, `unit` that of its figures.

    `matrix` makes one table of all variants and metrics; `standard` is whether it runs unasked.
    """

    title: str
    description: str
    variants: Sequence[Variant] = (Variant(name=""),)
    unit: str = "jobs/s"
    bars: Sequence[Bar] = ()
    matrix: bool = False
    standard: bool = True

    @abstractmethod
    def run(self, context: Context) -> Iterable[Found]:
        """Measure; what is found is stored as it comes."""


@dataclass(frozen=True, kw_only=True)
class Throughput(Scenario):
    """How many jobs per second a script can do, checked against what is ready afterwards.

    A transaction of the script adds `adds` jobs and takes at most `takes`, a number or the name
    of the variant's variable. `ready` jobs are there before the run, and `backlog` more for each
    second of it: a system that comes near the end of them gets more, and runs again. `clients`
    may name a variable, too. `scripts` names another scenario whose scripts are used, `systems`
    those that take part, if not all do. `warm` is the number of seconds before those that count, in
    which the sessions plan, or names a variable; a quick run goes without the former. `most` limits
    the rounds.
    """

    adds: int = 0
    takes: int | str = 0
    ready: int = 0
    backlog: int = 0
    clients: int | str = 4
    scripts: str = ""
    systems: Sequence[str] = ()
    warm: int | str = 1
    most: int = 0

    def run(self, context: Context) -> Iterator[Found]:
        """Run all systems, variants and rounds; a system that fails is left out from there."""
        failed: set[tuple[str, str]] = set()
        backlogs = dict.fromkeys(
            (stage.short for stage in context.stages),
            self.ready + self.backlog * context.seconds,
        )
        for number in range(min(context.rounds, self.most or context.rounds)):
            for variant in self.variants:
                for stage in context.turn(number):
                    key = (variant.name, stage.short)
                    if key in failed or (self.systems and stage.short not in self.systems):
                        continue
                    try:
                        script = context.script(stage, variant, scenario=self.scripts)
                        if script is None:
                            continue
                        value = self._measure(context, stage, variant, script, backlogs)
                    except (BenchmarkError, ServerError) as error:
                        failed.add(key)
                        context.say(f"{variant.title} {stage.short}: FAILED: {error}".strip())
                        yield Failure(variant=variant.name, system=stage.short, reason=str(error))
                        continue
                    context.say(
                        f"round {number + 1}: {variant.title or self.title}, {stage.short}: "
                        f"{value:,.0f} {self.unit}"
                    )
                    yield Figure(
                        variant=variant.name, system=stage.short, round=number, value=value
                    )

    def _measure(
        self,
        context: Context,
        stage: Stage,
        variant: Variant,
        script: str,
        backlogs: dict[str, int],
    ) -> float:
        takes, clients = (
            int(variant.variables[number]) if isinstance(number, str) else number
            for number in (self.takes, self.clients)
        )
        if isinstance(self.warm, str):
            warm = int(variant.variables[self.warm])
            warm = min(warm, 2) if context.quick else warm
        else:
            warm = 0 if context.quick else self.warm
        margin = clients * takes
        while True:
            with stage.database(backlogs[stage.short]) as database:
                if variant.setup:
                    database.psql(variant.setup)
                before = stage.ready(database)
                run = pgbench.run(
                    database,
                    script,
                    seconds=warm + context.seconds,
                    clients=clients,
                    variables=variant.variables,
                    count=warm > 0,
                )
                after = stage.ready(database)
            if self.backlog > 0 and self.adds == 0 and after <= margin:
                backlogs[stage.short] = math.ceil(backlogs[stage.short] * 2.5)
                continue
            done = self._count(run.transactions, takes, before, after)
            possible = run.transactions * (takes or self.adds)
            if done < 0.99 * possible:
                context.remark(
                    f"{stage.system.name} {variant.title}: a claim came back with "
                    f"{done / run.transactions:.2f} of {takes} jobs."
                )
            if warm == 0:
                return done / run.seconds
            begin = min(run.counts) + warm
            counted = run.between(begin, begin + context.seconds) / context.seconds
            return counted * done / run.transactions

    def _count(self, transactions: int, takes: int, before: int, after: int) -> int:
        """Return how many jobs were done; raises `BenchmarkError` if that cannot be true."""
        added = transactions * self.adds
        if takes == 0:
            if after - before != added:
                raise BenchmarkError(f"{after - before} jobs are there of {added} enqueued")
            return added
        done = before + added - after
        if not 0 < done <= transactions * takes:
            raise BenchmarkError(
                f"{done} jobs are gone after {transactions} claims of at most {takes}"
            )
        return done
