"""The receipts of jobs that a worker has claimed and not begun, for whoever comes after it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from mmap import mmap
from struct import Struct
from typing import IO, Any, Final

from pgq._models import Job, JobId, Token

_RECEIPT: Final = Struct("@qq")  # each number is written at once, in native order
_NUMBER: Final = 4096  # of receipts; of more jobs nothing is kept
_SIZE: Final = _NUMBER * _RECEIPT.size


def new_file() -> IO[bytes]:
    """Return a file without a name: what a process maps of it outlives the process."""
    if sys.platform == "linux":
        file: IO[bytes] = os.fdopen(os.memfd_create("pgq"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 the caller closes it
    file.truncate(_SIZE)
    return file


class Unbegun:
    """Receipts in a file of `new_file`, which a kill does not take along.

    Writing one costs about a microsecond: no system call, nothing on the network.

    Args:
        descriptor: of the file; it is closed.

    Attributes:
        left: the receipts that the process before this one has left.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap(descriptor, _SIZE)
        os.close(descriptor)
        self._places: dict[Token | None, int] = {}  # in the file, of those that are kept
        self._free: list[int] = []
        self.left: list[tuple[JobId, Token]] = []
        for number, (job_id, token) in enumerate(_RECEIPT.iter_unpack(self._memory)):
            if job_id and token:  # the process may have ended between the two
                self._places[token] = number * _RECEIPT.size
                self.left.append((job_id, token))
            else:
                self._free.append(number * _RECEIPT.size)

    def add(self, jobs: Iterable[Job[Any]]) -> None:
        """Keep the receipts of claimed jobs."""
        for job in jobs:
            if self._free:
                place = self._places[job.token] = self._free.pop()
                _RECEIPT.pack_into(self._memory, place, job.id, job.token)

    def discard(self, token: Token | None) -> None:
        """Drop a receipt, if it is kept: the job begins, or is not held any more."""
        place = self._places.pop(token, None)
        if place is not None:
            _RECEIPT.pack_into(self._memory, place, 0, 0)
            self._free.append(place)


# For the next run of a worker in this process.
inherited: Final[list[Unbegun]] = []
