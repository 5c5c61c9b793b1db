"""The files of deploy/, in the programs that they are for, and the page about them."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shutil
import signal
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import bootstrap
import pgq
import pytest
import pytest_asyncio
import yaml
from bootstrap import ROOT
from pgq._worker import run
from pgserver import PATIENCE, Server

from . import test_docs
from .cli_session import SCRIPT, Cli, running
from .conftest import serve
from .programs import run_program
from .sessions import Connection, connect, until, within
from .test_grants import kept, logins
from .test_health import probed, start
from .test_readme import environment, run_sql

__all__ = ["environment", "kept", "logins"]

pytestmark = pytest.mark.constant

DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
METRIC = re.compile(r"\bpgq_\w+")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules() -> dict[str, dict[str, Any]]:
    [group] = load(ALERTS)["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((DEPLOY / "grafana" / "pgq.json").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = dashboard["panels"]
    return found


def queries() -> Iterator[str]:
    """The dashboard's, with the variables that Grafana fills in."""
    for panel in panels():
        for target in panel["targets"]:
            query: str = target["expr"]
            yield query.replace("$queue", ".*").replace("$__rate_interval", "1m")


# Time, as promtool lets it pass


def test_each_alert_begins_and_ends() -> None:
    promtool = bootstrap.fetch_prometheus() / "promtool"
    run_program(promtool, "check", "rules", ALERTS)
    run_program(promtool, "test", "rules", ALERTS.with_name("alerts_test.yaml"))
    begun, ended = set[str](), set[str]()
    for case in load(ALERTS.with_name("alerts_test.yaml"))["tests"]:
        firing = set[str]()
        for asked in case["promql_expr_test"]:
            assert asked["expr"] == 'ALERTS{alertstate="firing"}'
            labels = " ".join(sample["labels"] for sample in asked.get("exp_samples", []))
            now = set(re.findall(r'alertname="(\w+)"', labels))
            begun |= now - firing
            ended |= firing - now
            firing = now
    assert begun == ended == set(rules())


