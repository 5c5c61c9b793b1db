"""Write what installs pgq where no file can be put on the server: plain SQL, and pg_tle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

ECHO = re.compile(r"^\\echo .*\n", re.MULTILINE)
PUBLIC = re.compile(r"create ((?:view|type) @extschema@\.\w+) ")
EXTENSION_ONLY = re.compile(
    r"^select pg_catalog\.pg_extension_config_dump\(.*?\);\n", re.MULTILINE | re.DOTALL
)

# One statement, so that it takes effect as a whole or not at all, whatever client sends it.
PLAIN = """\
-- Built by extension/build.py. Install pgq {what}, without CREATE EXTENSION. The functions go to
-- the schema that the setting pgq.schema names, public by default.
do $pgq_plain$
declare
    v_path constant text := current_setting('search_path');
    v_schema constant text := coalesce(nullif(current_setting('pgq.schema', true), ''), 'public');
begin
    if exists (select from pg_catalog.pg_extension e where e.extname = 'pgq') then
        raise exception 'pgq is installed as an extension in this database'
            using errcode = 'duplicate_object',
                  hint = '{hint}';
    end if;
    if pg_catalog.to_regnamespace(pg_catalog.quote_ident(v_schema)) is null then
        raise exception 'schema "%" does not exist', v_schema
            using errcode = 'invalid_schema_name',
                  hint = 'Create it first, or name another one: SET pgq.schema = ...';
    end if;
{check}\
    execute pg_catalog.replace(
        $pgq_script$
{script}$pgq_script$, '@extschema@', pg_catalog.quote_ident(v_schema)
    );
    perform pg_catalog.set_config('search_path', v_path, true);
end
$pgq_plain$;
"""
IS_THERE = """\
    if pg_catalog.to_regprocedure(pg_catalog.quote_ident(v_schema) || '.pgq_version()') is null
    then
        raise exception 'there is no pgq in the schema "%"', v_schema
            using errcode = 'undefined_object',
                  hint = 'Name its schema: SET pgq.schema = ...';
    end if;
"""
UNINSTALL = """\
-- Built by extension/build.py. Remove pgq, with all jobs, where it was installed without CREATE
-- EXTENSION. It refuses while other objects depend on pgq, such as views of yours.
do $pgq_plain$
declare
    v_messages constant text := current_setting('client_min_messages');
    v_schema constant text := coalesce(nullif(current_setting('pgq.schema', true), ''), 'public');
    v_name text;
begin
    if exists (select from pg_catalog.pg_extension e where e.extname = 'pgq') then
        raise exception 'pgq is installed as an extension in this database'
            using errcode = 'wrong_object_type', hint = 'DROP EXTENSION pgq';
    end if;
{check}\
    perform pg_catalog.set_config('client_min_messages', 'warning', true);
    foreach v_name in array array[
{names}
    ] loop
        execute pg_catalog.replace(
            'drop ' || v_name, '@extschema@', pg_catalog.quote_ident(v_schema)
        );
    end loop;
    perform pg_catalog.set_config('client_min_messages', v_messages, true);
end
$pgq_plain$;
"""
TLE = """\
-- Built by extension/build.py. Give pgq {version} to pg_tle, as a member of pgtle_admin. Then comes
-- CREATE EXTENSION pgq, or ALTER EXTENSION pgq UPDATE.
do $pgq_tle$
begin
    if not exists (select from pgtle.available_extensions() a where a.name = 'pgq') then
        perform pgtle.install_extension(
            'pgq', '{oldest}', {comment}, $pgq_script$
{script}$pgq_script$
        );
    end if;
{steps}\
    perform pgtle.set_default_version('pgq', '{version}');
end
$pgq_tle$;
"""
STEP = """\
    if not exists (
        select from pgtle.available_extension_versions() a
         where a.name = 'pgq' and a.version = '{new}'
    ) then
        perform pgtle.install_update_path('pgq', '{old}', '{new}', $pgq_script$
{script}$pgq_script$);
    end if;
"""


def plain(script: str, version: str) -> str:
    """The installation, as a statement that any client can send."""
    hint = "Use the extension, or drop it first."
    return PLAIN.format(what=version, hint=hint, check="", script=_bare(script))


def plain_upgrade(script: str, old: str, new: str) -> str:
    """The same for an upgrade, which fails where another version is installed."""
    what, hint = f"{new} over {old}", "ALTER EXTENSION pgq UPDATE"
    return PLAIN.format(what=what, hint=hint, check=IS_THERE, script=_bare(script))


def uninstall(statements: Iterable[str], signatures: Iterable[str]) -> str:
    """The removal of what `plain` installs: what is in the public schema one by one."""
    public = [match for text in statements if (match := PUBLIC.match(text))]
    drops = [f"function {name}" for name in signatures if name.startswith("@extschema@")]
    drops += [match[1] for match in public if match[1].startswith("view")]
    drops += ["schema pgq cascade"]
    drops += [match[1] for match in public if match[1].startswith("type")]
    names = ",\n".join(f"        '{drop}'" for drop in drops)
    return UNINSTALL.format(check=IS_THERE, names=names)


def tle(comment: str, first: tuple[str, str], steps: Sequence[tuple[str, str, str]]) -> str:
    """What gives pg_tle the first release, and how to get to the others: (old, new, script).

    It runs them by CREATE EXTENSION, so that they say what pg_dump has to carry along.
    """
    return TLE.format(
        version=steps[-1][1] if steps else first[0],
        oldest=first[0],
        comment=comment,
        script=ECHO.sub("", first[1]),
        steps="".join(
            STEP.format(old=o, new=n, script=ECHO.sub("", script)) for o, n, script in steps
        ),
    )


def _bare(script: str) -> str:
    return EXTENSION_ONLY.sub("", ECHO.sub("", script))
