"""What may happen to workers, connections and the server, and how often it did."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

import asyncpg
from pgserver import Mode

from tests.python.sessions import Connection, dsn_of, sessions, until

from .client import EXACT, LEASE
from .stage import GONE, Counts, Fault, Inject, Stage

HOUR: Final = 3600
YEAR: Final = 365 * 24 * HOUR
BACKENDS: Final = """
    select coalesce(array_agg(pid), '{}') from pg_stat_activity
     where usename = 'app' and backend_type = 'client backend'"""
NETWORK: Final = {"idle_in_transaction_session_timeout": "4s", "max_connections": "400"}
"""The server does not hear of a connection that is dead, either."""
SMALL_LOG: Final = {"min_wal_size": "32MB", "max_wal_size": "64MB"}
COMMITTED: Final = """
    select coalesce(array_agg(pid), '{}') from pg_stat_activity
     where usename = 'app' and state = 'idle' and state_change > $1
       and query ~* '^commit|pgq_(enqueue|dequeue|complete)'"""
LEASES: Final = "select count(*) from pgq_jobs where state = 'active' and worker = $1"
LOCKS: Final = """
    select pg_advisory_lock((random() * 1e15)::bigint) from generate_series(1, $1::int)"""


async def kill_workers(stage: Stage) -> Counts:
    """Kill a worker now and then, and start another one a little later."""
    happened = Counts()
    async for _ in stage.ticks(1.5):
        await stage.answered(*stage.load.names("work"))
        name = stage.chance.choice(stage.load.names("work"))
        stage.load.kill(name)
        happened["workers killed"] += 1
        if leases := await stage.ask(LEASES, name):
            happened["of their leases"] += leases
        await asyncio.sleep(stage.chance.uniform(0, 0.5))
        stage.load.add("work")
    return happened


async def kill_a_worker(stage: Stage) -> Counts:
    """Kill a worker, be without it for half of the time, then start it again."""
    stage.load.kill(stage.load.names("work")[0])
    await asyncio.sleep(stage.seconds / 2)
    stage.load.add("work")
    await asyncio.sleep(stage.seconds / 2)
    return Counts({"workers killed": 1})


async def kill_one_worker(stage: Stage) -> Counts:
    """Kill the same worker every few seconds, and start it a second later."""
    happened = Counts()
    name = stage.load.names("work")[0]
    end = time.monotonic() + stage.seconds
    while time.monotonic() < end:
        await asyncio.sleep(20 / 6)
        await stage.answered(*stage.load.names("work"))
        stage.load.kill(name)
        happened["workers killed"] += 1
        await asyncio.sleep(1)
        name = stage.load.add("work")
    return happened


async def stop_workers(stage: Stage) -> Counts:
    """Stop a worker that has leases for longer than they last, then let it go on."""
    happened = Counts()
    end = time.monotonic() + stage.seconds
    while time.monotonic() < end or not happened:
        name = stage.chance.choice(stage.load.names("work"))
        stage.load.signal(name, signal.SIGSTOP)
        if leases := await stage.ask(LEASES, name):
            await asyncio.sleep(LEASE.total_seconds() * stage.chance.uniform(1.3, 1.7))
            happened["workers stopped"] += 1
            happened["of their leases"] += leases
        stage.load.signal(name, signal.SIGCONT)
        await asyncio.sleep(stage.chance.uniform(0, 1))
    return happened


async def backends(stage: Stage) -> list[int]:
    """Return the backends of the load."""
    pids: list[int] = await stage.ask(BACKENDS)
    return pids


async def kill_backends(stage: Stage) -> Counts:
    """Kill a backend now and then, for which the server restarts all of them."""
    happened = Counts()
    async for _ in stage.ticks(2.5):
        if pids := await backends(stage):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(stage.chance.choice(pids), signal.SIGKILL)
                happened["backends killed"] += 1
    happened["crashes"] = stage.logged("was terminated by signal 9")
    return happened


async def terminate_backends(stage: Stage) -> Counts:
    """End all backends that are at work, twice a second."""
    happened = Counts()
    end = time.monotonic() + stage.seconds
    while time.monotonic() < end:
        happened["backends terminated"] += await stage.ask("""
            select count(pg_terminate_backend(pid)) from pg_stat_activity
             where usename = 'app' and state in ('active', 'idle in transaction')""")
        await asyncio.sleep(0.5)
    return happened


async def crash(stage: Stage, mode: Mode) -> None:
    """End the server, and start it again."""
    await asyncio.to_thread(stage.server.stop, mode)
    await asyncio.to_thread(stage.server.start)


async def kill_postmasters(stage: Stage) -> Counts:
    """Kill the postmaster; its backends notice, or are killed a moment later."""
    happened = Counts()
    async for _ in stage.ticks(2.5):
        os.kill(stage.server.pid, signal.SIGKILL)
        await asyncio.sleep(stage.chance.uniform(0, 0.1))
        await crash(stage, "kill")
        happened["postmasters killed"] += 1
    return happened


async def stop_immediately(stage: Stage) -> Counts:
    """Stop the server without a checkpoint, again and again."""
    happened = Counts()
    async for _ in stage.ticks(2.5):
        await crash(stage, "immediate")
        happened["immediate stops"] += 1
    return happened


async def restart(stage: Stage) -> Counts:
    """Have no server for half of the time."""
    await asyncio.to_thread(stage.server.stop)
    await asyncio.sleep(stage.seconds / 2)
    await asyncio.to_thread(stage.server.start)
    await asyncio.sleep(stage.seconds / 2)
    return Counts({"restarts": 1})


@contextlib.asynccontextmanager
async def claimed(stage: Stage) -> AsyncGenerator[int]:
    """Hold a claim open that has not been committed, and yield the backend."""
    session = await stage.session(stage.dsn)
    try:
        await session.execute("begin")

        async def found() -> bool:
            query = "select exists (select from pgq_dequeue(3, '1 hour', $1))"
            return bool(await session.fetchval(query, EXACT))

        await until(found)
        yield session.get_server_pid()
    finally:
        session.terminate()


@contextlib.asynccontextmanager
async def completing(stage: Stage) -> AsyncGenerator[int]:
    """Hold transactions of handlers open between claim and effect, and yield one's backend."""
    waiters = """
        select coalesce(array_agg(pid), '{}') from pg_locks
         where relation = 'effect'::regclass and not granted"""
    session = await stage.session()
    try:
        await session.execute("begin; lock table effect in share mode")

        async def waits() -> list[int]:
            pids: list[int] = await session.fetchval(waiters)
            return pids if len(pids) >= 3 else []

        yield stage.chance.choice(await until(waits))
    finally:
        session.terminate()


