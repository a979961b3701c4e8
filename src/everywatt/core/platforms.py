"""What differs between operating systems: measuring needs Linux; users, files and memory of this process."""

from __future__ import annotations

import os
import sys

from everywatt.core.errors import NoSensor

O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)  # files are never inherited on Windows
MEMORIES = ("rss", "pss")  # of processes: resident set size; proportional and unique set size as well
_WAYS = {
    "darwin": "record with `sudo powermetrics --samplers cpu_power,gpu_power -f plist -o FILE`, then "
    "`everywatt import powermetrics FILE`",
    "win32": "run everywatt on Linux (also in WSL, where it estimates), and open its recordings here",
}
_NAMES = {"darwin": "macOS", "win32": "Windows"}


def require_linux() -> None:
    """NoSensor with what to do instead, where nothing can be measured because this is not Linux."""
    system: str = sys.platform  # a variable of its own, since mypy takes the other for a constant
    if not system.startswith("linux"):
        name = _NAMES.get(system, system)
        raise NoSensor(
            f"everywatt measures on Linux only, and this is {name}, where it imports, shows and exports recordings.",
            cure=_WAYS.get(system, _WAYS["win32"]),
        )


def user_id() -> int:
    """The number of the user; 0 on Windows, which gives every file that owner too."""
    return os.getuid() if hasattr(os, "getuid") else 0


def user_name(uid: object) -> str:
    """The name of a uid, else the uid as text; "" if it is not a number."""
    import pwd

    if not isinstance(uid, int):
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def own_peak_bytes() -> int:
    """The most memory that this program has had resident.

    The kernel's rusage cannot say it: it holds the peak of the process that started this program too (a notebook's
    gigabytes). `VmHWM` restarts with the program.
    """
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib is slow to load
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import resource  # Windows has no such module, and its programs no such figure

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rss_bytes() -> int | None:
    """Resident memory of this process, None where /proc does not have it."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - as above
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
