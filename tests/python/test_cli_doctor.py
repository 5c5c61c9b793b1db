"""`pgq doctor`: for each state in which nothing moves there is one diagnosis, and no other."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from pgserver import Server

from .cli_session import Cli, variables
from .conftest import serve
from .pages import read
from .sessions import Connection, connect, enqueue, maintain, until

Finding = dict[str, Any]
SESSIONS: dict[str, dict[str, str]] = {
    "a": {"application_name": "shop"},
    "b": {"application_name": "bank"},
    "c": {},
}
NOW = ("--max-ready-age", "0", "--max-transaction-age", "0")
DRIVEN: set[str] = set()


@pytest.fixture(scope="module", name="server")
def server_without_others() -> Iterator[Server]:
    """A server in which nobody but the sessions of a test is in a transaction."""
    with serve(max_prepared_transactions="10", autovacuum="off") as server:
        yield server


@pytest.fixture(name="cli")
def command_line(dsn: dict[str, Any]) -> Cli:
    """The command line on a database with the extension."""
    return Cli(variables(dsn))


@pytest_asyncio.fixture
async def other(dsn: dict[str, Any]) -> AsyncIterator[Connection]:
    """A session that is not about anything but making a state."""
    connection = await connect(dsn)
    yield connection
    await connection.close()


async def examine(cli: Cli, *args: str) -> list[Finding]:
    """Return the diagnoses; where the settings of the server are to blame is not one."""
    result = await asyncio.to_thread(cli.run, "doctor", "--json", *(args or NOW))
    found: list[Finding] = json.loads(result.stdout)
    others = [one for one in found if one["status"] != "ok" and one["check"] != "settings"]
    assert all(one["cause"] for one in others), others
    return [one for one in found if one["cause"]]


async def diagnosis(cli: Cli, cause: str, *args: str) -> Finding:
    """Return the only diagnosis, which must be of a cause."""
    found = await examine(cli, *args)
    assert [one["cause"] for one in found] == [cause], found
    DRIVEN.add(cause)
    return found[0]


async def healed(cli: Cli) -> None:
    """Nothing is diagnosed any more."""
    assert await examine(cli) == []


def is_told(finding: Finding, connection: Connection, *words: str) -> bool:
    """Tell whether it is said who is at the other end of a session."""
    return all(word in finding["holder"] for word in (f"pid {connection.get_server_pid()}", *words))


WHO = ("user postgres", "client local")


async def run(cli: Cli, advice: str) -> None:
    """Run the first command of an advice."""
    match = re.search(r"pgq [a-z]+ [^,;]*", advice)
    assert match, advice
    await asyncio.to_thread(cli.ok, *shlex.split(match[0])[1:])


async def test_paused(cli: Cli, other: Connection) -> None:
    await enqueue(other, 1)
    await other.execute("select pgq_pause('default')")
    found = await diagnosis(cli, "paused")
    assert found["advice"] == "pgq resume default"
    await run(cli, found["advice"])
    await diagnosis(cli, "no worker")


async def test_nobody_claims(cli: Cli, other: Connection) -> None:
    await enqueue(other, 1)
    found = await diagnosis(cli, "no worker")
    assert "pgq worker" in found["advice"]
    await other.execute("select pgq_pop()")
    await healed(cli)


async def test_all_are_scheduled(cli: Cli, other: Connection) -> None:
    await other.execute("select pgq_enqueue('1', run_at => '2100-01-01Z')")
    found = await diagnosis(cli, "scheduled")
    assert found["status"] == "ok"
    assert re.search(r"default: 1 job is scheduled, the next for (2100|2099)-", found["detail"])


async def test_behind_an_active_job_of_the_group(cli: Cli, a: Connection) -> None:
    for _ in range(2):
        await a.execute("select pgq_enqueue('1', group_key => 'ada')")
    await a.execute("select pgq_dequeue(1, '1 hour', worker => 'w1')")
    found = await diagnosis(cli, "group")
    assert "1 job waits for job 1 in the group ada, which is active" in found["detail"]
    assert is_told(found, a, "worker w1", "application shop", *WHO)
    assert found["advice"].startswith("pgq cancel 1, with --force")
    await asyncio.to_thread(cli.ok, "cancel", "1", "--force")
    await diagnosis(cli, "no worker")
    # What has not been in front for long is how groups work.
    await a.execute("select pgq_dequeue(1, '1 hour'), pgq_enqueue('1', group_key => 'ada')")
    assert await examine(cli, "--max-ready-age", "1h") == []


async def test_as_many_of_the_group_are_active_as_it_may_have(cli: Cli, a: Connection) -> None:
    await a.execute("select pgq_configure_queue('default', group_concurrency => 2)")
    for _ in range(3):
        await a.execute("select pgq_enqueue('1', group_key => 'ada')")
    jobs = await a.fetch("select id from pgq_dequeue(2, '1 hour', worker => 'w1')")
    found = await diagnosis(cli, "group")
    assert "for job 1 in the group ada, which is active, and for 1 other job" in found["detail"]
    assert len(jobs) == 2
    assert is_told(found, a, *(f"job {job['id']}: worker w1" for job in jobs))


async def test_behind_a_job_of_the_group_that_is_tried_again_later(
    cli: Cli, other: Connection
) -> None:
    for _ in range(2):
        await other.execute("select pgq_enqueue('1', group_key => 'ada')")
    await other.execute(
        "select pgq_fail(id, token, 'x', retry_in => '1 day') from pgq_dequeue(1, '1 hour')"
    )
    found = await diagnosis(cli, "group")
    assert "which is scheduled" in found["detail"]
    await run(cli, found["advice"])
    await diagnosis(cli, "no worker")


@pytest.mark.parametrize("command", ["unblock", "retry"])
async def test_the_group_is_blocked_by_a_dead_job(
    cli: Cli, other: Connection, command: str
) -> None:
    await other.execute("select pgq_create_queue('my mail', group_on_dead => 'block')")
    for _ in range(2):
        await other.execute("select pgq_enqueue('1', 'my mail', group_key => 'ada l')")
    await other.execute(
        "select pgq_fail(id, token, 'x', retryable => false)"
        "  from pgq_dequeue(1, '1 hour', 'my mail')"
    )
    # However young it is: it does not end by itself.
    found = await diagnosis(cli, "blocked group", "--max-ready-age", "1h")
    assert found["advice"] == "pgq retry 1, or pgq unblock 'my mail' 'ada l' to go on without it"
    if command == "unblock":
        said = await asyncio.to_thread(cli.ok, "unblock", "my mail", "ada l")
        assert said == "group ada l goes on\n"
        message = await asyncio.to_thread(cli.fails, 1, "unblock", "my mail", "ada l")
        assert message == "pgq: the group ada l of my mail is not blocked\n"
        assert {one["cause"] for one in await examine(cli)} == {"no worker", "dead"}
    else:
        await run(cli, found["advice"])
        await diagnosis(cli, "no worker")


async def test_after_an_active_job(cli: Cli, a: Connection) -> None:
    await enqueue(a, 1)
    await a.execute("select pgq_enqueue('2', after => array[1])")
    await a.execute("select pgq_dequeue(1, '1 hour', worker => 'w1')")
    found = await diagnosis(cli, "after")
    assert "1 job waits for job 1, which is active" in found["detail"]
    assert is_told(found, a, "worker w1", "application shop", *WHO)


async def test_after_a_dead_job(cli: Cli, other: Connection) -> None:
    await enqueue(other, 1)
    await other.execute("select pgq_enqueue('2', after => array[1], after_on_dead => 'wait')")
    await other.execute(
        "select pgq_fail(id, token, 'x', retryable => false) from pgq_dequeue(1, '1 hour')"
    )
    found = await diagnosis(cli, "after a dead job", "--max-ready-age", "1h")
    assert found["advice"] == "pgq retry 1"
    await run(cli, found["advice"])
    await diagnosis(cli, "no worker")


async def test_the_limit_is_reached(cli: Cli, a: Connection) -> None:
    await a.execute("select pgq_configure_queue('default', max_active => 1)")
    await enqueue(a, 2)
    await a.execute("select pgq_dequeue(2, '1 hour', worker => 'w1')")
    found = await diagnosis(cli, "max-active")
    assert found["advice"].endswith("pgq queue configure default --max-active N")
    assert is_told(found, a, "worker w1", "application shop", *WHO)
    await asyncio.to_thread(cli.ok, "queue", "configure", "default", "--max-active", "2")
    await diagnosis(cli, "busy")


async def test_the_limit_is_reached_by_leases_of_a_killed_worker(
    cli: Cli, a: Connection, other: Connection
) -> None:
    await a.execute("select pgq_configure_queue('default', max_active => 1)")
    await enqueue(a, 2)
    await a.execute("select pgq_dequeue(2, '1 hour', worker => 'it''s w1')")
    pid = a.get_server_pid()
    a.terminate()

    async def has_ended() -> bool:
        return not await other.fetch("select from pg_stat_activity where pid = $1", pid)

    await until(has_ended)
    found = await diagnosis(cli, "max-active of the dead")
    assert f"worker it's w1, pid {pid}, which has ended" in found["holder"]
    assert "--max-active" not in found["advice"]
    await other.execute(found["advice"].partition("At once: ")[2])
    await diagnosis(cli, "no worker")


async def test_the_rate_limit_is_used_up(cli: Cli, a: Connection) -> None:
    await a.execute(
        "select pgq_configure_queue('default', rate_limit => 1, rate_interval => '1 day')"
    )
    await enqueue(a, 2)
    await a.execute("select pgq_complete(id, token) from pgq_dequeue(2, '1 hour')")
    found = await diagnosis(cli, "rate limit")
    assert re.search(r"lets none start until \d{4}-\d\d-\d\d ", found["detail"])
    assert found["advice"] == "Wait, or pgq queue configure default --rate-limit N"
    await asyncio.to_thread(
        cli.ok, *("queue", "configure", "default", "--rate-limit", "1000", "--rate-interval", "1s")
    )
    await diagnosis(cli, "no worker")


async def test_leases_are_over_and_nobody_claims(cli: Cli, a: Connection) -> None:
    await enqueue(a, 2)
    # A claim under REPEATABLE READ brings no tick that would take the leases back.
    await a.execute(
        "begin isolation level repeatable read;"
        " select pgq_dequeue(2, '1 millisecond', worker => 'w1'); commit"
    )

    async def are_over() -> bool:
        return bool(await a.fetchval("select expired = 2 from pgq_workers"))

    await until(are_over)
    found = await diagnosis(cli, "expired")
    assert "the leases of 2 jobs have been over" in found["detail"]
    assert is_told(found, a, "worker w1", *WHO)
    await maintain(a)
    await a.execute("select pgq_complete(id, token) from pgq_dequeue(2, '1 hour')")
    await healed(cli)


async def test_the_workers_are_busy(cli: Cli, a: Connection) -> None:
    await enqueue(a, 2)
    await a.execute("select pgq_dequeue(1, '1 hour', worker => 'w1')")
    found = await diagnosis(cli, "busy")
    assert found["advice"] == "Are there enough workers? pgq workers"
    assert is_told(found, a, "worker w1", *WHO)


async def test_the_queue_is_full(cli: Cli, other: Connection) -> None:
    await other.execute("select pgq_configure_queue('default', max_ready => 2)")
    await enqueue(other, 2)
    found = await diagnosis(cli, "full", "--max-ready-age", "1h")
    assert "pgq queue configure default --max-ready N, now 2" in found["advice"]
    await diagnosis(cli, "no worker")


# Transactions


CLAIM = "select id, token from pgq_dequeue(1, '1 hour')"
END = "select pgq_complete(id, token) from pgq_jobs where id = 1"
LIMIT = "select pgq_configure_queue('default', max_active => 1)"
ONE = "select pgq_enqueue('1')"
IN_GROUP = "select pgq_enqueue('1', group_key => 'ada')"
AFTER = "select pgq_enqueue('2', after => array[1])"


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ([ONE], CLAIM),
        ([ONE], f"savepoint s; {CLAIM}; release s"),
        ([ONE], "select pgq_pop()"),
        ([LIMIT, ONE], CLAIM),
        ([LIMIT, ONE, ONE], CLAIM),
        ([IN_GROUP, IN_GROUP], CLAIM),
        ([IN_GROUP, IN_GROUP, CLAIM], END),
        ([ONE, AFTER, CLAIM], END),
    ],
    ids=["claim", "savepoint", "pop", "limit", "limit of others", "group", "end", "after"],
)
async def test_a_transaction_has_the_job(
    cli: Cli, a: Connection, other: Connection, before: list[str], inside: str
) -> None:
    for statement in before:
        await other.execute(statement)
    await a.execute(f"begin; {inside}")
    found = await diagnosis(cli, "transaction")
    assert "holds 1 job of default, job 1 among them" in found["detail"]
    assert is_told(found, a, "application shop", *WHO)
    statement = f"SELECT pg_terminate_backend({a.get_server_pid()})"
    assert found["advice"].endswith(statement)
    # Young ones are how things work.
    assert await examine(cli, "--max-ready-age", "1h", "--max-transaction-age", "1h") == []


async def test_one_of_two_transactions_has_the_job(
    cli: Cli, a: Connection, b: Connection, other: Connection
) -> None:
    await enqueue(other, 2)
    await a.execute("begin; select pgq_pop()")
    await b.execute("begin; select pgq_enqueue('3')")
    found = await examine(cli)
    [holding] = [one for one in found if one["cause"] == "transaction"]
    assert is_told(holding, a, "application shop")
    assert {one["cause"] for one in found} == {"transaction", "rotation", "no worker"}


async def test_a_prepared_transaction_has_the_job(cli: Cli, a: Connection) -> None:
    await enqueue(a, 1)
    await a.execute("begin; select pgq_pop(); prepare transaction 'it''s'")
    try:
        found = await diagnosis(cli, "prepared transaction")
        assert "1 job of default" in found["detail"]
        assert "ROLLBACK PREPARED 'it''s'" in found["advice"]
    finally:
        await a.execute("rollback prepared 'it''s'")
    await diagnosis(cli, "no worker")


# Rotation and maintenance


async def test_rotation_is_held_up_by_a_reader(cli: Cli, a: Connection) -> None:
    await a.execute("begin; select count(*) from pgq.job")
    found = await diagnosis(cli, "rotation")
    assert "slot in use" in found["detail"]
    assert is_told(found, a, "application shop", *WHO)
    await a.execute("rollback")
    await healed(cli)


async def test_rotation_is_held_up_by_an_old_snapshot(cli: Cli, a: Connection) -> None:
    await a.execute("begin isolation level repeatable read; select 1")
    found = await diagnosis(cli, "rotation")
    assert "xmin held" in found["detail"]
    assert is_told(found, a, "application shop", *WHO)


async def test_rotation_is_held_up_by_pg_dump(cli: Cli, dsn: dict[str, Any]) -> None:
    dump = await connect(dsn, application_name="pg_dump")
    try:
        await dump.execute("begin isolation level repeatable read; select 1")
        found = await diagnosis(cli, "pg_dump")
        assert found["advice"].startswith("Wait until the backup has ended")
    finally:
        await dump.close()


async def test_rotation_is_behind_and_nobody_is_seen(cli: Cli, other: Connection) -> None:
    await other.execute("update pgq.ring set live = '{0,1,2,3}'")
    await diagnosis(cli, "rotation")


async def test_maintenance_does_not_run_under_repeatable_read(
    cli: Cli, other: Connection, dsn: dict[str, Any]
) -> None:
    for _ in range(2):
        await other.execute("select pgq_enqueue('1', group_key => 'ada')")
    await other.execute("select pgq_dequeue(1, '1 hour')")
    await other.execute("select setval('pgq.last_tick', pgq._ms(now()) - 120000)")
    await other.execute(
        "begin isolation level repeatable read;"
        "select pgq_complete(id, token) from pgq_jobs where id = 1; commit"
    )
    name = dsn["database"]
    await other.execute("create role rigid")
    await other.execute(
        f"alter role rigid in database {name} set default_transaction_isolation = 'serializable'"
    )
    try:
        found = await diagnosis(cli, "maintenance")
        assert "SELECT pgq_maintain()" in found["advice"]
        assert found["holder"] == f"rigid in {name} do not use it"
        await other.execute("select pgq_maintain()")
        await diagnosis(cli, "no worker")
    finally:
        await other.execute("drop role rigid")


async def test_a_quiet_database_needs_no_maintenance(cli: Cli, other: Connection) -> None:
    await enqueue(other, 1)
    await other.execute("select pgq_complete(id, token) from pgq_dequeue(1, '1 hour')")
    await other.execute(
        "select setval('pgq.last_tick', pgq._ms(now()) - 50000);"
        "update pgq.stat_0 set at = at - interval '1 hour';"
        "update pgq.stat_1 set at = at - interval '1 hour';"
        "update pgq.stat_2 set at = at - interval '1 hour'"
    )
    await healed(cli)


async def test_a_row_of_health_that_nobody_knows_is_shown(cli: Cli, a: Connection) -> None:
    await a.execute("""
        create or replace view pgq_health as
        select 'clock' as subject, 'warning' as status, 'it was wrong' as detail,
               interval '3 s' as age, pg_backend_pid() as pid, null::text as query
    """)
    [found] = await examine(cli)
    assert (found["check"], found["cause"], found["detail"]) == (
        "clock",
        "clock",
        "it was wrong, 3.0s",
    )


# Schedules and versions


async def test_a_schedule_is_paused(cli: Cli, other: Connection) -> None:
    await other.execute("select pgq_schedule('my job', '@daily'), pgq_pause_schedule('my job')")
    found = await diagnosis(cli, "schedule paused")
    await run(cli, found["advice"])
    await healed(cli)


async def test_a_schedule_does_not_fire(cli: Cli, a: Connection, other: Connection) -> None:
    await other.execute("select pgq_schedule('nightly', '@daily')")
    await other.execute("update pgq.schedule set next_at = now() - interval '5 minutes'")
    found = await diagnosis(cli, "schedule late")
    assert "SELECT pgq_maintain()" in found["advice"]
    await a.execute("begin; select pgq_pause_schedule('nightly')")
    found = await diagnosis(cli, "schedule late", "--max-transaction-age", "1h")
    assert is_told(found, a, "application shop", *WHO)
    assert f"pg_terminate_backend({a.get_server_pid()})" in found["advice"]


@pytest.mark.extension
async def test_versions_do_not_fit(
    cli: Cli, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgq._version.PACKAGE", "0.9.0")
    found = await diagnosis(cli, "version")
    assert found["status"] == "problem"
    assert "pgq upgrade" in found["advice"]


async def test_an_older_version_is_examined_as_far_as_it_goes(cli: Cli, server: Server) -> None:
    server.psql("create database older")
    try:
        server.psql("create extension pgq version '0.1.0'", database="older")
        server.psql("select pgq_enqueue('1')", database="older")
        found = await examine(Cli({**cli.environment, "PGDATABASE": "older"}))
        assert [one["cause"] for one in found] == ["version", "no worker"]
    finally:
        server.psql("drop database older with (force)")


@pytest.mark.constant
def test_the_table_of_the_documentation_has_all_diagnoses() -> None:
    page = read("docs/operations.md").partition("### Diagnoses\n")[2].partition("\n#")[0]
    table = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert table
    files = ("_operate/stuck", "_operate/obstacles", "_cli/checks")
    source = "".join(read(f"python/src/pgq/{name}.py") for name in files)
    for cause in table:
        assert f'"{cause}"' in source
    if len(DRIVEN) > 1:  # when the others have run
        assert DRIVEN | {"dead", "notifications", "replication slot"} == set(table)