@contextlib.asynccontextmanager
async def unanswered(stage: Stage) -> AsyncGenerator[int]:
    """Keep all answers back, and yield a backend whose call has been committed since."""
    proxy = stage.proxy
    assert proxy is not None

    async def committed() -> list[int]:
        proxy.hold(down=True)
        since = await stage.ask("select clock_timestamp()")
        await asyncio.sleep(0.3)
        pids: list[int] = await stage.ask(COMMITTED, since)
        if not pids:  # whoever had a call under way has got no answer before, either
            proxy.heal()
            await stage.answered()
        return pids

    try:
        yield stage.chance.choice(await until(committed))
        proxy.cut()
    finally:
        proxy.heal()


POINTS: Final = {
    "in a claim": claimed,
    "before an effect": completing,
    "before an answer": unanswered,
}


async def kill_at_points(stage: Stage) -> Counts:
    """Kill a backend, and the whole server, at each of the points."""
    happened = Counts()
    for point, reached in POINTS.items():
        for victim in ("backend", "server"):
            async with reached(stage) as pid:
                if victim == "backend":
                    os.kill(pid, signal.SIGKILL)
                    await until(lambda: has_crashed(stage, pid))
                else:
                    await crash(stage, "kill")
            happened[f"{victim} killed {point}"] += 1
            await stage.answered()
    return happened


async def has_crashed(stage: Stage, pid: int) -> bool:
    """Tell whether the server has noticed that a backend was killed."""
    return f"(PID {pid}) was terminated by signal 9" in stage.server.log.read_text()


async def lose_connections(stage: Stage) -> Counts:
    """Let nothing pass on the connections there are, in either direction, and tell nobody."""
    assert stage.proxy is not None
    happened = Counts()
    async for _ in stage.ticks(2.5):
        happened["connections half open"] += len(await backends(stage))
        stage.proxy.forget(up=True, down=True)
    return happened


async def lose_answers(stage: Stage) -> Counts:
    """Let requests pass on the connections there are, and no answers."""
    assert stage.proxy is not None
    happened = Counts()
    async for _ in stage.ticks(2.5):
        stage.proxy.forget(down=True)
        happened["times"] += 1
    happened["answers dropped"] = stage.proxy.held
    return happened


async def fill_disk(stage: Stage) -> Counts:
    """Have no room on a disk for a while; start the server again if it has given up."""
    assert stage.disk is not None
    await stage.ask("select pgq_create_queue('ballast')")
    for _ in range(2):
        before = refusals(stage)
        with stage.disk.full():
            await until(partial(refused, stage, stage.disk.filler, before), pause=0.1)
            await asyncio.sleep(stage.seconds / 4)
        if not stage.server.is_running:
            await asyncio.to_thread(stage.server.start)
        await stage.ask("select pgq_purge('ballast')")
        await asyncio.sleep(stage.seconds / 4)
    return Counts({"writes refused": refusals(stage)})


