"""Compares pgq with other queues, on one private server.

    make bench [QUICK=1] [BENCH="--only loop --system pgq --system textbook"]

A full run over all scenarios and systems writes `benchmarks/RESULTS.md` and `benchmarks/plots` at
its end, one of a scenario alone that is not standard a report of that name; any other writes
`.cache/bench`. Exit status 1 says that something failed, not that a bar was missed.
"""

import argparse
import dataclasses
import importlib
import json
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

import bootstrap
from pgserver import Server

from benchmarks import environment, plots, report
from benchmarks.figures import Participant, Results
from benchmarks.pgbench import BenchmarkError
from benchmarks.report import Section
from benchmarks.scenario import Context, Scenario
from benchmarks.stage import Stage, altered
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

_VOLATILE = "The data directory is in memory, where durability costs nothing."

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
    chosen = options.only or [name for name in scenarios if _load_scenario(name).standard]
    lasting = _lasting_report(options)
    output: Path = options.output or bootstrap.CACHE / "bench"
    if lasting and not options.output:
        output /= options.only[0] if options.only else "full"
        if output.exists():
            shutil.rmtree(output)
    report_file = output / (lasting or "RESULTS.md")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    begin = time.monotonic()
    with Server(settings=SETTINGS) as server:
        stages, participants = _prepare(server, options.system or systems)
        benchmark = Benchmark(
            server=server,
            stages=stages,
            participants=participants,
            quick=options.quick,
            rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
            seconds=options.seconds or (QUICK_SECONDS if options.quick else SECONDS),
            minutes=options.minutes,
            report_file=report_file,
        )
        for name in scenarios:
            if name in chosen:
                benchmark.run(name)
    if lasting and not options.output:
        report_file = _publish(report_file, [name for name in scenarios if name not in chosen])
    print(f"{report_file} ({time.monotonic() - begin:.0f} s)")
    return 1 if benchmark.has_failed() else 0


def _lasting_report(options: argparse.Namespace) -> str:
    """Return the name of the report if it is one that stays, and nothing for a part of one."""
    if options.quick or options.system or options.rounds or options.seconds:
        return ""
    if not options.only:
        return "RESULTS.md"
    (name, *others) = options.only
    return "" if others or _load_scenario(name).standard else f"{name.upper()}.md"


def _publish(report_file: Path, others: Iterable[str]) -> Path:
    """Copy a report and its plots here; of the old plots only those of other scenarios stay."""
    place = HERE / "plots"
    place.mkdir(exist_ok=True)
    for old in place.glob("*.svg"):
        if not any(old.stem == name or old.stem.startswith(f"{name}_") for name in others):
            old.unlink()
    for new in report_file.parent.glob("plots/*.svg"):
        shutil.copyfile(new, place / new.name)
    return Path(shutil.copyfile(report_file, HERE / report_file.name))


class Benchmark:
    """A run over scenarios; the report is written again after each of them."""

    def __init__(
        self,
        *,
        server: Server,
        stages: Sequence[Stage],
        participants: Sequence[Participant],
        quick: bool,
        rounds: int,
        seconds: int,
        minutes: float | None,
        report_file: Path,
    ) -> None:
        self._server = server
        self._stages = stages
        self._participants = participants
        self._surroundings = environment.describe(server)
        self._quick = quick
        self._rounds = rounds
        self._seconds = seconds
        self._minutes = minutes
        self._file = report_file
        self._sections: list[Section] = []
        self._has_ended_early = False
        if self._is_volatile():
            print(_VOLATILE, file=sys.stderr, flush=True)

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
            stages=[s for s in self._stages if s.short in (scenario.systems or here)],
            rounds=min(self._rounds, scenario.most or self._rounds),
            seconds=self._seconds,
            quick=self._quick,
            results=results,
            minutes=self._minutes,
        )
        try:
            with altered(self._server, scenario.settings):
                for found in scenario.run(context):
                    results.add(found)
            for stage in self._stages:
                stage.drop_backlogs()
        except Exception as error:  # noqa: BLE001 - the others are hours of work
            traceback.print_exc()
            self._has_ended_early = True
            results.remarks.append(f"Ended early: {type(error).__name__}: {error}")
        self._sections.append(Section(scenario=scenario, results=results))
        self._write()
        links = self._draw(name, scenario, results)
        self._sections[-1] = Section(scenario=scenario, results=results, plots=links)
        self._write()
        print(f"  {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)

    def has_failed(self) -> bool:
        """Tell whether something failed, or one of our own is missing."""
        failed = any(section.results.failures for section in self._sections)
        return (
            failed
            or self._has_ended_early
            or any(p.reason and p.kind != "peer" for p in self._participants)
        )

    def _draw(self, name: str, scenario: Scenario, results: Results) -> list[str]:
        titles = {variant.name: variant.title for variant in scenario.variants}
        try:
            place = self._file.parent / "plots"
            files = plots.draw(results, titles, scenario.title, place, name, matrix=scenario.matrix)
        except Exception as error:  # noqa: BLE001 - the figures are what matters
            results.remarks.append(f"No plots: {type(error).__name__}: {error}")
            return []
        return [str(file.relative_to(self._file.parent)) for file in files]

    def _write(self) -> None:
        text = report.render(
            remark=self._remark(),
            environment=self._surroundings,
            systems=self._participants,
            sections=self._sections,
        )
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(text, encoding="utf-8")

    def _is_volatile(self) -> bool:
        return self._surroundings["file system"] in ("tmpfs", "ramfs")

    def _remark(self) -> str:
        rounds = "one round" if self._rounds == 1 else f"{self._rounds} rounds"
        text = (
            "Written by `make bench`. All systems run on one server, by turns unless a section "
            f"says otherwise, each run in a fresh database; {rounds} of {self._seconds} s where a "
            "section says nothing else. What counts begins when the sessions have connected and, "
            "for a second or more, planned. A figure is the median of the rounds, the spread their "
            "least and greatest, a ratio the median of the ratios within each round. Compare "
            "ratios, not figures: those are of this machine."
        )
        if self._is_volatile():
            text = f"**{_VOLATILE}** {text}"
        if self._quick:
            text = f"**A quick run, not to be relied on: all of it counts.** {text}"
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
