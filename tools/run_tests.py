"""Runs the pgTAP and pytest suites against one or more versions of PostgreSQL.

    python tools/run_tests.py [--version 18]... [--sql 17]... [--once only|not]
        [--only sql|python|site|clients] [--install extension|upgraded|script] [-- argument ...]

On the versions of --sql the pgTAP suite runs, on 14 and 17 in other surroundings: settings, locale
and way of installation. The pytest suite runs in six parts. Four suites run at a time. Each
prints one line as it ends; at the end come the failures in full, how to run only those, and the
counts. What a suite prints goes to a file in .cache/log; one that runs alone prints it, too.
Arguments after `--` go to pg_prove or pytest; with a file among them only that one runs. A skipped
test counts as a failure, and so does one that is expected to fail, unless the reason begins with
"core: ": such a fault is known. Tests with the mark "once" or "constant" run on PostgreSQL 18 only,
beside the others when all are to run. With --once only, which is for another Python, those run that
have the mark "once" and not the mark "server"; with --once not, all others. pytest finds the
version to test in PGQ_TEST_VERSION, and in PGQ_TEST_INSTALL how to install pgq, see pginstall.py.
The tests in a browser run with those of 18, but for the mark "long". The clients, which need
languages that others do not have, are tested only when they are asked for.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import bootstrap
from pginstall import INSTALL, WAYS, install
from pgserver import Server, ServerError

LOGS = Path(os.environ.get("PGQ_TEST_LOGS", bootstrap.CACHE / "log"))


@dataclass(slots=True, kw_only=True)
class Counts:
    """What the output of a suite says of its tests: how many, which ones failed, and how."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    known: int = 0
    names: list[str] = field(default_factory=list[str])
    details: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite, and how to read what its runner prints."""

    name: str
    read: Callable[[str], Counts]


class Run(Protocol):
    """Runs a suite; `aloud` is whether what it prints is to be seen as well as kept."""

    def __call__(self, *, aloud: bool) -> "Outcome":
        """Return what became of it."""
        ...


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one suite, or a part of it, did on one version."""

    suite: str
    version: int
    part: str = ""
    option: str = "--version"
    seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)
    problems: list[str] = field(default_factory=list[str])
    log: Path | None = None

    def name(self) -> str:
        """Return what the suite is called in the report."""
        return f"PostgreSQL {self.version} {self.suite}{self.part}"

    def line(self) -> str:
        """Return the one line of the report."""
        counts = self.counts
        told = [f"{counts.passed:,} passed"]
        for number, word in (
            (counts.failed, "failed"),
            (counts.skipped, "skipped"),
            (counts.known, "known"),
        ):
            told += [f"{number:,} {word}"] if number else []
        state = "FAILED" if self.problems else "ok"
        rest = [problem for problem in self.problems if not problem.startswith("exit status")]
        line = f"{self.name()}: {state}, {', '.join(told + rest)} ({self.seconds:.0f} s)"
        return f"{line}, {os.path.relpath(self.log)}" if self.log else line


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the pgTAP suite meets: server settings, options of its database, a way to install."""

    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    database: str = ""
    install: str | None = None


_AT_A_TIME = 4
_PARTS = 6

_USUAL = Surroundings()
_UNUSUAL = {
    14: Surroundings(
        settings={"plan_cache_mode": "force_generic_plan", "max_prepared_transactions": "10"},
        install="script",
    ),
    17: Surroundings(
        settings={
            "DateStyle": "German",
            "IntervalStyle": "sql_standard",
            "TimeZone": "Asia/Kathmandu",
            "plan_cache_mode": "force_custom_plan",
        },
        install="upgraded",
        database="template template0 locale_provider icu icu_locale 'tr-TR' locale 'C'",
    ),
}

# Where those tests run that are marked as being the same on each version.
_NEWEST = 18


def read_pytest(text: str) -> Counts:
    """Read what pytest prints with -rfEsxX."""
    last = re.findall(r"^=+ (.* in [\d.]+s.*) =+$", text, re.MULTILINE)
    numbers = {
        word.rstrip("s"): int(number)
        for number, word in re.findall(r"(\d+) (\w+)", last[-1] if last else "")
    }
    expected = re.findall(r"^XFAIL (.*)$", text, re.MULTILINE)
    known = sum(" - core: " in line for line in expected)
    failures = re.search(
        r"^=+ (?:ERRORS|FAILURES) =+\n.*?(?=^=+ (?:warnings summary|short test summary info) )",
        text,
        re.MULTILINE | re.DOTALL,
    )
    name = r"^(?:FAILED|ERROR) (\S+\.py(?:::[\w:]+(?:\[.*?\](?= - |$))?)?)"
    return Counts(
        passed=numbers.get("passed", 0),
        failed=numbers.get("failed", 0) + numbers.get("error", 0),
        skipped=numbers.get("skipped", 0) + numbers.get("xpassed", 0) + len(expected) - known,
        known=known,
        names=re.findall(name, text, re.MULTILINE),
        details=failures[0] if failures else "",
    )


def read_prove(text: str) -> Counts:
    """Read what pg_prove prints with --verbose."""
    left_out = r"(?i)# (?:skip|todo)"
    tests = re.findall(r"^\s*(ok|not ok) \d+(.*)$", text, re.MULTILINE)
    skipped = sum(bool(re.search(left_out, rest)) for _, rest in tests)
    skipped += len(re.findall(r"^tests/sql/.*skipped:", text, re.MULTILINE))
    done = [word for word, rest in tests if not re.search(left_out, rest)]
    faults: list[str] = []
    file = ""
    is_fault = False
    for line in text.splitlines():
        if begun := re.match(r"^(\S+\.sql) \.\.", line):
            file = begun[1]
        is_fault = bool(
            re.match(r"^\s*not ok(?!.*# (?i:skip|todo))|^psql:.*(?:ERROR|FATAL)", line)
        ) or (is_fault and not re.match(r"^(\s*ok \d|\S+\.sql \.\.|1\.\.\d)", line))
        faults += [f"{file}: {line}"] if is_fault else []
    summary = re.search(r"^Test Summary Report\n.*", text, re.MULTILINE | re.DOTALL)
    return Counts(
        passed=done.count("ok"),
        failed=done.count("not ok"),
        skipped=skipped,
        names=re.findall(r"^(\S+\.sql)\s+\(Wstat:", text, re.MULTILINE),
        details="\n".join([*faults, summary[0] if summary else ""]).strip(),
    )


SQL = Suite(name="sql", read=read_prove)
PYTHON = Suite(name="python", read=read_pytest)
SITE = Suite(name="site", read=read_pytest)
CLIENTS = Suite(name="clients", read=read_pytest)


def main() -> int:
    """Run the suites on every version asked for and print a summary."""
    parser = argparse.ArgumentParser(description="Run the tests.")
    parser.add_argument("--version", type=int, action="append", metavar="MAJOR")
    parser.add_argument("--sql", type=int, action="append", metavar="MAJOR", default=[])
    parser.add_argument("--only", choices=["sql", "python", "site", "clients"])
    parser.add_argument("--once", choices=["only", "not"], help="only those of that mark, or not")
    parser.add_argument("--install", choices=WAYS, default="extension", help="how")
    parser.add_argument("arguments", nargs="*", help="for pg_prove or pytest, needs --only")
    options = parser.parse_args()
    if options.arguments and options.only is None:
        parser.error("arguments for pg_prove or pytest need --only")
    os.environ[INSTALL] = options.install
    usual: list[int] = options.version or ([] if options.sql else [18])
    plan: list[Run] = []
    # What takes longest begins first.
    suites = ["python"] if options.once == "only" else ["python", "sql", "site"]
    for suite in [options.only] if options.only else suites:
        for version in usual:
            plan += _runs(suite, version, options.arguments, options.once)
    for version in options.sql:
        plan.append(partial(_run_sql_around, version, options.arguments))

    def run(call: Run) -> Outcome:
        outcome = call(aloud=len(plan) == 1)
        print(outcome.line(), flush=True)
        return outcome

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        outcomes = list(pool.map(run, plan))
    print(report(outcomes, with_details=len(plan) > 1))
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def report(outcomes: Sequence[Outcome], *, with_details: bool = True) -> str:
    """Return the failures in full, the commands that run only those, and the counts."""
    lines: list[str] = []
    again: dict[tuple[str, int, str], list[str]] = {}
    for outcome in outcomes:
        if not outcome.problems:
            continue
        if with_details:
            lines += ["", f"----- {outcome.name()}: {'; '.join(outcome.problems)}"]
            lines += [outcome.counts.details] if outcome.counts.details else []
        key = (outcome.option, outcome.version, outcome.suite)
        again.setdefault(key, []).extend(outcome.counts.names)
    if again:
        lines += ["", "To run only what failed:"]
    for (option, version, suite), names in again.items():
        command = [os.path.relpath(sys.executable), "tools/run_tests.py"]
        command += [option, str(version), "--only", suite]
        command += ["--", *dict.fromkeys(names)] if names else []
        lines.append(f"    {shlex.join(command)}")
    if known := sum(outcome.counts.known for outcome in outcomes):
        lines += ["", f"{known} known (they fail until the core is mended)"]
    passed = sum(outcome.counts.passed for outcome in outcomes)
    failed = sum(max(outcome.counts.failed, bool(outcome.problems)) for outcome in outcomes)
    skipped = sum(outcome.counts.skipped for outcome in outcomes)
    lines += ["", f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")]
    return "\n".join(lines)


def _runs(suite: str, version: int, arguments: Sequence[str], once: str | None) -> list[Run]:
    """Return what runs a suite on a version, in one part or more."""
    if suite == "sql":
        return [partial(run_sql, version, arguments)]
    if suite == "clients":
        return [partial(run_pytest, CLIENTS, version, arguments)]
    if suite == "site":
        chosen = "" if arguments else "not long"
        is_due = version == _NEWEST
        return [partial(run_pytest, SITE, version, arguments, chosen)] if is_due else []
    mark = "not once and not constant"
    if once == "only":
        mark = "once and not server and not constant"
    elif version == _NEWEST:
        mark = "not once or constant or server" if once == "not" else ""
    parts = [arguments] if arguments else _python_parts()
    names = [f" {number} of {len(parts)}" for number in range(1, len(parts) + 1)]
    return [
        partial(run_pytest, PYTHON, version, part, mark, part=name if len(parts) > 1 else "")
        for part, name in zip(parts, names, strict=True)
    ]


def _python_parts() -> list[list[str]]:
    """Return the files of the pytest suite in parts, those with the most text first."""
    files = sorted((bootstrap.ROOT / "tests" / "python").glob("test_*.py"))
    parts = [files[first::_PARTS] for first in range(_PARTS)]
    parts.sort(key=lambda part: sum(file.stat().st_size for file in part), reverse=True)
    return [[str(file.relative_to(bootstrap.ROOT)) for file in part] for part in parts]


def _run_sql_around(version: int, arguments: Sequence[str], *, aloud: bool) -> Outcome:
    outcome = run_sql(version, arguments, _UNUSUAL.get(version, _USUAL), aloud=aloud)
    return replace(outcome, option="--sql")


def run_sql(
    version: int, arguments: Sequence[str], around: Surroundings = _USUAL, *, aloud: bool
) -> Outcome:
    """Run pg_prove over tests/sql in a fresh database that has pgq and pgTAP."""
    way = around.install or os.environ[INSTALL]
    command, variables = bootstrap.pg_prove()
    command += ["--verbose", "--ext", ".sql", *_with_default(arguments, *_sql_files(way))]
    try:
        # Autovacuum could hold a lock for longer than pgq_drop_queue waits.
        settings = {"fsync": "off", "autovacuum": "off", **around.settings}
        with Server(version, settings, ["pgtap"]) as server:
            server.psql(f"create database pgtap {around.database}")
            server.psql("create extension pgtap", database="pgtap")
            install(server, "pgtap", way)
            variables |= server.environment() | {"PGDATABASE": "pgtap"}
            return _run(Outcome(suite="sql", version=version), SQL, command, variables, aloud=aloud)
    except ServerError as error:
        return Outcome(suite="sql", version=version, problems=[str(error)])


def run_pytest(
    suite: Suite,
    version: int,
    arguments: Sequence[str],
    chosen: str = "",
    *,
    part: str = "",
    aloud: bool,
) -> Outcome:
    """Run pytest over the tests of a suite with the chosen marks; they start their own servers."""
    marks = [f"({chosen})"] if chosen else []
    marks += ["not extension"] if os.environ[INSTALL] == "script" else []
    command = [sys.executable, "-m", "pytest", "-rfEsxX", "--durations=30"]
    command += ["-m", " and ".join(marks)]
    command += _with_default(arguments, f"tests/{suite.name}")
    variables = {**os.environ, "PGQ_TEST_VERSION": str(version)}
    outcome = Outcome(suite=suite.name, version=version, part=part)
    return _run(outcome, suite, command, variables, aloud=aloud)


def _sql_files(way: str) -> list[str]:
    """Return the pgTAP suite, without what is about extensions where pgq is none."""
    files = sorted((bootstrap.ROOT / "tests" / "sql").glob("*.sql"))
    left_out = "12_install.sql" if way == "script" else None
    return [str(file.relative_to(bootstrap.ROOT)) for file in files if file.name != left_out]


def _with_default(arguments: Sequence[str], *default: str) -> list[str]:
    """Return the arguments, after the default paths unless they name one themselves."""
    if any(Path(argument.split("::")[0]).exists() for argument in arguments):
        return [*arguments]
    return [*default, *arguments]


def _run(
    outcome: Outcome,
    suite: Suite,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    aloud: bool,
) -> Outcome:
    """Run one suite, keep what it prints, and fill in what became of it."""
    LOGS.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", f"{outcome.version}-{outcome.suite}{outcome.part}")
    outcome.log = LOGS / f"{name}.log"
    start = time.monotonic()
    printed: list[str] = []
    with (
        outcome.log.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            env=environment,
            cwd=bootstrap.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            log.write(line)
            log.flush()
            if aloud:
                sys.stdout.write(line)
                sys.stdout.flush()
    outcome.seconds = time.monotonic() - start
    outcome.counts = counts = suite.read("".join(printed))
    if counts.passed + counts.failed + counts.known == 0:
        outcome.problems.append("no test ran")
    if process.returncode != 0:
        outcome.problems.append(f"exit status {process.returncode}")
    if counts.skipped:
        outcome.problems.append(f"{counts.skipped} skipped")
    if outcome.problems and not counts.details:
        counts.details = "".join(printed[-50:]).rstrip()
    return outcome


if __name__ == "__main__":
    raise SystemExit(main())