async def refused(stage: Stage, filler: str, before: int) -> bool:
    """Write more than there is room for, and tell whether the server had to refuse it."""
    # None if the load was first, and the server has given up.
    session = await stage.session_at_once()
    if session is not None:
        with contextlib.suppress(*GONE):
            await session.execute(filler, timeout=10)
        session.terminate()
    return refusals(stage) > before


def refusals(stage: Stage) -> int:
    """Return how often the log tells of no room."""
    return stage.logged("No space left on device") + stage.logged("File too large")


async def use_up_locks(stage: Stage) -> Counts:
    """Take all memory for locks, and give it back, again and again."""
    happened = Counts()
    async with sessions(dsn_of(stage.server), 1) as (hog,):
        async for _ in stage.ticks(1.5):
            for size in (100, 10, 1):
                with contextlib.suppress(asyncpg.OutOfMemoryError):
                    while True:
                        await hog.execute(LOCKS, size)
            await asyncio.sleep(stage.chance.uniform(0.2, 1))
            await hog.execute("select pg_advisory_unlock_all()")
    happened["calls refused"] = stage.logged("out of shared memory")
    return happened


async def use_up_connections(stage: Stage) -> Counts:
    """Take all connections, and cut those of the load off."""
    hogs: list[Connection] = []
    end = time.monotonic() + stage.seconds
    try:
        while time.monotonic() < end:
            with contextlib.suppress(asyncpg.TooManyConnectionsError):
                while True:
                    hogs.append(await asyncpg.connect(**stage.dsn))
            await stage.ask(
                "select count(pg_terminate_backend(p)) from unnest($1::int[]) p",
                [
                    pid
                    for pid in await backends(stage)
                    if pid not in {hog.get_server_pid() for hog in hogs}
                ],
            )
            await asyncio.sleep(0.2)
    finally:
        for hog in hogs:
            hog.terminate()
    refused = stage.logged("too many clients") + stage.logged("remaining connection slots")
    return Counts({"connections refused": refused})


async def time_out(stage: Stage) -> Counts:
    """Let statements and waits for locks time out at random."""
    happened = Counts()
    async for _ in stage.ticks(0.5):
        for setting in ("statement_timeout", "lock_timeout"):
            await stage.ask(f"alter system set {setting} = {stage.chance.choice((1, 5, 20, 100))}")
        await stage.ask("select pg_reload_conf()")
    await stage.ask("alter system reset statement_timeout")
    await stage.ask("alter system reset lock_timeout")
    await stage.ask("select pg_reload_conf()")
    happened["statements timed out"] = stage.logged("due to statement timeout")
    return happened


async def set_clock(stage: Stage, ahead: int) -> Counts:
    """Set the server's clock forward, back again, backward, and right."""
    assert stage.clock is not None
    for seconds in (ahead, 0, -ahead, 0):
        stage.clock.set(seconds)
        await asyncio.sleep(stage.seconds / 4)
    return Counts({"steps of the clock": 4})


async def promote(stage: Stage) -> Counts:
    """Kill the primary, and promote the standby, without which no commit was answered."""
    assert stage.standby is not None
    await asyncio.sleep(stage.seconds / 4)
    await asyncio.to_thread(stage.server.stop, "kill")
    await asyncio.to_thread(stage.standby.promote)
    stage.server = stage.standby
    stage.forget()
    await asyncio.sleep(stage.seconds / 2)
    return Counts({"promotions": 1})


async def fill_notify_queue(stage: Stage) -> Counts:
    """Let a session listen that does not read, until no notification can be added."""
    async with sessions(dsn_of(stage.server), 2) as (deaf, caller):
        await deaf.execute("listen noise")
        await deaf.execute("begin; select 1")
        with contextlib.suppress(asyncpg.ProgramLimitExceededError):
            while True:
                await caller.execute("select pg_notify('noise', repeat('x', 7000))")
        usage: float = await caller.fetchval("select pg_notification_queue_usage()")
        assert usage > 0.9, usage
        await asyncio.sleep(stage.seconds)
    return Counts(
        {"notifications refused": stage.logged("too many notifications in the NOTIFY queue")}
    )


async def use_old_client(stage: Stage) -> Counts:
    """Let clients of the last release work beside those of this version."""
    names = [stage.load.add("released") for _ in range(2)]
    await stage.answered(*names)
    await asyncio.sleep(stage.seconds)
    answers = stage.load.answers()
    stage.load.end(*names)
    return Counts({"answers to the old client": min(answers[name] for name in names)})


