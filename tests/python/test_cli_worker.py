"""`pgq worker`: in one process, in several, and with --reload."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pgq
import pytest
from pgq._cli.supervisor import Supervisor
from pgserver import Server

from .cli_session import Running, running
from .conftest import TEMPLATE
from .pages import read, snippets
from .sessions import Connection, until, within
from .sessions import started as begun
from .workers import is_alive, is_gone

pytestmark = pytest.mark.once
DOCS = read("docs/cli.md")
SHOP = """
import asyncio, contextlib, logging, os, pathlib, time
import pgq

log = logging.getLogger("shop")


async def work(job):
    log.info("worked on %s", job.payload, extra={"job": job.id})
    if job.payload == "hang":
        await asyncio.Event().wait()


@pgq.task("default")
async def wait(job):
    log.info("waits")
    while not pathlib.Path(job.payload).exists():
        await asyncio.sleep(0.01)


@pgq.task("default", process=True)
def grind(job):
    pathlib.Path(f"{job.payload}.pid").write_text(str(os.getpid()))
    while not pathlib.Path(job.payload).exists():
        time.sleep(0.01)


worker = pgq.Worker(tasks=[wait, grind])
worker.handler("default")(work)


def make(pool):
    worker = pgq.Worker(pool)
    worker.handler("default")(work)
    return worker


@contextlib.asynccontextmanager
async def managed(pool):
    log.info("opened")
    yield make(pool)
    log.info("closed")


def fail(pool):
    raise LookupError("no bank")


def wrong(pool):
    return 1


async def coroutine(pool):
    return make(pool)


def no_pool():
    return none


class App:
    # What a web server runs.

    async def __call__(self, scope, receive, send):
        raise LookupError("no server")


app = App()
none = pgq.Worker()
number = 1
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with a module."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    return tmp_path


async def has_run(running: Running, payload: object) -> dict[str, Any]:
    return await running.logged(f'"worked on {payload}"')


async def started(running: Running) -> int:
    """Return the process that the supervisor starts next."""
    line = await running.logged('"message": "process [0-9]+ starts"')
    return int(line["message"].split()[1])


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_worker_works_off_several_databases(
    dsn: dict[str, Any], server: Server, queue: pgq.Queue, shop: Path, processes: str
) -> None:
    here, there = dsn["database"], f"{dsn['database']}_there"
    server.psql(f"create database {there} template {TEMPLATE}")
    await queue.enqueue("here")
    server.psql("select pgq_enqueue('\"there\"')", database=there)
    databases = ["--dsn", f"postgresql:///{here}", "--dsn", f"postgresql:///{there}"]
    options = [*databases, "--processes", processes, "--log-json"]
    async with running(dsn, "worker", "shop:worker", *options, cwd=shop) as worker:
        lines = [await has_run(worker, "(here|there)") for _ in range(2)]
        assert {line["message"] for line in lines} == {"worked on here", "worked on there"}
        assert await worker.terminated() == 0
    async with running(dsn, "worker", "shop:make", *databases, cwd=shop) as worker:
        assert await worker.ended() == 2
        assert "several databases need a pgq.Worker" in worker.lines[-1]
    server.psql(f"drop database {there} with (force)")


@pytest.mark.parametrize("attribute", ["worker", "make", "managed"])
async def test_a_worker_runs_jobs_until_sigterm(
    dsn: dict[str, Any], queue: pgq.Queue, shop: Path, attribute: str
) -> None:
    job_id = await queue.enqueue("one")
    async with running(dsn, "worker", f"shop:{attribute}", "--log-json", cwd=shop) as worker:
        line = await has_run(worker, "one")
        assert (line["job"], line["logger"], line["level"]) == (job_id, "shop", "info")
        assert line["process"] == worker.process.pid
        assert await worker.terminated() == 0
    job = await queue.get(job_id)
    assert job is not None
    assert job.state == "completed"
    messages = [json.loads(text)["message"] for text in worker.lines]
    assert ("closed" in messages) == (attribute == "managed")


async def test_the_worker_of_the_documentation_runs(
    dsn: dict[str, Any], connection: Connection, tmp_path: Path
) -> None:
    [module] = [code for code in snippets(DOCS, "python") if code.startswith("# shop.py\n")]
    (tmp_path / "shop.py").write_text(module, encoding="utf-8")
    queue = pgq.Queue(connection, "emails")
    await pgq.Admin(connection).create_queue(queue.name)
    job_id = await queue.enqueue({"to": "ada@example.org"})

    async def is_completed() -> bool:
        job = await queue.get(job_id)
        return job is not None and job.state == "completed"

    async with running(dsn, "worker", "shop:worker", cwd=tmp_path) as worker:
        await until(is_completed)
        assert await worker.terminated() == 0


