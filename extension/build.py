"""Build the install script: the files that sql/install.order names, into sql/pgq--VERSION.sql.

    python3 extension/build.py [--check | --freeze NEXT]

Beside it comes the upgrade script from the last release, see upgrade.py, and in _scripts of the
Python package what installs pgq where no file can be put on the server, see portable.py. What an
older build has left in these places is removed. Scripts of releases are never written again:
--freeze records those of this version, see release.py, and --check that none has changed.

What exists once per partition is written once. A block

    --@ each ring
    ... {slot} ...
    --@ end

is repeated for every member of the family, with {slot} replaced by its number.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil

import portable
import release
import upgrade

FAMILIES = {
    "ring": range(4),
    "parked": range(4, 6),
    "slot": range(6),
    "stat": range(3),
}
BLOCK = re.compile(r"^ *--@ each (\w+)\n(.*?)^ *--@ end\n", re.MULTILINE | re.DOTALL)
HEADER = (
    "-- Built by extension/build.py from extension/sql/src; edit it there.\n"
    '\\echo Use "CREATE EXTENSION pgq" to load this file. \\quit\n'
)


def expand(source: str) -> str:
    """The source with all blocks written out."""

    def write_out(block: re.Match[str]) -> str:
        family, body = block.groups()
        return "".join(body.replace("{slot}", str(slot)) for slot in FAMILIES[family])

    return BLOCK.sub(write_out, source)


def sources() -> list[str]:
    """The texts of the source files, in the order of installation."""
    names = (release.SQL / "install.order").read_text(encoding="utf-8").split()
    files = {str(path.relative_to(release.SQL / "src")) for path in release.SQL.glob("src/*/*.sql")}
    if sorted(names) != sorted(files):
        raise SystemExit(f"install.order and src differ: {sorted({*names} ^ files)}")
    return [(release.SQL / "src" / name).read_text(encoding="utf-8") for name in names]


def write_install_script(version: str) -> str:
    """Write the install script and return it."""
    body = "\n".join(map(expand, sources()))
    script = f"{HEADER}\n{body}".replace("@pgq_version@", version)
    release.script(version).write_text(script, encoding="utf-8")
    return script


def write_upgrade_script(old: str, version: str, script: str) -> None:
    """Write the script that leads from the last release to this version."""
    delta = release.SQL / "updates" / f"{old}--{version}.sql"
    text = upgrade.upgrade(
        old,
        release.script(old).read_text(encoding="utf-8"),
        script,
        expand(delta.read_text(encoding="utf-8")) if delta.exists() else None,
    )
    release.script(old, version).write_text(text, encoding="utf-8")


def write_portable_scripts(version: str, script: str) -> None:
    """Write what installs, upgrades and removes pgq where no file can be put on the server."""
    path = release.path(version)
    steps = [
        (old, new, release.script(old, new).read_text(encoding="utf-8"))
        for old, new in itertools.pairwise(path)
    ]
    first = release.script(path[0]).read_text(encoding="utf-8")
    released = [release.script(old).read_text(encoding="utf-8") for old in path[:-1]]
    guards = portable.guards(script)
    files = {
        "pgq.sql": portable.plain(script, version),
        "pgq-uninstall.sql": portable.uninstall([*released, script], guards),
        "pgq-tle.sql": portable.tle(release.comment(), (path[0], first), steps),
        **{
            f"pgq--{o}--{n}.sql": portable.plain_upgrade(text, o, n, guards) for o, n, text in steps
        },
    }
    release.PORTABLE.mkdir(parents=True, exist_ok=True)
    for stale in release.PORTABLE.glob("*.sql"):
        stale.unlink()
    for name, text in files.items():
        (release.PORTABLE / name).write_text(text, encoding="utf-8")
    shutil.copy(release.FRONT, release.PORTABLE)


def build() -> None:
    """Write all scripts of the current version."""
    version = release.current()
    path = release.path(version)
    if version in path[:-1]:
        raise SystemExit(f"{version} is released, and its script is not written again")
    release.remove_unreleased()
    script = write_install_script(version)
    if len(path) > 1:
        write_upgrade_script(path[-2], version, script)
    write_portable_scripts(version, script)
    print(release.script(version).relative_to(release.ROOT))


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description="Build the scripts.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="that no released script has changed")
    action.add_argument("--freeze", metavar="NEXT", help="release this version, begin the next")
    options = parser.parse_args()
    if options.check:
        release.check()
        return
    build()
    if options.freeze:
        release.freeze(options.freeze)
        build()


if __name__ == "__main__":
    main()
