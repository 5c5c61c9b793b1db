"""Reads the prose of a page in Markdown: paragraphs, sentences, words, passive verbs.

Code, HTML and the targets of links do not count; a span of code is one word.
"""

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")
_WORD = re.compile(r"\w")
_IRREGULAR = (
    "begun|bought|bound|broken|brought|built|caught|chosen|cut|done|drawn|driven|found|given|gone|"
    "held|hidden|kept|known|led|left|lost|made|meant|met|paid|put|read|run|seen|sent|set|shown|"
    "sold|taken|thought|thrown|told|understood|written"
)
_PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being|get|gets|got)"
    r"(?:\s+(?:not|never|then|always|also|only|still|often|just|\w+ly))*"
    rf"\s+(?:\w+ed|{_IRREGULAR})\b",
    re.IGNORECASE,
)


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph, heading, item and cell of a page, with the line on which it begins."""
    line = 0
    for token in MarkdownIt().enable("table").parse(page):
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline":
            yield line, _text(token.children or [])


def sentences(page: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence of a page, with the line on which its paragraph begins."""
    for line, text in paragraphs(page):
        for sentence in _END.split(text):
            if _WORD.search(sentence):
                yield line, sentence


def words(sentence: str) -> int:
    """Return how many words a sentence has."""
    return sum(1 for part in sentence.split() if _WORD.search(part))


def passives(sentence: str) -> int:
    """Return how many verbs of a sentence are in the passive voice."""
    return len(_PASSIVE.findall(sentence))


def _text(children: list[Token]) -> str:
    kinds = {"code_inline": "code", "softbreak": " ", "hardbreak": " "}
    return "".join(
        child.content if child.type == "text" else kinds.get(child.type, "") for child in children
    )
