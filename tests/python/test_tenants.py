"""Two roles with a queue each: whatever one of them keeps open, no call of the other waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import asyncpg
import pytest
import pytest_asyncio
from pgserver import Server

from .sessions import (
    Connection,
    Dsn,
    enqueue,
    files,
    maintain,
    no_ticks,
    sessions,
    settle_all,
    started,
    until,
    waiting,
    within,
)

pytestmark = pytest.mark.server

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}


@dataclass(frozen=True)
class Call:
    """A call on queue {q}, in one statement that is true when all went well."""

    privilege: str
    sql: str
    before: str = ""


PUT = "select pgq_enqueue('1', '{q}')"
TAKE = "pgq_dequeue(1, '1 h', '{q}')"
DIE = f"{PUT}; select pgq_fail(id, token, 'x', retryable => false) from {TAKE}"
DEAD = "(select max(id) from pgq_jobs where queue = '{q}' and state = 'dead')"
CALLS = [
    *(
        Call("enqueue", f"select pgq_enqueue('1', '{{q}}'{settings}) > 0")
        for settings in (
            "",
            ", 7",
            ", run_at => now() + '1 day'",
            ", run_at => now() + '1 ms'",
            ", dedupe_key => 'k'",
            ", dedupe_key => 'k', on_duplicate => 'replace'",
            ", group_key => 'g'",
            ", expires_at => now() + '1 day'",
            ", after => array[pgq_enqueue('2', '{q}')]",
            ", headers => '{\"x\": 1}', max_attempts => 3",
        )
    ),
    Call("enqueue", "select count(*) = 3 from pgq_enqueue_many('{1,2,3}', '{q}')"),
    Call(
        "enqueue",
        "select count(*) = 2 from pgq_enqueue_many('{1,2}', '{q}', group_keys => '{g,h}')",
    ),
    Call("enqueue", "select pgq_check_watch('table_{q}', '{q}') is not null"),
    Call("enqueue", "select pgq_watch('table_{q}', '{q}') is not null"),
    Call("enqueue", "insert into table_{q} values (default) returning true"),
    Call("enqueue", "select pgq_unwatch('table_{q}', '{q}')"),
    Call("consume", f"select count(*) = 1 from {TAKE}", PUT),
    Call("consume", "select count(*) = 1 from pgq_dequeue(1, '1 h', array['{q}'])", PUT),
    Call("consume", "select count(*) = 1 from pgq_pop(1, '{q}')", PUT),
    Call(
        "consume",
        "select id > 0 from pgq_claim((select max(id) from pgq_jobs where queue = '{q}'"
        " and state = 'ready'))",
        PUT,
    ),
    Call("consume", f"select pgq_heartbeat(id, token) is not null from {TAKE}", PUT),
    Call(
        "consume",
        "select count(*) = 1 from (select array_agg(id) as i, array_agg(token) as t"
        f" from {TAKE}) d, pgq_heartbeat(i, t) h",
        PUT,
    ),
    Call("consume", f"select pgq_complete(id, token) from {TAKE}", PUT),
    Call(
        "consume",
        "select count(*) = 1 from (select array_agg(id) as i, array_agg(token) as t"
        f" from {TAKE}) d, pgq_complete(i, t) c",
        PUT,
    ),
    Call(
        "consume",
        "select count(*) = 1 from (select array_agg(id) as i, array_agg(token) as t"
        f" from {TAKE}) d, pgq_complete_and_dequeue(i, t, 1, '1 h', '{{q}}') c",
        f"{PUT}; {PUT}",
    ),
    Call("consume", f"select pgq_fail(id, token, 'x') = 'scheduled' from {TAKE}", PUT),
    Call(
        "consume",
        f"select pgq_fail(id, token, 'x', retryable => false) = 'dead' from {TAKE}",
        PUT,
    ),
    Call("consume", f"select pgq_release(id, token) from {TAKE}", PUT),
    Call("consume", f"select pgq_outcome(id, token) = 'active' from {TAKE}", PUT),
    Call("consume", "select count(*) = 0 from pgq_release_unheld('nobody', '{}')"),
    Call(
        "consume",
        "select count(*) >= 0 from pgq_reclaim('{q}')",
        f"{PUT}; select count(*) from pgq_dequeue(1, '1 ms', '{{q}}'), pg_sleep(0.002)",
    ),
    Call("consume", "select count(*) >= 0 from pgq_reclaim()"),
    Call("consume", "select pgq_channel('{q}') is not null"),
    Call("consume", "select pgq_wait('{{q}}') is not null"),
    Call("consume", "select pgq_wake() is not null"),
    Call(
        "observe",
        "select (pgq_get((select max(id) from pgq_jobs where queue = '{q}'))).id > 0",
        PUT,
    ),
    *(
        Call("observe", f"select count(*) >= 0 from {view}")
        for view in (
            "pgq_queues",
            "pgq_queue_settings",
            "pgq_privileges",
            "pgq_jobs",
            "pgq_schedules",
            "pgq_workers",
            "pgq_obstacles",
            "pgq_health",
            "pgq_locks",
        )
    ),
    Call("manage", "select pgq_configure_queue('{q}', 7, description => 'x') is not null"),
    Call("manage", "select pgq_configure_queue('{q}', max_active => 5000) is not null"),
    Call("manage", "select pgq_configure_queue('{q}', group_concurrency => 9) is not null"),
    Call("manage", "select pgq_configure_queue('{q}', max_ready => 9000) is not null"),
    Call("manage", "select pgq_pause('{q}') is not null"),
    Call("manage", "select pgq_resume('{q}') is not null"),
    Call("manage", "select pgq_unblock('{q}', 'g') is not null"),
    Call("manage", "select pgq_cancel(pgq_enqueue('1', '{q}'))"),
    Call("manage", "select pgq_cancel_key('{q}', 'c')", PUT[:-1] + ", dedupe_key => 'c')"),
    Call("manage", "select pgq_move(pgq_enqueue('1', '{q}'), priority => 4)"),
    Call("manage", f"select pgq_retry({DEAD})", DIE),
    Call("manage", "select count(*) > 0 from pgq_retry_dead('{q}')", DIE),
    Call("manage", "select pgq_purge('{q}', '{dead,completed,cancelled}') > 0", DIE),
    Call("manage", "select pgq_schedule('new {q}', '* * * * *', queue => '{q}') is not null"),
    Call("manage", "select pgq_pause_schedule('of {q}')"),
    Call("manage", "select pgq_resume_schedule('of {q}')"),
    Call("manage", "select pgq_run_schedule('of {q}') is not null"),
    Call("manage", "select pgq_unschedule('new {q}') is not null"),
    Call("manage", "select pgq_grant('{q}', '{guest}', '{enqueue,consume}') is not null"),
    Call("manage", "select pgq_revoke('{q}', '{guest}') is not null"),
    Call("manage", "select pgq_maintain() is not null"),
    Call("manage", "select pgq_cancel_all('{q}', true) > 0", PUT),
    Call("manage", "select pgq_purge('{q}') > 0", PUT),
]
DROP = Call("drop", "select pgq_drop_queue('{q}', true) is not null", f"{DIE}; {PUT}")


@dataclass(frozen=True)
class Tenant:
    """A role that may do everything with its queue, and its session."""

    queue: str
    guest: str
    session: Connection
    dsn: Dsn

    def filled(self, sql: str) -> str:
        """Return SQL with the names of this tenant."""
        return sql.replace("{q}", self.queue).replace("{guest}", self.guest)

    async def keep_open(self, privilege: str) -> None:
        """Begin a transaction with all calls that a privilege is for, and stay in it."""
        await self.session.execute("begin")
        for call in [*CALLS, DROP]:
            if call.privilege == privilege:
                if call.before:
                    await self.session.execute(self.filled(call.before))
                assert await self.session.fetchval(self.filled(call.sql)) is True, call.sql

    async def waits(self, observer: Connection, calls: Sequence[Call]) -> list[str]:
        """Return those of the calls that waited for another session, commit included."""
        return [
            call.sql
            for call in calls
            if (call.before and await blocked(observer, self.session, self.filled(call.before)))
            or await blocked(observer, self.session, self.filled(call.sql))
        ]


async def blocked(observer: Connection, session: Connection, sql: str) -> bool:
    """Run SQL until it has ended and was true, or (True) waits for a lock of another session."""
    task = asyncio.ensure_future(session.fetch(sql) if ";" not in sql else session.execute(sql))
    try:
        while not (await asyncio.wait({task}, timeout=0.002))[0]:
            if await observer.fetchval("select pg_blocking_pids($1)", session.get_server_pid()):
                await observer.execute("select pg_cancel_backend($1)", session.get_server_pid())
                with pytest.raises(asyncpg.QueryCanceledError):
                    await within(task)
                return True
    finally:
        await asyncio.wait({task})
    rows = task.result()
    assert isinstance(rows, str) or rows[0][0] not in (None, False), sql
    return False


@pytest.fixture
def roles(server: Server, dsn: Dsn) -> Iterator[dict[str, str]]:
    """Roles that own nothing, by a short name; the database's makes theirs unique."""
    names = {name: f"{name}_{dsn['database']}" for name in ("ann", "bob", "guest_a", "guest_b")}
    for name in names.values():
        server.psql(f"create role {name} login password 'secret'")
    yield names
    for name in names.values():
        server.psql(f"drop owned by {name}", database=dsn["database"])
        server.psql(f"drop role {name}")


