"""The databases of a worker, which a file may name: SIGHUP has it read again."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import asyncpg

from pgq._cli.errors import Misuse
from pgq._log import about_worker, name_of
from pgq._worker.worker import Worker

Pool: TypeAlias = "asyncpg.Pool[Any]"
NewPool: TypeAlias = "Callable[[str], asyncpg.Pool[Any]]"

log = logging.getLogger("pgq")


class DsnFile:
    """The pools of the databases that a file names, one a line; lines with # are comments.

    Args:
        path: of the file.
        new_pool: makes the pool of a database by its URL, without connecting.

    Raises:
        Misuse: the file names none, or one twice, or cannot be read.
    """

    def __init__(self, path: Path, new_pool: NewPool) -> None:
        self._path: Final = path
        self._new_pool = new_pool
        self._changed = asyncio.Event()
        self._pools: dict[str, Pool] = {dsn: new_pool(dsn) for dsn in self._read()}
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._changed.set)

    def _read(self) -> list[str]:
        try:
            lines = map(str.strip, self._path.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeError) as exc:
            raise Misuse(f"cannot read {self._path}: {exc}") from exc
        dsns = [line for line in lines if line and not line.startswith("#")]
        if not dsns:
            raise Misuse(f"{self._path} names no database")
        if len({name_of(dsn) for dsn in dsns}) < len(dsns):
            raise Misuse(f"{self._path} names a database twice")
        return dsns

    async def run(self, worker: Worker) -> None:
        """Run a worker on these databases, until it is told to stop."""
        for pool in self._pools.values():
            await pool
        following = asyncio.create_task(self._follow(worker))
        try:
            await worker.run(pools=[*self._pools.values()])
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    async def _follow(self, worker: Worker) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            before = self._pools
            new: dict[str, Pool] = {}
            try:
                dsns = self._read()
                for dsn in dsns:
                    if dsn not in before:
                        new[dsn] = await self._new_pool(dsn)
                self._pools = before | new
                await worker.change_pools([self._pools[dsn] for dsn in dsns])
            except Exception as exc:  # noqa: BLE001 -- the worker goes on as it is
                about = about_worker(worker.name)
                log.warning("the worker keeps the databases that it has: %s", exc, extra=about)
                self._pools = before
                for pool in new.values():
                    pool.terminate()
                continue
            self._pools = {dsn: self._pools[dsn] for dsn in dsns}
            for dsn in before.keys() - self._pools.keys():
                await before[dsn].close()
            log.info("databases of the worker: %d", len(dsns), extra=about_worker(worker.name))
