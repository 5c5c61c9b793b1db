"""The tool that removes guards from the install script, and a few of its mutants."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from mutants import OPERATORS, Mutant, make_mutants, split
from run_mutants import (
    EQUIVALENT,
    RESULTS,
    File,
    PgTap,
    Pytest,
    Results,
    batches,
    choose,
    order,
    read_equivalent,
    read_script,
    survivors,
)

pytestmark = pytest.mark.constant

SQL = Path(__file__).parents[1] / "sql"

PLANTED = """
create function @extschema@.planted(p_number integer)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_number < 0 then
        raise exception 'negative' using errcode = 'invalid_parameter_value';
    end if;
    if p_number > 9 then
        raise exception 'large' using errcode = 'invalid_parameter_value';
    end if;
    return p_number;
end
$$;
"""

TEST = """
begin;
select plan(2);
select is(planted(1), '1', 'a number');
select throws_ok('select planted(-1)', '22023', null, 'a negative number');
select * from finish();
rollback;
"""

# A statement of a function, and what its mutants of an operator do instead.
GUARDS: list[tuple[str, str, list[str]]] = [
    ("token", "delete from j where a = 1 and j.token = p_token;", ["a = 1 and true;"]),
    ("token", "x := (p_token >> 3) & 7;", []),
    ("table-lock", "lock table j in share mode;", ["    null;"]),
    ("table-lock", "execute format('lock table %I', n);", ["format('select', n)"]),
    ("look", "if x is null and y > 1 then truncate j; end if;", ["if true and y", "and true then"]),
    (
        "look",
        "if exists (select from j) then return; end if; truncate j;",
        ["if false then return"],
    ),
    ("nowait", "lock table j nowait;", ["lock table j ;"]),
    ("nowait", "execute format('lock table %I nowait', n);", ["'lock table %I'"]),
    ("row-lock", "perform from j for no key update of j skip locked;", ["from j ;"]),
    ("row-lock", "for i in select 1 loop perform 1; end loop;", []),
    ("skip-locked", "perform from j for update skip locked;", ["for update ;"]),
    ("advisory-lock", "v := pg_try_advisory_xact_lock(1, 2);", ["v := true;"]),
    (
        "isolation",
        "if not (current_setting('transaction_isolation') in ('a', 'b')) then return; end if;",
        ["if not (true) then"],
    ),
    ("privilege", "return a is null or pgq._may(q.id, 'consume');", ["or true;"]),
    (
        "privilege",
        "return exists (select from q where pg_has_role(r, 'usage'));",
        ["where true)"],
    ),
    ("check", "perform pgq._check_batch('n', (n)), 1;", ["perform null, 1;"]),
    (
        "refusal",
        "if not a or n not between 1 and 2 then raise exception 'x'; end if;",
        ["if not true or", "or false then"],
    ),
    (
        "bound",
        "n := greatest(a, (b), c);",
        ["greatest((b), c)", "greatest(a, c)", "greatest(a, (b))"],
    ),
    ("bound", "n := least(a, f(b, c));", ["n := (f(b, c));", "n := (a);"]),
    (
        "state",
        "perform from j join q on q.id = j.q where j.id = i and (j.run_at <= t or q.paused);",
        ["and (true or", "or true);"],
    ),
    ("state", "perform count(*) filter (where a > 1) from j where true;", []),
    ("state", "perform distinct on (a > 1) a from j;", []),
    (
        "state",
        "insert into j select 1 where a > 1 on conflict on constraint c do update set a = 2;",
        ["where true on conflict on constraint c do"],
    ),
]


def function(body: str) -> str:
    return f"create function pgq._f()\nreturns void\nas $$\nbegin\n    {body}\nend\n$$;\n"


@pytest.mark.parametrize(("operator", "body", "expected"), GUARDS)
def test_a_mutant_weakens_one_guard(operator: str, body: str, expected: list[str]) -> None:
    made = [mutant for mutant in make_mutants(function(body)) if mutant.operator == operator]
    assert len(made) == len(expected)
    for part in expected:
        assert [mutant.name for mutant in made if part in mutant.sql]


def test_functions_lose_their_search_path_and_keep_the_rest() -> None:
    (mutant,) = make_mutants("create function pgq._f()\nset search_path = a\nset jit = off\nas '';")
    assert mutant.operator == "search-path"
    assert mutant.sql == "create or replace function pgq._f()\nset jit = off\nas '';"


def test_what_is_revoked_is_granted() -> None:
    (mutant,) = make_mutants("revoke all on function @extschema@.f(a, b)\n    from public;")
    assert mutant.sql == "grant all on function public.f(a, b)\n    to public;"


def test_copies_for_slots_are_mutated_together_and_others_alone() -> None:
    filler = "    perform 1;\n" * 9
    one = "".join(f"{filler}    delete from j_{n} where token = t;\n{filler}" for n in range(3))
    (mutant,) = [m for m in make_mutants(function(one)) if m.operator == "token"]
    assert mutant.sql.count("where true") == 3
    two = f"{filler}    delete from j where token = t;\n{filler}" * 2
    made = [m for m in make_mutants(function(two)) if m.operator == "token"]
    assert [m.sql.count("where true") for m in made] == [1, 1]
    assert made[0].name + " #2" == made[1].name


def test_a_body_of_statements_is_one_function() -> None:
    body = "begin atomic\nselect case when a then 1 end;\nselect 2;\nend;"
    statements = split(f"create function f() returns integer\n{body}\ncreate view v as select 1;")
    assert [statement.name for statement in statements] == ["f", "v"]


def test_a_mutant_keeps_its_name_and_key_when_other_code_changes() -> None:
    guarded = function("delete from j where token = t;")
    (before,) = make_mutants(guarded)
    (after,) = make_mutants(function("perform 1;").replace("_f", "_g") + guarded)
    assert (before.name, before.key) == (after.name, after.key)


@pytest.fixture(scope="module")
def made() -> list[Mutant]:
    """All mutants of this version."""
    return make_mutants(read_script())


def test_each_equivalent_is_a_mutant_of_this_version(made: list[Mutant]) -> None:
    """A line for what is gone would hide a mutant to come."""
    equivalent = read_equivalent(EQUIVALENT)
    assert equivalent.keys() - {mutant.name for mutant in made} == set()
    assert [name for name, reason in equivalent.items() if not reason] == []


def test_no_mutant_of_this_version_is_known_to_survive(made: list[Mutant]) -> None:
    """Those of a function that has changed since the last run are known after the next one."""
    results = Results(RESULTS)
    assert len({mutant.key for mutant in made} & results.by_key.keys()) > 0.9 * len(made)
    assert survivors(made, results, read_equivalent(EQUIVALENT)) == []


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PgTap, File]]:
    """A server with a function of which one guard is tested, and one is not."""
    path = tmp_path_factory.mktemp("tests") / "test.sql"
    path.write_text(TEST)
    with PgTap(PLANTED, PLANTED.replace("@extschema@", "public")) as bench:
        measured = bench.measure(str(path))
        assert isinstance(measured, list), measured
        yield bench, measured[0]


def test_a_guard_without_a_test_survives_and_others_are_killed(
    planted: tuple[PgTap, File],
) -> None:
    bench, measured = planted
    assert "public.planted" in measured.functions
    refusals = [mutant for mutant in make_mutants(PLANTED) if mutant.operator == "refusal"]
    results = {mutant.name: bench.judge(mutant, [measured]) for mutant in refusals}
    assert {result.status for name, result in results.items() if "p_number < " in name} == {
        "killed"
    }
    assert {result.status for name, result in results.items() if "p_number > " in name} == {
        "survived"
    }


def test_what_cannot_be_created_and_what_hangs_are_told_apart(
    planted: tuple[PgTap, File],
) -> None:
    bench, measured = planted
    broken = make_mutants(PLANTED.replace("if p_number < 0", "if p_number < 0 f("))
    assert bench.judge(broken[0], [measured]).status == "invalid"
    endless = PLANTED.replace("return p_number;", "loop perform 1; end loop;")
    (pinned,) = [m for m in make_mutants(endless) if m.operator == "search-path"]
    result = bench.judge(pinned, [measured], least=1.0)
    assert (result.status, "statement timeout" in result.by) == ("killed", True)


def test_what_has_killed_the_like_comes_first_then_what_is_quickest() -> None:
    script = function("perform 1;") + function("perform pgq._f();").replace("_f()\nr", "_g()\nr")
    (mutant,) = make_mutants(function("delete from j where token = t;"))
    files = [
        File(name="tests/sql/10_functions.sql", seconds=2.0, functions=("pgq._f",)),
        File(name="tests/sql/11_catalog.sql", seconds=1.0, functions=("pgq._f", "pgq._g")),
        File(name="tests/sql/12_install.sql", seconds=0.5, functions=("pgq._g",)),
    ]
    kills: dict[str, Counter[str]] = defaultdict(Counter)

    def names(files: list[File]) -> list[str]:
        return [file.name for file in order([mutant], files, split(script), kills)]

    assert names(files) == ["tests/sql/11_catalog.sql", "tests/sql/10_functions.sql"]
    inlined = [file for file in files if "pgq._f" not in file.functions]
    assert names(inlined) == ["tests/sql/12_install.sql"]
    kills["token"]["tests/sql/10_functions.sql"] = 2
    assert names(files) == ["tests/sql/10_functions.sql", "tests/sql/11_catalog.sql"]
    kills["pgq._f"]["tests/sql/11_catalog.sql"] = 1
    assert names(files) == ["tests/sql/11_catalog.sql", "tests/sql/10_functions.sql"]


class Rehearsed(Pytest):
    """Pytest that only looks which functions are mutated, and fails the tests that name them."""

    failing: ClassVar[dict[str, list[str]]] = {}

    def _run(self, tests: Sequence[str], limit: float | None, **_: str) -> tuple[str, str]:
        del limit
        text = self._change.read_text(encoding="utf-8")
        for test in tests:
            if any(all(name in text for name in names.split()) for names in self.failing[test]):
                return f"FAILED {test}", test
        return "", ""


def test_mutants_that_run_together_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "".join(
        function("delete from j where token = t;").replace("_f", name)
        for name in ("_f", "_g", "_h")
    ) + function("delete from i where token = t;")
    made = make_mutants(script)
    together = batches(made, 8)
    assert [[m.functions[0] for m in batch] for batch in together] == [
        ["pgq._f", "pgq._g", "pgq._h"],
        ["pgq._f"],
    ]
    assert [len(batch) for batch in batches(made, 2)] == [2, 2]
    # The second test fails for two of them together and for none alone.
    failing = {"t1": ["_f"], "t2": ["_g _h"], "t3": ["_h"], "t4": []}
    monkeypatch.setattr(Rehearsed, "failing", failing)
    files = [File(name=name, seconds=1.0, functions=()) for name in failing]
    found = Rehearsed(tmp_path / "change.sql").judge(together[0], files)
    by_key = {result.key: (result.status, result.by) for result in found}
    assert [by_key[mutant.key] for mutant in together[0]] == [
        ("killed", "FAILED t1"),
        ("survived", "4 tests"),
        ("killed", "FAILED t3"),
    ]


def test_a_sample_of_mutants_is_killed(made: list[Mutant]) -> None:
    """Receipts are checked by what fencing tests; PGQ_MUTANT_SEED chooses others."""
    seed = int(os.environ.get("PGQ_MUTANT_SEED", "0"))
    equivalent = read_equivalent(EQUIVALENT)
    possible = [mutant for mutant in made if mutant.name not in equivalent]
    sample = choose(possible, re.compile(r"(search-path: |: revoke$)"), 4, seed)
    sample += choose(possible, re.compile(r"_(renew_N|heartbeat): token: "), 2, seed)
    names = ("10_functions.sql", "11_catalog.sql", "42_heartbeat.sql")
    files = [File(name=str(SQL / name), seconds=1.0, functions=()) for name in names]
    with PgTap(read_script()) as bench:
        results = [bench.judge(mutant, files) for mutant in sample]
    assert len(results) > 4
    assert [result for result in results if result.status != "killed"] == []


def test_each_operator_has_mutants_in_this_version(made: list[Mutant]) -> None:
    assert {mutant.operator for mutant in made} == {*OPERATORS}
