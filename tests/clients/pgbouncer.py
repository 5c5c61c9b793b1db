"""A private PgBouncer that pools transactions, or what it is told."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import bootstrap
from pgserver import PATIENCE, Server, find_account, find_free_port

CONFIGURATION = Path(__file__).with_name("pgbouncer.ini")


def can_prepare() -> bool:
    """Tell whether the PgBouncer at hand can keep prepared statements, as 1.21 and newer can."""
    program, libraries = bootstrap.fetch_pgbouncer()
    environment = _environment({library.parent for library in libraries})
    answer = subprocess.check_output([program, "--version"], env=environment, text=True)
    match = re.match(r"PgBouncer (\d+)\.(\d+)", answer)
    assert match, answer
    return (int(match[1]), int(match[2])) >= (1, 21)


@contextlib.contextmanager
def pgbouncer(server: Server, *, prepares: bool, **settings: str) -> Generator[int]:
    """Run PgBouncer before a server while the block lasts; yields its TCP port.

    It works below the server's directory, and so is ended with the server in any event.

    Args:
        server: the server.
        prepares: whether it keeps prepared statements for its clients.
        settings: of PgBouncer, other than those of the configuration file.
    """
    port = find_free_port()
    place = server.directory / f"pgbouncer-{port}"
    place.mkdir()
    # Where it was fetched to, the server's user may not read.
    program, libraries = bootstrap.fetch_pgbouncer()
    for file in (program, *libraries):
        shutil.copy(file, place)
    text = CONFIGURATION.read_text(encoding="utf-8").format(server=server, port=port)
    if can_prepare():
        text += f"max_prepared_statements = {200 if prepares else 0}\n"
    text += "".join(f"{name} = {value}\n" for name, value in settings.items())
    (place / "pgbouncer.ini").write_text(text, encoding="utf-8")
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [place / program.name, "pgbouncer.ini"],
            cwd=place,
            env=_environment({place}),
            stdout=log,
            stderr=log,
            **find_account(),
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not _is_listening(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PgBouncer did not start:\n{(place / 'log').read_text()}")
            time.sleep(0.01)
        yield port
    finally:
        process.kill()
        process.wait(PATIENCE)


def _environment(libraries: set[Path]) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
