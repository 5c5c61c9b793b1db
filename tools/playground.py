"""Puts what docs/playground.md loads beside it, into docs/playground/built.

That is PGlite, a PostgreSQL for browsers, in the version of the package-lock.json there, and the
extension in an archive from which PGlite can create it.
"""

import shutil
import tarfile
from pathlib import Path

import bootstrap

EXTENSION = bootstrap.ROOT / "extension"
BUILT = bootstrap.ROOT / "docs" / "playground" / "built"

# What a browser needs of the package, most of which is other extensions.
PATTERNS = ("LICENSE", "dist/index.js", "dist/chunk-*.js", "dist/*.wasm", "dist/pglite.data")


def main() -> None:
    """Build the directory anew."""
    if BUILT.exists():
        shutil.rmtree(BUILT)
    _copy_pglite(BUILT / "pglite")
    _pack_extension(BUILT / "pgq.tar.gz")
    print(BUILT.relative_to(bootstrap.ROOT))


def _copy_pglite(target: Path) -> None:
    package = bootstrap.fetch_playground() / "@electric-sql" / "pglite"
    target.mkdir(parents=True)
    for pattern in PATTERNS:
        for source in package.glob(pattern):
            shutil.copyfile(source, target / source.name)


def _pack_extension(target: Path) -> None:
    with tarfile.open(target, "w:gz") as archive:
        for path in (EXTENSION / "pgq.control", *EXTENSION.glob("sql/pgq--*.sql")):
            archive.add(path, f"share/postgresql/extension/{path.name}")


if __name__ == "__main__":
    main()
