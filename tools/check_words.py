"""Reports sentences of more than 30 words in the prose of README.md and docs/.

One of the pages has the comments of the SQL. Code, tables, HTML and the targets of links do not
count; a span of code is one word. With --counts: a table.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from bootstrap import ROOT
from markdown_it import MarkdownIt
from markdown_it.token import Token

MAX_WORDS = 30

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
_WORD = re.compile(r"\w")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence of a page, with the line on which its paragraph begins."""
    in_table = False
    for token in MarkdownIt().enable("table").parse(text):
        if token.type in ("table_open", "table_close"):
            in_table = token.type == "table_open"
        if token.type == "inline" and token.map and not in_table:
            for sentence in _END.split(_prose(token.children or [])):
                if _WORD.search(sentence):
                    yield token.map[0] + 1, sentence


def words(sentence: str) -> int:
    """Return how many words a sentence has."""
    return sum(1 for part in sentence.split() if _WORD.search(part))


def pages() -> Iterator[str]:
    """Yield the paths of the pages, relative to the project's root."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith("docs/playground/"):
            yield name


def main() -> None:
    """Check all pages, or print their counts."""
    failed = False
    for page in pages():
        found = [*sentences(Path(ROOT, page).read_text(encoding="utf-8"))]
        long = [(line, text) for line, text in found if words(text) > MAX_WORDS]
        if "--counts" in sys.argv[1:]:
            total = sum(words(text) for _, text in found)
            print(f"{total:6} words {len(found):5} sentences {len(long):4} long  {page}")
            continue
        for line, text in long:
            failed = True
            print(f"{page}:{line}: {words(text)} words, more than {MAX_WORDS}: {text[:60]} ...")
    sys.exit(failed)


def _prose(children: list[Token]) -> str:
    kinds = {"code_inline": "code", "softbreak": " ", "hardbreak": " "}
    return "".join(
        child.content if child.type == "text" else kinds.get(child.type, "") for child in children
    )


if __name__ == "__main__":
    main()
