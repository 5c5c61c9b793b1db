"""Writes requirements/*.txt: what requirements/*.in names, each with the hashes of its files.

The lists that people edit are the *.in; `make requirements` runs this after a change of them. The
hashes are those of all wheels and sources that the index has of a version, so that one list holds
for each Python and machine. uv asks the index for them; it is fetched into the cache.
"""

import os
import subprocess
import sys

import bootstrap

UV = "uv==0.13.8"
OPTIONS = ("--no-deps", "--generate-hashes", "--universal", "--python-version=3.11")
QUIET = ("--quiet", "--no-header", "--no-annotate")
HEAD = "# Made of {name} by 'make requirements': edit that one.\n\n"


def main() -> None:
    """Write each list anew."""
    home = bootstrap.CACHE / "uv"
    if not home.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", UV]
        bootstrap.build(home, lambda place: _run(*pip, "--target", str(place)))
    for source in sorted((bootstrap.ROOT / "requirements").glob("*.in")):
        target = source.with_suffix(".txt")
        cache = f"--cache-dir={bootstrap.CACHE / 'uv-cache'}"
        command = [str(home / "bin" / "uv"), cache, "pip", "compile", *QUIET, *OPTIONS]
        hashed = _run(*command, str(source))
        target.write_text(HEAD.format(name=source.name) + hashed, encoding="utf-8")
        print(os.path.relpath(target))


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