@pytest_asyncio.fixture
async def tenants(c: Connection, dsn: Dsn, roles: dict[str, str]) -> AsyncIterator[list[Tenant]]:
    """Two tenants, whose queues have something of everything."""
    found: list[Tenant] = []
    for role, queue in (("ann", "a"), ("bob", "b")):
        await c.execute(f"create table table_{queue} (id integer generated always as identity)")
        await c.execute(f"""
            select pgq_create_queue('{queue}', keep_completed => '1 hour');
            select pgq_grant('{queue}', '{roles[role]}', '{{enqueue,consume,observe,manage}}');
            alter table table_{queue} add primary key (id), owner to {roles[role]};
            select pgq_schedule('of {queue}', '0 0 1 1 *', queue => '{queue}');
        """)
    logins = [{**dsn, "user": roles[role], "password": "secret"} for role in ("ann", "bob")]
    async with sessions(logins[0], 1) as (ann,), sessions(logins[1], 1) as (bob,):
        for queue, session, login in zip("ab", (ann, bob), logins, strict=True):
            await session.execute("set lock_timeout = 0")
            found.append(Tenant(queue, roles[f"guest_{queue}"], session, login))
        yield found


async def test_every_function_and_view_that_a_tenant_may_use_is_tried(c: Connection) -> None:
    names = await c.fetch("""
        select coalesce(p.proname, v.relname)::text from pgq.grantable g
          left join pg_proc p on p.oid = g.function left join pg_class v on v.oid = g.view
         where p.proname is null
            or p.proname !~ '^_|^pgq_(version|create_queue|set_shard|enqueue_row)$'
    """)
    tried = " ".join(call.sql for call in [*CALLS, DROP])
    assert [name for (name,) in names if name not in tried] == []