# A real Prometheus


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose changes can be followed."""
    with serve(wal_level="logical") as server:
        yield server


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus that runs."""

    address: str

    def ask(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        url = f"{self.address}/api/v1/{path}?{query}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            told = json.load(answer)
        assert told["status"] == "success"
        return told["data"]

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    async def shows(self, *queries: str) -> None:
        """Wait until each of these queries has an answer."""

        async def found() -> bool:
            answers = [await asyncio.to_thread(self.ask, "query", query=one) for one in queries]
            return all(answer["result"] for answer in answers)

        await until(found, pause=0.5)

    async def fires(self, *names: str) -> None:
        """Wait until all of these alerts fire, together or one after the other."""
        missing = set(names)

        async def found() -> bool:
            missing.difference_update(await asyncio.to_thread(self.firing))
            return not missing

        await until(found, pause=0.1)

    async def ends(self, *names: str) -> None:
        """Wait until none of these alerts fires."""

        async def found() -> bool:
            return not set(names) & await asyncio.to_thread(self.firing)

        await until(found, pause=0.1)


def hastened(expression: str) -> str:
    """Return the expression of a rule in which a minute lasts a second."""
    ages = re.compile(r"(?<=_seconds > )\d+")
    expression = ages.sub(lambda seconds: str(int(seconds[0]) / 60), expression)
    return re.sub(r"\[(\d+)m\]", r"[\1s]", expression)


@asynccontextmanager
async def prometheus(place: Path, **targets: str) -> AsyncGenerator[Prometheus]:
    """Run Prometheus as deploy/ has it, but it looks each second, and its rules do not wait."""
    config = load(DEPLOY / "prometheus" / "prometheus.yaml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        address = targets[job["job_name"].replace("-", "_")].removeprefix("http://")
        job["static_configs"] = [{"targets": [address]}]
    alerts = load(ALERTS)
    for rule in alerts["groups"][0]["rules"]:
        rule.pop("for", None)
        rule["expr"] = hastened(rule["expr"])
    for name, content in (("prometheus.yaml", config), ("alerts.yaml", alerts)):
        (place / name).write_text(yaml.safe_dump(content), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        bootstrap.fetch_prometheus() / "prometheus",
        f"--config.file={place / 'prometheus.yaml'}",
        f"--storage.tsdb.path={place / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    address, is_ready = "", False
    try:
        # It is told in any order that it listens and is ready: until then its answer is status 503.
        while not (address and is_ready):
            line = (await within(process.stderr.readline())).decode()
            assert line, "Prometheus has ended"
            is_ready = is_ready or "Server is ready" in line
            if found := re.search(r'"Listening on" address=(\S+)', line):
                address = found[1]
        draining = asyncio.create_task(process.stderr.read())
        yield Prometheus(f"http://{address}")
        process.terminate()
        await within(draining)
    finally:
        if process.returncode is None:
            process.kill()
        await within(process.wait())


@pytest_asyncio.fixture
async def owned(kept: dict[str, Any]) -> AsyncIterator[asyncpg.Pool[Any]]:
    """A pool of a database whose owner has installed pgq, and may not see other sessions."""
    async with asyncpg.create_pool(**kept, min_size=0) as pool:
        await pool.execute("create extension pgq")
        yield pool


async def test_what_has_happened_begins_and_ends_each_alert_and_the_dashboard_shows_it(
    server: Server, kept: dict[str, Any], owned: asyncpg.Pool[Any], tmp_path: Path
) -> None:
    queue, other = pgq.Queue(owned), pgq.Queue(owned, "other")
    await pgq.Admin(owned).create_queue("other")
    async with (
        running(kept, "metrics", "--listen", "127.0.0.1:0") as exporter,
        probed(kept, tmp_path) as site,
    ):
        metrics = (await exporter.until(lambda line: "serving" in line)).split()[1]
        targets = {"pgq": metrics.removesuffix("/metrics"), "pgq_worker": site.address}
        async with prometheus(tmp_path, **targets) as watcher:
            await start(queue, "work")
            await watcher.shows(*queries())
            names = await asyncio.to_thread(watcher.ask, "label/__name__/values")
            used = {name for rule in rules().values() for name in METRIC.findall(rule["expr"])}
            assert used <= set(names)

            # A worker whose jobs do not end, and a replication slot that nobody uses.
            for _ in range(3):
                await start(queue, "wait")
            server.psql("select pg_create_logical_replication_slot('forgotten', 'pgoutput')")
            lasting = "PgqRotationHeldUp", "PgqJobsWait", "PgqWorkerStuck", "PgqHealthUnknown"
            await watcher.fires(*lasting)
            server.psql("select pg_drop_replication_slot('forgotten')")
            server.psql(f"grant pg_read_all_stats to {kept['user']}")
            site.gate.touch()
            await watcher.ends(*lasting)
            site.gate.unlink()

            await queue.enqueue_many(["fail"] * 9, headers={"task": "work"}, max_attempts=1)
            await watcher.fires("PgqJobsDie", "PgqAttemptsFail")
            await queue.enqueue_many(range(20), headers={"task": "work"})
            await watcher.ends("PgqJobsDie", "PgqAttemptsFail")

            await start(queue, "block")
            await watcher.fires("PgqWorkerBlocked")
            site.gate.touch()
            await watcher.ends("PgqWorkerBlocked")

            # Nobody calls: the worker is stopped, and a lease runs out.
            site.process.process.send_signal(signal.SIGSTOP)
            await other.enqueue_many([1, 2])
            await other.dequeue(1, timedelta(seconds=1))
            silent = "PgqLeasesExpired", "PgqNoMaintenance", "PgqWorkerDown"
            await watcher.fires(*silent)
            site.process.process.send_signal(signal.SIGCONT)

            async def taken() -> bool:
                await other.pop(2)
                return not await owned.fetchval("select count(*) from pgq.job")

            await until(taken)
            await watcher.ends(*silent)

            server.stop()
            try:
                await watcher.fires("PgqUnreachable", "PgqWorkerLostDatabase")
            finally:
                server.start()
            await watcher.ends("PgqUnreachable", "PgqWorkerLostDatabase")
            begun = 'count_over_time(ALERTS{alertstate="firing"}[1h])'
            found = await asyncio.to_thread(watcher.ask, "query", query=begun)
            assert {one["metric"]["alertname"] for one in found["result"]} == set(rules())
            of_rules = await asyncio.to_thread(watcher.ask, "rules")
            assert {rule["health"] for rule in of_rules["groups"][0]["rules"]} == {"ok"}


# Grafana


def test_the_panels_of_the_dashboard_fit_and_follow_its_variables() -> None:
    taken = set[tuple[int, int]]()
    for panel in panels():
        assert panel["type"] in ("stat", "timeseries")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert all(x < 24 for x, _ in cells)
        assert not cells & taken
        taken |= cells
        for target in panel["targets"]:
            has_queues = re.search(
                r"pgq_(queue|workers|worker_(attempt|wait))_?\w*", target["expr"]
            )
            assert ('queue=~"$queue"' in target["expr"]) == bool(has_queues)
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)


# systemd


@pytest.mark.parametrize("name", ["pgq-worker@", "pgq-metrics@"])
def test_a_unit_starts_what_is_there(tmp_path: Path, name: str) -> None:
    unit = (DEPLOY / "systemd" / f"{name}.service").read_text(encoding="utf-8")
    assert unit.count("/opt/%i/.venv/bin/pgq ") == 1
    if analyze := shutil.which("systemd-analyze"):
        script = tmp_path / "pgq"
        script.symlink_to(SCRIPT)
        copy = tmp_path / f"{name}.service"
        copy.write_text(unit.replace("/opt/%i/.venv/bin/pgq", str(script)), encoding="utf-8")
        assert run_program(analyze, "verify", copy) == ""
    [command] = re.findall(r"^ExecStart=\S+ (\w+) (.*)$", unit, re.MULTILINE)
    known = Cli({}).ok(command[0], "--help")
    assert set(re.findall(r"--[\w-]+", command[1])) <= set(re.findall(r"--[\w-]+", known))


# Kubernetes


@pytest.mark.parametrize("name", ["worker.yaml", "metrics.yaml"])
def test_a_pod_is_probed_and_scraped_where_it_serves(name: str) -> None:
    deployment = load(DEPLOY / "kubernetes" / name)
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    [container] = template["spec"]["containers"]
    [port] = container["ports"]
    assert f"0.0.0.0:{port['containerPort']}" in container["command"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    probes = {kind: asked["httpGet"] for kind, asked in container.items() if "Probe" in kind}
    assert {asked["port"] for asked in probes.values()} == {port["name"]}
    paths = {kind: asked["path"] for kind, asked in probes.items()}
    if name == "worker.yaml":
        assert paths == {"livenessProbe": "/live", "readinessProbe": "/ready"}
    else:
        assert paths == {"readinessProbe": "/health"}


def test_who_stops_a_worker_waits_for_as_long_as_it_may_take() -> None:
    grace = inspect.signature(pgq.Worker).parameters["grace"].default.total_seconds()
    longest = vars(run)["_SETTLE_SECONDS"] * 3 + vars(run)["_CANCEL_SECONDS"] * 2
    template = load(DEPLOY / "kubernetes" / "worker.yaml")["spec"]["template"]
    assert template["spec"]["terminationGracePeriodSeconds"] > grace + longest
    unit = (DEPLOY / "systemd" / "pgq-worker@.service").read_text(encoding="utf-8")
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(seconds) > grace + longest


# KEDA


async def test_keda_asks_for_what_may_be_at_work(
    dsn: dict[str, Any], connection: Connection
) -> None:
    _, scaled = yaml.safe_load_all((DEPLOY / "kubernetes" / "keda.yaml").read_text("utf-8"))
    [trigger] = scaled["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    deployment = load(DEPLOY / "kubernetes" / "worker.yaml")
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    shown = test_docs.read("deployment.md")
    assert query in re.sub(r"\s+", " ", shown)

    await pgq.Admin(connection).create_queue("emails")
    await connection.execute("create role scaler login")
    try:
        await connection.execute("select pgq_grant('emails', 'scaler', '{observe}')")
        scaler = await connect({**dsn, "user": "scaler"})

        async def asked() -> object:
            return await scaler.fetchval(query)

        assert await asked() == 0
        queue = pgq.Queue(connection, "emails")
        await queue.enqueue_many(range(5))
        await queue.dequeue(2)
        assert await asked() == 5
        await connection.execute("select pgq_configure_queue('emails', max_active => 3)")
        assert await asked() == 3
        await connection.execute("select pgq_pause('emails')")
        assert await asked() == 2
        await scaler.close()
    finally:
        await connection.execute("drop owned by scaler; drop role scaler")


# The page


async def test_the_page_does_what_it_says(environment: dict[str, str]) -> None:
    run_sql(environment, "create extension pgq")
    programs = [str(bootstrap.fetch_prometheus()), str(Path(sys.executable).parent)]
    path = os.pathsep.join([*programs, environment["PATH"]])
    try:
        page = "deployment.md"
        await test_docs.does_what_it_says({**environment, "PATH": path}, page, {"console"})
    finally:
        run_sql(environment, "drop owned by keda; drop role keda;")
