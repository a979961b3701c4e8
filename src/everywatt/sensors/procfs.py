"""Reading and parsing /proc: the host's CPU time and memory, and one process. Roots are arguments.

Files of /proc are read with `os.open` and `os.pread` (`open()` costs ten times as much), and those that are read again
and again stay open. An open `/proc/PID/stat` belongs to that very process: after its end the read says ESRCH, whoever
gets the number next.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from everywatt.core.platforms import O_CLOEXEC

# Windows has no sysconf; there is no /proc to count in either, so that any number will do.
TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_CHUNK = 16384


def slurp(path: str | Path, limit: int | None = None) -> bytes:
    """A whole file (or its first `limit` bytes). OSError where it is not there, hidden or gone."""
    fd = os.open(path, os.O_RDONLY | O_CLOEXEC)
    try:
        if limit is not None:
            return os.read(fd, limit)
        # A short read is not yet the end: /proc hands out whole records, so only an empty read is.
        parts = [os.read(fd, _CHUNK)]
        while parts[-1]:
            parts.append(os.read(fd, _CHUNK))
        return b"".join(parts)
    finally:
        os.close(fd)


def file_text(path: Path, limit: int | None = None) -> str:
    """A file's text without NUL bytes and blanks around it; empty where it cannot be read."""
    try:
        return slurp(path, limit).decode("utf-8", "replace").replace("\0", " ").strip()
    except OSError:
        return ""


class KeptFile:
    """A file that is opened once and read many times from its beginning."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | O_CLOEXEC)

    def read(self, limit: int = 4096) -> bytes:
        return os.pread(self._fd, limit, 0)

    def close(self) -> None:
        """Let go of the descriptor; a second time does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class HostTimes(NamedTuple):
    """Seconds since boot, added over all CPUs."""

    busy_s: float
    idle_s: float
    steal_s: float


def parse_host_times(data: bytes) -> HostTimes:
    """The first line of /proc/stat.

    Busy is user + nice + system + irq + softirq. The kernel counts guests in user and nice already, so they are not
    added again. Idle is idle + iowait. Steal (the hypervisor ran another guest) is neither: this machine did no work in
    it, and its processes are not charged for it either.
    """
    words = data.split(b"\n", 1)[0].split()
    if len(words) < 5 or words[0] != b"cpu":
        raise ValueError(f"not the first line of /proc/stat: {data[:60]!r}")
    return _times(words)


def parse_cpu_times(data: bytes) -> dict[int, HostTimes]:
    """The lines of /proc/stat about single CPUs, by their numbers; one that is off has no line."""
    found = {}
    for line in data.split(b"\n")[1:]:
        words = line.split()
        if len(words) < 5 or not words[0].startswith(b"cpu"):
            break
        found[int(words[0][3:])] = _times(words)
    return found


def _times(words: list[bytes]) -> HostTimes:
    ticks = [int(word) for word in words[1:9]]
    ticks += [0] * (8 - len(ticks))
    user, nice, system, idle, iowait, irq, softirq, steal = ticks
    return HostTimes(
        (user + nice + system + irq + softirq) / TICKS_PER_S, (idle + iowait) / TICKS_PER_S, steal / TICKS_PER_S
    )


def parse_cpuinfo(text: str) -> list[dict[str, str]]:
    """/proc/cpuinfo, one mapping for each CPU. ARM ends with a block about the board: its lines join the last CPU."""
    cpus: list[dict[str, str]] = []
    for line in text.split("\n"):
        key, colon, value = line.partition(":")
        key = key.strip()
        if not colon:
            continue
        if key == "processor" and value.strip().isdecimal():
            cpus.append({})
        if cpus:
            cpus[-1].setdefault(key, value.strip())
    return cpus


def parse_meminfo(data: bytes) -> dict[str, int]:
    """/proc/meminfo in bytes, by its own names; lines that are not a size are left out."""
    sizes: dict[str, int] = {}
    for line in data.split(b"\n"):
        name, _, rest = line.partition(b":")
        words = rest.split()
        if words and words[0].isdigit():
            sizes[name.decode("ascii", "replace")] = int(words[0]) * (1024 if words[1:] == [b"kB"] else 1)
    return sizes


