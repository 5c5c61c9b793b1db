"""Runs the tests of the last commit on minimal Debian systems, as a newcomer would.

    python3 tools/fresh.py [--release trixie]... [--user root|ordinary]... -- make test demo

Each system is made by mmdebstrap, has git, make and python3, and nothing else. The last commit is
cloned into a directory with a blank in its path; the command runs there, as root or as an ordinary
user. Registries are reached as from this machine: its settings for apt, pip and certificates go
along. The command runs in namespaces of its own for mounts and processes: whatever it has started
ends with it, and the files can be removed without harm, also after an interrupt. If it fails, its
logs are kept in .cache/log/fresh. Needs root.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import bootstrap

PACKAGES = {"mmdebstrap": "mmdebstrap --version"}
HOMES = {"ordinary": "/home/some body", "root": "/root"}
LOGS = bootstrap.CACHE / "log" / "fresh"

# What an installer writes (the statistics of PostgreSQL 14 need localhost), and settings of this
# machine without which registries may be out of reach.
SETTINGS = ("/etc/hosts", "/etc/resolv.conf", "/etc/pip.conf", "/etc/npmrc")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
VARIABLES = re.compile(r"(?i)\w+_proxy|(pip|npm_config|node|ssl|curl|requests|git_ssl)_\w+")

# The shell is the first process of its namespace: it waits for orphans, too.
RUN = """
root=$1 user=$2
shift 2
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
chroot --userspec="$user:" "$root" "$@"
exit
"""


def main() -> int:
    """Run the command on each system, as each user, and print what became of it."""
    parser = argparse.ArgumentParser(description="Run the tests on minimal Debian systems.")
    parser.add_argument("--release", action="append", metavar="NAME", help="bookworm and trixie")
    parser.add_argument("--user", action="append", choices=[*HOMES], help="both")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("fresh: only root can make such systems: run it with sudo")
    for number in SIGNALS[1:]:
        signal.signal(number, _exit)
    outcomes: list[str] = []
    passed = failed = 0
    try:
        bootstrap.install_packages(PACKAGES, "fresh systems need")
        for release in options.release or ["bookworm", "trixie"]:
            with tempfile.TemporaryDirectory(prefix="pgq-fresh-", dir="/var/tmp") as place:
                root = Path(place).resolve() / "root"
                python = _make_system(release, root)
                for user in options.user or [*HOMES]:
                    name = f"{release}, {python}, {user}"
                    print(f"\n===== {name}: {shlex.join(options.command)}", flush=True)
                    start = time.monotonic()
                    status, counts = _run_as(user, root, options.command)
                    passed += counts[0]
                    failed += max(counts[1], status != 0)
                    if status != 0:
                        _keep_logs(root, user, f"{release}-{user}")
                    state = "ok" if status == 0 else f"FAILED with {status}"
                    outcomes.append(f"{name}: {state} ({time.monotonic() - start:.0f} s)")
    except bootstrap.BootstrapError as error:
        raise SystemExit(f"fresh: {error}") from error
    print("\n" + "\n".join(outcomes))
    print(f"\n{passed} passed, {failed} failed")
    return 1 if failed else 0


def _make_system(release: str, root: Path) -> str:
    """Make a system with a clone for each user; return which Python it has."""
    print(f"making {release}", flush=True)
    settings = root.parent / "apt.conf"
    settings.write_text(_output("apt-config", "dump", "--format", '%f "%v";%n', "Acquire"))
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=git,make,python3"]
    _run(*command, f"--aptopt={settings}", release, root, *_mirror())
    for file in (*SETTINGS, *_variables().values()):
        source, target = Path(file), root / file.lstrip("/")
        if Path(file).is_absolute() and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
    _run("chroot", root, "useradd", "--home-dir", HOMES["ordinary"], "--create-home", "ordinary")
    for user in HOMES:
        _run("git", "clone", "--quiet", "--no-hardlinks", bootstrap.ROOT, _clone(root, user))
    _run("chroot", root, "chown", "--recursive", "ordinary:", HOMES["ordinary"])
    return _output("chroot", str(root), "python3", "--version")


def _clone(root: Path, user: str) -> Path:
    return root / HOMES[user].lstrip("/") / "a job queue"


def _mirror() -> list[str]:
    """Return where this machine has Debian from; other systems leave that to mmdebstrap."""
    places = _output("apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)").splitlines()
    uris = [place.split()[1] for place in places if place.startswith("Debian ")]
    return uris[:1]


def _variables() -> dict[str, str]:
    """Return the variables that go along; one that names a directory does not."""
    return {
        name: value
        for name, value in os.environ.items()
        if VARIABLES.fullmatch(name) and not Path(value).is_dir()
    }


def _run_as(user: str, root: Path, command: Sequence[str]) -> tuple[int, tuple[int, int]]:
    """Run a command in a system; return its exit status, and the counts that it printed."""
    variables = {
        **_variables(),
        "HOME": HOMES[user],
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
    }
    directory = "/" / _clone(root, user).relative_to(root)
    options = ["--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    inside = ["sh", "-c", 'cd "$0" && exec "$@"', str(directory), *command]
    process = _start(
        ["unshare", *options, "sh", "-euc", RUN, "sh", str(root), user, *inside],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
    )
    passed = failed = 0
    try:
        _let_signals_in()
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if counts := re.match(r"(\d+) passed, (\d+) failed", line):
                passed += int(counts[1])
                failed += int(counts[2])
        return process.wait(), (passed, failed)
    finally:
        process.kill()  # and with it all processes of the namespace
        process.wait()


def _keep_logs(root: Path, user: str, name: str) -> None:
    logs = _clone(root, user) / ".cache" / "log"
    if logs.exists():
        shutil.copytree(logs, LOGS / name, dirs_exist_ok=True)
        print(f"logs: {os.path.relpath(LOGS / name)}", flush=True)


def _run(*command: str | Path) -> None:
    """Run a command; an interrupt ends all that the command has started as well."""
    try:
        process = _start(command, start_new_session=True)
    except OSError as error:
        raise bootstrap.BootstrapError(str(error)) from error
    try:
        _let_signals_in()
        status = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if status != 0:
        raise bootstrap.BootstrapError(f"{shlex.join(map(str, command))} has failed with {status}")


def _start(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
    """Start a program while signals wait: they come in when the caller is ready to end it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return subprocess.Popen(
            command,
            preexec_fn=_let_signals_in,  # noqa: PLW1509 - there is one thread
            text=True,
            **options,
        )
    except OSError:
        _let_signals_in()
        raise


def _let_signals_in() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _exit(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
