"""What `make dist` builds from the last commit can be published, and installed."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pgq
import pytest
import pytest_pgq
from bootstrap import ROOT

from .programs import run_program

pytestmark = pytest.mark.constant


def build(output: Path) -> Path:
    run_program(sys.executable, ROOT / "tools" / "make_dist.py", "--output", output)
    return output


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


def test_what_is_tested_is_the_wheel_of_the_sources() -> None:
    installed = Path(sysconfig.get_path("purelib"))
    for package in (pgq, pytest_pgq):
        assert Path(package.__file__ or "").is_relative_to(installed)
    for source in (ROOT / "python" / "src").glob("*/**/*.py"):
        file = installed / source.relative_to(ROOT / "python" / "src")
        assert file.read_bytes() == source.read_bytes(), f"{file} is old: run make build"


def only(directory: Path, pattern: str) -> Path:
    [found] = directory.glob(pattern)
    return found


@pytest.fixture
def unpacked(dist: Path, tmp_path: Path) -> Path:
    """The archive for PGXN, unpacked by a tool that gives each file the current time."""
    with zipfile.ZipFile(only(dist, "pgq-*.zip")) as archive:
        archive.extractall(tmp_path)
    return only(tmp_path, "pgq-*")


def test_two_builds_give_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "again")
    names = sorted(path.name for path in dist.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    assert {Path(name).suffix for name in names} == {".gz", ".sql", ".whl", ".zip"}
    differing = [
        name for name in names if (dist / name).read_bytes() != (again / name).read_bytes()
    ]
    assert differing == []


def test_meta_json_follows_the_specification_of_pgxn(unpacked: Path) -> None:
    meta = json.loads((unpacked / "META.json").read_text(encoding="utf-8"))
    required = {"name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"}
    assert required <= set(meta)
    assert set(meta) <= required | {
        *("description", "generated_by", "tags", "no_index", "prereqs", "release_status"),
        *("resources",),
    }
    assert meta["meta-spec"]["version"] == "1.0.0"
    assert meta["license"] == "postgresql"
    assert meta["maintainer"]
    assert unpacked.name == f"{meta['name']}-{meta['version']}"
    control = (unpacked / "extension" / "pgq.control").read_text(encoding="utf-8")
    assert f"default_version = '{meta['version']}'" in control
    [(extension, provided)] = meta["provides"].items()
    assert (extension, provided["version"]) == ("pgq", meta["version"])
    assert (unpacked / provided["file"]).read_text(encoding="utf-8").startswith("-- Built by")
    assert (unpacked / provided["docfile"]).is_file()
    for phase, relations in meta["prereqs"].items():
        assert phase in {"configure", "build", "test", "runtime", "develop"}
        assert set(relations) <= {"requires", "recommends", "suggests", "conflicts"}
        for version in (range_ for terms in relations.values() for range_ in terms.values()):
            assert version == 0 or re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert all(2 <= len(tag) < 256 and not re.search(r"[/\\]", tag) for tag in meta["tags"])


def test_what_pgxn_has_is_installed_without_python(
    unpacked: Path, pg_config: Path, tmp_path: Path
) -> None:
    variables = [f"PG_CONFIG={pg_config}", f"DESTDIR={tmp_path / 'root'}", "PGQ_SETUP_PYTHON=false"]
    for target in ("all", "install"):  # as the client of PGXN does
        run_program("make", target, *variables, cwd=unpacked)
    [control] = (tmp_path / "root").glob("**/extension/pgq.control")
    version = unpacked.name.removeprefix("pgq-")
    assert (control.parent / f"pgq--{version}.sql").is_file()


def test_pypi_would_take_the_python_package(dist: Path) -> None:
    archives = [only(dist, "*.whl"), only(dist, "*.tar.gz")]
    output = run_program(
        sys.executable, "-m", "twine", "--no-color", "check", "--strict", *archives
    )
    assert output.count("PASSED") == len(archives)


def test_the_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(only(dist, "*.tar.gz")) as archive:
        epoch = archive.getmembers()[0].mtime
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    run_program(*pip, "--wheel-dir", tmp_path, only(dist, "*.tar.gz"), env=variables)
    with zipfile.ZipFile(only(dist, "*.whl")) as expected:
        with zipfile.ZipFile(only(tmp_path, "*.whl")) as built:
            assert {entry.filename: entry.CRC for entry in built.infolist()} == {
                entry.filename: entry.CRC for entry in expected.infolist()
            }
        assert "pgq/py.typed" in expected.namelist()
        assert any(name.endswith("/licenses/LICENSE") for name in expected.namelist())


def test_the_wheel_is_installed_into_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    run_program(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    python = tmp_path / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    run_program(*pip, "--no-index", "--no-deps", only(dist, "*.whl"))
    site = only(tmp_path, "lib/python*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    assert run_program(python, "-c", "import pgq; print(pgq.__file__)").startswith(str(site))
    assert "worker" in run_program(tmp_path / "bin" / "pgq", "--help")