@pytest.mark.parametrize("privilege", ["enqueue", "consume", "observe", "manage", "drop"])
async def test_no_call_that_is_kept_open_holds_up_another_tenant(
    c: Connection, tenants: list[Tenant], privilege: str
) -> None:
    ann, bob = tenants
    await ann.keep_open(privilege)
    assert await bob.waits(c, [*CALLS, DROP]) == []
    assert await c.fetchval("select array_agg(queue) from pgq_queues where queue <> 'default'") == [
        "a"
    ]


KINDS = {
    "plain": "",
    "scheduled": ", run_at => now() + '1 hour'",
    "keyed": ", dedupe_key => 'k'",
    "grouped": ", group_key => 'g'",
    "expiring": ", expires_at => now() + '1 hour'",
    "of a new priority": ", 5",
    "after another": ", after => array[pgq_enqueue('2', 'q')]",
}
LEFT = """
    select (select count(distinct j.id)
              from pgq.job j join pgq.lane l on l.id = j.lane where l.queue = 'q')
           + (select count(*) from pgq.lane where queue = 'q')
           + (select count(*) from pgq.dropped)
"""
# In seconds. No setting ends what waits at a commit for a lock and goes on without it.
SOON = 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("force", [False, True])
async def test_a_job_that_comes_too_late_for_a_drop_is_cancelled_or_deleted(
    a: Connection, b: Connection, kind: str, force: bool
) -> None:
    await b.execute("select pgq_create_queue('q', keep_completed => '0')")
    if kind == "expiring":
        await b.execute(f"select pgq_enqueue('0', 'q'{KINDS[kind]}); select pgq_pop(1, 'q')")
    await a.execute("begin")
    job_id = await a.fetchval(f"select pgq_enqueue('1', 'q'{KINDS[kind]})")
    if kind == "of a new priority":
        with pytest.raises(asyncpg.LockNotAvailableError, match='changes queue "q"'):
            await b.execute("select pgq_drop_queue('q', $1)", force)
        await a.execute("rollback")
        return
    await within(b.execute("select pgq_drop_queue('q', $1)", force))
    await b.execute("select pgq_create_queue('q')")
    assert await b.fetch("select from pgq_dequeue(9, '1 s', 'q')") == []
    await maintain(b, 3)
    await a.execute("commit")
    assert await b.fetch("select from pgq_dequeue(9, '1 s', 'q')") == []
    assert await b.fetchval("select count(*) from pgq_jobs where state <> 'cancelled'") == 0
    new = await b.fetchval("select pgq_enqueue('3', 'q', dedupe_key => 'k', group_key => 'g')")
    await maintain(b, 4)
    assert [row["id"] for row in await b.fetch("select id from pgq_dequeue(9, '1 s', 'q')")] == [
        new
    ]
    state = await b.fetchval("select state from pgq_get($1)", job_id)
    assert state == (None if force else "cancelled")
    assert await b.fetchval(LEFT) == 2, "the new job and its lane"
    assert await b.fetchval("select pgq_purge('q', '{cancelled}')") == 0, "it is not of that queue"


