"""The receipts of jobs that a worker has claimed and not begun, for the worker that starts next.

A worker keeps them in a file of the temporary directory, and holds the file's lock. A kill takes
the lock and leaves the file. On Windows, which has no such locks, nothing is kept.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct
from typing import IO, Any, Final
from weakref import WeakSet

from pgq import _sql
from pgq._calls import Connection
from pgq._log import about_worker, log, trouble
from pgq._models import Job, JobId, Token
from pgq._queue import Queue
from pgq._worker.link import Link

if sys.platform != "win32":
    import fcntl

_RECEIPT: Final = Struct("@qq")
_NUMBER: Final = 4096  # of receipts; of more jobs nothing is kept
_SIZE: Final = _NUMBER * _RECEIPT.size
_PREFIX: Final = "pgq-unbegun-"


class Unkept:
    """Keeps no receipts: where there is no file for them."""

    def add(self, jobs: Iterable[Job[Any]]) -> None:
        """Keep the receipts of claimed jobs."""

    def discard(self, token: Token | None) -> None:
        """Drop a receipt, if it is kept: the job begins, or is not held any more."""

    def close(self) -> None:
        """Remove the file, unless it has receipts: of jobs that could not be given back."""


class Unbegun(Unkept):
    """Receipts in a file that outlives this process.

    To write one takes one system call, some two microseconds, and nothing on the network.

    Args:
        whose: what tells the database and role from others; a part of the file's name.

    Attributes:
        file: is open, and locked, while this process lives.
        path: of the file.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, whose: str) -> None:
        self._places: dict[Token | None, int] = {}  # in the file, of those that are kept
        self._free = [number * _RECEIPT.size for number in range(_NUMBER)]
        descriptor, name = tempfile.mkstemp(prefix="pgq-new-")
        self.file = os.fdopen(descriptor, "r+b", buffering=0)
        self.path = Path(name)
        try:
            self.path = self._publish(whose)
        except BaseException:
            self.close()
            raise
        _open.add(self)

    def _publish(self, whose: str) -> Path:
        # So that the disk has room for it, and before anybody looks for it.
        if self.file.write(bytes(_SIZE)) < _SIZE or not _is_locked(self.file):
            raise OSError(errno.EIO, "cannot be written and locked", str(self.path))
        return self.path.rename(self.path.with_name(f"{_PREFIX}{whose}-{self.path.name}"))

    def add(self, jobs: Iterable[Job[Any]]) -> None:
        for job in jobs:
            if self._free:
                place = self._places[job.token] = self._free.pop()
                self._write(place, _RECEIPT.pack(job.id, job.token))

    def discard(self, token: Token | None) -> None:
        place = self._places.pop(token, None)
        if place is not None:
            self._free.append(place)
            self._write(place, bytes(_RECEIPT.size))

    def close(self) -> None:
        if not self._places:
            self._remove()
        self._places, self._free = {}, []
        self.file.close()

    def _write(self, place: int, receipt: bytes) -> None:
        try:
            os.pwrite(self.file.fileno(), receipt, place)
        except OSError as exc:
            log.warning("receipts cannot be written any more: %r", exc, extra=trouble(exc))
            # A receipt that stays would give back what has begun. The lock stays until the end:
            # somebody may have opened the file already.
            self._places, self._free = {}, []
            self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()


_open: Final[WeakSet[Unbegun]] = WeakSet()


def _let_go() -> None:
    """Close the files in a forked process, which may live longer than the worker."""
    for unbegun in _open:
        unbegun.file.close()


async def keep(worker: str, queue: Queue, link: Link, stopping: asyncio.Event) -> Unkept:
    """Give back what killed workers had claimed and not begun, and keep the same for the next one.

    Args:
        worker: its name.
        queue: any queue.
        link: the connection.
        stopping: is set when no more is to be given back.
    """
    if sys.platform == "win32":
        return Unkept()
    try:
        whose = await link.run(_whose)
        for path, receipts in left(whose):
            if await _release(receipts, worker, queue, link, stopping):
                path.unlink(missing_ok=True)
        return Unbegun(whose)
    except Exception as exc:  # noqa: BLE001 the worker does its work without
        log.warning(
            "claimed jobs that have not begun count an attempt if the worker is killed: %r",
            exc,
            extra=trouble(exc),
        )
        return Unkept()


async def _whose(*, connection: Connection) -> str:
    """Return what tells a database and role from all others."""
    value: str = await connection.fetchval(_sql.WHOSE)
    return value


async def _release(
    receipts: list[tuple[JobId, Token]],
    worker: str,
    queue: Queue,
    link: Link,
    stopping: asyncio.Event,
) -> bool:
    """Give jobs back; tell whether that was done to the end."""
    given_back = 0
    try:
        for receipt in receipts:
            if stopping.is_set():
                return False
            given_back += await link.run(partial(queue.release, receipt))
    except Exception as exc:  # noqa: BLE001 the leases run out
        log.warning("jobs that were not begun cannot be given back: %r", exc, extra=trouble(exc))
        return False
    finally:
        if given_back:
            log.info(
                "jobs that a killed worker had not begun are given back: %d",
                given_back,
                extra=about_worker(worker),
            )
    return True


def left(whose: str) -> Iterator[tuple[Path, list[tuple[JobId, Token]]]]:
    """Yield what each worker of this user has left that was killed; its file is to be removed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{whose}-*"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # another user's, or gone
            continue
        with os.fdopen(descriptor, "r+b") as file:
            if os.fstat(descriptor).st_uid != os.geteuid() or not _is_locked(file):
                continue
            content = file.read(_SIZE)
            whole = content[: len(content) // _RECEIPT.size * _RECEIPT.size]
            yield path, [receipt for receipt in _RECEIPT.iter_unpack(whole) if receipt[0]]


def _is_locked(file: IO[bytes]) -> bool:
    """Lock the file for this process; False if another one has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go)
