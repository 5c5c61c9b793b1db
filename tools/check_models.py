"""Checks the models of models/ with SPIN: all that can happen in them, in any order.

    python tools/check_models.py [models/NAME.pml ...]

A model must keep each property that it states (`ltl name { ... }`) and have no deadlock. A line
"// fault: NAME what is wrong" names a macro with which it must break one. SPIN is unpacked from
Debian's package where it is not installed; a C compiler has to be there.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bootstrap

MODELS = bootstrap.ROOT / "models"
_COMPILER = {"gcc": "gcc --version", "libc6-dev": "test -e /usr/include/stdlib.h"}


class ModelError(Exception):
    """A model that cannot be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What SPIN says of a property: how many states there are, and how many steps break it."""

    states: int
    broken_after: int | None


def main() -> int:
    """Check the models; return 1 if one is wrong, or right with a fault."""
    paths = [Path(name) for name in sys.argv[1:]] or sorted(MODELS.glob("*.pml"))
    try:
        bootstrap.install_packages(_COMPILER, "the models need")
        wrong = [path for path in paths if not check(path)]
    except (bootstrap.BootstrapError, ModelError) as error:
        raise SystemExit(f"check_models: {error}") from error
    return 1 if wrong else 0


def check(path: Path) -> bool:
    """Check a model without faults and with each; print and return whether all is as it says."""
    text = path.read_text(encoding="utf-8")
    properties = re.findall(r"^ltl (\w+)", text, re.MULTILINE)
    faults = re.findall(r"^// fault: (\w+)", text, re.MULTILINE)
    if not properties or not faults:
        raise ModelError(f"{path} states no property, or no fault that breaks one")
    is_right = True
    for fault in ["", *faults]:
        answers = {name: run(path, name, fault) for name in properties}
        broken = {name: a.broken_after for name, a in answers.items() if a.broken_after is not None}
        states = sum(answer.states for answer in answers.values())
        is_right &= bool(broken) == bool(fault)
        told = [f"{name} broken after {steps} steps" for name, steps in broken.items()]
        name = f"{path.stem} {fault}".strip()
        print(f"{name}: {states:,} states, {', '.join(told) or 'all kept'}", flush=True)
    return is_right


def run(path: Path, name: str, fault: str = "") -> Answer:
    """Check one property of a model, with a fault of it, in all its states."""
    macros = [f"-D{fault}"] if fault else []
    with tempfile.TemporaryDirectory() as scratch:
        _call(scratch, str(find_spin()), *macros, "-a", str(path.resolve()))
        _call(scratch, "gcc", "-O2", "-w", "-o", "pan", "pan.c")
        # -a: cycles, too; -i: the shortest way to a fault.
        printed = _call(scratch, "./pan", "-a", "-m1000000", "-N", name)
    if "max search depth too small" in printed or "out of memory" in printed:
        raise ModelError(f"{path} has too many states:\n{printed}")
    states = re.search(r"^ *(\d+) states, stored", printed, re.MULTILINE)
    errors = re.search(r"errors: (\d+)", printed)
    if states is None or errors is None:
        raise ModelError(f"{path}: {printed}")
    depth = re.search(r"depth reached (\d+)", printed)
    steps = int(depth[1]) if depth else 0
    return Answer(states=int(states[1]), broken_after=steps if int(errors[1]) else None)


def find_spin() -> Path:
    """Return the program, fetched the first time where it is not installed."""
    if installed := shutil.which("spin"):
        return Path(installed)
    return bootstrap.fetch_debian("spin") / "usr" / "bin" / "spin"


def _call(place: str, *command: str) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ModelError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main())