async def update_extension(stage: Stage) -> Counts:
    """Update the extension under the load of this version's clients and of the last release's."""
    name = stage.load.add("released")
    await stage.answered(name)
    await asyncio.sleep(stage.seconds / 2)
    old = await stage.ask("select pgq_version()")
    async with sessions(dsn_of(stage.server), 1) as (session,):
        await session.execute("alter extension pgq update")
    new = await stage.ask("select pgq_version()")
    await stage.answered(name)
    await asyncio.sleep(stage.seconds / 2)
    stage.load.end(name)
    return Counts({f"from {old} to {new}": old != new})


async def hold_horizon(stage: Stage) -> Counts:
    """Keep a transaction with an id open."""
    async with sessions(dsn_of(stage.server), 1) as (holder,):
        await holder.execute("begin; select txid_current()")
        await asyncio.sleep(stage.seconds)
        query = "select count(*) from pg_stat_activity where pid = $1 and backend_xid is not null"
        return Counts({"transactions held": await stage.ask(query, holder.get_server_pid())})


async def load_more(stage: Stage) -> Counts:
    """Add half as many jobs again."""
    name = stage.load.add("produce")
    await stage.answered(name)
    await asyncio.sleep(stage.seconds)
    answers = stage.load.answers()[name]
    stage.load.end(name)
    return Counts({"more calls of producers": answers})


async def read(stage: Stage) -> Counts:
    """Read all jobs again and again, in four snapshots that are held."""
    happened = Counts()
    end = time.monotonic() + stage.seconds
    async with sessions(dsn_of(stage.server), 4) as readers:
        for reader in readers:
            await reader.execute("begin isolation level repeatable read")
        while time.monotonic() < end:
            for reader in readers:
                await reader.fetchval("select count(*) from pgq_jobs")
                happened["scans"] += 1
            await asyncio.sleep(0.1)
    return happened


def chaos(name: str, inject: Inject, *, stress: float = 60, **options: Any) -> Fault:
    """Return a chaos scenario of the public harness, in a sixth of its time."""
    return Fault(
        name=name,
        inject=inject,
        warmup=30 / 6,
        baseline=60 / 6,
        stress=stress / 6,
        recovery=60 / 6,
        **options,
    )


def pressure(
    name: str, inject: Inject, *, baseline: float, stress: float, recovery: float
) -> Fault:
    """Return a pressure scenario of the public harness: its minutes are a quarter of a second."""
    return Fault(
        name=name,
        inject=inject,
        warmup=10 / 4,
        baseline=baseline / 4,
        stress=stress / 4,
        recovery=recovery / 4,
    )


_ALL = [
    Fault(name="worker_kill", inject=kill_workers),
    Fault(name="worker_stop", inject=stop_workers),
    Fault(name="backend_kill", what="crash", inject=kill_backends),
    Fault(name="postmaster_kill", what="crash", inject=kill_postmasters),
    Fault(name="kill_at_points", what="crash", inject=kill_at_points, has_proxy=True),
    Fault(name="immediate_stop", what="crash", inject=stop_immediately),
    Fault(name="half_open", inject=lose_connections, has_proxy=True, settings=NETWORK),
    Fault(name="lost_answers", inject=lose_answers, has_proxy=True, settings=NETWORK),
    Fault(name="disk_full_wal", what="crash", inject=fill_disk, disk="wal", settings=SMALL_LOG),
    Fault(name="disk_full_data", what="crash", inject=fill_disk, disk="data", settings=SMALL_LOG),
    Fault(
        name="lock_memory",
        inject=use_up_locks,
        settings={"max_locks_per_transaction": "10", "max_connections": "60"},
    ),
    Fault(name="timeouts", inject=time_out),
    Fault(name="clock_hour", what="clock", inject=partial(set_clock, ahead=HOUR), has_clock=True),
    Fault(name="clock_year", what="clock", inject=partial(set_clock, ahead=YEAR), has_clock=True),
    Fault(name="failover", what="crash", inject=promote, has_standby=True),
    Fault(name="notify_full", inject=fill_notify_queue, settings={"max_notify_queue_pages": "64"}),
    Fault(name="old_client", inject=use_old_client),
    Fault(name="old_extension", inject=update_extension, extension="0.1.0"),
    chaos("chaos_crash_recovery", kill_a_worker, stress=120),
    chaos("chaos_postgres_restart", restart),
    chaos("chaos_repeated_kills", kill_one_worker, stress=120),
    chaos("chaos_pg_backend_kill", terminate_backends),
    chaos("chaos_pool_exhaustion", use_up_connections, settings={"max_connections": "100"}),
    pressure("idle_in_tx_saturation", hold_horizon, baseline=60, stress=60, recovery=30),
    pressure("sustained_high_load", load_more, baseline=30, stress=120, recovery=30),
    pressure("active_readers", read, baseline=30, stress=60, recovery=30),
    pressure("event_delivery_burst", load_more, baseline=15, stress=45, recovery=30),
]
FAULTS: Final = {fault.name: fault for fault in _ALL}
