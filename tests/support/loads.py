"""Load workers that a test started, and whether what they reached is what was asked or what the machine could give."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

POINTS = 5.0
PROGRAMS = (b"everywatt.stress.worker", b"stress-ng")


def needed(there: object, reason: str) -> None:
    """Skip the test where something is missing; in CI, where it has to be there, fail."""
    if not there:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def fair(result) -> bool:
    """Within five points of what was asked, or short of it by no more than the machine did not give."""
    points = result.off_points(POINTS)
    return points is None or points <= POINTS


def descendants(pid: int) -> list[int]:
    """The processes below a process."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(word) for word in (task / "children").read_text().split()]
        except OSError:
            continue
    return found[1:]


def workers_below(pid: int) -> list[int]:
    """Those of them that make load."""
    return [child for child in descendants(pid) if alive(child) and _makes_load(child)]


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def group(number: int) -> list[int]:
    """The processes of a process group, zombies too."""
    stats = ((path.name, path / "stat") for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [int(pid) for pid, stat in stats if _group_of(stat) == number]


def _group_of(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[2])
    except OSError:
        return None


def gone(pids: list[int], within_s: float = 240.0) -> bool:
    """Whether all of them are gone, now or soon."""
    deadline = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _makes_load(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return False
    return any(program in words for program in PROGRAMS)
