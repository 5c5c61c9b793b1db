"""Tells on what a benchmark ran, for the report."""

import datetime as dt
import os
import platform
import re
from pathlib import Path

from pgserver import Server

# What the launcher of private servers sets: places and names that change nothing.
_OWN = frozenset(
    [
        "DateStyle",
        "TimeZone",
        "dynamic_library_path",
        "extension_control_path",
        "listen_addresses",
        "log_timezone",
        "port",
        "unix_socket_directories",
    ]
)


def describe(server: Server) -> dict[str, str]:
    """Return what matters of the machine and the server, by name."""
    now = dt.datetime.now(dt.UTC)
    return {
        "PostgreSQL": server.version,
        "settings that differ from the default": _settings(server) or "none",
        "cores": str(len(os.sched_getaffinity(0))),
        "CPU": _find_line("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "memory": _memory(),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "file system": file_system(server.data),
        "kernel": f"{platform.system()} {platform.release()}",
        "date": now.strftime("%Y-%m-%d"),
    }


def file_system(place: Path) -> str:
    """Return the type of the file system that a directory is on, "unknown" where it cannot tell."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    mounts = [line.split()[1:3] for line in lines]
    # Of two on the same directory the later one is seen.
    around = [(len(at), kind) for at, kind in reversed(mounts) if place.is_relative_to(at)]
    return max(around, key=lambda mount: mount[0], default=(0, "unknown"))[1]


def _settings(server: Server) -> str:
    rows = server.psql(
        "select name, current_setting(name) from pg_settings"
        " where source = 'configuration file' and setting is distinct from boot_val"
        " and name !~ '^(lc_|default_text)' order by 1"
    )
    pairs = [row.split("|", 1) for row in rows.splitlines()]
    return ", ".join(f"{name} = {value}" for name, value in pairs if name not in _OWN)


def _memory() -> str:
    kilobytes = _find_line("/proc/meminfo", r"MemTotal:\s*(\d+)")
    return f"{int(kilobytes) / 2**20:.0f} GB" if kilobytes else "unknown"


def _find_line(file: str, pattern: str) -> str:
    try:
        found = re.search(pattern, Path(file).read_text())
    except OSError:
        return ""
    return found[1].strip() if found else ""
