"""Releases: their frozen scripts, and the version, which pgq.control says and others repeat."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SQL = ROOT / "extension" / "sql"
FRONT = ROOT / "extension" / "proxy" / "pgq_proxy.sql"
CONTROL = ROOT / "extension" / "pgq.control"
RELEASED = SQL / "released.sha256"
STATEMENTS = ROOT / "tests" / "python" / "released"
PACKAGE = ROOT / "python" / "src" / "pgq"
PORTABLE = PACKAGE / "_scripts"
CHANGELOG = ROOT / "CHANGELOG.md"

# What the scripts and the statements of a release are made of.
SOURCES = ("extension", "python/src")

# Where the version stands.
PLACES = {
    CONTROL: ["default_version = '{}'\n"],
    ROOT / "python" / "pyproject.toml": ['\nversion = "{}"\n'],
    ROOT / "META.json": [
        '"version": "{}",\n  "maintainer"',
        '"file": "extension/sql/pgq--{}.sql"',
        '"docfile": "README.md",\n      "version": "{}"',
    ],
}


def current() -> str:
    """The version in development."""
    return _setting("default_version")


def comment() -> str:
    """What the extension is, as a literal of SQL."""
    return f"'{_setting('comment')}'"


def script(*versions: str) -> Path:
    """The install script of a version, or the upgrade script between two."""
    return SQL / f"pgq--{'--'.join(versions)}.sql"


def path(version: str) -> list[str]:
    """The releases before a version, oldest first, and the version."""
    released = [
        match[1] for name in _checksums() if (match := re.fullmatch(r"pgq--([\d.]+)\.sql", name))
    ]
    return [*released, version]


def remove_unreleased() -> None:
    """Remove the scripts that were built, for this version or another one."""
    released = _checksums()
    for file in SQL.glob("pgq--*.sql"):
        if file.name not in released:
            file.unlink()


def check() -> None:
    """Fail if a released script is not what it was, or a file tells another version."""
    faults = [
        f"{SQL.relative_to(ROOT) / name} is not what was released"
        for name, digest in _checksums().items()
        if not (SQL / name).exists() or _digest(SQL / name) != digest
    ]
    version = current()
    faults += [
        f"{place.relative_to(ROOT)} does not say {template.format(version).strip()}"
        for place, templates in PLACES.items()
        for template in templates
        if template.format(version) not in place.read_text(encoding="utf-8")
    ]
    if faults:
        raise SystemExit("\n".join(faults))
    print(f"release: {len(_checksums())} frozen scripts, {version} in development")


def freeze(successor: str) -> None:
    """Record the scripts of the current version as released, and begin the next version."""
    version = current()
    if not re.fullmatch(r"\d+\.\d+\.\d+", successor) or _key(successor) <= _key(version):
        raise SystemExit(f"{successor} does not follow {version}")
    check()
    heading = f"## [{version}] - "
    changes = CHANGELOG.read_text(encoding="utf-8")
    if heading not in changes:
        raise SystemExit(f"CHANGELOG.md has no section [{version}] with a date")
    _check_tag(f"v{version}")
    before = path(version)[-2:]
    frozen = [script(version)] + ([script(*before)] if len(before) > 1 else [])
    with RELEASED.open("a", encoding="utf-8") as manifest:
        manifest.writelines(f"{_digest(file)}  {file.name}\n" for file in frozen)
    statements = STATEMENTS / f"{version}.json"
    statements.write_text(_statements(), encoding="utf-8")
    for place, templates in PLACES.items():
        text = place.read_text(encoding="utf-8")
        for template in templates:
            text = text.replace(template.format(version), template.format(successor))
        place.write_text(text, encoding="utf-8")
    begun = f"## [Unreleased]\n\n{heading}"
    CHANGELOG.write_text(changes.replace(heading, begun, 1), encoding="utf-8")
    _git("add", "--force", "--", RELEASED, statements, *frozen)
    print(f"{version} is frozen: commit all of it")


def _check_tag(tag: str) -> None:
    """Fail unless what is here is what the tag of the release points to."""
    if not _git("tag", "--list", tag):
        raise SystemExit(f"there is no tag {tag}. Hint: git fetch --tags, or release it first")
    differing = [
        *_git("diff", "--name-only", f"refs/tags/{tag}", "--", *SOURCES),
        *_git("ls-files", "--others", "--exclude-standard", "--", *SOURCES),
    ]
    if differing:
        what = ", ".join(differing)
        raise SystemExit(f"not what was released as {tag}: {what}. Hint: git checkout {tag}")


def _git(*arguments: str | Path) -> list[str]:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def _setting(name: str) -> str:
    found = re.search(rf"^{name} = '(.+)'$", CONTROL.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"pgq.control has no {name}")
    return found[1]


def _statements() -> str:
    """The statements of the Python package, so that tests can send those of older ones."""
    found = {
        f"{file.parent.name}.{name}": text
        for file in (PACKAGE / "_sql.py", PACKAGE / "_operate" / "sql.py")
        for name, text in runpy.run_path(str(file)).items()
        if name.isupper() and not name.startswith("_") and isinstance(text, str) and "@pgq" in text
    }
    return json.dumps(found, indent=1) + "\n"


def _checksums() -> dict[str, str]:
    """The checksums of the frozen scripts by their names, in the order of their release."""
    if not RELEASED.exists():
        return {}
    lines = RELEASED.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _key(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
