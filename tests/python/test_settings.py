"""The answers are the same whatever the settings of the session, the schema and the names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import asyncpg
import pytest
from pginstall import install, uninstall
from pgserver import Server

from .sessions import Connection, Dsn, sessions

pytestmark = pytest.mark.server

SESSIONS: Final = {"a": {"default_transaction_read_only": "on"}}

ODD: Final = 'it\'s a "q" \\ ü'
ROLE: Final = 'it\'s a "role"'
SCHEMA: Final = '"100%s Jobs; select 1"'

WRITES: Final = {
    "enqueue": "select pgq_enqueue('1')",
    "dequeue": "select pgq_dequeue()",
    "dequeue of several": "select pgq_dequeue(1, '1 s', array['default'])",
    "pop": "select pgq_pop()",
    "claim": "select pgq_claim(1)",
    "heartbeat": "select pgq_heartbeat(1, 1)",
    "complete": "select pgq_complete(1, 1)",
    "complete and dequeue": "select pgq_complete_and_dequeue('{1}', '{1}')",
    "fail": "select pgq_fail(1, 1)",
    "release": "select pgq_release(1, 1)",
    "reclaim": "select pgq_reclaim()",
    "cancel": "select pgq_cancel(1)",
    "purge": "select pgq_purge('default')",
    "create": "select pgq_create_queue('other')",
    "configure": "select pgq_configure_queue('default', max_attempts => 3)",
    "pause": "select pgq_pause('default')",
    "drop": "select pgq_drop_queue('default', force => true)",
    "schedule": "select pgq_schedule('s', '@daily', '1')",
    "grant": "select pgq_grant('default', current_user, '{consume}')",
    "maintain": "select pgq_maintain()",
}


async def tour(connection: Connection, schema: str = "public") -> list[Any]:
    """Use all parts of pgq once, and return what they answer."""

    async def ask(call: str, *arguments: object) -> Any:
        return await connection.fetchval(f"select {schema}.{call}", *arguments)

    async def claim(queue: str) -> list[asyncpg.Record]:
        return await connection.fetch(
            f"select id, token, payload #>> '{{}}', attempt, headers ->> 'h'"
            f" from {schema}.pgq_dequeue(10, '30 s', $1) order by id",
            queue,
        )

    answers: list[Any] = []
    await ask(
        "pgq_create_queue($1, group_concurrency => 1, max_active => 3, backoff_base => '0',"
        " keep_completed => '1 day', max_attempts => 2, priority_ageing => '1 hour')",
        ODD,
    )
    await ask("pgq_grant($1, $2, '{enqueue,consume,observe}')", ODD, ROLE)
    answers += [
        await ask(
            'pgq_enqueue($2, $1, dedupe_key => $1, group_key => $1, headers => \'{"h": "1.5"}\')',
            ODD,
            json.dumps("a\\b"),
        ),
        await ask("pgq_enqueue('2', $1, dedupe_key => $1)", ODD),
        await ask("pgq_enqueue('3', $1, after => array[1])", ODD),
        await ask("pgq_enqueue('4', $1, group_key => $1)", ODD),
        await ask("pgq_enqueue('5', $1, run_at => now() + interval '1 day')", ODD),
    ]
    (first,) = await claim(ODD)
    answers.append(tuple(first)[2:])
    await ask("pgq_heartbeat($1::bigint, $2::bigint, '1 min', '{\"done\": 0.1}')", *first[:2])
    answers.append(await ask("pgq_fail($1, $2, $3)", *first[:2], "no \\ way"))
    (first,) = await claim(ODD)
    answers.append(tuple(first)[2:])
    result = json.dumps([0.1, "\\"])
    await ask("pgq_complete($1::bigint, $2::bigint, $3::jsonb)", *first[:2], result)
    answers += [tuple(row)[2:] for row in await claim(ODD)]
    view = f"select state, queue, result::text, last_error from {schema}.pgq_jobs order by id"
    answers += [tuple(row) for row in await connection.fetch(view)]
    await ask("pgq_schedule($1, '0 */2 1-7 jan-DEC mon', '[1]', timezone => 'Europe/Vienna')", ODD)
    await ask("pgq_maintain()")
    await connection.execute('create table public."a \'thing" (id integer primary key)')
    await ask("pgq_watch('public.\"a ''thing\"', $1, dedupe => true)", ODD)
    await connection.execute('insert into public."a \'thing" values (7)')
    counts = f"select queue, ready, active, scheduled from {schema}.pgq_queues order by queue"
    answers += [tuple(row) for row in await connection.fetch(counts)]
    answers.append(await ask("pgq_unschedule($1)", ODD))
    await ask("pgq_drop_queue($1, force => true)", ODD)
    return answers


EXPECTED: Final[list[Any]] = [
    *(1, 1, 3, 4, 5),
    ("a\\b", 1, "1.5"),
    "scheduled",
    ("a\\b", 2, "1.5"),
    ("3", 1, None),
    ("4", 1, None),
    ("completed", ODD, '[0.1, "\\\\"]', "no \\ way"),
    ("active", ODD, None, None),
    ("active", ODD, None, None),
    ("scheduled", ODD, None, None),
    ("default", 0, 0, 0),
    (ODD, 1, 2, 1),
    True,
]

SETTINGS: Final = {
    "none": {},
    "plans for each call": {"plan_cache_mode": "force_custom_plan"},
    "plans for all calls": {"plan_cache_mode": "force_generic_plan"},
    "other plans": {"enable_indexscan": "off", "enable_indexonlyscan": "off"},
    "compiled plans": {"jit": "on", "jit_above_cost": "0"},
    "backslashes": {"standard_conforming_strings": "off", "escape_string_warning": "off"},
    "no search path": {"search_path": ""},
    "formats": {
        "DateStyle": "German",
        "IntervalStyle": "sql_standard",
        "TimeZone": "Asia/Kathmandu",
        "bytea_output": "escape",
        "extra_float_digits": "-15",
    },
    "old habits": {
        "array_nulls": "off",
        "quote_all_identifiers": "on",
        "transform_null_equals": "on",
        "row_security": "off",
    },
}


@pytest.fixture
def role(server: Server) -> Iterator[None]:
    """A role whose name needs quotes."""
    quoted = ROLE.replace('"', '""')
    server.psql(f'create role "{quoted}"')
    yield
    server.psql(f'drop role "{quoted}"')


@pytest.mark.usefixtures("role")
@pytest.mark.parametrize("settings", SETTINGS)
async def test_settings_do_not_matter(server: Server, dsn: Dsn, settings: str) -> None:
    chosen = SETTINGS[settings]
    if settings == "backslashes" and server.major > 18:
        chosen = {}  # all strings are the standard ones
    async with sessions(dsn, 1, **chosen) as (session,):
        assert await tour(session) == EXPECTED


@pytest.mark.usefixtures("role")
async def test_the_schema_may_need_quotes(server: Server, dsn: Dsn) -> None:
    database = dsn["database"]
    uninstall(server, database)
    server.psql(f"create schema {SCHEMA}", database=database)
    for name in ("search_path", "pgq.schema"):  # the latter for the script
        server.psql(f"alter database {database} set {name} = {SCHEMA}")
    install(server, database)
    server.psql(f"alter database {database} reset all")
    async with sessions(dsn, 1) as (session,):
        assert await tour(session, SCHEMA) == EXPECTED


@pytest.mark.parametrize("call", WRITES)
async def test_a_read_only_session_is_told_so(
    a: Connection, connection: Connection, call: str
) -> None:
    await connection.execute("select pgq_enqueue('1')")
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await a.execute(WRITES[call])
