"""The pages of the documentation, and what they show."""

from __future__ import annotations

import re

from bootstrap import ROOT


def read(path: str) -> str:
    """Return the text of a file, whose path is relative to the project's root."""
    return (ROOT / path).read_text(encoding="utf-8")


def snippets(text: str, language: str) -> list[str]:
    """Return the blocks of code of a page in one language, of which there must be one."""
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"no {language} snippet"
    return found