async def test_a_late_job_that_was_given_back_is_archived_as_claimed_by_nobody(
    a: Connection, b: Connection
) -> None:
    await b.execute("select pgq_create_queue('q')")
    await a.execute("begin; select pgq_enqueue('1', 'q')")
    await a.execute("select pgq_release(id, token) from pgq_dequeue(1, '1 h', 'q')")
    await b.execute("select pgq_drop_queue('q')")
    await a.execute("commit")
    await maintain(b, 3)
    (job,) = await b.fetch("select state, claimed_at from pgq.archive")
    assert tuple(job) == ("cancelled", None)


@pytest.mark.parametrize("prepared", [False, True])
async def test_lanes_of_a_dropped_queue_stay_while_somebody_may_know_them(
    a: Connection, b: Connection, dsn: Dsn, prepared: bool
) -> None:
    await b.execute("select pgq_create_queue('q')")
    await a.execute("begin")
    await a.execute("select pgq_enqueue('1', 'q')")
    await b.execute("select pgq_drop_queue('q')")
    await maintain(b)
    if prepared:
        await a.execute("prepare transaction 'late'")
    await maintain(b, 3)
    assert await b.fetchval(LEFT) == 2, "a lane, and the queue it was of"
    await a.execute("commit prepared 'late'" if prepared else "commit")
    await maintain(b, 3)
    assert await b.fetchval(LEFT) == 0
    assert await b.fetchval("select count(*) from pgq.lane_gate") == 0


