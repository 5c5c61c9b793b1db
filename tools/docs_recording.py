"""Writes pictures of what the terminal shows while `make demo` runs: docs/demo.svg and others.

In demo.svg the lines appear one after the other. The pauses between them are as they were, but for
long ones, which are shortened. The other pictures show what `pgq top` and `pgq doctor` print when
one worker was killed.

    .venv/bin/python tools/docs_recording.py [demo] [top] [doctor]
"""

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import bootstrap
from pgserver import Server
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

DOCS: Final = bootstrap.ROOT / "docs"
PYTHON: Final = sys.executable
WIDTH: Final = 96
COMMANDS: Final = {"top": ["top", "--once"], "doctor": ["doctor"]}
MOMENT: Final = "is killed while it holds jobs"
SHORTEST_SECONDS: Final = 0.4  # between two lines, to read them
LONGEST_SECONDS: Final = 2.0

STYLE: Final = """
    @keyframes appear { to { opacity: 1; } }
    @media (prefers-reduced-motion: no-preference) {
        text[clip-path] { opacity: 0; animation: appear 0s forwards; }
    }
"""


def record(variables: Mapping[str, str]) -> Iterator[tuple[float, str]]:
    """Run the demo; yield its lines, and when each one came, in seconds."""
    with subprocess.Popen(
        [PYTHON, "-u", "demo"],
        cwd=bootstrap.ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        began = time.monotonic()
        for line in process.stdout:
            yield time.monotonic() - began, line.rstrip()
    if process.returncode:
        raise SystemExit("the demo has failed")


def take(name: str, variables: Mapping[str, str]) -> str:
    """Return the picture of what a command of pgq prints now."""
    terminal = {**variables, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    done = subprocess.run(
        [PYTHON, "-m", "pgq", *COMMANDS[name]],
        env=terminal,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text(f"$ pgq {' '.join(COMMANDS[name])}"))
    console.print(Text.from_ansi(done.stdout.rstrip()))
    return picture(console, f"pgq {name}", name)


def picture(console: Console, title: str, name: str) -> str:
    """Return what a console has recorded, without the fonts that a page would load."""
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id=name)
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)


def draw(lines: list[tuple[float, str]]) -> str:
    """Return the picture of a terminal in which the lines appear one after the other."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ make demo"))
    times, before = [0.0], 0.0
    for seconds, line in lines:
        rows = Text(line).wrap(console, WIDTH) or [Text("")]
        for row in rows:
            console.print(row)
        pause = min(max(seconds - before, SHORTEST_SECONDS), LONGEST_SECONDS)
        times += [times[-1] + pause] * len(rows)
        before = seconds
    svg = picture(console, "make demo", "demo")
    svg = svg.replace("<style>", f"<style>{STYLE}", 1)

    def delayed(match: re.Match[str]) -> str:
        return f'{match[0]} style="animation-delay: {times[int(match[1])]:.1f}s"'

    return re.sub(r'clip-path="url\(#demo-line-(\d+)\)"', delayed, svg)


def write(name: str, svg: str) -> None:
    """Write a picture, and say so."""
    file: Path = DOCS / f"{name}.svg"
    file.write_text(svg, encoding="utf-8")
    print(file.relative_to(bootstrap.ROOT))


def main() -> None:
    """Run the demo, and write the pictures that the command line names, or all."""
    names = sys.argv[1:] or ["demo", *COMMANDS]
    # Of the machine that it runs on, the picture shows no directory.
    hidden = re.compile(r"(?<=files of )/[^\s,]+")
    lines: list[tuple[float, str]] = []
    with Server() as server:
        variables = {**os.environ, **server.environment()}
        for seconds, line in record(variables):
            lines.append((seconds, hidden.sub("the standard library", line)))
            if MOMENT in line:
                for name in COMMANDS.keys() & set(names):
                    write(name, take(name, variables))
    if "demo" in names:
        write("demo", draw(lines))
    print("\n".join(line for _, line in lines))


if __name__ == "__main__":
    main()
