"""Makes mutants of the install script: in each of them one guard is removed or weakened.

| operator | pattern | what the mutant does |
|---|---|---|
| `token` | a comparison with a token | takes any token |
| `table-lock` | `lock table ...`, also in a string for `execute` | does not lock the table first |
| `look` | a condition in a function that locks or truncates a table | goes on without the look |
| `nowait` | `nowait` behind a lock of rows or tables | waits for the lock |
| `row-lock` | `for [no key] update or share [of x] [nowait or skip locked]` | locks no row |
| `skip-locked` | `skip locked` behind such a lock | waits for locked rows |
| `advisory-lock` | a call of `pg_[try_]advisory_..._lock` | does not lock |
| `isolation` | a condition on the isolation level | takes any level |
| `privilege` | a condition on the caller or on roles | lets everybody |
| `revoke` | `revoke ... from public` | grants it instead |
| `search-path` | `set search_path` of a function | takes the caller's |
| `check` | a call of a function `_check...` | does not check |
| `refusal` | a condition before `raise` or a call of `_check...` | does not refuse |
| `bound` | `least(a, b)`, `greatest(a, b)` | leaves an argument out |
| `state` | a condition of a query, other than the equality of two columns | takes any row |

A condition is split at AND, OR and NOT. Each part is one guard, replaced by the constant that lets
more happen: the caller has all privileges, every isolation level will do. Copies of a guard, which
differ only in the number of a slot, are mutated together: the source has one. Nothing here knows a
particular function. A mutant is a script that replaces the functions in a database that has pgq.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["OPERATORS", "Mutant", "Statement", "make_mutants", "neutral", "split"]

# The most dangerous first.
OPERATORS = (
    "token",
    "table-lock",
    "look",
    "nowait",
    "row-lock",
    "skip-locked",
    "advisory-lock",
    "isolation",
    "privilege",
    "revoke",
    "search-path",
    "check",
    "refusal",
    "bound",
    "state",
)

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+ | --[^\n]* | /\*.*?\*/)
  | (?P<dollar>\$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$)
  | (?P<string>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*')
  | (?P<word>"(?:[^"]|"")*" | @?[A-Za-z_][\w$]*@? | \$\d+)
  | (?P<number>\d+(?:\.\d+)?)
  | (?P<sign>:= | :: | <= | >= | <> | != | << | >> | && | \|\| | <@ | @> | \.\. | ->> | -> | .)
    """,
    re.VERBOSE | re.DOTALL,
)

