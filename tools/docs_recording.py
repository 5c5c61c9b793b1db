"""Writes docs/demo.svg, a recording of `make demo`: its lines appear one after the other.

The pauses between them are as they were, but for long ones, which are shortened.

    .venv/bin/python tools/docs_recording.py
"""

import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import bootstrap
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

FILE: Final = bootstrap.ROOT / "docs" / "demo.svg"
PYTHON: Final = sys.executable
COMMAND: Final = [PYTHON, "tools/pgserver.py", "--", PYTHON, "-u", "demo"]
WIDTH: Final = 96
SHORTEST_SECONDS: Final = 0.4  # between two lines, to read them
LONGEST_SECONDS: Final = 2.0

STYLE: Final = """
    @keyframes appear { to { opacity: 1; } }
    @media (prefers-reduced-motion: no-preference) {
        text[clip-path] { opacity: 0; animation: appear 0s forwards; }
    }
"""


def record() -> Iterator[tuple[float, str]]:
    """Run the demo; yield its lines, and when each one came, in seconds."""
    with subprocess.Popen(
        COMMAND, cwd=bootstrap.ROOT, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        began = time.monotonic()
        for line in process.stdout:
            yield time.monotonic() - began, line.rstrip()
    if process.returncode:
        raise SystemExit("the demo has failed")


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
    svg = console.export_svg(title="make demo", theme=MONOKAI, unique_id="demo")
    # A page that shows the picture loads no fonts from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    svg = svg.replace("<style>", f"<style>{STYLE}", 1)

    def delayed(match: re.Match[str]) -> str:
        return f'{match[0]} style="animation-delay: {times[int(match[1])]:.1f}s"'

    return re.sub(r'clip-path="url\(#demo-line-(\d+)\)"', delayed, svg)


def main() -> None:
    """Record and write the picture."""
    # Of the machine that it runs on, the picture shows no directory.
    hidden = re.compile(r"(?<=files of )/[^\s,]+")
    lines = [(seconds, hidden.sub("the standard library", line)) for seconds, line in record()]
    FILE.write_text(draw(lines), encoding="utf-8")
    print(f"{FILE.relative_to(bootstrap.ROOT)}: {len(lines)} lines, {lines[-1][0]:.0f} s")
    print("\n".join(line for _, line in lines))


if __name__ == "__main__":
    main()