async def test_the_log_is_readable_lines_with_the_extra_fields(
    dsn: dict[str, Any], queue: pgq.Queue, shop: Path
) -> None:
    job_id = await queue.enqueue("one")
    async with running(dsn, "worker", "shop:worker", cwd=shop) as worker:
        line = await worker.until(lambda line: "worked on one" in line)
        assert line.endswith(f" INFO    [{worker.process.pid}] worked on one job={job_id}\n")
        assert await worker.terminated() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_second_signal_ends_it_at_once_and_gives_the_jobs_back(
    dsn: dict[str, Any], queue: pgq.Queue, shop: Path, processes: str
) -> None:
    job_id = await queue.enqueue("hang")
    args = ("worker", "shop:worker", "--log-json", "--processes", processes)
    async with running(dsn, *args, cwd=shop) as worker:
        await has_run(worker, "hang")
        worker.process.send_signal(signal.SIGINT)
        assert await worker.terminated() == 0
    job = await queue.get(job_id)
    assert job is not None
    assert (job.state, job.attempt) == ("ready", 0)


NO_WORKERS = {
    "shop": "not module:attribute",
    "nowhere:worker": "No module named 'nowhere'",
    "shop:missing": "has no attribute 'missing'",
    "shop:number": "nor a function that takes a pool: its type is int. Name a worker",
    "shop:wait": "neither a pgq.Worker nor a function",
    "shop:app": "nor a function that takes a pool: its type is App. Name a worker",
    "shop:no_pool": "neither a pgq.Worker nor a function",
    "shop:wrong": "the function returned 1",
    "shop:coroutine": "a coroutine function: make it a plain function",
    "shop:none": "the worker has no handler",
    "broken:worker": "ZeroDivisionError: division by zero",
    "shop:worker --schema public": "Worker(schema=",
}


async def test_what_is_no_worker_is_wrong_usage(dsn: dict[str, Any], shop: Path) -> None:
    (shop / "broken.py").write_text("1 / 0\n", encoding="utf-8")

    async def fails(target: str, message: str) -> None:
        async with running(dsn, "worker", *target.split(), cwd=shop) as worker:
            assert await worker.ended() == 2
            assert message in worker.lines[-1]
            assert "Traceback" not in "".join(worker.lines)
            assert "Warning" not in "".join(worker.lines)

    await asyncio.gather(*(fails(*case) for case in NO_WORKERS.items()))


FAILING_IMPORTS = {
    "import pgq\n\n@pgq.task('default')\ndef send():\n    pass\n": "{module}, line 3)",
    "import pgq\n\nimport no_such_module\n": "{module}, line 3)",
}


@pytest.mark.parametrize("code", FAILING_IMPORTS)
async def test_an_import_that_fails_names_the_line_of_the_user(
    dsn: dict[str, Any], tmp_path: Path, code: str
) -> None:
    module = tmp_path / "photos.py"
    module.write_text(code, encoding="utf-8")
    async with running(dsn, "worker", "photos:worker", cwd=tmp_path) as worker:
        assert await worker.ended() == 2
        assert FAILING_IMPORTS[code].format(module=module) in worker.lines[-1]


async def test_a_module_that_is_not_found_was_looked_for_from_here(
    dsn: dict[str, Any], tmp_path: Path
) -> None:
    async with running(dsn, "worker", "photos:worker", cwd=tmp_path) as worker:
        assert await worker.ended() == 2
        assert "No module named 'photos'" in worker.lines[-1]
        assert f"from the current directory, {tmp_path})" in worker.lines[-1]


async def test_a_worker_that_cannot_work_says_why(
    dsn: dict[str, Any], connection: Connection, shop: Path
) -> None:
    await pgq.Admin(connection).drop_queue("default")
    async with running(dsn, "worker", "shop:worker", cwd=shop) as worker:
        assert await worker.ended() == 1
        assert 'queue "default" does not exist. Hint: ' in worker.lines[-1]
    args = ("worker", "shop:worker", "--dsn", "postgresql://nobody@127.0.0.1:1/none")
    async with running(dsn, *args, cwd=shop) as worker:
        assert await worker.ended() == 3
        assert "cannot be reached" in worker.lines[-1]


# Several processes


