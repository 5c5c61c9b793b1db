"""Write upgrade scripts: what leads from one install script to another one.

State (tables, types, sequences, indexes, triggers) is changed by hand, in sql/updates/A--B.sql.
Functions, views and comments follow from the two install scripts: what is the same in both is not
touched, so that the plans, locks and privileges of it stay as they are.

A hand-written delta has two markers. "--@ functions" stands where the functions are replaced,
after new types that they need; nobody waits for anything until there. "--@ lock name, ..." takes
the locks that the statements below it need, all at once: see LOCK. What follows is done in
milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<body>\$(\w*)\$.*?\$\3\$|\nbegin atomic\n.*?\nend(?=;))"
    r"|(?P<quoted>\be'(?:[^'\\]|\\.|'')*'|'[^']*'|\"[^\"]*\")|(?P<end>;)",
    re.DOTALL,
)
FUNCTION = re.compile(r"create (function ([\w.@]+)\s*\(.*?)\blanguage ", re.DOTALL)
COMMENT = re.compile(r"comment on function\s+(([\w.@]+)\(.*?\)) is\s", re.DOTALL)
VIEW = re.compile(r"create view ([\w.@]+) ")
ANY_COMMENT = re.compile(r"comment on ")
LOCKS = re.compile(r"^--@ lock (.+)\n", re.MULTILINE)
FUNCTIONS = "--@ functions\n"

HEAD = """\
-- Built by extension/build.py from two install scripts and extension/sql/updates.
\\echo Use "ALTER EXTENSION pgq UPDATE" to load this file. \\quit

set local search_path = pg_catalog, pg_temp;

-- What is new belongs to the owner of the rest, whose functions call it, whoever updates.
do $role$
declare
    v_owner constant name := (
        select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'pgq'
    );
begin
    perform set_config('pgq.updater', current_setting('role'), true);
    if current_user <> v_owner then
        perform set_config('role', v_owner, true);
    end if;
end
$role$;

-- Nobody grants or updates meanwhile.
lock table pgq.privilege in share update exclusive mode;

do $guard$
declare
    v_version constant text := (
        select substring(p.prosrc, '''(.+)''')
          from pg_proc p where p.oid = to_regprocedure(concat('@extschema@', '.pgq_version()'))
    );
begin
    if v_version is distinct from '{old}' then
        raise exception 'pgq is of version %, not {old}', v_version
            using errcode = 'object_not_in_prerequisite_state';
    end if;
end
$guard$;
"""

# A try holds up others for no longer than its timeout, which is shorter than deadlock_timeout, and
# leaves no lock when it fails: an update neither takes part in a deadlock nor stops the queue while
# it waits for a transaction that stays open.
LOCK = """\
do $lock$
declare
    v_timeout constant text := current_setting('lock_timeout');
    v_until constant timestamptz := clock_timestamp() + interval '1 minute';
begin
    perform set_config('lock_timeout', '200ms', true);
    loop
        begin
{locks}            exit;
        exception
            when lock_not_available then
                if clock_timestamp() > v_until then
                    raise exception 'pgq cannot be updated while a transaction is open that has '
                                    'used it'
                        using errcode = 'lock_not_available',
                              hint = 'Try again; pg_stat_activity shows transactions that stay '
                                     'open.';
                end if;
        end;
        perform pg_sleep(0.3);
    end loop;
    perform set_config('lock_timeout', v_timeout, true);
end
$lock$;
"""

# Privileges that were granted inside of the script would count as the extension's own, and not be
# dumped: roles get those on new functions and views at the commit.
TAIL = """\
insert into pgq.errand (role) select distinct p.role::oid from pgq.privilege p;
insert into pgq.chore (round) values (-1);
select set_config('role', current_setting('pgq.updater'), true)
 where current_setting('role') <> current_setting('pgq.updater');
"""


@dataclass(frozen=True)
class Function:
    """A function of an install script.

    `head` is all that comes before its language, `comment` the statement that describes it.
    """

    head: str
    comment: str


def split(script: str) -> Iterator[str]:
    """Yield the statements of a script, each without the comments before it and its semicolon."""
    start = 0
    for token in TOKEN.finditer(script):
        if token["comment"] and not script[start : token.start()].strip():
            start = token.end()
        elif token["end"]:
            yield script[start : token.start()].strip()
            start = token.end()


def functions(statements: list[str]) -> dict[str, Function]:
    """The functions by their signatures, which their comments tell, in the same order."""
    waiting: dict[str, list[str]] = {}
    found: dict[str, Function] = {}
    for text in statements:
        if match := FUNCTION.match(text):
            waiting.setdefault(match[2], []).append(match[1])
        elif match := COMMENT.match(text):
            signature = re.sub(r"\s+", " ", match[1]).replace("( ", "(").replace(" )", ")")
            found[signature] = Function(waiting[match[2]].pop(0), text)
    if left := [name for name, rest in waiting.items() if rest]:
        raise SystemExit(f"functions without a comment: {', '.join(left)}")
    return found


def upgrade(old_version: str, old_script: str, new_script: str, delta: str) -> str:
    """The script that makes of an installation of the old script one of the new script."""
    old_statements, new_statements = list(split(old_script)), list(split(new_script))
    old, new = functions(old_statements), functions(new_statements)
    known = set(old_statements)
    changed = [text for text in new_statements if text not in known]
    remade = [name for name in old if name in new and old[name].head != new[name].head]

    code = [f"alter function {name} rename to {_old_name(name)}" for name in remade]
    for text in changed:
        if FUNCTION.match(text):
            code.append(re.sub("^create", "create or replace", text))
        elif COMMENT.match(text):
            code.append(text)
    created = [name for name in new if name in remade or name not in old]
    code += [new[name].comment for name in remade if new[name].comment in known]
    code += [f"revoke all on function {name} from public" for name in created]

    views = [text for text in changed if VIEW.match(text)]
    late = [re.sub("^create", "create or replace", text) for text in views]
    late += [text for text in changed if ANY_COMMENT.match(text) and not COMMENT.match(text)]
    late += [f"drop function {_in_place_of(name)}" for name in remade]
    late += [f"drop function {name}" for name in old if name not in new]

    existing = {match[1] for text in old_statements if (match := VIEW.match(text))}
    names = [match[1] for text in views if (match := VIEW.match(text)) and match[1] in existing]
    if LOCKS.search(delta):
        delta = LOCKS.sub(lambda match: _lock(match[1], names), delta)
    elif names:
        delta += _lock("", names)
    parts = [HEAD.format(old=old_version), delta.replace(FUNCTIONS, _join(code)), _join(late), TAIL]
    return "\n".join(parts)


def _old_name(signature: str) -> str:
    return re.sub(r"^.*\.", "", signature.split("(", maxsplit=1)[0]) + "_old"


def _in_place_of(signature: str) -> str:
    return signature.replace("(", "_old(", 1)


def _join(statements: list[str]) -> str:
    return "".join(f"{statement};\n\n" for statement in statements)


def _lock(tables: str, views: list[str]) -> str:
    locks = [f"lock table {tables} in access exclusive mode"] if tables else []
    # LOCK TABLE would lock all that the view reads; this changes nothing.
    locks += [f"alter view {view} reset (check_option)" for view in views]
    return LOCK.format(locks="".join(f"{' ' * 12}{lock};\n" for lock in locks))
