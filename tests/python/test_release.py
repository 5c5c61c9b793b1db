"""What the build writes and removes, and what may be frozen: run in a repository of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import release
from bootstrap import ROOT

from .programs import run_program

pytestmark = pytest.mark.constant

VERSION = release.current()
NEXT = "99.0.0"
TAG = f"v{VERSION}"


def git(checkout: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=pgq", "-c", "user.email=pgq@example.org", "-c", "gc.auto=0"]
    return run_program("git", *identity, *arguments, cwd=checkout)


def commit(checkout: Path) -> None:
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "change")


def build(checkout: Path) -> None:
    run_program(sys.executable, "extension/build.py", cwd=checkout)


def freeze(checkout: Path) -> str:
    """Freeze the version; return what is said where that is refused."""
    command = [sys.executable, "extension/build.py", "--freeze", NEXT]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def listing(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The project, with the date of a release in its changelog, and all of it committed."""
    for name in ("extension", "python", "tests/python/released"):
        skip = shutil.ignore_patterns("__pycache__", "build", "_scripts", "*.egg-info")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skip)
    for name in (".gitignore", "CHANGELOG.md", "META.json"):
        shutil.copy(ROOT / name, tmp_path)
    changelog = tmp_path / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    dated = re.sub(r"## \[Unreleased\]", f"## [{VERSION}] - 2026-12-24", text, count=1)
    changelog.write_text(dated, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--force", *(str(path) for path in frozen(tmp_path)))
    commit(tmp_path)
    return tmp_path


def frozen(checkout: Path) -> list[Path]:
    lines = (checkout / "extension/sql/released.sha256").read_text(encoding="utf-8").splitlines()
    return [checkout / "extension/sql" / line.split()[1] for line in lines]


def test_a_build_leaves_nothing_of_other_versions(checkout: Path) -> None:
    build(checkout)
    sql, scripts = checkout / "extension/sql", checkout / "python/src/pgq/_scripts"
    expected = listing(sql), listing(scripts)
    assert not (checkout / "dist").exists()
    for place, name in (
        (sql, "pgq--99.0.0.sql"),
        (sql, "pgq--0.1.0--99.0.0.sql"),
        (scripts, "pgq--0.1.0--99.0.0.sql"),
        (scripts, "old.sql"),
    ):
        (place / name).write_text("select 1;", encoding="utf-8")
    build(checkout)
    assert (listing(sql), listing(scripts)) == expected


def test_what_the_tag_points_to_is_frozen(checkout: Path) -> None:
    git(checkout, "tag", TAG)
    assert freeze(checkout) == ""
    assert {f"pgq--{VERSION}.sql", f"pgq--{NEXT}.sql"} <= listing(checkout / "extension/sql")
    assert f"pgq--{VERSION}.sql" in {path.name for path in frozen(checkout)}
    assert f"extension/sql/pgq--{VERSION}.sql" in git(checkout, "diff", "--cached", "--name-only")
    run_program(sys.executable, "extension/build.py", "--check", cwd=checkout)


@pytest.mark.parametrize("change", ["no tag", "uncommitted", "committed", "new file", "statement"])
def test_nothing_else_is_frozen(checkout: Path, change: str) -> None:
    changed = checkout / "extension/sql/src/job/enqueue.sql"
    if change == "new file":
        changed = changed.with_name("99_new.sql")
    if change == "statement":
        changed = checkout / "python/src/pgq/_sql.py"
    if change != "no tag":
        git(checkout, "tag", TAG)
        with changed.open("a", encoding="utf-8") as file:
            file.write("\n")
    if change == "committed":
        commit(checkout)
    before = frozen(checkout)
    refused = freeze(checkout)
    assert f"no tag {TAG}" in refused if change == "no tag" else changed.name in refused
    assert frozen(checkout) == before
    control = (checkout / "extension/pgq.control").read_text(encoding="utf-8")
    assert f"default_version = '{VERSION}'" in control
