"""A disk that is full for a while: of the data, or of the write-ahead log."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Final, Literal, TypeAlias, final

import pgwatch
from pgserver import Server

Content: TypeAlias = Literal["wal", "data"]

_SIZE: Final = 192 << 20
_LIMITS: Final[dict[Content, int]] = {"wal": 4 << 20, "data": 16 << 20}
"""The largest file, where a limit stands for the disk: less than a segment of the log, or just one.

The server's messages still have room.
"""
_FILLERS: Final[dict[Content, str]] = {
    "wal": """
        select pg_logical_emit_message(false, 'pgq', repeat('x', 1000000))
          from generate_series(1, 20)""",
    "data": """
        select count(pgq_enqueue_many(array(
            select jsonb_build_object('ballast', repeat(md5(random()::text), 40))
              from generate_series(1, 5000)), queue => 'ballast'))""",
}


@final
class Disk:
    """What is full while a `with` block of `full` lasts.

    Where this process may mount a tmpfs, as root, it is one with part of the server on it. Others
    limit the size of the server's files instead, as `ulimit -f` does.
    """

    def __init__(self, server: Server, content: Content) -> None:
        self._server = server
        self._content: Content = content
        self._place = server.directory / "small"
        self._is_mounted = False
        self.filler = _FILLERS[content]
        """A statement that writes more than 16 MB, but for which there is no room."""

    def __enter__(self) -> Disk:
        """Move part of the server to a disk of its own."""
        self._place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "pgq-chaos", str(self._place)]
        self._is_mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
        if not self._is_mounted:
            return self
        owner = self._server.data.stat()
        os.chown(self._place, owner.st_uid, owner.st_gid)
        try:
            self._move()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_mounted:
            self._server.stop("immediate")
            subprocess.run(["umount", self._place], check=True)

    @contextlib.contextmanager
    def full(self) -> Generator[None]:
        """Leave no room for as long as the block lasts."""
        if not self._is_mounted:
            self._limit(_LIMITS[self._content])
            try:
                yield
            finally:
                self._limit(resource.RLIM_INFINITY)
            return
        ballast = self._place / "ballast"
        try:
            fill(ballast)
            yield
        finally:
            ballast.unlink()

    def _move(self) -> None:
        if self._content == "wal":
            self._server.stop()
            log = self._server.data / "pg_wal"
            shutil.copytree(log, self._place / "pg_wal", copy_function=_copy)
            shutil.copystat(log, self._place / "pg_wal")
            shutil.chown(self._place / "pg_wal", log.stat().st_uid, log.stat().st_gid)
            shutil.rmtree(log)
            log.symlink_to(self._place / "pg_wal")
            self._server.start()
        else:
            name = self._server.database
            self._server.psql(f"create tablespace small location '{self._place}'")
            self._server.psql(f"alter database {name} set tablespace small", database="postgres")

    def _limit(self, size: int) -> None:
        for pid in (self._server.pid, *pgwatch.processes(self._server.data)):  # it forks others
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                soft = hard if size == resource.RLIM_INFINITY else size
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def _copy(source: str, target: str) -> None:
    shutil.copy2(source, target)
    status = Path(source).stat()
    os.chown(target, status.st_uid, status.st_gid)


def fill(file: Path) -> None:
    """Write a file until there is no room."""
    block = bytes(1 << 16)
    with file.open("wb", buffering=0) as ballast:
        while len(block) > 100:
            try:
                ballast.write(block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                block = block[: len(block) // 2]
