"""Every rule for SQL sources finds what it is there to find, and nothing in a clean file."""

import ast

import pytest
from bootstrap import ROOT
from check_style import RULES, Source, check

pytestmark = pytest.mark.constant

CLEAN = """\
/*
 * Owns nothing. SELECT, WHEN OTHERS, %L and RAISE mean nothing in a comment.
 */
create function pgq._clean(p_name text)
returns text
language plpgsql
as $$
begin
    -- Nor does RAISE here.
    raise exception 'no "%"; WHEN OTHERS is text', p_name using errcode = '42704';
exception
    when undefined_object then
        raise;
end
$$;
"""

LONG_FUNCTION = CLEAN.replace("begin\n", "begin\n" + "    perform 1;\n" * 80)

DIRTY = {
    "opens_with_comment": "\n" + CLEAN,
    "is_short": CLEAN + "select 1;\n" * 300,
    "has_short_functions": LONG_FUNCTION,
    "has_short_lines": CLEAN + f"select {'1' * 100};\n",
    "is_lower_case": CLEAN.replace("returns text", "RETURNS text"),
    "catches_by_name": CLEAN.replace("undefined_object", "others"),
    "raises_with_errcode": CLEAN.replace(" using errcode = '42704'", ""),
    "words_its_messages": CLEAN.replace("is text'", "is text.'"),
    "passes_values_as_parameters": CLEAN + "select format('select %1$L', 1);\n",
    "calls_once_for_all_columns": CLEAN + "select (pgq._row(a, f(b))).* from a;\n",
    "marks_its_escapes": CLEAN + "select 'a' ~ E'\\w', 'b' ~ '\\w';\n",
    "has_clean_white_space": CLEAN.replace("begin\n", "begin \n"),
}


def test_a_clean_file_has_no_findings() -> None:
    assert check(CLEAN) == []


def test_a_function_is_longer_where_a_statement_is_written_out_per_slot() -> None:
    hot = LONG_FUNCTION.replace("begin\n", "begin\n    --@ each ring\n    --@ end\n")
    assert check(hot) == []


def test_every_rule_has_a_case() -> None:
    assert list(DIRTY) == [rule.__name__ for rule in RULES]


@pytest.mark.parametrize("rule", DIRTY)
def test_a_rule_finds_its_fault_and_no_other_rule_does(rule: str) -> None:
    findings = {r.__name__: list(r(Source(DIRTY[rule]))) for r in RULES}
    assert [name for name, found in findings.items() if found] == [rule]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('no "%"', 'No "%"', "a message is lower-case, without full stop"),
        ("is text'", "'\n        'is text.'", "a message is lower-case, without full stop"),
        ("'42704'", "'42704',\n hint = 'Try again'", "the hint has no full stop"),
        ("'42704'", "'42704',\n detail = format('It is %s', 1)", "the detail has no full stop"),
    ],
)
def test_a_message_has_no_full_stop_but_its_detail_and_hint_have(
    before: str, after: str, message: str
) -> None:
    assert [found for _, found in check(CLEAN.replace(before, after))] == [message]
    good = CLEAN.replace("'42704'", "'42704',\n detail = p_name, hint = 'Try '\n 'again.'")
    assert check(good) == []


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (CLEAN + "\tselect 1;\n", 16, "tab"),
        (CLEAN[:-1], 15, "the file does not end with one newline"),
        (CLEAN + "\n", 17, "the file does not end with one newline"),
        (CLEAN + "select E'it\\'s' || 'x', Y;\n", 16, "'Y' is not lower case"),
        (LONG_FUNCTION, 4, "function pgq._clean has 92 lines, more than 80"),
    ],
)
def test_a_finding_names_line_and_fault(text: str, line: int, message: str) -> None:
    assert (line, message) in check(text)


GUARDS = {"wait_for", "within", "until", "wait", "communicate", "join", "result", "run"}


def list_own_limits(tree: ast.AST) -> list[tuple[int, object]]:
    """Return line and seconds of each guard against a hang that has a number of its own.

    A few seconds are no such guard: they are what the test is about.
    """
    limits: list[tuple[int, object]] = []
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        if name not in GUARDS:
            continue
        given = [word.value for word in call.keywords if word.arg in {"timeout", "patience"}]
        given += call.args
        numbers = [value.value for value in given if isinstance(value, ast.Constant)]
        limits += [
            (call.lineno, number)
            for number in numbers
            if isinstance(number, int | float) and 30 <= number < 600
        ]
    return limits


def test_what_hangs_is_ended_by_one_guard() -> None:
    """As a slow machine takes long to start a program: `pgserver.PATIENCE` is enough for any."""
    files = [path for place in ("tests", "demo") for path in (ROOT / place).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): limits
        for path in files
        if (limits := list_own_limits(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == {}
