"""Runs a private PostgreSQL with pgq in reach, for as long as a command or a `with` block lasts.

    python3 tools/pgserver.py [--version 16] [--set name=value ...] -- command argument ...

    with Server(version=16, settings={"fsync": "off"}) as server:
        server.psql("create extension pgq")

The server listens on a Unix socket in a directory of its own below /tmp, has one database, and
finds the extension without anything being installed. PostgreSQL refuses to run as root, so root
runs it as `nobody`; the command itself always runs as the caller. Server and directory are gone
afterwards in any event, also when this process is killed.
"""

import argparse
import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Literal, NoReturn, TypedDict, final

import bootstrap
import pgwatch
from pgfind import ServerError, find, find_program

__all__ = ["PATIENCE", "Account", "Server", "ServerError", "find_account", "find_free_port"]

# Seconds after which a wait for another program counts as a hang, on the slowest machine, too.
PATIENCE: Final = float(os.environ.get("PGQ_PATIENCE", "300"))

Mode = Literal["smart", "fast", "immediate", "kill"]

_SIGNALS: dict[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "kill": signal.SIGKILL,
}
_MEMORY = Path("/dev/shm")
_ROOM = 8 << 30  # bytes


class Account(TypedDict):
    """The arguments with which subprocess changes the user, None where it shall not."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


@final
class Server:
    """A private server: started on entering the `with` block, gone on leaving it.

    `version` is a major version, the newest at hand when it is not given; `settings` go to
    postgresql.conf; `extensions` names others than pgq to put in reach, such as pgtap. With
    `primary`, a running server, it is a standby of that one until `promote`. The server runs with
    `environment` besides the caller's. Without fsync its data is in memory, if there is plenty.
    """

    user = "postgres"
    database = "pgq"

    def __init__(
        self,
        version: int | None = None,
        settings: Mapping[str, str] | None = None,
        extensions: Sequence[str] = (),
        primary: "Server | None" = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._install = find(primary.major if primary else version)
        self._settings = dict(settings or {})
        self._extensions = extensions
        self._primary = primary
        self._environment = dict(environment or {})
        self._account = find_account()
        self._psql = find_program("psql", self._install)
        self._process: subprocess.Popen[bytes] | None = None
        self.version = self._install.version
        self.origin = self._install.origin
        self.major: int = self._install.major
        self.password: str = primary.password if primary else secrets.token_hex(16)
        self.port = find_free_port()

    def __enter__(self) -> "Server":
        """Create the server and start it."""
        self.directory = _make_directory(Path("/tmp").resolve())
        directories = [self.directory]
        if self._settings.get("fsync") == "off" and _is_roomy(_MEMORY):
            directories.append(_make_directory(_MEMORY))
        self.host = str(self.directory)
        self.data = directories[-1] / "data"
        self.log = self.directory / "log"
        self._watch = subprocess.Popen(
            [sys.executable, "-I", pgwatch.__file__, *directories],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            if (user := self._account["user"]) is not None:
                for directory in directories:
                    os.chown(directory, user, -1)
            self._prepare()
            self.start()
            if self._primary is None:
                self.psql(f'create database "{self.database}"', database="postgres")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server and remove everything of it."""
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the postmaster that was started last."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the postmaster is there."""
        return self._process is not None and self._process.poll() is None

    def environment(self) -> dict[str, str]:
        """Return the caller's environment with the variables that lead clients to this server."""
        programs = dict.fromkeys([str(self._install.bin), str(self._psql.parent)])
        return {
            **_environment_without_libpq(),
            "PGHOST": self.host,
            "PGPORT": str(self.port),
            "PGUSER": self.user,
            "PGPASSWORD": self.password,
            "PGDATABASE": self.database,
            "PATH": os.pathsep.join([*programs, os.environ.get("PATH", os.defpath)]),
            "PG_BIN": str(self._install.bin),
            "TMPDIR": str(self.directory),  # what programs leave when they are killed goes with it
        }

    def psql(self, sql: str, database: str | None = None) -> str:
        """Run a script as the superuser; return what its queries print, unaligned."""
        options = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database or self.database]
        done = subprocess.run(
            [self._psql, *options],
            input=sql,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"psql: {done.stderr.strip()}")
        return done.stdout.rstrip("\n")

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        pgwatch.end(self.data, signal.SIGKILL)
        with self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=_environment_without_libpq() | self._environment,
                start_new_session=True,
                **self._account,
            )
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"PostgreSQL did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.01)

    def stop(self, mode: Mode = "fast") -> None:
        """Stop the server as `pg_ctl stop -m` does; 'kill' is SIGKILL for all its processes."""
        if self._process is None:
            return
        self._process.send_signal(_SIGNALS[mode])
        if mode == "kill":
            pgwatch.end(self.data, signal.SIGKILL)
        self._process.wait(PATIENCE)

    def restart(self, mode: Mode = "fast") -> None:
        """Stop the server in the given mode and start it again."""
        self.stop(mode)
        self.start()

    def promote(self) -> None:
        """Make a standby a primary, and wait until it takes writes."""
        self.psql("select pg_promote()", database="postgres")

    def upgrade(self, old: "Server") -> None:
        """Take the data of an older server over with pg_upgrade, instead of what is in here."""
        self.psql(f'drop database "{self.database}"', database="postgres")
        self.stop()
        old.stop()
        # The older one has no checksums, and pg_upgrade wants both alike.
        self._run_program("pg_checksums", "--disable", "-D", self.data)
        places: list[str | Path] = ["-b", old.bin, "-B", self.bin, "-d", old.data, "-D", self.data]
        self._run_program("pg_upgrade", "-U", self.user, "-s", self.directory, *places)
        self.start()

    def close(self) -> None:
        """Stop the server and remove its directory."""
        try:
            if self._is_killed():
                self.start()
            self.stop("immediate")
        finally:
            assert self._watch.stdin is not None
            self._watch.stdin.close()
            if self._watch.wait() != 0:
                raise ServerError(f"{self.directory} could not be removed")

    def _is_ready(self) -> bool:
        pid, status = self._read_pid_file()
        return pid == self.pid and status in ("ready", "standby")

    def _is_killed(self) -> bool:
        """Tell whether shared memory is left over, which only another start takes away."""
        pid, _ = self._read_pid_file()
        return pid is not None and not any(pgwatch.processes(self.data))

    def _read_pid_file(self) -> tuple[int | None, str]:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            lines = []
        return (int(lines[0]), lines[-1].strip()) if lines else (None, "")

    def _prepare(self) -> None:
        changes_user = self._account["user"] is not None
        if self.major < 18 or (changes_user and not self._install.is_open_to_all()):
            self.bin = self._install.copy(self.directory / "server")
        else:
            self.bin = self._install.bin
        if self._primary is None:
            self._initdb()
        else:
            self._copy(self._primary)
        settings = {
            "listen_addresses": "",
            "port": str(self.port),
            "unix_socket_directories": self.host,
        }
        if self._primary is not None:
            # pg_basebackup would write what an older server may not know.
            primary = f"host={self._primary.host} port={self._primary.port} user={self.user}"
            settings["primary_conninfo"] = f"{primary} password={self.password}"
        if self.major < 18:
            tree = self.directory / "server"
            scripts = next(tree.rglob("plpgsql.control")).parent
            libraries = next(tree.rglob("plpgsql.so")).parent
        else:
            scripts = self.directory / "share" / "extension"
            libraries = self.directory / "lib"
            for place in (scripts.parent, scripts, libraries):
                place.mkdir()
                place.chmod(0o755)
            settings["extension_control_path"] = f"{scripts.parent}:$system"
            settings["dynamic_library_path"] = f"{libraries}:$libdir"
        self._stage(scripts, libraries)
        with (self.data / "postgresql.conf").open("a") as file:
            for name, value in {**settings, **self._settings}.items():
                quoted = value.replace("\\", "\\\\").replace("'", "''")
                file.write(f"{name} = '{quoted}'\n")

    def _initdb(self) -> None:
        password = self.directory / "password"
        password.write_text(self.password)
        password.chmod(0o644)
        options = ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={password}"]
        options += ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        self._run_program("initdb", "-D", self.data, "-U", self.user, *options)

    def _run_program(self, name: str, *options: str | Path) -> None:
        """Run a program that works on the files of the server, as its user."""
        done = subprocess.run(
            [self.bin / name, *options],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            env=_environment_without_libpq(),
            **self._account,
        )
        if done.returncode != 0:
            # pg_upgrade says on stdout what is wrong.
            raise ServerError(f"{name}: {(done.stderr or done.stdout).strip()}")

    def _copy(self, primary: "Server") -> None:
        """Copy the data of a running server, to follow it."""
        options = ["--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        done = subprocess.run(
            [find_program("pg_basebackup", self._install), "-D", self.data, *options],
            env=primary.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ServerError(f"pg_basebackup: {done.stderr.strip()}")
        (self.data / "standby.signal").touch()
        if (user := self._account["user"]) is not None:
            for path in (self.data, *self.data.rglob("*")):
                os.chown(path, user, -1)

    def _stage(self, scripts: Path, libraries: Path) -> None:
        extension = bootstrap.ROOT / "extension"
        files = [*extension.glob("pgq.control"), *extension.glob("sql/pgq--*.sql")]
        for name in self._extensions:
            found = bootstrap.extension_files(name)
            if not found:
                raise ServerError(f"extension {name} is not at hand: run 'make setup'")
            files += found
        if any(file.suffix == ".so" for file in files):
            self._stage_libraries()
        for file in files:
            target = (libraries if file.suffix == ".so" else scripts) / file.name
            target.unlink(missing_ok=True)
            shutil.copyfile(file, target)
            target.chmod(0o755 if file.suffix == ".so" else 0o644)

    def _stage_libraries(self) -> None:
        """Put the libraries that other extensions brought along where the server finds them."""
        libraries = bootstrap.libraries(bootstrap.DEBIAN)
        if not libraries:
            return
        place = self.directory / "libraries"
        place.mkdir()
        for library in libraries:
            shutil.copyfile(library, place / library.name)
        for path in (place, *place.iterdir()):
            path.chmod(0o755)
        self._environment["LD_LIBRARY_PATH"] = str(place)


def find_account() -> Account:
    """Return as whom to run servers: as root somebody else, which they insist on."""
    if os.geteuid() != 0:
        return {"user": None, "group": None, "extra_groups": None}
    for name in ("nobody", "postgres"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise ServerError("root cannot run PostgreSQL, and there is no user nobody or postgres")


def find_free_port() -> int:
    """Return a TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _make_directory(place: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="pgq-", dir=place))


def _is_roomy(place: Path) -> bool:
    return os.access(place, os.W_OK) and shutil.disk_usage(place).free > _ROOM


def _environment_without_libpq() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not re.fullmatch(r"PG[A-Z]+", name)
    }


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command, handing signals on to it, and return the exit status a shell would."""
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        print(f"pgserver: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127

    def hand_on(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _is_in_foreground():
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    status = process.wait()
    return status if status >= 0 else 128 - status


def _is_in_foreground() -> bool:
    """Tell whether ^C at the terminal reaches the command by itself."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    return name, value


def main() -> int:
    """Run the command given on the command line with a server of its own."""
    parser = argparse.ArgumentParser(description="Run a command with a private PostgreSQL.")
    parser.add_argument("--version", type=int, metavar="MAJOR", help="default: the newest at hand")
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--extension", action="append", default=[], metavar="NAME", help="pgtap")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    try:
        with Server(options.version, dict(options.set), options.extension) as server:
            print(f"PostgreSQL {server.version} ({server.origin})", file=sys.stderr, flush=True)
            return _run(options.command, server.environment())
    except ServerError as error:
        print(f"pgserver: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
