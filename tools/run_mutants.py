"""Runs the tests on mutants of the install script: each should fail a test.

    python tools/run_mutants.py [--only REGEX] [--sample N [--seed S]] [--jobs N]
        [--python] [--tests REGEX] [--again STATUS] [--list | --summary]

What mutants there are, mutants.py tells. Each gets a database of its own, copied from a template
that has pgq and pgTAP, and runs the pgTAP files that execute its functions, the fastest first, to
the first failure: then it is killed. With --python the survivors run the tests of pytest that
execute their functions: each mutant alone the most promising ones for some seconds, then several of
different functions at once all of them. Where a test fails, each of those runs it alone. What
tests/mutants/equivalent.toml lists as equivalent runs nothing.

Which file executes which function the server counts (track_functions) while all files run once on
functions that differ from the real ones in an empty line. A file that fails then reads the text of
functions and takes no part. Results are appended to tests/mutants/results.jsonl as they come: a run
that was stopped goes on, on another machine, too, and after a change of other functions. --again
runs those with a status once more, with new tests.
"""

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import bootstrap
import mutants
from mutants import Mutant, Statement
from pginstall import CHANGE
from pgserver import Server, ServerError

EQUIVALENT = bootstrap.ROOT / "tests" / "mutants" / "equivalent.toml"
RESULTS = EQUIVALENT.with_name("results.jsonl")
CACHE = bootstrap.CACHE / "mutants"
# How many times as long as without mutants a file may take, and at least how many seconds.
_SLACK = 20
_LEAST = 60.0
# Seconds that a test of pytest waits for others: it often is a mutant that keeps it waiting.
_PATIENCE = 20
# For how many seconds a mutant runs pytest alone, and how many of those that are left do together.
_ALONE = 20.0
_TOGETHER = 8
# What waits, or does not, is seen where a test has several sessions.
_LOCKS = ("table-lock", "nowait", "row-lock", "skip-locked", "advisory-lock")
# What these operators change is read from the catalog: any file may do so.
_CATALOG = ("search-path", "revoke")

_FUNCTIONS = """
    select coalesce(string_agg(distinct format('%s.%s', s.schemaname, s.funcname), ' '), '')
      from pg_stat_user_functions s where s.schemaname in ('pgq', 'public')
"""
_COUNTING = "alter system set track_functions = 'all'; select pg_reload_conf();\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A pgTAP file, or a test of pytest: what it takes, and which functions it executes."""

    name: str
    seconds: float
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a mutant."""

    key: str
    status: str  # killed, survived, invalid
    stage: str  # sql, python
    by: str


# Judges mutants by files, the most promising of which come first.
Judge: TypeAlias = Callable[[Sequence[Mutant], Sequence[File]], list[Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How many mutants run at a time, and with which tests."""

    jobs: int
    tests: re.Pattern[str]


