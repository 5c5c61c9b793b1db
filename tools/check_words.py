"""Checks the prose of all pages: README, docs, COMMENTs (one of the pages has them), CHANGELOG.

Complains of sentences of more than 30 words, of more than one passive verb in a sentence, of
abbreviations that the page does not spell out, of names that the glossary has replaced, and of what
proselint finds. With --counts: a table of words and sentences.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bootstrap import ROOT
from pglast import keywords
from prose import paragraphs, passives, sentences, words

MAX_WORDS = 30
MAX_PASSIVES = 1

GLOSSARY = "docs/glossary.md"
# Pages that programs write, figures above all.
GENERATED = frozenset(("benchmarks/HELD_HOUR.md", "benchmarks/RESULTS.md", "benchmarks/SOAK.md"))
# These pages tell of other projects in the words of those.
OF_OTHERS = frozenset((GLOSSARY, "docs/comparison.md", "docs/migration.md", "benchmarks/README.md"))

# What an engineer knows who works with PostgreSQL and Python, beside the keywords of SQL; names.
_KNOWN = """
API ASCII ASGI AZ CI CONTEXT CPU CREATEDB CSP CSRF DB DBA DDL DEBUG DNS DSN FIFO GB GIL HINT HOT
HTML HTTP HTTPS ID INFO IO ISO JDBC JSON KB LTS MB NOTICE ORM PDO PHP PL PUBLIC SDK SIGHUP SIGINT
SIGKILL SIGSTOP SIGTERM SQL SQLSTATE SSL SVG TLS TOAST UI URL UTC UTF UTF8 WAL WARNING
CHANGELOG CONTRIBUTING README RESULTS SOAK DBD DBOS KEDA PGMQ PGXN PGXS RDS SPIN SQS TLA TLC
"""
_ABBREVIATION = re.compile(r"\b[A-Z][A-Z0-9]+\b")
_SQLSTATE = re.compile(r"(?=\w*\d)[0-9A-Z]{5}")

# Typographic quotes and dashes would be wrong in a text that people copy into a shell.
_PROSELINT = {"checks": {"typography": False}}
# Stands between paragraphs, so that no phrase goes from one to the next.
_MARK = "\N{PILCROW SIGN}"


def read_pages() -> dict[str, str]:
    """Return the pages by their paths, relative to the project's root."""
    found: dict[str, str] = {}
    for path in sorted(ROOT.rglob("*.md")):
        name = path.relative_to(ROOT)
        hidden = any(part.startswith(".") or part == "node_modules" for part in name.parts)
        if not hidden and name.as_posix() not in GENERATED:
            found[name.as_posix()] = path.read_text(encoding="utf-8")
    return found


def other_names(glossary: str) -> dict[str, str]:
    """Return the names in the glossary's third column, each with the term to use instead."""
    _, _, table = glossary.partition("|---|\n")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return {name: row[0] for row in rows if len(row) == 3 for name in row[2].split(", ")}


def complaints(page: str, replaced: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with a page, with the line on which the paragraph begins."""
    for line, sentence in sentences(page):
        if (count := words(sentence)) > MAX_WORDS:
            yield line, f"{count} words in a sentence: {sentence[:60]} ..."
        if (count := passives(sentence)) > MAX_PASSIVES:
            yield line, f"{count} passive verbs in a sentence: {sentence[:60]} ..."
        for found in _ABBREVIATION.findall(sentence):
            if not _is_known(found) and f"({found})" not in page:
                yield line, f"not spelled out on this page, as 'Some Long Name (SLN)': {found}"
        for name, term in replaced.items():
            if re.search(rf"\b{re.escape(name)}\b", sentence, re.IGNORECASE):
                yield line, f"the glossary calls this '{term}': {name}"


def found_by_proselint(pages: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    """Yield what proselint says: page, line on which the paragraph begins, message."""
    with tempfile.TemporaryDirectory() as place:
        config = Path(place, "config.json")
        config.write_text(json.dumps(_PROSELINT), encoding="utf-8")
        files = {Path(place, f"{at}.md").resolve(): name for at, name in enumerate(pages)}
        for file, name in files.items():
            texts = (text for _, text in paragraphs(pages[name]))
            file.write_text(f"\n{_MARK}\n".join(texts), encoding="utf-8")
        command = [sys.executable, "-m", "proselint", "check", "--config", str(config)]
        command += ["--output-format", "json", *map(str, files)]
        answer = subprocess.run(command, check=False, stdout=subprocess.PIPE)
        for uri, result in json.loads(answer.stdout)["result"].items():
            name = files[Path(uri.removeprefix("file://"))]
            lines = [line for line, _ in paragraphs(pages[name])]
            for found in result["diagnostics"]:
                yield name, lines[(found["pos"][0] - 1) // 2], found["message"]


def main() -> None:
    """Check all pages, or print their counts."""
    pages = read_pages()
    if "--counts" in sys.argv[1:]:
        for name, page in pages.items():
            texts = [sentence for _, sentence in sentences(page)]
            long = sum(words(sentence) > MAX_WORDS for sentence in texts)
            chains = sum(passives(sentence) > MAX_PASSIVES for sentence in texts)
            print(f"{sum(map(words, texts)):6} words {len(texts):5} sentences", end=" ")
            print(f"{long:4} long {chains:4} passive  {name}")
        return
    replaced = other_names(pages[GLOSSARY])
    found = [*found_by_proselint(pages)]
    for name, page in pages.items():
        names = {} if name in OF_OTHERS else replaced
        found += [(name, line, message) for line, message in complaints(page, names)]
    for name, line, message in sorted(found):
        print(f"{name}:{line}: {message}")
    sys.exit(bool(found))


def _is_known(abbreviation: str) -> bool:
    word = abbreviation.lower()
    return (
        abbreviation in _KNOWN.split()
        or _SQLSTATE.fullmatch(abbreviation) is not None
        or word in keywords.RESERVED_KEYWORDS
        or word in keywords.UNRESERVED_KEYWORDS
        or word in keywords.COL_NAME_KEYWORDS
        or word in keywords.TYPE_FUNC_NAME_KEYWORDS
    )


if __name__ == "__main__":
    main()
