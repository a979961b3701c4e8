"""Which operating system this is: measuring needs Linux; recordings are read, imported and exported everywhere."""

from __future__ import annotations

import os
import sys

from everywatt.core.errors import NoSensor

O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)  # files are never inherited on Windows
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
