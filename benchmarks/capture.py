"""Turns the statements that a peer's library issues into pgbench's syntax.

The benchmarks keep no SQL of the peers. A peer's library is run once against the database with
all statements logged by the server; what the log has is then bound to pgbench's variables:

    with recorded(database) as statements:
        library.enqueue(...)
    script = bound(statements[0], {1: ":ids"})

`bound` puts literals for the other parameters, and `gset` makes of a statement that returns
claimed rows one that returns pgbench variables. Where a driver wraps a single statement in BEGIN
and COMMIT the scripts leave them out, to the peer's advantage; transactions of several statements
stay what they are.
"""

import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pgserver import Server

from benchmarks.stage import altered
from benchmarks.system import Database, UnavailableError

_ENTRY = re.compile(
    r"^\S+ \S+ \S+ \[(\d+)\] (?:LOG:  (?:execute [^:]*|statement): |DETAIL:  Parameters: )",
    re.MULTILINE,
)
# Seconds until the sessions know of another setting.
_RELOAD = 0.5

_NEXT = re.compile(r"^\S+ \S+ \S+ \[\d+\] ", re.MULTILINE)
_PARAMETER = re.compile(r"\$(\d+) = (NULL|'(?:[^']|'')*')")
_TOKEN = re.compile(
    r"""(?P<string>'(?:[^']|'')*')
      | (?P<name>"[^"]*")
      | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<cast>::)
      | (?P<colon>:(?=[A-Za-z_]))
      | \$(?P<number>\d+)
      | (?P<open>\()
      | (?P<close>\))""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement as the server had it, with the values of its parameters as text."""

    text: str
    parameters: tuple[str | None, ...] = ()


@contextmanager
def recorded(database: Database) -> Generator[list[Statement], None, None]:
    """Record the statements of the sessions that begin within the block; complete after it."""
    statements: list[Statement] = []
    database.psql(f"alter database {_quoted(database.name)} set log_statement = 'all'")
    start = database.server.log.stat().st_size
    try:
        yield statements
    finally:
        statements += _logged_since(database.server, start)
        database.psql(f"alter database {_quoted(database.name)} reset log_statement")


def logged(server: Server, seconds: float) -> list[Statement]:
    """Return the statements that all sessions have run while so many seconds passed.

    Each is one message of a client: a transaction's BEGIN and COMMIT count if they are sent, what
    a function runs does not.
    """
    with altered(server, {"log_statement": "all"}):
        time.sleep(_RELOAD)
        start = server.log.stat().st_size
        time.sleep(seconds)
        return list(_logged_since(server, start))


def _logged_since(server: Server, start: int) -> Iterator[Statement]:
    with server.log.open("rb") as log:
        log.seek(start)
        return read_statements(log.read().decode())


def only(statements: Sequence[Statement], pattern: str) -> list[Statement]:
    """Return the statements that a regular expression is found in; raises `UnavailableError`."""
    found = [
        item for item in statements if re.search(pattern, item.text, re.IGNORECASE | re.DOTALL)
    ]
    if not found:
        raise UnavailableError(f"its library issued no statement like {pattern!r}")
    return found


def bound(statement: Statement, expressions: Mapping[int, str] | None = None) -> str:
    """Return a statement with its parameters replaced by expressions, the others by literals."""

    def replace(match: re.Match[str]) -> str:
        if match["number"]:
            number = int(match["number"])
            if expressions and number in expressions:
                return expressions[number]
            return literal(statement.parameters[number - 1])
        if match["comment"]:
            return " "
        if match["string"]:
            return _safe(match[0])
        return ": " if match["colon"] else match[0]

    text = _TOKEN.sub(replace, statement.text).strip().rstrip(";")
    return "\n".join(line for line in text.splitlines() if line.strip())


def literal(value: str | None) -> str:
    """Return a value as a literal of SQL that pgbench leaves alone."""
    return "NULL" if value is None else _safe("'" + value.replace("'", "''") + "'")


def gset(statement: str, outputs: Mapping[str, str], *, names: str = "") -> str:
    r"""Let a statement return one row of expressions over its rows, as pgbench variables.

    The row source is called `taken`; a WITH of the statement stays at the top, as it has to
    where it changes data. `names` gives its first columns other names, where they are ambiguous.
    """
    head, body = _split(statement)
    ctes = f"{head},\n" if head else "with "
    taken = f"taken ({names})" if names else "taken"
    columns = ", ".join(f"{expression} as {name}" for name, expression in outputs.items())
    return f"{ctes}{taken} as (\n{body}\n)\nselect {columns} from taken \\gset"


def ids(expression: str = "id", kind: str = "bigint") -> str:
    """Return the aggregate of claimed jobs' ids, empty and not NULL when there are none."""
    return f"coalesce(array_agg({expression}), '{{}}'::{kind}[])"


def read_statements(log: str) -> Iterator[Statement]:
    """Read the server's log, as it is with log_statement = all."""
    pending: Statement | None = None
    for match in _ENTRY.finditer(log):
        end = _NEXT.search(log, match.end())
        text = log[match.end() : end.start() if end else len(log)].rstrip("\n")
        text = text.replace("\n\t", "\n")
        if "DETAIL:" not in match[0]:
            if pending is not None:
                yield pending
            pending = Statement(text=text)
        elif pending is not None:
            values = tuple(_value(item[2]) for item in _PARAMETER.finditer(text))
            yield Statement(text=pending.text, parameters=values)
            pending = None
    if pending is not None:
        yield pending


def _value(text: str) -> str | None:
    return None if text == "NULL" else text[1:-1].replace("''", "'")


def _safe(quoted: str) -> str:
    """Hide colons before names, which pgbench takes for variables also within strings."""
    if not re.search(r"(?<!:):[A-Za-z_]", quoted):
        return quoted
    escaped = re.sub(r"(?<!:):(?=[A-Za-z_])", r"\\x3a", quoted.replace("\\", "\\\\"))
    return "E" + escaped


def _split(statement: str) -> tuple[str, str]:
    """Split a statement into its WITH list, empty if it has none, and the rest."""
    if not re.match(r"\s*with\b", statement, re.IGNORECASE):
        return "", statement
    depth = 0
    for match in _TOKEN.finditer(statement):
        if match["open"]:
            depth += 1
        elif match["close"]:
            depth -= 1
            rest = statement[match.end() :]
            if depth == 0 and not re.match(r"\s*(,|as\b)", rest, re.IGNORECASE):
                return statement[: match.end()], rest.strip()
    raise ValueError(f"not understood: {statement}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
