"""What `make test` prints: a line for each suite, the failures once, and true counts."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import run_tests
from bootstrap import ROOT
from run_tests import Outcome, read_prove, read_pytest

from .programs import run_anyhow

pytestmark = pytest.mark.constant

GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert 'one' == 'two'\n"
KNOWN = """
import pytest
@pytest.mark.xfail(strict=True, raises=ZeroDivisionError, reason="core: it divides by zero")
def test_known(): 1 / 0
"""
EXCUSED = KNOWN.replace("core: it", "it").replace("known", "excused")
MENDED = KNOWN.replace("1 / 0", "pass").replace("known", "mended")
SKIPPED = "import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\n"
BROKEN = """
import pytest
@pytest.fixture
def broken(): raise LookupError
def test_broken(broken): pass
"""

PROVED = """\
tests/sql/10_good.sql ..
1..2
ok 1 - this
ok 2 - that
ok
tests/sql/11_bad.sql ..
1..2
not ok 1 - one is two
# Failed test 1: "one is two"
#         have: 1
#         want: 2
ok 2 - the next
Failed 1/2 subtests

Test Summary Report
-------------------
tests/sql/11_bad.sql (Wstat: 0 Tests: 2 Failed: 1)
  Failed test:  1
Files=2, Tests=4,  1 wallclock secs
Result: FAIL
"""


def run(tmp_path: Path, *tests: str, versions: tuple[str, ...] = ("18",)) -> tuple[int, str]:
    """Run a file with these tests as one of the suite; return exit status and output."""
    file = tmp_path / "test_it.py"
    file.write_text("\n".join(tests), encoding="utf-8")
    (tmp_path / "pytest.ini").touch()
    options = [option for version in versions for option in ("--version", version)]
    command = [sys.executable, "tools/run_tests.py", *options, "--only", "python", "--", str(file)]
    environment = {**os.environ, "PGQ_TEST_LOGS": str(tmp_path)}
    return run_anyhow(*command, cwd=ROOT, env=environment)


def test_a_good_run_ends_with_its_counts(tmp_path: Path) -> None:
    status, output = run(tmp_path, GOOD)
    assert status == 0
    assert output.endswith("\n1 passed, 0 failed\n")
    assert "test_it.py ." in output, "one that runs alone shows what it does"


def test_a_fault_that_is_known_is_counted_and_no_failure(tmp_path: Path) -> None:
    status, output = run(tmp_path, GOOD, KNOWN)
    assert status == 0
    assert "1 passed, 1 known" in output
    assert output.endswith("\n1 passed, 0 failed\n")


@pytest.mark.parametrize("test", [EXCUSED, MENDED, SKIPPED, BAD, BROKEN])
def test_whatever_else_is_not_passed_fails(tmp_path: Path, test: str) -> None:
    status, output = run(tmp_path, GOOD, test)
    assert status == 1
    assert re.search(r"\n1 passed, 1 failed(, 1 skipped)?\n$", output)


def test_no_test_at_all_fails(tmp_path: Path) -> None:
    status, output = run(tmp_path, "")
    assert status == 1
    assert output.endswith("\n0 passed, 1 failed\n")


def test_suites_beside_each_other_print_a_line_each_and_failures_once(tmp_path: Path) -> None:
    status, output = run(tmp_path, GOOD, BAD, versions=("18", "16"))
    assert status == 1
    lines = output.splitlines()
    head = [line for line in lines if re.match(r"PostgreSQL 1[68] python: FAILED, ", line)]
    assert sorted(head) == sorted(lines[:2])
    for line in head:
        match = re.search(r"1 passed, 1 failed \(\d+ s\), (\S+)$", line)
        assert match
        assert "1 failed, 1 passed" in (ROOT / match[1]).read_text(encoding="utf-8")
    assert output.count("assert 'one' == 'two'") == 2 * 2, "the source and the finding, of each"
    assert "1 failed, 1 passed" not in output
    again = [line for line in lines if "run_tests.py" in line]
    assert [line.strip().startswith(".venv/bin/python") for line in again] == [True, True]
    assert all(line.endswith("test_it.py::test_bad") for line in again)
    assert lines[-1] == "2 passed, 2 failed"


def test_what_pg_prove_says_is_read() -> None:
    counts = read_prove(PROVED)
    assert (counts.passed, counts.failed, counts.skipped) == (3, 1, 0)
    assert counts.names == ["tests/sql/11_bad.sql"]
    assert "tests/sql/11_bad.sql: #         want: 2" in counts.details
    assert "this" not in counts.details
    assert "the next" not in counts.details
    assert counts.details.endswith("Result: FAIL")
    assert read_prove(PROVED.replace("this", "this # SKIP why")).skipped == 1
    assert read_prove(PROVED.replace("is two", "is two # TODO later")).skipped == 1


def test_a_suite_that_could_not_run_counts_as_a_failure() -> None:
    outcome = Outcome(suite="sql", version=15, problems=["no PostgreSQL 15 found"])
    assert "no PostgreSQL 15 found" in outcome.line()
    assert run_tests.report([outcome]).endswith("\n0 passed, 1 failed")


def test_parts_of_a_suite_are_run_again_by_one_command() -> None:
    counts = read_pytest("FAILED tests/python/test_x.py::test_y[a - b] - E\n= 1 failed in 1.0s =\n")
    assert counts.names == ["tests/python/test_x.py::test_y[a - b]"]
    outcomes = [
        Outcome(suite="python", version=18, part=part, counts=counts, problems=["exit status 1"])
        for part in (" 1 of 2", " 2 of 2")
    ]
    assert run_tests.report(outcomes).count("run_tests.py") == 1
