"""Build the install script: sql/src/NN_topic.sql, in name order, into sql/pgq--VERSION.sql.

What exists once per partition is written once. A block

    --@ each ring
    ... {slot} ... {key} ...
    --@ end

is repeated for every member of the family, with {slot} replaced by its number and {key} by the
column that orders it. A block opened with "--@ define name" is not copied: it is what {name}
stands for from there on, in the files that follow, too.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
RING = [{"slot": str(slot), "key": "id"} for slot in range(4)]
PARKED = [{"slot": str(slot), "key": "due"} for slot in (4, 5)]
FAMILIES = {
    "ring": RING,
    "parked": PARKED,
    "slot": RING + PARKED,
    "archive": [{"slot": str(slot)} for slot in range(40)],
    "stat": [{"slot": str(slot)} for slot in range(3)],
}
BLOCK = re.compile(r"^ *--@ (define|each) (\w+)\n(.*?)^ *--@ end\n", re.MULTILINE | re.DOTALL)
HEADER = (
    "-- Built by extension/build.py from extension/sql/src; edit it there.\n"
    '\\echo Use "CREATE EXTENSION pgq" to load this file. \\quit\n'
)


def version() -> str:
    """The extension's version, from its one place: pgq.control."""
    control = (HERE / "pgq.control").read_text(encoding="utf-8")
    found = re.search(r"^default_version = '(.+)'$", control, re.MULTILINE)
    if found is None:
        raise SystemExit("pgq.control names no default_version")
    return found[1]


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

    return substitute(BLOCK.sub(write_out, source), defined)


def build() -> Path:
    """Write the install script and return its path."""
    target = HERE / "sql" / f"pgq--{version()}.sql"
    sources = sorted((HERE / "sql" / "src").glob("*.sql"))
    defined: dict[str, str] = {}
    body = "\n".join(expand(source.read_text(encoding="utf-8"), defined) for source in sources)
    target.write_text(f"{HEADER}\n{body}".replace("@pgq_version@", version()), encoding="utf-8")
    return target


if __name__ == "__main__":
    print(build().relative_to(HERE))