_COMPARISON = {"=", "<", ">", "<=", ">=", "<>", "!=", "is", "in", "like", "between", "~"}
_ISOLATION = re.compile(r"transaction_isolation|read_committed|isolation")
_PRIVILEGE = re.compile(
    r"\b_may\w*|\b_is_(?:granted|chief|owner)|has_\w+_privilege|pg_has_role|\bsession_user\b"
    r"|current_setting\('role'\)|\bcurrent_user\b"
)
_TOKEN_COMPARED = re.compile(
    r"\btoken( \))? (=|<>|!=|<|>|is|in) |(=|<>|!=|<|>|from) (\w+ \. )?token\b"
)
_CHECK = re.compile(r"_check_\w+|_check")
_ADVISORY = re.compile(r"pg_(try_)?advisory_(xact_)?lock(_shared)?")
# How many lines above a guard tell whether another one is a copy.
_LINES = 6
_LOCKED_TABLE = re.compile(r"'lock table [^']*'")
# What ends a condition that is in no parentheses of its own.
_ENDS = {
    "group", "order", "limit", "for", "returning", "union", "except", "intersect", "window",
    "having", "then", "loop", "join", "left", "right", "full", "cross", "inner", "where",
    "else", "when", "end", "do", "offset", "fetch", ";", ",",
}  # fmt: skip
_LEAVES = {"return", "raise", "continue", "exit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A word, sign or literal and where it stands."""

    text: str
    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement of the script that mutants change: `name` is what it makes or revokes."""

    kind: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One guard of a statement, and what replaces it."""

    operator: str
    start: int
    end: int
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A guard and its copies, weakened: `name` stays the same when other code changes."""

    operator: str
    functions: tuple[str, ...]
    name: str
    place: str
    sql: str

    @property
    def key(self) -> str:
        """A hash of the mutated statements."""
        return hashlib.sha256(self.sql.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guard:
    """An edit in the script, with the text around it."""

    statement: Statement
    edit: Edit
    window: str

    @property
    def family(self) -> tuple[str, str, str, str]:
        edit = self.edit
        return (
            _without_slot(self.statement.name),
            edit.operator,
            _without_slot(edit.replacement),
            _without_slot(self.window),
        )


def split(script: str) -> list[Statement]:
    """Return the statements of an install script that mutants change."""
    statements: list[Statement] = []
    begin: int | None = None
    opened = 0
    is_atomic = False
    previous = ""
    for token in _tokens(script):
        word = token.text.lower()
        if begin is None:
            begin = token.start
        if word == "atomic" and previous == "begin":
            is_atomic = True
        elif is_atomic and word == "case":
            opened += 1
        elif is_atomic and word == "end":
            is_atomic = opened > 0
            opened -= is_atomic
        previous = word
        if word == ";" and not is_atomic:
            statements += _classify(script[begin : token.end])
            begin = None
    return statements


def make_mutants(script: str) -> list[Mutant]:
    """Return all mutants of an install script, those of one function together."""
    families: dict[tuple[tuple[str, str, str, str], int], list[_Guard]] = defaultdict(list)
    seen: dict[tuple[str, str, Edit | str], int] = defaultdict(int)
    for statement in split(script):
        for edit in _edits(statement):
            guard = _Guard(statement=statement, edit=edit, window=_window(statement, edit))
            # The same text again in one function is another guard; with another slot, a copy.
            place = (statement.name, edit.operator + edit.replacement, guard.window)
            families[guard.family, seen[place]].append(guard)
            seen[place] += 1
    mutants: list[Mutant] = []
    taken: dict[str, int] = defaultdict(int)
    for guards in families.values():
        name = _name(guards[0])
        taken[name] += 1
        if taken[name] > 1:
            name += f" #{taken[name]}"
        mutants.append(
            Mutant(
                operator=guards[0].edit.operator,
                functions=tuple(dict.fromkeys(guard.statement.name for guard in guards)),
                name=name,
                place=guards[0].window,
                sql=_script(guards),
            )
        )
    return mutants


def neutral(script: str) -> str:
    """Return a script that replaces all functions by others with one more empty line."""
    changed: list[str] = []
    for statement in split(script):
        if statement.kind == "function" and (body := re.search(r"\$(\w*)\$", statement.text)):
            end = body.end()
            text = f"{statement.text[:end]}\n{statement.text[end:]}"
            changed.append(_replace(text))
    return "\n".join(changed)


def _tokens(text: str, start: int = 0, end: int | None = None) -> Iterator[Token]:
    for found in _TOKEN.finditer(text, start, len(text) if end is None else end):
        kind = found.lastgroup or ""
        if kind == "tag":
            kind = "dollar"
        if kind != "skip":
            yield Token(text=found[0], start=found.start(), end=found.end(), kind=kind)


def _classify(text: str) -> list[Statement]:
    text = text.strip()
    if made := re.match(r"create (?:or replace )?(function|view) ([\w.@]+)", text):
        return [Statement(kind=made[1], name=_public(made[2]), text=text)]
    if revoked := re.match(r"revoke [^;]*? on ([^;]*) from public", text):
        name = " ".join(_public(revoked[1]).split())
        return [Statement(kind="revoke", name=name, text=text)]
    return []


def _public(text: str) -> str:
    return text.replace("@extschema@", "public")


def _edits(statement: Statement) -> list[Edit]:
    """Return the guards of a statement, in their order."""
    text = statement.text
    if statement.kind == "revoke":
        granted = re.sub(r"revoke .*? on", "grant all on", text, count=1, flags=re.DOTALL)
        granted = re.sub(r"from public", "to public", granted)
        return [Edit(operator="revoke", start=0, end=len(text), replacement=granted)]
    edits: list[Edit] = []
    body = next((token for token in _tokens(text) if token.kind == "dollar"), None)
    if statement.kind == "function":
        header = text[: body.start] if body else text
        if pinned := re.search(r"\n *set search_path[^\n]*", header):
            edits.append(
                Edit(
                    operator="search-path",
                    start=pinned.start(),
                    end=pinned.end(),
                    replacement="",
                )
            )
    if body is None:
        tokens = list(_tokens(text))
    else:
        mark = text.index("$", body.start + 1) + 1
        tokens = list(_tokens(text, mark, body.end - (mark - body.start)))
    edits += _lock_edits(tokens)
    edits += _call_edits(tokens, text)
    locks = bool(re.search(r"\b(truncate|lock table)\b", text))
    edits += _condition_edits(tokens, text, locks=locks)
    return sorted(edits, key=lambda edit: (edit.start, edit.end))


def _lock_edits(tokens: Sequence[Token]) -> list[Edit]:
    edits: list[Edit] = []
    words = [token.text.lower() for token in tokens]
    for at, word in enumerate(words):
        if word == "for":
            last = _end_of_row_lock(words, at)
            if last is not None:
                edits.append(_edit("row-lock", tokens[at], tokens[last]))
        elif word == "skip" and words[at + 1 : at + 2] == ["locked"]:
            edits.append(_edit("skip-locked", tokens[at], tokens[at + 1]))
        elif word == "nowait":
            edits.append(_edit("nowait", tokens[at], tokens[at]))
        elif word == "lock" and words[at + 1 : at + 2] == ["table"]:
            last = words.index(";", at)
            edits.append(_edit("table-lock", tokens[at], tokens[last - 1], "null"))
        elif tokens[at].kind == "string" and _LOCKED_TABLE.fullmatch(word):
            # The arguments of format() may stay: what is formatted need not use them all.
            edits.append(_edit("table-lock", tokens[at], tokens[at], "'select'"))
            if word.endswith(" nowait'"):
                waiting = tokens[at].text[: -len(" nowait'")] + "'"
                edits.append(_edit("nowait", tokens[at], tokens[at], waiting))
    return edits


def _end_of_row_lock(words: Sequence[str], at: int) -> int | None:
    """Return where a clause FOR UPDATE or FOR SHARE ends, None if there is none."""
    strengths = (["update"], ["no", "key", "update"], ["share"], ["key", "share"])
    for strength in strengths:
        last = at + len(strength)
        if list(words[at + 1 : last + 1]) != strength:
            continue
        if words[last + 1 : last + 2] == ["of"]:
            last += 2
            while words[last + 1] == ",":
                last += 2
        if words[last + 1] == "nowait":
            return last + 1
        return last + 2 if list(words[last + 1 : last + 3]) == ["skip", "locked"] else last
    return None


def _call_edits(tokens: Sequence[Token], text: str) -> list[Edit]:
    edits: list[Edit] = []
    for at, token in enumerate(tokens[:-1]):
        word = token.text.lower()
        if tokens[at + 1].text != "(" or token.kind != "word":
            continue
        first = at
        if at > 1 and tokens[at - 1].text == ".":
            first = at - 2
        close = _closing(tokens, at + 1)
        if _CHECK.fullmatch(word):
            edits.append(_edit("check", tokens[first], tokens[close], "null"))
        elif _ADVISORY.fullmatch(word):
            edits.append(_edit("advisory-lock", tokens[first], tokens[close], "true"))
        elif word in ("least", "greatest"):
            arguments = _arguments(tokens, at + 1, close, text)
            for left_out in range(len(arguments)):
                rest = arguments[:left_out] + arguments[left_out + 1 :]
                one = f"({rest[0]})" if len(rest) == 1 else f"{word}({', '.join(rest)})"
                edits.append(_edit("bound", token, tokens[close], one))
    return edits


def _closing(tokens: Sequence[Token], opening: int) -> int:
    depth = 0
    for at in range(opening, len(tokens)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(tokens[at].text, 0)
        if depth == 0:
            return at
    return len(tokens) - 1


def _arguments(tokens: Sequence[Token], opening: int, close: int, text: str) -> list[str]:
    arguments: list[str] = []
    begin = opening + 1
    at = begin
    while at <= close:
        if tokens[at].text in ("(", "[") and at < close:
            at = _closing(tokens, at) + 1
            continue
        if tokens[at].text == "," or at == close:
            if at > begin:
                arguments.append(text[tokens[begin].start : tokens[at - 1].end])
            begin = at + 1
        at += 1
    return arguments


def _condition_edits(tokens: Sequence[Token], text: str, *, locks: bool) -> list[Edit]:
    """Return the guards among the conditions of queries and of statements."""
    edits: list[Edit] = []
    words = [token.text.lower() for token in tokens]
    for at, word in enumerate(words):
        before = words[at - 1] if at else ";"
        if word in ("where", "having") or (
            word == "on" and before not in ("update", "delete", "distinct")
        ):
            if (word == "on" and words[at + 1] in ("conflict", "commit", "constraint")) or (
                words[at - 2 : at] == ["filter", "("]
            ):
                continue
            kind, weak = "query", True
        elif word in ("if", "elsif") and before != "end":
            kind = "statement"
            weak = True
        elif word == "when" and before in ("exit", "continue"):
            kind, weak = "statement", False
        elif word in ("return", ":=") and words[at + 1] not in ("next", "query", ";"):
            kind, weak = "value", True
        else:
            continue
        end = _end_of_condition(tokens, words, at + 1, kind)
        refuses = False
        if word in ("if", "elsif") and end + 1 < len(words):
            weak = words[end + 1] not in _LEAVES
            refuses = words[end + 1] == "raise" or (
                words[end + 1] == "perform" and bool(_CHECK.fullmatch(words[end + 4]))
            )
            weak = weak and not refuses
        for first, last, is_positive in _atoms(words, at + 1, end):
            if last <= first:
                continue
            atom = text[tokens[first].start : tokens[last - 1].end]
            inside = words[first:last]
            operator = _operator(atom.lower(), inside, kind, refuses=refuses, locks=locks)
            if operator is not None:
                constant = "true" if weak == is_positive else "false"
                if operator in ("privilege", "isolation"):
                    constant = _granted(inside)
                edits.append(_edit(operator, tokens[first], tokens[last - 1], constant))
    return edits


def _granted(words: Sequence[str]) -> str:
    """Return what a condition on privileges or the level is where all are given."""
    return "false" if {"<>", "!="} & set(words) else "true"


def _end_of_condition(tokens: Sequence[Token], words: Sequence[str], begin: int, kind: str) -> int:
    at = begin
    while at < len(words):
        word = words[at]
        if word in ("(", "["):
            at = _closing(tokens, at) + 1
        elif word == "case":
            at = _end_of_case(words, at) + 1
        elif (
            word in (")", "]", ";")
            or (word in _ENDS and not (kind == "value" and word == ","))
            or words[at : at + 2] == ["on", "conflict"]
        ):
            return at
        else:
            at += 1
    return at


def _end_of_case(words: Sequence[str], begin: int) -> int:
    depth = 0
    for at in range(begin, len(words)):
        depth += {"case": 1, "end": -1}.get(words[at], 0)
        if depth == 0:
            return at
    return len(words) - 1


def _atoms(
    words: Sequence[str], begin: int, end: int, *, is_positive: bool = True
) -> Iterator[tuple[int, int, bool]]:
    """Split a condition at OR, AND, NOT and parentheses; yield parts and whether they are plain."""
    for separator in ("or", "and"):
        parts = _split_at(words, begin, end, separator)
        if len(parts) > 1:
            for first, last in parts:
                yield from _atoms(words, first, last, is_positive=is_positive)
            return
    if begin < end and words[begin] == "not":
        yield from _atoms(words, begin + 1, end, is_positive=not is_positive)
    elif (
        begin < end
        and words[begin] == "("
        and _match(words, begin) == end - 1
        and words[begin + 1] not in ("select", "with", "values")
    ):
        yield from _atoms(words, begin + 1, end - 1, is_positive=is_positive)
    else:
        yield begin, end, is_positive


def _split_at(words: Sequence[str], begin: int, end: int, separator: str) -> list[tuple[int, int]]:
    parts: list[tuple[int, int]] = []
    first = at = begin
    is_between = False
    while at < end:
        word = words[at]
        if word in ("(", "["):
            at = _match(words, at)
        elif word == "case":
            at = _end_of_case(words, at)
        elif word == "between":
            is_between = True
        elif word == separator == "and" and is_between:
            is_between = False
        elif word == separator:
            parts.append((first, at))
            first = at + 1
        at += 1
    return [*parts, (first, end)]


def _match(words: Sequence[str], opening: int) -> int:
    depth = 0
    for at in range(opening, len(words)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(words[at], 0)
        if depth == 0:
            return at
    return len(words) - 1


def _operator(
    atom: str, words: Sequence[str], kind: str, *, refuses: bool, locks: bool
) -> str | None:
    """Return which operator takes a part of a condition, None if it is no guard."""
    top = _top(words)
    compares = bool(_COMPARISON & set(top))
    shown = " ".join(top)
    is_privilege = bool(_PRIVILEGE.search(shown if "exists" in top else atom))
    is_value = kind == "value"
    if is_value and (words[0] in ("case", "array", "coalesce") or not (compares or is_privilege)):
        return None
    rules = {
        "token": not refuses and _TOKEN_COMPARED.search(shown),
        "isolation": _ISOLATION.search(atom),
        "privilege": is_privilege,
        "refusal": refuses,
        "look": locks and not is_value,
        "state": kind == "query" and not _is_join(top) and top not in (["true"], ["false"]),
    }
    return next((operator for operator, takes in rules.items() if takes), None)


def _top(words: Sequence[str]) -> list[str]:
    """Return the words of a part without those of queries inside."""
    top: list[str] = []
    at = 0
    while at < len(words):
        if words[at] == "(" and words[at + 1 : at + 2] and words[at + 1] in ("select", "with"):
            at = _match(words, at)
            top.append("()")
        else:
            top.append(words[at])
        at += 1
    return top


def _is_join(words: Sequence[str]) -> bool:
    """Tell whether a part compares for equality with a column, variable or array: an address."""
    if "=" not in words:
        return False
    rest = words[words.index("=") + 1 :]
    return (
        not rest[0].startswith("'")
        and rest[0] not in ("true", "false")
        and not (len(rest) == 1 and rest[0].isdigit())
    )


def _edit(operator: str, first: Token, last: Token, replacement: str = "") -> Edit:
    return Edit(operator=operator, start=first.start, end=last.end, replacement=replacement)


def _window(statement: Statement, edit: Edit) -> str:
    """Return the lines around a guard, of the same branch of CASE where there is one."""
    first = statement.text[: edit.start].count("\n")
    last = statement.text[: edit.end].count("\n")
    lines = statement.text.split("\n")
    around = lines[max(first - _LINES, 0) : last + 1]
    branches = [number for number, line in enumerate(around) if re.match(r" *when \d+ then", line)]
    around = around[branches[-1] :] if branches else around
    below = [
        line for line in lines[last + 1 : last + 2] if not re.match(r" *(when|else|end)", line)
    ]
    column = edit.start - (statement.text.rfind("\n", 0, edit.start) + 1)
    return "\n".join([*around, *below, str(column)])


def _without_slot(text: str) -> str:
    return re.sub(r"(?<=_)\d+\b|\b\d\b", "N", text)


def _name(guard: _Guard) -> str:
    statement, edit = guard.statement, guard.edit
    begin = statement.text.rfind("\n", 0, edit.start) + 1
    before = statement.text[begin : edit.start].lstrip()
    if not before:
        above = statement.text[:begin].rstrip("\n")
        before = above[above.rfind("\n") + 1 :].lstrip() + " "
    guarded = _without_slot(" ".join(statement.text[edit.start : edit.end].split()))
    if statement.kind == "revoke":
        return f"{statement.name}: revoke"
    shown = f"{_without_slot(before)}<<{guarded}>>"
    change = edit.replacement and f" -> {_without_slot(' '.join(edit.replacement.split()))}"
    return f"{_without_slot(statement.name)}: {edit.operator}: {shown}{change}"


def _script(guards: Sequence[_Guard]) -> str:
    """Return the statements with all copies of a guard replaced."""
    edits: dict[Statement, list[Edit]] = defaultdict(list)
    for guard in guards:
        edits[guard.statement].append(guard.edit)
    scripts: list[str] = []
    for statement, changes in edits.items():
        text = statement.text
        for edit in sorted(changes, key=lambda edit: -edit.start):
            text = text[: edit.start] + edit.replacement + text[edit.end :]
        scripts.append(_replace(text))
    return "\n".join(scripts)


def _replace(text: str) -> str:
    return _public(re.sub(r"^create (?:or replace )?", "create or replace ", text))
