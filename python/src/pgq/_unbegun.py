"""The receipts of jobs that a worker has claimed and not begun, for the worker that starts next.

A worker keeps them in a file of the temporary directory, and holds the file's lock. A kill takes
the lock and leaves the file. Of Windows, which has no such locks, nothing is kept.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import IO, Any, Final

from pgq._log import log, trouble
from pgq._models import Job, JobId, Token

if sys.platform != "win32":
    import fcntl

_RECEIPT: Final = Struct("@qq")
_NUMBER: Final = 4096  # of receipts; of more jobs nothing is kept
_PREFIX: Final = "pgq-unbegun-"


class Unbegun:
    """Receipts in a file that outlives this process.

    To write one takes about two microseconds: one system call, nothing on the network.

    Args:
        database: what tells the database from others; a part of the file's name.

    Attributes:
        file: is open, and locked, while this process lives.
    """

    def __init__(self, database: str) -> None:
        self._places: dict[Token | None, int] = {}  # in the file, of those that are kept
        self._free = [number * _RECEIPT.size for number in range(_NUMBER)]
        descriptor, name = tempfile.mkstemp(prefix="pgq-new-")
        self.file = os.fdopen(descriptor, "r+b", buffering=0)
        self.file.write(bytes(_NUMBER * _RECEIPT.size))  # so that the disk has room for it
        _is_locked(self.file)
        path = Path(name)  # nobody looks for it before it is locked
        self._path = path.rename(path.with_name(f"{_PREFIX}{database}-{path.name}"))

    def add(self, jobs: Iterable[Job[Any]]) -> None:
        """Keep the receipts of claimed jobs."""
        for job in jobs:
            if self._free:
                place = self._places[job.token] = self._free.pop()
                self._write(place, _RECEIPT.pack(job.id, job.token))

    def discard(self, token: Token | None) -> None:
        """Drop a receipt, if it is kept: the job begins, or is not held any more."""
        place = self._places.pop(token, None)
        if place is not None:
            self._free.append(place)
            self._write(place, bytes(_RECEIPT.size))

    def close(self) -> None:
        """Remove the file, unless it has receipts: of jobs that could not be given back."""
        if not self._places:
            self._path.unlink(missing_ok=True)
        self._places, self._free = {}, []
        self.file.close()

    def _write(self, place: int, receipt: bytes) -> None:
        try:
            os.pwrite(self.file.fileno(), receipt, place)
        except OSError as exc:  # a receipt that stays would give back what has begun
            log.warning("receipts cannot be written any more: %r", exc, extra=trouble(exc))
            self._places.clear()
            self.close()


def left(database: str) -> Iterator[list[tuple[JobId, Token]]]:
    """Yield what each worker of this user has left that was killed; then its file is removed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{database}-*"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone
            continue
        with os.fdopen(descriptor, "r+b") as file:
            if os.fstat(descriptor).st_uid != os.geteuid() or not _is_locked(file):
                continue
            content = file.read(_NUMBER * _RECEIPT.size)
            yield [receipt for receipt in _RECEIPT.iter_unpack(content) if receipt[0]]
            path.unlink(missing_ok=True)


def _is_locked(file: IO[bytes]) -> bool:
    """Lock the file for this process; False if another one has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