async def test_who_came_after_a_drop_keeps_no_queue(a: Connection, b: Connection, dsn: Dsn) -> None:
    await b.execute("select pgq_create_queue('q')")
    await a.execute("begin; select pgq_enqueue('1')")
    await b.execute("select pgq_drop_queue('q')")
    await maintain(b)
    async with sessions(dsn, 1) as (later,):
        await later.execute("begin; select pgq_enqueue('1')")
        await a.execute("commit")
        await maintain(b, 2)
        assert await b.fetchval(LEFT) == 0
        await later.execute("rollback")


async def test_a_tick_leaves_dropped_queues_alone_while_somebody_may_know_their_lanes(
    a: Connection, b: Connection
) -> None:
    await a.execute("begin; select pgq_enqueue('1')")
    await b.execute("select pgq_create_queue('q'), pgq_drop_queue('q')")
    await maintain(b, 2)
    await b.execute("alter function pgq._empty_dropped rename to _empty_dropped_more")
    await maintain(b)
    await a.execute("commit")
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await maintain(b)


async def test_a_tick_forgets_twenty_dropped_queues_at_most(b: Connection) -> None:
    await b.execute("""
        select pgq_create_queue(n::text) from generate_series(1, 30) n;
        select pgq_drop_queue(n::text) from generate_series(1, 30) n;
    """)
    for left in (10, 0):
        await maintain(b)
        assert await b.fetchval("select count(*) from pgq.dropped") == left


@pytest.mark.parametrize("end", ["rollback", "commit"])
@pytest.mark.parametrize(
    "call",
    [
        "pgq_heartbeat({id}, {token})",
        "pgq_complete({id}, {token})",
        "pgq_fail({id}, {token}, retryable => false)",
        "pgq_cancel({id}, true)",
        "pgq_claim({ready})",
    ],
)
async def test_a_dropped_queue_is_not_forgotten_while_somebody_has_a_job_of_it_locked(
    a: Connection, b: Connection, call: str, end: str
) -> None:
    await b.execute("select pgq_create_queue('q', max_active => 9)")
    ready = await b.fetchval("select max(i) from pgq_enqueue_many('{1,2}', 'q') i")
    (job,) = await b.fetch("select id, token from pgq_dequeue(1, '1 h', 'q')")
    await a.execute("begin")
    await a.execute(f"select {call.format(ready=ready, **job)}")
    await b.execute("select pgq_drop_queue('q', true)")
    await within(maintain(b, 2), SOON)
    await a.execute(end)
    await maintain(b, 3)
    assert await b.fetchval("select count(*) from pgq.job") == 0
    assert await b.fetchval(LEFT) == 0
    assert await b.fetchval("select count(*) from pgq.archive where state = 'dead'") == 0


