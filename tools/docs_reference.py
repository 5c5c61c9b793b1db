"""Writes docs/reference/sql.md from what a private server has in its catalog.

    docs_reference.py [--check]

With --check nothing is written, and the exit status is 1 if the page is stale.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg
from pgq._errors import Diagnosis, translate
from pgserver import Server

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "sql.md"
COMMAND: Final = "make reference"

INTRODUCTION: Final = f"""
    What the catalog says: the signatures of the functions and their comments (`\\df+ pgq_*`), the
    columns of the views, the errors. `(id, token)` is the receipt of a claim. The privilege is the
    one of [pgq_grant](#pgq_grant) that a function needs. Written by `{COMMAND}`.
"""
ERRORS: Final = """
    The codes that the comments above name, and the class that the Python package raises for each;
    those that have none come as asyncpg raises them.
"""

_SQLSTATE: Final = re.compile("[0-9A-Z]{5}")
# Errors of PostgreSQL for which the package has no class.
_FOREIGN: Final = {
    "25006": "The transaction is read-only.",
    "39P01": "The function was called by the wrong kind of trigger.",
    "40P01": "Two sessions waited for each other; the transaction has to be run again.",
}

TOPICS: Final = {
    "Produce": ["enqueue", "enqueue_many"],
    "Consume": ["dequeue", "pop", "claim"],
    "With a receipt": [
        "heartbeat",
        "complete",
        "complete_and_dequeue",
        "fail",
        "release",
        "release_unheld",
        "outcome",
        "reclaim",
    ],
    "Jobs": ["get", "cancel", "cancel_key", "cancel_all", "move", "retry", "retry_dead", "purge"],
    "Queues": ["create_queue", "configure_queue", "drop_queue", "pause", "resume", "unblock"],
    "Schedules": ["schedule", "unschedule", "pause_schedule", "resume_schedule", "run_schedule"],
    "Sleep": ["channel", "wait", "wake"],
    "Watched tables": ["watch", "unwatch", "check_watch", "enqueue_row"],
    "Privileges": ["grant", "revoke"],
    "Other": ["maintain", "set_shard", "version"],
}

SETUP: Final = """
    create extension pgq;
    create role doc_enqueue;
    create role doc_consume;
    create role doc_observe;
    select pgq_grant('*', 'doc_' || verb, array[verb])
      from unnest('{enqueue,consume,observe}'::text[]) verb;
"""

FUNCTIONS: Final = """
    select json_agg(f)
      from (
               select p.proname as name, pg_get_function_result(p.oid) as result,
                      obj_description(p.oid, 'pg_proc') as comment,
                      coalesce((select substr(r.rolname, 5) from pg_roles r
                                 where r.rolname ~ '^doc_' and p.proname <> 'pgq_version'
                                   and has_function_privilege(r.oid, p.oid, 'execute')),
                               case when p.proname = 'pgq_version' then 'any'
                                    else 'manage' end) as privilege,
                      (
                          select coalesce(json_agg(json_build_array(
                                     p.proargnames[n], format_type(p.proargtypes[n - 1], null),
                                     pg_get_function_arg_default(p.oid, n)) order by n), '[]')
                            from generate_series(1, p.pronargs) n
                      ) as arguments
                 from pg_proc p
                where p.proname ~ '^pgq_' and p.pronamespace = 'public'::regnamespace
                order by p.oid
           ) f
"""

RELATIONS: Final = """
    select json_agg(r)
      from (
               select c.relname as name, c.relkind as kind,
                      coalesce(obj_description(c.oid, 'pg_class'),
                               obj_description(c.reltype, 'pg_type')) as comment,
                      (
                          select json_agg(json_build_array(
                                     a.attname, format_type(a.atttypid, a.atttypmod))
                                 order by a.attnum)
                            from pg_attribute a
                           where a.attrelid = c.oid and a.attnum > 0
                      ) as columns
                 from pg_class c
                where c.relname ~ '^pgq_' and c.relnamespace = 'public'::regnamespace
                order by c.relkind, c.relname
           ) r
"""


def main() -> int:
    """Write the page, or compare it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--check", action="store_true")
    check: bool = parser.parse_args().check
    with Server(settings={"fsync": "off"}) as server:
        server.psql(SETUP)
        functions = json.loads(server.psql(FUNCTIONS))
        relations = json.loads(server.psql(RELATIONS))
    page = "\n".join(_page(functions, relations)) + "\n"
    if not check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
        print(f"docs/reference/sql.md: {len(functions)} functions, as in the catalog")
        return 0
    print(f"docs/reference/sql.md is stale: run {COMMAND}")
    return 1


def _page(functions: list[dict[str, Any]], relations: list[dict[str, Any]]) -> Iterator[str]:
    documented = {f"pgq_{name}" for names in TOPICS.values() for name in names}
    if found := documented ^ {function["name"] for function in functions}:
        raise SystemExit(f"docs_reference.py: TOPICS does not fit: {', '.join(sorted(found))}")
    yield "# SQL"
    yield ""
    yield from _fold(INTRODUCTION)
    for topic, names in TOPICS.items():
        yield from ("", f"## {topic}")
        for name in names:
            yield from ("", f"### pgq_{name}")
            for function in functions:
                if function["name"] == f"pgq_{name}":
                    yield from _function(function)
    for title, kind in (("Types", "c"), ("Views", "v")):
        yield from ("", f"## {title}")
        for relation in relations:
            if relation["kind"] == kind:
                yield from _relation(relation)
    yield from _errors(functions)


def _function(function: dict[str, Any]) -> Iterator[str]:
    arguments = [_argument(*argument) for argument in function["arguments"]]
    yield from ("", "```text")
    if len(arguments) < 2:
        yield f"{function['name']}({''.join(arguments)})"
    else:
        yield f"{function['name']}("
        yield ",\n".join(f"    {argument}" for argument in arguments)
        yield ")"
    yield f"returns {_plain(function['result'])}"
    yield "```"
    yield ""
    yield from _described(function["comment"], [name for name, *_ in function["arguments"]])
    yield from ("", f"Privilege: `{function['privilege']}`")


def _described(comment: str, names: list[str]) -> Iterator[str]:
    """Yield a comment as it is, with what a list describes (arguments, columns, errors) as code."""
    for line in comment.split("\n"):
        rest = line.removeprefix("* ")
        item = line.removesuffix(rest)
        head, colon, text = rest.partition(": ")
        words = head.split(", ") if item and colon else []
        if words and all(word in names or _SQLSTATE.fullmatch(word) for word in words):
            yield "* " + ", ".join(f"`{word}`" for word in words) + colon + _escape(text)
        else:
            yield item + _escape(rest)


def _argument(name: str, kind: str, default: str | None) -> str:
    return f"{name} {_plain(kind)}" + (f" default {_plain(default)}" if default else "")


def _plain(text: str) -> str:
    """Shorten types, and take the casts off defaults."""
    text = text.replace("timestamp with time zone", "timestamptz")
    text = re.sub("NULL|SETOF|TABLE", lambda word: word[0].lower(), text)
    return re.sub(r"::[a-z ]+(\[\])?", "", text)


def _relation(relation: dict[str, Any]) -> Iterator[str]:
    yield from (
        "",
        f"### {relation['name']}",
        "",
        *_described(relation["comment"], [name for name, _ in relation["columns"]]),
    )
    yield ""
    yield from ("| column | type |", "|---|---|")
    for name, kind in relation["columns"]:
        yield f"| `{name}` | {_plain(kind)} |"


def _errors(functions: list[dict[str, Any]]) -> Iterator[str]:
    """List the codes that the comments name, with the classes of the Python package."""
    users: dict[str, dict[str, None]] = {}
    for function in functions:
        for code in re.findall(rf"^\* ({_SQLSTATE.pattern}): ", function["comment"], re.MULTILINE):
            users.setdefault(code, {})[function["name"]] = None
    yield from ("", "## Errors", "")
    yield from _fold(ERRORS)
    yield from ("", "| SQLSTATE | Python | meaning | named by |", "|---|---|---|---|")
    for code, names in sorted(users.items()):
        raised = asyncpg.PostgresError.new({"C": code, "M": ""})
        error = translate(Diagnosis(sqlstate=code, message=""))
        kind = f"`{type(error).__name__}`" if error else f"`asyncpg.{type(raised).__name__}`"
        meaning = (type(error).__doc__ or "").partition("\n")[0] if error else _FOREIGN[code]
        links = ", ".join(f"[{name}](#{name})" for name in names)
        where = links if len(names) < 6 else f"{len(names)} functions"
        yield f"| `{code}` | {kind} | {meaning} | {where} |"


def _escape(text: str) -> str:
    return re.sub(r"([*<>|\\])", r"\\\1", text)


def _fold(text: str) -> Iterable[str]:
    return textwrap.wrap(" ".join(text.split()), 118, break_on_hyphens=False)


if __name__ == "__main__":
    raise SystemExit(main())
