"""The examples do what their pages say, also when their processes are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import httpx
import pgq
import pytest
from bootstrap import ROOT
from pgserver import Server

from examples.bulk_import import tasks as imports
from examples.bulk_import import worker as importer
from examples.fastapi_signup import app as signups
from examples.fastapi_signup import worker as mailer
from examples.ledger import worker as bank
from examples.ledger.tasks import Transfer, make_transfer
from examples.moderation import desk
from examples.webhooks import tasks as webhooks
from examples.webhooks import worker as sender

from . import pages
from .pages import snippets
from .receiver import HANG, HANG_UP, receiving
from .sessions import Connection, until, within

KILLS = 10
SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}

Install: TypeAlias = Callable[[str], None]
Move: TypeAlias = "tuple[int, str, str, int]"


@pytest.fixture(autouse=True)
def environment(server: Server, dsn: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lead all that connects without an address to the test's database."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PGDATABASE", dsn["database"])


@pytest.fixture
def install(server: Server, dsn: dict[str, Any]) -> Install:
    """Makes the tables of an example."""

    def run(example: str) -> None:
        server.psql(read(example, "schema.sql"), dsn["database"])

    return run


def read(example: str, file: str) -> str:
    return pages.read(f"examples/{example}/{file}")


def commands(example: str, number: int = 0) -> str:
    """Return one of the shell scripts of an example's page."""
    return snippets(read(example, "README.md"), "sh")[number]


@contextlib.asynccontextmanager
async def running(*command: str) -> AsyncGenerator[Process, None]:
    """Run a command as long as the block lasts, then end it and all that it has started."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await within(process.communicate())


async def output(*command: str) -> str:
    async with running(*command) as process:
        text, _ = await within(process.communicate())
        return text.decode()


@contextlib.asynccontextmanager
async def at_work(module: Any) -> AsyncGenerator[None, None]:
    """Run the main() of an example's worker as long as the block lasts."""
    main = asyncio.create_task(module.main())
    try:
        yield
    finally:
        module.worker.stop()
        await within(main)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.once
async def test_the_shell_of_the_overview_has_all_that_the_examples_need() -> None:
    setup, shell = commands(".").splitlines()
    assert setup == "make setup build"
    tried = "python -c 'import fastapi, httpx, pgq, uvicorn' && psql -c 'create extension pgq'"
    text = await output("sh", "-c", shell.replace("-- bash", f'-- sh -c "{tried}"'))
    assert text.endswith("CREATE EXTENSION\n"), text


# The web application


