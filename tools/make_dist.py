"""Builds what a release consists of from the last commit, the same bytes each time.

    python tools/make_dist.py [--output dist]

`pgq-VERSION.zip` is for PGXN: the project as committed, with the scripts built, so that
`make install` needs no Python. Then come the Python package, as source and as wheel, and the
scripts that install without files on the server.
Uncommitted changes are left out. Times are those of the commit.
"""

import argparse
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path("python", "src", "pgq", "_scripts")
# The checkout may belong to another user, as in a container.
GIT = ("git", "-c", f"safe.directory={ROOT}")
BUILD_PACKAGE = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"


def main() -> None:
    """Build everything into the directory named on the command line."""
    parser = argparse.ArgumentParser(description="Build what a release consists of.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIRECTORY")
    output: Path = parser.parse_args().output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    epoch = int(_run(*GIT, "log", "-1", "--format=%ct", cwd=ROOT))
    with tempfile.TemporaryDirectory(prefix="pgq-dist-") as scratch:
        tree = Path(scratch) / "tree"
        _export(tree)
        committed = _files(tree)
        _run(sys.executable, "extension/build.py", cwd=tree)
        archives = [_pgxn(tree, committed, output, epoch), *_python(tree, output, epoch)]
        archives += [Path(shutil.copy(script, output)) for script in _files(tree / SCRIPTS)]
    for archive in archives:
        print(os.path.relpath(archive))


def _export(tree: Path) -> None:
    """Write the files of the last commit to a new directory."""
    tree.mkdir()
    command = [*GIT, "-c", "tar.umask=022", "archive", "HEAD"]
    archive = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x"], cwd=tree, input=archive.stdout, check=True)


def _pgxn(tree: Path, committed: list[Path], output: Path, epoch: int) -> Path:
    """Make the archive for PGXN, of what is committed and the scripts that were built.

    Those come last: make takes them for up to date also where an unpacking tool gives each file
    the time of its unpacking.
    """
    scripts = sorted({*(tree / "extension" / "sql").glob("pgq--*.sql")} - {*committed})
    version = json.loads((tree / "META.json").read_text(encoding="utf-8"))["version"]
    target = output / f"pgq-{version}.zip"
    time = datetime.fromtimestamp(epoch, UTC).timetuple()[:6]
    with zipfile.ZipFile(target, "w") as archive:
        for path in [*committed, *scripts]:
            entry = zipfile.ZipInfo(f"{target.stem}/{path.relative_to(tree).as_posix()}", time)
            entry.external_attr = path.stat().st_mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return target


def _python(tree: Path, output: Path, epoch: int) -> Iterator[Path]:
    """Make sdist and wheel of the Python package."""
    package = tree / "python"
    shutil.copy(tree / "LICENSE", package)
    built = tree.with_name("built")
    built.mkdir()
    for kind in ("sdist", "wheel"):
        _run(
            *(sys.executable, "-c", BUILD_PACKAGE.format(kind), str(built)),
            cwd=package,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        )
    for path in _files(built):
        if path.suffix == ".gz":
            _settle_sdist(path, epoch)
        yield Path(shutil.move(path, output / path.name))


def _settle_sdist(path: Path, epoch: int) -> None:
    """Write an sdist anew, without what setuptools takes from clock, user and file system."""
    with tarfile.open(path) as old:
        members = sorted(old, key=lambda member: member.name)
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as new:
            for member in members:
                settled = tarfile.TarInfo(member.name)
                settled.type, settled.mode, settled.size = member.type, member.mode, member.size
                settled.mtime = epoch
                new.addfile(settled, old.extractfile(member) if member.isfile() else None)
    path.write_bytes(gzip.compress(content.getvalue(), mtime=epoch))


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _run(*command: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