async def test_a_tick_does_not_wait_for_who_has_a_dead_job_of_a_dropped_queue_locked(
    a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute("select pgq_create_queue('q')")
    await b.execute("select pgq_enqueue('1', 'q')")
    (job,) = await b.fetch("select id, token from pgq_dequeue(1, '1 h', 'q')")
    await a.execute("begin; select pgq_enqueue('0')")
    assert await a.fetchval("select pgq_fail($1, $2, retryable => false)", *job) == "dead"
    await b.execute("select pgq_drop_queue('q', true)")
    await maintain(b)
    await a.execute("commit")
    await c.execute("begin")
    await c.execute(
        "select pgq_enqueue('2', after_on_dead => 'wait', after => array[$1::bigint])", job["id"]
    )
    await within(maintain(b, 2), SOON)
    assert await b.fetchval("select count(*) from pgq.dropped") == 1
    await c.execute("commit")
    await maintain(b, 2)
    assert await b.fetchval(LEFT) == 0
    assert await b.fetchval("select count(*) from pgq.archive where queue = 'q'") == 0


async def test_a_tick_does_not_wait_for_who_has_a_row_in_a_line_of_a_dropped_queue_locked(
    a: Connection, b: Connection, c: Connection
) -> None:
    await b.execute("select pgq_create_queue('q')")
    job_id = await b.fetchval("select pgq_enqueue('1', 'q', group_key => 'g')")
    await b.execute("select pgq_enqueue('2', after => array[$1::bigint])", job_id)
    await a.execute("begin; select pgq_heartbeat(id, token) from pgq_dequeue(1, '1 h', 'q')")
    # As a pgq_cancel_all may, that has waited for the tick which made the copy.
    await c.execute("begin; select from pgq.job where slot in (4, 5) for update")
    await b.execute("select pgq_drop_queue('q', true)")
    await maintain(b)
    await a.execute("rollback")
    await within(maintain(b, 2), SOON)
    assert await b.fetchval("select count(*) from pgq.dropped") == 1
    await c.execute("rollback")
    await maintain(b, 2)
    assert await b.fetchval(LEFT) == 0


@pytest.mark.parametrize("settings", ["", ", run_at => now() + '1 hour'", ", group_keys => '{g}'"])
async def test_a_drop_fails_at_its_commit_if_jobs_have_come_since(
    a: Connection, b: Connection, settings: str
) -> None:
    await a.execute("select pgq_create_queue('q')")
    await a.execute("begin")
    await a.execute("select pgq_drop_queue('q')")
    assert await within(b.fetch(f"select pgq_enqueue_many('{{1}}', 'q'{settings})"))
    await a.execute("select pgq_create_queue('q')")
    with pytest.raises(asyncpg.ObjectInUseError, match='queue "q" holds jobs'):
        await a.execute("commit")
    assert await a.fetchval("select ready + scheduled from pgq_queues where queue = 'q'") == 1
    assert await b.fetchval(LEFT) == 2, "its job and its lane"


async def test_a_forced_drop_deletes_what_comes_before_its_commit(
    a: Connection, b: Connection
) -> None:
    await a.execute("select pgq_create_queue('q')")
    await a.execute("begin")
    await a.execute("select pgq_drop_queue('q', true)")
    await within(b.execute("select pgq_enqueue('1', 'q')"))
    await a.execute("commit")
    with pytest.raises(asyncpg.UndefinedObjectError):
        await b.execute("select pgq_enqueue('1', 'q')")
    await maintain(b, 3)
    assert await b.fetchval(LEFT) == 0
    assert await b.fetchval("select count(*) from pgq.archive") == 0


async def test_calls_that_meet_a_drop_wait_for_its_end_and_find_no_queue(
    a: Connection, b: Connection, c: Connection
) -> None:
    calls = [
        "pgq_configure_queue('q', 3)",
        "pgq_pause('q')",
        "pgq_grant('q', 'public', '{enqueue}')",
        "pgq_enqueue('1', 'q', 7)",
        "pgq_drop_queue('q')",
    ]
    for call in calls:
        await a.execute("select pgq_create_queue('q')")
        await a.execute("begin")
        await a.execute("select pgq_drop_queue('q')")
        async with started(b.fetch(f"select {call}")) as task:
            await waiting(c, b, task)
            await a.execute("commit")
            with pytest.raises(asyncpg.UndefinedObjectError):
                await within(task)


async def test_a_grant_counts_from_the_commit_on_beside_another_one_that_is_open(
    c: Connection, tenants: list[Tenant], dsn: Dsn
) -> None:
    ann, bob = tenants
    grant = "select pgq_grant('{q}', '{guest}', '{enqueue}')"
    await ann.session.execute("begin")
    await ann.session.execute(ann.filled(grant))
    await within(bob.session.execute(bob.filled(grant)))
    async with sessions({**dsn, "user": bob.guest, "password": "secret"}, 1) as (guest,):
        assert await guest.fetchval("select pgq_enqueue('1', 'b')") > 0


async def test_a_grant_beside_an_open_one_of_the_owner_is_left_to_a_tick(
    c: Connection, tenants: list[Tenant], dsn: Dsn
) -> None:
    ann, bob = tenants
    await c.execute("begin")
    await c.execute(ann.filled("select pgq_grant('{q}', '{guest}', '{enqueue}')"))
    await within(bob.session.execute(bob.filled("select pgq_grant('{q}', '{guest}', '{enqueue}')")))
    await c.execute("commit")
    await maintain(bob.session)
    async with sessions({**dsn, "user": bob.guest, "password": "secret"}, 1) as (guest,):
        assert await guest.fetchval("select pgq_enqueue('1', 'b')") > 0
    assert await c.fetchval("select count(*) from pgq.errand") == 0


async def test_a_grant_that_is_refused_fails_no_commit_of_a_stranger(
    c: Connection, tenants: list[Tenant]
) -> None:
    ann, bob = tenants
    await c.execute("""
        create function refuse() returns event_trigger language plpgsql as $$
        begin raise 'no grants today'; end $$
    """)
    await c.execute("begin")
    await c.execute(ann.filled("select pgq_grant('{q}', '{guest}', '{enqueue}')"))
    await bob.session.execute(bob.filled("select pgq_grant('{q}', '{guest}', '{enqueue}')"))
    await c.execute("rollback")
    assert await c.fetchval("select count(*) from pgq.errand") == 1
    await c.execute("""
        create event trigger refuse on ddl_command_start when tag in ('GRANT')
            execute function refuse()
    """)
    await maintain(ann.session)
    assert await c.fetchval("select count(*) from pgq.errand") == 0


async def test_a_name_of_a_schedule_that_somebody_is_about_to_take_fails_soon(
    tenants: list[Tenant],
) -> None:
    ann, bob = tenants
    schedule = "select pgq_schedule('nightly', '@daily', queue => '{q}')"
    await ann.session.execute("begin")
    await ann.session.execute(ann.filled(schedule))
    with pytest.raises(asyncpg.LockNotAvailableError, match='changes schedule "nightly"'):
        await within(bob.session.execute(bob.filled(schedule)))
    await ann.session.execute("rollback")
    assert await bob.session.fetchval(bob.filled(schedule)) is not None


# What a role may do to its own transaction: behind the deferred triggers of pgq it keeps running.
REQUEUE = """
    create table barrier ();
    create table endless (n integer);
    create function wait() returns void language sql volatile as 'lock table barrier';
    create function requeue() returns trigger language plpgsql as $$
    begin
        if new.n < 3 then
            insert into endless values (new.n + 1);
        else
            lock table barrier;
            if new.n < 30 then
                insert into endless values (new.n + 1);
            end if;
        end if;
        return null;
    end $$;
    create constraint trigger endless after insert on endless deferrable initially deferred
        for each row execute function requeue();
"""
BEHIND = {
    "a trigger that queues itself": "insert into endless values (0)",
    "a cursor with hold": "declare held cursor with hold for select wait()",
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("order", ["before", "after"])
async def test_no_lock_of_maintenance_outlives_what_runs_behind_it(
    a: Connection, b: Connection, c: Connection, behind: str, order: str
) -> None:
    await c.execute(REQUEUE)
    await enqueue(b, 500)
    await settle_all(b)
    await b.execute("set pgq.slot_size = 8192")
    await maintain(b, 2)
    await no_ticks(c)
    await a.execute("begin")
    for sql in [BEHIND[behind], "select pgq_maintain()"][:: 1 if order == "before" else -1]:
        await a.execute(sql)
    await c.execute("begin; lock table barrier")
    async with started(a.execute("commit")) as commit:
        await waiting(b, a, commit)
        assert (
            await b.fetch(
                "select relation::regclass from pg_locks where granted and pid = $1"
                " and mode = 'AccessExclusiveLock' and relation is not null",
                a.get_server_pid(),
            )
            == []
        )
        assert await b.fetch("select from pgq.gate for update skip locked"), "others maintain"
        await c.execute("rollback")
        await within(commit)


async def test_maintenance_comes_behind_a_trigger_that_queues_itself_a_few_times(
    a: Connection, b: Connection
) -> None:
    await b.execute(REQUEUE)
    await a.execute("set pgq.slot_size = 8192")
    before = await files(b)

    async def emptied() -> bool:
        await enqueue(b, 100)
        await settle_all(b)
        await no_ticks(b)
        await a.execute("begin; insert into endless values (27); select pgq_maintain(); commit")
        return await files(b) != before

    await until(emptied)


# A transaction that uses many keys, and a call of somebody else with some of its own.
MANY_KEYS = """
    select count(*) from pgq_enqueue_many(
        array_fill(jsonb '1', array[1000]), '{q}',
        dedupe_keys => array(select 'k' || n from generate_series(1, 1000) n)
    )
"""


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="core: dedupe keys of all queues share 16,384 rows to lock",
)
async def test_many_dedupe_keys_of_one_tenant_do_not_hold_up_another(
    c: Connection, tenants: list[Tenant]
) -> None:
    ann, bob = tenants
    await ann.session.execute("begin")
    await ann.session.execute(ann.filled(MANY_KEYS))
    assert not await blocked(c, bob.session, bob.filled(MANY_KEYS))


async def test_nobody_waits_for_a_lane_that_is_not_committed(a: Connection, b: Connection) -> None:
    await a.execute("begin")
    await a.execute("select pgq_enqueue('1', priority => 5)")
    assert await within(b.fetchval("select pgq_enqueue('1', priority => 5)")) > 0
    await a.execute("commit")
    await maintain(b)
    assert await b.fetchval("select count(*) from pgq.lane where priority = 5") == 1
    assert len(await settle_all(b)) == 2


@pytest.mark.parametrize(
    "call",
    [
        "select pgq_configure_queue('default', max_attempts => 7)",
        "select pgq_configure_queue('default', max_ready => 7)",
        "select pgq_pause('default')",
    ],
)
async def test_an_enqueue_with_a_new_priority_waits_for_no_open_call_of_the_manager(
    a: Connection, b: Connection, call: str
) -> None:
    await a.execute("begin")
    await a.execute(call)
    assert await within(b.fetchval("select pgq_enqueue('1', priority => 5)")) > 0
    await a.execute("rollback")
    assert len(await settle_all(b)) == 1


@pytest.mark.parametrize(
    ("level", "error"),
    [
        ("read committed", asyncpg.ProgramLimitExceededError),
        ("repeatable read", asyncpg.SerializationError),
        ("serializable", asyncpg.SerializationError),
    ],
)
async def test_sessions_that_are_open_at_once_do_not_pass_the_bound_of_priorities(
    a: Connection, b: Connection, level: str, error: type[Exception]
) -> None:
    for session, first in ((a, 1), (b, 10_001)):
        await session.execute(f"begin isolation level {level}")
        await session.execute(
            "select pgq_enqueue('1', priority => p) from generate_series($1::int, $1 + 599) p",
            first,
        )
    await a.execute("commit")
    with pytest.raises(error, match=r"1000 priorities|could not serialize"):
        await b.execute("commit")
    assert await a.fetchval("select count(*) from pgq.lane") <= 1000


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="core: lanes stay until their queue is dropped"
)
async def test_lanes_that_are_not_used_any_more_go_away(a: Connection) -> None:
    await a.execute("select pgq_enqueue('1', priority => p) from generate_series(1, 20) p")
    await settle_all(a)
    await maintain(a, 5)
    assert await a.fetchval("select count(*) from pgq.lane") < 21
