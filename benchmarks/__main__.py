"""Compares pgq with other queues, on one private server.

    make bench [QUICK=1] [BENCH="--only loop --system pgq --system textbook"]

A full run over all scenarios and systems writes `benchmarks/RESULTS.md` and `benchmarks/plots`,
any other `.cache/bench`. Exit status 1 says that something failed, not that a bar was missed.
"""

import argparse
import dataclasses
import importlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import bootstrap
from pgserver import Server

from benchmarks import environment, plots, report
from benchmarks.figures import Participant, Results
from benchmarks.pgbench import BenchmarkError
from benchmarks.report import Section
from benchmarks.scenario import Context, Scenario
from benchmarks.stage import Stage
from benchmarks.system import System, UnavailableError

HERE = Path(__file__).resolve().parent
ROUNDS, QUICK_ROUNDS = 5, 1
SECONDS, QUICK_SECONDS = 3, 1

# Durability is PostgreSQL's default. Checkpoints are made before each run: these settings keep
# others out of it, and keep files of the WAL for reuse.
SETTINGS = {
    "checkpoint_timeout": "1h",
    "max_connections": "300",
    "max_wal_size": "16GB",
    "min_wal_size": "2GB",
    "shared_buffers": "512MB",
}

# The order of the report: pgq, the yardsticks, the peers.
_KINDS = ("own", "yardstick", "peer")


def main() -> int:
    """Run what the command line asks for."""
    scenarios = _names("scenarios", "scenario.py")
    systems = _names("systems", "system.py")
    parser = argparse.ArgumentParser(prog="benchmarks", description="Compare pgq with others.")
    parser.add_argument("--quick", action="store_true", help="a few seconds for each figure")
    parser.add_argument("--only", action="append", choices=scenarios, metavar="SCENARIO")
    parser.add_argument("--system", action="append", choices=systems, metavar="NAME")
    parser.add_argument("--rounds", type=int, metavar="N")
    parser.add_argument("--seconds", type=int, metavar="N", help="for each run of a round")
    parser.add_argument("--minutes", type=float, metavar="N", help="of the scenario soak")
    parser.add_argument("--output", type=Path, metavar="DIRECTORY")
    parser.add_argument("--list", action="store_true", help="show scenarios and systems")
    options = parser.parse_args()
    if options.list:
        print("scenarios:", *scenarios, "systems:", *systems, sep="\n    ")
        return 0
    partial = options.quick or options.only is not None or options.system is not None
    output = options.output or (bootstrap.CACHE / "bench" if partial else HERE)
    begin = time.monotonic()
    with Server(settings=SETTINGS) as server, ExitStack() as cleanup:
        stages, participants = _prepare(server, options.system or systems)
        for stage in stages:
            cleanup.callback(stage.close)
        benchmark = Benchmark(
            stages=stages,
            participants=participants,
            surroundings=environment.describe(server),
            quick=options.quick,
            rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
            seconds=options.seconds or (QUICK_SECONDS if options.quick else SECONDS),
            minutes=options.minutes,
            output=output,
        )
        for name in scenarios:
            if name in options.only if options.only else _load_scenario(name).standard:
                benchmark.run(name)
    print(f"{output / 'RESULTS.md'} ({time.monotonic() - begin:.0f} s)")
    return 1 if benchmark.has_failed() else 0


