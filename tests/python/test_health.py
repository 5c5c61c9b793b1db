"""`pgq worker --health`: what probes and metrics tell of a worker, whatever has happened to it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pgq
import pytest
from pgq._cli.errors import Failure
from pgq._cli.probes import Probes
from pgq._cli.web import serving
from pgq._worker.health import STATUSES
from pgserver import PATIENCE, Server
from prometheus_client.parser import text_string_to_metric_families

from .cli_session import Cli, Running, running, variables
from .pages import read
from .sessions import until

pytestmark = pytest.mark.once

SHOP = """
import asyncio, pathlib, time
import pgq
from pgq._worker import watch

watch._PAUSE_SECONDS, watch._BLOCKED_SECONDS = 0.05, 0.5
gate = pathlib.Path("gate")


@pgq.task("default")
async def block(job):
    while not gate.exists():
        time.sleep(0.01)


@pgq.task("default")
async def wait(job):
    while not gate.exists():
        await asyncio.sleep(0.01)


@pgq.task("default")
async def work(job):
    if job.payload == "fail":
        raise ValueError


worker = pgq.Worker(tasks=[block, wait, work])
worker.configure("default", concurrency=2)
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A worker that runs, and where it is asked how it is."""

    process: Running
    address: str
    gate: Path

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.address + path, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()

    async def probe(self) -> tuple[int, int, dict[str, Any]]:
        """Return the status codes of both probes, and what the second one tells."""
        live, _ = await asyncio.to_thread(self.get, "/live")
        ready, body = await asyncio.to_thread(self.get, "/ready")
        return live, ready, json.loads(body)

    async def becomes(self, live: int, ready: int, status: str) -> dict[str, Any]:
        """Wait until the probes answer so, and return what the second one tells."""

        async def found() -> dict[str, Any]:
            *codes, told = await self.probe()
            return told if (*codes, told["status"]) == (live, ready, status) else {}

        return await until(found, pause=0.02)


@asynccontextmanager
async def probed(
    dsn: dict[str, Any], place: Path, target: str = "shop:worker"
) -> AsyncGenerator[Site]:
    """Run a worker with probes."""
    (place / "shop.py").write_text(SHOP, encoding="utf-8")
    args = ("worker", target, "--log-json", "--health", "127.0.0.1:0")
    async with running(dsn, *args, cwd=place) as process:
        line = await process.logged("serving http://[^/]+/live and ")
        yield Site(process, line["message"].split()[1].removesuffix("/live"), place / "gate")


async def start(queue: pgq.Queue, task: str, payload: object = None) -> int:
    return await queue.enqueue(payload, headers={"task": task})


async def test_a_blocked_loop_is_not_live_and_answers_nevertheless(
    dsn: dict[str, Any], queue: pgq.Queue, tmp_path: Path
) -> None:
    async with probed(dsn, tmp_path) as site:
        told = await site.becomes(200, 200, "ok")
        assert told["worker"].endswith(f":{site.process.process.pid}")
        await start(queue, "block")
        told = await site.becomes(503, 503, "loop blocked")
        assert told["jobs"] == 1
        assert told["seconds"] >= 0.5
        site.gate.touch()
        await site.becomes(200, 200, "ok")
        assert await site.process.terminated() == 0


async def test_a_lost_database_is_not_ready_and_stays_live(
    server: Server, dsn: dict[str, Any], queue: pgq.Queue, tmp_path: Path
) -> None:
    async with probed(dsn, tmp_path) as site:
        await start(queue, "wait")
        while (await site.becomes(200, 200, "ok"))["jobs"] == 0:
            pass
        server.stop()
        try:
            told = await site.becomes(200, 503, "database lost")
            assert told["jobs"] == 1
            while (await site.becomes(200, 503, "database lost"))["seconds"] < 1:
                pass
        finally:
            server.start()
        await site.becomes(200, 200, "ok")
        site.gate.touch()
        assert await site.process.terminated() == 0


async def test_a_full_worker_is_ready_and_tells_since_when_no_job_has_ended(
    dsn: dict[str, Any], queue: pgq.Queue, tmp_path: Path
) -> None:
    for _ in range(3):
        await start(queue, "wait")
    async with probed(dsn, tmp_path) as site:
        told = await site.becomes(200, 200, "full")
        assert told["jobs"] == 2
        later = await site.becomes(200, 200, "full")
        assert later["seconds"] > told["seconds"]
        site.gate.touch()
        while (await site.becomes(200, 200, "ok"))["jobs"]:
            pass
        assert await site.process.terminated() == 0


SLOW = """
import pathlib, time
while not pathlib.Path("loaded").exists():
    time.sleep(0.01)
