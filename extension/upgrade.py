"""Write upgrade scripts: what leads from one install script to another one.

Public functions and views are replaced, never dropped: their privileges stay, and what others have
made of them. Without a delta in sql/updates/A--B.sql only functions, views and comments differ:
those that do are replaced.

Such a delta, which changes the state (tables, types, sequences), is written by hand. It has two
markers. "--@ lock" takes the locks on all tables, and on the public views, at once: see LOCK.
"--@ install but NAME" stands where the new script makes the schema pgq anew, which is empty, but
for tables of that name: the delta has put them there. A DO block with $NAME$ around it is left out
with them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<body>\$(\w*)\$.*?\$\3\$|\nbegin atomic\n.*?\nend(?=;))"
    r"|(?P<quoted>\be'(?:[^'\\]|\\.|'')*'|'[^']*'|\"[^\"]*\")|(?P<end>;)",
    re.DOTALL,
)
FUNCTION = re.compile(r"create function ([\w.@]+)\s*\(")
COMMENT = re.compile(r"comment on function\s+(([\w.@]+)\(.*?\)) is\s", re.DOTALL)
VIEW = re.compile(r"create view ([\w.@]+) ")
CODE = re.compile(r"create (?:function|view) |comment on ")
GUARD = re.compile(r"do \$(half|guard)\$")
MADE = (
    r"create schema |create type @|revoke all on function\s+@"
    r"|(?:create|alter) [^(]*pgq\.{0}|do \${0}\$"
)
LOCKS = "--@ lock\n"
INSTALL = re.compile(r"^--@ install but (\w+)\n", re.MULTILINE)

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
            execute (
                select format(
                           'lock table %s in access exclusive mode',
                           string_agg(c.oid::regclass::text, ', ' order by c.oid)
                       )
                  from pg_class c
                 where c.relnamespace = 'pgq'::regnamespace and c.relkind in ('r', 'p')
                   and not c.relispartition
            );
{views}            exit;
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


def split(script: str) -> Iterator[str]:
    """Yield the statements of a script, each without the comments before it and its semicolon."""
    start = 0
    for token in TOKEN.finditer(script):
        if token["comment"] and not script[start : token.start()].strip():
            start = token.end()
        elif token["end"]:
            yield script[start : token.start()].strip()
            start = token.end()


def functions(statements: list[str]) -> list[str]:
    """The signatures of the functions, as their comments tell them, in the same order."""
    comments = [match for text in statements if (match := COMMENT.match(text))]
    left = Counter(match[1] for text in statements if (match := FUNCTION.match(text)))
    left.subtract(match[2] for match in comments)
    if names := [name for name, number in left.items() if number]:
        raise SystemExit(f"functions without a comment: {', '.join(names)}")
    return [
        re.sub(r"\s+", " ", match[1]).replace("( ", "(").replace(" )", ")") for match in comments
    ]


def behind_guards(statements: list[str]) -> int:
    """The place behind the statements that refuse what is no whole."""
    return 1 + max((n for n, text in enumerate(statements) if GUARD.match(text)), default=-1)


def upgrade(old_version: str, old_script: str, new_script: str, delta: str | None) -> str:
    """The script that makes of an installation of the old script one of the new script."""
    old, new = list(split(old_script)), list(split(new_script))
    there, wanted = functions(old), functions(new)
    if delta is None:
        before, after, known = "", "", set(old)
        new = [text for text in new if CODE.match(text) and text not in known]
    else:
        before, kept, after = INSTALL.split(delta)
        made = re.compile(MADE.format(kept))
        new = [text for text in new[behind_guards(new) :] if not made.match(text)]
        there, wanted = ([f for f in names if f.startswith("@")] for names in (there, wanted))
        views = [match[1] for text in old if (match := VIEW.match(text))]
        before = before.replace(LOCKS, _lock(views))
    replaced = [re.sub("^create (?=function|view)", "create or replace ", text) for text in new]
    revoked = [f"revoke all on function {f} from public" for f in wanted if f not in there]
    dropped = [f"drop function {f}" for f in there if f not in wanted]
    parts = [HEAD.format(old=old_version), before, _join(replaced + revoked), after, _join(dropped)]
    return "\n".join([*parts, TAIL])


def _join(statements: list[str]) -> str:
    return "".join(f"{statement};\n\n" for statement in statements)


def _lock(views: list[str]) -> str:
    # LOCK TABLE would lock all that the view reads; this changes nothing.
    locks = [f"{' ' * 12}alter view {view} reset (check_option);\n" for view in views]
    return LOCK.format(views="".join(locks))
