"""Commands that outlived their worker: found by its session, or by the run that they were started for, and ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = "EVERYWATT_BATCH"
"""Environment variable that gives a command the folder of its batch."""
ROUNDS = 20  # a process may start another while they are looked for


def end_session(leader: int, proc: Path = Path("/proc")) -> int:
    """SIGKILL for all processes of a session; gives how many there were."""
    return _end(lambda pid: _session(pid, proc) == leader, proc)


def end_batch(folder: Path, proc: Path = Path("/proc")) -> int:
    """SIGKILL for all processes that were started for this batch, on this host, by this user; gives how many."""
    wanted = f"{MARK}={folder.resolve()}".encode()
    return _end(lambda pid: wanted in _read(pid, "environ", proc).split(b"\0") and not _records(pid, proc), proc)


def _records(pid: int, proc: Path) -> bool:
    """A recorder that an item has started may serve others by now."""
    return b"everywatt/recorder" in _read(pid, "cmdline", proc)


def _end(ours: Callable[[int], bool], proc: Path) -> int:
    ended: set[int] = set()
    for _ in range(ROUNDS):
        found = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
        fresh = [pid for pid in found if pid != os.getpid() and pid not in ended and ours(pid)]
        if not fresh:
            break
        for pid in fresh:
            ended.add(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return len(ended)


def _session(pid: int, proc: Path) -> int | None:
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return None


def _read(pid: int, name: str, proc: Path) -> bytes:
    try:
        return (proc / str(pid) / name).read_bytes()
    except OSError:
        return b""
