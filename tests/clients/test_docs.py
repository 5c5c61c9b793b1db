"""What docs/clients.md quotes is in the programs that were tested."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GUIDE = (HERE.parents[1] / "docs" / "clients.md").read_text(encoding="utf-8")
PROGRAMS = {
    "c": ["client.c"],
    "go": ["client.go"],
    "ini": ["pgbouncer.ini"],
    "java": ["Client.java"],
    "js": ["client.mjs"],
    "perl": ["client.pl"],
    "php": ["client.php"],
    "python": ["client.py", "client_django.py", "client_sqlalchemy.py"],
    "ruby": ["client.rb"],
    "sql": ["client.sql"],
}
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def parts(text: str, length: int) -> Iterator[str]:
    """Yield each run of so many lines, without the indentation that they have in common."""
    lines = text.splitlines(keepends=True)
    for start in range(len(lines) - length + 1):
        yield textwrap.dedent("".join(lines[start : start + length]))


@pytest.mark.parametrize(("language", "block"), BLOCKS)
def test_a_quotation_is_part_of_a_program(language: str, block: str) -> None:
    texts = [(HERE / name).read_text(encoding="utf-8") for name in PROGRAMS[language]]
    length = block.count("\n")
    assert any(block == part for text in texts for part in parts(text, length)), block


def test_every_program_is_quoted() -> None:
    assert {language for language, _ in BLOCKS} == set(PROGRAMS)
    for names in PROGRAMS.values():
        for name in names:
            assert f"](../tests/clients/{name})" in GUIDE