async def test_a_signup_and_its_mail_are_one(
    install: Install, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    install("fastapi_signup")
    ada = {"email": "ada@example.org"}
    transport = httpx.ASGITransport(app=signups.app)
    async with (
        signups.lifespan(signups.app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        accepted = await client.post("/signups", json=ada)
        assert accepted.status_code == 202
        progress = f"/signups/{accepted.json()['id']}"
        assert (await client.get(progress)).json() == {
            "state": "ready",
            "message_id": None,
            "last_error": None,
        }
        refused = await client.post("/signups", json=ada)
        assert refused.status_code == 409
        jobs = await connection.fetchval("select count(*) from pgq_jobs")
        assert jobs == 1, "that of the second signup is gone with it"

        await mailer.worker.run_until_idle(pool)
        done = (await client.get(progress)).json()
        assert (done["state"], done["message_id"]) == ("completed", "<welcome-1@example.org>")
        unknown = "/signups/00000000-0000-0000-0000-000000000000"
        assert (await client.get(unknown)).status_code == 404


@pytest.mark.once
async def test_the_web_application_and_its_worker_run(install: Install) -> None:
    port = str(free_port())
    url = f"http://127.0.0.1:{port}/signups"
    script = commands("fastapi_signup").replace("8000", port)
    async with running("sh", "-c", script), httpx.AsyncClient() as client:

        async def accepted() -> str | None:
            with contextlib.suppress(httpx.ConnectError):
                answer = await client.post(url, json={"email": "ada@example.org"})
                return str(answer.json()["id"])
            return None

        signup = await until(accepted, pause=0.1)

        async def sent() -> bool:
            return bool((await client.get(f"{url}/{signup}")).json()["state"] == "completed")

        await until(sent)


# The shop

SHOP = """
import asyncio
from datetime import timedelta
from examples.fastapi_orders.worker import main, worker
worker.configure("payments", concurrency=8, timeout=timedelta(seconds=1))
asyncio.run(main())
"""


async def place(client: httpx.AsyncClient, url: str, number: str, cents: int) -> int | None:
    """Place an order, and return the status of the answer; None while nobody answers."""
    with contextlib.suppress(httpx.ConnectError):
        return (await client.post(url, json={"number": number, "cents": cents})).status_code
    return None


@pytest.mark.once
async def test_the_shop_takes_orders_and_is_paid(pool: asyncpg.Pool[Any]) -> None:
    port = str(free_port())
    url = f"http://127.0.0.1:{port}/orders"
    script = commands("fastapi_orders").replace("8000", port)
    async with running("sh", "-c", script), httpx.AsyncClient() as client:
        assert await until(lambda: place(client, url, "A1", 4200), pause=0.1) == 202
        assert await place(client, url, "A1", 100) == 409
        assert await place(client, url, "A2", 100_001) == 202
        assert (await client.get(f"{url}/A3")).status_code == 404

        async def settled() -> bool:
            left = "select count(*) from pgq_jobs where state not in ('completed', 'dead')"
            return bool(await pool.fetchval(left) == 0)

        await until(settled, pause=0.05)
        paid = {number: (await client.get(f"{url}/{number}")).json() for number in ("A1", "A2")}
        assert [order["status"] for order in paid.values()] == ["paid", "new"]
    found = await pool.fetch("select id, state, last_error from pgq_jobs order by id")
    assert [row["state"] for row in found] == ["completed", "dead"]
    assert found[1]["id"] == found[0]["id"] + 2, "the job of the second A1 was rolled back"
    assert "the bank refuses" in found[1]["last_error"]
    alembic = ["alembic", "-c", "examples/fastapi_orders/alembic.ini", "check"]
    check = await asyncio.create_subprocess_exec(*alembic, cwd=ROOT, stdout=PIPE, stderr=STDOUT)
    output, _ = await within(check.communicate())
    assert check.returncode == 0, output.decode()


@pytest.mark.once
async def test_orders_are_paid_once_however_many_workers_are_killed(
    pool: asyncpg.Pool[Any],
) -> None:
    port = str(free_port())
    url = f"http://127.0.0.1:{port}/orders"
    install, _, serve = commands("fastapi_orders").replace("8000", port).strip().splitlines()
    orders = 0
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running("sh", "-c", f"{install} && {serve}"))
        client = await stack.enter_async_context(httpx.AsyncClient())
        await until(lambda: place(client, url, "first", 1), pause=0.1)

        async def start() -> Process:
            return await stack.enter_async_context(running(sys.executable, "-c", SHOP))

        workers = [await start() for _ in range(2)]

        async def victim() -> Process | None:
            """Return a worker that holds jobs."""
            names = await pool.fetch("select worker from pgq_workers where expired = 0")
            pids = {int(row["worker"].rpartition(":")[2]) for row in names}
            return next((worker for worker in workers if worker.pid in pids), None)

        for number in range(KILLS // 2):
            async with pool.acquire() as connection, connection.transaction():
                # Handlers that have added a payment wait for this to commit it.
                await connection.execute("lock payment in share mode")
                for _ in range(20):
                    orders += 1
                    assert await place(client, url, f"{number}-{orders}", 100) == 202
                killed = await until(victim, pause=0.001)
                assert killed is not None
                killed.kill()
            workers.remove(killed)
            workers.append(await start())

        async def ended() -> bool:
            left = "select count(*) from pgq_jobs where state <> 'completed'"
            return bool(await pool.fetchval(left) == 0)

        await until(ended, pause=0.05)
    assert await pool.fetchval("select count(*) from purchase where status = 'paid'") == orders + 1
    assert await pool.fetchval("select count(*) from payment") == orders + 1
    once = "select count(distinct order_id) = count(*) and count(distinct job) = count(*)"
    assert await pool.fetchval(f"{once} from payment"), "each order and each job has one payment"
    again = await pool.fetchval("select count(*) from pgq_jobs where attempt > 1")
    assert again > 0, "what the killed ones held was done by others"


# The shop in Django

DJANGO_SHOP = ROOT / "examples" / "django_shop"
MANAGE = (sys.executable, str(DJANGO_SHOP / "manage.py"))
HOLD = """
    create function hold() returns trigger language plpgsql as $$
    begin
        perform pg_advisory_xact_lock_shared(1);
        return new;
    end $$;
    create trigger hold after insert on shop_payment execute function hold();
"""
ORDERS = """
    with placed as (
        insert into shop_order (email, cents)
        select 'ada@example.org', n from generate_series(1, 30) n returning id
    )
    select count(pgq_enqueue(
        jsonb_build_object('args', array[id]), 'payments',
        headers => '{"task": "shop.tasks.charge"}'
    ))
      from placed
"""


@contextlib.asynccontextmanager
async def busy_worker(connection: Connection, *options: str) -> AsyncGenerator[Process, None]:
    """Run a worker whose 10 tasks wait until `connection` gives back a lock; 20 more are ready."""
    await output(*MANAGE, "migrate")
    await connection.execute(HOLD)
    await connection.execute("select pg_advisory_lock(1)")
    await connection.execute(ORDERS)
    async with running(*MANAGE, "pgq_worker", *options) as worker:

        async def holds() -> bool:
            waiters = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
            return bool(await connection.fetchval(waiters) == 10)

        await until(holds)
        yield worker


@pytest.mark.once
@pytest.mark.extension
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_tasks_finish(connection: Connection, number: signal.Signals) -> None:
    async with busy_worker(connection, "--no-reload") as worker:
        worker.send_signal(number)
        await connection.execute("select pg_advisory_unlock(1)")
        assert await within(worker.wait()) == 0
    jobs = await connection.fetch("select state, attempt from pgq_jobs")
    assert {(job["state"], job["attempt"]) for job in jobs} <= {("completed", 1), ("ready", 0)}
    assert sum(job["state"] == "completed" for job in jobs) >= 10


@pytest.mark.once
@pytest.mark.extension
async def test_with_reload_a_signal_leaves_tasks_to_their_leases(connection: Connection) -> None:
    async with busy_worker(connection, "--reload") as worker:
        worker.terminate()
        await within(worker.wait())
    active = "select count(*) from pgq_jobs where state = 'active' and attempt = 1"
    assert await connection.fetchval(active) == 10


@pytest.mark.once
@pytest.mark.extension
async def test_each_order_is_paid_once_though_the_worker_is_killed(connection: Connection) -> None:
    async with busy_worker(connection, "--no-reload") as killed:
        killed.kill()
        await killed.wait()
    assert await connection.fetchval("select count(*) from shop_payment") == 0
    await connection.execute("select pg_advisory_unlock(1)")
    # As if their leases had run out: nobody is to wait for half a minute.
    await connection.execute("select pgq_release(id, token) from pgq_jobs where state = 'active'")
    async with running(*MANAGE, "pgq_worker", "--no-reload"):

        async def paid() -> bool:
            left = "select count(*) from pgq_jobs where state <> 'completed'"
            return bool(await connection.fetchval(left) == 0)

        await until(paid)
    payments = await connection.fetch("select order_id from shop_payment order by order_id")
    assert [row["order_id"] for row in payments] == list(range(1, 31))


@pytest.mark.once
@pytest.mark.extension
async def test_the_shop_runs_and_a_wrong_order_leaves_nothing(connection: Connection) -> None:
    port = str(free_port())
    script = commands("django_shop").replace("8000", port)
    async with running("sh", "-c", script), httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}"

        async def serves() -> bool:
            with contextlib.suppress(httpx.ConnectError):
                return (await client.get(f"{url}/admin/login/")).status_code == 200
            return False

        await until(serves, pause=0.1)
        order = {"email": "ada@example.org", "cents": "500"}
        accepted = await client.post(f"{url}/orders/", data=order)
        assert (accepted.status_code, accepted.json()) == (202, {"order": 1, "task": "1"})
        refused = await client.post(f"{url}/orders/", data={**order, "email": "nowhere"})
        assert (refused.status_code, [*refused.json()]) == (400, ["errors"])

        async def paid() -> bool:
            return bool(await connection.fetchval("select count(*) from shop_payment") == 1)

        await until(paid)
        jobs = await connection.fetch("select state from pgq_jobs")
        assert [row["state"] for row in jobs] == ["completed"]


@pytest.mark.once
@pytest.mark.extension
async def test_a_worker_gives_its_jobs_back_when_code_changes(
    connection: Connection, tmp_path: Path
) -> None:
    shop = shutil.copytree(DJANGO_SHOP, tmp_path / "shop")
    manage = (sys.executable, str(shop / "manage.py"))
    tasks = shop / "shop" / "tasks.py"
    endless = "while True:\n        time.sleep(0.01)"
    text = tasks.read_text().replace("Payment.objects.create(order=order)", endless)
    tasks.write_text(text.replace("import django\n", "import time\n\nimport django\n"))
    await output(*manage, "migrate")
    await connection.execute(ORDERS)
    held = """
        select min(worker) as worker, max(attempt) as attempt
          from pgq_jobs where state = 'active' having count(*) = 4"""
    async with running(*manage, "pgq_worker", "--concurrency", "4"):

        async def holds() -> asyncpg.Record | None:
            return await connection.fetchrow(held)

        first = await until(holds)

        async def has_given_back() -> bool:
            tasks.touch()  # until the one who watches has seen it
            return await holds() != first

        await until(has_given_back, pause=0.5)
        again = await until(holds)
        assert again is not None
        assert again["attempt"] == 1, "the attempt was not counted"


@pytest.mark.once
@pytest.mark.extension
async def test_the_tests_of_the_shop_pass() -> None:
    told = await output(*MANAGE, "test", "shop")
    assert re.search(r"^Ran [1-9]\d* tests? in .*\n\nOK$", told, re.MULTILINE), told
    assert "No changes detected" in await output(*MANAGE, "makemigrations", "--check")


# The ledger

ACCOUNTS = ("ada", "bob", "eve")
BANK = """
import asyncio
from datetime import timedelta
from examples.ledger.worker import main, worker
worker.configure("transfers", concurrency=8, timeout=timedelta(seconds=1))
asyncio.run(main())
"""
TRANSFERS = "select job, source, target, cents from transfer order by job"


async def enqueue_transfers(pool: asyncpg.Pool[Any], number: int) -> list[Move]:
    """Enqueue transfers, and return them as the ledger is to have them."""
    pairs = [random.sample(ACCOUNTS, 2) for _ in range(number)]
    moves = [Transfer(source, target, random.randint(1, 20)) for source, target in pairs]
    handles = await make_transfer.enqueue_many(moves, connection=pool)
    return [
        (handle.id, move.source, move.target, move.cents)
        for handle, move in zip(handles, moves, strict=True)
    ]


async def check_ledger(pool: asyncpg.Pool[Any], wanted: list[Move]) -> None:
    """Each transfer was made once, and the balances are what follows from that."""

    async def ended() -> bool:
        left = "select count(*) from pgq_jobs where state not in ('completed', 'cancelled')"
        return bool(await pool.fetchval(left) == 0)

    await until(ended, pause=0.05)
    assert [tuple(row) for row in await pool.fetch(TRANSFERS)] == wanted
    balances: dict[str, int] = dict.fromkeys(ACCOUNTS, 100_000)
    for _, source, target, cents in wanted:
        balances[source] -= cents
        balances[target] += cents
    assert dict(await pool.fetch("select id, balance from account")) == balances
    assert sum(balances.values()) == 300_000


@pytest.mark.once
async def test_transfers_happen_once_however_many_workers_are_killed(
    install: Install, pool: asyncpg.Pool[Any]
) -> None:
    install("ledger")
    wanted: list[Move] = []
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> Process:
            return await stack.enter_async_context(running(sys.executable, "-c", BANK))

        workers = [await start() for _ in range(3)]

        async def victim() -> Process | None:
            """Return a worker that holds jobs."""
            names = await pool.fetch("select worker from pgq_workers where expired = 0")
            pids = {int(row["worker"].rpartition(":")[2]) for row in names}
            return next((worker for worker in workers if worker.pid in pids), None)

        for number in range(KILLS):
            async with pool.acquire() as connection, connection.transaction():
                # In this order, as transfers do.
                await connection.execute("select from account order by id for update")
                wanted += await enqueue_transfers(pool, 60)
                killed = await until(victim, pause=0.001)
                assert killed is not None
                if number % 2:
                    killed.kill()  # while nobody comes to an end with what it holds
            if not number % 2:
                await asyncio.sleep(random.uniform(0, 0.1))
                killed.kill()
            workers.remove(killed)
            workers.append(await start())
        await check_ledger(pool, wanted)
    again = await pool.fetchval("select count(*) from pgq_jobs where attempt > 1")
    assert again > 0, "what the killed ones held was done by others"


@pytest.mark.parametrize(
    "transfer",
    [Transfer("ada", "bob", 100_001), Transfer("ada", "zoe", 1), Transfer("ada", "ada", 1)],
)
async def test_a_transfer_that_is_not_possible_leaves_nothing(
    install: Install, pool: asyncpg.Pool[Any], transfer: Transfer
) -> None:
    install("ledger")
    handle = await make_transfer.enqueue(transfer, connection=pool)
    await bank.worker.run_until_idle(pool)
    with pytest.raises(pgq.JobCancelled, match="violates"):
        await handle.result()
    await check_ledger(pool, [])
    await make_transfer.enqueue(transfer, connection=pool)
    await pool.execute(read("ledger", "pop.sql"))
    await check_ledger(pool, [])


async def test_transfers_happen_once_however_many_psqls_are_killed(
    install: Install, pool: asyncpg.Pool[Any]
) -> None:
    install("ledger")
    wanted: list[Move] = []
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> Process:
            psql = await stack.enter_async_context(running("psql", "-X", "-q", "-o", os.devnull))
            assert psql.stdin is not None
            psql.stdin.write(f"{read('ledger', 'pop.sql')}\n\\watch 0.001\n".encode())
            return psql

        workers = [await start() for _ in range(3)]
        for _ in range(KILLS):
            before = len(wanted)
            wanted += await enqueue_transfers(pool, 30)

            async def begun(before: int = before) -> bool:
                return bool(await pool.fetchval("select count(*) from transfer") > before)

            await until(begun, pause=0.001)
            workers.pop(0).kill()
            workers.append(await start())
        await check_ledger(pool, wanted)


async def test_the_ledger_agrees_after_a_kill(pool: asyncpg.Pool[Any]) -> None:
    begun = "until psql -Atc 'table transfer' | grep -q .; do sleep 0.1; done"
    text = await output("sh", "-c", commands("ledger").replace("sleep 2", begun))
    assert "ERROR" not in text, text
    made = await pool.fetchval("select count(*) from transfer")
    assert made > 0
    async with running("sh", "-c", commands("ledger", 1)):

        async def more() -> bool:
            return bool(await pool.fetchval("select count(*) from transfer") > made)

        await until(more, pause=0.05)
    agrees = """
        select balance = 100000 - (select sum(cents) from transfer) from account where id = 'ada'
    """
    assert await pool.fetchval(agrees)


# Moderators


async def test_moderators_get_disjoint_posts_and_wait_for_nobody(
    install: Install, a: Connection, b: Connection
) -> None:
    install("moderation")
    async with a.transaction():
        adas = await desk.take(a, "ada", 2)
        bobs = await within(desk.take(b, "bob", 2))
        assert [case.post for case in adas + bobs] == [1, 2, 3, 4]
        case = await desk.open_post(a, "ada", 5)
        with pytest.raises(desk.Taken, match="somebody"):
            await within(desk.open_post(b, "bob", 5))
    with pytest.raises(desk.Taken, match=r"^ada has the post until \d\d:\d\d UTC$"):
        await desk.open_post(b, "bob", 5)
    await desk.decide(a, "ada", case.receipt, "removed")
    with pytest.raises(desk.TooLate):
        await desk.decide(b, "bob", case.receipt, "kept")
    with pytest.raises(pgq.UnknownJob):
        await desk.open_post(b, "bob", 5)
    assert tuple(await a.fetchrow("select verdict, moderator from post where id = 5") or ()) == (
        "removed",
        "ada",
    )


@pytest.mark.once
async def test_the_desk_from_the_command_line(connection: Connection) -> None:
    text = await output("sh", "-c", commands("moderation"))
    *cases, refusal = text.splitlines()[-6:]
    assert [case.partition(" (")[0] for case in cases] == [
        "post 1: Cheap watches!",
        "post 2: You are all wrong.",
        "post 3: Look at my cat.",
        "post 4: Cheap cats!",
        "post 5: First!",
    ]
    assert refusal.startswith("ada has the post until ")
    receipt = re.findall(r"\d+", cases[-1])[-2:]
    command = (sys.executable, "-m", "examples.moderation", "ada", "remove", *receipt)
    assert await output(*command) == ""
    assert "by now" in await output(*command)
    assert await connection.fetchval("select verdict from post where id = 5") == "removed"


async def test_two_moderators_in_plain_sql(install: Install) -> None:
    install("moderation")
    script = "examples/moderation/two_moderators.sql"
    text = await output("psql", "-X", "-q", "-At", "-v", "VERBOSITY=sqlstate", "-f", script)
    assert text.splitlines() == [
        "ada|1|Cheap watches!",
        "ada|2|You are all wrong.",
        "bob|3|Look at my cat.",
        "bob|4|Cheap cats!",
        f"psql:{script}:{text.partition('.sql:')[2].partition(':')[0]}: ERROR:  55P03",
        "ada|t",
        "t",
    ]


# Webhooks


async def receivers(connection: Connection, *urls: str) -> None:
    await connection.executemany("insert into receiver (url) values ($1)", [(url,) for url in urls])


async def publish(connection: Connection, *numbers: int) -> list[pgq.JobHandle[int]]:
    """Publish events, each in a transaction of its own."""
    published: list[pgq.JobHandle[int]] = []
    for number in numbers:
        async with connection.transaction():
            published += await webhooks.publish(connection, "counted", {"n": number})
    return published


def event(number: int) -> dict[str, Any]:
    return {"event": "counted", "data": {"n": number}}


async def test_deliveries_stay_in_order_and_a_dead_receiver_holds_up_nobody(
    install: Install, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    install("webhooks")
    await pgq.Admin(pool).configure_queue("webhooks", backoff_base=timedelta(milliseconds=10))
    async with at_work(sender), receiving() as receiver:
        await receivers(
            connection,
            receiver.url("/dead", *[HANG] * 9),
            receiver.url("/odd", HANG_UP, (500, {}), (302, {"location": "/dead"})),
            receiver.url("/good"),
        )
        published = await publish(connection, 1, 2, 3)
        assert [await published[n].result(connection=pool) for n in (8, 7)] == [204, 204]
        dead = [await pgq.Queue(pool).get(published[n].id) for n in (3, 6)]
        assert [job and job.state for job in dead] == ["waiting", "waiting"]
    assert receiver.got("/good") == [event(1), event(2), event(3)]
    assert receiver.got("/odd") == [event(1), event(1), event(1), event(1), event(2), event(3)]
    ids = [r.headers["webhook-id"] for r in receiver.requests if r.path == "/odd"]
    assert ids == [str(published[n].id) for n in (1, 1, 1, 1, 4, 7)]


@pytest.mark.once
async def test_a_receiver_may_ask_for_a_pause_or_for_no_more(
    install: Install, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    install("webhooks")
    async with at_work(sender), receiving() as receiver:
        busy = receiver.url("/busy", (429, {"retry-after": "1"}))
        gone = receiver.url("/gone", (410, {}))
        vague = receiver.url("/vague", (429, {"retry-after": "Thu, 01 Jan 2026 00:00:00 GMT"}))
        await receivers(connection, busy, gone, vague)
        first, second, third = await publish(connection, 1)
        assert await first.result(connection=pool) == 204
        with pytest.raises(pgq.JobCancelled, match="wants no more"):
            await second.result(connection=pool)
        waits = await pgq.Queue(pool).get(third.id)
    times = [request.at for request in receiver.requests if request.path == "/busy"]
    assert times[1] - times[0] >= 1
    assert waits is not None
    assert (waits.state, waits.last_error) == ("scheduled", "429: the receiver is busy")


async def test_deliveries_are_not_too_fast(
    install: Install, pool: asyncpg.Pool[Any], connection: Connection
) -> None:
    install("webhooks")
    assert await connection.fetchval("select rate_limit from pgq.queue where name = 'webhooks'")
    queue = pgq.Queue(pool, "webhooks")
    await pgq.Admin(pool).configure_queue(queue.name, rate_limit=20, rate_burst=1)
    async with at_work(sender), receiving() as receiver:
        await receivers(connection, *[receiver.url(f"/{n}") for n in range(6)])
        published = await publish(connection, 1)
        for handle in published:
            await handle.result(connection=pool)
        jobs = [await queue.get(handle.id) for handle in published]
    starts = sorted(job.claimed_at for job in jobs if job and job.claimed_at)
    assert len(starts) == 6
    assert starts[5] - starts[0] >= timedelta(seconds=4 / 20), "not before the fifth moment after"


async def test_a_delivery_that_takes_for_ever_fails_at_its_deadline(
    install: Install,
    pool: asyncpg.Pool[Any],
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install("webhooks")
    monkeypatch.setattr(webhooks.deliver, "deadline", timedelta(milliseconds=300))
    await pgq.Admin(pool).configure_queue("webhooks", backoff_base=timedelta(0))
    async with at_work(sender), receiving() as receiver:
        await receivers(connection, receiver.url("/slow", HANG, HANG))
        (handle,) = await publish(connection, 1)
        assert await handle.result(connection=pool) == 204
        job = await pgq.Queue(pool).get(handle.id)
    assert job is not None
    assert job.attempt >= 3
    assert "the deadline of the task has passed" in (job.last_error or "")


@pytest.mark.once
async def test_an_event_from_the_command_line_is_delivered(connection: Connection) -> None:
    async with receiving() as receiver:
        script = commands("webhooks").replace("8001", str(receiver.port))
        async with running("sh", "-c", script):

            async def arrived() -> list[Any]:
                return receiver.got("/")

            assert await until(arrived, pause=0.05) == [
                {"event": "invoice.paid", "data": {"invoice": 7}}
            ]


# The import of a file

IMPORTER = """
import asyncio
from datetime import timedelta
from examples.bulk_import import tasks
from examples.bulk_import.worker import main, worker
tasks.CHUNK_BYTES, tasks.CHUNKS_PER_TRANSACTION = 1000, 5
worker.configure("imports", concurrency=4, timeout=timedelta(seconds=3))
asyncio.run(main())
"""

# From some chunk on, whoever notes one waits for the lock of the test.
STALL = """
    create function stall() returns trigger language plpgsql as $$
    begin
        if (select count(*) from import_chunk) >= 15 then
            perform pg_advisory_xact_lock(1);
        end if;
        return new;
    end $$;
    create trigger stall before insert on import_chunk execute function stall();
"""


@pytest.fixture
def products(tmp_path: Path) -> Path:
    """A file of 2,000 rows."""
    path = tmp_path / "products.csv"
    rows = "".join(f'{n},"product {n}, blue",{n}\r\n' for n in range(2000))
    path.write_text(f"sku,name,cents\r\n{rows}", encoding="utf-8", newline="")
    return path


def change(file: Path, old: bytes, new: bytes) -> None:
    file.write_bytes(file.read_bytes().replace(old, new))


async def check_products(connection: Connection, number: int) -> None:
    rows = await connection.fetch("select sku, name, cents from product order by cents")
    assert [tuple(row) for row in rows] == [
        (str(n), f"product {n}, blue", n) for n in range(number)
    ]


async def progress(connection: Connection) -> tuple[int, int, int, bool]:
    row = await connection.fetchrow(
        "select chunks, loaded, rows, finished_at is not null from import_progress"
    )
    assert row is not None
    return tuple(row)


@pytest.mark.once
async def test_an_import_that_is_killed_goes_on_where_it_was(
    install: Install, pool: asyncpg.Pool[Any], connection: Connection, products: Path
) -> None:
    install("bulk_import")
    await pool.execute(STALL)
    import_id = await imports.start(connection, products)
    async with pool.acquire() as lock:
        await lock.execute("select pg_advisory_lock(1)")
        async with running(sys.executable, "-c", IMPORTER) as killed:

            async def stalled() -> bool:
                waiter = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
                return bool(await connection.fetchval(waiter))

            await until(stalled)
            killed.kill()
            await killed.wait()
        chunks = "select job from import_chunk order by job"
        before = await connection.fetch(chunks)
        assert len(before) == 15
        await lock.execute("select pg_advisory_unlock(1)")
    async with running(sys.executable, "-c", IMPORTER):

        async def finished() -> bool:
            return (await progress(connection))[3]

        await until(finished)
    after = await connection.fetch(chunks)
    assert after[:15] == before, "the second attempt has not begun again"
    assert await progress(connection) == (len(after), len(after), 2000, True)
    await check_products(connection, 2000)
    attempts = "select attempt from pgq_jobs where headers ->> 'task' = 'split'"
    assert await connection.fetchval(attempts) == 2
    assert import_id == 1


async def test_an_import_waits_for_a_chunk_that_has_died(
    install: Install,
    pool: asyncpg.Pool[Any],
    connection: Connection,
    products: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install("bulk_import")
    monkeypatch.setattr(imports, "CHUNK_BYTES", 20_000)
    queue = pgq.Queue(pool, "imports")
    await pgq.Admin(pool).configure_queue(queue.name, max_attempts=1)
    change(products, b",1999", b",none")
    imports.worker_pool.set(pool)
    await imports.start(connection, products)
    await importer.worker.run_until_idle(pool)
    chunks, loaded, _, finished = await progress(connection)
    assert (loaded, finished) == (chunks - 1, False)
    change(products, b",none", b",1999")
    await pgq.Admin(pool).retry_dead(queue.name)
    await importer.worker.run_until_idle(pool)
    assert await progress(connection) == (chunks, chunks, 2000, True)
    await check_products(connection, 2000)


async def test_a_file_without_rows_is_imported(
    install: Install, pool: asyncpg.Pool[Any], connection: Connection, tmp_path: Path
) -> None:
    install("bulk_import")
    path = tmp_path / "products.csv"
    path.write_text("sku,name,cents\n", encoding="utf-8")
    imports.worker_pool.set(pool)
    await imports.start(connection, path)
    await importer.worker.run_until_idle(pool)
    assert await progress(connection) == (0, 0, 0, True)


@pytest.mark.once
async def test_an_import_from_the_command_line_shows_its_progress(tmp_path: Path) -> None:
    script = commands("bulk_import").replace("/tmp/", f"{tmp_path}/")
    text = await output("sh", "-c", script)
    assert re.search(r"^(\d+) of \1 chunks, 300000 rows$", text, re.MULTILINE), text
