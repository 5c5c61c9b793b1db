"""Runs other programs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from pgserver import PATIENCE


def run_program(
    *command: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> str:
    """Run a program that must succeed, and return what it prints, errors included."""
    status, output = run_anyhow(*command, cwd=cwd, env=env, stdin=stdin)
    assert status == 0, output
    return output


def run_anyhow(
    *command: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> tuple[int, str]:
    """Run a program, and return its exit status and what it prints, errors included."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout
