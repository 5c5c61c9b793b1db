"""Write what installs pgq where no file can be put on the server: plain SQL, and pg_tle.

Each script is two statements, see RUN. The server prints and logs the statement that fails, and
each of those that ran it: the first one, which holds all of the text, does nothing that can fail.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

import upgrade

ECHO = re.compile(r"^\\echo .*\n", re.MULTILINE)
PUBLIC = re.compile(r"create (view|type) @extschema@\.(\w+) ")
EXTENSION_ONLY = ("select pg_catalog.pg_extension_config_dump(", "do $dump$")
NEXT = "--@ next"

# The name of the setting tells the text, so that a pooler which gives the second statement another
# session cannot make it run another script. An error is raised anew, without the statement of the
# script as its context, which may be long; whatever is not named here is reported with it.
RUN = """\
-- Built by extension/build.py. {what}
set {setting} to $pgq_script$
{script}
$pgq_script$;

do $pgq_run$
declare
    v_path constant text := pg_catalog.current_setting('search_path');
    v_text text := pg_catalog.current_setting('{setting}', true);
    v_detail text;
    v_hint text;
begin
    if v_text is null or v_text = '' then
        raise exception 'the statement before this one did not run in this session'
            using errcode = 'object_not_in_prerequisite_state',
                  detail = 'The script is two statements.',
                  hint = 'Send both in one session; behind a pooler in one transaction.';
    end if;
    foreach v_text in array pg_catalog.string_to_array(v_text, e'\\n{next}\\n') loop
        v_text := pg_catalog.replace(v_text, '@extschema@', coalesce(
            nullif(pg_catalog.current_setting('pgq.home', true), ''),
            pg_catalog.quote_ident(nullif(pg_catalog.current_setting('pgq.schema', true), '')),
            'public'));
        execute v_text;
    end loop;
    perform pg_catalog.set_config('search_path', v_path, true),
            pg_catalog.set_config('{setting}', '', false);
exception
    when syntax_error_or_access_rule_violation or object_not_in_prerequisite_state
        or dependent_privilege_descriptors_still_exist or invalid_schema_name
        or insufficient_resources or program_limit_exceeded or operator_intervention
        or invalid_transaction_state or integrity_constraint_violation or feature_not_supported
        or data_exception or raise_exception then
        get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
        raise exception '%', sqlerrm using errcode = sqlstate,
            detail = coalesce(nullif(v_detail, ''),
                'From: ' || pg_catalog.substr(pg_catalog.split_part(v_text, e'\\n', 1), 1, 99)),
            hint = coalesce(nullif(v_hint, ''), 'Nothing has been changed in this database.');
end
$pgq_run$;
"""
HAS_SCHEMA = """\
do $schema$
declare
    v_schema constant text := coalesce(nullif(current_setting('pgq.schema', true), ''), 'public');
begin
    if to_regnamespace(quote_ident(v_schema)) is null then
        raise exception 'schema "%" does not exist', v_schema
            using errcode = 'invalid_schema_name',
                  hint = 'Create it first, or name another one: SET pgq.schema = ...';
    end if;
end
$schema$"""
NOT_INSTALLED = """\
do $there$
begin
    if current_setting('pgq.found') in ('nothing', 'skytools', 'foreign') then
        raise exception 'pgq is not installed in this database'
            using errcode = 'undefined_object',
                  detail = case current_setting('pgq.found')
                               when 'nothing' then 'There is nothing of it.'
                               when 'skytools' then 'The schema "pgq" is of the PgQ of Skytools.'
                               else 'The schema "pgq" is not of this extension.'
                           end,
                  hint = '{hint}';
    elsif current_setting('pgq.found') = 'extension' then
        raise exception 'pgq % is installed as an extension', current_setting('pgq.version')
            using errcode = 'wrong_object_type',
                  detail = 'This script is for installations by script.',
                  hint = '{extension}';
    end if;
end
$there$"""
HAS_VERSION = """\
do $version$
begin
    if current_setting('pgq.version') <> '{old}' then
        raise exception 'pgq is of version %, not {old}', current_setting('pgq.version')
            using errcode = 'object_not_in_prerequisite_state',
                  detail = 'This script makes {new} of {old}.',
                  hint = case current_setting('pgq.version')
                             when '{new}' then 'It is up to date.'
                             else 'pgq upgrade runs all scripts that it needs, in their order.'
                         end;
    end if;
end
$version$"""
# Where the tables alone are left, functions of their owner may be in any schema.
UNINSTALL = """\
do $drop$
declare
    v_home constant regnamespace := nullif(current_setting('pgq.home'), '');
    v_owner constant oid := coalesce(
        (select n.nspowner from pg_namespace n where n.nspname = 'pgq'),
        (select p.proowner from pg_proc p
          where p.proname = 'pgq_version' and p.pronargs = 0 and p.pronamespace = v_home));
    v_messages constant text := current_setting('client_min_messages');
    v_drop text;
begin
    perform set_config('client_min_messages', 'warning', true);
    for v_drop in
        select d.name
          from (
                   select 1, 'function ' || string_agg(distinct p.oid::regprocedure::text, ', ')
                     from unnest(array[
{functions}
                          ]) f (signature)
                    cross join pg_namespace n
                     join pg_proc o
                       on o.proname = split_part(f.signature, '(', 1) and o.pronamespace = n.oid
                      and o.proowner = v_owner
                     left join pg_depend u
                       on u.classid = 'pg_proc'::regclass and u.refclassid = 'pg_proc'::regclass
                      and u.refobjid = o.oid
                     join pg_proc p
                       on p.oid = o.oid
                       or (p.oid = u.objid and p.pronamespace = to_regnamespace('pgq')::oid)
                    where n.oid = coalesce(v_home, n.oid)
                      and o.oid = to_regprocedure(quote_ident(n.nspname) || '.' || f.signature)
                    union all
                   select case c.relkind when 'v' then 2 else 4 end,
                          case c.relkind when 'v' then 'view ' else 'type ' end || c.oid::regclass
                     from pg_class c
                    where c.relname in (
{relations}
                          )
                      and c.relkind in ('v', 'c') and c.relowner = v_owner
                      and c.relnamespace = coalesce(v_home, c.relnamespace)
                    union all
                   select 3, 'schema pgq cascade' where to_regnamespace('pgq') is not null
               ) d (place, name)
         where d.name is not null
         order by d.place
    loop
        execute 'drop ' || v_drop;
    end loop;
    perform set_config('client_min_messages', v_messages, true);
end
$drop$"""
TLE_THERE = """\
do $tle$
begin
    if to_regnamespace('pgtle') is null then
        raise exception 'pg_tle is not installed in this database'
            using errcode = 'undefined_object',
                  detail = 'This script gives pgq to pg_tle.',
                  hint = 'CREATE EXTENSION pg_tle, or install pgq without it: pgq.sql.';
    end if;
end
$tle$"""
TLE_FIRST = """\
do $tle$
begin
    if not exists (select from pgtle.available_extensions() a where a.name = 'pgq') then
        perform pgtle.install_extension('pgq', '{new}', {comment}, $pgq_text$
{script}$pgq_text$);
    end if;
end
$tle$"""
TLE_STEP = """\
do $tle$
begin
    if not exists (
        select from pgtle.available_extension_versions() a
         where a.name = 'pgq' and a.version = '{new}'
    ) then
        perform pgtle.install_update_path('pgq', '{old}', '{new}', $pgq_text$
{script}$pgq_text$);
    end if;
end
$tle$"""


def plain(script: str, version: str) -> str:
    """The installation."""
    what = (
        f"Install pgq {version}, without CREATE EXTENSION. The functions go to\n"
        "-- the schema that the setting pgq.schema names, public by default."
    )
    statements = _bare(script)
    place = upgrade.behind_guards(statements)
    return _staged(what, [*statements[:place], HAS_SCHEMA, *statements[place:]])


def plain_upgrade(script: str, old: str, new: str, guards: Sequence[str]) -> str:
    """An upgrade, which fails where another version is installed; `guards`: see `guards`."""
    there = NOT_INSTALLED.format(
        hint=f"To install version {new}: pgq install, or pgq.sql.",
        extension="To upgrade it: pgq upgrade, or ALTER EXTENSION pgq UPDATE.",
    )
    checks = [*guards, there, HAS_VERSION.format(old=old, new=new)]
    return _staged(f"Upgrade pgq {old} to {new}.", [*checks, *_bare(script)])


def uninstall(scripts: Iterable[str], guards: Sequence[str]) -> str:
    """The removal of what any of these install scripts has installed, also of a half of it."""
    what = (
        "Remove pgq, with all jobs, where it was installed without CREATE\n"
        "-- EXTENSION. It refuses while other objects depend on pgq, such as views of yours."
    )
    functions: dict[str, None] = {}
    relations: dict[str, None] = {}
    for script in scripts:
        statements = list(upgrade.split(script))
        names = (name for name in upgrade.functions(statements) if name.startswith("@extschema@."))
        functions |= dict.fromkeys(name.removeprefix("@extschema@.") for name in names)
        relations |= {match[2]: None for text in statements if (match := PUBLIC.match(text))}
    there = NOT_INSTALLED.format(hint="Nothing is left to do.", extension="DROP EXTENSION pgq")
    drop = UNINSTALL.format(functions=_literals(functions), relations=_literals(relations))
    # What is half removed is not refused here.
    return _staged(what, [*(text for text in guards if not upgrade.GUARD.match(text)), there, drop])


def tle(comment: str, first: tuple[str, str], steps: Sequence[tuple[str, str, str]]) -> str:
    """What gives pg_tle the first release, and how to get to the others: (old, new, script).

    It runs them by CREATE EXTENSION, so that they say what pg_dump has to carry along.
    """
    oldest, script = first
    newest = steps[-1][1] if steps else oldest
    what = (
        f"Give pgq {newest} to pg_tle, as a member of pgtle_admin. Then comes\n"
        "-- CREATE EXTENSION pgq, or ALTER EXTENSION pgq UPDATE."
    )
    statements = [
        TLE_THERE,
        TLE_FIRST.format(new=oldest, comment=comment, script=ECHO.sub("", script)),
        *(TLE_STEP.format(old=o, new=n, script=ECHO.sub("", text)) for o, n, text in steps),
        f"select pgtle.set_default_version('pgq', '{newest}')",
    ]
    return _staged(what, statements)


def guards(script: str) -> list[str]:
    """The statements of an install script that say what is there, and refuse what is no whole."""
    statements = _bare(script)
    place = next(n for n, text in enumerate(statements) if upgrade.GUARD.match(text))
    return statements[: place + 1]


def _bare(script: str) -> list[str]:
    """The statements of an extension's script that are not for extensions alone."""
    statements = upgrade.split(ECHO.sub("", script))
    return [text for text in statements if not text.startswith(EXTENSION_ONLY)]


def _staged(what: str, statements: Iterable[str]) -> str:
    text = f"\n{NEXT}\n".join(statements)
    setting = f"pgq.script_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return RUN.format(what=what, setting=setting, script=text, next=NEXT)


def _literals(names: Iterable[str]) -> str:
    return ",\n".join(f"{' ' * 30}'{name}'" for name in names)
