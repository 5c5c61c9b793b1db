"""What `docker compose up` runs in its containers."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from pgserver import Server

pytestmark = pytest.mark.once

DEMO = Path(__file__).resolve().parents[2] / "docker"


async def read_line(process: Process) -> str:
    assert process.stdout
    return (await asyncio.wait_for(process.stdout.readline(), 60)).decode()


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
    assert await asyncio.wait_for(install.wait(), 60) == 0
    worker = await start("-m", "pgq", "worker", "demo:worker")
    producer = await start("demo.py")
    try:
        assert await read_line(producer) == "ordered 1: job 1\n"
        assert await read_line(worker) == "shipped order 1, attempt 1\n"
    finally:
        for process in (producer, worker):
            process.terminate()
            await process.communicate()
