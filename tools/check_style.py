"""Checks SQL source files against the rules that no ready-made linter has."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_COLUMNS = 100
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 80

_COMMENT = r"--[^\n]*|/\*.*?\*/"
_QUOTED = r"\be'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\""
_TOKEN = re.compile(f"(?P<comment>{_COMMENT})|(?P<quoted>{_QUOTED})", re.DOTALL | re.IGNORECASE)
_FUNCTION = re.compile(
    r"^create\s+(?:or\s+replace\s+)?(?:function|procedure)\s+([\w.@]+).*?"
    r"(?:\bas\s+(\$\w*\$).*?\2[^;]*;|;)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_OPTION = re.compile(
    r"\b(errcode|message|detail|hint|column|constraint|datatype|table|schema)\s*=(?!=)"
)
_TEXT = re.compile(r"'(?:[^']|'')*'(?:\s*\n\s*'(?:[^']|'')*')*")

Finding = tuple[int, str]


class Source:
    """A file's text, also without its comments, and without strings and comments ("code").

    What is left out is replaced by blanks, so that every position stays the same.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.uncommented = _TOKEN.sub(lambda m: _blank(m[0]) if m["comment"] else m[0], text)
        self.code = _TOKEN.sub(lambda m: _blank(m[0]), text)

    def line(self, position: int) -> int:
        """Return the number of the line that a position in the text is on."""
        return self.text.count("\n", 0, position) + 1

    def search(self, pattern: str, text: str, message: str) -> Iterator[Finding]:
        """Yield a finding for every match."""
        for match in re.finditer(pattern, text):
            yield self.line(match.start()), message.format(match[0])


def opens_with_comment(source: Source) -> Iterator[Finding]:
    """Each file says first what it owns, its invariants and its lock order."""
    if not source.text.startswith("/*"):
        yield 1, "the file does not open with a /* */ block"


def is_short(source: Source) -> Iterator[Finding]:
    """A file is about one topic."""
    count = source.text.count("\n")
    if count > MAX_FILE_LINES:
        yield count, f"the file has {count} lines, more than {MAX_FILE_LINES}"


def has_short_functions(source: Source) -> Iterator[Finding]:
    """A function fits on a page, unless a hot statement is written out per slot."""
    for match in _FUNCTION.finditer(source.code):
        count = match[0].count("\n") + 1
        if count > MAX_FUNCTION_LINES and "--@ each" not in source.text[slice(*match.span())]:
            message = f"function {match[1]} has {count} lines, more than {MAX_FUNCTION_LINES}"
            yield source.line(match.start()), message


def has_short_lines(source: Source) -> Iterator[Finding]:
    """A line can be read beside another one."""
    for number, line in enumerate(source.lines, 1):
        if len(line) > MAX_COLUMNS:
            yield number, f"the line has {len(line)} columns, more than {MAX_COLUMNS}"


def is_lower_case(source: Source) -> Iterator[Finding]:
    """Keywords and names are lower case, which also catches names that would be folded."""
    yield from source.search(r"\b\w*[A-Z]\w*", source.code, "'{}' is not lower case")


def catches_by_name(source: Source) -> Iterator[Finding]:
    """A handler names the errors that it can handle."""
    yield from source.search(r"\bwhen\s+others\b", source.code, "'when others' hides errors")


def raises_with_errcode(source: Source) -> Iterator[Finding]:
    """Clients branch on SQLSTATE, never on the text; a lone 'raise' passes the error on."""
    for match in re.finditer(r"\braise\b([^;]*)", source.code):
        if match[1].strip() and not re.search(r"\berrcode\b", match[1]):
            yield source.line(match.start()), "'raise' without errcode"


def words_its_messages(source: Source) -> Iterator[Finding]:
    """A message is part of a line and has no full stop; DETAIL and HINT are sentences."""
    for match in re.finditer(r"\braise\s+[a-z]+\b[^;]*", source.code):
        statement = source.uncommented[slice(*match.span())]
        names = [*_OPTION.finditer(match[0])]
        ends = [name.start() for name in names] + [len(statement)]
        message = next(iter(_texts(statement[: ends[0]])), "")
        if re.match(r"[A-Z]", message) or message.endswith("."):
            yield source.line(match.start()), "a message is lower-case, without full stop"
        for name, end in zip(names, ends[1:], strict=True):
            texts = _texts(statement[name.end() : end])
            is_sentence = any(text.endswith(".") for text in texts)
            if name[1] in ("detail", "hint") and texts and not is_sentence:
                yield source.line(match.start()), f"the {name[1]} has no full stop"


def passes_values_as_parameters(source: Source) -> Iterator[Finding]:
    """Values go through USING; only identifiers are ever formatted into a statement."""
    message = "'{}' formats a value into SQL"
    yield from source.search(r"%(?:\d+\$)?-?\d*L", source.uncommented, message)


def calls_once_for_all_columns(source: Source) -> Iterator[Finding]:
    """PostgreSQL reads (f()).* as a call for each column; a subquery with OFFSET 0 calls once."""
    arguments = r"(?:[^()]|\([^()]*\))*"
    message = "'{}' calls the function for each column"
    yield from source.search(rf"\(pgq\.\w+\({arguments}\)\)\.\*", source.code, message)


def marks_its_escapes(source: Source) -> Iterator[Finding]:
    """A backslash in a plain string means one thing or another by standard_conforming_strings."""
    for match in _TOKEN.finditer(source.text):
        if (match["quoted"] or "").startswith("'") and "\\" in match[0]:
            yield source.line(match.start()), "backslash in a string that is no E''"


def has_clean_white_space(source: Source) -> Iterator[Finding]:
    """No tab, no blank at the end of a line, and one newline at the end of the file."""
    yield from source.search(r"\t", source.text, "tab")
    yield from source.search(r"[ \t\r]+(?=\n|\Z)", source.text, "blanks at the end of the line")
    if not source.text.endswith("\n") or source.text.endswith("\n\n"):
        yield len(source.lines), "the file does not end with one newline"


RULES: tuple[Callable[[Source], Iterator[Finding]], ...] = (
    opens_with_comment,
    is_short,
    has_short_functions,
    has_short_lines,
    is_lower_case,
    catches_by_name,
    raises_with_errcode,
    words_its_messages,
    passes_values_as_parameters,
    calls_once_for_all_columns,
    marks_its_escapes,
    has_clean_white_space,
)


def check(text: str) -> list[Finding]:
    """Return the findings of all rules, in the order of the lines."""
    source = Source(text)
    return sorted(finding for rule in RULES for finding in rule(source))


def _texts(expression: str) -> list[str]:
    """Return the strings of an expression, each with its continuation on the lines below."""
    return [re.sub(r"'\s*\n\s*'", "", text)[1:-1] for text in _TEXT.findall(expression)]


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def main() -> int:
    """Check the files named on the command line; return the exit status."""
    findings = [
        f"{path}:{line}: {message}"
        for path in sys.argv[1:]
        for line, message in check(Path(path).read_text())
    ]
    print("\n".join(findings) or f"check_style: {len(sys.argv) - 1} files, no finding")
    return 1 if findings or len(sys.argv) == 1 else 0


if __name__ == "__main__":
    raise SystemExit(main())
