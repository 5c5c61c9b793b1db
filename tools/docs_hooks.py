"""Hooks of MkDocs: what lies outside docs/ and is linked to gets a page, and links are checked.

The pages in docs/ link to files of the repository, as they do where the repository is looked at
without a site. Here such a file becomes a page below repository/, a file of tests with a heading
for each test, so that a link with the test's name as anchor is checked, too. Nothing is fetched:
of addresses elsewhere only the form is checked. What stands between `<!-- tabs -->` and
`<!-- /tabs -->` becomes tabs, one for each line that is a bold title.
"""

from __future__ import annotations

import itertools
import logging
import posixpath
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_log: Final = logging.getLogger("mkdocs.hooks.pgq")

_ROOT: Final = Path(__file__).resolve().parents[1]
_PLACE: Final = "repository/"
_AS_THEY_ARE: Final = (".md", ".svg")
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
_TEST: Final = re.compile(r"^(?:\S.*\n(?:[^\n]+\n)*?)?(?:async )?def (test_\w+)", re.MULTILINE)
_ADDRESS: Final = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w.~%@:+,&=?!$'*;/-]*)?(#\S+)?")
_TABS: Final = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- /tabs -->$", re.MULTILINE | re.DOTALL)
_TAB: Final = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)
_IMAGE: Final = re.compile(r"<img\b[^>]*?\bsrc=\"([^\":]+)\"")
_FETCH: Final = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//\S+)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file of the repository that a page links to, and that one links to."""
    found: set[str] = set()
    for file in files.documentation_pages():
        _follow("docs/" + file.src_uri, file.content_string, found)
    for path in sorted(found):
        content = (_ROOT / path).read_text(encoding="utf-8")
        if not path.endswith(_AS_THEY_ARE):
            content = _as_page(path, content)
        files.append(File.generated(config, _page_of(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files outside docs/ to their pages, and make tabs."""
    here = _path_of(page.file.src_uri)
    parts: list[str] = []
    end = 0
    for match in _links(markdown):
        target = match["target"]
        if ":" in target:
            if not _ADDRESS.fullmatch(match[0][2:-1]):
                _log.warning("%s: %s is not a well-formed https address", here, match[0][2:-1])
        elif target:
            uri = posixpath.relpath(
                _page_of(_resolve(here, target)), posixpath.dirname(page.file.src_uri) or "."
            )
            parts += [markdown[end : match.start()], f"]({uri}{match['anchor'] or ''})"]
            end = match.end()
    return _TABS.sub(_as_tabs, "".join([*parts, markdown[end:]]))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Look for what a browser would fetch from elsewhere, and for pages instead of images."""
    for match in _IMAGE.finditer(output):
        if match[1].endswith("/"):
            _log.warning("%s shows %s, which is no image", page.file.src_uri, match[1])
    for match in _FETCH.finditer(output):
        _log.warning("%s makes browsers fetch %s", page.file.src_uri, match[1])
    return output


def _as_tabs(block: re.Match[str]) -> str:
    """Write titles and what follows each as the site's extension for tabs wants it."""
    _, *parts = _TAB.split(block[1])
    return "\n".join(
        f'=== "{title}"\n{textwrap.indent(content, "    ")}'
        for title, content in zip(parts[::2], parts[1::2], strict=True)
    )


def _follow(here: str, text: str, found: set[str]) -> None:
    """Note the files outside docs/ that a page links to, and those that they link to."""
    for match in _links(text):
        path = _resolve(here, match["target"])
        if ":" in match["target"] or path in found or path.startswith("docs/"):
            continue
        if not (_ROOT / path).is_file():
            _log.warning("%s: there is no file %s", here, path)
            continue
        found.add(path)
        if path.endswith(".md"):
            _follow(path, (_ROOT / path).read_text(encoding="utf-8"), found)


def _links(markdown: str) -> Iterator[re.Match[str]]:
    """Yield the links of a page, but for what looks like one in a block of code."""
    return _LINK.finditer(_FENCE.sub(lambda block: " " * len(block[0]), markdown))


def _resolve(here: str, target: str) -> str:
    """Return the path in the repository that a link of a file leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), target)) if target else here


def _page_of(path: str) -> str:
    """Return the page that a file of the repository is on."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return _PLACE + (path if path.endswith(_AS_THEY_ARE) else f"{path}.md")


def _path_of(uri: str) -> str:
    """Return the file of the repository that is on a page."""
    if not uri.startswith(_PLACE):
        return f"docs/{uri}"
    path = uri.removeprefix(_PLACE)
    return path if (_ROOT / path).is_file() else path.removesuffix(".md")


def _as_page(path: str, text: str) -> str:
    """Show a file as code, tests one by one."""
    tests = [*_TEST.finditer(text)] if path.startswith("tests/") else []
    starts = [0, *(test.start() for test in tests), len(text)]
    parts = [text[start:end].strip("\n") for start, end in itertools.pairwise(starts)]
    headings = ["", *(f"## `{test[1]}` {{ #{test[1]} }}" for test in tests)]
    language = PurePosixPath(path).suffix.lstrip(".") or "text"
    blocks = (
        f"{h}\n\n````{language}\n{part}\n````" for h, part in zip(headings, parts, strict=True)
    )
    return "\n\n".join(["---\nsearch:\n  exclude: true\n---", f"# {path}", *blocks])