async def test_a_process_that_is_killed_is_started_again(
    dsn: dict[str, Any], queue: pgq.Queue, shop: Path
) -> None:
    args = ("worker", "shop:worker", "--log-json", "--processes", "2")
    async with running(dsn, *args, cwd=shop) as worker:
        pids = [await started(worker) for _ in range(2)]
        os.kill(pids[0], signal.SIGKILL)
        line = await worker.logged(f"process {pids[0]} ended with -9")
        assert line["level"] == "warning"
        pids[0] = await started(worker)
        await queue.enqueue("one")
        assert (await has_run(worker, "one"))["process"] in pids
        assert await worker.terminated() == 0
    assert not any(map(is_alive, pids))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def is_pending(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    masks = [line.split()[1] for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


async def signalled(pid: int, number: signal.Signals) -> None:
    """Send a signal, and wait until the process has it."""
    os.kill(pid, number)

    async def has_it() -> bool:
        return not is_pending(pid, number)

    await until(has_it)


@pytest.mark.parametrize(
    ("processes", "number", "last"),
    [
        ("1", signal.SIGTERM, "handlers"),
        ("2", signal.SIGTERM, "handlers"),
        ("2", signal.SIGTERM, "supervisor"),
        ("2", signal.SIGINT, "handlers"),
    ],
)
async def test_handlers_finish_when_all_processes_get_the_signal(
    dsn: dict[str, Any],
    queue: pgq.Queue,
    shop: Path,
    *,
    processes: str,
    number: signal.Signals,
    last: str,
) -> None:
    gate, told = shop / "gate", shop / "gate.pid"
    job_ids = [await queue.enqueue(str(gate), headers={"task": task}) for task in ("wait", "grind")]
    args = ("worker", "shop:worker", "--log-json", "--processes", processes)
    async with running(dsn, *args, cwd=shop) as worker:
        waiting = int((await worker.logged('"waits"'))["process"])

        async def grinding() -> str:
            return told.read_text(encoding="utf-8") if told.exists() else ""

        grinder = int(await until(grinding))
        pids = [worker.process.pid, waiting, parent_of(grinder), grinder]
        for pid in dict.fromkeys(reversed(pids) if last == "supervisor" else pids):
            await signalled(pid, number)
        gate.touch()
        assert await worker.ended() == 0
    jobs = [await queue.get(job_id) for job_id in job_ids]
    assert [(job.state, job.attempt) for job in jobs if job] == [("completed", 1)] * 2


BLOCKED = """
import logging, time
from datetime import timedelta
import pgq
from pgq._worker import run as _run

_run._SETTLE_SECONDS = _run._CANCEL_SECONDS = 0.5
worker = pgq.Worker(grace=timedelta(seconds=0.5))

@worker.handler("default")
async def block(job):
    logging.getLogger("pgq").warning("blocks")
    time.sleep(600)
"""


async def test_a_process_whose_event_loop_is_blocked_ends_in_time_nevertheless(
    dsn: dict[str, Any], queue: pgq.Queue, shop: Path
) -> None:
    (shop / "blocked.py").write_text(BLOCKED, encoding="utf-8")
    await queue.enqueue(1)
    args = ("worker", "blocked:worker", "--log-json", "--processes", "2")
    async with running(dsn, *args, cwd=shop) as worker:
        blocked = (await worker.logged('"blocks"'))["process"]
        await worker.terminated()
        await is_gone(blocked)


CLEANS_UP = """
import asyncio, contextlib, logging, pathlib
import shop

@contextlib.asynccontextmanager
async def make(pool):
    yield shop.make(pool)
    logging.getLogger("pgq").info("cleans up")
    while not pathlib.Path("gate").exists():
        await asyncio.sleep(0.01)
    logging.getLogger("pgq").info("is clean")
"""


async def test_a_second_signal_does_not_end_what_cleans_up_after_a_worker(
    dsn: dict[str, Any], shop: Path
) -> None:
    (shop / "tidy.py").write_text(CLEANS_UP, encoding="utf-8")
    args = ("worker", "tidy:make", "--log-json", "--processes", "2")
    async with running(dsn, *args, cwd=shop) as worker:
        pids = [int((await worker.logged("has started"))["process"]) for _ in range(2)]
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        for _ in pids:
            await worker.logged("cleans up")
        for pid in (worker.process.pid, *pids):
            await signalled(pid, signal.SIGTERM)
        (shop / "gate").touch()
        assert await worker.ended() == 0
    assert "".join(worker.lines).count("is clean") == 2


async def test_processes_stop_when_their_parent_is_gone(
    dsn: dict[str, Any], queue: pgq.Queue, shop: Path
) -> None:
    await queue.enqueue("one")
    args = ("worker", "shop:worker", "--log-json", "--processes", "2")
    async with running(dsn, *args, cwd=shop) as worker:
        child = (await has_run(worker, "one"))["process"]
        assert child != worker.process.pid
        worker.process.kill()
        await is_gone(child)


@pytest.mark.parametrize("target", ["shop:number", "nowhere:worker"])
async def test_a_target_that_is_no_worker_ends_all_processes(
    dsn: dict[str, Any], shop: Path, target: str
) -> None:
    async with running(dsn, "worker", target, "--processes", "2", cwd=shop) as worker:
        assert await worker.ended() == 2
        assert NO_WORKERS[target] in "".join(worker.lines)


# What is started before four have failed, fails.
FAILS_AT_FIRST = """
import pathlib, shop

def make(pool):
    for number in range(4):
        try:
            pathlib.Path(f"failed-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        shop.fail(pool)
    return shop.make(pool)
"""


async def test_a_process_that_fails_is_started_again_after_a_pause_that_grows(
    dsn: dict[str, Any], shop: Path
) -> None:
    (shop / "flaky.py").write_text(FAILS_AT_FIRST, encoding="utf-8")
    args = ("worker", "flaky:make", "--log-json", "--processes", "2")
    async with running(dsn, *args, cwd=shop) as worker:
        await worker.until(lambda line: "pgq: LookupError: no bank" in line)
        await worker.logged(r"ended with 1: starting another in 0\.5 s")
        await worker.logged(r"ended with 1: starting another in 1\.0 s")
        for _ in range(2):
            await worker.logged(r'"message": "worker [^"]+ has started"')
        assert await worker.terminated() == 0


# The second process tells the first one that it is there, and ends as that when it is to stop.
BOTH_FAIL = """
import os, pathlib, signal, time

signal.signal(signal.SIGTERM, lambda *_: os._exit(2))
try:
    pathlib.Path("first").touch(exist_ok=False)
except FileExistsError:
    pathlib.Path("second").touch()
    while True:
        time.sleep(0.01)  # not pause(), before which the signal may come
while not pathlib.Path("second").exists():
    time.sleep(0.01)
os._exit(2)
"""


async def test_the_status_of_wrong_usage_stays_whatever_the_others_end_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    supervisor = Supervisor((sys.executable, "-c", BOTH_FAIL), os.environ, 2)
    assert await within(supervisor.run()) == 2


async def test_a_target_that_is_no_worker_any_more_ends_no_process_that_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pgq._cli.supervisor._SETTLED_SECONDS", 0.0)
    command = (sys.executable, "-c", "raise SystemExit(2)")
    supervisor = Supervisor(command, os.environ, 1)

    async def is_started_again() -> bool:
        return "ended with 2: starting another" in caplog.text

    async with begun(supervisor.run()) as run:
        await until(is_started_again)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await within(run) == 0


async def test_a_process_that_cannot_be_started_ends_no_process_that_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr("pgq._cli.supervisor._SETTLED_SECONDS", 0.0)
    program = tmp_path / "program"
    program.symlink_to("/bin/false")
    supervisor = Supervisor((str(program),), os.environ, 1)

    async def tells(text: str) -> bool:
        return text in caplog.text

    async with begun(supervisor.run()) as run:
        await until(lambda: tells("ended with 1: starting another"))
        program.unlink()
        await until(lambda: tells("cannot be started, trying again"))
        program.symlink_to("/bin/false")
        caplog.clear()
        await until(lambda: tells("ended with 1: starting another"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert await within(run) == 0


# Reload


async def changes(worker: Running, module: Path, text: str) -> None:
    """Write a module until the change is seen: the watch may begin after the process."""
    seen = asyncio.create_task(worker.logged("files have changed"))
    while not seen.done():
        await asyncio.to_thread(module.write_text, text, encoding="utf-8")
        await asyncio.wait([seen], timeout=0.5)
    await seen


async def test_reload_starts_again_when_a_python_file_changes(
    dsn: dict[str, Any], queue: pgq.Queue, shop: Path
) -> None:
    module = shop / "shop.py"
    async with running(dsn, "worker", "shop:worker", "--log-json", "--reload", cwd=shop) as worker:
        await changes(worker, module, SHOP.replace("worked on", "toiled on"))
        await queue.enqueue("one")
        await worker.logged("toiled on one")
        await changes(worker, module, "1 / 0")
        await worker.logged("ended with 2: waiting for changes")
        await changes(worker, module, SHOP)
        await queue.enqueue("two")
        await has_run(worker, "two")
        assert await worker.terminated() == 0
