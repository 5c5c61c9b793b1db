"""`pgq top`, `pgq doctor` and `pgq metrics`."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pgq._cli import exporter, web
from pgq._cli.base import Settings
from pgq._cli.screen import QUEUES, WORKERS, Frame, View, render
from pgq._log import name_of
from pgq._operate.finding import Facts
from pgq._operate.obstacles import in_the_way
from pgserver import PATIENCE, Server
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from .cli_session import SCRIPT, Cli, Running, running, url_of, variables
from .sessions import Connection, enqueue

SESSIONS: dict[str, dict[str, str]] = {"a": {}, "b": {}}
NO_TIME = "--max-transaction-age=0"


@pytest.fixture(name="cli")
def command_line(dsn: dict[str, Any]) -> Cli:
    """The command line on a database with the extension."""
    return Cli(variables(dsn))


def read_until(file: int, text: str) -> str:
    """Read from a terminal until it has shown a text, and return all that it has shown."""
    seen = ""
    deadline = time.monotonic() + PATIENCE
    while text not in seen:
        assert select.select([file], [], [], max(deadline - time.monotonic(), 0))[0], seen
        seen += os.read(file, 10_000).decode(errors="replace")
    return seen


# top


async def test_a_frame_shows_queues_workers_and_what_is_in_the_way(
    cli: Cli, connection: Connection
) -> None:
    await enqueue(connection, 3)
    await connection.execute("select pgq_dequeue(1, '1 hour', worker => 'ada')")
    frame = await asyncio.to_thread(cli.ok, "top", "--once")
    assert re.search(r"^default +2 +1 ", frame, re.MULTILINE)
    assert re.search(r"^queue +ready +active .* scheduled  waiting  paused$", frame, re.MULTILINE)
    assert re.search(r"^ada +default +1 ", frame, re.MULTILINE)
    assert "Nothing is in the way" in frame
    sample = await asyncio.to_thread(cli.json, "top")
    assert sample["queues"][0]["active"] == 1
    assert {row["subject"] for row in sample["health"]} >= {"rotation"}


def rows_of(number: int, **row: Any) -> list[dict[str, Any]]:
    """Return so many rows of a view, with numbers in place of N."""

    def numbered(value: Any, n: int) -> Any:
        return value.replace("N", str(n)) if isinstance(value, str) else value

    return [{key: numbered(value, n) for key, value in row.items()} for n in range(number)]


NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


def frame_of(queues: int, workers: int, in_the_way: int) -> Frame:
    """Return a frame with many of each."""
    shown = rows_of(
        queues,
        queue="a-queue-with-a-long-name-N",
        ready=1234567,
        scheduled=12,
        waiting=3,
        active=20,
        dead=1,
        oldest_ready_age=timedelta(seconds=5),
        next_due=None,
        completed_last_minute=6000,
        failed_last_minute=60,
        max_active=0,
        paused=False,
        estimated=True,
    )
    for n, row in enumerate(shown):
        row["ready"] += n
    holding = rows_of(
        workers,
        queue="a-queue-with-a-long-name-0",
        worker="pod-6f7d9c-N.example.internal:41/7",
        jobs=5,
        expired=0,
        oldest_claimed_at=NOON,
        last_heartbeat_at=NOON,
        next_expiry_at=NOON,
        pid=41234,
        backend_gone=False,
    )
    health = rows_of(
        in_the_way,
        subject="slot in use",
        status="warning",
        detail="job_0: written to",
        age=timedelta(hours=1),
        query="select " + 200 * "x",
    )
    for n, row in enumerate(health):
        row["pid"] = 1000 + n
    facts = Facts(NOON, shown, {}, [], holding, [], health, [], [], {})
    return Frame(facts, {"database": "shop", "version": "18.4"})


def lines_of(frame: Frame, view: View, width: int = 80, height: int = 24) -> list[str]:
    """Return what a frame shows on a screen of a size."""
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(frame.render(view, width, height))
    lines = captured.get().splitlines()
    assert len(lines) <= height, lines
    assert max(map(len, lines)) <= width, lines
    return lines


def test_a_claim_since_the_look_began_has_no_negative_age() -> None:
    facts = replace(frame_of(1, 1, 0).facts, now=NOON - timedelta(seconds=1))
    lines = lines_of(Frame(facts, {"database": "shop", "version": "18.4"}), View(), 200)
    [worker] = [line for line in lines if line.startswith("pod-")]
    assert worker.split()[3:5] == ["0.0s", "0.0s"]


def test_80_columns_have_the_columns_that_matter_with_whole_headings() -> None:
    lines = lines_of(frame_of(50, 9, 12), View())
    heads = [line.split() for line in lines if line.startswith(("queue", "worker"))]
    headings = {one.heading for one in (*QUEUES, *WORKERS)}
    for head in heads:
        assert set(head) - headings <= {"1-13/50", "1-4/9", "1-3/9", "1-14/50"}
    assert {"ready", "active", "oldest", "done/s", "dead"} <= set(heads[0])
    assert {"jobs", "claimed", "expired"} <= set(heads[1])
    assert "1234567" in lines[3], "numbers are never cut"


def test_what_is_in_the_way_is_one_line_for_each_kind_and_workers_stay() -> None:
    lines = lines_of(frame_of(50, 9, 12), View())
    [line] = [line for line in lines if "rotation" in line]
    assert line.startswith(" 12 x rotation: pid 1000, in a transaction for 1h 0m: slot in use")
    assert sum(line.startswith("pod-") for line in lines) >= 3
    assert sum(line.startswith("a-queue") for line in lines) >= 3
    few = lines_of(frame_of(1, 30, 0), View())
    assert sum(line.startswith("pod-") for line in few) > 10, "they take what queues leave"


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 24), (200, 60), (20, 5)])
def test_a_frame_fits_any_screen(width: int, height: int) -> None:
    for frame in (frame_of(50, 9, 12), frame_of(0, 0, 0), frame_of(1, 1, 1)):
        for keys in ("", "?", "j\t", "r"):
            view = View()
            for key in keys:
                view.press(key)
            lines_of(frame, view, width, height)


def test_several_databases_share_the_screen() -> None:
    frames = [replace(frame_of(30, 3, 1), name=name) for name in ("a.internal/shop", "b/shop")]
    down = {"c.internal/shop": "cannot connect"}
    for width, height in ((40, 10), (80, 24), (200, 60), (20, 5)):
        console = Console(width=width, height=height, color_system=None)
        with console.capture() as captured:
            console.print(render(frames, down, View(), width, height))
        lines = captured.get().splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    frames = [replace(frame_of(3, 3, 1), name=frame.name) for frame in frames]
    lines = [" ".join(line.split()) for line in lines_of_several(frames, down)]
    assert lines[0].startswith("3 databases, 1 of them down, 2026-11-27")
    assert lines[2].startswith("queue database ready")
    assert "c.internal/shop: cannot connect" in lines
    assert any(line.startswith("2 x rotation: a.internal/shop: pid 1000") for line in lines)
    assert {line.split()[1] for line in lines if line.startswith("pod-")} == {
        "a.internal/shop",
        "b/shop",
    }


def lines_of_several(frames: list[Frame], down: dict[str, str]) -> list[str]:
    """Return what is shown of several databases on a large screen."""
    console = Console(width=160, height=40, color_system=None)
    with console.capture() as captured:
        console.print(render(frames, down, View(), 160, 40))
    return captured.get().splitlines()


def test_keys_sort_and_scroll() -> None:
    frame, view = frame_of(50, 9, 0), View()

    def names() -> list[int]:
        shown = [line for line in lines_of(frame, view, 160) if line.startswith("a-queue")]
        return [int(line.split()[0].rpartition("-")[2]) for line in shown]

    first = names()
    view.press("r")
    assert names()[:3] == [49, 48, 47]
    view.press("r")
    assert names()[:3] == [0, 1, 2]
    view.press("j")
    assert names()[:3] == [1, 2, 3]
    view.press("\x1b[F")
    assert names()[-1] == 49
    view.press("k")
    assert names()[-1] == 48
    view.press("\x1b[H")
    view.press("\x1b[6~")
    assert names()[0] == view.page
    view.press("n")
    assert names() == first
    view.press("\t")
    view.press("j")
    assert names() == first
    workers = [line for line in lines_of(frame, view, 160) if line.startswith("pod-")]
    assert workers[0].startswith("pod-6f7d9c-1.")


def test_the_help_names_all_keys() -> None:
    view = View()
    view.press("?")
    text = "\n".join(lines_of(frame_of(1, 1, 0), view))
    for one in QUEUES:
        assert not one.key or re.search(rf"^{one.key} +by {one.heading}$", text, re.MULTILINE)
    keys = [one.key for one in QUEUES if one.key]
    assert len(keys) == len(set(keys) - set("qjk?"))
    view.press("x")
    assert not view.shows_help


@pytest.mark.once
def test_top_obeys_keys_in_a_terminal_of_80_columns(dsn: dict[str, Any], server: Server) -> None:
    server.psql(
        "select pgq_create_queue('q' || n) from generate_series(1, 30) n;"
        "select pgq_enqueue('1', 'q' || n) from generate_series(1, 30) n, generate_series(1, n)",
        database=dsn["database"],
    )
    server.psql("select pgq_dequeue(1, '1 h', 'q1', 'ada')", database=dsn["database"])
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        [SCRIPT, "top", "--interval", "1h"],
        env={**os.environ, **variables(dsn), "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            first = read_until(ours, "ada")
            assert re.search(r"q18\b", first)
            assert "q30 " not in first
            for keys, text in (("r", "q30 "), ("?", "this help"), (" ", "q30 "), ("\x1b[F", "q1 ")):
                os.write(ours, keys.encode())
                read_until(ours, text)
            os.write(ours, b"q")
            read_until(ours, "\x1b[?1049l")
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            os.close(ours)


@pytest.mark.once
@pytest.mark.parametrize(
    "key", ["q", "xq\n", "\x1a", None], ids=["q", "line", "Ctrl-Z", "interrupt"]
)
def test_top_runs_in_a_terminal_until_a_key(
    dsn: dict[str, Any], server: Server, key: str | None
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    with subprocess.Popen(
        [SCRIPT, "top", "--interval", "100ms"],
        env={**os.environ, **variables(dsn), "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            read_until(ours, "oldest")
            server.psql("select pgq_create_queue('early')", database=dsn["database"])
            read_until(ours, "early")
            server.psql(
                "select pgq_create_queue('late'), pg_terminate_backend(pid)"
                "  from pg_stat_activity where application_name = 'pgq top'",
                database=dsn["database"],
            )
            read_until(ours, "late")
            if key is None:
                process.send_signal(signal.SIGINT)
            else:
                os.write(ours, key.encode())
            read_until(ours, "\x1b[?1049l")
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            os.close(ours)


# doctor


def of(found: list[dict[str, Any]], check: str) -> list[dict[str, Any]]:
    return [finding for finding in found if finding["check"] == check]


def examine(cli: Cli, status: int, *args: str) -> list[dict[str, Any]]:
    result = cli.run("doctor", "--json", *args)
    assert result.exit_code == status, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_healthy_server_has_no_problem(cli: Cli, server: Server, dsn: dict[str, Any]) -> None:
    found = examine(cli, 0)
    warned = [finding["detail"] for finding in found if finding["status"] != "ok"]
    if server.major > 18:
        assert of(found, "server")[0]["advice"] == "pgq is tested with PostgreSQL 14 to 18"
        warned.remove(of(found, "server")[0]["detail"])
    assert warned == ["fsync is off"], "as the server of the tests is set"
    assert of(found, "server")[0]["detail"].endswith(f"database {dsn['database']}, role postgres")
    assert of(found, "privileges")[0]["detail"] == "the role may enqueue, consume, manage, observe"
    shown = cli.ok("doctor")
    assert re.search(r"^ok +extension: ", shown, re.MULTILINE)
    assert re.search(r"^warning +settings: fsync is off\n +A crash", shown, re.MULTILINE)
    examine(cli, 1, "--strict")


async def test_a_held_transaction_is_named_by_its_pid(
    cli: Cli, a: Connection, b: Connection
) -> None:
    await a.execute("begin isolation level repeatable read; select pgq_enqueue('1')")
    await b.execute("begin; select pgq_enqueue('1'); prepare transaction 'stale'")
    try:
        found = of(await asyncio.to_thread(examine, cli, 0, NO_TIME), "obstacles")
        pid = a.get_server_pid()
        [held] = [one for one in found if f"pid {pid}," in one["detail"]]
        assert held["status"] == "warning"
        assert "slot in use" in held["detail"]
        assert "xmin held" in held["detail"]
        assert "select pgq_enqueue('1')" in held["detail"]
        assert held["advice"].endswith(f"pg_terminate_backend({pid})")
        [prepared] = [one for one in found if '"stale"' in one["detail"]]
        assert "roll it back" in prepared["advice"]
        found = of(await asyncio.to_thread(examine, cli, 0), "obstacles")
        assert [one["status"] for one in found] == ["ok"], "they are young"
    finally:
        await b.execute("rollback prepared 'stale'")


def test_a_replication_slot_that_nobody_uses_is_named() -> None:
    row = {"subject": "xmin held", "status": "ok", "age": None, "pid": None, "query": None}
    unused = {**row, "detail": 'by the replication slot "left", 9 transactions'}
    in_use = {**row, "detail": 'by the replication slot "fed", 2 transactions', "pid": 42}
    hidden = {**row, "status": "unknown", "detail": "by a session, 2 transactions", "pid": 43}
    rows: list[dict[str, Any]] = [unused, in_use, hidden]
    facts = Facts(datetime.now(UTC), [], {}, [], [], [], rows, [], [], {})
    [finding] = in_the_way(facts, timedelta(minutes=1))
    assert '"left"' in finding.detail
    assert "drop the replication slot" in (finding.advice or "")
    facts = replace(facts, health=[{**in_use, "status": "warning"}])
    [finding] = in_the_way(facts, timedelta(minutes=1))
    assert '"fed"' in finding.detail
    assert "drop the replication slot" in (finding.advice or "")


async def test_it_is_said_when_sessions_cannot_be_seen(cli: Cli, connection: Connection) -> None:
    await connection.execute("""
        create or replace view pgq_health as
        select s.subject, s.status, '"keeper" may not see what others do' as detail,
               null::interval as age, s.pid, null::text as query
          from (values ('sessions', 'unknown', null), ('xmin held', 'unknown', 42))
               s (subject, status, pid)
    """)
    found = await asyncio.to_thread(examine, cli, 0)
    [sessions] = of(found, "sessions")
    assert sessions["status"] == "warning"
    assert "pg_read_all_stats" in sessions["advice"]
    values = samples(await asyncio.to_thread(cli.ok, "metrics", "--once"))
    assert values["pgq_health_unknown", ()] == 1
    assert values["pgq_health_warnings", (("subject", "xmin held"),)] == 0
    assert "may not see what others do" in await asyncio.to_thread(cli.ok, "top", "--once")


async def test_stuck_queues_are_named(cli: Cli, connection: Connection) -> None:
    await enqueue(connection, 2)
    await connection.execute(
        "select pgq_fail(id, token, 'x', retryable => false) from pgq_dequeue()"
    )
    details = [
        finding["detail"]
        for finding in of(
            await asyncio.to_thread(examine, cli, 0, "--max-ready-age", "0"), "queues"
        )
    ]
    assert "has been ready for" in details[0]
    assert details[1] == "default: 1 dead job"
    await connection.execute("select pgq_pause('default')")
    found = of(await asyncio.to_thread(examine, cli, 0), "queues")
    assert (found[0]["detail"], found[0]["advice"]) == (
        "default is paused, 1 ready",
        "pgq resume default",
    )


async def test_a_queue_that_has_reached_its_limit_is_told_from_one_without_workers(
    cli: Cli, connection: Connection
) -> None:
    await enqueue(connection, 2)
    await connection.execute(
        "select pgq_configure_queue('default', max_active => 2);"
        "select pgq_dequeue(1, '1 hour', worker => 'ada')"
    )
    args = ("--max-ready-age", "0")
    [finding] = of(await asyncio.to_thread(examine, cli, 0, *args), "queues")
    assert finding["advice"] == "Are there enough workers? pgq workers"
    assert "max-active" not in finding["detail"]
    await connection.execute("select pgq_configure_queue('default', max_active => 1)")
    [finding] = of(await asyncio.to_thread(examine, cli, 0, *args), "queues")
    assert re.fullmatch(
        r"default: the oldest of 1 job has been ready for .*,"
        r" and as many are active as its max-active allows, 1",
        finding["detail"],
    )
    assert "--max-active" in finding["advice"]


async def test_settings_that_pgq_cannot_work_with_are_problems(
    cli: Cli, connection: Connection, dsn: dict[str, Any]
) -> None:
    name = dsn["database"]
    await connection.execute(
        f"alter database {name} set default_transaction_isolation = 'serializable';"
        f"alter database {name} set synchronous_commit = 'off'"
    )
    found = of(await asyncio.to_thread(examine, cli, 1), "settings")
    assert {finding["detail"]: finding["status"] for finding in found} == {
        "default_transaction_isolation is serializable": "problem",
        "synchronous_commit is off": "warning",
        "fsync is off": "warning",
    }


def test_what_cannot_be_reached_or_is_not_installed_is_a_problem(cli: Cli, server: Server) -> None:
    [finding] = examine(cli, 1, "--dsn", "postgresql://nobody@127.0.0.1:1/none")
    assert finding["check"] == "connection"
    bare = Cli({**cli.environment, "PGDATABASE": "postgres"})
    [finding] = of(examine(bare, 1), "extension")
    assert finding["advice"] == "pgq install"
    server.psql("create schema pgq; create table pgq.tick ()", database="postgres")
    try:
        [finding] = of(examine(bare, 1), "extension")
        assert "Skytools" in finding["detail"]
        assert "Skytools" in bare.fails(3, "install")
    finally:
        server.psql("drop schema pgq cascade", database="postgres")


def test_a_role_that_may_do_nothing_is_a_problem(cli: Cli, server: Server) -> None:
    server.psql("create role stranger login")
    try:
        found = examine(Cli({**cli.environment, "PGUSER": "stranger"}), 1)
        assert of(found, "privileges")[0]["status"] == "problem"
        assert "could not look" in of(found, "queues")[0]["detail"]
    finally:
        server.psql("drop role stranger")


# metrics


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@asynccontextmanager
async def serving(dsn: dict[str, Any]) -> AsyncGenerator[tuple[Running, Callable[[str], Any]]]:
    """Serve metrics; yields the process, and a function that gets a path."""
    async with running(dsn, "metrics", "--listen", "127.0.0.1:0") as process:
        line = await process.until(lambda line: "serving" in line)
        base = line.split()[1].removesuffix("/metrics")

        def get(path: str) -> str:
            with urllib.request.urlopen(base + path, timeout=PATIENCE) as answer:
                text: str = answer.read().decode()
                return text

        yield process, get


@pytest.mark.once
async def test_metrics_are_served_and_go_on_when_the_server_comes_back(
    server: Server, dsn: dict[str, Any], connection: Connection
) -> None:
    await enqueue(connection, 3)
    await connection.execute("select pgq_dequeue(1, '1 hour', worker => 'ada')")
    default = (("queue", "default"),)
    async with serving(dsn) as (process, get):
        found = samples(await asyncio.to_thread(get, "/metrics"))
        assert found["pgq_up", ()] == 1
        assert found["pgq_queue_jobs", (*default, ("state", "ready"))] == 2
        assert found["pgq_queue_jobs", (*default, ("state", "active"))] == 1
        assert found["pgq_workers", default] == 1
        assert found["pgq_workers_leases", default] == 1
        assert 0 < found["pgq_queue_oldest_ready_age_seconds", default] < 600
        assert found["pgq_queue_completed_last_minute", default] == 0
        assert found["pgq_rotation_age_seconds", ()] >= 0
        assert found["pgq_health_warnings", (("subject", "rotation"),)] == 0
        assert found["pgq_obstacle_age_seconds", (("subject", "xmin held"),)] >= 0
        assert found["pgq_health_unknown", ()] == 0
        assert found["pgq_storage_bytes", (("part", "jobs"),)] > 0
        assert await asyncio.to_thread(get, "/health") == "ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            await asyncio.to_thread(get, "/other")
        missing.value.close()
        server.stop()
        try:
            # What was read a moment ago is good for a second.
            while (found := samples(await asyncio.to_thread(get, "/metrics")))["pgq_up", ()]:
                pass
            assert found == {("pgq_up", ()): 0}
            with pytest.raises(urllib.error.HTTPError, match="503") as failing:
                await asyncio.to_thread(get, "/health")
            failing.value.close()
        finally:
            server.start()
        assert samples(await asyncio.to_thread(get, "/metrics"))["pgq_up", ()] == 1
        assert await process.terminated() == 0


async def test_a_client_that_hangs_up_is_no_error(dsn: dict[str, Any]) -> None:
    async with serving(dsn) as (process, get):
        address = re.search(r"//([\d.]+):(\d+)/", process.lines[-1])
        assert address is not None
        with socket.create_connection((address[1], int(address[2]))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        # One is answered after the other.
        assert samples(await asyncio.to_thread(get, "/metrics"))["pgq_up", ()] == 1
        assert await process.terminated() == 0
        assert "Traceback" not in "\n".join(process.lines)


async def test_a_locked_slot_does_not_hold_up_a_scrape(cli: Cli, a: Connection) -> None:
    await a.execute("begin; lock table pgq.job_0 in access exclusive mode")
    text = await asyncio.to_thread(cli.ok, "metrics", "--once")
    assert samples(text)["pgq_up", ()] == 1


def test_metrics_are_printed_once_also_without_a_server(cli: Cli) -> None:
    assert samples(cli.ok("metrics", "--once"))["pgq_up", ()] == 1
    away = cli.run("metrics", "--once", "--dsn", "postgresql://nobody@127.0.0.1:1/none")
    assert away.exit_code == 0
    assert samples(away.stdout) == {("pgq_up", ()): 0}
    assert "cannot connect" in away.stderr


async def test_what_is_advised_can_be_copied_whatever_the_queue_is_called(
    cli: Cli, connection: Connection
) -> None:
    name = "ev\x1b]0;il\x07; touch x"
    await connection.execute("select pgq_create_queue($1)", name)
    await connection.execute("select pgq_enqueue('1', $1), pgq_pause($1)", name)
    found = of(await asyncio.to_thread(examine, cli, 0), "queues")
    assert found[0]["advice"] == f"pgq resume '{name}'"
    shown = await asyncio.to_thread(cli.run, "doctor")
    assert "touch x" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "\x07" not in shown.stdout


async def test_a_scrape_does_not_wait_for_ever_behind_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def read(_: Settings) -> None:
        begun.set()
        await asyncio.to_thread(ended.wait, PATIENCE)
        raise TimeoutError

    monkeypatch.setattr("pgq._cli.exporter._read", read)
    monkeypatch.setattr("pgq._cli.exporter._CALL_SECONDS", 0.05)

    def health(port: int) -> tuple[int, str]:
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
        return raised.value.code, raised.value.read().decode()

    with exporting() as port:
        first = asyncio.create_task(asyncio.to_thread(health, port))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        answer = (503, "the server did not answer in time\n")
        assert await asyncio.to_thread(health, port) == answer
        assert not first.done()
        ended.set()
        assert (await first)[0] == 503


def counted(monkeypatch: pytest.MonkeyPatch, begun: threading.Event, go_on: threading.Event) -> Any:
    """Let scrapes find nothing, when they are told to go on; returns the list of their numbers."""
    reads: list[int] = []

    async def read(_: Settings) -> dict[str, exporter.Rows]:
        reads.append(len(reads))
        begun.set()
        await asyncio.to_thread(go_on.wait, PATIENCE)
        server = {"extension": "1", "version": "1", "now": None}
        return {"server": [server], "queues": [], "workers": [], "health": [], "sizes": []}

    monkeypatch.setattr("pgq._cli.exporter._read", read)
    return reads


@contextmanager
def exporting() -> Generator[int]:
    """Serve metrics in this process; yields the port."""
    with web.serving(exporter.pages(Settings()), "127.0.0.1", 0) as where:
        yield int(where.rpartition(":")[2])


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        return samples(answer.read().decode())


async def test_scrapes_at_once_share_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    reads = counted(monkeypatch, begun, go_on)
    monkeypatch.setattr("pgq._cli.exporter._FRESH_SECONDS", PATIENCE)
    with exporting() as port:
        scrapes = [asyncio.create_task(asyncio.to_thread(scrape, port)) for _ in range(10)]
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        go_on.set()
        for found in await asyncio.gather(*scrapes):
            assert found["pgq_up", ()] == 1
    assert reads == [0]


def test_a_reading_that_is_old_or_failed_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    go_on.set()
    reads = counted(monkeypatch, begun, go_on)
    monkeypatch.setattr("pgq._cli.exporter._FRESH_SECONDS", 0.0)
    with exporting() as port:
        assert scrape(port)["pgq_up", ()] == 1
        assert scrape(port)["pgq_up", ()] == 1
        assert reads == [0, 1]
        monkeypatch.setattr("pgq._cli.exporter._FRESH_SECONDS", PATIENCE)
        with monkeypatch.context() as patch:

            async def fail(_: Settings) -> None:
                raise OSError("away")

            patch.setattr("pgq._cli.exporter._read", fail)
            assert scrape(port) == {("pgq_up", ()): 0}
        assert scrape(port)["pgq_up", ()] == 1
    assert reads == [0, 1, 2]


def test_a_reading_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(_: Settings) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("pgq._cli.exporter._read", read)
    monkeypatch.setattr("pgq._cli.exporter._CALL_SECONDS", 0.05)
    with exporting() as port:
        assert scrape(port) == {("pgq_up", ()): 0}


def test_clients_that_say_nothing_do_not_take_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    go_on.set()
    counted(monkeypatch, begun, go_on)
    monkeypatch.setattr("pgq._cli.web._MOST_REQUESTS", 2)
    with exporting() as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        with pytest.raises(OSError):  # noqa: PT011 -- closed, at whatever moment
            scrape(port)
        for one in silent:
            one.close()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                assert scrape(port)["pgq_up", ()] == 1
                break
            except OSError:
                assert time.monotonic() < deadline


# Several databases


@pytest.fixture(name="several")
def databases(dsn: dict[str, Any], tmp_path: Path) -> list[str]:
    """The arguments that name a database with the extension, one without, and one that is down."""
    places = [
        (dsn["database"], dsn["host"]),
        ("postgres", dsn["host"]),
        (dsn["database"], str(tmp_path)),
    ]
    return [
        argument
        for name, host in places
        for argument in ("--dsn", url_of(dsn, database=name, host=host))
    ]


def names_of(several: list[str]) -> list[str]:
    return [name_of(url) for url in several[1::2]]


def test_the_name_of_a_database_tells_where_it_is_and_no_secret() -> None:
    assert name_of("postgresql://ada:secret@a.internal:5433/shop") == "a.internal:5433/shop"
    assert name_of("postgresql:///shop?host=/tmp/x&port=5433&password=secret") == "/tmp/x:5433/shop"
    assert name_of("postgresql://a:1,b:2/shop?target_session_attrs=primary") == "a:1,b:2/shop"


def test_top_shows_several_databases_and_which_is_down(cli: Cli, several: list[str]) -> None:
    ours, other, down = names_of(several)
    frame = cli.ok("top", "--once", *several)
    assert re.search(rf"^default +{re.escape(ours)} +0 ", frame, re.MULTILINE)
    assert re.search(rf"^{re.escape(other)}: .*pgq install", frame, re.MULTILINE)
    assert re.search(rf"^{re.escape(down)}: cannot connect", frame, re.MULTILINE)
    first, *rest = cli.json("top", *several)
    assert (first["database"], first["queues"][0]["queue"]) == (ours, "default")
    assert [row["database"] for row in rest] == [other, down]
    assert "cannot connect" in rest[1]["down"]
    assert "twice" in cli.fails(2, "top", "--once", *several, *several[:2])
    assert "cannot connect" in cli.fails(3, "top", "--once", *several[-2:])


def test_the_doctor_looks_at_each_database(cli: Cli, several: list[str]) -> None:
    ours, other, down = names_of(several)
    found = examine(cli, 1, *several)
    problems = [(one["database"], one["check"]) for one in found if one["status"] == "problem"]
    assert problems == [(other, "extension"), (down, "connection")]
    alone = examine(cli, 0)
    assert [one["check"] for one in found if one["database"] == ours] == [
        one["check"] for one in alone
    ]
    shown = cli.run("doctor", *several).stdout.splitlines()
    assert [line for line in shown if line in (ours, other, down)] == [ours, other, down]


def test_metrics_of_several_databases_name_them(cli: Cli, several: list[str]) -> None:
    ours, other, down = names_of(several)
    found = samples(cli.ok("metrics", "--once", *several))
    up = {name: found["pgq_up", (("database", name),)] for name in (ours, other, down)}
    assert up == {ours: 1, other: 0, down: 0}
    assert (
        found["pgq_queue_jobs", (("database", ours), ("queue", "default"), ("state", "ready"))] == 0
    )
    assert {dict(labels)["database"] for name, labels in found if name != "pgq_up"} == {ours}


def test_a_silent_database_takes_no_metrics_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()

    async def read(options: Settings) -> dict[str, exporter.Rows]:
        if "silent" in str(options.dsn):
            await asyncio.to_thread(ended.wait, PATIENCE)
        server = {"extension": "1", "version": "1", "now": None}
        return {"server": [server], "queues": [], "workers": [], "health": [], "sizes": []}

    monkeypatch.setattr("pgq._cli.exporter._read", read)
    monkeypatch.setattr("pgq._cli.exporter._CALL_SECONDS", 4)
    options = Settings(dsn="postgresql://silent/shop postgresql://a/shop")
    try:
        with web.serving(exporter.pages(options), "127.0.0.1", 0) as where:
            found = scrape(int(where.rpartition(":")[2]))
            assert found["pgq_up", (("database", "silent/shop"),)] == 0
            assert found["pgq_up", (("database", "a/shop"),)] == 1
            with urllib.request.urlopen(f"{where}/health", timeout=PATIENCE) as answer:
                assert answer.read().startswith(b"silent/shop: the server did not answer")
    finally:
        ended.set()