class Results:
    """The results of all runs, in a file of JSON lines: the last one of a mutant counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_key: dict[str, Result] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                result = Result(**json.loads(line))
                self.by_key[result.key] = result

    def add(self, result: Result) -> None:
        """Keep a result, on disk at once."""
        self.by_key[result.key] = result
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(result))

    def forget(self, made: Sequence[Mutant]) -> None:
        """Keep the last result of each mutant that there is, and no other."""
        kept = sorted({mutant.key for mutant in made} & self.by_key.keys())
        self._path.write_text("".join(_line(self.by_key[key]) for key in kept), encoding="utf-8")


class PgTap:
    """A server on which pgTAP files run in databases with mutants."""

    def __init__(self, script: str, setup: str = "") -> None:
        self._script = script
        self._setup = setup
        self._is_prepared = False

    def __enter__(self) -> Self:
        """Start the server."""
        self._stack = contextlib.ExitStack()
        settings = {"fsync": "off", "autovacuum": "off"}
        self._server = self._stack.enter_context(Server(None, settings, ["pgtap"]))
        self._server.psql("create database template")
        self._server.psql("create extension pgtap; create extension pgq", database="template")
        self._server.psql(self._setup, database="template")
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop the server."""
        self._stack.close()

    def measure(self, name: str) -> list[File] | str:
        """Run a file on functions that are the same but for an empty line; or say why it fails."""
        if not self._is_prepared:
            self._copy("template", "neutral")
            self._server.psql(mutants.neutral(self._script), database="neutral")
            self._is_prepared = True
        self._copy("neutral", "covered")
        start = time.monotonic()
        failure = self._run(name, "covered", track_functions="all")
        seconds = time.monotonic() - start
        self._wait_for_statistics("covered")
        functions = self._server.psql(_FUNCTIONS, database="covered").split()
        self._server.psql("drop database covered")
        return failure or [File(name=name, seconds=seconds, functions=tuple(functions))]

    def judge(self, mutant: Mutant, files: Sequence[File], least: float = _LEAST) -> Result:
        """Run files on a mutant until one fails."""
        status, by = "survived", f"{len(files)} files"
        self._copy("template", "mutant")
        try:
            self._server.psql(f"begin;\n{mutant.sql}\ncommit;", database="mutant")
        except ServerError as error:
            status, by = "invalid", str(error).split("\n")[0]
        else:
            for number, file in enumerate(files):
                limit = f"{max(least, _SLACK * file.seconds):.0f}s"
                failure = self._run(file.name, "mutant", statement_timeout=limit)
                if failure and number:
                    # The files before have left sequences and dead rows behind.
                    self._copy("template", "again")
                    self._server.psql(f"begin;\n{mutant.sql}\ncommit;", database="again")
                    failure = self._run(file.name, "again", statement_timeout=limit)
                    self._server.psql("drop database again with (force)")
                if failure:
                    status, by = "killed", f"{file.name}: {failure}"
                    break
        self._server.psql("drop database mutant with (force)")
        return _result(mutant, status, "sql", by)

    def _copy(self, template: str, name: str) -> None:
        self._server.psql(f"create database {name} template {template} strategy file_copy")

    def _run(self, name: str, database: str, **settings: str) -> str:
        """Run a file, up to its first failure; return that, or nothing."""
        options = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-P", "pager=off"]
        given = " ".join(f"-c {setting}={value}" for setting, value in settings.items())
        planned, passed = None, 0
        failure = ""
        with subprocess.Popen(
            ["psql", *options, "-f", name],
            cwd=bootstrap.ROOT,
            env={**self._server.environment(), "PGDATABASE": database, "PGOPTIONS": given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("not ok") or re.match(r"psql:.*(ERROR|FATAL):", line):
                    failure = line.strip()
                    process.terminate()
                    break
                if plan := re.match(r"1\.\.(\d+)", line):
                    planned = int(plan[1])
                passed += line.startswith("ok ")
        if failure:
            return failure
        if process.returncode != 0:
            return f"exit status {process.returncode}"
        return "" if planned == passed else f"{passed} tests of {planned}"

    def _wait_for_statistics(self, database: str) -> None:
        """Wait until the sessions of a database have reported and gone."""
        others = f"select count(*) from pg_stat_activity where datname = '{database}'"
        while self._server.psql(others) != "0":
            time.sleep(0.01)


class Pytest:
    """pytest on a mutant, which a script hands to the tests."""

    def __init__(self, change: Path) -> None:
        self._change = change

    def measure(self, name: str, neutral: str) -> list[File] | str:
        """Run a file on functions that are the same but for an empty line; return its tests."""
        self._change.write_text(_COUNTING + neutral)
        seen = self._change.with_suffix(".json")
        failure, _ = self._run([name], None, PGQ_MUTANT_TESTS=str(seen))
        lines = seen.read_text(encoding="utf-8").splitlines()
        return failure or [_file(json.loads(line)) for line in lines]

    def judge(self, batch: Sequence[Mutant], files: Sequence[File]) -> list[Result]:
        """Run tests on mutants of different functions, and what fails on each of them."""
        alive, results = list(batch), list[Result]()
        left = [file.name for file in files]
        limit = _LEAST + _SLACK * sum(file.seconds for file in files)
        while left and alive:
            failure, failed = self._run_on(alive, left, limit)
            if not failure:
                break
            if failed not in left:
                if len(alive) == 1:
                    return [*results, _result(alive[0], "killed", "python", failure)]
                rest = [file for file in files if file.name in left]
                return results + [found for one in alive for found in self.judge([one], rest)]
            for one in list(alive):
                alone, _ = self._run_on([one], [failed], limit)
                if alone:
                    results.append(_result(one, "killed", "python", alone))
                    alive.remove(one)
            left = left[left.index(failed) + 1 :]
        return results + [
            _result(one, "survived", "python", f"{len(files)} tests") for one in alive
        ]

    def _run_on(
        self, batch: Sequence[Mutant], tests: Sequence[str], limit: float
    ) -> tuple[str, str]:
        self._change.write_text("\n".join(mutant.sql for mutant in batch))
        return self._run(tests, limit)

    def _run(self, tests: Sequence[str], limit: float | None, **variables: str) -> tuple[str, str]:
        """Run tests up to the first failure; return that and the name of the test, or nothing."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
        environment = {
            **os.environ,
            CHANGE: str(self._change),
            "PGQ_PATIENCE": str(_PATIENCE),
            **variables,
        }
        with subprocess.Popen(
            [*command, "-p", "mutants_pytest", *tests],
            cwd=bootstrap.ROOT,
            env={**environment, "PYTHONPATH": str(bootstrap.ROOT / "tools")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate()
                return f"{tests[0]}: timeout", ""
        if process.returncode in (0, 5):  # all passed, or all are for other versions
            return "", ""
        told = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", printed, re.MULTILINE)
        return (told[0], told[1]) if told else (f"exit status {process.returncode}", "")


def main() -> int:
    """Run what the command line asks for; return 1 if a mutant survived that no list has."""
    parser = argparse.ArgumentParser(description="Run the tests on mutants.")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="mutants by name")
    parser.add_argument("--sample", type=int, metavar="N", help="some of them, by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="mutants at a time")
    parser.add_argument("--python", action="store_true", help="pytest on survivors")
    parser.add_argument("--tests", default="", metavar="REGEX", help="test files by name")
    parser.add_argument("--again", metavar="STATUS", help="forget such results")
    parser.add_argument("--list", action="store_true", help="print the mutants")
    parser.add_argument("--summary", action="store_true", help="print the results")
    options = parser.parse_args()
    script = read_script()
    made = mutants.make_mutants(script)
    chosen = choose(made, options.only, options.sample, options.seed)
    if options.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    results = Results(RESULTS)
    equivalent = read_equivalent(EQUIVALENT)
    if not options.summary:
        todo = [
            mutant
            for mutant in chosen
            if mutant.key not in results.by_key
            or results.by_key[mutant.key].status == options.again
            or (options.python and results.by_key[mutant.key].status == "survived")
        ]
        todo = [mutant for mutant in todo if mutant.name not in equivalent]
        run = run_pytest if options.python else run_pgtap
        run(todo, script, results, Run(jobs=options.jobs, tests=re.compile(options.tests)))
        results.forget(made)
    print(summary(chosen, results, equivalent))
    return 1 if survivors(chosen, results, equivalent) else 0


def read_script() -> str:
    """Return the install script of this version, as it was built."""
    control = (bootstrap.ROOT / "extension" / "pgq.control").read_text(encoding="utf-8")
    version = re.findall(r"^default_version *= *'([^']+)'", control, re.MULTILINE)
    path = bootstrap.ROOT / "extension" / "sql" / f"pgq--{version[0]}.sql"
    return path.read_text(encoding="utf-8")


def choose(
    made: Sequence[Mutant], only: re.Pattern[str] | None, sample: int | None, seed: int
) -> list[Mutant]:
    """Return the mutants that are asked for, the most dangerous operators first."""
    chosen = [mutant for mutant in made if only is None or only.search(mutant.name)]
    if sample is not None:
        chosen = random.Random(seed).sample(chosen, min(sample, len(chosen)))
    return sorted(chosen, key=lambda mutant: mutants.OPERATORS.index(mutant.operator))


def read_equivalent(path: Path) -> dict[str, str]:
    """Return the reasons why mutants are equivalent, by their names."""
    listed: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["equivalent"]
    return {name: entry["reason"] for entry in listed for name in entry["mutants"]}


def run_pgtap(todo: Sequence[Mutant], script: str, results: Results, run: Run) -> None:
    """Run the pgTAP suite on mutants."""
    if not todo:
        return
    with contextlib.ExitStack() as stack:
        benches = [stack.enter_context(PgTap(script)) for _ in range(run.jobs)]
        files = measure_all("tests/sql", "*.sql", run.tests, script, benches[0].measure)
        judges = [_one_by_one(bench.judge) for bench in benches]
        judge_all([[mutant] for mutant in todo], script, files, results, judges)


def batches(todo: Sequence[Mutant], most: int) -> list[list[Mutant]]:
    """Put mutants together, in their order, those of the same function apart."""
    made: list[list[Mutant]] = []
    for mutant in todo:
        for batch in made:
            taken = {name for other in batch for name in other.functions}
            if len(batch) < most and not taken & {*mutant.functions}:
                batch.append(mutant)
                break
        else:
            made.append([mutant])
    return made


def judge_all(
    todo: Sequence[Sequence[Mutant]],
    script: str,
    files: Sequence[File],
    results: Results,
    judges: Sequence[Judge],
    *,
    seconds: float = math.inf,
) -> None:
    """Have each judge take the next mutants until none are left."""
    statements = mutants.split(script)
    # What killed mutants of the same function is tried first, then what killed others of its kind.
    kills: dict[str, Counter[str]] = defaultdict(Counter)
    numbered = iter(enumerate(todo, 1))
    lock = threading.Lock()

    def note(mutant: Mutant, result: Result) -> None:
        if result.status == "killed":
            for kind in (mutant.functions[0], mutant.operator):
                kills[kind][_killer(result)] += 1

    for mutant in mutants.make_mutants(script):
        if mutant.key in results.by_key:
            note(mutant, results.by_key[mutant.key])

    def work(judge: Judge) -> None:
        while True:
            with lock:
                number, batch = next(numbered, (0, ()))
            if not batch:
                return
            ordered = order(batch, files, statements, kills)
            spent = itertools.accumulate(file.seconds for file in ordered)
            found = judge(batch, [f for f, s in zip(ordered, spent, strict=True) if s < seconds])
            names = {mutant.key: mutant for mutant in batch}
            with lock:
                for result in found:
                    results.add(result)
                    note(names[result.key], result)
                    told = f"{result.status} {names[result.key].name} | {result.by}"
                    print(f"{number}/{len(todo)} {told}", flush=True)

    with ThreadPoolExecutor(len(judges)) as pool:
        for done in [pool.submit(work, judge) for judge in judges]:
            done.result()


def order(
    batch: Sequence[Mutant],
    files: Sequence[File],
    statements: Sequence[Statement],
    kills: Mapping[str, Counter[str]],
) -> list[File]:
    """Return the files that can kill one of some mutants, the most promising first."""
    promises: dict[str, tuple[float, ...]] = {}
    for mutant in batch:
        names = reached_by(set(mutant.functions), files, statements)
        function, kind = kills[mutant.functions[0]], kills[mutant.operator]
        for file in files:
            is_able = mutant.operator in _CATALOG or names & {*file.functions}
            if is_able or _names_any(file, mutant):
                is_alone = mutant.operator in _LOCKS and "within(" not in _source(file.name)
                promise = (-function[file.name], -kind[file.name], is_alone, file.seconds)
                promises[file.name] = min(promise, promises.get(file.name, promise))
    able = [file for file in files if file.name in promises]
    return sorted(able, key=lambda file: promises[file.name])


@functools.cache
def _source(name: str) -> str:
    """Return the text of a test of pytest, or of a file."""
    path, _, test = name.partition("::")
    text = (bootstrap.ROOT / path).read_text(encoding="utf-8")
    found = re.search(rf"def {test.partition('[')[0]}\(.*?(?=\n\n\n|\Z)", text, re.DOTALL)
    return found[0] if test and found else text


def reached_by(names: set[str], files: Sequence[File], statements: Sequence[Statement]) -> set[str]:
    """Return the functions themselves if files execute them, else those whose text has them.

    What the planner inlines, and views, nobody counts.
    """
    executed = {name for file in files for name in file.functions}
    known = set(names)
    found = names & executed
    while not found:
        plain = "|".join(re.escape(name.split(".")[-1]) for name in known)
        callers = {
            statement.name
            for statement in statements
            if statement.kind != "revoke" and re.search(rf"\b({plain})\b", statement.text)
        }
        if callers <= known:
            break
        known |= callers
        found = callers & executed
    return found


def run_pytest(todo: Sequence[Mutant], script: str, results: Results, run: Run) -> None:
    """Run the pytest suite on mutants."""
    with tempfile.TemporaryDirectory() as scratch:
        suites = [Pytest(Path(scratch) / f"change_{number}.sql") for number in range(run.jobs)]
        neutral = mutants.neutral(script)
        files = measure_all(
            "tests/python",
            "test_*.py",
            run.tests,
            script,
            lambda name: suites[0].measure(name, neutral),
        )
        files = [file for file in files if file.functions]
        judges = [suite.judge for suite in suites]
        judge_all([[mutant] for mutant in todo], script, files, results, judges, seconds=_ALONE)
        left = [mutant for mutant in todo if results.by_key[mutant.key].status == "survived"]
        judge_all(batches(left, _TOGETHER), script, files, results, judges)


def measure_all(
    place: str,
    pattern: str,
    tests: re.Pattern[str],
    script: str,
    measure: Callable[[str], list[File] | str],
) -> list[File]:
    """Measure the files of a suite, those excepted that were as they are now, with this script."""
    path = CACHE / "measured.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    files: list[File] = []
    for test in sorted((bootstrap.ROOT / place).glob(pattern)):
        name = str(test.relative_to(bootstrap.ROOT))
        if not tests.search(name):
            continue
        content = f"{script}{name}{test.read_text(encoding='utf-8')}"
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        if digest not in known:
            measured = measure(name)
            if isinstance(measured, str):
                print(f"{name} takes no part, it fails without mutants: {measured}", flush=True)
                continue
            known[digest] = [asdict(file) for file in measured]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(known, indent=1))
        files += [_file(kept) for kept in known[digest]]
    return files


def summary(chosen: Sequence[Mutant], results: Results, equivalent: Mapping[str, str]) -> str:
    """Return a table by operator, and the survivors."""
    columns = ("killed", "survived", "equivalent", "invalid", "left")
    table: dict[str, Counter[str]] = {name: Counter() for name in mutants.OPERATORS}
    for mutant in chosen:
        result = results.by_key.get(mutant.key)
        status = result.status if result else "left"
        if mutant.name in equivalent:
            status = "equivalent"
        table[mutant.operator][status] += 1
    total = Counter[str]()
    for counts in table.values():
        total += counts
    table["all"] = total
    lines = ["".join([f"{'operator':14}", f"{'mutants':>11}", *(f"{c:>11}" for c in columns)])]
    for name, counts in table.items():
        if counts:
            numbers = [counts.total(), *(counts[column] for column in columns)]
            lines.append(f"{name:14}" + "".join(f"{number:>11,}" for number in numbers))
    alive = survivors(chosen, results, equivalent)
    lines += ["", "Survivors:", *(f"    {mutant.name}" for mutant in alive)] if alive else []
    return "\n".join(lines)


def survivors(
    chosen: Sequence[Mutant], results: Results, equivalent: Mapping[str, str]
) -> list[Mutant]:
    """Return the mutants that no test killed and no list has."""
    return [
        mutant
        for mutant in chosen
        if mutant.name not in equivalent
        and (result := results.by_key.get(mutant.key)) is not None
        and result.status == "survived"
    ]


def _one_by_one(judge: Callable[[Mutant, Sequence[File]], Result]) -> Judge:
    return lambda batch, files: [judge(mutant, files) for mutant in batch]


def _result(mutant: Mutant, status: str, stage: str, by: str) -> Result:
    return Result(key=mutant.key, status=status, stage=stage, by=by[:300])


def _line(result: Result) -> str:
    return json.dumps(asdict(result)) + "\n"


def _killer(result: Result) -> str:
    return re.sub(r"^(FAILED|ERROR) | - .*|: .*", "", result.by)


def _file(kept: Mapping[str, Any]) -> File:
    return File(name=kept["name"], seconds=kept["seconds"], functions=tuple(kept["functions"]))


def _names_any(file: File, mutant: Mutant) -> bool:
    """Tell whether a test names what is mutated, as it does with views."""
    path = bootstrap.ROOT / file.name
    text = path.read_text(encoding="utf-8") if path.suffix == ".sql" else ""
    return any(re.search(rf"\b{name.split('.')[-1]}\b", text) for name in mutant.functions)


if __name__ == "__main__":
    raise SystemExit(main())