class Benchmark:
    """A run over scenarios; the report is written again after each of them."""

    def __init__(
        self,
        *,
        stages: Sequence[Stage],
        participants: Sequence[Participant],
        surroundings: Mapping[str, str],
        quick: bool,
        rounds: int,
        seconds: int,
        minutes: float | None,
        output: Path,
    ) -> None:
        self._stages = stages
        self._participants = participants
        self._surroundings = surroundings
        self._quick = quick
        self._rounds = rounds
        self._seconds = seconds
        self._minutes = minutes
        self._output = output
        self._sections: list[Section] = []

    def run(self, name: str) -> None:
        """Run one scenario and write the report."""
        scenario = _load_scenario(name)
        print(scenario.title, file=sys.stderr, flush=True)
        begin = time.monotonic()
        here = {stage.short for stage in self._stages}
        systems = {p.short: p for p in self._participants if p.short in here}
        results = Results(systems=systems)
        context = Context(
            place=HERE / "scenarios" / name,
            stages=self._stages,
            rounds=self._rounds,
            seconds=self._seconds,
            quick=self._quick,
            results=results,
            minutes=self._minutes,
        )
        for found in scenario.run(context):
            results.add(found)
        links = self._draw(name, scenario, results)
        self._sections.append(Section(scenario=scenario, results=results, plots=links))
        self._write()
        print(f"  {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    def has_failed(self) -> bool:
        """Tell whether something failed, or one of our own is missing."""
        failed = any(section.results.failures for section in self._sections)
        return failed or any(p.reason and p.kind != "peer" for p in self._participants)

    def _draw(self, name: str, scenario: Scenario, results: Results) -> list[str]:
        titles = {variant.name: variant.title for variant in scenario.variants}
        try:
            place = self._output / "plots"
            files = plots.draw(results, titles, scenario.title, place, name, matrix=scenario.matrix)
        except UnavailableError as error:
            results.remarks.append(f"No plot: {error}")
            return []
        return [str(file.relative_to(self._output)) for file in files]

    def _write(self) -> None:
        text = report.render(
            remark=self._remark(),
            environment=self._surroundings,
            systems=self._participants,
            sections=self._sections,
        )
        self._output.mkdir(parents=True, exist_ok=True)
        (self._output / "RESULTS.md").write_text(text)

    def _remark(self) -> str:
        rounds = "one round" if self._rounds == 1 else f"{self._rounds} rounds"
        warm = "" if self._quick else ", after a second in which the sessions plan"
        text = (
            "Written by `make bench`. All systems run on one server, by turns, each run in a fresh "
            f"database; {rounds} of {self._seconds} s where a section says nothing else{warm}. A "
            "figure is the median of the rounds, the spread their least and greatest, a ratio the "
            "median of the ratios within each round. Compare ratios, not figures: those are of "
            "this machine."
        )
        if self._quick:
            text = f"**A quick run, not to be relied on.** {text}"
        return text


def _prepare(server: Server, names: Sequence[str]) -> tuple[list[Stage], list[Participant]]:
    """Install all systems; return those that are there, and what the report tells of all."""
    stages: list[Stage] = []
    participants: list[Participant] = []
    for name in names:
        found, participant = _install(server, name)
        stages += found
        participants.append(participant)
    kinds = {p.short: _KINDS.index(p.kind) for p in participants}
    stages.sort(key=lambda stage: kinds[stage.short])
    participants.sort(key=lambda p: kinds[p.short])
    return stages, participants


def _install(server: Server, name: str) -> tuple[list[Stage], Participant]:
    """Install one system; a missing one has no stage, and says why."""
    participant = Participant(short=name, name=name, kind="peer")
    try:
        system: System = importlib.import_module(f"benchmarks.systems.{name}.system").SYSTEM
        participant = dataclasses.replace(
            participant, name=system.name, kind=system.kind, url=system.url
        )
        stage = Stage(server, name, system)
        participant = stage.participant()
        stage.install()
    except (UnavailableError, BenchmarkError, ImportError) as error:
        reason = f"{error}{_installation_failures()}"
        print(f"not available: {name}: {reason}", file=sys.stderr, flush=True)
        return [], dataclasses.replace(participant, reason=reason)
    return [stage], participant


def _installation_failures() -> str:
    """Return what the set-up could not install, to be read after what is missing now."""
    if not bootstrap.PEERS_FAILED.exists():
        return ""
    failed: dict[str, str] = json.loads(bootstrap.PEERS_FAILED.read_text())
    return "".join(f"; {name}: {reason}" for name, reason in failed.items())


def _load_scenario(name: str) -> Scenario:
    scenario = importlib.import_module(f"benchmarks.scenarios.{name}.scenario").SCENARIO
    assert isinstance(scenario, Scenario)
    return scenario


def _names(kind: str, file: str) -> list[str]:
    return sorted(path.parent.name for path in (HERE / kind).glob(f"*/{file}"))


if __name__ == "__main__":
    raise SystemExit(main())
