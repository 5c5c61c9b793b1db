"""What `docker compose up` runs in its containers."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

import pytest
import yaml
from bootstrap import ROOT
from pgserver import Server

from .sessions import within

pytestmark = pytest.mark.constant

DEMO = ROOT / "docker"
PULLED = ("prom/prometheus:v3.5.0", "grafana/grafana:12.1.0")


def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))[
        "services"
    ]
    return services


def test_ports_are_open_to_this_machine_only() -> None:
    ports = {name: service.get("ports", []) for name, service in compose().items()}
    assert {name for name in ports if ports[name]} == {"dashboard", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for listed in ports.values() for port in listed)


def test_what_is_mounted_is_there_and_what_is_scraped_is_served() -> None:
    services = compose()
    mounts = [mount for service in services.values() for mount in service.get("volumes", [])]
    files = [mount.partition(":")[0] for mount in mounts if mount.startswith("./")]
    assert len(files) == 4
    assert all((ROOT / file).exists() for file in files)
    config = ROOT / "deploy" / "prometheus" / "prometheus.yaml"
    for job in yaml.safe_load(config.read_text("utf-8"))["scrape_configs"]:
        [scraped] = job["static_configs"][0]["targets"]
        name, _, port = scraped.partition(":")
        assert f"0.0.0.0:{port}" in services[name]["command"]
    source = yaml.safe_load((ROOT / "deploy" / "grafana" / "datasource.yaml").read_text("utf-8"))
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def test_the_port_of_the_dashboard_is_where_its_command_listens() -> None:
    dashboard = compose()["dashboard"]
    _, published, port = dashboard["ports"][0].split(":")
    assert dashboard["command"] == f"pgq dashboard --listen 0.0.0.0:{port}"
    assert f"http://127.0.0.1:{published}" in (ROOT / "docs/deployment.md").read_text("utf-8")
    extras = re.search(r"whl\)\[(.*)\]", (DEMO / "Dockerfile").read_text("utf-8"))
    assert extras
    assert {"cli", "dashboard", "metrics"} == set(extras[1].split(","))


def test_each_image_is_built_by_one_service() -> None:
    """Two that build the same image do it at the same time, and one of them may fail."""
    services = compose()

    def needed(name: str) -> set[str]:
        direct = services[name].get("depends_on", {})
        return {*direct}.union(*(needed(other) for other in direct))

    builders = {service["image"]: name for name, service in services.items() if "build" in service}
    for name, service in services.items():
        if service["image"] in PULLED:
            continue
        builder = builders[service["image"]]
        assert service["pull_policy"] == ("build" if name == builder else "never")
        assert name == builder or ("build" not in service and builder in needed(name))


async def read_line(process: Process) -> str:
    assert process.stdout
    return (await within(process.stdout.readline())).decode()


async def test_the_worker_ships_what_the_producer_orders(server: Server) -> None:
    server.psql("drop database if exists docker with (force)")
    server.psql("create database docker")
    environment = {
        **os.environ,
        **server.environment(),
        "PGDATABASE": "docker",
        "PYTHONUNBUFFERED": "1",
    }

    async def start(*arguments: str) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=DEMO, env=environment, stdout=PIPE
        )

    install = await start("-m", "pgq", "install")
    assert await within(install.wait()) == 0
    worker = await start("-m", "pgq", "worker", "demo:worker")
    producer = await start("demo.py")
    try:
        assert await read_line(producer) == "ordered 1: job 1\n"
        assert await read_line(worker) == "shipped order 1, attempt 1\n"
    finally:
        for process in (producer, worker):
            process.terminate()
            await process.communicate()