def memory_used_bytes(sizes: dict[str, int]) -> float | None:
    """What programs hold: MemTotal − MemAvailable; free, buffers and caches on kernels before 3.14. None if unknown."""
    total = sizes.get("MemTotal")
    if total is None:
        return None
    available = sizes.get("MemAvailable")
    if available is None:
        available = sum(sizes.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
    return float(max(0, total - available))


class ProcessStat(NamedTuple):
    """One line of /proc/PID/stat, as far as it is used. pid and start (ticks since boot) name a process."""

    pid: int
    name: str
    state: str
    ppid: int
    cpu_s: float
    children_cpu_s: float
    threads: int
    start: int
    rss_bytes: int
    cpu: int | None = None  # the CPU that it last ran on


def parse_process_stat(data: bytes) -> ProcessStat:
    """A line of /proc/PID/stat. The name may hold spaces and brackets, so it ends at the last one."""
    opened, closed = data.find(b"("), data.rfind(b")")
    words = data[closed + 2 :].split()
    if opened < 0 or closed < opened or len(words) < 22:
        raise ValueError(f"not a /proc/PID/stat: {data[:60]!r}")
    return ProcessStat(  # by place: names cost a third more, for each process that ran
        int(data[:opened]),
        data[opened + 1 : closed].decode("utf-8", "replace"),
        words[0].decode("ascii", "replace"),
        int(words[1]),
        (int(words[11]) + int(words[12])) / TICKS_PER_S,
        (int(words[13]) + int(words[14])) / TICKS_PER_S,
        int(words[17]),
        int(words[19]),
        int(words[21]) * PAGE_BYTES,
        int(words[36]) if len(words) > 36 else None,
    )


def start_of(proc: str | Path, pid: int) -> int | None:
    """When a process was started (ticks since boot), None where it is gone or hidden."""
    try:
        return parse_process_stat(slurp(f"{proc}/{pid}/stat", 2048)).start
    except (OSError, ValueError):
        return None


def has_ended(proc: str | Path, pid: int, start: int | None) -> bool:
    """Whether a process that was started then is gone, or waits to be collected. False where that cannot be seen."""
    try:
        stat = parse_process_stat(slurp(f"{proc}/{pid}/stat", 2048))
    except (FileNotFoundError, ProcessLookupError):
        try:  # /proc may hide the processes of others, but not their clocks
            return not sees_own_namespace(proc) or time.clock_gettime_ns(cpu_clock(pid)) < 0
        except OSError:
            return True
    except (OSError, ValueError):
        return False
    return stat.state in ("Z", "X") or start not in (None, stat.start)


def cpu_clock(pid: int) -> int:
    """The kernel's CPU clock of a process, for `time.clock_gettime_ns`: nanoseconds of all its threads, also those
    that ended. Anybody may read it, at a sixth of what /proc/PID/stat costs; OSError when the process is gone.
    """
    return (~pid << 3) | 2


def sees_own_namespace(proc: str | Path) -> bool:
    """Whether the pids in this /proc are those of this process's namespace, so that they name CPU clocks too."""
    try:
        if str(proc) != "/proc" or str(Path("/proc/self").readlink()) != str(os.getpid()):
            return False
        return time.clock_gettime_ns(cpu_clock(os.getpid())) > 0
    except OSError:
        return False


class Held(NamedTuple):
    """Memory of a process: its share of what it holds with others, and what is its alone."""

    pss_bytes: int
    uss_bytes: int


def parse_rollup(data: bytes) -> Held:
    """/proc/PID/smaps_rollup. ValueError where it says nothing (a kernel thread, a zombie)."""
    sizes = parse_meminfo(data)
    if "Pss" not in sizes:
        raise ValueError("no memory of its own")
    return Held(sizes["Pss"], sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0))


def parse_uid(status: bytes) -> int | None:
    for line in status.split(b"\n"):
        if line.startswith(b"Uid:"):
            words = line.split()
            return int(words[1]) if len(words) > 1 else None
    return None


def parse_cmdline(data: bytes, limit: int) -> str:
    """Arguments with a space between them, at most `limit` characters, nothing that would upset a terminal."""
    text = data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    text = text if len(text) <= limit else text[: limit - 1] + "…"  # first: some are very long
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def hidepid(mounts: bytes) -> str | None:
    """The value of hidepid with which /proc is mounted (from /proc/mounts), None where everyone sees everything."""
    for line in mounts.decode("utf-8", "replace").split("\n"):
        words = line.split()
        if len(words) >= 4 and words[1:3] == ["/proc", "proc"]:
            for option in words[3].split(","):
                if option.startswith("hidepid=") and option not in ("hidepid=0", "hidepid=off"):
                    return option.partition("=")[2]
    return None