from shop import worker
"""


async def test_a_worker_is_not_ready_before_its_start_nor_while_it_stops(
    dsn: dict[str, Any], queue: pgq.Queue, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    async with probed(dsn, tmp_path, "slow:worker") as site:
        told = await site.becomes(200, 503, "starting")
        assert told == {"status": "starting", "seconds": 0.0, "jobs": 0, "worker": None}
        (tmp_path / "loaded").touch()
        await site.becomes(200, 200, "ok")
        await start(queue, "wait")
        while (await site.becomes(200, 200, "ok"))["jobs"] == 0:
            pass
        site.process.process.send_signal(signal.SIGTERM)
        assert (await site.becomes(200, 503, "stopping"))["jobs"] == 1
        site.gate.touch()
        assert await site.process.ended() == 0


async def test_attempts_are_measured_by_task_and_outcome(
    dsn: dict[str, Any], queue: pgq.Queue, tmp_path: Path
) -> None:
    async with probed(dsn, tmp_path) as site:

        async def samples() -> dict[tuple[str | None, ...], float]:
            status, text = await asyncio.to_thread(site.get, "/metrics")
            assert status == 200
            return {
                (sample.name, *map(sample.labels.get, sorted(sample.labels))): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }

        async def attempts() -> dict[tuple[str | None, ...], float]:
            name = "pgq_worker_attempt_seconds_count"
            return {key[1:]: n for key, n in (await samples()).items() if key[0] == name}

        for task, payload in (("work", 1), ("work", 2), ("work", "fail"), ("forged", 1)):
            await queue.enqueue(payload, headers={"task": task}, max_attempts=1)
        expected = {
            ("completed", "default", "work"): 2,
            ("failed", "default", "work"): 1,
            ("failed", "default", ""): 1,  # whoever enqueues names a task, and adds no metric
        }

        async def counted() -> bool:
            return sum((await attempts()).values()) == 4

        await until(counted, pause=0.02)
        assert await attempts() == expected
        while (await site.becomes(200, 200, "ok"))["jobs"]:  # until the outcomes are written
            pass
        found = await samples()
        assert found["pgq_worker_wait_seconds_count", "default", "work"] == 3
        assert found["pgq_worker_status", "ok"] == 1
        assert found["pgq_worker_status", "full"] == 0
        assert found["pgq_worker_jobs",] == 0
        assert await site.process.terminated() == 0


def test_the_page_tells_what_each_status_means() -> None:
    rows = re.findall(
        r"^\| `([a-z ]+)` \| (\d+) \| (\d+) \|", read("docs/deployment.md"), re.MULTILINE
    )
    codes = {True: "200", False: "503"}
    health = [pgq.Health(status=status) for status in STATUSES]
    assert rows == [(one.status, codes[one.is_live], codes[one.is_ready]) for one in health]


def test_probes_do_without_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pgq._cli.attempts", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert sorted(Probes().pages()) == ["/live", "/ready"]


def test_an_address_that_is_taken_and_several_processes_are_refused(dsn: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = rf"cannot listen on 127\.0\.0\.1:{port}: "
        with pytest.raises(Failure, match=told), serving({}, "127.0.0.1", port):
            pass
    cli = Cli(variables(dsn))
    for option in ("--processes=2", "--reload"):
        args = ("worker", "shop:worker", "--health", "127.0.0.1:0", option)
        assert "--health is for one process" in cli.fails(2, *args)
    assert "is not host:port" in cli.fails(2, "worker", "shop:worker", "--health", "8080")
