"""Build the install script: sql/src/NN_topic.sql, in name order, into sql/pgq--VERSION.sql.

    python3 extension/build.py [--check | --freeze NEXT]

Beside it comes the upgrade script from the last release, see upgrade.py, and in _scripts of the
Python package what installs pgq where no file can be put on the server, see portable.py. What an
older build has left in these places is removed. Scripts of releases are never written again:
--freeze records those of this version, see release.py, and --check that none has changed.

What exists once per partition is written once. A block

    --@ each ring
    ... {slot} ... {key} ...
    --@ end

is repeated for every member of the family, with {slot} replaced by its number and {key} by the
column that orders it; {other} is the number of the other parked slot. A block opened with
"--@ define name" is not copied: it is what {name} stands for from there on, in the files that
follow, too. A public function below "--@ twice pgq._name" is repeated under that name, for other
functions: in the schema of the public ones others may have created what makes calls ambiguous.
"""

from __future__ import annotations

import argparse
import itertools
import re

import portable
import release
import upgrade

RING = [{"slot": str(slot), "key": "id"} for slot in range(4)]
PARKED = [{"slot": str(slot), "other": str(9 - slot), "key": "due"} for slot in (4, 5)]
FAMILIES = {
    "ring": RING,
    "parked": PARKED,
    "slot": RING + PARKED,
    "archive": [{"slot": str(slot)} for slot in range(40)],
    "stat": [{"slot": str(slot)} for slot in range(3)],
    "event": [{"slot": str(slot)} for slot in range(6)],
}
BLOCK = re.compile(r"^ *--@ (define|each) (\w+)\n(.*?)^ *--@ end\n", re.MULTILINE | re.DOTALL)
TWICE = re.compile(
    r"^--@ twice pgq\.(\w+)\n(create function @extschema@\.(\w+)\(.*?^\$\$;\n)",
    re.MULTILINE | re.DOTALL,
)
HEADER = (
    "-- Built by extension/build.py from extension/sql/src; edit it there.\n"
    '\\echo Use "CREATE EXTENSION pgq" to load this file. \\quit\n'
)


def substitute(text: str, values: dict[str, str]) -> str:
    """The text with every {name} replaced, also inside what a name stands for."""
    for name, value in reversed(values.items()):
        text = text.replace(f"{{{name}}}", value)
    return text


def expand(source: str, defined: dict[str, str]) -> str:
    """The source with all blocks written out; what it defines is added to `defined`."""

    def write_out(block: re.Match[str]) -> str:
        kind, name, body = block.groups()
        if kind == "define":
            defined[name] = body.strip()
            return ""
        return "".join(substitute(body, member | defined) for member in FAMILIES[name])

    return TWICE.sub(repeat, substitute(BLOCK.sub(write_out, source), defined))


def repeat(function: re.Match[str]) -> str:
    """The function, and the same in the closed schema, where it has its caller's rights."""
    name, text, public = function.groups()
    closed = text.replace(f"@extschema@.{public}", f"pgq.{name}").replace("security definer\n", "")
    return text + re.sub(rf"\b{public}\.", f"{name}.", closed)


def write_install_script(version: str) -> str:
    """Write the install script and return it."""
    sources = sorted((release.SQL / "src").glob("*.sql"))
    defined: dict[str, str] = {}
    body = "\n".join(expand(source.read_text(encoding="utf-8"), defined) for source in sources)
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
        delta.read_text(encoding="utf-8") if delta.exists() else upgrade.FUNCTIONS,
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
